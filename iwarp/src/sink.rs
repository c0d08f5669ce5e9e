//! Interface between a stream and its caller: received octets, and memory to place them in.

use crate::{AtomicFault, Octets, Terminate};

/// An owned range of in-order stream octets. Dropping it releases the frame that holds them.
///
/// The octets lie in memory of our own, or in memory that the sender may change at any time: then the chunk
/// [is shared](Chunk::is_shared). The defaults suit chunks of own memory. A chunk's length never changes.
pub trait Chunk {
    /// Returns all octets of a chunk that is not shared. Must not be called for a shared one.
    fn bytes(&self) -> &[u8];

    /// Returns the number of octets.
    fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Returns whether there are no octets.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the octets from `at` on that are contiguous: up to the end of the piece that contains `at`. There is at
    /// least one, unless `at` is not less than the length.
    fn piece(&self, at: usize) -> Octets<'_> {
        self.bytes().get(at..).unwrap_or_default().into()
    }

    /// Moves the octets to memory of our own if they are shared. Afterwards the octets no longer change, the chunk is
    /// not shared, and `bytes` returns all of them. The stream calls this before it keeps the chunk.
    fn keep(&mut self) {}

    /// Returns whether the octets may still change.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns how many octets cannot be reused while the chunk is held: the size of the whole buffer that holds it.
    /// The default is right if the buffer holds nothing else.
    fn pins(&self) -> usize {
        self.len()
    }
}

/// Kind of a tagged message that needs memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaggedOp {
    /// RDMA Write: the STag needs the remote write right.
    Write,
    /// RDMA Read Response: the sink of one of our own Reads.
    ReadResponse,
}

/// Why memory named by an STag cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessFault {
    /// There is no such STag, or it was invalidated.
    #[error("the STag is invalid")]
    InvalidStag,
    /// The first or last octet is outside the registered range.
    #[error("base or bounds violation")]
    Bounds,
    /// The STag belongs to another Protection Domain or stream.
    #[error("the STag is not associated with this stream")]
    NotAssociated,
    /// The sum of TO and length exceeds 64 bits.
    #[error("the tagged offset wraps")]
    Wrap,
    /// The STag does not grant the necessary right.
    #[error("the STag does not grant the necessary access right")]
    NoRight,
}

/// Why a tagged segment cannot be placed.
pub type TaggedFault = AccessFault;
/// Why a Read Request cannot be served.
pub type ReadFault = AccessFault;

/// The local scatter list of a receive request cannot be used, for example because its memory was deregistered
/// meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the receive request's memory is not usable")]
pub struct RecvFault;

/// Send with Invalidate named an STag that must stay valid (RFC 5040 §5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the STag cannot be invalidated")]
pub struct CannotInvalidate;

/// Outcome of an invalidation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// The STag is invalid and no longer in use.
    Done,
    /// The STag is still in use. The stream stops there and calls again later. Before that call, it checks and places
    /// the last segment of the message once more.
    Later,
}

/// The resources of a queue pair for inbound segments. The engine implements this over registered memory.
///
/// The stream makes the calls for one segment in this order: a check that returns a [`Sink::Target`], then
/// `place` for the pieces in ascending order, then `deliver`. Only [`Delivery::FirstFpdu`] comes before the
/// check. The stream makes no call before it has verified the CRC of the whole FPDU (MPA-46).
pub trait Sink {
    /// A place in memory that a check has resolved.
    type Target: Copy;

    /// Checks the memory for `len` > 0 octets at `to` of `stag` (RFC 5041 §7.1). Not called for zero-length segments
    /// (DDP-32). The stream has checked that `to + len` does not wrap.
    fn tagged(&mut self, op: TaggedOp, stag: u32, to: u64, len: u32) -> Result<Self::Target, TaggedFault>;

    /// Takes the next receive request for a new message on queue 0. Returns how many octets it holds; `None` if none
    /// is posted. Zero-length messages take a receive request too (RDMAP-84).
    fn receive_buffer(&mut self) -> Option<u32>;

    /// Returns the place of `len` > 0 octets at `offset` of the receive request last taken. The octets lie within the
    /// length that [`Sink::receive_buffer`] returned.
    fn untagged_target(&mut self, offset: u32, len: u32) -> Result<Self::Target, RecvFault>;

    /// Copies `src` to octet `at` of `target`. A segment in several pieces takes several calls. Shared octets may have
    /// changed since their CRC was verified. That is no fault, because the sender could have sent the new octets.
    fn place(&mut self, target: Self::Target, at: u32, src: Octets<'_>);

    /// Invalidates `stag` for a Send with Invalidate, just before the message is delivered.
    fn invalidate(&mut self, stag: u32) -> Result<Invalidation, CannotInvalidate>;

    /// Checks the source of an arriving Read Request of `len` > 0 octets (RDMAP-82). The memory is read later and
    /// must be checked again then.
    fn read_source(&mut self, stag: u32, to: u64, len: u32) -> Result<(), ReadFault>;

    /// Checks the memory that an arriving Atomic Request names: 8 octets at `to` of `stag`, aligned in memory (RFC
    /// 7306 §8.2). The operation is performed later, when the response is due, and the memory must be checked again
    /// then. The stream has checked that `to + 8` does not wrap.
    fn atomic_target(&mut self, stag: u32, to: u64) -> Result<(), AtomicFault>;

    /// Stores the result of one of our own Atomics at the sink that [`crate::Op::Atomic`] named.
    fn atomic_result(&mut self, stag: u32, to: u64, original: u64) -> Result<(), AccessFault>;

    /// Reports an event. Events come in order.
    fn deliver(&mut self, event: Delivery);
}

/// An event of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The peer's first valid FPDU has arrived; from now on a Responder may send (MPA-70). Delivered once, in both
    /// roles, before any other effect of that FPDU.
    FirstFpdu,
    /// A Send of any kind is complete in the receive request that it took.
    Received {
        /// Octets of the message. All of them have been placed.
        len: u32,
        /// Send with Solicited Event.
        solicited: bool,
        /// The STag that the peer asked to invalidate, which is invalid now; `None`: no invalidation.
        invalidated: Option<u32>,
    },
    /// The oldest outstanding RDMA Read of ours is complete.
    ReadDone {
        /// MSN of its Read Request.
        msn: u32,
        /// Octets read.
        len: u32,
    },
    /// A Read Request was accepted: [`crate::Stream::next_response`] yields it.
    ReadRequested,
    /// Immediate Data is complete (RFC 7306 §6). It has taken a receive request without touching its memory.
    Immediate {
        /// The eight octets.
        data: [u8; 8],
        /// Immediate Data with Solicited Event.
        solicited: bool,
        /// Length of the RDMA Write that directly precedes the Immediate Data, in octets from its start up to the
        /// first gap. 0 if no complete Write directly precedes the Immediate Data.
        written: u32,
    },
    /// The oldest outstanding Atomic of ours is complete.
    AtomicDone {
        /// MSN of its Atomic Request.
        msn: u32,
    },
    /// An Atomic Request was accepted: [`crate::Stream::next_response`] yields it.
    AtomicRequested,
    /// The peer ended the stream. Octets that arrive from now on are ignored.
    /// The Terminate can be an error of the enhanced start-up only if it is the first FPDU that an Initiator sends. In
    /// any other Terminate, [`Terminate::after_startup`] has corrected such codes.
    Terminated(Terminate),
}
