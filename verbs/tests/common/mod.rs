//! Code that the tests of whole RNICs share.
#![allow(dead_code)]

pub mod crowd;
pub mod frames;
pub mod medium;
pub mod pages;
pub mod raw;
pub mod sockets;
pub mod strangers;

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;
use urnic::simulation::{Carrier, Options, Simulation, Steering, TcpConfig};
use urnic::*;

pub const PORT: u16 = 7000;
pub const LIMIT: Duration = Duration::from_secs(3600);

thread_local! {
    /// Number of completion queues made.
    static QUEUES: Cell<u32> = const { Cell::new(0) };
}

/// Makes a completion queue. If the device has several engines, the number of queues that this thread has made
/// so far selects the engine.
pub fn next_cq(device: &Device) -> Cq {
    let vector = QUEUES.replace(QUEUES.get() + 1) % device.attributes().unwrap().engines;
    device.create_cq_with(&CqInit { depth: 256, channel: None, timestamps: false, vector }).unwrap()
}

/// A queue pair, and the objects that it needs.
pub struct End {
    pub pd: Pd,
    pub cq: Cq,
    pub qp: Qp,
    pub events: EventChannel,
    pub connection: Option<Connection>,
}

impl End {
    pub fn new(device: &Device) -> End {
        let events = device.create_event_channel().unwrap();
        End::with_events(device, events)
    }

    pub fn with_events(device: &Device, events: EventChannel) -> End {
        let pd = device.alloc_pd();
        let cq = next_cq(device);
        let qp = create_qp(&pd, &cq);
        End { pd, cq, qp, events, connection: None }
    }

    /// Makes another end in the same protection domain.
    pub fn sibling(&self, device: &Device) -> End {
        let (pd, cq) = (self.pd.clone(), next_cq(device));
        let qp = create_qp(&pd, &cq);
        End { pd, cq, qp, events: device.create_event_channel().unwrap(), connection: None }
    }

    /// Returns the next completion.
    pub fn next(&self, simulation: &mut Simulation) -> Wc {
        let mut wc = [Wc::default()];
        let limit = simulation.now() + LIMIT;
        assert!(simulation.run(limit, || self.cq.poll(&mut wc) == 1), "no completion within {LIMIT:?}");
        wc[0]
    }

    /// Returns all completions that have arrived.
    pub fn completions(&self) -> Vec<Wc> {
        let mut all = Vec::new();
        let mut wc = [Wc::default(); 16];
        loop {
            match self.cq.poll(&mut wc) {
                0 => return all,
                n => all.extend_from_slice(&wc[..n]),
            }
        }
    }

    /// Returns the next event.
    pub fn event(&self, simulation: &mut Simulation) -> CmEvent {
        let mut event = None;
        let limit = simulation.now() + LIMIT;
        let found = simulation.run(limit, || {
            event = self.events.poll();
            event.is_some()
        });
        assert!(found, "no event within {LIMIT:?}");
        event.unwrap()
    }

    /// Returns the reason in the next event, which must report the end of the connection.
    pub fn end(&self, simulation: &mut Simulation) -> DisconnectReason {
        match self.event(simulation) {
            CmEvent::Disconnected { qpn, reason } if qpn == self.qp.qpn() => reason,
            other => panic!("{other:?}"),
        }
    }

    /// Posts a signalled request.
    pub fn post(&self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        self.qp.post_send(&SendWr { wr_id, op, sges, flags: SendFlags::SIGNALED }).unwrap();
    }

    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) {
        self.qp.post_recv(&RecvWr { wr_id, sges }).unwrap();
    }

    pub fn disconnect(&self) {
        self.connection.as_ref().unwrap().disconnect().unwrap();
    }
}

pub fn create_qp(pd: &Pd, cq: &Cq) -> Qp {
    let init = QpInit {
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline: 64,
        signal_all: false,
    };
    pd.create_qp(&init).unwrap()
}

pub fn address(node: usize) -> SocketAddr {
    SocketAddr::new(Simulation::address(node).into(), PORT)
}

/// Returns connection parameters with which Sends do not wait for receives.
pub fn strict() -> ConnParam {
    ConnParam { rnr_retry: 0, ..ConnParam::default() }
}

/// Connects `client`, on any device, to `server` on device 0, which listens meanwhile.
pub fn connect(simulation: &mut Simulation, server: &mut End, client: &mut End) {
    connect_with(simulation, server, client, &strict());
}

/// Connects the two as [`connect`] does; the server uses `param`.
pub fn connect_with(simulation: &mut Simulation, server: &mut End, client: &mut End, param: &ConnParam) {
    let listener = server.events.listen(PORT, 16).unwrap();
    let connection = client.events.connect(&client.qp, address(0), &strict());
    client.connection = Some(connection.unwrap());
    let mut established = [false, false];
    let limit = simulation.now() + LIMIT;
    let all = simulation.run(limit, || {
        match server.events.poll() {
            Some(CmEvent::ConnectRequest(request)) => {
                server.connection = Some(request.accept(&server.qp, param).unwrap());
            }
            Some(CmEvent::Established { .. }) => established[0] = true,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        match client.events.poll() {
            Some(CmEvent::Established { .. }) => established[1] = true,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        established == [true, true]
    });
    assert!(all, "not connected: {established:?}");
    drop(listener);
}

/// Makes two devices, each with a queue pair; the queue pairs are connected to each other. Returns the end that
/// listened, then the end that connected.
pub fn connected(options: &Options) -> (Simulation, End, End) {
    let mut simulation = Simulation::new(options).unwrap();
    let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    connect(&mut simulation, &mut server, &mut client);
    (simulation, server, client)
}

/// Returns the default options: a network with a small delay and no faults.
pub fn options() -> Options {
    let (engines, steering) = queues();
    Options {
        carrier: carrier(),
        network: "delay=5us".parse().unwrap(),
        engines,
        steering,
        ..Options::default()
    }
}

/// Returns the numbers of engines of the devices, and to which engine frames go. They depend on the test binary:
/// `tests/over_queues.rs` runs the same tests as other binaries, but with several engines.
fn queues() -> (Vec<usize>, Steering) {
    match env!("CARGO_CRATE_NAME") {
        "over_queues" => (vec![3, 2], Steering::Random),
        _ => (Vec::new(), Steering::ToOwner),
    }
}

/// Returns what carries the streams in these tests; `None`: the simulated network. It depends on the test binary:
/// `tests/over_memory.rs`, `tests/over_kernel.rs` and `tests/over_engines.rs` run the same tests as other binaries, but
/// not over the simulated network.
fn carrier() -> Option<Carrier> {
    match env!("CARGO_CRATE_NAME") {
        "over_memory" => Some(medium::device),
        "over_kernel" => Some(sockets::device),
        "over_engines" => Some(sockets::device_of_engines),
        _ => None,
    }
}

/// Returns options with the configuration's default time limits for dead peers.
pub fn defaults() -> Options {
    let config = urnic_config::TcpConfig::default();
    let idle = config.keepalive_idle.expect("on by default");
    let keepalive = Keepalive { idle, interval: config.keepalive_interval, count: config.keepalive_count };
    let tcp = TcpConfig {
        keepalive: Some(keepalive),
        user_timeout: config.user_timeout,
        rto_min: config.rto_min,
        ..TcpConfig::default()
    };
    Options { tcp, ..options() }
}

/// Checks that a connection works both ways. The side that connected sends first (MPA-70).
pub fn works(simulation: &mut Simulation, server: &End, client: &End) {
    for (from, to) in [(client, server), (server, client)] {
        let source = from.pd.alloc_mr(100, Access::empty()).unwrap();
        let sink = to.pd.alloc_mr(100, Access::LOCAL_WRITE).unwrap();
        source.write_at(0, &pattern(100, 3)).unwrap();
        to.post_recv(501, &[Sge::of(&sink, 0, 100)]);
        from.post(500, SendOp::Send, &[Sge::of(&source, 0, 100)]);
        for (end, wr_id) in [(to, 501), (from, 500)] {
            let wc = end.next(simulation);
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
        }
        assert_eq!(content(&sink), pattern(100, 3));
    }
}

pub fn content(mr: &Mr) -> Vec<u8> {
    let mut bytes = vec![0; mr.len() as usize];
    mr.read_at(0, &mut bytes).unwrap();
    bytes
}

pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}
