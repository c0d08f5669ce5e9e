//! Devices with an engine on each queue of their port. All messages are empty, because these tests check only which
//! engines take part.

mod common;

use common::*;
use fastrand::Rng;
use std::time::Duration;
use urnic::simulation::{Options, Simulation, Steering, TcpConfig};
use urnic::*;

/// Makes two devices with random numbers of engines, on the network that `network` describes.
fn world(rng: &mut Rng, steering: Steering, network: &str) -> Simulation {
    let seed = rng.u32(..);
    let engines = vec![rng.usize(1..=8), rng.usize(2..=8)];
    let tcp = TcpConfig { rto_min: Duration::from_millis(5), ..TcpConfig::default() };
    let network = format!("{network},seed={seed}").parse().unwrap();
    let ipv6 = rng.bool();
    Simulation::new(&Options { network, engines, steering, ipv6, tcp, ..Options::default() }).unwrap()
}

/// Returns a counter of a device.
fn figure(simulation: &Simulation, device: usize, name: &str) -> u64 {
    let counters = simulation.device(device).attributes().unwrap().counters;
    counters.iter().filter(|(n, _)| *n == name).map(|(_, n)| n).sum()
}

/// Sends an empty message each way.
fn greet(simulation: &mut Simulation, server: &End, client: &End) {
    for (from, to) in [(client, server), (server, client)] {
        to.post_recv(2, &[]);
        from.post(1, SendOp::Send, &[]);
        for (end, wr_id) in [(to, 2), (from, 1)] {
            let wc = end.next(simulation);
            assert_eq!((wc.wr_id, wc.status, wc.byte_len), (wr_id, WcStatus::Success, 0));
        }
    }
}

/// Connects queue pairs at random engines, exchanges messages, and disconnects, twice.
fn meet(seed: u64, steering: Steering, network: &str) -> Simulation {
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let mut simulation = world(&mut rng, steering, network);
    let count = rng.usize(1..=6);
    let mut pairs: Vec<_> =
        (0..count).map(|_| (End::new(&simulation.device(0)), End::new(&simulation.device(1)))).collect();
    for _ in 0..2 {
        for (server, client) in &mut pairs {
            connect(&mut simulation, server, client);
        }
        for (server, client) in &pairs {
            greet(&mut simulation, server, client);
        }
        for (server, client) in &pairs {
            client.disconnect();
            for (end, reason) in [(client, DisconnectReason::Local), (server, DisconnectReason::Peer)] {
                assert_eq!(end.end(&mut simulation), reason);
                assert!(end.completions().is_empty());
                end.qp.to_idle().unwrap();
            }
        }
    }
    for device in [0, 1] {
        assert_eq!(figure(&simulation, device, "frames_between_engines_dropped"), 0);
        let handed_over = figure(&simulation, device, "frames_handed_over");
        assert_eq!(handed_over, figure(&simulation, device, "frames_taken_over"));
    }
    simulation
}

#[test]
fn frames_may_reach_any_engine() {
    for seed in 0..100 {
        let simulation = meet(seed, Steering::Random, "delay=20us,loss=0.02,dup=0.02,reorder=0.05");
        assert!(figure(&simulation, 1, "frames_handed_over") > 0);
    }
}

/// Neighbours are resolved once, and messages about them (ARP) go to all engines. Nothing else crosses between engines.
#[test]
fn with_right_steering_nothing_crosses_later() {
    for seed in 0..40 {
        let simulation = meet(seed, Steering::ToOwner, "delay=20us,loss=0.02,dup=0.02,reorder=0.05");
        for device in [0, 1] {
            let engines = u64::from(simulation.device(device).attributes().unwrap().engines);
            let told = figure(&simulation, device, "frames_told_to_all");
            assert_eq!(figure(&simulation, device, "frames_handed_over"), told * (engines - 1));
        }
    }
}

/// To connect from a reserved port, a queue pair moves to the engine that must open this connection, whichever engine
/// the queue pair began at.
#[test]
fn connections_from_a_reserved_port() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut rng = Rng::with_seed(seed);
        let mut simulation = world(&mut rng, Steering::Random, "delay=20us");
        let bound = simulation.device(1).bind(([0, 0, 0, 0], 900), false).unwrap();
        let mut server = End::new(&simulation.device(0));
        let mut client = End::new(&simulation.device(1));
        for _ in 0..3 {
            let listener = server.events.listen(PORT, 4).unwrap();
            let param = ConnParam::default();
            client.connection =
                Some(client.events.connect_from(&bound, &client.qp, address(0), &param).unwrap());
            let CmEvent::ConnectRequest(request) = server.event(&mut simulation) else {
                panic!("no request")
            };
            assert_eq!(request.peer(), (Simulation::address(1), 900).into());
            server.connection = Some(request.accept(&server.qp, &param).unwrap());
            for end in [&server, &client] {
                assert!(matches!(end.event(&mut simulation), CmEvent::Established { .. }));
            }
            drop(listener);
            greet(&mut simulation, &server, &client);
            server.disconnect();
            for (end, reason) in [(&server, DisconnectReason::Local), (&client, DisconnectReason::Peer)] {
                assert_eq!(end.end(&mut simulation), reason);
                end.qp.to_idle().unwrap();
            }
            // Waits for the last ACKs.
            simulation.wait(Duration::from_millis(1));
        }
    }
}

/// A connect to a port without a listener is refused at once, whichever engine receives it.
#[test]
fn nobody_listens() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut simulation = world(&mut Rng::with_seed(seed), Steering::Random, "delay=20us");
        let client = End::new(&simulation.device(1));
        client.events.connect(&client.qp, address(0), &ConnParam::default()).unwrap();
        let event = client.event(&mut simulation);
        assert!(matches!(event, CmEvent::ConnectError { reason: ConnectFailure::Refused, .. }), "{event:?}");
        assert_eq!(figure(&simulation, 0, "TcpOutRsts"), 1);
    }
}
