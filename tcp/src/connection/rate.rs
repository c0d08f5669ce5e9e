//! Measures the delivery rate of the path once per round trip, for congestion control that follows the rate.
//! This is the estimate that BBR uses, but with one sample at a time instead of one per segment.

use crate::congestion::Rate;
use crate::time::Time;

/// A round trip in progress.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    /// Start of the round; zero before the first call of [`turn`](Self::turn).
    began: Time,
    /// Octets delivered before it began.
    delivered: u64,
    /// For part of this round trip, the window did not limit sending.
    pub app_limited: bool,
}

impl Round {
    /// Ends the round and begins the next one. The caller has seen the ACK of the last octet that had been sent when
    /// the round began. Returns the rate of the ended round; `None` if its start was not measured, or if it took no
    /// time.
    pub fn turn(&mut self, now: Time, delivered: u64) -> Option<Rate> {
        let before = core::mem::replace(self, Round { began: now, delivered, app_limited: false });
        const SECOND: u64 = 1_000_000_000;
        let (time, octets) = (now.nanos_since(before.began), delivered - before.delivered);
        // A round delivers at most a few windows of octets, so nothing overflows.
        let rate = octets.saturating_mul(SECOND).checked_div(time)?;
        (before.began > Time::ZERO).then_some(Rate { octets: rate, app_limited: before.app_limited })
    }
}
