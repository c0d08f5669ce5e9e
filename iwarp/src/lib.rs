//! Sans-IO iWARP: MPA (RFC 5044, RFC 6581), DDP (RFC 5041) and RDMAP (RFC 5040, RFC 7306).
//!
//! Input: the octets of one TCP stream. Output: payload placed into the memory that a [`Sink`] offers, events such as
//! completed messages ([`Delivery`]), FPDUs to send ([`Outgoing`], [`Fpdu`]), and [`Fault`]s with the [`Terminate`]
//! that each one causes. The crate does no I/O, reads no clock, has no unsafe code and does not depend on the TCP
//! implementation.
//!
//! A connection has two phases. [`startup`] exchanges the MPA Request and Reply and ends in a [`Negotiated`]. A
//! [`Stream`], made from the [`Negotiated`], is the Full Operation phase.
#![forbid(unsafe_code)]

mod atomic;
mod budget;
mod fault;
mod header;
mod markers;
mod outgoing;
mod peers;
pub mod sabotage;
mod sink;
pub mod startup;
mod stream;
mod terminate;

pub use atomic::{AtomicFault, AtomicOp};
pub use budget::Budget;
pub use fault::{BeginError, Cause, Fault};
pub use markers::Markers;
pub use outgoing::{Fpdu, HEADER_MAX, Outgoing};
pub use peers::STAG_OF_NOTHING;
pub use sink::{
    AccessFault, CannotInvalidate, Chunk, Delivery, Invalidation, ReadFault, RecvFault, Sink, TaggedFault,
    TaggedOp,
};
pub use startup::{Negotiated, Role, Rtr};
pub use stream::{AtomicRequest, IncompleteFpdu, Op, Pending, ReadRequest, Rest, Stream, Wants, fpdu_size};
pub use terminate::{Terminate, TerminatedHeader};
pub use urnic_crc::Octets;

/// Smallest MULPDU that MPA may report, in octets (RFC 5044 §3).
pub const MULPDU_MIN: usize = 128;
/// Largest MULPDU, in octets (RFC 5044 §3).
pub const MULPDU_MAX: usize = 64768;

/// Returns the largest ULPDU, in octets, whose FPDU fits one TCP segment of `emss` payload octets (RFC 5044 §4.5,
/// MPA-38).
///
/// The result is always within [`MULPDU_MIN`]..=[`MULPDU_MAX`] (MPA-5, MPA-41). If an FPDU with a ULPDU of
/// [`MULPDU_MIN`] octets does not fit one segment, FPDUs span several segments.
pub fn mulpdu(emss: usize, markers: bool) -> usize {
    let markers = if markers { 4 * emss.div_ceil(512) } else { 0 };
    emss.saturating_sub(6 + markers + emss % 4).clamp(MULPDU_MIN, MULPDU_MAX)
}
