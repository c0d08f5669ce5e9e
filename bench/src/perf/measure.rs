//! The length of a measurement, and its results.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use nix::time::{ClockId, clock_gettime};

use super::options::Amount;

/// Elapsed time: wall-clock time, and CPU time of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lap {
    pub wall: Duration,
    pub cpu: Duration,
    start: Stopwatch,
}

impl Lap {
    /// Returns the time from the start of the earlier lap to the end of the later lap.
    fn join(self, other: Self) -> Self {
        let start = Stopwatch {
            wall: self.start.wall.min(other.start.wall),
            cpu: self.start.cpu.min(other.start.cpu),
        };
        let end = |lap: Self| (lap.start.wall + lap.wall, lap.start.cpu + lap.cpu);
        let ((wall, cpu), (other_wall, other_cpu)) = (end(self), end(other));
        Self { wall: wall.max(other_wall) - start.wall, cpu: cpu.max(other_cpu) - start.cpu, start }
    }
}

/// Measures a [`Lap`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopwatch {
    wall: Instant,
    cpu: Duration,
}

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self { wall: Instant::now(), cpu: cpu_time() }
    }

    pub(super) fn lap(&self) -> Lap {
        Lap { wall: self.wall.elapsed(), cpu: cpu_time().saturating_sub(self.cpu), start: *self }
    }
}

/// Returns the CPU time that this process has used.
pub(super) fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The result of a measurement.
pub(super) struct Outcome {
    /// Messages after the warm-up.
    pub messages: u64,
    /// Time that these messages took.
    pub lap: Lap,
    /// Histogram of latencies in ns; `None` if messages were not timed one by one.
    pub histogram: Option<Histogram<u64>>,
    /// Rate of the load beside the measurement, in Gbit/s of payload.
    pub beside_gbit_s: f64,
}

impl Outcome {
    /// Combines the results of two threads that measured at the same time: all messages, and the time from the first
    /// start to the last end.
    pub(super) fn join(self, other: Self) -> Self {
        let histogram = match (self.histogram, other.histogram) {
            (Some(mut all), Some(one)) => {
                // Adding cannot fail, because both histograms have the same bounds.
                let _ = all.add(one);
                Some(all)
            }
            (one, other) => one.or(other),
        };
        Self {
            messages: self.messages + other.messages,
            lap: self.lap.join(other.lap),
            histogram,
            beside_gbit_s: self.beside_gbit_s + other.beside_gbit_s,
        }
    }
}

/// Makes a histogram of nanoseconds up to a minute.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are right")
}

/// The length of a measurement, and its progress.
///
/// The first messages are a warm-up: a tenth of the messages or of the time, at most a thousand messages. There is no
/// warm-up if more than an eighth of the messages to measure can be in flight at once.
pub(super) struct Extent {
    amount: Amount,
    started: Option<Instant>,
    /// Number of messages of the warm-up, which do not count; `None` until it is known.
    warmup: Option<u64>,
    expired: bool,
    calls: u64,
    bar: Option<ProgressBar>,
    shown: Instant,
}

/// Messages, or calls of [`Extent::has_time`], between two readings of the clock; a power of two.
const CLOCK_EVERY: u64 = 16;
const MAX_WARMUP: u64 = 1000;

impl Extent {
    /// Begins a measurement. `bar`: show progress on stderr, if that is a terminal.
    pub(super) fn new(amount: Amount, bar: bool) -> Self {
        let bar = bar.then(|| {
            let (len, template) = match amount {
                Amount::Iters(n) => (n, "{bar:40} {pos}/{len} {elapsed}"),
                Amount::Seconds(s) => ((s * 1e3) as u64, "{bar:40} {elapsed}"),
            };
            // Draws nothing if stderr is not a terminal.
            let bar = ProgressBar::new(len);
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar
        });
        let warmup = match amount {
            Amount::Iters(n) => Some((n / 10).min(MAX_WARMUP)),
            Amount::Seconds(_) => None,
        };
        Self { amount, started: None, warmup, expired: false, calls: 0, bar, shown: Instant::now() }
    }

    /// Adapts the warm-up to `in_flight`, the maximum number of outstanding messages.
    pub(super) fn with_depth(mut self, in_flight: u64) -> Self {
        if matches!(self.amount, Amount::Iters(n) if n < 8 * in_flight) {
            self.warmup = Some(0);
        }
        self
    }

    /// Returns the number of all messages, warm-up included; `None` if it is not known in advance.
    pub(super) fn total(&self) -> Option<u64> {
        match self.amount {
            Amount::Iters(n) => Some(n + self.warmup.unwrap_or(0)),
            Amount::Seconds(_) => None,
        }
    }

    /// Returns the number of messages by which `done` exceeds the warm-up. A caller that begins to count after
    /// `done` messages must send this number of messages in addition to [`Self::total`]. Returns 0 if the
    /// measurement has a length in seconds.
    pub(super) fn excess(&self, done: u64) -> u64 {
        match self.amount {
            Amount::Iters(_) => done.saturating_sub(self.warmup.unwrap_or(done)),
            Amount::Seconds(_) => 0,
        }
    }

    /// Returns whether the message after the first `done` messages counts, because the warm-up is over.
    #[inline]
    pub(super) fn counts(&self, done: u64) -> bool {
        self.warmup.is_some_and(|warmup| done >= warmup)
    }

    /// Returns whether the measurement goes on after `done` messages.
    #[inline]
    pub(super) fn goes_on(&mut self, done: u64) -> bool {
        if done.is_multiple_of(CLOCK_EVERY) {
            self.look(done);
        }
        !self.expired && self.total().is_none_or(|total| done < total)
    }

    /// Returns whether time is left after `done` messages. Unlike [`Self::goes_on`], reads the clock at every
    /// [`CLOCK_EVERY`]th call, because `done` may skip multiples of that number when many messages complete at once.
    #[inline]
    pub(super) fn has_time(&mut self, done: u64) -> bool {
        self.calls += 1;
        if self.calls.is_multiple_of(CLOCK_EVERY) {
            self.look(done);
        }
        !self.expired
    }

    /// Reads the clock. Even if messages are slow, at least one message counts.
    fn look(&mut self, done: u64) {
        let now = Instant::now();
        let elapsed = now.duration_since(*self.started.get_or_insert(now));
        if let Amount::Seconds(seconds) = self.amount {
            if self.warmup.is_none() && (done >= MAX_WARMUP || elapsed.as_secs_f64() >= seconds / 10.0) {
                self.warmup = Some(done);
            }
            self.expired =
                elapsed.as_secs_f64() >= seconds && self.warmup.is_some_and(|warmup| done > warmup);
        }
        if let Some(bar) = &self.bar
            && now.duration_since(self.shown) > Duration::from_millis(100)
        {
            self.shown = now;
            bar.set_position(match self.amount {
                Amount::Iters(_) => done,
                Amount::Seconds(_) => elapsed.as_millis() as u64,
            });
        }
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Counts the messages after the warm-up, and times them.
pub(super) struct Counted {
    watch: Stopwatch,
    /// Number of messages before the first that counts; `None` until messages count.
    before: Option<u64>,
}

impl Counted {
    pub(super) fn new() -> Self {
        Self { watch: Stopwatch::start(), before: None }
    }

    /// Returns whether messages count already.
    #[inline]
    pub(super) fn started(&self) -> bool {
        self.before.is_some()
    }

    /// Notes that `done` messages are done, and returns whether the next message counts. Callers must call this after
    /// every message, or at short intervals.
    #[inline]
    pub(super) fn after(&mut self, done: u64, extent: &Extent) -> bool {
        if self.before.is_none() && extent.counts(done) {
            self.before = Some(done);
            self.watch = Stopwatch::start();
        }
        self.before.is_some()
    }

    /// Returns the result, after `done` messages.
    pub(super) fn outcome(&self, done: u64, histogram: Option<Histogram<u64>>) -> Outcome {
        let messages = done - self.before.unwrap_or(0).min(done);
        Outcome { messages, lap: self.watch.lap(), histogram, beside_gbit_s: 0.0 }
    }
}

#[cfg(test)]
mod tests;
