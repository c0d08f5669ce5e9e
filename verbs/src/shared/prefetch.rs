//! Asks the processor for memory before it is needed.

/// Prefetches the cache lines of `bytes` bytes from `start` on. If `start` is not at the start of a line, the
/// last line may be left out. Any address is allowed, because a prefetch reads nothing. Does nothing on
/// processors other than x86-64.
#[inline]
pub(crate) fn prefetch<T>(start: *const T, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.cast::<i8>().wrapping_add(line)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes);
}

/// Prefetches the cache line at `place` into this core's cache, and takes it away from the caches of other cores, so
/// that a store does not have to wait for the line. Any address is allowed, because a prefetch reads and writes
/// nothing. Does nothing on processors other than x86-64.
#[inline]
pub(crate) fn prefetch_for_writing<T>(place: *const T) {
    // `_mm_prefetch` becomes PREFETCHW only in programs that are compiled for processors with that instruction. In
    // others it fetches the line for reading. Processors of x86-64 without the instruction ignore it.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
