use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A clock that only moves when told to. Clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct SimClock {
    now: Arc<AtomicU64>,
}

impl SimClock {
    /// A clock that shows `now` nanoseconds.
    pub fn new(now: u64) -> Self {
        SimClock { now: Arc::new(AtomicU64::new(now)) }
    }

    /// The time in nanoseconds.
    pub fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Moves the clock to `time`; a time in the past leaves it where it is.
    pub fn advance_to(&self, time: u64) {
        self.now.fetch_max(time, Ordering::Relaxed);
    }

    /// Moves the clock by `nanoseconds`.
    pub fn advance_by(&self, nanoseconds: u64) {
        self.now.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}
