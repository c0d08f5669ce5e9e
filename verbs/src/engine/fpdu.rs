//! Writes one FPDU into a transmit buffer: header | payload | pad | CRC in a single pass that copies and
//! computes the CRC and, where wanted, the Internet checksum together.

use super::qp::{Cursor, Source};
use crate::memory::{Access, MrFault, MrTable};
use crate::qp::QpShared;
use crate::queue::SendView;
use crate::sabotage::{Rule, broken};
use urnic_iwarp::Fpdu;

/// Accumulates an FPDU. Octets that do not fit are a bug of the caller and end up nowhere.
struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
    crc: u32,
    sum: u16,
    want_sum: bool,
}

impl Writer<'_> {
    fn octets(&mut self, src: &[u8]) {
        self.crc = urnic_crc::crc32c(self.crc, src);
        self.uncovered(src);
    }

    /// What the CRC does not cover: itself.
    #[inline]
    fn uncovered(&mut self, src: &[u8]) {
        let Some(out) = self.out.get_mut(self.at..self.at + src.len()) else { return };
        out.copy_from_slice(src);
        if self.want_sum {
            self.sum = urnic_crc::combine(self.sum, self.at, urnic_crc::sum(src));
        }
        self.at += src.len();
    }

    /// # Safety
    /// `[src, src + len)` is readable; it may change meanwhile.
    unsafe fn memory(&mut self, src: *const u8, len: usize) {
        let Some(out) = self.out.get_mut(self.at..self.at + len) else { return };
        if self.want_sum {
            // SAFETY: `out` has len octets; src is the caller's promise.
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

/// Writes `fpdu` to the front of `out`; gives its one's-complement sum (0 unless `want_sum`).
///
/// `out` must hold [`Fpdu::size`] octets. Fails, with nothing that matters written, if the memory that the
/// payload comes from is not (or no longer) registered.
pub(super) fn write(
    out: &mut [u8],
    fpdu: &Fpdu<'_>,
    source: &mut Source,
    qp: &QpShared,
    table: &MrTable,
    want_sum: bool,
) -> Result<u16, MrFault> {
    let mut writer = Writer { out, at: 0, crc: urnic_crc::INIT, sum: 0, want_sum };
    writer.octets(fpdu.header());
    let len = fpdu.payload_len() as u32;
    match source {
        Source::None => {}
        Source::Response(request) => {
            if len > 0 {
                let start = if broken(Rule::ReadSource) { 0 } else { fpdu.payload.start };
                let to = request.src_to.wrapping_add(u64::from(start));
                let span = table.resolve(request.src_stag, qp.scopes, Access::REMOTE_READ, to, len)?;
                // SAFETY: just resolved; regions leave the table only under the engine lock, which we hold.
                unsafe { writer.memory(span.ptr, len as usize) };
            }
        }
        Source::WorkRequest { index, cursor } => {
            let Some(view) = qp.send.peek(*index) else { return Err(MrFault::InvalidStag) };
            gather(&mut writer, &view, cursor, fpdu.payload.clone(), qp, table)?;
        }
    }
    if fpdu.pad > 0 {
        writer.octets(&[0; 3][..usize::from(fpdu.pad.min(3))]);
    }
    // RFC 5044 §4.4: the field is there even when CRCs are off (MPA-15, MPA-35).
    let crc = if fpdu.crc { urnic_crc::finish(writer.crc).to_le_bytes() } else { [0; 4] };
    writer.uncovered(&crc);
    Ok(writer.sum)
}

/// Copies `range` of a work request's message.
fn gather(
    writer: &mut Writer<'_>,
    view: &SendView<'_>,
    cursor: &mut Cursor,
    range: std::ops::Range<u32>,
    qp: &QpShared,
    table: &MrTable,
) -> Result<(), MrFault> {
    if let Some(inline) = view.inline {
        let octets = inline.get(range.start as usize..range.end as usize).ok_or(MrFault::Bounds)?;
        writer.octets(octets);
        return Ok(());
    }
    let mut at = range.start;
    while at < range.end {
        let sge = view.sges.get(usize::from(cursor.element)).ok_or(MrFault::Bounds)?;
        let skip = if broken(Rule::Gather) { 0 } else { at.saturating_sub(cursor.base) };
        if skip >= sge.len {
            cursor.base = cursor.base.wrapping_add(sge.len);
            cursor.element += 1;
            continue;
        }
        let n = (sge.len - skip).min(range.end - at);
        let addr = sge.addr.wrapping_add(u64::from(skip));
        let span = table.resolve(sge.lkey, qp.scopes, Access::LOCAL_READ, addr, n)?;
        // SAFETY: just resolved; regions leave the table only under the engine lock, which we hold.
        unsafe { writer.memory(span.ptr, n as usize) };
        at += n;
    }
    Ok(())
}
