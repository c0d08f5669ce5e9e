//! What a stream needs from its surroundings: received octets and memory to place them in.

use crate::{AtomicFault, Terminate};

/// An owned range of in-order stream octets. Dropping it releases the frame behind it.
pub trait Chunk {
    /// The octets of the range.
    fn bytes(&self) -> &[u8];

    /// Octets that cannot be reused while the chunk is held: the size of the whole buffer behind it.
    fn pins(&self) -> usize {
        self.bytes().len()
    }
}

/// Which tagged message asks for memory.
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
    /// No such STag, or one that was invalidated.
    #[error("the STag is invalid")]
    InvalidStag,
    /// First or last octet outside the registered range.
    #[error("base or bounds violation")]
    Bounds,
    /// The STag belongs to another Protection Domain or stream.
    #[error("the STag is not associated with this stream")]
    NotAssociated,
    /// TO + length does not fit 64 bits.
    #[error("the tagged offset wraps")]
    Wrap,
    /// The STag does not grant the right needed.
    #[error("the STag does not grant the access")]
    NoRight,
}

/// Why a tagged segment cannot be placed.
pub type TaggedFault = AccessFault;
/// Why a Read Request cannot be served.
pub type ReadFault = AccessFault;

/// The local scatter list of a receive request cannot be used (its memory was deregistered meanwhile, for example).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the receive request's own memory is not usable")]
pub struct RecvFault;

/// An STag named by Send with Invalidate that must stay valid (RFC 5040 §5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the STag cannot be invalidated")]
pub struct CannotInvalidate;

/// What became of an invalidation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// Nothing uses the STag any more.
    Done,
    /// It must be asked for again later, before anything that follows it in the stream. The last segment of its message is
    /// then checked and placed once more.
    Later,
}

/// What a queue pair offers to inbound segments. Implemented by the engine over registered memory.
///
/// Calls for one segment come in this order: a check that yields a [`Sink::Target`], then `place` for its pieces in
/// ascending order, then `deliver`. Nothing is asked for before the CRC of the whole FPDU was verified (MPA-46).
pub trait Sink {
    /// A place in memory that a check has resolved.
    type Target: Copy;

    /// Checks `len` > 0 octets at `to` of `stag` (RFC 5041 §7.1). Never called for zero-length segments (DDP-32).
    /// `to + len` does not wrap: the stream has looked.
    fn tagged(&mut self, op: TaggedOp, stag: u32, to: u64, len: u32) -> Result<Self::Target, TaggedFault>;

    /// Takes the next receive request for a new message on queue 0 and says how many octets it holds; `None` when
    /// none is posted. Zero-length messages take one too (RDMAP-84).
    fn receive_buffer(&mut self) -> Option<u32>;

    /// The place of `len` > 0 octets at `offset` of the receive request last taken; they lie within what
    /// [`Sink::receive_buffer`] said.
    fn untagged_target(&mut self, offset: u32, len: u32) -> Result<Self::Target, RecvFault>;

    /// Copies `src` to `at` octets behind the start of `target`. A segment held in several chunks gives several calls.
    fn place(&mut self, target: Self::Target, at: u32, src: &[u8]);

    /// Invalidates `stag` for a Send with Invalidate, just before the message is delivered.
    fn invalidate(&mut self, stag: u32) -> Result<Invalidation, CannotInvalidate>;

    /// Checks the source of an arriving Read Request of `len` > 0 octets (RDMAP-82). The memory is read later: check
    /// again then.
    fn read_source(&mut self, stag: u32, to: u64, len: u32) -> Result<(), ReadFault>;

    /// Checks the memory that an arriving Atomic Request names: 8 octets at `to` of `stag`, aligned in memory (RFC
    /// 7306 §8.2). The operation is performed later, when its turn to be answered comes: check again then.
    /// `to + 8` does not wrap: the stream has looked.
    fn atomic_target(&mut self, stag: u32, to: u64) -> Result<(), AtomicFault>;

    /// Stores the result of one of our own Atomics where [`crate::Op::Atomic`] said.
    fn atomic_result(&mut self, stag: u32, to: u64, original: u64) -> Result<(), AccessFault>;

    /// Tells of something that happened, in order.
    fn deliver(&mut self, event: Delivery);
}

/// An event of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The peer's first valid FPDU is here: a Responder may send from now on (MPA-70). Comes before anything that
    /// this FPDU causes, once, in both roles.
    FirstFpdu,
    /// A Send of any kind is complete in the receive request that was taken for it.
    Received {
        /// Octets of the message, all of which have been placed.
        len: u32,
        /// Send with Solicited Event.
        solicited: bool,
        /// The STag that the peer asked to invalidate; it is invalid now.
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
    /// Immediate Data is complete (RFC 7306 §6). It has taken a receive request, whose memory is not touched.
    Immediate {
        /// The eight octets.
        data: [u8; 8],
        /// Immediate Data with Solicited Event.
        solicited: bool,
        /// Octets of the RDMA Write right before it, as far as it was placed without a gap; 0 if it does not follow a
        /// whole one.
        written: u32,
    },
    /// The oldest outstanding Atomic of ours is complete.
    AtomicDone {
        /// MSN of its Atomic Request.
        msn: u32,
    },
    /// An Atomic Request was accepted: [`crate::Stream::next_response`] yields it.
    AtomicRequested,
    /// The peer ended the stream. The receiver ignores everything from now on.
    Terminated(Terminate),
}
