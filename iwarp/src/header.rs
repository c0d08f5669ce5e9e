//! DDP and RDMAP header fields (RFC 5041 §4, RFC 5040 §4).
//!
//! Headers to send are built of words of 32 bits, which are written in network order. The first word of a DDP header
//! begins with the place of ULPDU_Length, which precedes the header in an FPDU (RFC 5044 §4.1).

/// Octets of a tagged DDP header, RDMAP control octet included.
pub(crate) const TAGGED_LEN: usize = 14;
/// Octets of an untagged DDP header, RDMAP control octet and Invalidate STag included.
pub(crate) const UNTAGGED_LEN: usize = 18;
/// Words of an untagged DDP header, ULPDU_Length included.
pub(crate) const UNTAGGED_WORDS: usize = (2 + UNTAGGED_LEN) / 4;
/// Octets of the RDMA Read Request header that follows the DDP header.
pub(crate) const READ_REQUEST_LEN: usize = 28;
/// Octets of the Atomic Request header that follows the DDP header (RFC 7306 §5.2.1).
pub(crate) const ATOMIC_REQUEST_LEN: usize = 52;
/// Octets of the Atomic Response header that follows the DDP header (RFC 7306 §5.2.2).
pub(crate) const ATOMIC_RESPONSE_LEN: usize = 12;
/// Octets of Immediate Data (RFC 7306 §6.2).
pub(crate) const IMMEDIATE_LEN: usize = 8;

/// DDP and RDMAP version (RFC 5041 §4.1, RFC 5040 §4.1).
pub(crate) const VERSION: u8 = 1;

/// RDMAP opcodes (RFC 5040 §4.1, RFC 7306 §4.1).
pub(crate) mod opcode {
    pub(crate) const WRITE: u8 = 0x0;
    pub(crate) const READ_REQUEST: u8 = 0x1;
    pub(crate) const READ_RESPONSE: u8 = 0x2;
    pub(crate) const SEND: u8 = 0x3;
    pub(crate) const SEND_INVALIDATE: u8 = 0x4;
    pub(crate) const SEND_SE: u8 = 0x5;
    pub(crate) const SEND_SE_INVALIDATE: u8 = 0x6;
    pub(crate) const TERMINATE: u8 = 0x7;
    pub(crate) const IMMEDIATE: u8 = 0x8;
    pub(crate) const IMMEDIATE_SE: u8 = 0x9;
    pub(crate) const ATOMIC_REQUEST: u8 = 0xA;
    pub(crate) const ATOMIC_RESPONSE: u8 = 0xB;
}

/// Untagged queue numbers (RFC 5040 §4.1, RFC 7306 §4.1).
pub(crate) mod queue {
    /// Sends of all kinds and Immediate Data.
    pub(crate) const SEND: u32 = 0;
    /// Read Requests and Atomic Requests, in one sequence (RDMAPX-9).
    pub(crate) const REQUEST: u32 = 1;
    pub(crate) const TERMINATE: u32 = 2;
    pub(crate) const ATOMIC_RESPONSE: u32 = 3;
}

/// T bit of the DDP control octet.
pub(crate) const TAGGED: u8 = 0x80;
/// L bit of the DDP control octet.
pub(crate) const LAST: u8 = 0x40;

/// The two control octets at the start of every segment. Reserved bits are ignored (DDP-15, RDMAP-10).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    pub(crate) tagged: bool,
    pub(crate) last: bool,
    pub(crate) ddp_version: u8,
    pub(crate) rdmap_version: u8,
    pub(crate) opcode: u8,
}

impl Control {
    pub(crate) fn parse(ddp: u8, rdmap: u8) -> Control {
        Control {
            tagged: ddp & TAGGED != 0,
            last: ddp & LAST != 0,
            ddp_version: ddp & 0x03,
            rdmap_version: rdmap >> 6,
            opcode: rdmap & 0x0F,
        }
    }

    /// Returns the first word of the DDP header of a message to send: the control octets, with L clear.
    #[inline]
    pub(crate) fn word(tagged: bool, opcode: u8) -> u32 {
        let ddp = if tagged { TAGGED | VERSION } else { VERSION };
        u32::from(u16::from_be_bytes([ddp, VERSION << 6 | opcode]))
    }
}

/// Fields after the control octets of a tagged segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tagged {
    pub(crate) stag: u32,
    pub(crate) to: u64,
}

impl Tagged {
    pub(crate) fn parse(h: &[u8; TAGGED_LEN]) -> Tagged {
        Tagged {
            stag: u32::from_be_bytes([h[2], h[3], h[4], h[5]]),
            to: u64::from_be_bytes([h[6], h[7], h[8], h[9], h[10], h[11], h[12], h[13]]),
        }
    }
}

/// Fields after the control octets of an untagged segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Untagged {
    pub(crate) invalidate: u32,
    pub(crate) qn: u32,
    pub(crate) msn: u32,
    pub(crate) mo: u32,
}

impl Untagged {
    pub(crate) fn parse(h: &[u8; UNTAGGED_LEN]) -> Untagged {
        Untagged {
            invalidate: u32::from_be_bytes([h[2], h[3], h[4], h[5]]),
            qn: u32::from_be_bytes([h[6], h[7], h[8], h[9]]),
            msn: u32::from_be_bytes([h[10], h[11], h[12], h[13]]),
            mo: u32::from_be_bytes([h[14], h[15], h[16], h[17]]),
        }
    }
}

/// RDMA Read Request header (RFC 5040 §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadHeader {
    pub(crate) sink_stag: u32,
    pub(crate) sink_to: u64,
    pub(crate) len: u32,
    pub(crate) src_stag: u32,
    pub(crate) src_to: u64,
}

impl ReadHeader {
    pub(crate) fn parse(h: &[u8; READ_REQUEST_LEN]) -> ReadHeader {
        ReadHeader {
            sink_stag: u32::from_be_bytes([h[0], h[1], h[2], h[3]]),
            sink_to: u64::from_be_bytes([h[4], h[5], h[6], h[7], h[8], h[9], h[10], h[11]]),
            len: u32::from_be_bytes([h[12], h[13], h[14], h[15]]),
            src_stag: u32::from_be_bytes([h[16], h[17], h[18], h[19]]),
            src_to: u64::from_be_bytes([h[20], h[21], h[22], h[23], h[24], h[25], h[26], h[27]]),
        }
    }

    #[inline]
    pub(crate) fn words(&self) -> [u32; READ_REQUEST_LEN / 4] {
        let ([sink_high, sink_low], [src_high, src_low]) = (halves(self.sink_to), halves(self.src_to));
        [self.sink_stag, sink_high, sink_low, self.len, self.src_stag, src_high, src_low]
    }

    pub(crate) fn octets(&self) -> [u8; READ_REQUEST_LEN] {
        let mut octets = [0; READ_REQUEST_LEN];
        for (field, word) in octets.chunks_exact_mut(4).zip(self.words()) {
            field.copy_from_slice(&word.to_be_bytes());
        }
        octets
    }
}

/// Returns the two words of a field of 64 bits.
#[inline]
pub(crate) fn halves(field: u64) -> [u32; 2] {
    [(field >> 32) as u32, field as u32]
}
