//! Peers that vanish without a FIN or a reset, and peers that are only silent, in virtual time.

mod common;

use common::*;
use std::time::Duration;
use urnic::simulation::{Impairment, Options, Simulation};
use urnic::*;

/// Loses all frames from now on: to the server, the client is dead.
fn silence(simulation: &mut Simulation) {
    let all = Impairment { loss: 1.0, ..Impairment::default() };
    for (from, to) in [(0, 1), (1, 0)] {
        simulation.network().link_mut(from, to).unwrap().set_impairment(&all);
    }
}

/// Makes a connection that has been used and is quiet.
fn quiet(options: &Options) -> (Simulation, End, End) {
    let (mut simulation, server, client) = connected(options);
    works(&mut simulation, &server, &client);
    simulation.wait(Duration::from_secs(1));
    (simulation, server, client)
}

/// Returns the time until the server notices that its peer is dead.
fn notices(simulation: &mut Simulation, server: &End) -> Duration {
    let before = simulation.now();
    assert_eq!(server.end(simulation), DisconnectReason::TimedOut);
    assert_eq!(server.qp.state(), QpState::Error);
    simulation.now() - before
}

fn secs(range: std::ops::Range<u64>) -> std::ops::Range<Duration> {
    Duration::from_secs(range.start)..Duration::from_secs(range.end)
}

/// While nothing is under way, keep-alive notices a dead peer after 15 s. Receives are flushed.
#[test]
fn an_idle_target_learns_of_a_dead_initiator() {
    let (mut simulation, server, client) = quiet(&defaults());
    for i in 0..3 {
        server.post_recv(i, &[]);
    }
    silence(&mut simulation);
    let took = notices(&mut simulation, &server);
    assert!(secs(13..17).contains(&took), "{took:?}");
    let ids: Vec<_> = server.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ids, [0, 1, 2].map(|i| (i, WcStatus::Flushed)));
    drop(client);
}

/// If the peer does not acknowledge Sends, the user timeout notices this after 30 s.
#[test]
fn unacknowledged_data_finds_out() {
    let (mut simulation, server, client) = quiet(&defaults());
    let source = server.pd.alloc_mr(1 << 20, Access::empty()).unwrap();
    silence(&mut simulation);
    for i in 0..3 {
        server.post(i, SendOp::Send, &[Sge::of(&source, 0, 1 << 20)]);
    }
    let took = notices(&mut simulation, &server);
    assert!(secs(29..35).contains(&took), "{took:?}");
    // The first message fits into TCP's send buffer, so its request completed when the message was copied. The other
    // messages do not fit.
    let all: Vec<_> = server.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(all.len(), 3);
    assert_eq!(all[2], (2, WcStatus::Flushed));
    drop(client);
}

/// In the first case, the peer does not acknowledge the request of a Read. In the second case, it does, so that TCP has
/// nothing outstanding, although the peer owes the response.
#[test]
fn a_read_that_is_not_answered_finds_out() {
    for acknowledged in [false, true] {
        let network = "delay=5us,rate=1gbit,queue=1000".parse().unwrap();
        let (mut simulation, server, client) = quiet(&Options { network, ..defaults() });
        let remote = client.pd.alloc_mr(4 << 20, Access::REMOTE_READ).unwrap();
        let local = server.pd.alloc_mr(4 << 20, Access::LOCAL_WRITE).unwrap();
        let read = SendOp::Read { addr: remote.addr(), rkey: remote.rkey() };
        if !acknowledged {
            silence(&mut simulation);
        }
        server.post(1, read, &[Sge::of(&local, 0, 4 << 20)]);
        server.post_recv(2, &[]);
        if acknowledged {
            // Runs until some of the data has arrived, and with it the acknowledgement of the request.
            let mut first = [0];
            remote.write_at(0, &[9]).unwrap();
            let limit = simulation.now() + LIMIT;
            assert!(simulation.run(limit, || {
                local.read_at(0, &mut first).unwrap();
                first == [9]
            }));
            simulation.run(limit.min(simulation.now() + Duration::from_micros(100)), || false);
            silence(&mut simulation);
        }
        let took = notices(&mut simulation, &server);
        assert!(secs(if acknowledged { 13..17 } else { 29..35 }).contains(&took), "{took:?}");
        let ids: Vec<_> = server.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(ids, [(1, WcStatus::Flushed), (2, WcStatus::Flushed)]);
        drop(client);
    }
}

/// Connections to idle peers stay for hours, even if the network loses many frames.
#[test]
fn live_but_idle_peers_stay() {
    for network in ["delay=5us", "delay=20ms,loss=0.1,seed=4"] {
        let (mut simulation, server, client) =
            quiet(&Options { network: network.parse().unwrap(), ..defaults() });
        let hours = Duration::from_secs(8 * 3600);
        simulation.wait(hours);
        assert_eq!((server.qp.state(), client.qp.state()), (QpState::Rts, QpState::Rts), "{network}");
        works(&mut simulation, &server, &client);
    }
}

/// A short outage of the network is not taken for death.
#[test]
fn a_pause_of_the_network_is_survived() {
    let (mut simulation, server, client) = quiet(&defaults());
    silence(&mut simulation);
    simulation.wait(Duration::from_secs(12));
    for (from, to) in [(0, 1), (1, 0)] {
        simulation.network().link_mut(from, to).unwrap().set_impairment(&Impairment::default());
    }
    simulation.wait(Duration::from_secs(60));
    works(&mut simulation, &server, &client);
}

fn fast() -> Patience {
    Patience {
        keepalive: Some(Keepalive {
            idle: Duration::from_secs(1),
            interval: Duration::from_millis(250),
            count: 4,
        }),
        user_timeout: Some(Duration::from_secs(3)),
    }
}

/// Each connection may have its own time limits, from the start or later, within the bounds of the settings. `None`
/// restores the configured limits.
#[test]
fn connections_have_their_own_patience() {
    for later in [false, true] {
        for busy in [false, true] {
            let mut simulation = Simulation::new(&defaults()).unwrap();
            let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
            let patience = (!later).then(fast);
            let param = ConnParam { patience, ..strict() };
            connect_with(&mut simulation, &mut server, &mut client, &param);
            works(&mut simulation, &server, &client);
            simulation.wait(Duration::from_secs(1));
            if later {
                server.connection.as_ref().unwrap().set_patience(Some(fast())).unwrap();
            }
            silence(&mut simulation);
            if busy {
                server.post(1, SendOp::Send, &[]);
            }
            let took = notices(&mut simulation, &server);
            assert!(
                secs(if busy { 3..5 } else { 1..3 }).contains(&took),
                "later {later}, busy {busy}: {took:?}"
            );
            // The other side uses the configured times.
            let client_took = {
                let before = simulation.now();
                client.end(&mut simulation);
                simulation.now() - before
            };
            assert!(client_took > Duration::from_secs(8), "{client_took:?}");
        }
    }
    let (mut simulation, server, _client) = quiet(&defaults());
    let connection = server.connection.as_ref().unwrap();
    let probes = |count| Patience { keepalive: fast().keepalive.map(|k| Keepalive { count, ..k }), ..fast() };
    for (count, allowed) in [(0, false), (1, true), (100, true), (101, false)] {
        assert_eq!(connection.set_patience(Some(probes(count))).is_ok(), allowed, "{count} probes");
    }
    connection.set_patience(Some(fast())).unwrap();
    connection.set_patience(None).unwrap();
    silence(&mut simulation);
    let took = notices(&mut simulation, &server);
    assert!(secs(13..17).contains(&took), "{took:?}");
    assert!(matches!(connection.set_patience(None), Err(Error::NotConnected)));
}

/// Without time limits, no peer is found dead.
#[test]
fn it_can_be_switched_off() {
    let (mut simulation, server, client) = quiet(&defaults());
    let never = Patience { keepalive: None, user_timeout: None };
    for end in [&server, &client] {
        end.connection.as_ref().unwrap().set_patience(Some(never)).unwrap();
    }
    silence(&mut simulation);
    simulation.wait(Duration::from_secs(3600));
    assert_eq!((server.qp.state(), client.qp.state()), (QpState::Rts, QpState::Rts));
}

#[test]
fn senseless_times_are_refused() {
    let (_simulation, server, _client) = connected(&defaults());
    let connection = server.connection.as_ref().unwrap();
    let keepalive = fast().keepalive.unwrap();
    for bad in [
        Patience { user_timeout: Some(Duration::ZERO), ..fast() },
        Patience { user_timeout: Some(Duration::MAX), ..fast() },
        Patience { keepalive: Some(Keepalive { idle: Duration::ZERO, ..keepalive }), ..fast() },
        Patience { keepalive: Some(Keepalive { interval: Duration::ZERO, ..keepalive }), ..fast() },
        Patience { keepalive: Some(Keepalive { count: 0, ..keepalive }), ..fast() },
    ] {
        assert!(matches!(connection.set_patience(Some(bad)), Err(Error::Invalid(_))), "{bad:?}");
    }
}

/// Returns what a device reports about its link after some time.
fn links(simulation: &mut Simulation, node: usize) -> Vec<AsyncEvent> {
    simulation.wait(Duration::from_secs(20));
    let events = simulation.device(node).async_events();
    std::iter::from_fn(|| events.poll()).collect()
}

#[test]
fn links_come_and_go() {
    let mut simulation = Simulation::new(&options()).unwrap();
    assert_eq!(links(&mut simulation, 0), [], "up from the start");
    simulation.set_link(0, false);
    assert_eq!(links(&mut simulation, 0), [AsyncEvent::PortError]);
    assert!(!simulation.device(0).attributes().unwrap().link_up);
    simulation.set_link(0, true);
    assert_eq!(links(&mut simulation, 0), [AsyncEvent::PortActive]);
    assert_eq!(links(&mut simulation, 1), []);
}

/// A link that is down for a moment ends no connection. This also holds if the device's thread did not run meanwhile,
/// because only the number of checks that found no carrier counts.
#[test]
fn a_link_that_blinks_keeps_its_connections() {
    let (mut simulation, server, client) = connected(&options());
    works(&mut simulation, &server, &client);
    for node in [0, 1] {
        simulation.set_link(node, false);
    }
    // The device checks the carrier once, a second after the last check that found the carrier.
    simulation.wait(Duration::from_secs(1));
    for node in [0, 1] {
        simulation.set_link(node, true);
    }
    simulation.wait(Duration::from_secs(1));
    works(&mut simulation, &server, &client);
    // The peer's process has ended.
    simulation.set_link(1, false);
    for _ in 0..40 {
        simulation.wait(Duration::from_millis(10));
    }
    assert_eq!(client.qp.state(), QpState::Error);
}
