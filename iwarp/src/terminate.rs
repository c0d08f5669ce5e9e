//! The Terminate message (RFC 5040 §4.8) and its error codes (RFC 6580).

use crate::header::{READ_REQUEST_LEN, TAGGED_LEN, UNTAGGED_LEN};
use crate::peers::{self, ETYPE_OF_MPA_ERRORS};
use crate::{AccessFault, AtomicFault};
use std::fmt;

/// Octets of the largest Terminate header: control word, segment length, untagged DDP header, Read Request header.
pub(crate) const TERMINATE_MAX: usize = 4 + 2 + UNTAGGED_LEN + READ_REQUEST_LEN;

/// The reason for which a stream ends. Sent at most once in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// Layer: 0 RDMAP, 1 DDP, 2 the layer below (MPA).
    pub layer: u8,
    /// Error type within the layer.
    pub etype: u8,
    /// Error code within the type.
    pub code: u8,
    /// ULPDU_Length of the faulty segment; `None`: not included.
    pub segment_len: Option<u16>,
    /// DDP header of the faulty segment; `None`: not included.
    pub ddp: Option<TerminatedHeader>,
    /// RDMA Read Request header of a faulty Read Request; `None`: not included.
    pub rdma: Option<[u8; READ_REQUEST_LEN]>,
}

/// A DDP header as it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TerminatedHeader {
    /// Header of a tagged segment.
    Tagged([u8; TAGGED_LEN]),
    /// Header of an untagged segment.
    Untagged([u8; UNTAGGED_LEN]),
}

impl TerminatedHeader {
    /// Returns the header at the start of `ulpdu`; `None` if it is incomplete. The T bit tells the kind of the header.
    pub(crate) fn of(ulpdu: &[u8]) -> Option<TerminatedHeader> {
        if ulpdu.first()? & 0x80 != 0 {
            ulpdu.first_chunk().copied().map(TerminatedHeader::Tagged)
        } else {
            ulpdu.first_chunk().copied().map(TerminatedHeader::Untagged)
        }
    }

    /// Returns the octets of the header.
    pub fn octets(&self) -> &[u8] {
        match self {
            TerminatedHeader::Tagged(h) => h,
            TerminatedHeader::Untagged(h) => h,
        }
    }
}

const M: u8 = 0x80;
const D: u8 = 0x40;
const R: u8 = 0x20;

impl Terminate {
    /// Makes a Terminate without any header of a received message.
    pub const fn new(layer: u8, etype: u8, code: u8) -> Terminate {
        Terminate { layer, etype, code, segment_len: None, ddp: None, rdma: None }
    }

    /// Local fault that no received message caused, or the user's wish (ERR-44).
    pub const LOCAL_CATASTROPHIC: Terminate = Terminate::new(0, 0, 0);
    /// Internal failure of this stream (ERR-45).
    pub const STREAM_CATASTROPHIC: Terminate = Terminate::new(0, 2, 7);
    /// MPA CRC error (ERR-1).
    pub const CRC: Terminate = Terminate::new(2, 0, 2);
    /// A marker does not point at its FPDU (ERR-2).
    pub const MARKER: Terminate = Terminate::new(2, 0, 3);
    /// Local failure of the enhanced start-up that has no code of its own (RFC 6581 §8).
    pub const STARTUP_CATASTROPHIC: Terminate = Terminate::new(2, 0, 5);
    /// The ORD of the peer exceeds the IRD that we offer (RFC 6581 §8).
    pub const INSUFFICIENT_IRD: Terminate = Terminate::new(2, 0, 6);
    /// The ends have no RTR indication in common (RFC 6581 §8).
    pub const NO_MATCHING_RTR: Terminate = Terminate::new(2, 0, 7);

    /// Blames a received segment: adds its length and DDP header (RDMAP-17, RDMAP-18).
    pub(crate) fn blaming(mut self, ulpdu: &[u8], ulpdu_len: u16) -> Terminate {
        self.ddp = TerminatedHeader::of(ulpdu);
        self.segment_len = self.ddp.map(|_| ulpdu_len);
        self
    }

    /// Returns the Terminate for a tagged segment that cannot be placed (ERR-11..15).
    pub(crate) fn tagged(fault: AccessFault) -> Terminate {
        let code = match fault {
            // DDP has no code for a missing right: an STag that does not allow placement counts as invalid.
            AccessFault::InvalidStag | AccessFault::NoRight => 0,
            AccessFault::Bounds => 1,
            AccessFault::NotAssociated => 2,
            AccessFault::Wrap => 3,
        };
        Terminate::new(1, 1, code)
    }

    /// Returns the Terminate for a Read Request whose source cannot be read (ERR-32..36).
    pub(crate) fn read_source(fault: AccessFault) -> Terminate {
        let code = match fault {
            AccessFault::InvalidStag => 0,
            AccessFault::Bounds => 1,
            AccessFault::NoRight => 2,
            AccessFault::NotAssociated => 3,
            AccessFault::Wrap => 4,
        };
        Terminate::new(0, 1, code)
    }

    /// Returns the Terminate for an Atomic Request whose memory cannot be used (ERR-40, ERR-42).
    pub(crate) fn atomic_target(fault: AtomicFault) -> Terminate {
        match fault {
            AtomicFault::Access(fault) => Terminate::read_source(fault),
            AtomicFault::Misaligned => Terminate::STREAM_CATASTROPHIC,
        }
    }

    /// Writes the Terminate header and returns its length. Reserved bits are zero (RDMAP-16).
    pub(crate) fn encode(&self, out: &mut [u8; TERMINATE_MAX]) -> usize {
        let hdrct = if self.segment_len.is_some() { M } else { 0 }
            | if self.ddp.is_some() { D } else { 0 }
            | if self.rdma.is_some() { R } else { 0 };
        out[..4].copy_from_slice(&[self.layer << 4 | self.etype & 0x0F, self.code, hdrct, 0]);
        let mut at = 4;
        let mut push = |octets: &[u8]| {
            out[at..at + octets.len()].copy_from_slice(octets);
            at += octets.len();
        };
        if hdrct & (M | D) != 0 {
            push(&self.segment_len.unwrap_or(0).to_be_bytes());
        }
        if let Some(ddp) = &self.ddp {
            push(ddp.octets());
        }
        if let Some(rdma) = &self.rdma {
            push(rdma);
        }
        at
    }

    /// Returns the meaning of the error code in words.
    pub fn meaning(&self) -> &'static str {
        words(self.layer, self.etype, self.code).unwrap_or("unknown error")
    }

    /// Parses a Terminate header; `None` if it is cut short. Octets after it and reserved bits are ignored
    /// (RDMAP-16).
    ///
    /// The variant that Linux siw sends is recognised as well (see `peers.rs`).
    pub fn decode(octets: &[u8]) -> Option<Terminate> {
        let (&[first, code, hdrct, _], mut rest) = octets.split_first_chunk::<4>()?;
        let (high, low) = (first >> 4, first & 0x0F);
        let swapped =
            peers::terminate_is_siws(first, hdrct, |layer, etype| words(layer, etype, code).is_some());
        let (layer, etype) = if swapped { (low, high) } else { (high, low) };
        let hdrct = if swapped { hdrct.reverse_bits() } else { hdrct };

        let mut t = Terminate::new(layer, etype, code);
        if hdrct & (M | D) != 0 {
            let (len, after) = rest.split_first_chunk::<2>()?;
            t.segment_len = (hdrct & M != 0).then_some(u16::from_be_bytes(*len));
            rest = after;
        }
        if hdrct & D != 0 {
            let ddp = TerminatedHeader::of(rest)?;
            rest = rest.get(ddp.octets().len()..)?;
            t.ddp = Some(ddp);
        }
        if hdrct & R != 0 {
            // siw sets the flag even for a Send with Invalidate, which has no such header.
            t.rdma = rest.first_chunk().copied();
            if t.rdma.is_none() && !swapped {
                return None;
            }
        }
        Some(t)
    }

    /// Returns the meaning of a Terminate that arrived after the start-up. An error code of the enhanced start-up then
    /// is siw's code for another error (see `peers.rs`).
    pub fn after_startup(self) -> Terminate {
        peers::terminate_after_startup(self)
    }
}

/// Returns the words for an error code; `None` if neither the registry nor a known peer (`peers.rs`) has it.
fn words(layer: u8, etype: u8, code: u8) -> Option<&'static str> {
    Some(match (layer, etype, code) {
        (0, 0, _) => "local catastrophic error",
        (0, 1, 0x00) => "remote protection error: invalid STag",
        (0, 1, 0x01) => "remote protection error: base or bounds violation",
        (0, 1, 0x02) => "remote protection error: access rights violation",
        (0, 1, 0x03) => "remote protection error: STag not associated with the stream",
        (0, 1, 0x04) => "remote protection error: TO wrap",
        (0, 1, 0x09) => "remote protection error: STag cannot be invalidated",
        (0, 1, 0xFF) => "remote protection error: unspecified",
        (0, 2, 0x05) => "remote operation error: invalid RDMAP version",
        (0, 2, 0x06) => "remote operation error: unexpected opcode",
        (0, 2, 0x07) => "remote operation error: catastrophic, localized to the stream",
        (0, 2, 0x08) => "remote operation error: catastrophic, global",
        (0, 2, 0x09) => "remote operation error: STag cannot be invalidated",
        (0, 2, 0xFF) => "remote operation error: unspecified",
        (1, 0, 0x00) => "local catastrophic error",
        (1, 1, 0x00) => "tagged buffer error: invalid STag",
        (1, 1, 0x01) => "tagged buffer error: base or bounds violation",
        (1, 1, 0x02) => "tagged buffer error: STag not associated with the stream",
        (1, 1, 0x03) => "tagged buffer error: TO wrap",
        (1, 1, 0x04) => "tagged buffer error: invalid DDP version",
        (1, 2, 0x01) => "untagged buffer error: invalid queue number",
        (1, 2, 0x02) => "untagged buffer error: no buffer available",
        (1, 2, 0x03) => "untagged buffer error: MSN range is not valid",
        (1, 2, 0x04) => "untagged buffer error: invalid message offset",
        (1, 2, 0x05) => "untagged buffer error: message too long for the buffer",
        (1, 2, 0x06) => "untagged buffer error: invalid DDP version",
        (2, 0, 0x01) => "TCP connection closed, terminated or lost",
        (2, 0 | ETYPE_OF_MPA_ERRORS, 0x02) => "CRC error",
        (2, 0 | ETYPE_OF_MPA_ERRORS, 0x03) => "marker and ULPDU length disagree",
        (2, 0, 0x04) => "invalid MPA Request or Reply frame",
        (2, 0, 0x05) => "local catastrophic error",
        (2, 0, 0x06) => "insufficient IRD resources",
        (2, 0, 0x07) => "no matching RTR option",
        _ => return None,
    })
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layer = match self.layer {
            0 => "RDMAP",
            1 => "DDP",
            2 => "MPA",
            _ => "unknown layer",
        };
        write!(f, "{layer} {} ({:x}{:x} {:02x})", self.meaning(), self.layer, self.etype, self.code)
    }
}
