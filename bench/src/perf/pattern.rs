//! The bytes of a verified message: a function of queue pair, message number and offset.
//!
//! The last byte of a message is the low byte of its number, so that consecutive messages always differ in the byte
//! that a receiver spins on.

/// The numbers that determine the contents of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Index of the queue pair, and the direction if both ends send.
    pub stream: u32,
    /// Number of the message in its stream.
    pub number: u64,
    /// Bytes in the message.
    pub len: usize,
}

impl Message {
    /// Fills `out` with the bytes of the message that start at `offset`.
    pub(super) fn fill(self, offset: usize, out: &mut [u8]) {
        let seed = mix(u64::from(self.stream) << 40 ^ self.number);
        let word = |at: usize| mix(seed.wrapping_add((at / 8) as u64)).to_le_bytes();
        // Fills up to the next word boundary, then whole words, then the rest.
        let (skip, end) = (offset % 8, offset + out.len());
        let ragged = out.len().min((8 - skip) % 8);
        let (head, body) = out.split_at_mut(ragged);
        head.copy_from_slice(&word(offset)[skip..skip + ragged]);
        let start = offset + ragged;
        let mut words = body.chunks_exact_mut(8);
        for (i, chunk) in words.by_ref().enumerate() {
            chunk.copy_from_slice(&word(start + 8 * i));
        }
        let rest = words.into_remainder();
        let len = rest.len();
        rest.copy_from_slice(&word(end - len)[..len]);
        if let Some(last) = self.len.checked_sub(1 + offset).and_then(|at| out.get_mut(at)) {
            *last = self.last_byte();
        }
    }

    /// Returns the byte that arrives last.
    pub(super) fn last_byte(self) -> u8 {
        self.number as u8
    }
}

/// The finaliser of SplitMix64: every input bit reaches every output bit.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests;
