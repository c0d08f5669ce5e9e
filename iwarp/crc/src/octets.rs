//! Octets that may lie in memory which others change meanwhile.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::slice;
use std::sync::atomic::{Ordering, compiler_fence};

/// Contiguous octets to read, either in memory of our own or in memory that is shared with another process.
///
/// The other process may change shared octets at any time, so no slice of them exists. They can only be copied and run
/// through the CRC register. Two reads of the same octet may differ: decide by a copy alone.
#[derive(Clone, Copy)]
pub struct Octets<'a> {
    at: *const u8,
    len: usize,
    is_shared: bool,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Octets<'a> {
    /// Returns the `len` octets at `at`, which others may change.
    ///
    /// # Safety
    /// The octets must be readable during `'a`. No other code of this process may write them meanwhile, except through
    /// raw pointers or atomics.
    #[inline]
    pub const unsafe fn shared(at: *const u8, len: usize) -> Self {
        Octets { at, len, is_shared: true, memory: PhantomData }
    }

    /// Returns the number of octets.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no octets.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the octets themselves if they are in memory of our own; `None` if they are shared.
    #[inline]
    pub const fn own(self) -> Option<&'a [u8]> {
        if self.is_shared {
            return None;
        }
        // SAFETY: octets that are not shared come from a slice with this lifetime.
        Some(unsafe { slice::from_raw_parts(self.at, self.len) })
    }

    /// Returns the octets in `range`; `None` if some of them do not exist.
    #[inline]
    pub fn get(self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        // SAFETY: the start is within the octets, or directly after the last one.
        let at = unsafe { self.at.add(range.start) };
        Some(Octets { at, len: range.end - range.start, ..self })
    }

    /// Copies the first `out.len()` octets, or all if there are fewer. Returns how many it copied.
    #[inline]
    pub fn copy_to(self, out: &mut [u8]) -> usize {
        let len = self.len.min(out.len());
        // SAFETY: both ranges are `len` octets long, and `out` is borrowed for us alone.
        unsafe { self.at.copy_to_nonoverlapping(out.as_mut_ptr(), len) };
        only_the_copy_counts();
        len
    }

    /// Returns a copy of the first `N` octets; `None` if there are fewer.
    #[inline]
    pub fn first_chunk<const N: usize>(self) -> Option<[u8; N]> {
        // SAFETY: the octets are readable. An array of octets needs no alignment.
        let copy = (N <= self.len).then(|| unsafe { self.at.cast::<[u8; N]>().read() });
        only_the_copy_counts();
        copy
    }

    /// Appends a copy of the octets to `out`.
    pub fn append_to(self, out: &mut Vec<u8>) {
        out.reserve(self.len);
        // SAFETY: `out` has reserved room for the octets, which are copied before its length includes them.
        unsafe {
            self.at.copy_to_nonoverlapping(out.as_mut_ptr().add(out.len()), self.len);
            out.set_len(out.len() + self.len);
        }
        only_the_copy_counts();
    }

    /// Asks the processor to fetch the octets.
    #[inline]
    pub fn prefetch(self) {
        #[cfg(target_arch = "x86_64")]
        for at in (0..self.len).step_by(64) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.at.wrapping_add(at).cast()) };
        }
    }

    /// Runs the octets through the CRC register, like [`crc32c`](crate::crc32c). If they change meanwhile, the result
    /// has no meaning.
    #[inline]
    pub fn crc32c(self, state: u32) -> u32 {
        // SAFETY: the octets are readable.
        unsafe { crate::crc32c_at(state, self.at, self.len) }
    }

    /// Copies the octets to `dst` as [`place`](crate::place) does.
    ///
    /// # Safety
    /// `dst` must be writable for `len()` octets, and must not overlap with the octets. Other threads or processes may
    /// access `dst` meanwhile.
    #[inline]
    pub unsafe fn place(self, dst: *mut u8) {
        // SAFETY: the octets are readable; the rest is the caller's promise.
        unsafe { crate::place(dst, self.at, self.len) }
    }
}

impl<'a> From<&'a [u8]> for Octets<'a> {
    #[inline]
    fn from(octets: &'a [u8]) -> Self {
        Octets { at: octets.as_ptr(), len: octets.len(), is_shared: false, memory: PhantomData }
    }
}

/// Octets that this thread may change while the view exists. They count as shared.
impl<'a> From<&'a [Cell<u8>]> for Octets<'a> {
    #[inline]
    fn from(octets: &'a [Cell<u8>]) -> Self {
        // SAFETY: the cells are readable during `'a`, and a cell has the layout of its octet. Neither the cells nor
        // this view can leave the thread, so nothing writes the cells during a read.
        unsafe { Octets::shared(octets.as_ptr().cast(), octets.len()) }
    }
}

impl fmt::Debug for Octets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Octets").field("len", &self.len).field("is_shared", &self.is_shared).finish()
    }
}

/// Keeps the compiler from reading the source of a copy again where the program reads the copy. The compiler may do so
/// as long as nothing may have written the source, and it does not know of the other process.
#[inline(always)]
fn only_the_copy_counts() {
    compiler_fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests;
