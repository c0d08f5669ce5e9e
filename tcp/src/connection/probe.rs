//! Tail loss probes (RFC 8985 §7): when an ACK is overdue, one segment asks for it, long before the retransmission
//! timer expires. One ACK answers a whole burst, so a lost ACK or a lost last segment would otherwise cost a timeout.

use super::{Connection, Cx, Due, Flags, Next, Recovery};
use crate::buffers::{Buffers, Transmit};
use crate::seq::Seq;
use crate::time::Time;

/// Longest time for which a peer is assumed to delay the ACK of a lone segment, in nanoseconds. If a peer delays it
/// longer, the measured round-trip time grows, and the probe waits longer as well.
const ACK_DELAY: u64 = 25_000_000;
/// Shortest wait, in nanoseconds, so that two ends that take turns on a core do not probe each other.
const SHORTEST: u64 = 1_000_000;

/// A probe that was sent and not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    /// SND.NXT after the probe.
    end: Seq,
    /// The probe carried octets that had been sent before.
    again: bool,
}

impl<B: Buffers> Connection<B> {
    /// Restarts the retransmission timer (RFC 6298 (5.1), (5.3)).
    pub(super) fn restart_timer(&mut self, now: Time) {
        self.cold.rto_at = now.plus(self.cold.rtt.rto_nanos());
        self.rtx_at = self.cold.rto_at;
        self.cold.due = Due::Timeout;
        self.schedule_probe(now);
    }

    /// Schedules a probe after data was sent or acknowledged, if data is outstanding. There are probes only with SACK,
    /// while nothing is known or suspected to be lost. The probe is due in two round trips, but not before
    /// [`SHORTEST`]; for a lone segment, [`ACK_DELAY`] later; and at the latest when the retransmission timer would
    /// expire (RFC 8985 §7.2).
    pub(super) fn schedule_probe(&mut self, now: Time) {
        if self.outstanding() == 0 {
            return;
        }
        let c = &mut self.cold;
        let Some(srtt) = c.rtt.srtt_nanos() else { return };
        let may = self.flags.has(Flags::SACK) && self.recovery == Recovery::None && c.retries == 0;
        if !may || c.probe.is_some() || c.scoreboard.is_disturbed() || c.persist || !c.sampled {
            return;
        }
        let lone = self.snd_nxt - self.snd_una <= u32::from(self.mss);
        let wait = (2 * srtt).max(SHORTEST) + if lone { ACK_DELAY } else { 0 };
        self.rtx_at = c.rto_at.min(now.plus(wait));
        c.due = Due::Probe;
    }

    /// Sends a probe because the ACK is overdue: new data if there is any, else the last segment again (RFC 8985
    /// §7.3). If the last frame was a train, that is the train's last segment.
    pub(super) fn send_loss_probe<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>) {
        self.cold.due = Due::Timeout;
        self.cold.sampled = false;
        self.rtx_at = cx.now + self.cold.rtt.rto();
        self.cold.rto_at = self.rtx_at;
        let Some(dst_mac) = self.ready_to_send(cx) else { return };
        let end = self.data_sent();
        let next = match self.new_segment(cx, 0) {
            Some(new) => new,
            None => self.again(self.snd_una.max(end - self.last_segment(end)), u32::from(self.mss)),
        };
        cx.net.counters.loss_probes += 1;
        let len = self.send(cx, dst_mac, next);
        if len == 0 && !next.fin {
            return;
        }
        self.sent(cx, Next { len, ..next }); // schedules no second probe, because `sampled` is false
        self.cold.probe = Some(Probe { end: self.snd_nxt, again: next.again });
    }

    /// Returns the length of the last segment before `end`, the end of the data that was sent.
    fn last_segment(&self, end: Seq) -> u32 {
        match self.cold.last_len {
            train if train > u32::from(self.mss) => {
                self.cold.queue.last_segment(end, train, u32::from(self.mss))
            }
            len => len,
        }
    }

    /// Handles an ACK while a probe is out (RFC 8985 §7.4). `twice`: it reports octets that arrived twice. `idle`: it
    /// acknowledges nothing and carries nothing.
    pub(super) fn probe_answered<T>(&mut self, cx: &mut Cx<'_, T>, twice: bool, idle: bool) {
        let Some(probe) = self.cold.probe.filter(|p| self.snd_una.ge(p.end)) else { return };
        if !probe.again || twice || idle && self.snd_una == probe.end {
            // The probe was new data, or both the probe and the segment that it repeated arrived.
            self.cold.probe = None;
        } else if self.snd_una.gt(probe.end) {
            // The probe repaired a loss.
            self.cold.probe = None;
            cx.net.counters.loss_probe_recoveries += 1;
            if self.recovery == Recovery::None {
                self.cold.congestion.on_enter_recovery(self.outstanding()); // the loss needs no further repair
                self.note_reduction();
            }
        }
    }
}
