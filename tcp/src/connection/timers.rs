//! Timers: retransmission, window probes, keep-alive, user timeout, FIN-WAIT-2 (RFC 6298, RFC 9293 §3.8, RFC 5482). A
//! connection has one entry in the timer wheel; this module decides which of its deadlines has come.

use super::repair::Frto;
use super::{Connection, Cx, Due, Fate, Flags, Recovery, State};
use crate::buffers::{Buffers, CloseReason, Transmit};
use crate::config::{Keepalive, Patience};
use crate::net::Net;
use crate::time::Time;
use core::time::Duration;

/// Minimum lateness of a timer that shows a pause of the stack: the process was stopped, or the machine slept. A busy
/// machine does not delay a timer this long. The pause is not the peer's fault, so the peer's time starts anew.
const LATE: Duration = Duration::from_secs(1);

fn is_late(deadline: Time, now: Time) -> bool {
    deadline + LATE <= now
}

impl<B: Buffers> Connection<B> {
    /// Returns the earliest deadline; `Time::MAX` if there is none.
    pub fn deadline(&self, net: &Net) -> Time {
        let c = &self.cold;
        let rare = if self.timed { c.hold_until.min(c.pace_at).min(c.fin_wait_until) } else { Time::MAX };
        self.rtx_at.min(rare).min(self.user_timeout_at(net)).min(self.keepalive_at(net))
    }

    /// Returns the earliest deadline, or a time before it. Without computing what cannot be: only a connection that is
    /// `timed` has rare deadlines or time limits of its own, only one with nothing outstanding is probed, and only one
    /// that has data outstanding or whose timer runs can be stalled. Reads only the hot part of an idle connection.
    #[inline]
    pub fn next_deadline(&self, net: &Net) -> Time {
        let cfg = &net.cfg.tcp;
        match (self.outstanding() == 0, self.rtx_at == Time::MAX) {
            _ if self.timed => self.deadline(net),
            (true, true) => cfg.keepalive.map_or(Time::MAX, |k| self.keepalive_after(&k)),
            (true, false) => self.deadline(net),
            (false, _) => {
                self.rtx_at.min(cfg.user_timeout.map_or(Time::MAX, |t| self.cold.stalled_since + t))
            }
        }
    }

    #[inline]
    fn keepalive_after(&self, k: &Keepalive) -> Time {
        let first = self.heard + k.idle;
        if self.probes == 0 { first } else { first + k.interval.saturating_mul(u32::from(self.probes)) }
    }

    fn user_timeout_at(&self, net: &Net) -> Time {
        let t = self.patience().map_or(net.cfg.tcp.user_timeout, |p| p.user_timeout);
        t.map_or(Time::MAX, |t| self.cold.stalled_since + t)
    }

    /// Returns the time limits of this connection; `None`: those of the configuration.
    #[inline]
    fn patience(&self) -> Option<&Patience> {
        if self.timed { self.cold.patience.as_deref() } else { None }
    }

    fn keepalive(&self, net: &Net) -> Option<Keepalive> {
        self.patience().map_or(net.cfg.tcp.keepalive, |p| p.keepalive)
    }

    /// Returns the deadline of the next keep-alive probe; `Time::MAX` if there is none. Only connections with nothing
    /// outstanding are probed, because others retransmit (RFC 9293 §3.8.4). While the peer's window is shut,
    /// keep-alive probes come in addition to window probes, which become rare. When both ends are closed and only our
    /// user has data left to read, no probe is needed.
    fn keepalive_at(&self, net: &Net) -> Time {
        match self.keepalive(net) {
            Some(k) if self.outstanding() == 0 && !self.only_reads() => self.keepalive_after(&k),
            _ => Time::MAX,
        }
    }

    /// Sets `timed` to whether the cold part has a deadline, or time limits of its own.
    pub fn settle_timed(&mut self) {
        let c = &self.cold;
        let none = [c.hold_until, c.pace_at, c.fin_wait_until].iter().all(|t| *t == Time::MAX);
        self.timed = !none || c.patience.is_some();
    }

    /// Handles the wheel's entry. Deadlines may have moved since the entry was made.
    pub fn on_timer<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>) -> Fate {
        let now = cx.now;
        if self.cold.fin_wait_until <= now {
            return Fate::Closed(CloseReason::TimedOut);
        }
        if self.user_timeout_at(cx.net) <= now {
            if !is_late(self.user_timeout_at(cx.net), now) {
                return self.give_up(cx);
            }
            self.cold.stalled_since = now;
        }
        if self.rtx_at <= now {
            match self.cold.due {
                Due::Probe => self.send_loss_probe(cx),
                Due::Reordering => self.on_reordering_timer(cx),
                Due::Timeout => {
                    let fate = self.on_retransmission_timeout(cx);
                    if fate != Fate::Keep {
                        return fate;
                    }
                }
            }
        }
        if self.cold.hold_until <= now {
            self.output(cx);
            if self.cold.hold_until <= now {
                // The congestion window or a lack of room prevents sending.
                self.cold.hold_until = now + cx.net.cfg.tcp.sws_override;
            }
        }
        if self.cold.pace_at <= now {
            self.cold.pace_at = Time::MAX;
            self.output(cx);
        }
        if self.keepalive_at(cx.net) <= now
            && let Some(k) = self.keepalive(cx.net)
        {
            if is_late(self.keepalive_at(cx.net), now) {
                // The probe is sent now and the time starts anew: the next probe is due in one interval. A stack that
                // is late each time sends any number of probes (RFC 9293 §3.8.4), but their count must not overflow.
                self.probes = self.probes.min(u8::MAX - 1);
                self.heard = now - self.keepalive_after(&k).since(self.heard);
            } else if self.probes >= k.count {
                return self.give_up(cx);
            }
            self.probes += 1;
            cx.net.counters.keepalive_probes += 1;
            self.send_probe(cx);
        }
        self.settle_timed();
        if self.outstanding() == 0 {
            self.cold.queue.shrink();
            self.cold.scoreboard.shrink();
        }
        Fate::Keep
    }

    /// Closes the connection because the peer counts as dead. Sends a RST, because the peer may be alive after all.
    fn give_up<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>) -> Fate {
        cx.net.counters.timeouts += 1;
        self.send_reset(cx);
        let unreachable = self.cold.soft_error;
        Fate::Closed(if unreachable { CloseReason::Unreachable } else { CloseReason::TimedOut })
    }

    fn on_retransmission_timeout<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>) -> Fate {
        let opening = matches!(self.state, State::SynSent | State::SynReceived);
        let limit = if opening { cx.net.cfg.tcp.syn_retries } else { cx.net.cfg.tcp.data_retries };
        // A peer that keeps its window shut but answers probes is alive (RFC 9293 §3.8.6.1). But once our user has
        // closed the connection, such a peer must not hold the data for ever (RFC 6429 §3).
        let shut = self.cold.persist || self.snd_wnd == 0;
        if shut && self.heard > self.cold.last_sent && !self.flags.has(Flags::CLOSE) {
            self.cold.retries = 0;
        }
        if self.cold.retries >= limit {
            return self.give_up(cx);
        }
        let first = self.cold.retries == 0;
        self.cold.retries += 1;
        self.cold.rtt.back_off(); // RFC 6298 (5.5)
        self.cold.rto_at = cx.now + self.cold.rtt.rto();
        self.rtx_at = self.cold.rto_at;
        if opening {
            cx.net.counters.rto_recoveries += 1;
            self.send_syn(cx);
        } else if self.cold.persist {
            cx.net.counters.window_probes += 1;
            self.cold.last_sent = cx.now;
            self.send_probe(cx);
        } else if self.outstanding() > 0 {
            cx.net.counters.rto_recoveries += 1;
            self.suspect_black_hole(cx);
            self.enter_timeout_recovery(cx, first);
            self.output(cx);
        } else if self.has_work() {
            self.output(cx); // asks the neighbour again
        } else {
            self.rtx_at = Time::MAX;
        }
        Fate::Keep
    }

    /// Starts recovery after a timeout (RFC 6298 (5.4), RFC 5681 §3.1, RFC 6582 §4, RFC 8985 §6.3).
    fn enter_timeout_recovery<T>(&mut self, cx: &Cx<'_, T>, first: bool) {
        // F-RTO is for timeouts of unknown cause. During recovery, the cause is known (RFC 5682 §3.1 step 1).
        let sudden = first && self.recovery == Recovery::None;
        if sudden {
            self.prepare_undo(cx);
        }
        let flight = self.outstanding();
        let recent = self.lost_at_timeout(cx.now);
        let c = &mut self.cold;
        c.frto = if sudden { Frto::Retransmitted } else { Frto::Off };
        if !sudden {
            c.undo = None;
        }
        c.congestion.on_rto(flight, first);
        self.note_reduction();
        let c = &mut self.cold;
        c.scoreboard.on_timeout(recent);
        c.recover = self.snd_nxt;
        c.resend_first = true;
        c.probe = None;
        self.dup_acks = 0;
        self.recovery = Recovery::Timeout;
    }
}
