//! Errors of a stream: what the peer is told and what the local user is told.

use crate::{AccessFault, AtomicFault, TaggedOp, Terminate};

/// A fatal error of the inbound half. Nothing that arrives later has any effect (MPA-82, DDP-54).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct Fault {
    /// The Terminate to send before closing; `None`: close without one.
    pub terminate: Option<Terminate>,
    /// What is wrong, for the local user.
    pub cause: Cause,
}

/// What was wrong with an inbound FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// CRC32C mismatch (RFC 5044 §8 code 2).
    #[error("MPA CRC error")]
    Crc,
    /// A marker does not point at its FPDU, although the CRC is good (RFC 5044 §8 code 3).
    #[error("an MPA marker points {got} octets back, where its FPDU began {expected} octets before")]
    Marker {
        /// FPDUPTR that is due.
        expected: u16,
        /// FPDUPTR received.
        got: u16,
    },
    /// The ULPDU is shorter than its DDP header.
    #[error("a DDP segment of {0} octets is shorter than its header")]
    ShortSegment(u16),
    /// DV is not 1.
    #[error("DDP version {0} is not the negotiated one")]
    DdpVersion(u8),
    /// RV is not 1.
    #[error("RDMAP version {0} is not the negotiated one")]
    RdmapVersion(u8),
    /// Opcode unknown, not supported, or wrong for its queue or inside its message.
    #[error("unexpected RDMAP opcode {0:#x}")]
    Opcode(u8),
    /// A Write or Read Response cannot be placed.
    #[error("{op:?} of {len} octets to STag {stag:#010x}, TO {to:#x}: {fault}")]
    Tagged {
        /// Which message.
        op: TaggedOp,
        /// Why.
        fault: AccessFault,
        /// STag of the segment.
        stag: u32,
        /// TO of the segment.
        to: u64,
        /// Payload octets of the segment.
        len: u32,
    },
    /// No such untagged queue.
    #[error("invalid queue number {0}")]
    QueueNumber(u32),
    /// Not the next message of its queue.
    #[error("MSN {got} on queue {qn} where {expected} is next")]
    Msn {
        /// Queue number.
        qn: u32,
        /// The MSN due.
        expected: u32,
        /// The MSN received.
        got: u32,
    },
    /// A Send or Immediate Data arrived and no receive request was posted.
    #[error("no receive request is posted for an incoming message")]
    NoReceive,
    /// The message offset is beyond the receive request's memory.
    #[error("message offset {mo} is beyond the receive request's {capacity} octets")]
    MessageOffset {
        /// Message offset of the segment.
        mo: u32,
        /// Octets that the receive request holds.
        capacity: u32,
    },
    /// The message offset skips octets of the message that have not arrived (DDP-65).
    #[error("message offset {mo} leaves a gap: {placed} octets of the message have arrived before")]
    MessageGap {
        /// Message offset of the segment.
        mo: u32,
        /// Octets of the message placed so far.
        placed: u32,
    },
    /// The message is longer than the receive request. Its completion is a local length error.
    #[error("an incoming Send of at least {needed} octets exceeds the receive request's {capacity}")]
    MessageTooLong {
        /// Octets needed up to this segment.
        needed: u64,
        /// Octets that the receive request holds.
        capacity: u32,
    },
    /// The receive request's scatter list is not usable. Its completion is a local protection error.
    #[error("the receive request's own memory is not usable")]
    ReceiveMemory,
    /// Send with Invalidate names an STag that must not be invalidated.
    #[error("STag {0:#010x} cannot be invalidated")]
    CannotInvalidate(u32),
    /// More Read and Atomic Requests than IRD.
    #[error("the peer has more than {ird} RDMA Reads and Atomics outstanding")]
    ReadLimit {
        /// Inbound reads that were negotiated.
        ird: u16,
    },
    /// A Read Request names memory that cannot be read.
    #[error("RDMA Read of {len} octets from STag {stag:#010x}, TO {to:#x}: {fault}")]
    ReadSource {
        /// Why.
        fault: AccessFault,
        /// Source STag.
        stag: u32,
        /// Source TO.
        to: u64,
        /// Octets wanted.
        len: u32,
    },
    /// A Read Request that is not one segment of 28 octets.
    #[error("malformed RDMA Read Request")]
    ReadRequestForm,
    /// A Read Response although no Read is outstanding.
    #[error("an RDMA Read Response that nobody asked for")]
    UnexpectedReadResponse,
    /// A Read Response that is not the next octets of the oldest outstanding Read.
    #[error("an RDMA Read Response does not match its request")]
    ReadResponseMismatch,
    /// Immediate Data that is not one segment of 8 octets.
    #[error("malformed Immediate Data")]
    ImmediateForm,
    /// An Atomic Request that is not one segment of 52 octets.
    #[error("malformed Atomic Request")]
    AtomicRequestForm,
    /// An Atomic Request for an operation that there is not.
    #[error("unknown atomic operation {0}")]
    AtomicCode(u8),
    /// An Atomic Request names memory that cannot be used for it.
    #[error("Atomic at STag {stag:#010x}, TO {to:#x}: {fault}")]
    AtomicTarget {
        /// Why.
        fault: AtomicFault,
        /// STag of the request.
        stag: u32,
        /// TO of the request.
        to: u64,
    },
    /// An Atomic Response although the oldest outstanding request is no Atomic.
    #[error("an Atomic Response that nobody asked for")]
    UnexpectedAtomicResponse,
    /// An Atomic Response that is malformed or names another request than the oldest.
    #[error("an Atomic Response does not match its request")]
    AtomicResponseMismatch,
    /// The memory for the result of one of our own Atomics is not usable.
    #[error("the memory for the result of an Atomic is not usable: {0}")]
    AtomicSink(AccessFault),
    /// A Terminate that cannot be read. The stream is over all the same.
    #[error("malformed Terminate")]
    MalformedTerminate,
}

/// Why a message cannot be started now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BeginError {
    /// A Responder must wait for the Initiator's first FPDU (MPA-70). Try again after [`crate::Delivery::FirstFpdu`].
    #[error("the initiator's first FPDU has not arrived")]
    NotYet,
    /// ORD Reads and Atomics are outstanding (RDMAP-69). Try again after [`crate::Delivery::ReadDone`] or
    /// [`crate::Delivery::AtomicDone`].
    #[error("as many RDMA Reads and Atomics are outstanding as were negotiated")]
    OrdReached,
    /// ORD is 0: no Read or Atomic is ever possible on this stream.
    #[error("the negotiated ORD is 0")]
    NoReads,
    /// A Terminate was sent or received, or a fault was met: only a Terminate of our own may still go, once.
    #[error("the stream has ended")]
    Ended,
}
