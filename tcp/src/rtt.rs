//! Round-trip time and retransmission timeout (RFC 6298).

use core::time::Duration;

#[cfg(test)]
mod tests;

/// Limits and start values of the estimator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RttConfig {
    /// RTO before the first measurement (RFC 6298 (2.1): 1 s).
    pub initial: Duration,
    /// Lower limit of the RTO. RFC 6298 (2.4) asks for 1 s; data centre networks use far less.
    pub min: Duration,
    /// Upper limit of the RTO, with backoff as well (RFC 6298 (2.5): at least 60 s).
    pub max: Duration,
}

impl Default for RttConfig {
    fn default() -> Self {
        RttConfig {
            initial: Duration::from_secs(1),
            min: Duration::from_millis(200),
            max: Duration::from_secs(60),
        }
    }
}

/// Clock granularity (G in RFC 6298), in nanoseconds: a tick of the timer wheel.
const GRANULARITY: u64 = 1 << 14;
/// Upper limit of measurements and of configured times, in nanoseconds: about 73 minutes. Longer measurements are
/// meaningless, and the limit keeps the arithmetic far from overflow.
const LONGEST: u64 = 1 << 42;

/// Samples in a period. The minimum round-trip time covers the present and the last period, so a sample counts for at
/// least one period and at most two.
const PERIOD: u16 = 4096;

/// SRTT, RTTVAR and the RTO with its backoff. Takes 64 octets; times are in nanoseconds.
///
/// The caller must follow Karn's rule (RFC 6298 §3): never [`sample`](Self::sample) a segment that was sent twice,
/// except by the timestamp that its ACK echoes.
#[derive(Clone, Debug)]
pub struct RttEstimator {
    srtt: u64,
    rttvar: u64,
    /// RTO without backoff.
    rto: u64,
    min: u64,
    max: u64,
    backoff: u8,
    measured: bool,
    /// Samples in the present period.
    samples: u16,
    /// Minimum of the present and the last period.
    least: u64,
    /// Minimum of the present period.
    least_now: u64,
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX).min(LONGEST)
}

impl RttEstimator {
    /// Makes an estimator without a measurement.
    pub fn new(config: &RttConfig) -> Self {
        let min = nanos(config.min).max(1);
        let max = nanos(config.max).max(min);
        RttEstimator {
            srtt: 0,
            rttvar: 0,
            rto: nanos(config.initial).clamp(min, max),
            min,
            max,
            backoff: 0,
            measured: false,
            samples: 0,
            least: u64::MAX,
            least_now: u64::MAX,
        }
    }

    /// Takes one measurement R' (RFC 6298 (2.2), (2.3)), and ends backoff (§5, after (5.7)). Call this once per round
    /// trip, because more samples would shorten the memory of the averages (RFC 7323 appendix G).
    pub fn sample(&mut self, rtt: Duration) {
        self.sample_nanos(nanos(rtt));
    }

    /// Does the work of [`sample`](Self::sample), for a round-trip time in nanoseconds.
    pub(crate) fn sample_nanos(&mut self, rtt: u64) {
        let r = rtt.clamp(1, LONGEST);
        if self.measured {
            // Moves by 1/4 and 1/8 of the difference. Shifts are used because this is done for every answer of a
            // ping-pong.
            let toward = |from: u64, to: u64, shift: u32| {
                if to >= from { from + ((to - from) >> shift) } else { from - ((from - to) >> shift) }
            };
            self.rttvar = toward(self.rttvar, self.srtt.abs_diff(r), 2);
            self.srtt = toward(self.srtt, r, 3);
        } else {
            self.srtt = r;
            self.rttvar = r / 2;
            self.measured = true;
        }
        self.rto = (self.srtt + GRANULARITY.max(4 * self.rttvar)).clamp(self.min, self.max);
        self.samples += 1;
        if self.samples == PERIOD {
            (self.samples, self.least, self.least_now) = (0, self.least_now, u64::MAX);
        }
        self.backoff = 0;
        self.least_now = self.least_now.min(r);
        self.least = self.least.min(r);
    }

    /// Returns the minimum round-trip time of the recent past; zero before the first measurement.
    pub fn min_rtt(&self) -> Duration {
        Duration::from_nanos(if self.measured { self.least } else { 0 })
    }

    /// Corrects the RTO after the timer expired although nothing was lost: the variation was underestimated
    /// (RFC 4015 §3.6).
    pub fn after_spurious_timeout(&mut self) {
        self.rttvar = self.rttvar.max(self.srtt / 2);
        self.rto = (self.srtt + GRANULARITY.max(4 * self.rttvar)).clamp(self.min, self.max);
    }

    /// Returns the present retransmission timeout, with backoff.
    pub fn rto(&self) -> Duration {
        Duration::from_nanos(self.rto_nanos())
    }

    /// Returns [`rto`](Self::rto) in nanoseconds, for uses per segment.
    #[inline]
    pub(crate) fn rto_nanos(&self) -> u64 {
        (self.rto << self.backoff).min(self.max)
    }

    /// Returns [`srtt`](Self::srtt) in nanoseconds.
    #[inline]
    pub(crate) fn srtt_nanos(&self) -> Option<u64> {
        self.measured.then_some(self.srtt)
    }

    /// Doubles the timeout after the timer expired (RFC 6298 (5.5)), up to the maximum.
    pub fn back_off(&mut self) {
        if (self.rto << self.backoff) < self.max {
            self.backoff += 1;
        }
    }

    /// Returns how often the timeout was doubled since the last measurement.
    pub fn backoff(&self) -> u8 {
        self.backoff
    }

    /// Sets the RTO for data after a handshake whose SYN was repeated: 3 s (RFC 6298 (5.7)), or the configured
    /// initial RTO if that is longer. Has no effect after a measurement.
    pub fn syn_was_lost(&mut self) {
        if !self.measured {
            self.rto = self.rto.max(3_000_000_000).min(self.max);
            self.backoff = 0;
        }
    }

    /// Returns the smoothed round-trip time; `None` before the first measurement.
    pub fn srtt(&self) -> Option<Duration> {
        self.measured.then(|| Duration::from_nanos(self.srtt))
    }

    /// Returns the variation RTTVAR; zero before the first measurement.
    pub fn rttvar(&self) -> Duration {
        Duration::from_nanos(self.rttvar)
    }
}
