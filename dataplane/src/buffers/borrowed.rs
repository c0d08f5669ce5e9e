//! Mbufs of frames whose payload stays, for now, in memory that the peer shares with us.
//!
//! Such an mbuf holds the first part of its frame, which no other process can change. A list at the start of its
//! headroom has the addresses of the rest. By DPDK's rules the data of an mbuf's segments adds up to the length of the
//! packet. Here the one segment is shorter than the packet, which tells these mbufs from all others.
//!
//! The peer's descriptors are returned when the next burst is received. So frames that are still in use then are
//! copied into their mbufs ([`settle`]). An mbuf whose frame was dropped before goes back to its pool then, not
//! earlier, so that no other frame uses it while the receiver has it on its list.

use std::ops::Range;
use std::ptr::NonNull;

use dpdk_sys as sys;
use urnic_crc::Octets;

use super::{HEADROOM, pool};

/// Most pieces of memory that the rest of a frame may lie in.
pub(crate) const MAX_PIECES: usize = 7;

/// Contiguous memory that the peer may change at any time.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Piece {
    pub(crate) at: *const u8,
    pub(crate) len: usize,
}

/// The list in the headroom.
#[repr(C)]
struct Rest {
    pieces: [Piece; MAX_PIECES],
    len: u32,
    dropped: bool,
}

const _: () = assert!(size_of::<Rest>() <= HEADROOM);

/// Returns the list of an mbuf.
///
/// # Safety
/// `m` is a live direct mbuf of a pool of ours, whose data begins after the headroom.
#[inline]
unsafe fn rest(m: NonNull<sys::rte_mbuf>) -> *mut Rest {
    // SAFETY: as the caller promises. Buffers begin with a cache line, so the list is aligned.
    unsafe { m.as_ref().buf_addr.cast() }
}

/// Returns whether a part of the frame is in the peer's memory.
///
/// # Safety
/// `m` is a live mbuf of one segment.
#[inline]
pub(crate) unsafe fn is_borrowed(m: NonNull<sys::rte_mbuf>) -> bool {
    // SAFETY: as the caller promises.
    unsafe { u32::from(m.as_ref().data_len) != m.as_ref().pkt_len }
}

/// Appends `pieces` to the frame in `m`, by reference. Returns `false`, and changes nothing, if there are too many, or
/// if the frame would not fit `m` when copied.
///
/// # Safety
/// `m` is an mbuf of ours alone, as a pool gives it, with data that is not borrowed. `pieces` stay readable until the
/// mbuf is [settled](settle).
pub(crate) unsafe fn borrow(mut m: NonNull<sys::rte_mbuf>, pieces: &[Piece]) -> bool {
    // SAFETY: as the caller promises.
    unsafe {
        let mbuf = m.as_mut();
        let total = pieces.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len));
        let room = usize::from(mbuf.buf_len) - usize::from(mbuf.data_off) - usize::from(mbuf.data_len);
        if pieces.len() > MAX_PIECES || total > room || total == 0 {
            return false;
        }
        let rest = rest(m);
        (&raw mut (*rest).pieces).cast::<Piece>().copy_from_nonoverlapping(pieces.as_ptr(), pieces.len());
        (&raw mut (*rest).len).write(pieces.len() as u32);
        (&raw mut (*rest).dropped).write(false);
        mbuf.pkt_len += total as u32;
        true
    }
}

/// Returns the pieces in the peer's memory.
///
/// # Safety
/// `m` [is borrowed](is_borrowed), and was not settled yet.
#[inline]
unsafe fn pieces<'a>(m: NonNull<sys::rte_mbuf>) -> &'a [Piece] {
    // SAFETY: `borrow` has written the list, which does not change until the mbuf is settled.
    unsafe {
        let rest = rest(m);
        std::slice::from_raw_parts((&raw const (*rest).pieces).cast(), (*rest).len as usize)
    }
}

/// Returns the longest contiguous octets at the start of `range` of the frame. `own` are its octets that are not
/// borrowed.
///
/// # Safety
/// `m` is the live mbuf that `own` lies in. It [is borrowed](is_borrowed), and is not settled while the octets are
/// used.
pub(crate) unsafe fn piece<'a>(m: NonNull<sys::rte_mbuf>, own: &'a [u8], range: Range<usize>) -> Octets<'a> {
    if let Some(octets) = own.get(range.start..range.end.min(own.len())).filter(|octets| !octets.is_empty()) {
        return octets.into();
    }
    let mut start = own.len();
    // SAFETY: as the caller promises.
    for piece in unsafe { pieces(m) } {
        let end = start + piece.len;
        if range.start < end && start <= range.start {
            let (skip, len) = (range.start - start, range.end.min(end).saturating_sub(range.start));
            // SAFETY: within the piece, which is readable until the mbuf is settled.
            return unsafe { Octets::shared(piece.at.add(skip), len) };
        }
        start = end;
    }
    Octets::from(&own[own.len()..])
}

/// Asks the processor to fetch the borrowed octets, at most `lines` cache lines.
///
/// # Safety
/// `m` [is borrowed](is_borrowed), and was not settled yet.
pub(crate) unsafe fn prefetch(m: NonNull<sys::rte_mbuf>, lines: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const LINE: usize = 64;
        // SAFETY: a prefetch never faults.
        let fetch = |at: *const u8| unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
        // SAFETY: as the caller promises.
        let pieces = unsafe { pieces(m) };
        // The first line of each piece is needed soon, because a short piece has the headers of the next FPDU.
        pieces.iter().for_each(|piece| fetch(piece.at));
        let mut left = lines.saturating_sub(pieces.len());
        for piece in pieces {
            let n = (piece.len.div_ceil(LINE) - 1).min(left);
            (1..=n).for_each(|line| fetch(piece.at.wrapping_add(line * LINE)));
            left -= n;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (m, lines);
}

/// Copies the borrowed octets into the mbuf, which then holds the whole frame.
///
/// # Safety
/// `m` is a live mbuf, [is borrowed](is_borrowed), and was not settled yet. No [`Octets`] of it are in use.
#[cold]
pub(crate) unsafe fn keep(mut m: NonNull<sys::rte_mbuf>) {
    // SAFETY: `borrow` has checked that the octets fit. The list lies in the headroom, before the data.
    unsafe {
        let (at, data_len) = (m.as_ref().buf_addr.cast::<u8>(), usize::from(m.as_ref().data_len));
        let mut to = at.add(usize::from(m.as_ref().data_off) + data_len);
        for piece in pieces(m) {
            to.copy_from_nonoverlapping(piece.at, piece.len);
            to = to.add(piece.len);
        }
        let mbuf = m.as_mut();
        mbuf.data_len = mbuf.pkt_len as u16;
    }
}

/// Notes that the frame was dropped. Its mbuf goes back to its pool when it is settled.
///
/// # Safety
/// `m` is a live mbuf, [is borrowed](is_borrowed), and was not settled yet. The caller no longer uses it.
#[inline]
pub(crate) unsafe fn put_down(m: NonNull<sys::rte_mbuf>) {
    // SAFETY: as the caller promises.
    unsafe { (&raw mut (*rest(m)).dropped).write(true) }
}

/// Ends the use of the peer's memory by the frame that was received into `m`: gives the mbuf back if the frame was
/// dropped, and copies the borrowed octets if it is in use. Does nothing if the frame was [copied](keep) before,
/// whether it is in use or not.
///
/// # Safety
/// [`borrow`] was called for `m`, and this was not called since. No [`Octets`] of the frame are in use.
#[inline]
pub(crate) unsafe fn settle(m: NonNull<sys::rte_mbuf>) {
    // SAFETY: the pool of `m` is alive, because the caller receives into it, so `m` can be read even if its frame was
    // copied and dropped. Mbufs in other use are not borrowed.
    unsafe {
        if !is_borrowed(m) {
            return;
        }
        if !(*rest(m)).dropped {
            return keep(m);
        }
        let mbuf = &mut *m.as_ptr();
        mbuf.pkt_len = mbuf.data_len.into();
        pool::give_back(m);
    }
}
