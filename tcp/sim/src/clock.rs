use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A clock that moves only when a caller moves it. Clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct SimClock {
    now: Arc<AtomicU64>,
}

impl SimClock {
    /// Makes a clock that shows `now` nanoseconds.
    pub fn new(now: u64) -> Self {
        SimClock { now: Arc::new(AtomicU64::new(now)) }
    }

    /// Returns the time in nanoseconds.
    pub fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Moves the clock to `time`. A time in the past leaves the clock as it is.
    pub fn advance_to(&self, time: u64) {
        self.now.fetch_max(time, Ordering::Relaxed);
    }

    /// Moves the clock by `nanoseconds`.
    pub fn advance_by(&self, nanoseconds: u64) {
        self.now.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}
