//! The Internet checksum (RFC 1071), portable and without unsafe code.
//!
//! Sums here are one's-complement sums of big-endian 16-bit words, folded to 16 bits and **not** complemented.
//! [`checksum`] complements. A sum starts as if at an even offset; [`combine`] joins sums of neighbouring pieces
//! of any length.

#[cfg(test)]
mod tests;

/// One's-complement sum of `data`; a last odd byte counts as the high half of a word.
pub fn sum(data: &[u8]) -> u16 {
    // Words of native order are summed and swapped once at the end (RFC 1071 §2 B). Eight bytes at a time are split
    // into two 32-bit halves, so 64-bit accumulators cannot overflow for any slice shorter than 2^34 bytes.
    let mut lanes = [0u64; 4];
    let mut blocks = data.chunks_exact(32);
    for block in &mut blocks {
        for (lane, eight) in lanes.iter_mut().zip(block.chunks_exact(8)) {
            let v = match eight.first_chunk::<8>() {
                Some(b) => u64::from_ne_bytes(*b),
                None => 0,
            };
            *lane += (v & 0xffff_ffff) + (v >> 32);
        }
    }
    let mut total = fold32(lanes[0]) + fold32(lanes[1]) + fold32(lanes[2]) + fold32(lanes[3]);
    let mut words = blocks.remainder().chunks_exact(2);
    for w in &mut words {
        if let Some(b) = w.first_chunk::<2>() {
            total += u64::from(u16::from_ne_bytes(*b));
        }
    }
    if let [last] = words.remainder() {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    fold(total).to_be()
}

/// The end-around-carry sum of the two 32-bit halves.
fn fold32(v: u64) -> u64 {
    (v & 0xffff_ffff) + (v >> 32)
}

/// Folds a wide sum to 16 bits with end-around carries.
pub fn fold(mut v: u64) -> u16 {
    v = (v & 0xffff_ffff) + (v >> 32);
    v = (v & 0xffff_ffff) + (v >> 32);
    v = (v & 0xffff) + (v >> 16);
    v = (v & 0xffff) + (v >> 16);
    v as u16
}

/// One's-complement addition.
pub fn add(a: u16, b: u16) -> u16 {
    let (s, carry) = a.overflowing_add(b);
    s + u16::from(carry)
}

/// Sum of `a` followed by `b`, where `a` is the sum of `a_len` bytes and `b` was taken as if it began at an even
/// offset: at an odd one its bytes are swapped (RFC 1071 §2 B).
pub fn combine(a: u16, a_len: usize, b: u16) -> u16 {
    add(a, if a_len.is_multiple_of(2) { b } else { b.swap_bytes() })
}

/// The sum of a TCP pseudo-header over IPv4 (RFC 9293 §3.1): addresses, protocol and TCP length (header and data).
pub fn pseudo_header_v4(src: [u8; 4], dst: [u8; 4], protocol: u8, len: usize) -> u16 {
    let a = u64::from(u32::from_be_bytes(src)) + u64::from(u32::from_be_bytes(dst));
    fold(a + u64::from(protocol) + len as u64)
}

/// The value of a checksum field: the complement of the sum of everything it covers (with the field itself zero).
pub fn checksum(sum: u16) -> u16 {
    !sum
}
