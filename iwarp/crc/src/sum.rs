//! Arithmetic of the Internet checksum (RFC 1071).

/// Returns the sum of two adjacent pieces. `sum_a` covers the first `len_a` bytes, and `sum_b` covers the bytes after
/// them. Both were computed as if their bytes began at an even offset.
#[inline]
pub const fn combine(sum_a: u16, len_a: usize, sum_b: u16) -> u16 {
    let sum_b = if len_a % 2 == 1 { sum_b.swap_bytes() } else { sum_b };
    let (s, carry) = sum_a.overflowing_add(sum_b);
    s + carry as u16
}

/// Adds with end-around carry.
#[inline(always)]
pub(crate) fn add(acc: u64, word: u64) -> u64 {
    let (s, carry) = acc.overflowing_add(word);
    s + u64::from(carry)
}

/// Folds an accumulator of little-endian words into the network-order sum.
#[inline(always)]
pub(crate) fn fold(acc: u64) -> u16 {
    let a = (acc >> 32) + (acc & 0xffff_ffff);
    let a = (a >> 32) + (a & 0xffff_ffff);
    let a = (a >> 16) + (a & 0xffff);
    let a = (a >> 16) + (a & 0xffff);
    (((a >> 16) + (a & 0xffff)) as u16).swap_bytes()
}
