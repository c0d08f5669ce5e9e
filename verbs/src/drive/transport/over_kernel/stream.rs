//! A connection over a socket.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use urnic_iwarp::Chunk;
use urnic_tcp::{CloseReason, Patience, Time};

use super::doors::Claim;
use super::record::{Pieces, Queue, Spare};
use super::socket::Socket;
use crate::drive::transport::Data;

/// Maximum octets that a connection queues before the kernel takes them.
const ROOM: usize = 1 << 20;
/// Segment size, in octets, until the kernel reports one (RFC 9293 §3.7.1).
const DEFAULT_MSS: usize = 536;

/// A connection.
pub(super) struct Stream {
    pub(super) socket: Socket,
    pub(super) tag: u64,
    pub(super) peer: SocketAddr,
    /// The claim on our address, if that was reserved.
    pub(super) from: Option<Claim>,
    /// Whether it is not yet established.
    pub(super) connecting: bool,
    /// The count of accepted connections when it was accepted; `None` once something was read from it.
    pub(super) newcomer: Option<u64>,
    /// Whether its window was opened, because the peer sends much.
    pub(super) wide: bool,
    pub(super) queue: Queue,
    /// Octets that the kernel has taken, and that the engine has not been told of.
    pub(super) untold: u64,
    /// Whether the kernel takes nothing until it reports room.
    pub(super) blocked: bool,
    /// Whether there may be something to read.
    pub(super) readable: bool,
    /// Whether an end follows the data to be read: a short read then does not mean that nothing is left.
    pub(super) ends: bool,
    /// Whether it waits for its turn.
    pub(super) listed: bool,
    /// Data that the engine could not take. Nothing is read meanwhile, which shuts the window.
    pub(super) waiting: Option<Received>,
    pub(super) stopped: bool,
    /// Whether the peer has ended its half, and the engine knows.
    pub(super) heard_end: bool,
    /// Whether our half ends after the queued data (`closing`), and whether it has ended (`shut`).
    pub(super) closing: bool,
    pub(super) shut: bool,
    /// Why sending failed. Arrived data is read first.
    pub(super) failure: Option<CloseReason>,
    pub(super) patience: Option<Patience>,
    /// Whether it is among the connections with something outstanding.
    pub(super) watched: bool,
    /// Number of acknowledged octets at the last check, and since when it has been this number.
    pub(super) progress: (u64, Time),
    mss: usize,
}

impl Stream {
    pub(super) fn new(socket: Socket, peer: SocketAddr) -> Self {
        Self {
            socket,
            tag: 0,
            peer,
            from: None,
            connecting: false,
            newcomer: None,
            wide: false,
            queue: Queue::default(),
            untold: 0,
            blocked: false,
            readable: false,
            ends: false,
            listed: false,
            waiting: None,
            stopped: false,
            heard_end: false,
            closing: false,
            shut: false,
            failure: None,
            patience: None,
            watched: false,
            progress: (0, Time::ZERO),
            mss: DEFAULT_MSS,
        }
    }

    /// Returns the number of data octets in a segment.
    #[inline]
    pub(super) fn mss(&self) -> usize {
        self.mss
    }

    /// Asks the kernel for the segment size.
    pub(super) fn measure(&mut self) {
        if let Some(info) = self.socket.info() {
            self.mss = (info.snd_mss as usize).max(1);
        }
    }

    /// Returns whether data, or our end, waits to be acknowledged.
    pub(super) fn is_outstanding(&self) -> bool {
        !self.queue.is_empty() || self.socket.outstanding() > 0
    }

    /// Returns how many octets are worth queueing now.
    #[inline]
    pub(super) fn room(&self) -> usize {
        if self.blocked || self.connecting { 0 } else { ROOM.saturating_sub(self.queue.octets()) }
    }

    /// Hands what waits to the kernel, and then, if `closing`, the end. Returns the number of octets that the
    /// kernel took.
    pub(super) fn output(&mut self, pieces: &mut Pieces, spare: &mut Spare) -> usize {
        if self.blocked || self.connecting {
            return 0;
        }
        let (sent, error) = self.queue.send(&self.socket, pieces, spare);
        self.untold += sent as u64;
        self.blocked = !self.queue.is_empty();
        if let Some(error) = error {
            self.failure = Some(reason(&error));
            // The kernel will not take it. Arrived data is read before the end is reported.
            self.untold += self.queue.octets() as u64;
            self.queue.clear(spare);
            self.readable = true;
        } else if self.closing && !self.shut && self.queue.is_empty() {
            self.socket.shut_down();
            self.shut = true;
        }
        sent
    }
}

/// Returns why a connection ended, from the kernel's error.
pub(super) fn reason(error: &io::Error) -> CloseReason {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED) => CloseReason::Refused,
        Some(libc::ETIMEDOUT) => CloseReason::TimedOut,
        Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN | libc::ENETDOWN) => {
            CloseReason::Unreachable
        }
        _ => CloseReason::Reset,
    }
}

/// Octets that were read.
pub struct Received {
    buffer: Arc<[u8]>,
    range: Range<usize>,
}

impl Received {
    pub(super) fn new(buffer: &Arc<[u8]>, len: usize) -> Self {
        Self { buffer: buffer.clone(), range: 0..len }
    }

    /// Makes the object from octets that the program has read.
    pub(super) fn of(octets: &[u8]) -> Self {
        Self { buffer: octets.into(), range: 0..octets.len() }
    }

    /// Returns a copy in memory of its own, because the buffer is needed for the next read.
    pub(super) fn copied(&self) -> Self {
        let buffer: Arc<[u8]> = self.bytes().into();
        Self { range: 0..buffer.len(), buffer }
    }
}

impl Chunk for Received {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.buffer.get(self.range.clone()).unwrap_or_default()
    }

    #[inline]
    fn pins(&self) -> usize {
        self.buffer.len()
    }
}

impl Data for Received {
    #[inline]
    fn skip(&mut self, n: usize) {
        self.range.start = (self.range.start + n).min(self.range.end);
    }
}
