//! Pacing: what the window lets go is spread over the round trip (RFC 9002 §7.7 has the same formula; RFC 7661 and
//! RFC 6928 recommend it). Off by default: it waits where sending at once would be right on a short, quiet path.

use super::Connection;
use crate::buffers::Buffers;
use crate::time::Time;
use core::time::Duration;

/// How much may go at once: what the rate lets go in this time, which is also about what the timer can tell apart.
const QUANTUM: Duration = Duration::from_micros(64);

impl<B: Buffers> Connection<B> {
    /// Octets per second, once a round trip was measured: twice the window per round trip in slow start, so that it can
    /// double, a little more than the window afterwards.
    pub(super) fn pacing_rate(&self) -> Option<u64> {
        let c = &self.cold;
        if let Some(rate) = c.congestion.pacing_rate() {
            return Some(rate.max(1));
        }
        let srtt = c.rtt.srtt()?.as_nanos().max(1);
        let percent = if c.congestion.in_slow_start() { 200 } else { 125 };
        let rate = u128::from(c.congestion.cwnd()) * 10_000_000 * percent / srtt;
        Some(u64::try_from(rate).unwrap_or(u64::MAX).max(1))
    }

    /// The next segment has to wait; then the timer is set.
    pub(super) fn must_wait(&mut self, now: Time, pipe: u32) -> bool {
        let c = &mut self.cold;
        if c.paced_until <= now + QUANTUM {
            return false;
        }
        c.pace_at = c.paced_until - QUANTUM;
        self.timed = true;
        // It is the window that sets the pace.
        c.cwnd_limited = pipe >= c.congestion.cwnd() / 2;
        true
    }

    /// `octets` were sent.
    pub(super) fn pace(&mut self, now: Time, octets: u32) {
        let Some(rate) = self.pacing_rate() else { return };
        let time = u64::from(octets).saturating_mul(1_000_000_000) / rate;
        let c = &mut self.cold;
        c.paced_until = c.paced_until.max(now) + Duration::from_nanos(time);
    }
}
