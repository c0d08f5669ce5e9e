//! The transport's state of a connection.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use urnic_iwarp::Chunk;
use urnic_tcp::{CloseReason, Patience, Time};

use super::doors::Claim;
use super::record::{Pieces, Queue, Record, Spare};
use super::socket::Socket;
use crate::drive::transport::{Data, Draft as _};

/// Maximum octets that wait in the queue of a connection until the kernel takes them.
const ROOM: usize = 1 << 20;
/// Segment size, in octets, until the kernel reports one (RFC 9293 §3.7.1).
const DEFAULT_MSS: usize = 536;

/// A connection.
pub(super) struct Stream {
    pub(super) socket: Socket,
    pub(super) tag: u64,
    pub(super) peer: SocketAddr,
    /// The claim on the local address; `None`: the connection does not come from a reserved address.
    pub(super) from: Option<Claim>,
    /// Whether the connection is being opened, and is not established yet.
    pub(super) connecting: bool,
    /// The connection's place in the order in which this engine accepted connections, from 1. `None` if the engine
    /// did not accept it, or has read data from it.
    pub(super) newcomer: Option<u64>,
    /// Whether the receive window was opened, because the peer sends much data.
    pub(super) wide: bool,
    pub(super) queue: Queue,
    /// Number of octets that the kernel has taken, but that were not reported to the engine yet.
    pub(super) untold: u64,
    /// Number of octets that were dropped because sending failed. They are never reported, because requests that have
    /// lent them must not count as complete.
    pub(super) dropped: u64,
    /// Whether the kernel takes no octets until it reports that it has room.
    pub(super) blocked: bool,
    /// Whether there may be data to read.
    pub(super) readable: bool,
    /// Whether the peer's half, or the whole connection, has ended after the data that can be read. If so, a short
    /// read does not mean that nothing is left: the end itself must still be read.
    pub(super) ends: bool,
    /// Whether the connection is in the ready list.
    pub(super) listed: bool,
    /// Data that the engine could not take; `None`: there is none.
    pub(super) waiting: Option<Received>,
    /// Whether the connection is not read until the engine resumes it.
    pub(super) stopped: bool,
    /// Whether the peer has ended its half, and this was reported to the engine.
    pub(super) heard_end: bool,
    /// Whether our half must end after the queued data (`closing`), and whether it has ended (`shut`).
    pub(super) closing: bool,
    pub(super) shut: bool,
    /// The reason why sending failed; `None`: it has not failed. The failure is reported after all arrived data was
    /// read.
    pub(super) failure: Option<CloseReason>,
    /// The connection's own time limits; `None`: those of the transport apply.
    pub(super) patience: Option<Patience>,
    /// Whether the connection is in the list of connections with outstanding octets.
    pub(super) watched: bool,
    /// Number of acknowledged octets at the last check, and the time since which it has not changed.
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
            dropped: 0,
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

    /// Returns the maximum number of data octets in a segment.
    #[inline]
    pub(super) fn mss(&self) -> usize {
        self.mss
    }

    /// Reads the segment size from the kernel.
    pub(super) fn measure(&mut self) {
        if let Some(info) = self.socket.info() {
            self.mss = (info.snd_mss as usize).max(1);
        }
    }

    /// Returns whether data or our FIN waits to be acknowledged.
    pub(super) fn is_outstanding(&self) -> bool {
        !self.queue.is_empty() || self.socket.outstanding() > 0
    }

    /// Returns how many octets the engine should queue now.
    #[inline]
    pub(super) fn room(&self) -> usize {
        if self.blocked || self.connecting { 0 } else { ROOM.saturating_sub(self.queue.octets()) }
    }

    /// Queues a record, unless our half ends or sending has failed.
    #[inline]
    pub(super) fn send(&mut self, record: Record) {
        if self.failure.is_some() {
            self.dropped += record.len() as u64;
        } else if !self.closing {
            self.queue.push(record);
        }
    }

    /// Returns the number of octets that were sent, and of which the engine was not told that the kernel has them.
    #[inline]
    pub(super) fn unacked(&self) -> u64 {
        self.queue.octets() as u64 + self.untold + self.dropped
    }

    /// Hands queued octets to the kernel. Ends our half after the last octet if `closing` is set. Returns the number
    /// of octets that the kernel took.
    pub(super) fn output(&mut self, pieces: &mut Pieces, spare: &mut Spare) -> usize {
        if self.blocked || self.connecting {
            return 0;
        }
        let (sent, error) = self.queue.send(&self.socket, pieces, spare);
        self.untold += sent as u64;
        self.blocked = !self.queue.is_empty();
        if let Some(error) = error {
            self.failure = Some(reason(&error));
            // The kernel will not take the queued octets. All arrived data is read before the end is reported.
            self.dropped += self.queue.octets() as u64;
            self.queue.clear(spare);
            self.readable = true;
        } else if self.closing && !self.shut && self.queue.is_empty() {
            self.socket.shut_down();
            self.shut = true;
        }
        sent
    }
}

/// Converts an error of the kernel to the reason why a connection ended.
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

/// Octets that were read from a socket.
pub struct Received {
    buffer: Arc<[u8]>,
    range: Range<usize>,
}

impl Received {
    pub(super) fn new(buffer: &Arc<[u8]>, len: usize) -> Self {
        Self { buffer: buffer.clone(), range: 0..len }
    }

    /// Makes a value from octets that the program has read.
    pub(super) fn of(octets: &[u8]) -> Self {
        Self { buffer: octets.into(), range: 0..octets.len() }
    }

    /// Returns a copy of the octets in memory of its own, so that the buffer is free for the next read.
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
