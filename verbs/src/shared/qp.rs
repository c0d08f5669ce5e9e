//! The part of a queue pair that engine and application share.

mod memory;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use super::cq::CqShared;
use super::doorbell::Awaited;
use super::engines::Owner;
use super::events::AsyncQueue;
use super::queue::{RecvQueue, SendQueue};
use super::scope::Scopes;
use super::srq::SrqShared;

pub(crate) use memory::QpMemory;

/// The state of a queue pair.
///
/// | from | to | by |
/// |---|---|---|
/// | - | `Idle` | creation |
/// | `Idle` | `Rts` | [`EventChannel::connect`](crate::EventChannel::connect) |
/// | `Idle` | `Rts` | [`ConnRequest::accept`](crate::ConnRequest::accept) |
/// | `Idle` | `Rts` | [`EventChannel::convert`](crate::EventChannel::convert) |
/// | `Idle` | `Terminate` | terms of the accepting peer that this end cannot meet ([`ConnectFailure::Terms`]) |
/// | `Rts` | `Closing` | [`Connection::disconnect`](crate::Connection::disconnect), [`Qp::drain`](crate::Qp::drain) |
/// | `Rts`, `Closing` | `Terminate` | an error that this end reports to the peer, or a Terminate from the peer |
/// | `Rts`, `Closing` | `Error` | the end of the connection |
/// | `Terminate` | `Error` | the end of the connection, within five seconds, or later if the peer is slow |
/// | any | `Error` | [`Qp::to_error`](crate::Qp::to_error) |
/// | `Error` | `Idle` | [`Qp::to_idle`](crate::Qp::to_idle) |
///
/// [`ConnectFailure::Terms`]: crate::ConnectFailure::Terms
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// Not connected. Posted work waits.
    Idle = 0,
    /// Ready to send: connected.
    Rts,
    /// Closing gracefully. Work that was posted before is done. Work that is posted now is done or flushed.
    Closing,
    /// This side is reporting an error to the peer, or the peer has reported one. Work is flushed.
    Terminate,
    /// Not connected. Work is flushed.
    Error,
}

impl QpState {
    /// Returns whether posted work is flushed.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Self::Terminate | Self::Error)
    }

    fn from_u8(value: u8) -> Self {
        match value {
            0 => Self::Idle,
            1 => Self::Rts,
            2 => Self::Closing,
            3 => Self::Terminate,
            _ => Self::Error,
        }
    }
}

/// The Terminate message that ended a connection (RFC 5040 §4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminateInfo {
    /// Whether this side sent it; otherwise the peer did.
    pub sent: bool,
    /// Layer: 0 RDMAP, 1 DDP, 2 MPA.
    pub layer: u8,
    /// Error type within the layer.
    pub etype: u8,
    /// Error code within the type.
    pub code: u8,
    /// Meaning of the codes, in words.
    pub meaning: &'static str,
}

impl fmt::Display for TerminateInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.sent { "sent" } else { "received" };
        write!(f, "Terminate {who}: {} ({:x}{:x} {:02x})", self.meaning, self.layer, self.etype, self.code)
    }
}

/// The source of a queue pair's receives.
pub(crate) enum Receives {
    Own(RecvQueue),
    Shared(Arc<SrqShared>),
}

/// The part of a queue pair that engine and application share.
///
/// All that the engine needs for a send request, except for the request itself, is in the first cache line. The
/// poster needs that line, and the next one for its end of the queue. The next one also has the bell, which the engine
/// answers. A test checks the order.
#[repr(C, align(64))]
pub(crate) struct QpShared {
    pub(crate) state: AtomicU8,
    pub(crate) owner: Owner,
    /// Set while Sends of the peer wait for receives of the queue pair's own queue: posting a receive then rings.
    pub(crate) awaited: Awaited,
    pub(crate) qpn: u32,
    pub(crate) scopes: Scopes,
    pub(crate) send_cq: Arc<CqShared>,
    pub(crate) recv_cq: Arc<CqShared>,
    /// Whether every send request is reported.
    pub(crate) signal_all: bool,
    pub(crate) send: SendQueue,
    pub(crate) recv: Receives,
    /// The first Terminate message, sent or received, since the queue pair was idle; `None`: there was none.
    pub(crate) terminate: Mutex<Option<TerminateInfo>>,
    pub(crate) events: Arc<AsyncQueue>,
}

impl QpShared {
    pub(crate) fn state(&self) -> QpState {
        QpState::from_u8(self.state.load(Ordering::Acquire))
    }

    /// Called by the engine: sets the state. The engine must look at the queues after this call, not before, because
    /// posts that come after this call ring, or find that the bell has rung.
    pub(crate) fn set_state(&self, state: QpState) {
        self.state.store(state as u8, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Called by the engine: forgets the Terminate message, because the queue pair is idle again.
    pub(crate) fn clear_terminate(&self) {
        *self.terminate.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Called by the engine: stores why the connection ends. The first reason stays.
    pub(crate) fn set_terminate(&self, info: TerminateInfo) {
        self.terminate.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(info);
    }
}

/// The connection of a queue pair, in RDMA mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpConnection {
    /// Address of the peer.
    pub peer: SocketAddr,
    /// Number of the peer's Reads that may be outstanding here.
    pub ird: u16,
    /// Number of this side's Reads that may be outstanding at the peer.
    pub ord: u16,
}

#[cfg(test)]
mod tests;
