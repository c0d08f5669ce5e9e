//! Copies from and to memory that others may write at the same time: volatile, in ascending order, each byte once.

const WORD: usize = size_of::<u64>();

/// Copies `src` to `to`.
///
/// # Safety
/// `to` is valid for writing `src.len()` bytes and does not overlap `src`.
pub(crate) unsafe fn write(to: *mut u8, src: &[u8]) {
    let head = to.align_offset(WORD).min(src.len());
    let (first, rest) = src.split_at(head);
    let (words, last) = rest.as_chunks::<WORD>();
    let mut at = to;
    // SAFETY: `at` ascends through the src.len() valid bytes; words are written only where it is aligned.
    unsafe {
        for byte in first {
            at.write_volatile(*byte);
            at = at.add(1);
        }
        for word in words {
            at.cast::<u64>().write_volatile(u64::from_ne_bytes(*word));
            at = at.add(WORD);
        }
        for byte in last {
            at.write_volatile(*byte);
            at = at.add(1);
        }
    }
}

/// Copies from `from` to `dst`.
///
/// # Safety
/// `from` is valid for reading `dst.len()` bytes and does not overlap `dst`.
pub(crate) unsafe fn read(from: *const u8, dst: &mut [u8]) {
    let head = from.align_offset(WORD).min(dst.len());
    let (first, rest) = dst.split_at_mut(head);
    let (words, last) = rest.as_chunks_mut::<WORD>();
    let mut at = from;
    // SAFETY: `at` ascends through the dst.len() valid bytes; words are read only where it is aligned.
    unsafe {
        for byte in first {
            *byte = at.read_volatile();
            at = at.add(1);
        }
        for word in words {
            *word = at.cast::<u64>().read_volatile().to_ne_bytes();
            at = at.add(WORD);
        }
        for byte in last {
            *byte = at.read_volatile();
            at = at.add(1);
        }
    }
}
