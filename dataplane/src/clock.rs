//! Time for the poll loop: the time-stamp counter, in nanoseconds.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// A monotonic clock that costs a few nanoseconds to read. Copies agree; the origin is that of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The counter's calibration; `None`: the counter is unusable, and the kernel's clock is read.
    tsc: Option<Tsc>,
}

#[derive(Clone, Copy, Debug)]
struct Tsc {
    /// Counter at the end of the calibration.
    ticks: u64,
    /// Nanoseconds since the origin at the end of the calibration.
    nanos: u64,
    /// Nanoseconds of one tick, times 2^32.
    scale: u64,
}

impl Clock {
    /// Calibrates the counter against the kernel's clock, for about ten milliseconds. If the processor does not promise
    /// a constant rate, the clock reads the kernel's clock instead.
    pub fn calibrate() -> Self {
        Self { tsc: invariant_tsc().then(measure).flatten() }
    }

    /// Returns a clock that reads the kernel's clock.
    pub fn system() -> Self {
        Self { tsc: None }
    }

    /// Returns the nanoseconds since the origin.
    #[inline]
    pub fn now(&self) -> u64 {
        match self.tsc {
            Some(tsc) => {
                let ticks = u128::from(ticks().saturating_sub(tsc.ticks));
                tsc.nanos + ((ticks * u128::from(tsc.scale)) >> 32) as u64
            }
            None => kernel_nanos(),
        }
    }

    /// Returns whether the counter is used.
    pub fn uses_tsc(&self) -> bool {
        self.tsc.is_some()
    }
}

fn kernel_nanos() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |t| (t.tv_sec() as u64) * 1_000_000_000 + t.tv_nsec() as u64)
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "x86_64")]
fn invariant_tsc() -> bool {
    use std::arch::x86_64::__cpuid;
    const ADVANCED_POWER: u32 = 0x8000_0007;
    __cpuid(0x8000_0000).eax >= ADVANCED_POWER && __cpuid(ADVANCED_POWER).edx & (1 << 8) != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

#[cfg(not(target_arch = "x86_64"))]
fn invariant_tsc() -> bool {
    false
}

/// Reads the counter and the kernel's time at nearly the same moment: the fastest of several tries.
fn pair() -> (u64, u64) {
    let tries = (0..16).map(|_| {
        let before = ticks();
        let nanos = kernel_nanos();
        let after = ticks();
        (after.wrapping_sub(before), before.wrapping_add(after.wrapping_sub(before) / 2), nanos)
    });
    tries.min_by_key(|t| t.0).map_or((0, 0), |(_, ticks, nanos)| (ticks, nanos))
}

fn measure() -> Option<Tsc> {
    let (from_ticks, from_nanos) = pair();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(10) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let (ticks, nanos) = pair();
    let elapsed = u128::from(nanos.checked_sub(from_nanos)?) << 32;
    let scale = u64::try_from(elapsed.checked_div(u128::from(ticks.checked_sub(from_ticks)?))?).ok()?;
    (scale > 0).then_some(Tsc { ticks, nanos, scale })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_kernel() {
        for clock in [Clock::calibrate(), Clock::system()] {
            let before = kernel_nanos();
            let mut last = clock.now();
            // Error, in ns, of a calibration of 10 ms, plus the error of one pair of readings.
            let tolerance = 100_000;
            assert!(last + tolerance >= before, "{last} {before}");
            for _ in 0..10_000 {
                let now = clock.now();
                assert!(now >= last, "runs backwards");
                last = now;
            }
            assert!(last <= kernel_nanos() + tolerance);
        }
    }
}
