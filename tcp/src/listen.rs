//! Listeners, and the half-open connections that they cause (RFC 9293 §3.10.7.2, SYN-RECEIVED).
//!
//! A half-open connection takes only a few words of memory, so a flood of SYNs costs little. The backlog is bounded.

use crate::buffers::BindId;
use crate::ports::Scope;
use crate::seq::Seq;
use crate::table::Key;
use crate::time::Time;
use crate::wire::SynOptions;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use thiserror::Error;

/// A reserved port of local addresses.
#[derive(Debug)]
pub(crate) struct Binding {
    pub scope: Scope,
    pub port: u16,
    /// This stack made the reservation, not another stack of the device.
    pub ours: bool,
    pub listener: Option<Listener>,
}

/// The listener of a binding.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Most half-open connections that it may have.
    pub backlog: usize,
    pub half_open: usize,
}

/// A half-open connection: SYN received, SYN-ACK sent.
#[derive(Debug)]
pub(crate) struct Embryo {
    pub key: Key,
    pub listener: BindId,
    pub iss: Seq,
    /// Sequence number of the peer's SYN.
    pub irs: Seq,
    pub ts_offset: u32,
    /// The peer's timestamp; `None` if its SYN had none.
    pub timestamp: Option<u32>,
    pub syn: SynOptions,
    pub window: u16,
    /// MAC address that the SYN came from and the SYN-ACK goes to. Kept here, because a flood must not touch the
    /// neighbour cache.
    pub mac: [u8; 6],
    pub retries: u8,
    pub sent_at: Time,
    /// A SYN cookie holds the state. The stack then does not store this `Embryo`: it makes one for the SYN-ACK,
    /// and another one from the ACK that brings the cookie back.
    pub cookie: bool,
}

impl Embryo {
    /// Returns the time before the next SYN-ACK (RFC 6298 (5.5)).
    pub fn timeout(&self, initial: Duration, max: Duration) -> Duration {
        initial.saturating_mul(1 << self.retries.min(16)).min(max)
    }
}

/// A reserved local address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Id of the reservation.
    pub id: BindId,
    /// The requested address, with the port that was reserved.
    pub address: SocketAddr,
}

/// Why a local address cannot be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BindError {
    /// The address is not ours.
    #[error("{0} is not an address of this device")]
    NotOurs(IpAddr),
    /// The port is reserved already, or connections use it.
    #[error("port {0} is in use")]
    InUse(u16),
    /// This process may not use the port.
    #[error("port {0} is for processes with the capability CAP_NET_BIND_SERVICE")]
    Forbidden(u16),
    /// The stacks of the device have received reservations in different orders.
    #[error(
        "this engine cannot share the address that another engine of the device has reserved: the transport supports \
         only one engine, or this engine has seen the device's reservations in another order"
    )]
    OutOfStep,
    /// Any free port was requested and none is free.
    #[error("no port is free")]
    Exhausted,
    /// The process or the system has no file descriptor left.
    #[error("no file descriptor is left")]
    NoDescriptor,
    /// The system has no memory left.
    #[error("no memory is left")]
    NoMemory,
}

/// Why a reserved address cannot be listened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ListenError {
    /// The id names no reservation, or the reservation has a listener already.
    #[error("no address is reserved under this id, or a listener has the address already")]
    NotReserved,
    /// Another socket listens on the port. This can happen although the port is reserved, because the kernel lets
    /// several sockets reserve a port (`SO_REUSEADDR`), but lets only one of them listen.
    #[error("port {0} is in use")]
    InUse(u16),
    /// The system has no memory left.
    #[error("no memory is left")]
    NoMemory,
}
