//! Writes one FPDU into a transmit buffer: header | payload | pad | CRC. A single pass copies the payload and computes
//! its CRC and, if wanted, its Internet checksum. Large payload may be lent to the transport instead of copied.

use super::qp::{Cursor, Origin};
use crate::drive::transport::{Draft, Transport};
use crate::shared::memory::{Access, MrFault, MrTable};
use crate::shared::prefetch::prefetch;
use crate::shared::qp::QpShared;
use crate::shared::queue::{SendView, WrNumber};
use urnic_iwarp::Fpdu;

/// Maximum number of octets of the next FPDU's payload that are prefetched. The processor's own prefetcher fetches the
/// rest of a longer FPDU in time.
const FORESEEN: usize = 2048;

/// Writes an FPDU piece by piece. Octets that do not fit are not written; they are a bug of the caller.
struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
    crc: u32,
    sum: u16,
    wants_sum: bool,
}

impl Writer<'_> {
    fn octets(&mut self, src: &[u8]) {
        self.crc = urnic_crc::crc32c(self.crc, src);
        self.uncovered(src);
    }

    /// Writes octets without adding them to the CRC. Only the CRC itself is written by this function alone.
    #[inline]
    fn uncovered(&mut self, src: &[u8]) {
        let Some(out) = self.out.get_mut(self.at..self.at + src.len()) else { return };
        out.copy_from_slice(src);
        if self.wants_sum {
            self.sum = urnic_crc::combine(self.sum, self.at, urnic_crc::sum(src));
        }
        self.at += src.len();
    }

    /// Writes `len` octets from memory. The CRC covers them. `more` octets of the message follow them in memory.
    ///
    /// # Safety
    /// `[src, src + len)` must be readable. Its content may change during the call.
    unsafe fn memory(&mut self, src: *const u8, len: usize, more: u32) {
        let Some(out) = self.out.get_mut(self.at..self.at + len) else { return };
        // Prefetches the payload of the next FPDU, because large or many messages are not in the cache.
        prefetch(src.wrapping_add(len), len.min(more as usize).min(FORESEEN));
        if self.wants_sum {
            // SAFETY: `out` has `len` octets; `src` is readable by this function's contract.
            let (crc, sum) = unsafe { urnic_crc::copy_crc_sum(out.as_mut_ptr(), src, len, self.crc) };
            self.crc = crc;
            self.sum = urnic_crc::combine(self.sum, self.at, sum);
        } else {
            // SAFETY: as above.
            self.crc = unsafe { urnic_crc::copy_crc(out.as_mut_ptr(), src, len, self.crc) };
        }
        self.at += len;
    }
}

/// The payload of an FPDU that is a whole message.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// Inline data, or nothing.
    Octets(&'a [u8]),
    /// So many octets of registered memory.
    Memory(*const u8, u32),
}

impl Source<'_> {
    /// Returns the number of octets.
    #[inline]
    pub(super) fn len(&self) -> usize {
        match *self {
            Source::Octets(octets) => octets.len(),
            Source::Memory(_, len) => len as usize,
        }
    }

    /// Writes payload, pad and CRC field of the FPDU that fills `out`, of which the first `front` octets, an even
    /// number, are written. Returns its one's-complement sum, or 0 if that is not wanted.
    ///
    /// # Safety
    /// [`Source::Memory`] must be readable. Its content may change during the call.
    #[inline]
    pub(super) unsafe fn complete(self, out: &mut [u8], front: usize, has_crc: bool, wants_sum: bool) -> u16 {
        let Some((covered, field)) = out.split_last_chunk_mut() else { return 0 };
        let Some((header, rest)) = covered.split_at_mut_checked(front) else { return 0 };
        let Some((payload, pad)) = rest.split_at_mut_checked(self.len()) else { return 0 };
        let mut crc = urnic_crc::crc32c(urnic_crc::INIT, header);
        let mut sum = 0;
        match self {
            Source::Octets([]) => {}
            Source::Octets(octets) => {
                payload.copy_from_slice(octets);
                crc = urnic_crc::crc32c(crc, payload);
                if wants_sum {
                    sum = urnic_crc::sum(payload);
                }
            }
            // SAFETY: `payload` has `len` octets, and `src` is readable by this function's contract.
            Source::Memory(src, len) if wants_sum => unsafe {
                (crc, sum) = urnic_crc::copy_crc_sum(payload.as_mut_ptr(), src, len as usize, crc);
            },
            // SAFETY: as above.
            Source::Memory(src, len) => unsafe {
                crc = urnic_crc::copy_crc(payload.as_mut_ptr(), src, len as usize, crc);
            },
        }
        if !pad.is_empty() {
            pad.fill(0);
            crc = urnic_crc::crc32c(crc, pad);
        }
        *field = field_of(crc, has_crc);
        if !wants_sum {
            return 0;
        }
        // Header, and payload with its pad, have even lengths.
        let sum = urnic_crc::combine(urnic_crc::sum(header), 0, sum);
        urnic_crc::combine(sum, 0, urnic_crc::sum(field))
    }
}

/// Returns the CRC field after octets that have left this CRC register. The field is present even if CRCs are off (RFC
/// 5044 §4.1, §4.4, MPA-15, MPA-35).
#[inline]
fn field_of(crc: u32, has_crc: bool) -> [u8; 4] {
    if has_crc { urnic_crc::finish(crc).to_le_bytes() } else { [0; 4] }
}

/// An FPDU to be written, with the tables that locate its payload.
pub(super) struct Composer<'a> {
    pub(super) fpdu: &'a Fpdu<'a>,
    /// The queue pair that sends the FPDU.
    pub(super) qp: &'a QpShared,
    pub(super) table: &'a MrTable,
    /// Whether the caller wants the FPDU's one's-complement sum. If not, the returned sums are 0.
    pub(super) wants_sum: bool,
}

impl Composer<'_> {
    /// Writes the FPDU to the front of `out` and returns its one's-complement sum.
    ///
    /// `out` must hold [`Fpdu::size`] octets. Fails if the memory of the payload is not available. The content
    /// of `out` is then meaningless.
    #[inline]
    pub(super) fn write(&self, out: &mut [u8], origin: &mut Origin) -> Result<u16, MrFault> {
        let Composer { fpdu, qp, table, wants_sum } = *self;
        let mut writer = Writer { out, at: 0, crc: urnic_crc::INIT, sum: 0, wants_sum };
        writer.octets(fpdu.header());
        let len = fpdu.payload_len() as u32;
        match origin {
            Origin::None => {}
            Origin::Response(request) => {
                if len > 0 {
                    let to = request.src_to.wrapping_add(u64::from(fpdu.payload.start));
                    let span = table.resolve(request.src_stag, qp.scopes, Access::REMOTE_READ, to, len)?;
                    // SAFETY: the memory was just resolved, and stays registered until this pass has ended.
                    unsafe {
                        writer.memory(span.ptr, len as usize, request.len.saturating_sub(fpdu.payload.end))
                    };
                }
            }
            Origin::WorkRequest { number, cursor } => {
                let Some(view) = qp.send.peek(*number) else { return Err(MrFault::InvalidStag) };
                self.gather(&mut writer, &view, cursor)?;
            }
        }
        if fpdu.pad > 0 {
            writer.octets(&[0; 3][..usize::from(fpdu.pad.min(3))]);
        }
        let field = field_of(writer.crc, fpdu.crc);
        writer.uncovered(&field);
        Ok(writer.sum)
    }

    /// Appends the FPDU to `draft`, with its payload lent instead of copied, and returns its one's-complement sum.
    /// The payload is that of work request `number`, from `cursor` on.
    ///
    /// Returns `None`, and changes nothing, if the payload is inline, not contiguous or not available, if it begins in
    /// the last `lone_end` octets of its message, or if the draft or the transport does not take it.
    ///
    /// `lone_end` must be 0 if another request follows. If none follows, the last octets should be copied, because a
    /// request that has lent octets completes only when the peer acknowledges them, and the peer may delay its
    /// acknowledgement of the last ones.
    pub(super) fn lend<T: Transport>(
        &self,
        draft: &mut T::Draft,
        transport: &mut T,
        number: WrNumber,
        cursor: Cursor,
        lone_end: usize,
    ) -> Option<u16> {
        let Composer { fpdu, qp, table, wants_sum } = *self;
        let view = qp.send.peek(number)?;
        let range = fpdu.payload.clone();
        if view.inline.is_some() || ((view.entry.length - range.start) as usize) <= lone_end {
            return None;
        }
        let (mut element, mut base) = (usize::from(cursor.element), cursor.base);
        let sge = loop {
            let sge = view.sges.get(element)?;
            if range.start.wrapping_sub(base) < sge.len {
                break sge;
            }
            (element, base) = (element + 1, base.wrapping_add(sge.len));
        };
        let (skip, len) = (range.start - base, range.end - range.start);
        if sge.len - skip < len {
            return None;
        }
        let addr = sge.addr.wrapping_add(u64::from(skip));
        let ours = table.is_ours(sge.lkey);
        let at = table.resolve(sge.lkey, qp.scopes, Access::LOCAL_READ, addr, len).ok()?.ptr.cast_const();
        let before = draft.len();
        let header = fpdu.header();
        draft.append(header.len())?.copy_from_slice(header);
        // SAFETY: the memory was just resolved. The request completes when the peer has acknowledged these octets. If
        // the request ends earlier, or the region is deregistered, the octets are copied first (`super::lent`).
        if !unsafe { transport.lend(draft, at, len as usize, ours) } {
            draft.truncate(before);
            return None;
        }
        // SAFETY: the memory was just resolved, and stays registered until this pass has ended.
        let crc =
            unsafe { urnic_crc::crc32c_at(urnic_crc::crc32c(urnic_crc::INIT, header), at, len as usize) };
        let pad = usize::from(fpdu.pad.min(3));
        let crc = urnic_crc::crc32c(crc, &[0; 3][..pad]);
        let mut end = [0; 3 + 4];
        end[pad..pad + 4].copy_from_slice(&field_of(crc, fpdu.crc));
        let end = &end[..pad + 4];
        let Some(out) = draft.append(end.len()) else {
            draft.truncate(before);
            return None;
        };
        out.copy_from_slice(end);
        if !wants_sum {
            return Some(0);
        }
        // SAFETY: as above.
        let payload = unsafe { urnic_crc::sum_at(at, len as usize) };
        let sum = urnic_crc::combine(urnic_crc::sum(header), header.len(), payload);
        Some(urnic_crc::combine(sum, header.len() + len as usize, urnic_crc::sum(end)))
    }

    /// Copies the FPDU's payload, a part of a work request's message, from the request's list or inline data.
    fn gather(
        &self,
        writer: &mut Writer<'_>,
        view: &SendView<'_>,
        cursor: &mut Cursor,
    ) -> Result<(), MrFault> {
        let range = self.fpdu.payload.clone();
        if let Some(inline) = view.inline {
            let octets = inline.get(range.start as usize..range.end as usize).ok_or(MrFault::Bounds)?;
            writer.octets(octets);
            return Ok(());
        }
        let mut at = range.start;
        while at < range.end {
            let sge = view.sges.get(usize::from(cursor.element)).ok_or(MrFault::Bounds)?;
            let skip = at.saturating_sub(cursor.base);
            if skip >= sge.len {
                cursor.base = cursor.base.wrapping_add(sge.len);
                cursor.element += 1;
                continue;
            }
            let n = (sge.len - skip).min(range.end - at);
            let addr = sge.addr.wrapping_add(u64::from(skip));
            let span = self.table.resolve(sge.lkey, self.qp.scopes, Access::LOCAL_READ, addr, n)?;
            // SAFETY: the memory was just resolved, and stays registered until this pass has ended.
            unsafe { writer.memory(span.ptr, n as usize, sge.len - skip - n) };
            at += n;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
