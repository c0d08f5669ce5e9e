//! The Internet checksum (RFC 1071), portable and without unsafe code.
//!
//! Sums here are one's-complement sums of big-endian 16-bit words, folded to 16 bits and **not** complemented. Only
//! [`checksum`] complements. A sum is computed as if its data started at an even offset; [`combine`] joins the sums
//! of adjacent pieces of any length.

#[cfg(test)]
mod tests;

/// Returns the one's-complement sum of `data`. A last odd octet counts as the high half of a word.
pub fn sum(data: &[u8]) -> u16 {
    // Sums words in native order, several at a time, and swaps the result once at the end. This is correct because
    // carries come in again at the other end, whatever the width (RFC 1071 §2 A, B and C).
    let (blocks, rest) = data.as_chunks::<128>();
    let acc = blocks.iter().fold(0, add_block);
    let (mut acc, mut rest) = (acc, rest);
    acc = add_first::<64>(acc, &mut rest);
    acc = add_first::<32>(acc, &mut rest);
    acc = add_first::<16>(acc, &mut rest);
    acc = add_first::<8>(acc, &mut rest);
    let mut last = 0;
    if let Some((four, after)) = rest.split_first_chunk() {
        last += u64::from(u32::from_ne_bytes(*four));
        rest = after;
    }
    if let Some((two, after)) = rest.split_first_chunk() {
        last += u64::from(u16::from_ne_bytes(*two));
        rest = after;
    }
    if let [one] = rest {
        last += u64::from(u16::from_ne_bytes([*one, 0]));
    }
    fold(add64(acc, last)).to_be()
}

/// Takes a block from the front of `rest` and adds it, if `rest` is long enough.
#[inline(always)]
fn add_first<const N: usize>(acc: u64, rest: &mut &[u8]) -> u64 {
    match rest.split_first_chunk::<N>() {
        Some((block, after)) => {
            *rest = after;
            add_block(acc, block)
        }
        None => acc,
    }
}

/// Returns the sum of a short header of whole words.
#[inline]
pub(crate) fn sum_of<const N: usize>(header: &[u8; N]) -> u16 {
    const { assert!(N.is_multiple_of(4) && N <= 64) };
    let (words, _) = header.as_chunks::<4>();
    fold(words.iter().map(|w| u64::from(u32::from_ne_bytes(*w))).sum()).to_be()
}

/// Adds the words of a block, with one instruction each where the processor has add-with-carry.
#[inline]
fn add_block<const N: usize>(acc: u64, block: &[u8; N]) -> u64 {
    let (words, _) = block.as_chunks::<8>();
    let (mut acc, mut carry) = (acc, false);
    for word in words {
        let (sum, first) = acc.overflowing_add(u64::from_ne_bytes(*word));
        let (sum, second) = sum.overflowing_add(u64::from(carry));
        (acc, carry) = (sum, first | second);
    }
    add64(acc, u64::from(carry))
}

#[inline]
fn add64(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u64::from(carry)
}

/// Folds a wide sum to 16 bits with end-around carries.
#[inline]
pub fn fold(v: u64) -> u16 {
    // Both halves of the sum of `v` and its rotation are the sum of the two halves of `v`. The lower half carries into
    // the upper half, and this carry is the end-around carry that the upper half needs.
    let v = (v.wrapping_add(v.rotate_left(32)) >> 32) as u32;
    (v.wrapping_add(v.rotate_left(16)) >> 16) as u16
}

/// Adds two sums in one's complement.
#[inline]
pub fn add(a: u16, b: u16) -> u16 {
    let (s, carry) = a.overflowing_add(b);
    s + u16::from(carry)
}

/// Returns the sum of two adjacent pieces. `a` is the sum of the first `a_len` octets. `b` was computed as if its
/// piece began at an even offset, so its octets are swapped if `a_len` is odd (RFC 1071 §2 B).
#[inline]
pub fn combine(a: u16, a_len: usize, b: u16) -> u16 {
    add(a, if a_len.is_multiple_of(2) { b } else { b.swap_bytes() })
}

/// Returns the sum of a TCP pseudo-header over IPv4 (RFC 9293 §3.1): addresses, protocol, and TCP length (header and
/// data).
#[inline]
pub fn pseudo_header_v4(src: [u8; 4], dst: [u8; 4], protocol: u8, len: usize) -> u16 {
    let a = u64::from(u32::from_be_bytes(src)) + u64::from(u32::from_be_bytes(dst));
    fold(a + u64::from(protocol) + len as u64)
}

/// Returns the value of a checksum field: the complement of the sum of everything that it covers, with the field
/// itself zero.
pub fn checksum(sum: u16) -> u16 {
    !sum
}
