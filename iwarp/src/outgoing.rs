//! Cuts a message into FPDUs.

use crate::header::{LAST, TAGGED, UNTAGGED_LEN, UNTAGGED_WORDS};
use crate::terminate::TERMINATE_MAX;
use crate::{MULPDU_MAX, MULPDU_MIN};
use std::ops::Range;

/// Most octets before an FPDU's payload: ULPDU_Length, DDP header, RDMAP header.
pub const HEADER_MAX: usize = 2 + UNTAGGED_LEN + TERMINATE_MAX;

/// A place in which the header of a message's first segment is built.
pub(crate) trait Header {
    /// Builds the header of a message with `len` octets of payload. `ddp` is the [DDP header](crate::header) of the
    /// first segment, with L clear. `rdma` follows it and does not include payload.
    fn fill<const N: usize, const M: usize>(&mut self, ddp: [u32; N], rdma: [u32; M], len: u32, crc: bool);

    /// Builds the header of a Terminate. `rdma` has `rdma_len` octets of the header.
    fn fill_terminate(
        &mut self,
        ddp: [u32; UNTAGGED_WORDS],
        rdma: [u8; TERMINATE_MAX],
        rdma_len: usize,
        crc: bool,
    );
}

/// Writes the words to `out`, which is as long as they are. Each store has eight octets if possible, because the CRC
/// reads the header in such pieces at once. The processor serves a load from its store buffer only if a single store
/// has all octets of that load; otherwise the load waits until the stores have left the buffer, which takes long if
/// another core has read the cache line last.
#[inline(always)]
fn write_words<const N: usize, const M: usize>(out: &mut [u8], ddp: [u32; N], rdma: [u32; M]) {
    let word = |i: usize| u64::from(if i < N { ddp[i] } else { rdma[i - N] });
    let (pairs, rest) = out.as_chunks_mut();
    for (i, pair) in pairs.iter_mut().enumerate() {
        *pair = (word(2 * i) << 32 | word(2 * i + 1)).to_be_bytes();
    }
    if let Some(last) = rest.first_chunk_mut() {
        *last = (word(N + M - 1) as u32).to_be_bytes();
    }
}

/// A message that is being sent. It holds no reference to its stream: keep it and continue when there is room.
///
/// Finish one message before beginning the next one of the same stream, because messages go out in order (DDP-34).
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// Header of the segment cut last. Before the first cut: header of the first segment, without ULPDU_Length and L.
    header: [u8; HEADER_MAX],
    header_len: u8,
    crc: bool,
    done: bool,
    /// Payload octets cut so far.
    sent: u32,
    /// Payload octets of the segment cut last.
    cut: u32,
    /// Payload octets of the message.
    len: u32,
}

/// One FPDU to send. The caller writes header, payload, `pad` zero octets and the CRC field.
#[derive(Clone, Debug)]
pub struct Fpdu<'a> {
    header: &'a [u8],
    /// Range of the message's octets that are this FPDU's payload.
    pub payload: Range<u32>,
    /// Zero octets between payload and CRC field.
    pub pad: u8,
    /// Whether the CRC field holds a CRC32C over everything before it. Otherwise the field is zero (MPA-15).
    pub crc: bool,
    /// The last FPDU of its message.
    pub last: bool,
}

impl Fpdu<'_> {
    /// Returns the octets before the payload.
    #[inline]
    pub fn header(&self) -> &[u8] {
        self.header
    }

    /// Returns the number of payload octets.
    #[inline]
    pub fn payload_len(&self) -> usize {
        (self.payload.end - self.payload.start) as usize
    }

    /// Returns the number of octets of the whole FPDU: header, payload, pad and CRC field.
    #[inline]
    pub fn size(&self) -> usize {
        self.header.len() + self.payload_len() + usize::from(self.pad) + 4
    }
}

/// A message with no octets left. [`Stream::begin_in`](crate::Stream::begin_in) builds a message in its place.
impl Default for Outgoing {
    #[inline]
    fn default() -> Self {
        let header = [0; HEADER_MAX];
        Outgoing { header, header_len: 2, crc: false, done: true, sent: 0, cut: 0, len: 0 }
    }
}

impl Header for Outgoing {
    /// The header is written in place, because a header built elsewhere would have to be copied here directly after it
    /// was built (see [`write_words`]).
    #[inline]
    fn fill<const N: usize, const M: usize>(&mut self, ddp: [u32; N], rdma: [u32; M], len: u32, crc: bool) {
        const { assert!(4 * (N + M) <= HEADER_MAX) };
        write_words(&mut self.header[..4 * (N + M)], ddp, rdma);
        self.header_len = (4 * (N + M)) as u8;
        self.crc = crc;
        self.done = false;
        self.sent = 0;
        self.cut = 0;
        self.len = len;
    }

    fn fill_terminate(
        &mut self,
        ddp: [u32; UNTAGGED_WORDS],
        rdma: [u8; TERMINATE_MAX],
        rdma_len: usize,
        crc: bool,
    ) {
        self.fill(ddp, [], 0, crc);
        self.header[4 * UNTAGGED_WORDS..].copy_from_slice(&rdma);
        self.header_len = (4 * UNTAGGED_WORDS + rdma_len) as u8;
    }
}

/// The octets before the payload of an FPDU that is a whole message, in the place from which they are sent.
pub(crate) struct Front<'a>(pub(crate) &'a mut [u8]);

impl Header for Front<'_> {
    #[inline]
    fn fill<const N: usize, const M: usize>(
        &mut self,
        mut ddp: [u32; N],
        rdma: [u32; M],
        len: u32,
        _crc: bool,
    ) {
        let Some(octets) = self.0.get_mut(..4 * (N + M)) else { return };
        let ulpdu = (4 * (N + M) - 2) as u32 + len;
        if let Some(first) = ddp.first_mut() {
            *first |= ulpdu << 16 | u32::from(LAST) << 8;
        }
        write_words(octets, ddp, rdma);
    }

    /// [`Op::front`](crate::Op::front) is `None` for a Terminate, so none is built in this way: its length varies.
    fn fill_terminate(&mut self, _: [u32; UNTAGGED_WORDS], _: [u8; TERMINATE_MAX], _: usize, _: bool) {}
}

impl Outgoing {
    /// Cuts the next FPDU, with a ULPDU of at most `mulpdu` octets (DDP-27). Returns `None` when all of the message
    /// has been cut. `mulpdu` is clamped to the limits of RFC 5044 §3 and may change from call to call.
    #[inline]
    pub fn next(&mut self, mulpdu: usize) -> Option<Fpdu<'_>> {
        if self.done {
            return None;
        }
        if self.cut > 0 {
            self.move_on();
        }
        let ddp_len = usize::from(self.header_len) - 2;
        let room = mulpdu.clamp(MULPDU_MIN, MULPDU_MAX) - ddp_len;
        let payload = (self.len - self.sent).min(room as u32);
        let start = self.sent;
        self.sent += payload;
        self.cut = payload;
        self.done = self.sent == self.len;

        let ulpdu = ddp_len + payload as usize;
        self.header[0..2].copy_from_slice(&(ulpdu as u16).to_be_bytes());
        if self.done {
            self.header[2] |= LAST;
        }
        Some(Fpdu {
            // `header_len` never exceeds HEADER_MAX. The fallback keeps a panic out of the hot path.
            header: self.header.get(..usize::from(self.header_len)).unwrap_or(&self.header),
            payload: start..self.sent,
            pad: pad(ulpdu) as u8,
            crc: self.crc,
            last: self.done,
        })
    }

    /// Moves TO or MO of the header to the next segment, which directly follows the segment cut last (DDP-20, DDP-25).
    fn move_on(&mut self) {
        let h = &mut self.header;
        if h[2] & TAGGED != 0 {
            let to = u64::from_be_bytes([h[8], h[9], h[10], h[11], h[12], h[13], h[14], h[15]]);
            h[8..16].copy_from_slice(&to.wrapping_add(self.cut.into()).to_be_bytes());
        } else {
            h[16..20].copy_from_slice(&self.sent.to_be_bytes());
        }
    }

    /// Returns whether every FPDU has been cut.
    pub fn done(&self) -> bool {
        self.done
    }

    /// Returns the payload octets not yet cut.
    pub fn remaining(&self) -> u32 {
        self.len - self.sent
    }
}

/// Returns the PAD octets after a ULPDU of `len` octets (RFC 5044 §4.1).
pub(crate) fn pad(len: usize) -> usize {
    (2 + len).wrapping_neg() & 3
}
