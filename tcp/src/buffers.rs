//! What the stack needs from its owner: frames it receives, payloads it sends, a way out, and a listener for
//! what happens.

use crate::slab::SlabId;
use crate::sum;
use core::fmt;
use core::net::SocketAddr;
use core::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// The most payload pieces of one frame.
pub const MAX_PIECES: usize = 8;

/// The two buffer types that a stack is generic over.
pub trait Buffers {
    /// A received Ethernet frame.
    type Frame: Frame;
    /// Bytes queued for sending.
    type Payload: Payload;

    /// Asks the processor to fetch the cache lines of `what`, which will be wanted soon. This crate cannot ask itself.
    #[inline]
    fn prefetch<T>(what: &T) {
        let _ = what;
    }
}

/// One received Ethernet frame: linear, without FCS, owned by whoever holds it.
pub trait Frame {
    /// The frame's octets, from the destination MAC address on. Must not change while the stack holds it.
    fn bytes(&self) -> &[u8];

    /// Octets that cannot be reused while the frame is held: the size of the whole buffer that it lies in.
    fn pins(&self) -> usize {
        self.bytes().len()
    }

    /// The link vouches for the IP header's and the transport's checksums, so they are not computed.
    fn checksum_trusted(&self) -> bool {
        false
    }

    /// One's-complement sum of `range` of the frame, folded, not complemented, as if it started at an even
    /// offset. `range` lies inside `bytes()`.
    fn sum(&self, range: Range<usize>) -> u16 {
        sum::sum(self.bytes().get(range).unwrap_or(&[]))
    }
}

/// Immutable bytes queued for sending. A clone shares them; retransmission hands out clones of the same bytes.
pub trait Payload: Clone {
    /// Octets.
    fn len(&self) -> usize;

    /// True if there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the record had best be cut if it does not go as a whole: at multiples of so many octets, counted from its
    /// start. Zero: anywhere.
    fn unit(&self) -> u16 {
        0
    }

    /// One's-complement sum of `range`, folded, not complemented, as if it started at an even offset.
    fn sum(&self, range: Range<usize>) -> u16;
}

impl Frame for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Octets in ordinary memory, for whoever needs no more.
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
    /// The payload; clone it to keep it.
    pub payload: &'a P,
    /// The octets of it that belong to the frame.
    pub range: Range<usize>,
}

impl<P> Clone for Piece<'_, P> {
    fn clone(&self) -> Self {
        Piece { payload: self.payload, range: self.range.clone() }
    }
}

/// A frame to send: headers, then the pieces.
#[derive(Debug)]
pub struct Emit<'a, P> {
    /// Ethernet, IP and TCP headers, or a whole ARP or ICMP frame. All checksums are in place.
    pub headers: &'a [u8],
    /// At most [`MAX_PIECES`].
    pub payload: &'a [Piece<'a, P>],
    /// The destination is our own address: give the frame back to `Stack::receive` instead of a port.
    pub loopback: bool,
    /// Some octets of the payload were sent before.
    pub retransmit: bool,
    /// The TCP checksum field holds the pseudo-header's sum only; the port adds the rest.
    pub tcp_checksum_offload: bool,
    /// Not zero: these are several segments as one, for the port to hand over as they are or to cut into segments of
    /// so many octets each, with headers like these (generic segmentation offload). See `Stack::set_gso_max`.
    pub gso_size: u16,
}

/// Where frames leave.
pub trait Transmit<P> {
    /// How many frames `emit` takes now.
    fn room(&self) -> usize;

    /// Takes a frame. Called at most `room()` times in a row; never when that is zero.
    fn emit(&mut self, frame: Emit<'_, P>);
}

/// Names a connection. Ids of closed connections are refused quietly wherever they are used.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl ConnId {
    /// The name of what is at `index`, for a `generation` that no other had there.
    pub const fn new(index: u32, generation: u32) -> Self {
        ConnId { index, generation }
    }

    /// Where it is.
    pub const fn index(self) -> u32 {
        self.index
    }

    /// What tells it from others that were there.
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

/// Names a reserved local address, and its listener.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BindId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl BindId {
    /// The name of what is at `index`, for a `generation` that no other had there.
    pub const fn new(index: u32, generation: u32) -> Self {
        BindId { index, generation }
    }

    /// Where it is.
    pub const fn index(self) -> u32 {
        self.index
    }

    /// What tells it from others that were there.
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

/// Why a connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Both directions were closed by FIN and all was acknowledged.
    Graceful,
    /// The peer sent a RST.
    Reset,
    /// The peer did not answer: retransmissions, keep-alives, the user timeout or the wait for the peer's FIN.
    TimedOut,
    /// The peer refused the connection.
    Refused,
    /// The network or host cannot be reached.
    Unreachable,
    /// `Stack::abort` was called.
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
    /// One, which owns the connection or answers for the host.
    Stack(usize),
    /// All others.
    Others,
}

/// Told of what happens to connections, from inside `Stack::receive`, `advance`, `flush` and `abort`. It cannot
/// call the stack; it notes what it wants to do and does it afterwards.
pub trait Handler<F> {
    /// A passive open finished. Gives the number that the connection's events carry.
    fn accepted(&mut self, listener: BindId, conn: ConnId, peer: SocketAddr) -> u64;

    /// An active (or simultaneous) open finished.
    fn connected(&mut self, conn: ConnId, tag: u64);

    /// The next octets of the stream: `range` of `frame`, which passes to the handler. Each octet is taken exactly
    /// once and in order.
    ///
    /// `None`: all of them are taken. A handler that cannot take all returns the frame with the range that it leaves
    /// (a suffix of `range`, not empty). The stack keeps that and what follows, which both count against the receive
    /// window, and offers nothing until [`Stack::resume`](crate::Stack::resume) is called. Where the stack has no
    /// buffer to spare it drops the rest instead, unacknowledged, and offers it when the peer sends it again.
    fn data(&mut self, conn: ConnId, tag: u64, frame: F, range: Range<usize>) -> Option<(F, Range<usize>)>;

    /// `bytes` more octets of what was sent are acknowledged. Also called with zero when `Stack::room` may have
    /// grown for another reason.
    fn acked(&mut self, conn: ConnId, tag: u64, bytes: u64);

    /// The peer will send no more; all its data has been taken.
    fn finished(&mut self, conn: ConnId, tag: u64);

    /// The connection is gone and the id is dead.
    fn closed(&mut self, conn: ConnId, tag: u64, reason: CloseReason);

    /// A frame concerns other stacks of the device ([`StackConfig::steering`](crate::StackConfig::steering)), which are
    /// given a copy by [`Stack::take_over`](crate::Stack::take_over). One that is lost on the way is lost as on a network.
    fn hand_over(&mut self, to: Elsewhere, frame: &F) {
        let _ = (to, frame);
    }
}
