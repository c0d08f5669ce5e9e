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
        let (time, octets) = ((now - before.began).as_nanos(), u128::from(delivered - before.delivered));
        let rate = (octets * 1_000_000_000).checked_div(time)?;
        (before.began > Time::ZERO).then_some(Rate {
            octets: u64::try_from(rate).unwrap_or(u64::MAX),
            app_limited: before.app_limited,
        })
    }
}
