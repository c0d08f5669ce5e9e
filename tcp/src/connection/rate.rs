//! How fast the path delivers, measured once per round trip: what algorithms of congestion control that follow the rate want
//! to know (the estimate of draft-ietf-ccwg-bbr §4.1, with one sample under way instead of one for each segment).

use crate::congestion::Rate;
use crate::time::Time;

/// A round trip under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    began: Time,
    /// Octets that had been delivered then.
    delivered: u64,
    /// The window did not limit what was sent, for a while.
    pub app_limited: bool,
}

impl Round {
    /// What was sent last when the round began is acknowledged: it is over, and the next one begins.
    pub fn turn(&mut self, now: Time, delivered: u64) -> Option<Rate> {
        let before = core::mem::replace(self, Round { began: now, delivered, app_limited: false });
        const SECOND: u64 = 1_000_000_000;
        let (time, octets) = ((now - before.began).as_nanos(), delivered - before.delivered);
        let time = u64::try_from(time).unwrap_or(u64::MAX);
        // A ping-pong is here for each answer: no division of 128 bits for what fits 64.
        let rate = match octets.checked_mul(SECOND) {
            Some(scaled) => scaled.checked_div(time)?,
            None => (u128::from(octets) * u128::from(SECOND))
                .checked_div(time.into())?
                .try_into()
                .unwrap_or(u64::MAX),
        };
        (before.began > Time::ZERO).then_some(Rate { octets: rate, app_limited: before.app_limited })
    }
}
