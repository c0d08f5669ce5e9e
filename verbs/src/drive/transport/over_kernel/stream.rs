//! One connection over a socket.

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

/// Octets that a connection queues before the kernel takes them, at most.
const ROOM: usize = 1 << 20;
/// What a segment carries before the kernel has said (RFC 9293 §3.7.1).
const DEFAULT_MSS: usize = 536;

/// A connection.
pub(super) struct Stream {
    pub(super) socket: Socket,
    pub(super) tag: u64,
    pub(super) peer: SocketAddr,
    /// Our end, if it was reserved.
    pub(super) from: Option<Claim>,
    /// It does not stand yet.
    pub(super) connecting: bool,
    /// How many had been accepted when it was, until something was read of it.
    pub(super) newcomer: Option<u64>,
    /// Its window was opened, as it sends much.
    pub(super) wide: bool,
    pub(super) queue: Queue,
    /// Octets that the kernel has, of which the engine has not heard.
    pub(super) untold: u64,
    /// The kernel takes no more until it says so.
    pub(super) blocked: bool,
    /// There may be something to read.
    pub(super) readable: bool,
    /// There is an end to read behind what there is: a short read does not mean that nothing is left.
    pub(super) ends: bool,
    /// It waits for its turn.
    pub(super) listed: bool,
    /// What the engine could not take. Nothing is read meanwhile, which shuts the window.
    pub(super) waiting: Option<Received>,
    pub(super) stopped: bool,
    /// The peer has ended its half, and the engine knows.
    pub(super) heard_end: bool,
    /// Our half ends behind what is queued, and has ended.
    pub(super) closing: bool,
    pub(super) shut: bool,
    /// What sending has met. What has arrived is read first.
    pub(super) failure: Option<CloseReason>,
    pub(super) patience: Option<Patience>,
    /// It is among those with something outstanding.
    pub(super) watched: bool,
    /// Octets acknowledged when that was last looked at, and since when it has been so many.
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

    /// Octets of data that a segment carries.
    #[inline]
    pub(super) fn mss(&self) -> usize {
        self.mss
    }

    /// Asks the kernel for the size of segments.
    pub(super) fn measure(&mut self) {
        if let Some(info) = self.socket.info() {
            self.mss = (info.snd_mss as usize).max(1);
        }
    }

    /// Whether something, or our end, waits to be acknowledged.
    pub(super) fn is_outstanding(&self) -> bool {
        !self.queue.is_empty() || self.socket.outstanding() > 0
    }

    /// Octets worth queueing now.
    #[inline]
    pub(super) fn room(&self) -> usize {
        if self.blocked || self.connecting { 0 } else { ROOM.saturating_sub(self.queue.octets()) }
    }

    /// Hands what waits to the kernel, and then, if it is to be, the end. Returns how many octets it took.
    pub(super) fn output(&mut self, pieces: &mut Pieces, spare: &mut Spare) -> usize {
        if self.blocked || self.connecting {
            return 0;
        }
        let (sent, error) = self.queue.send(&self.socket, pieces, spare);
        self.untold += sent as u64;
        self.blocked = !self.queue.is_empty();
        if let Some(error) = error {
            self.failure = Some(reason(&error));
            // Nobody will take it; what has come is read out before the end is told.
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

/// Why a connection ended, as an error of the kernel's says.
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

    /// Octets that were read by somebody else.
    pub(super) fn of(octets: &[u8]) -> Self {
        Self { buffer: octets.into(), range: 0..octets.len() }
    }

    /// The same in memory of its own: the buffer is for what is read next.
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
