//! Time for the stack: an argument, never a clock.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A point in time, in nanoseconds since an origin that the caller chooses. The caller's clock must be monotonic.
///
/// Arithmetic saturates at both ends, so no argument can make it panic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);
    /// Later than every deadline.
    pub const MAX: Time = Time(u64::MAX);

    /// Returns the time `n` nanoseconds after the origin.
    pub const fn from_nanos(n: u64) -> Self {
        Time(n)
    }

    /// Returns the time `n` microseconds after the origin.
    pub const fn from_micros(n: u64) -> Self {
        Time(n.saturating_mul(1_000))
    }

    /// Returns the time `n` milliseconds after the origin.
    pub const fn from_millis(n: u64) -> Self {
        Time(n.saturating_mul(1_000_000))
    }

    /// Returns the time `n` seconds after the origin.
    pub const fn from_secs(n: u64) -> Self {
        Time(n.saturating_mul(1_000_000_000))
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the whole milliseconds since the origin.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Returns the time `n` nanoseconds later.
    #[inline]
    pub(crate) const fn plus(self, n: u64) -> Time {
        Time(self.0.saturating_add(n))
    }

    /// Returns the nanoseconds from `earlier` to this time; zero if this is not later.
    #[inline]
    pub(crate) const fn nanos_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the duration from `earlier` to this time; zero if this is not later.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Returns a duration in nanoseconds. It saturates after 584 years.
fn nanos(d: Duration) -> u64 {
    d.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(d.subsec_nanos()))
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        Time(self.0.saturating_add(nanos(d)))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, d: Duration) -> Time {
        Time(self.0.saturating_sub(nanos(d)))
    }
}

impl Sub for Time {
    type Output = Duration;
    /// Returns the same as [`Time::since`].
    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}
