//! What an acknowledgement means: windows, round-trip time, congestion, loss (RFC 9293 §3.10.7.4, RFC 5681,
//! RFC 6298, RFC 6582, RFC 6675).

use super::{Connection, Cx, Flags, Recovery, State};
use crate::buffers::{Buffers, Handler};
use crate::congestion::Ack;
use crate::scoreboard::{DUP_THRESH, Update};
use crate::time::Time;
use crate::wire::{Segment, flag};
use core::time::Duration;

impl<B: Buffers> Connection<B> {
    /// Takes an ACK that is not beyond SND.NXT.
    pub(super) fn arrive_ack<T>(&mut self, cx: &mut Cx<'_, T>, h: &mut impl Handler<B::Frame>, s: &Segment) {
        self.cold.probes = 0;
        if s.ack.lt(self.snd_una) {
            return; // old news; its window is, too
        }
        let right_edge = self.snd_una + self.snd_wnd;
        let window = u32::from(s.window) << self.snd_wscale;
        let same_window = window == self.snd_wnd;
        if self.snd_wl1.lt(s.seq) || (self.snd_wl1 == s.seq && self.snd_wl2.le(s.ack)) {
            self.update_window(window, s);
        }
        let acked = s.ack - self.snd_una;
        let flight = self.outstanding();
        if acked > 0 {
            self.advance(cx, s);
        }
        let mut update = Update::default();
        if self.flags.has(Flags::SACK) && (!s.sack.is_empty() || !self.cold.scoreboard.is_empty()) {
            let mss = u32::from(self.mss);
            update = self.cold.scoreboard.update(&s.sack, self.snd_una, self.snd_nxt, mss);
        }
        if acked > 0 {
            self.progress(cx.now, acked);
        }
        let newly_sacked = update.newly_sacked;
        let lost = self.probe_answered(acked, &update);
        let pure = s.payload.is_empty() && !s.has(flag::FIN);
        let duplicate = if self.flags.has(Flags::SACK) {
            newly_sacked > 0
        } else {
            acked == 0 && flight > 0 && pure && same_window
        };
        if duplicate {
            cx.net.counters.duplicate_acks += 1;
            self.arrive_duplicate(cx, flight, lost);
        }
        if self.has_work() {
            self.flags.set(Flags::OUTPUT);
        }
        let room_grew = newly_sacked > 0 || duplicate || (self.snd_una + self.snd_wnd).gt(right_edge);
        let data = self.data_octets(acked);
        if data > 0 || (room_grew && self.may_send()) {
            h.acked(cx.id, self.tag, u64::from(data));
        }
    }

    /// Of `acked` octets of sequence space that were just acknowledged, those that are data: all but our FIN.
    fn data_octets(&self, acked: u32) -> u32 {
        let fin = self.flags.has(Flags::FIN) && acked > 0 && self.snd_una == self.snd_nxt;
        acked - u32::from(fin)
    }

    fn update_window(&mut self, window: u32, s: &Segment) {
        self.snd_wnd = window;
        (self.snd_wl1, self.snd_wl2) = (s.seq, s.ack);
        self.max_snd_wnd = self.max_snd_wnd.max(window);
        if self.cold.persist && window > 0 {
            // The window opened: no more probes; `output` arms what is needed then.
            self.cold.persist = false;
            self.cold.retries = 0;
            self.rtx_at = Time::MAX;
        }
    }

    /// SND.UNA moves.
    fn advance<T>(&mut self, cx: &mut Cx<'_, T>, s: &Segment) {
        self.snd_una = s.ack;
        self.dup_acks = 0;
        self.measure(cx.now, s);
        let c = &mut self.cold;
        c.queue.acknowledge(s.ack);
        c.retries = 0;
        c.soft_error = false;
        let mut restart = false;
        if self.snd_una == self.snd_nxt {
            self.rtx_at = Time::MAX; // RFC 6298 (5.2)
            c.stalled_since = Time::MAX;
        } else {
            // RFC 6298 (5.3); in NewReno's recovery only for the first partial ACK (RFC 6582 §3.2, step 3).
            if !(self.recovery == Recovery::NewReno && c.partial_acked) {
                restart = true;
            }
            c.stalled_since = cx.now;
        }
        if restart {
            self.restart_timer(cx.now);
        }
    }

    /// A round-trip sample: of the timed segment, or after a timeout from the timestamp that is echoed, if that was
    /// sent since (RFC 7323 §4.1). An older one says how long ago an ACK was lost, not how long a round trip takes.
    fn measure(&mut self, now: Time, s: &Segment) {
        if let Some((end, sent)) = self.cold.timed {
            if end.le(s.ack) {
                self.cold.timed = None;
                self.cold.rtt.sample(now - sent);
            }
        } else if self.cold.rtt.backoff() > 0
            && self.flags.has(Flags::TIMESTAMPS)
            && let Some(t) = s.timestamps
        {
            let (ago, limit) = (
                self.timestamp(now).wrapping_sub(t.echo),
                self.timestamp(now).wrapping_sub(self.timestamp(self.cold.timed_out_at)),
            );
            if ago <= limit {
                // The clock's step is a millisecond.
                self.cold.rtt.sample(Duration::from_millis(u64::from(ago) + 1));
            }
        }
    }

    /// New data is acknowledged: the congestion window grows, or recovery goes on.
    fn progress(&mut self, now: Time, acked: u32) {
        let una = self.snd_una;
        let left = self.outstanding();
        let c = &mut self.cold;
        match self.recovery {
            Recovery::None | Recovery::Timeout => {
                if self.recovery == Recovery::Timeout {
                    c.resend = c.resend.max(una);
                    if una.ge(c.recover) {
                        self.recovery = Recovery::None;
                    }
                }
                let limited = c.cwnd_limited || self.recovery == Recovery::Timeout;
                c.congestion.on_ack(&Ack { now, acked, limited, srtt: c.rtt.srtt() });
            }
            // A full acknowledgement ends fast recovery.
            Recovery::Sack if una.ge(c.recover) => {
                c.congestion.on_recovery_exit(left, false);
                self.end_fast_recovery();
            }
            Recovery::NewReno if una.ge(c.recover) => {
                c.congestion.on_recovery_exit(left, true);
                self.end_fast_recovery();
            }
            Recovery::Sack => {}
            // A partial one says that the next segment is lost as well (RFC 6582 §3.2, step 3).
            Recovery::NewReno => {
                c.congestion.on_partial_ack(acked);
                c.partial_acked = true;
                c.resend_first = true;
            }
        }
    }

    fn end_fast_recovery(&mut self) {
        self.recovery = Recovery::None;
        self.cold.resend_first = false;
    }

    /// A duplicate ACK: something left the network, and something before it is missing.
    #[cold]
    fn arrive_duplicate<T>(&mut self, cx: &mut Cx<'_, T>, flight: u32, lost: bool) {
        let mss = u32::from(self.mss);
        self.dup_acks = self.dup_acks.saturating_add(1);
        if self.dup_acks == 1 {
            self.cold.flight_before_dups = flight;
        }
        match self.recovery {
            Recovery::NewReno => self.cold.congestion.inflate(mss),
            Recovery::Sack | Recovery::Timeout => {}
            Recovery::None if matches!(self.state, State::SynReceived) => {}
            Recovery::None => {
                let lost = lost || u32::from(self.dup_acks) >= DUP_THRESH;
                if self.flags.has(Flags::SACK) {
                    if lost || self.cold.scoreboard.is_lost(self.snd_una) {
                        self.enter_fast_recovery(cx, Recovery::Sack);
                    }
                // RFC 6582 §3.2 step 1: not because of segments that a timeout or this recovery sent twice.
                } else if lost && self.snd_una.gt(self.cold.recover) {
                    self.enter_fast_recovery(cx, Recovery::NewReno);
                    self.cold.congestion.inflate(DUP_THRESH * mss);
                }
            }
        }
    }

    fn enter_fast_recovery<T>(&mut self, cx: &mut Cx<'_, T>, kind: Recovery) {
        cx.net.counters.fast_recoveries += 1;
        let first = self.first_segment_len();
        let c = &mut self.cold;
        c.congestion.on_enter_recovery(c.flight_before_dups);
        c.recover = self.snd_nxt;
        c.resend_first = true;
        c.partial_acked = false;
        c.timed = None;
        if kind == Recovery::Sack {
            c.scoreboard.enter_recovery(self.snd_una + first);
        }
        self.recovery = kind;
        self.restart_timer(cx.now);
    }

    /// Octets in flight by the best estimate that there is (RFC 6675 §4, SetPipe).
    pub(super) fn pipe(&self) -> u32 {
        let c = &self.cold;
        match self.recovery {
            // Everything outstanding counted as lost when the timer expired; what was sent since then counts.
            Recovery::Timeout => {
                let again = c.scoreboard.unsacked_between(self.snd_una, c.resend.min(c.recover));
                again + self.snd_nxt.since(c.recover)
            }
            Recovery::NewReno => self.outstanding(),
            Recovery::None | Recovery::Sack if self.flags.has(Flags::SACK) && !c.scoreboard.is_empty() => {
                c.scoreboard.pipe(self.snd_nxt)
            }
            Recovery::None | Recovery::Sack => self.outstanding(),
        }
    }
}
