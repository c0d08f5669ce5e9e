//! Interfaces that the owner of a stack implements: received frames, payloads to send, the way out for frames, and a
//! handler of events.

use crate::slab::SlabId;
use crate::sum;
use core::fmt;
use core::net::SocketAddr;
use core::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Maximum number of payload pieces in one frame.
pub const MAX_PIECES: usize = 8;

/// The two buffer types that a stack is generic over.
pub trait Buffers {
    /// A received Ethernet frame.
    type Frame: Frame;
    /// Octets queued for sending.
    type Payload: Payload;

    /// Prefetches the cache lines of the `octets` from `start` on, which will be needed soon. `start` may be any
    /// address, because a prefetch reads nothing. This default does nothing, because prefetching needs unsafe code,
    /// which this crate forbids.
    #[inline]
    fn prefetch(start: *const u8, octets: usize) {
        let _ = (start, octets);
    }
}

/// One received Ethernet frame, without FCS, owned by its holder.
///
/// The payload of a TCP segment may lie in memory that the sender may change at any time. The stack reads it only
/// after [`keep`](Frame::keep).
pub trait Frame {
    /// Returns the octets in private memory, from the destination MAC address on: at least all headers of a TCP
    /// segment, all octets of any other frame, and all octets of any frame after `keep`. They do not change while the
    /// stack holds the frame. If octets of a frame are missing here, its
    /// [`checksum_trusted`](Frame::checksum_trusted) must be true.
    fn bytes(&self) -> &[u8];

    /// Returns the number of octets of the whole frame, which never changes.
    fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Returns whether the frame has no octets.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies octets that may still change to private memory. Afterwards `bytes` returns all octets. The stack calls
    /// this before it reads payload, and before it keeps the frame beyond the call.
    fn keep(&mut self) {}

    /// Returns how many octets cannot be reused while the frame is held: the size of the whole buffer that it lies
    /// in.
    fn pins(&self) -> usize {
        self.len()
    }

    /// Returns whether the link has verified the checksums of the IP header and of the transport. If so, the stack
    /// does not compute them.
    fn checksum_trusted(&self) -> bool {
        false
    }

    /// Returns the one's-complement sum of `range` of the frame: folded, not complemented, computed as if it started
    /// at an even offset. Called only if the checksums are not trusted; `range` then lies inside `bytes()`.
    fn sum(&self, range: Range<usize>) -> u16 {
        sum::sum(self.bytes().get(range).unwrap_or(&[]))
    }
}

/// The [unit](Payload::unit) of a payload whose parts have different lengths.
pub const UNEVEN: u16 = u16::MAX;

/// Does the work of [`Payload::cut`] for a payload of `len` octets. `part` returns the length of the part that begins
/// at an octet.
pub fn cut_between_parts(len: usize, from: usize, max: usize, mut part: impl FnMut(usize) -> usize) -> usize {
    let mut end = 0;
    while end < from {
        end += part(end).max(1);
    }
    if end > from {
        return max.min(end.min(len) - from);
    }
    let most = len.min(from.saturating_add(max));
    while end < most {
        match end + part(end).max(1) {
            next if next <= most => end = next,
            _ => break,
        }
    }
    if end > from { end - from } else { max }
}

/// Immutable octets queued for sending. Clones share the octets, and retransmissions lend the same octets to
/// [`Transmit`] again.
pub trait Payload: Clone {
    /// Returns the number of octets.
    fn len(&self) -> usize;

    /// Returns whether there are no octets.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the preferred distance of cuts, in octets, for a record that must be cut into segments. The stack then
    /// cuts at multiples of this distance from the record's start. Zero: the stack may cut anywhere, and sends no part
    /// of the record as a train. [`UNEVEN`]: the stack asks [`cut`](Self::cut).
    fn unit(&self) -> u16 {
        0
    }

    /// Returns how many octets from `from` on, at least one and at most `max`, leave in one frame: as many whole parts
    /// as possible, or the rest of a part if `from` lies within one. Called only if the unit is [`UNEVEN`].
    fn cut(&self, from: usize, max: usize) -> usize {
        max.min(self.len().saturating_sub(from))
    }

    /// Returns the one's-complement sum of `range`: folded, not complemented, computed as if it started at an even
    /// offset.
    fn sum(&self, range: Range<usize>) -> u16;

    /// Returns the place of what is read when the payload is dropped. If there are many connections, it is
    /// [prefetched](Buffers::prefetch) before an ACK comes in.
    fn place(&self) -> Option<*const u8> {
        None
    }
}

impl Frame for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Implements `Payload` for octets in ordinary memory.
macro_rules! shared_octets {
    ($($kind:ty),*) => {$(
        impl Payload for $kind {
            fn len(&self) -> usize {
                (**self).len()
            }

            fn sum(&self, range: Range<usize>) -> u16 {
                sum::sum(self.get(range).unwrap_or(&[]))
            }
        }
    )*};
}

shared_octets!(Rc<[u8]>, Arc<[u8]>);

/// A part of a payload.
#[derive(Debug)]
pub struct Piece<'a, P> {
    /// The payload. Clone it to keep it.
    pub payload: &'a P,
    /// The octets of the payload that belong to the frame.
    pub range: Range<usize>,
}

impl<P> Clone for Piece<'_, P> {
    fn clone(&self) -> Self {
        Piece { payload: self.payload, range: self.range.clone() }
    }
}

/// A frame to send: headers, followed by the pieces.
#[derive(Debug)]
pub struct Emit<'a, P> {
    /// Ethernet, IP and TCP headers, or a whole ARP or ICMP frame. All checksums are filled in, except with
    /// `tcp_checksum_offload`.
    pub headers: &'a [u8],
    /// At most [`MAX_PIECES`] pieces.
    pub payload: &'a [Piece<'a, P>],
    /// The destination is our own address. Pass the frame to `Stack::receive` instead of a port.
    pub loopback: bool,
    /// Some octets of the payload were sent before.
    pub retransmit: bool,
    /// The TCP checksum field holds only the sum of the pseudo-header. The port adds the rest.
    pub tcp_checksum_offload: bool,
    /// If not zero, the frame holds several segments. The port sends the frame whole to a peer that takes such
    /// frames, or cuts it into segments of this many octets each, with headers like these (generic segmentation
    /// offload). See `Stack::set_gso_max`.
    pub gso_size: u16,
}

/// The way out for frames.
pub trait Transmit<P> {
    /// Returns how many frames `emit` takes now.
    fn room(&self) -> usize;

    /// Takes a frame. Called at most `room()` times in a row, and never when that is zero.
    fn emit(&mut self, frame: Emit<'_, P>);

    /// Notes that the connection has emitted what it usually can send now. What the stack does after this call can wait
    /// until these frames are on the wire.
    fn emitted(&mut self) {}
}

/// Id of a connection. Calls with the id of a closed connection do nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl ConnId {
    /// Makes the id of the connection at `index`. `generation` must differ from those of earlier connections at that
    /// index.
    pub const fn new(index: u32, generation: u32) -> Self {
        ConnId { index, generation }
    }

    /// Returns the index.
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Returns the generation, which tells the connection from earlier ones at the same index.
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

impl From<SlabId> for ConnId {
    fn from(SlabId { index, generation }: SlabId) -> Self {
        ConnId { index, generation }
    }
}

impl From<ConnId> for SlabId {
    fn from(ConnId { index, generation }: ConnId) -> Self {
        SlabId { index, generation }
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn {}.{}", self.index, self.generation)
    }
}

/// Id of a reserved local address and its listener.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BindId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl BindId {
    /// Makes the id of the reservation at `index`. `generation` must differ from those of earlier reservations at
    /// that index.
    pub const fn new(index: u32, generation: u32) -> Self {
        BindId { index, generation }
    }

    /// Returns the index.
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Returns the generation, which tells the reservation from earlier ones at the same index.
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

impl From<SlabId> for BindId {
    fn from(SlabId { index, generation }: SlabId) -> Self {
        BindId { index, generation }
    }
}

impl From<BindId> for SlabId {
    fn from(BindId { index, generation }: BindId) -> Self {
        SlabId { index, generation }
    }
}

impl fmt::Debug for BindId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "binding {}.{}", self.index, self.generation)
    }
}

/// Why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Both directions were closed by FIN, and everything was acknowledged.
    Graceful,
    /// The peer sent a RST.
    Reset,
    /// The peer was silent too long: it answered neither retransmissions nor keep-alive probes, acknowledged nothing
    /// more within the user timeout, or did not send its FIN in time. Or it kept its window shut too long after our
    /// user had closed the connection. Or both ends had closed, and our user did not take the remaining data in time.
    TimedOut,
    /// The peer refused the connection.
    Refused,
    /// The network or host cannot be reached.
    Unreachable,
    /// `Stack::abort` was called, or `Stack::close` in SYN-SENT.
    Aborted,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CloseReason::Graceful => "closed by both ends",
            CloseReason::Reset => "reset by the peer",
            CloseReason::TimedOut => "timed out",
            CloseReason::Refused => "refused by the peer",
            CloseReason::Unreachable => "peer unreachable",
            CloseReason::Aborted => "aborted",
        })
    }
}

/// The other stacks of the device that a frame concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// The stack with this number, which owns the connection or speaks for the host.
    Stack(usize),
    /// All other stacks.
    Others,
}

/// Receives the events of connections, from inside the calls of `Stack` that take a handler: `receive`,
/// `receive_burst`, `take_over`, `advance` and `resume`. The handler cannot call the stack. It must note its work and
/// do it after the call.
pub trait Handler<F> {
    /// Reports that a passive open is complete. Returns the tag that the connection's events will carry.
    fn accepted(&mut self, listener: BindId, conn: ConnId, peer: SocketAddr) -> u64;

    /// Reports that an active (or simultaneous) open is complete.
    fn connected(&mut self, conn: ConnId, tag: u64);

    /// Passes the next octets of the stream: `range` of `frame`. The frame then belongs to the handler, which must
    /// [`keep`](Frame::keep) it before it reads these octets in [`Frame::bytes`]. Each octet is passed in order, and
    /// taken exactly once.
    ///
    /// Returns `None` if the handler takes all of them. Otherwise the handler returns the frame with the range that
    /// it leaves (a suffix of `range`, not empty). The stack keeps these octets and those that follow; all of them
    /// count against the receive window. The stack offers nothing more until [`Stack::resume`](crate::Stack::resume)
    /// is called. If the stack has no buffer to spare, it drops the octets that the handler leaves, does not
    /// acknowledge them, and offers them again when the peer retransmits them.
    fn data(&mut self, conn: ConnId, tag: u64, frame: F, range: Range<usize>) -> Option<(F, Range<usize>)>;

    /// Reports that `bytes` more octets of the sent data are acknowledged. Also called with zero when `Stack::room`
    /// may have grown for another reason.
    fn acked(&mut self, conn: ConnId, tag: u64, bytes: u64);

    /// Reports that the peer will send no more and that all its data has been taken.
    fn finished(&mut self, conn: ConnId, tag: u64);

    /// Reports that the connection is gone. Its id is no longer valid.
    fn closed(&mut self, conn: ConnId, tag: u64, reason: CloseReason);

    /// Passes a frame that concerns other stacks of the device
    /// ([`StackConfig::steering`](crate::StackConfig::steering)). The handler must give each of them a copy with
    /// [`Stack::take_over`](crate::Stack::take_over). A copy that is lost on the way counts as a frame lost in the
    /// network.
    fn hand_over(&mut self, to: Elsewhere, frame: &F) {
        let _ = (to, frame);
    }
}
