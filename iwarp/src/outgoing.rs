//! Cuts a message into FPDUs.

use crate::header::{LAST, TAGGED, UNTAGGED_LEN};
use crate::terminate::TERMINATE_MAX;
use crate::{MULPDU_MAX, MULPDU_MIN};
use std::ops::Range;

/// Most octets before an FPDU's payload: ULPDU_Length, DDP header, RDMAP header.
pub const HEADER_MAX: usize = 2 + UNTAGGED_LEN + TERMINATE_MAX;

/// A place in which the header of a message's first segment is built.
pub(crate) trait Header {
    /// Builds the header of a message with `len` octets of payload. `ddp` is the DDP header of the first segment, with
    /// L clear. `rdma` follows it and does not include payload. Their lengths are constants, so that building a header
    /// takes few stores.
    fn fill<const N: usize, const M: usize>(&mut self, ddp: [u8; N], rdma: [u8; M], len: u32, crc: bool);

    /// Builds the header of a Terminate. `rdma` has `rdma_len` octets of the header.
    fn fill_terminate(
        &mut self,
        ddp: [u8; UNTAGGED_LEN],
        rdma: [u8; TERMINATE_MAX],
        rdma_len: usize,
        crc: bool,
    );
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
    /// The header is written in place, field by field. A header built elsewhere would have to be copied here directly
    /// after it was built. The copy would read wider pieces than were stored. The processor cannot serve such reads
    /// from its store buffer, so the copy would wait until the stores have left that buffer.
    #[inline]
    fn fill<const N: usize, const M: usize>(&mut self, ddp: [u8; N], rdma: [u8; M], len: u32, crc: bool) {
        const { assert!(2 + N + M <= HEADER_MAX) };
        self.header[2..2 + N].copy_from_slice(&ddp);
        self.header[2 + N..2 + N + M].copy_from_slice(&rdma);
        self.header_len = (2 + N + M) as u8;
        self.crc = crc;
        self.done = false;
        self.sent = 0;
        self.cut = 0;
        self.len = len;
    }

    fn fill_terminate(
        &mut self,
        ddp: [u8; UNTAGGED_LEN],
        rdma: [u8; TERMINATE_MAX],
        rdma_len: usize,
        crc: bool,
    ) {
        self.fill(ddp, rdma, 0, crc);
        self.header_len = (2 + UNTAGGED_LEN + rdma_len) as u8;
    }
}

/// The octets before the payload of an FPDU that is a whole message, in the place from which they are sent.
pub(crate) struct Front<'a> {
    pub(crate) octets: &'a mut [u8],
    pub(crate) crc: bool,
}

impl Header for Front<'_> {
    #[inline]
    fn fill<const N: usize, const M: usize>(&mut self, ddp: [u8; N], rdma: [u8; M], len: u32, crc: bool) {
        self.crc = crc;
        let Some(octets) = self.octets.get_mut(..2 + N + M) else { return };
        let ulpdu = (N + M) as u32 + len;
        octets[..2].copy_from_slice(&(ulpdu as u16).to_be_bytes());
        octets[2..2 + N].copy_from_slice(&ddp);
        octets[2] |= LAST;
        octets[2 + N..].copy_from_slice(&rdma);
    }

    /// [`Op::front`](crate::Op::front) is `None` for a Terminate, so none is built in this way: its length varies.
    fn fill_terminate(&mut self, _: [u8; UNTAGGED_LEN], _: [u8; TERMINATE_MAX], _: usize, _: bool) {}
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
