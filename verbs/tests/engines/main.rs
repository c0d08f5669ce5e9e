//! Devices of several engines over the kernel's sockets, in real time: threads of one process at both ends.

mod crowd;
mod ends;
mod exits;
mod interrupted;
mod memory;
mod sleepers;
mod storms;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use urnic::config::{Config, KernelAddresses};
use urnic::*;

/// Nothing takes that long but a stopped machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A device on the loopback with so many engines.
pub(crate) fn device(engines: usize, progress: Progress) -> Device {
    let mut config = Config::default();
    config.port.kernel = KernelAddresses::One(Ipv4Addr::LOCALHOST.into());
    config.engine.engines = Some(engines);
    config.engine.progress = progress;
    let device = Device::open(&config).unwrap();
    assert_eq!(device.attributes().unwrap().engines, engines as u32);
    device
}

/// A completion queue whose home is the engine `vector`, or that of the same rest if there are fewer.
pub(crate) fn queue(device: &Device, vector: usize) -> Cq {
    let vector = vector as u32 % device.attributes().unwrap().engines;
    device.create_cq_with(&CqInit { depth: 4096, channel: None, timestamps: false, vector }).unwrap()
}

pub(crate) fn init(cq: &Cq) -> QpInit<'_> {
    QpInit {
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline: 64,
        signal_all: true,
    }
}

/// Ends a test that stands still.
pub(crate) struct Limit(Instant);

impl Limit {
    pub(crate) fn new() -> Self {
        Self(Instant::now() + PATIENCE)
    }

    pub(crate) fn check(&self, what: &str) {
        assert!(Instant::now() < self.0, "{what} did not happen within {PATIENCE:?}");
    }
}

/// The next completion, which must be a success.
pub(crate) fn next(cq: &Cq, limit: &Limit, what: &str) -> Wc {
    let mut wc = [Wc::default()];
    while cq.poll(&mut wc) == 0 {
        limit.check(what);
    }
    assert_eq!(wc[0].status, WcStatus::Success, "{what}: {:?}", wc[0]);
    wc[0]
}

/// The next event of a channel.
pub(crate) fn event(events: &EventChannel, what: &str) -> CmEvent {
    events.wait(PATIENCE).unwrap_or_else(|| panic!("{what} did not happen"))
}

/// Connects `qp` to what listens on `port`; the other end accepts by itself.
pub(crate) fn connect(events: &EventChannel, qp: &Qp, port: u16) -> Connection {
    let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    let param = ConnParam { rtr: Some(RtrChoice::Any), ..ConnParam::default() };
    let connection = events.connect(qp, to, &param).unwrap();
    match event(events, "the connection") {
        CmEvent::Established { qpn, .. } => assert_eq!(qpn, qp.qpn()),
        other => panic!("{other:?}"),
    }
    connection
}

pub(crate) fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 256 + seed * 7) as u8).collect()
}
