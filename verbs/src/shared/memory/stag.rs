//! The form of STags: the upper 24 bits are the scrambled number of a slot of the table; the lower 8 bits are the
//! slot's present key.

/// Number of bits of a slot number in an STag.
pub(super) const INDEX_BITS: u32 = 24;
const MASK: u32 = (1 << INDEX_BITS) - 1;
const HALF: u32 = INDEX_BITS / 2;

/// A secret permutation of the 24-bit numbers. It makes STags hard to predict and spreads them over the whole range
/// (RFC 5040 §8.1.1, SEC-9, SEC-37), and still lets the table find a slot at once.
pub(super) struct StagMap {
    mask: u32,
    multiply: [u32; 2],
    inverse: [u32; 2],
}

impl StagMap {
    pub(super) fn new(random: &mut fastrand::Rng) -> Self {
        let multiply = [random.u32(..) | 1, random.u32(..) | 1];
        Self { mask: random.u32(..) & MASK, multiply, inverse: multiply.map(inverse) }
    }

    /// Returns the STag of `slot` with `key`.
    pub(super) fn stag(&self, slot: u32, key: u8) -> u32 {
        let x = fold((slot & MASK) ^ self.mask);
        let x = fold(x.wrapping_mul(self.multiply[0]) & MASK);
        let x = fold(x.wrapping_mul(self.multiply[1]) & MASK);
        x << 8 | u32::from(key)
    }

    /// Returns an STag that names no slot below `slots`; never 0.
    pub(super) fn beyond(&self, slots: u32, random: &mut fastrand::Rng) -> u32 {
        self.stag(random.u32(slots..=MASK), random.u8(1..))
    }

    /// Returns the slot and the key of `stag`.
    #[inline]
    pub(super) fn slot(&self, stag: u32) -> (u32, u8) {
        let x = fold(stag >> 8);
        let x = fold(x.wrapping_mul(self.inverse[1]) & MASK);
        let x = fold(x.wrapping_mul(self.inverse[0]) & MASK);
        (x ^ self.mask, stag as u8)
    }
}

/// Mixes the upper half into the lower. It is its own inverse.
#[inline]
fn fold(x: u32) -> u32 {
    x ^ (x >> HALF)
}

/// Returns the inverse of an odd number modulo 2^32 (and so modulo 2^24), by Newton's iteration.
fn inverse(odd: u32) -> u32 {
    // At first, `x` is correct in the lowest 3 bits. Each step doubles the number of correct bits.
    let mut x = odd;
    for _ in 0..4 {
        x = x.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(x)));
    }
    x
}
