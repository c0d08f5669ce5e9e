//! Which of what is outstanding is lost: by time, not by counting duplicate ACKs (RACK, RFC 8985 §6).

use super::{Connection, Cx, Due, Flags, Recovery};
use crate::buffers::{Buffers, Transmit};
use crate::scoreboard::{DUP_THRESH, Delivered, Found, Sent, Yardstick};
use crate::seq::Seq;
use crate::time::Time;
use core::time::Duration;

#[cfg(test)]
mod tests;

/// Recoveries without a report of a duplicate after which the reordering window is as small as at first (RFC 8985
/// §6.2 step 4).
const PERSISTENCE: u8 = 16;

/// RACK's variables (RFC 8985 §5.3).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rack {
    /// The latest transmission that is known to have arrived.
    latest: Sent,
    /// Its round-trip time.
    rtt: Duration,
    /// The highest sequence number that arrived (RACK.fack).
    fack: Seq,
    /// Something arrived in another order than it was sent in.
    pub reordering: bool,
    /// Quarters of the least round-trip time that the reordering window has.
    multiple: u8,
    /// Recoveries until `multiple` is one again.
    persist: u8,
    /// The sequence number whose ACK ends the round trip of the last report of a duplicate.
    dsack_round: Option<Seq>,
}

impl Rack {
    pub fn new(snd_una: Seq) -> Self {
        Rack {
            latest: Sent { at: Time::ZERO, end: snd_una, again: false },
            rtt: Duration::ZERO,
            fack: snd_una,
            reordering: false,
            multiple: 1,
            persist: PERSISTENCE,
            dsack_round: None,
        }
    }

    /// Steps 2 and 3: what arrived. `una` is SND.UNA before the ACK.
    fn update(&mut self, d: &Delivered, una: Seq, now: Time, min_rtt: Duration) {
        self.fack = self.fack.max(una);
        self.reordering |= d.lowest_original.is_some_and(|l| l.lt(self.fack));
        self.fack = self.fack.max(d.highest.unwrap_or(una));
        let Some(newest) = d.newest else { return };
        let rtt = now - newest.at;
        // So soon, it was an earlier transmission of the same octets that arrived.
        if newest.again && rtt < min_rtt {
            return;
        }
        self.rtt = rtt;
        if newest.after(&self.latest) {
            self.latest = newest;
        }
    }

    /// All before `una` has arrived.
    pub fn follow(&mut self, una: Seq) {
        self.fack = self.fack.max(una);
        self.dsack_round = self.dsack_round.filter(|r| una.lt(*r));
    }

    /// A duplicate was reported: once per round trip the window grows (step 4).
    pub fn on_dsack(&mut self, una: Seq, nxt: Seq) {
        if self.dsack_round.is_some_and(|r| una.lt(r)) {
            return;
        }
        self.dsack_round = Some(nxt);
        self.persist = PERSISTENCE;
        self.multiple = self.multiple.saturating_add(1);
    }

    /// A recovery is over (step 4).
    pub fn on_recovery_exit(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.multiple = 1;
        }
    }

    /// RACK.rtt plus the reordering window; `certain`: three segments are SACKed, or recovery has begun (step 4).
    fn patience(&self, certain: bool, min_rtt: Duration, srtt: Duration) -> Duration {
        if certain && !self.reordering {
            return self.rtt;
        }
        self.rtt + (min_rtt * u32::from(self.multiple) / 4).min(srtt)
    }
}

impl<B: Buffers> Connection<B> {
    /// Takes note of what an ACK says arrived.
    pub(super) fn rack_update(&mut self, now: Time, d: &Delivered, una: Seq) {
        let c = &mut self.cold;
        c.rack.update(d, una, now, c.rtt.min_rtt());
    }

    fn rack_patience(&self) -> Duration {
        let c = &self.cold;
        let certain = self.recovery != Recovery::None
            || c.scoreboard.dup_thresh_reached(u32::from(self.mss))
            || u32::from(self.dup_acks) >= DUP_THRESH;
        c.rack.patience(certain, c.rtt.min_rtt(), c.rtt.srtt().unwrap_or_default())
    }

    /// Step 5: finds what is lost, and sets the timer for what may be. Octets that are lost in addition.
    pub(super) fn detect_lost<T>(&mut self, cx: &mut Cx<'_, T>) -> u32 {
        let now = cx.now;
        let patience = self.rack_patience();
        let c = &mut self.cold;
        let yardstick = Yardstick { latest: c.rack.latest, patience, now };
        let Found { lost, again, due } = c.scoreboard.detect_lost(&yardstick);
        cx.net.counters.lost_retransmissions += u64::from(again);
        match due {
            Some(at) if at < c.rto_at => (self.rtx_at, c.due) = (at, Due::Reordering),
            _ if c.due == Due::Reordering => (self.rtx_at, c.due) = (c.rto_at, Due::Timeout),
            _ => {}
        }
        lost
    }

    /// The reordering window is over (step 5).
    pub(super) fn on_reordering_timer<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>) {
        let lost = self.detect_lost(cx);
        if lost > 0 {
            self.reduce_if_lost(cx, self.outstanding(), 0, false);
            self.output(cx);
        }
    }

    /// What was sent before this counts as lost when the retransmission timer expires (RFC 8985 §6.3).
    pub(super) fn lost_at_timeout(&self, now: Time) -> Time {
        if self.flags.has(Flags::SACK) { now - self.rack_patience() } else { Time::MAX }
    }
}
