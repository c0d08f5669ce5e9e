//! TCP sequence numbers: 32 bits that wrap (RFC 9293 §3.4).

use core::ops::{Add, AddAssign, Sub};

/// A sequence number. The order is circular, so the type does not implement `Ord`. Comparisons hold only for numbers
/// less than 2³¹ apart. All windows are small enough for that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

impl Seq {
    /// Returns whether `self` comes before `other`.
    #[inline]
    pub const fn lt(self, other: Seq) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Returns whether `self` comes before `other` or equals it.
    #[inline]
    pub const fn le(self, other: Seq) -> bool {
        (self.0.wrapping_sub(other.0) as i32) <= 0
    }

    /// Returns whether `self` comes after `other`.
    #[inline]
    pub const fn gt(self, other: Seq) -> bool {
        other.lt(self)
    }

    /// Returns whether `self` comes after `other` or equals it.
    #[inline]
    pub const fn ge(self, other: Seq) -> bool {
        other.le(self)
    }

    /// Returns the later of the two.
    #[inline]
    pub const fn max(self, other: Seq) -> Seq {
        if self.lt(other) { other } else { self }
    }

    /// Returns the earlier of the two.
    #[inline]
    pub const fn min(self, other: Seq) -> Seq {
        if self.lt(other) { self } else { other }
    }

    /// Returns the number of octets from `start` up to `self`, modulo 2^32. To compare sequence numbers that a peer may
    /// have chosen at will, compare their offsets from the same `start`, because `lt` and the like hold only for
    /// numbers less than 2^31 apart.
    #[inline]
    pub const fn offset_from(self, start: Seq) -> u32 {
        self.0.wrapping_sub(start.0)
    }

    /// Returns the octets from `earlier` up to `self`; zero if `self` comes first.
    #[inline]
    pub const fn since(self, earlier: Seq) -> u32 {
        if self.lt(earlier) { 0 } else { self.0.wrapping_sub(earlier.0) }
    }
}

impl Add<u32> for Seq {
    type Output = Seq;

    #[inline]
    fn add(self, n: u32) -> Seq {
        Seq(self.0.wrapping_add(n))
    }
}

impl AddAssign<u32> for Seq {
    #[inline]
    fn add_assign(&mut self, n: u32) {
        self.0 = self.0.wrapping_add(n);
    }
}

impl Sub<u32> for Seq {
    type Output = Seq;

    #[inline]
    fn sub(self, n: u32) -> Seq {
        Seq(self.0.wrapping_sub(n))
    }
}

/// Returns the circular distance from `rhs` to `self`.
impl Sub for Seq {
    type Output = u32;

    #[inline]
    fn sub(self, rhs: Seq) -> u32 {
        self.0.wrapping_sub(rhs.0)
    }
}

#[cfg(test)]
mod tests;
