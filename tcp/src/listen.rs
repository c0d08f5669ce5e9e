//! Listeners, and connections that are half open because of them (RFC 9293 §3.10.7.2, SYN-RECEIVED).
//!
//! A half-open connection is a few words, not a connection: a flood of SYNs costs little, and the backlog is bounded.

use crate::buffers::BindId;
use crate::ports::Scope;
use crate::seq::Seq;
use crate::table::Key;
use crate::time::Time;
use crate::wire::SynOptions;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use thiserror::Error;

/// A port of local addresses, reserved.
#[derive(Debug)]
pub(crate) struct Binding {
    pub scope: Scope,
    pub port: u16,
    /// This stack has reserved it, not another one of the device.
    pub ours: bool,
    pub listener: Option<Listener>,
}

/// Accepts connections.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Half-open connections that it may have.
    pub backlog: usize,
    pub half_open: usize,
}

/// A half-open connection: SYN received, SYN-ACK sent.
#[derive(Debug)]
pub(crate) struct Embryo {
    pub key: Key,
    pub listener: BindId,
    pub iss: Seq,
    /// The number of the peer's SYN.
    pub irs: Seq,
    pub ts_offset: u32,
    /// The peer's timestamp, if its SYN had one.
    pub timestamp: Option<u32>,
    pub syn: SynOptions,
    pub window: u16,
    /// Where the SYN came from, and the SYN-ACK goes: a flood must not touch the neighbour cache.
    pub mac: [u8; 6],
    pub retries: u8,
    pub sent_at: Time,
    /// Nothing is kept of it: it comes back as a SYN cookie, or it came.
    pub cookie: bool,
}

impl Embryo {
    /// How long the next SYN-ACK waits (RFC 6298 (5.5)).
    pub fn timeout(&self, initial: Duration, max: Duration) -> Duration {
        initial.saturating_mul(1 << self.retries.min(16)).min(max)
    }
}

/// A reserved local address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Its name.
    pub id: BindId,
    /// The address as asked for, with the port that is reserved.
    pub address: SocketAddr,
}

/// Why a local address cannot be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BindError {
    /// It is no address of ours.
    #[error("{0} is not an address of this device")]
    NotOurs(IpAddr),
    /// The port is reserved already, or connections use it.
    #[error("port {0} is in use")]
    InUse(u16),
    /// The port is one that this process may not have.
    #[error("port {0} is for processes with the capability CAP_NET_BIND_SERVICE")]
    Forbidden(u16),
    /// The stacks of the device have been told of reservations in different orders.
    #[error("the engines of the device disagree on what is reserved")]
    OutOfStep,
    /// No port was named and none is free.
    #[error("no port is free")]
    Exhausted,
    /// The process, or the system, has no descriptor left for it.
    #[error("no file descriptor is left")]
    NoDescriptor,
    /// The system has no memory left for it.
    #[error("no memory is left")]
    NoMemory,
}

/// Why a reserved address cannot be listened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ListenError {
    /// Nothing is reserved, or it listens already.
    #[error("nothing is reserved there, or it listens already")]
    NotReserved,
    /// Someone else listens there, whom the reservation does not keep out.
    #[error("port {0} is in use")]
    InUse(u16),
    /// The system has no memory left for it.
    #[error("no memory is left")]
    NoMemory,
}
