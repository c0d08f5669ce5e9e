//! Errors of a stream, for the peer and for the local user.

use crate::{AccessFault, AtomicFault, TaggedOp, Terminate};

/// A fatal error of the inbound half. Octets that arrive later have no effect (MPA-82, DDP-54).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct Fault {
    /// The Terminate to send before closing; `None`: close without a Terminate.
    pub terminate: Option<Terminate>,
    /// The cause, for the local user.
    pub cause: Cause,
}

/// Cause of a fault of the inbound half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// CRC32C mismatch (RFC 5044 §8 code 2).
    #[error("MPA CRC error")]
    Crc,
    /// A marker does not point at its FPDU, although the CRC is good (RFC 5044 §8 code 3).
    #[error("an MPA marker points {got} octets back, but its FPDU began {expected} octets before it")]
    Marker {
        /// Correct FPDUPTR, in octets.
        expected: u16,
        /// FPDUPTR received, in octets.
        got: u16,
    },
    /// The ULPDU is shorter than its DDP header.
    #[error("a DDP segment of {0} octets is shorter than its header")]
    ShortSegment(u16),
    /// DV is not 1.
    #[error("DDP version {0} is not supported")]
    DdpVersion(u8),
    /// RV is not 1.
    #[error("RDMAP version {0} is not supported")]
    RdmapVersion(u8),
    /// The opcode is unknown or not supported, or it is wrong for the queue or for the message that the segment
    /// continues.
    #[error("unexpected RDMAP opcode {0:#x}")]
    Opcode(u8),
    /// A Write or Read Response cannot be placed.
    #[error("{op:?} of {len} octets to STag {stag:#010x}, TO {to:#x}: {fault}")]
    Tagged {
        /// Kind of the message.
        op: TaggedOp,
        /// Reason.
        fault: AccessFault,
        /// STag of the segment.
        stag: u32,
        /// TO of the segment.
        to: u64,
        /// Payload octets of the segment.
        len: u32,
    },
    /// There is no such untagged queue.
    #[error("invalid queue number {0}")]
    QueueNumber(u32),
    /// The message is not the next one of its queue.
    #[error("MSN {got} on queue {qn}, but the next one is {expected}")]
    Msn {
        /// Queue number.
        qn: u32,
        /// Next MSN of the queue.
        expected: u32,
        /// MSN received.
        got: u32,
    },
    /// A Send or Immediate Data arrived and no receive request was posted.
    #[error("no receive request is posted for an incoming message")]
    NoReceive,
    /// The message offset is beyond the memory of the receive request.
    #[error("message offset {mo} is beyond the receive request's {capacity} octets")]
    MessageOffset {
        /// Message offset of the segment.
        mo: u32,
        /// Octets that the receive request holds.
        capacity: u32,
    },
    /// The message offset skips octets of the message that have not arrived (DDP-65).
    #[error("message offset {mo} leaves a gap: {placed} octets of the message arrived before it")]
    MessageGap {
        /// Message offset of the segment.
        mo: u32,
        /// Octets of the message placed so far.
        placed: u32,
    },
    /// The message is longer than the receive request. The receive request completes with a local length error.
    #[error("an incoming Send of at least {needed} octets exceeds the receive request's {capacity}")]
    MessageTooLong {
        /// Octets needed for the message up to the end of this segment.
        needed: u64,
        /// Octets that the receive request holds.
        capacity: u32,
    },
    /// The scatter list of the receive request is not usable. The receive request completes with a local protection
    /// error.
    #[error("the receive request's memory is not usable")]
    ReceiveMemory,
    /// A Send with Invalidate names an STag that must not be invalidated.
    #[error("STag {0:#010x} cannot be invalidated")]
    CannotInvalidate(u32),
    /// The peer has more Read and Atomic Requests outstanding than our IRD.
    #[error("the peer has more than {ird} RDMA Reads and Atomics outstanding")]
    ReadLimit {
        /// Negotiated IRD.
        ird: u16,
    },
    /// A Read Request names memory that cannot be read.
    #[error("RDMA Read of {len} octets from STag {stag:#010x}, TO {to:#x}: {fault}")]
    ReadSource {
        /// Reason.
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
    /// A Read Response arrived although no request is outstanding, or the oldest one is an Atomic.
    #[error("an unexpected RDMA Read Response")]
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
    /// An Atomic Request for an unknown operation.
    #[error("unknown atomic operation {0}")]
    AtomicCode(u8),
    /// An Atomic Request names memory that it cannot use.
    #[error("Atomic at STag {stag:#010x}, TO {to:#x}: {fault}")]
    AtomicTarget {
        /// Reason.
        fault: AtomicFault,
        /// STag of the request.
        stag: u32,
        /// TO of the request.
        to: u64,
    },
    /// An Atomic Response arrived although no request is outstanding, or the oldest one is a Read.
    #[error("an unexpected Atomic Response")]
    UnexpectedAtomicResponse,
    /// An Atomic Response that is malformed or names a request other than the oldest.
    #[error("an Atomic Response does not match its request")]
    AtomicResponseMismatch,
    /// The memory for the result of one of our own Atomics is not usable.
    #[error("the memory for the result of an Atomic is not usable: {0}")]
    AtomicSink(AccessFault),
    /// A Terminate that cannot be parsed. The stream is over nevertheless.
    #[error("malformed Terminate")]
    MalformedTerminate,
}

/// Why a message cannot begin now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BeginError {
    /// A Responder must wait for the Initiator's first FPDU (MPA-70). Try again after [`crate::Delivery::FirstFpdu`].
    #[error("the initiator's first FPDU has not arrived")]
    NotYet,
    /// As many Reads and Atomics are outstanding as ORD allows (RDMAP-69). Try again after
    /// [`crate::Delivery::ReadDone`] or [`crate::Delivery::AtomicDone`].
    #[error("as many RDMA Reads and Atomics are outstanding as the negotiated ORD allows")]
    OrdReached,
    /// ORD is 0, so no Read or Atomic is ever possible on this stream.
    #[error("the negotiated ORD is 0")]
    NoReads,
    /// A Terminate was sent or received, a fault occurred, or [`crate::Stream::stop_listening`] was called.
    /// Only our own Terminate may still be sent, once.
    #[error("the stream has ended")]
    Ended,
    /// [`crate::Stream::begin_whole`] was asked for a message of a kind that it does not build, or given a place that
    /// has not the size of the message's FPDU.
    #[error("the message is not the one FPDU that it should be")]
    NotWhole,
}
