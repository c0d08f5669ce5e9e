//! Devices of several engines over the kernel's sockets, in real time, with threads of one process at both ends.

mod crowd;
mod endings;
mod ends;
mod exits;
mod interrupted;
mod memory;
mod parties;
mod sleepers;
mod storms;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use urnic::config::{Config, KernelAddresses};
use urnic::*;

pub(crate) use ends::*;

/// Opens a device on the loopback with `engines` engines.
pub(crate) fn device(engines: usize, progress: Progress) -> Device {
    let mut config = Config::default();
    config.port.kernel = KernelAddresses::One(Ipv4Addr::LOCALHOST.into());
    config.engine.engines = Some(engines);
    config.engine.progress = progress;
    let device = Device::open(&config).unwrap();
    assert_eq!(device.attributes().unwrap().engines, engines as u32);
    device
}

/// Connects `qp` to the listener on `port`. Another thread must accept at the other end.
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
