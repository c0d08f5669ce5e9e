//! The clock of an engine.

use std::time::Instant;
use urnic_tcp::Time;

/// A clock that never goes back.
pub trait Clock: Clone + Send + Sync + 'static {
    /// Returns the present time.
    fn now(&self) -> Time;
}

/// The system's monotonic clock, as time since this `Watch` was made.
#[derive(Clone, Debug)]
pub struct Watch(Instant);

impl Watch {
    /// Makes a clock that reads zero now.
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for Watch {
    fn now(&self) -> Time {
        Time(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Clock for urnic_dataplane::Clock {
    #[inline]
    fn now(&self) -> Time {
        Time(urnic_dataplane::Clock::now(self))
    }
}

impl Clock for urnic_sim::SimClock {
    fn now(&self) -> Time {
        Time(urnic_sim::SimClock::now(self))
    }
}
