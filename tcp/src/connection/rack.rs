//! Detects losses by time instead of by counting duplicate ACKs (RACK, RFC 8985 §6).

use super::{Connection, Cx, Due, Flags, Recovery};
use crate::buffers::{Buffers, Transmit};
use crate::scoreboard::{DUP_THRESH, Delivered, Found, RackReference, Sent};
use crate::seq::Seq;
use crate::time::Time;
use core::time::Duration;

#[cfg(test)]
mod tests;

/// Recoveries without a reported duplicate after which the reordering window returns to its initial size (RFC 8985
/// §6.2 step 4).
const PERSISTENCE: u8 = 16;

/// RACK's variables (RFC 8985 §5.3).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rack {
    /// Latest transmission known to have arrived.
    latest: Sent,
    /// Round-trip time of that transmission.
    rtt: Duration,
    /// Highest sequence number that has arrived (RACK.fack).
    fack: Seq,
    /// Segments have arrived in an order other than that of sending.
    pub reordering: bool,
    /// Size of the reordering window, in quarters of the minimum round-trip time.
    multiple: u8,
    /// Recoveries until `multiple` returns to one.
    persist: u8,
    /// The round trip of the last reported duplicate ends when this is acknowledged; `None`: it is over.
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

    /// Steps 2 and 3: updates the state with what has arrived. `una` is SND.UNA before the ACK.
    fn update(&mut self, d: &Delivered, una: Seq, now: Time, min_rtt: Duration) {
        self.fack = self.fack.max(una);
        self.reordering |= d.lowest_original.is_some_and(|l| l.lt(self.fack));
        self.fack = self.fack.max(d.highest.unwrap_or(una));
        let Some(newest) = d.newest else { return };
        let rtt = now - newest.at;
        // The ACK came too soon for the retransmission, so an earlier transmission of the same octets arrived.
        if newest.again && rtt < min_rtt {
            return;
        }
        self.rtt = rtt;
        if newest.after(&self.latest) {
            self.latest = newest;
        }
    }

    /// Notes that everything before `una` has arrived.
    pub fn follow(&mut self, una: Seq) {
        self.fack = self.fack.max(una);
        self.dsack_round = self.dsack_round.filter(|r| una.lt(*r));
    }

    /// Widens the reordering window after a reported duplicate, at most once per round trip (step 4).
    pub fn on_dsack(&mut self, una: Seq, nxt: Seq) {
        if self.dsack_round.is_some_and(|r| una.lt(r)) {
            return;
        }
        self.dsack_round = Some(nxt);
        self.persist = PERSISTENCE;
        self.multiple = self.multiple.saturating_add(1);
    }

    /// Counts a recovery that is over (step 4).
    pub fn on_recovery_exit(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.multiple = 1;
        }
    }

    /// Returns RACK.rtt plus the reordering window. `certain`: three segments are SACKed, or recovery has begun (step
    /// 4).
    fn patience(&self, certain: bool, min_rtt: Duration, srtt: Duration) -> Duration {
        if certain && !self.reordering {
            return self.rtt;
        }
        self.rtt + (min_rtt * u32::from(self.multiple) / 4).min(srtt)
    }
}

impl<B: Buffers> Connection<B> {
    /// Updates RACK with the octets that an ACK reports as arrived.
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

    /// Step 5: detects lost segments, and sets the timer for those that may still arrive. Returns the octets newly
    /// found lost.
    pub(super) fn detect_lost<T>(&mut self, cx: &mut Cx<'_, T>) -> u32 {
        let now = cx.now;
        let patience = self.rack_patience();
        let c = &mut self.cold;
        let yardstick = RackReference { latest: c.rack.latest, patience, now };
        let Found { lost, again, due } = c.scoreboard.detect_lost(&yardstick);
        cx.net.counters.lost_retransmissions += u64::from(again);
        match due {
            Some(at) if at < c.rto_at => (self.rtx_at, c.due) = (at, Due::Reordering),
            _ if c.due == Due::Reordering => (self.rtx_at, c.due) = (c.rto_at, Due::Timeout),
            _ => {}
        }
        lost
    }

    /// Handles the end of the reordering window (step 5).
    pub(super) fn on_reordering_timer<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>) {
        let lost = self.detect_lost(cx);
        if lost > 0 {
            self.reduce_if_lost(cx, self.outstanding(), 0, false);
            self.output(cx);
        }
    }

    /// Returns the time of the latest transmission that counts as lost when the retransmission timer expires (RFC 8985
    /// §6.3); later ones may still arrive. `Time::MAX` without SACK: all segments count as lost.
    pub(super) fn lost_at_timeout(&self, now: Time) -> Time {
        if self.flags.has(Flags::SACK) { now - self.rack_patience() } else { Time::MAX }
    }
}
