//! Atomic operations (RFC 7306 §5): their results and their headers.

use crate::AccessFault;
use crate::header::{ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, halves};

/// An operation on 64 bits of the responder's memory. Its response carries the previous value.
///
/// RFC 7306 has no plain Swap; use an [`AtomicOp::CmpSwap`] whose `compare_mask` is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds and stores the sum (RFC 7306 §5.1.1).
    FetchAdd {
        /// The addend.
        add: u64,
        /// Each set bit is the highest bit of a field, and no carry leaves its field. 0: a single field of 64 bits.
        mask: u64,
    },
    /// Compares and, on a match, swaps (RFC 7306 §5.1.2).
    CmpSwap {
        /// The expected value.
        compare: u64,
        /// The bits that are compared.
        compare_mask: u64,
        /// The value to store on a match.
        swap: u64,
        /// The bits that are stored.
        swap_mask: u64,
    },
}

impl AtomicOp {
    /// Returns the value to store in place of `old`; `None` to leave it.
    pub fn apply(self, old: u64) -> Option<u64> {
        match self {
            // With the highest bits of the fields cleared, no sum carries into the next field. Those bits are added
            // by exclusive or.
            AtomicOp::FetchAdd { add, mask } => {
                Some((old & !mask).wrapping_add(add & !mask) ^ ((old ^ add) & mask))
            }
            AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask } => {
                ((old ^ compare) & compare_mask == 0).then_some(old & !swap_mask | swap & swap_mask)
            }
        }
    }
}

/// Why an atomic operation cannot be performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AtomicFault {
    /// The memory cannot be accessed.
    #[error(transparent)]
    Access(#[from] AccessFault),
    /// The address in memory is not a multiple of 8 (RFC 7306 §8.2).
    #[error("the address is not aligned to 8 octets")]
    Misaligned,
}

/// Codes of the operations (RFC 7306 figure 5); 1 is reserved.
const FETCH_ADD: u8 = 0;
const CMP_SWAP: u8 = 2;

/// Atomic Request header (RFC 7306 §5.2.1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtomicHeader {
    pub(crate) id: u32,
    pub(crate) stag: u32,
    pub(crate) to: u64,
    pub(crate) op: AtomicOp,
}

impl AtomicHeader {
    /// Parses a header and ignores its reserved bits. If the operation code is unknown, returns that code as the error.
    pub(crate) fn parse(h: &[u8; ATOMIC_REQUEST_LEN]) -> Result<AtomicHeader, u8> {
        let word =
            |at: usize| h[at..].first_chunk().map_or(0, |octets: &[u8; 8]| u64::from_be_bytes(*octets));
        let op = match h[3] & 0x0F {
            // FetchAdd ignores Compare Data and Compare Mask.
            FETCH_ADD => AtomicOp::FetchAdd { add: word(20), mask: word(28) },
            CMP_SWAP => AtomicOp::CmpSwap {
                swap: word(20),
                swap_mask: word(28),
                compare: word(36),
                compare_mask: word(44),
            },
            other => return Err(other),
        };
        Ok(AtomicHeader {
            id: u32::from_be_bytes([h[4], h[5], h[6], h[7]]),
            stag: u32::from_be_bytes([h[8], h[9], h[10], h[11]]),
            to: word(12),
            op,
        })
    }

    pub(crate) fn words(&self) -> [u32; ATOMIC_REQUEST_LEN / 4] {
        let (code, data) = match self.op {
            // RFC 7306 §5.2.1: in a FetchAdd, Compare Data is zero, and Compare Mask is all ones.
            AtomicOp::FetchAdd { add, mask } => (FETCH_ADD, [add, mask, 0, u64::MAX]),
            AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask } => {
                (CMP_SWAP, [swap, swap_mask, compare, compare_mask])
            }
        };
        let [to_high, to_low] = halves(self.to);
        let [[a, b], [c, d], [e, f], [g, h]] = data.map(halves);
        [code.into(), self.id, self.stag, to_high, to_low, a, b, c, d, e, f, g, h]
    }
}

/// Atomic Response header (RFC 7306 §5.2.2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtomicResult {
    pub(crate) id: u32,
    pub(crate) original: u64,
}

impl AtomicResult {
    pub(crate) fn parse(h: &[u8; ATOMIC_RESPONSE_LEN]) -> AtomicResult {
        AtomicResult {
            id: u32::from_be_bytes([h[0], h[1], h[2], h[3]]),
            original: u64::from_be_bytes([h[4], h[5], h[6], h[7], h[8], h[9], h[10], h[11]]),
        }
    }

    pub(crate) fn words(&self) -> [u32; ATOMIC_RESPONSE_LEN / 4] {
        let [high, low] = halves(self.original);
        [self.id, high, low]
    }
}
