//! Pacing: spreads the data that the window allows over the round trip (RFC 9002 §7.7 has the same formula; RFC
//! 7661 recommends pacing). Off by default, because on a short, quiet path it delays segments that could leave
//! at once.

use super::Connection;
use crate::buffers::Buffers;
use crate::time::Time;
use core::time::Duration;

/// Sending time of a burst at the pacing rate: about four ticks of the timer wheel.
const QUANTUM: Duration = Duration::from_micros(64);

impl<B: Buffers> Connection<B> {
    /// Returns the pacing rate in octets per second; `None` before a round trip was measured. In slow start it is two
    /// windows per round trip, so that the window can double; afterwards it is a little more than one.
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

    /// Returns whether the next segment must wait. If so, sets the timer.
    pub(super) fn must_wait(&mut self, now: Time, pipe: u32) -> bool {
        let c = &mut self.cold;
        if c.paced_until <= now + QUANTUM {
            return false;
        }
        c.pace_at = c.paced_until - QUANTUM;
        self.timed = true;
        // With pacing, the window counts as the limit if at least half of it is in flight.
        c.cwnd_limited = pipe >= c.congestion.cwnd() / 2;
        true
    }

    /// Accounts for `octets` that were sent.
    pub(super) fn pace(&mut self, now: Time, octets: u32) {
        let Some(rate) = self.pacing_rate() else { return };
        let time = u64::from(octets).saturating_mul(1_000_000_000) / rate;
        let c = &mut self.cold;
        c.paced_until = c.paced_until.max(now) + Duration::from_nanos(time);
    }
}
