//! Sleeping ends over the kernel's sockets. Each end is a program of its own, so that the ends can run in different
//! network namespaces.

use std::{collections::HashMap, convert::Infallible, net::SocketAddr, thread, time::Duration};

use serde::{Deserialize, Serialize};
use urnic::{CmEvent, Device};
use urnic_config::Config;

use super::{
    end::PATIENCE,
    error::{Doing, PerfError},
    report::Latency,
    server::conn_param,
    sleeping::{make, make_qp, operate},
    wire::{self, Answer, Target},
};

/// Maximum number of connections being set up at once.
const AT_ONCE: usize = 64;
/// Backlog of the server's listener.
const BACKLOG: u32 = 1024;
/// Length of one sleep. After it, the process sleeps again.
const LONG: Duration = Duration::from_secs(3600);

/// Times of operations whose target sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answers {
    /// Time of an 8-byte Read, from post to completion, us.
    pub read_us: Latency,
    /// Time of an 8-byte Write followed by a Read of the same bytes, us. The bytes read are compared with those
    /// written.
    pub write_us: Latency,
}

/// Accepts connections on `port`, and sleeps in between, until the process is killed. Calls `ready` once it listens.
///
/// # Errors
/// [`PerfError`]: the device cannot be opened, or a connection cannot be accepted.
pub fn run_sleeper(config: &Config, port: u16, ready: impl FnOnce()) -> Result<Infallible, PerfError> {
    let device = Device::open(config).doing("opening the device")?;
    let events = device.create_event_channel().doing("creating an event channel")?;
    let _listener = events.listen(port, BACKLOG).doing("listening")?;
    let made = make(&device)?;
    let target = Target { addr: made.memory.addr(), rkey: made.memory.rkey() };
    let param = conn_param(config, &Answer::Lane(target));
    let mut accepted = HashMap::new();
    ready();
    loop {
        match events.wait(LONG) {
            Some(CmEvent::ConnectRequest(request)) => {
                let qp = make_qp(&made.pd, &made.cq)?;
                request.accept(&qp, &param).doing("accepting a client")?;
                accepted.insert(qp.qpn(), qp);
            }
            Some(CmEvent::Disconnected { qpn, .. } | CmEvent::ConnectError { qpn, .. }) => {
                accepted.remove(&qpn);
            }
            _ => {}
        }
    }
}

/// Times 8-byte Reads and Writes whose target is a [sleeper](run_sleeper).
///
/// # Errors
/// [`PerfError`]: the sleeper cannot be reached, or an operation failed.
pub fn run_reader(config: &Config, server: SocketAddr) -> Result<Answers, PerfError> {
    let device = Device::open(config).doing("opening the device")?;
    let events = device.create_event_channel().doing("creating an event channel")?;
    let made = make(&device)?;
    events.connect(&made.qp, server, &conn_param(config, &Answer::Welcome)).doing("connecting")?;
    match events.wait(PATIENCE) {
        Some(CmEvent::Established { private_data, .. }) => match wire::decode(&private_data) {
            Some(Answer::Lane(target)) => {
                let (read_us, write_us) = operate(&made, target)?;
                Ok(Answers { read_us, write_us })
            }
            _ => Err(PerfError::Protocol("an answer without an address")),
        },
        event => Err(PerfError::Connect { server, reason: format!("{event:?}") }),
    }
}

/// Connects `count` queue pairs to a [sleeper](run_sleeper), calls `ready`, and sleeps until the process is killed.
///
/// # Errors
/// [`PerfError`]: the sleeper cannot be reached, or a connection cannot be made.
pub fn run_idlers(
    config: &Config,
    server: SocketAddr,
    count: usize,
    ready: impl FnOnce(),
) -> Result<Infallible, PerfError> {
    let device = Device::open(config).doing("opening the device")?;
    let events = device.create_event_channel().doing("creating an event channel")?;
    let made = make(&device)?;
    let param = conn_param(config, &Answer::Welcome);
    let mut qps = Vec::with_capacity(count);
    let mut standing = 0;
    while standing < count {
        while qps.len() < count && qps.len() - standing < AT_ONCE {
            let qp = make_qp(&made.pd, &made.cq)?;
            events.connect(&qp, server, &param).doing("connecting")?;
            qps.push(qp);
        }
        match events.wait(PATIENCE) {
            Some(CmEvent::Established { .. }) => standing += 1,
            Some(CmEvent::ConnectError { reason, .. }) => {
                let reason = format!("{reason} (connection {} of {count})", standing + 1);
                return Err(PerfError::Connect { server, reason });
            }
            Some(CmEvent::Disconnected { reason, .. }) => return Err(PerfError::Gone(reason.to_string())),
            Some(_) => {}
            None => {
                return Err(PerfError::Stalled { what: "a connection", seconds: PATIENCE.as_secs() });
            }
        }
    }
    ready();
    loop {
        thread::sleep(LONG);
    }
}
