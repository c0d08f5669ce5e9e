//! An RNIC in a child process, and the ways to wait for it.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use urnic::*;
use urnic_config::KernelAddresses;

use super::child::{self, PATIENCE};

pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
pub const PORT: u16 = 7000;
pub const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// Returns the server's address: a loopback address if the device has all addresses of the kernel, else
/// [`SERVER`].
pub fn server() -> SocketAddrV4 {
    let config = child::config();
    let loopback = config.port.spec.is_none() && config.port.kernel == KernelAddresses::All;
    SocketAddrV4::new(if loopback { Ipv4Addr::LOCALHOST } else { SERVER }, PORT)
}

/// How to wait for completions and events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Wait by polling.
    Poll,
    /// Wait by the channel's own call.
    Channel,
    /// Wait by poll(2) on the channel's descriptor.
    Fd,
}

impl FromStr for Wait {
    type Err = ();
    fn from_str(word: &str) -> Result<Self, ()> {
        match word {
            "poll" => Ok(Self::Poll),
            "channel" => Ok(Self::Channel),
            "fd" => Ok(Self::Fd),
            _ => Err(()),
        }
    }
}

/// A device, and the tests' objects on it.
pub struct Node {
    pub pd: Pd,
    pub cq: Cq,
    pub channel: CompChannel,
    pub events: EventChannel,
    pub wait: Wait,
    /// Number of times that an event of the completion channel has ended a sleep.
    pub wakes: u64,
}

impl Node {
    pub fn open(wait: Wait) -> Self {
        Self::on(&Device::open(&child::config()).expect("the device opens"), wait)
    }

    pub fn on(device: &Device, wait: Wait) -> Self {
        let channel = device.create_comp_channel().unwrap();
        Self {
            pd: device.alloc_pd(),
            cq: device.create_cq(1024, (wait != Wait::Poll).then_some(&channel)).unwrap(),
            channel,
            events: device.create_event_channel().unwrap(),
            wait,
            wakes: 0,
        }
    }

    pub fn qp(&self) -> Qp {
        let init = QpInit {
            send_cq: &self.cq,
            recv_cq: &self.cq,
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: true,
        };
        self.pd.create_qp(&init).unwrap()
    }

    /// Returns completions as soon as there are any.
    pub fn completions(&mut self, what: &str) -> Vec<Wc> {
        let start = Instant::now();
        let mut found = [Wc::default(); 32];
        loop {
            let mut n = self.cq.poll(&mut found);
            if n == 0 && self.wait != Wait::Poll {
                self.cq.arm(false);
                n = self.cq.poll(&mut found);
                if n == 0 {
                    self.sleep(what);
                    self.wakes += 1;
                }
            }
            if n > 0 {
                return found[..n].to_vec();
            }
            assert!(start.elapsed() < PATIENCE, "waiting for {what}");
        }
    }

    /// Sleeps until the armed queue has a completion.
    fn sleep(&self, what: &str) {
        if self.wait == Wait::Fd {
            readable(&self.channel, what);
        }
        let limit = if self.wait == Wait::Fd { Duration::ZERO } else { PATIENCE };
        let cq = self.channel.get_event(Some(limit)).unwrap_or_else(|| panic!("no event: {what}"));
        assert!(cq.is(&self.cq));
    }

    /// Returns the next connection event.
    pub fn event(&self, what: &str) -> CmEvent {
        match self.wait {
            Wait::Channel => self.events.wait(PATIENCE).unwrap_or_else(|| panic!("waiting for {what}")),
            Wait::Fd => {
                readable(&self.events, what);
                self.events.poll().unwrap_or_else(|| panic!("no event behind the descriptor: {what}"))
            }
            Wait::Poll => {
                let start = Instant::now();
                loop {
                    if let Some(event) = self.events.poll() {
                        return event;
                    }
                    assert!(start.elapsed() < PATIENCE, "waiting for {what}");
                    thread::yield_now();
                }
            }
        }
    }

    /// Accepts the next connection. Returns the peer's private data.
    pub fn accept(&self, qp: &Qp, private_data: &[u8]) -> Vec<u8> {
        let param = ConnParam { private_data: private_data.to_vec(), ..ConnParam::default() };
        let said = match self.event("a connection request") {
            CmEvent::ConnectRequest(request) => {
                let said = request.private_data().to_vec();
                request.accept(qp, &param).unwrap();
                said
            }
            other => panic!("{other:?} instead of a request"),
        };
        let event = self.event("the connection");
        assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
        said
    }

    /// Connects to the server, which listens. Returns the server's private data.
    pub fn connect(&self, qp: &Qp, private_data: &[u8]) -> Vec<u8> {
        let param = ConnParam { private_data: private_data.to_vec(), ..ConnParam::default() };
        self.events.connect(qp, server(), &param).unwrap();
        match self.event("the connection") {
            CmEvent::Established { private_data, .. } => private_data,
            other => panic!("{other:?} instead of a connection"),
        }
    }
}

/// Sleeps until a descriptor is readable.
fn readable(channel: &impl AsFd, what: &str) {
    let mut fd = libc::pollfd { fd: channel.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, valid through the call.
    let n = unsafe { libc::poll(&mut fd, 1, PATIENCE.as_millis() as i32) };
    assert_eq!(n, 1, "nothing in {PATIENCE:?}: {what}");
}

/// Memory that the peer may read and write. The ends exchange this as private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub addr: u64,
    pub rkey: u32,
}

impl Place {
    pub fn of(mr: &Mr) -> Self {
        Self { addr: mr.addr(), rkey: mr.rkey() }
    }

    pub fn encode(self) -> Vec<u8> {
        [&self.addr.to_be_bytes()[..], &self.rkey.to_be_bytes()].concat()
    }

    pub fn decode(bytes: &[u8]) -> Self {
        let addr = bytes[..8].try_into().map(u64::from_be_bytes).unwrap();
        let rkey = bytes[8..].try_into().map(u32::from_be_bytes).unwrap();
        Self { addr, rkey }
    }
}

/// Returns bytes that differ from message to message, and within a message.
pub fn pattern(number: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number);
    std::iter::repeat_with(|| random.u8(..)).take(len).collect()
}

pub fn send(qp: &Qp, wr_id: u64, op: SendOp, sge: Sge) {
    qp.post_send(&SendWr { wr_id, op, sges: &[sge], flags: SendFlags::SIGNALED }).unwrap();
}

pub fn receive(qp: &Qp, wr_id: u64, sge: Sge) {
    qp.post_recv(&RecvWr { wr_id, sges: &[sge] }).unwrap();
}

/// Checks that a work request has succeeded.
pub fn success(wc: &Wc) {
    assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
}
