//! Received frames: an owned mbuf.

use std::ops::{Deref, Range};
use std::ptr::NonNull;

use dpdk_sys as sys;
use urnic_crc::Octets;

use super::{borrowed, pool};

/// A frame with a single owner: received from a port, or assembled by copying parts. Dropping the frame returns its
/// memory to its pool.
///
/// The payload of a frame from a port that [works in place](crate::Port::work_in_place) may be in memory that the
/// peer can change. Then [`data`](Self::data) and all that depends on it have only the frame's headers, until
/// [`keep`](Self::keep) copies the rest.
///
/// Most pools may be used by only one thread at a time, so neither a port nor anything made from its pools is `Send`.
/// An engine moves between threads as a whole, under its lock, so the engine itself is declared `Send`.
#[derive(Debug)]
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

impl Mbuf {
    /// Takes ownership of `m`.
    ///
    /// # Safety
    /// `m` is a single-segment direct mbuf with reference count one, and no other code uses it.
    pub(crate) unsafe fn from_raw(m: NonNull<sys::rte_mbuf>) -> Self {
        Self(m)
    }

    pub(crate) fn into_raw(self) -> NonNull<sys::rte_mbuf> {
        let m = self.0;
        std::mem::forget(self);
        m
    }

    fn raw(&self) -> &sys::rte_mbuf {
        // SAFETY: the mbuf is ours while `self` lives.
        unsafe { self.0.as_ref() }
    }

    /// Returns the frame from its Ethernet header on, without FCS; of a [borrowed](Self::is_borrowed) frame, only the
    /// headers.
    #[inline]
    pub fn data(&self) -> &[u8] {
        let m = self.raw();
        // SAFETY: data_off and data_len describe initialised bytes of this mbuf's buffer, which no other code writes.
        unsafe {
            std::slice::from_raw_parts(m.buf_addr.cast::<u8>().add(m.data_off.into()), m.data_len.into())
        }
    }

    /// Returns the frame for writing, as [`data`](Self::data).
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        let m = self.raw();
        // SAFETY: as in `data`; the mbuf is not shared.
        unsafe {
            std::slice::from_raw_parts_mut(m.buf_addr.cast::<u8>().add(m.data_off.into()), m.data_len.into())
        }
    }

    /// Returns the length of the frame in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.raw().data_len.into()
    }

    /// Returns whether the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the length of the frame in bytes, borrowed ones included.
    #[inline]
    pub fn frame_len(&self) -> usize {
        self.raw().pkt_len as usize
    }

    /// Returns whether the frame's payload is in memory that the peer may change.
    #[inline]
    pub fn is_borrowed(&self) -> bool {
        // SAFETY: the mbuf is ours while `self` lives.
        unsafe { borrowed::is_borrowed(self.0) }
    }

    /// Returns the longest contiguous octets at the start of `range` of the frame; none if the range is empty or begins
    /// after the frame.
    ///
    /// # Safety
    /// The octets may be used only until the port that received the frame receives the next burst.
    #[inline]
    pub unsafe fn piece(&self, range: Range<usize>) -> Octets<'_> {
        let data = self.data();
        if !self.is_borrowed() {
            return data.get(range.start..range.end.min(data.len())).unwrap_or_default().into();
        }
        // SAFETY: the mbuf is ours. It is settled by `keep`, which needs `self` for itself alone, or in the next burst.
        unsafe { borrowed::piece(self.0, data, range) }
    }

    /// Copies what is [borrowed](Self::is_borrowed), so that no other process can change the frame.
    #[inline]
    pub fn keep(&mut self) {
        if self.is_borrowed() {
            // SAFETY: the mbuf is ours, and `self` is borrowed for us alone, so no octets of it are in use.
            unsafe { borrowed::keep(self.0) }
        }
    }

    /// Returns the length of the whole buffer in bytes, headroom included.
    #[inline]
    pub fn buffer_len(&self) -> usize {
        self.raw().buf_len.into()
    }

    /// Returns the number of free bytes after the frame in its buffer.
    pub fn tailroom(&self) -> usize {
        let m = self.raw();
        // What is borrowed needs room too.
        usize::from(m.buf_len) - usize::from(m.data_off) - m.pkt_len as usize
    }

    /// Grows the frame by `n` bytes and returns these, with the buffer's old contents; `None` if they do not fit.
    #[inline]
    pub fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.tailroom() {
            return None;
        }
        let at = self.len();
        // SAFETY: the mbuf is ours alone; n is within the buffer, so fits 16 bits.
        let m = unsafe { self.0.as_mut() };
        m.data_len += n as u16;
        m.pkt_len += n as u32;
        self.data_mut().get_mut(at..)
    }

    /// Shortens the frame to its first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        let len = len.min(self.len());
        // SAFETY: the mbuf is ours alone; len is at most the old length.
        let m = unsafe { self.0.as_mut() };
        m.data_len = len as u16;
        m.pkt_len = len as u32;
    }

    /// Returns whether the TCP checksum needs no check: the frame crossed memory only and its sender left the
    /// checksum unfilled, or the port has verified it.
    #[inline]
    pub fn checksum_trusted(&self) -> bool {
        matches!(self.checksum_flags(), sys::RTE_MBUF_F_RX_L4_CKSUM_GOOD | sys::RTE_MBUF_F_RX_L4_CKSUM_NONE)
    }

    /// Returns the port's verdict on the frame's checksum, as mbuf flags.
    #[inline]
    pub(crate) fn checksum_flags(&self) -> u64 {
        self.raw().ol_flags & sys::RTE_MBUF_F_RX_L4_CKSUM_MASK
    }

    /// Marks the TCP checksum as good. Only for frames that never leave this process, because their checksum field
    /// may be unfilled.
    pub fn trust_checksum(&mut self) {
        // SAFETY: the mbuf is ours alone.
        let flags = unsafe { &mut self.0.as_mut().ol_flags };
        *flags = *flags & !sys::RTE_MBUF_F_RX_L4_CKSUM_MASK | sys::RTE_MBUF_F_RX_L4_CKSUM_GOOD;
    }

    /// Discards the port's verdict on checksums.
    pub(crate) fn distrust_checksum(&mut self) {
        // SAFETY: the mbuf is ours alone.
        unsafe { self.0.as_mut() }.ol_flags &= !sys::RTE_MBUF_F_RX_L4_CKSUM_MASK;
    }

    /// Asks the processor to fetch the whole frame; of a frame longer than 1536 bytes (24 cache lines), only the first
    /// 1536 bytes and the end, because a processor can fetch only a limited number of lines at once.
    #[inline]
    pub fn prefetch_all(&self) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            const LINE: usize = 64;
            const LINES: usize = 24;
            let data = self.data();
            for line in 0..data.len().div_ceil(LINE).min(LINES) {
                // SAFETY: a prefetch never faults.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(data.as_ptr().wrapping_add(line * LINE).cast()) };
            }
            // SAFETY: as above.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(data.as_ptr().wrapping_add(data.len()).cast()) };
            if self.is_borrowed() {
                // SAFETY: the mbuf is ours, and is not settled while `self` lives and no burst is received.
                unsafe { borrowed::prefetch(self.0, LINES) };
            }
        }
    }

    /// Asks the processor to fetch the frame's headers.
    #[inline]
    pub fn prefetch(&self) {
        // SAFETY: the mbuf is ours while `self` lives.
        unsafe { prefetch_data(self.0) }
    }
}

/// Asks the processor to fetch the first two cache lines of an mbuf's data.
///
/// # Safety
/// `m` is a live mbuf.
#[inline]
pub(crate) unsafe fn prefetch_data(m: NonNull<sys::rte_mbuf>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller passes a live mbuf; a prefetch never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let m = m.as_ref();
        let data = m.buf_addr.cast::<i8>().wrapping_add(m.data_off.into());
        _mm_prefetch::<_MM_HINT_T0>(data);
        _mm_prefetch::<_MM_HINT_T0>(data.wrapping_add(64));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = m;
}

/// Prefetches the cache lines of `len` bytes from `start` on for writing. On a memory link, the lines of a frame's
/// buffer are in the cache of the core that read the previous frame from them. If the writing core does not fetch them
/// early, its stores wait for each of them, and the peer sees the new frame late.
#[inline]
pub(crate) fn prefetch_for_writing(start: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..len).step_by(64) {
        let line = start.wrapping_add(line);
        // SAFETY: a prefetch never faults, and on a processor without prefetch for writing the instruction does nothing.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly))
        };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, len);
}

impl Deref for Mbuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.data()
    }
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: ours alone, direct, a single segment, not used afterwards.
        unsafe {
            if borrowed::is_borrowed(self.0) {
                borrowed::put_down(self.0);
            } else {
                pool::give_back(self.0);
            }
        }
    }
}
