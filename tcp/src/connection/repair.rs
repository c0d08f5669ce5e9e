//! Handles ACKs during loss or suspected loss (RFC 5681, RFC 6582, RFC 8985, RFC 6937). Detects and undoes mistaken
//! recovery: F-RTO (RFC 5682), Eifel (RFC 3522, RFC 4015), DSACK (RFC 3708).

use super::{Connection, Cx, Flags, Recovery, State};
use crate::buffers::Buffers;
use crate::congestion::{Ack, Controller, Progress};
use crate::reassembly::Block;
use crate::scoreboard::{DUP_THRESH, Delivered};
use crate::seq::Seq;
use crate::wire::Segment;
use core::time::Duration;

/// State for undoing a window reduction.
#[derive(Clone, Debug)]
pub(crate) struct Undo {
    /// Congestion control before the reduction.
    saved: Controller,
    /// Our timestamp when the first retransmission was sent; `None` without timestamps.
    stamp: Option<u32>,
    /// SND.UNA when the first retransmission was sent.
    from: Seq,
    /// Once this is acknowledged, no later ACK can show that the reduction was a mistake.
    until: Seq,
    /// Octets that were sent again and not reported as duplicates.
    pending: u32,
    /// At least one octet was sent again.
    sent: bool,
}

/// State of F-RTO (RFC 5682 §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frto {
    /// Inactive: there was no timeout, or its cause is known.
    Off,
    /// The first segment was sent again, and nothing has been acknowledged since.
    Retransmitted,
    /// New data is sent, to see how the receiver answers.
    NewData,
}

/// The facts about an ACK that loss recovery needs.
#[derive(Clone, Copy)]
pub(super) struct Facts {
    /// Octets that the ACK acknowledges.
    pub acked: u32,
    /// Octets outstanding before it.
    pub flight: u32,
    /// SND.UNA before it.
    pub una: Seq,
    /// It acknowledges nothing, carries no data and changes no window, although data is outstanding (RFC 5681 §2).
    pub idle: bool,
    /// It echoes Congestion Experienced (RFC 3168 §6.1).
    pub marked: bool,
    /// Round-trip time of the newest segment that it acknowledges. `None` outside of the first slow start, while the
    /// window does not limit sending, and for a segment that was sent again.
    pub rtt: Option<Duration>,
    /// It ends a round trip whose delivery rate is known.
    pub turned: bool,
}

impl<B: Buffers> Connection<B> {
    /// Handles an ACK of a disturbed transfer. Returns whether the ACK is a duplicate, which shows that a segment has
    /// left the network.
    #[cold]
    pub(super) fn repair<T>(&mut self, cx: &mut Cx<'_, T>, s: &Segment, f: &Facts, mut d: Delivered) -> bool {
        let by_sack = self.flags.has(Flags::SACK);
        if by_sack {
            let c = &mut self.cold;
            cx.net.counters.sack_reneging += u64::from(c.scoreboard.drop_reneged());
            let twice = c.scoreboard.sack(&s.sack, &mut d);
            cx.net.counters.sacks_in += u64::from(!s.sack.is_empty());
            if let Some(block) = twice {
                self.arrive_dsack(cx, &block);
            }
            self.rack_update(cx.now, &d, f.una);
            self.probe_answered(cx, twice.is_some(), f.idle && s.sack.is_empty());
        }
        let duplicate = if by_sack { d.sacked > 0 } else { f.idle };
        if duplicate {
            cx.net.counters.duplicate_acks += 1;
            self.dup_acks = self.dup_acks.saturating_add(1);
        }
        self.undo_if_mistaken(cx, s, f, &d);
        match self.recovery {
            Recovery::None => self.grow(cx, f),
            Recovery::Timeout => self.after_timeout(cx, f, duplicate),
            Recovery::Sack => {
                self.leave_recovery(cx);
            }
            Recovery::NewReno => self.newreno_ack(cx, f, duplicate),
        }
        if by_sack {
            self.rack_recovery(cx, f, &d);
        } else if duplicate && self.recovery == Recovery::None {
            self.newreno_duplicate(cx, f);
        }
        if self
            .cold
            .undo
            .as_ref()
            .is_some_and(|u| self.recovery == Recovery::None && u.until.le(self.snd_una))
        {
            self.cold.undo = None;
        }
        duplicate
    }

    /// Grows the window after an ACK of new data.
    #[inline]
    pub(super) fn grow<T>(&mut self, cx: &Cx<'_, T>, f: &Facts) {
        let c = &mut self.cold;
        let limited = c.cwnd_limited || self.recovery == Recovery::Timeout;
        if !limited && c.congestion.waits_for_limit() {
            return;
        }
        let (srtt, marked, flight) = (c.rtt.srtt(), f.marked, f.flight - f.acked);
        let (rtt, rate) = (f.rtt, c.rate.filter(|_| f.turned));
        c.congestion.on_ack(&Ack { now: cx.now, acked: f.acked, limited, srtt, marked, flight, rtt, rate });
    }

    /// Detects losses, enters recovery, and allows as much to be sent as has arrived (RFC 8985 §6, RFC 6937).
    fn rack_recovery<T>(&mut self, cx: &mut Cx<'_, T>, f: &Facts, d: &Delivered) {
        if self.outstanding() == 0 {
            return;
        }
        let newly_lost = if self.cold.scoreboard.sacked() > 0 || self.recovery != Recovery::None {
            self.detect_lost(cx)
        } else {
            0
        };
        self.reduce_if_lost(cx, f.flight, d.octets, f.acked > 0 && newly_lost == 0);
    }

    /// Enters recovery if data counts as lost. In recovery, allows as much to be sent as `delivered` permits. `safe`:
    /// the recovery makes progress.
    pub(super) fn reduce_if_lost<T>(&mut self, cx: &mut Cx<'_, T>, flight: u32, delivered: u32, safe: bool) {
        if self.recovery == Recovery::None && self.cold.scoreboard.lost() > 0 {
            self.enter_fast_recovery(cx, Recovery::Sack, flight);
            let start = self.outstanding() - self.cold.scoreboard.sacked() + delivered;
            self.cold.congestion.begin_proportional(start);
        }
        if self.recovery == Recovery::Sack {
            let pipe = self.pipe();
            self.cold.congestion.on_recovery_ack(&Progress { delivered, pipe, safe });
        }
    }

    /// Ends fast recovery if everything up to `recover` is acknowledged (RFC 6675 §5 (A), RFC 6582 §3.2 step 3).
    fn leave_recovery<T>(&mut self, cx: &mut Cx<'_, T>) -> bool {
        if self.snd_una.lt(self.cold.recover) {
            return false;
        }
        let left = self.outstanding();
        let limit_burst = self.recovery == Recovery::NewReno;
        let c = &mut self.cold;
        c.congestion.on_recovery_exit(left, limit_burst);
        c.rack.on_recovery_exit();
        c.resend_first = false;
        self.recovery = Recovery::None;
        self.schedule_probe(cx.now);
        true
    }

    /// Handles a duplicate ACK without SACK, outside of recovery.
    fn newreno_duplicate<T>(&mut self, cx: &mut Cx<'_, T>, f: &Facts) {
        // RFC 6582 §3.2 step 2: duplicate ACKs do not count if a retransmission after a timeout or in the last
        // recovery may have caused them.
        let news = self.snd_una.gt(self.cold.recover) && self.state != State::SynReceived;
        if news && u32::from(self.dup_acks) >= DUP_THRESH {
            self.enter_fast_recovery(cx, Recovery::NewReno, f.flight);
            self.cold.congestion.inflate(DUP_THRESH * u32::from(self.mss));
        }
    }

    /// Handles an ACK in NewReno recovery.
    fn newreno_ack<T>(&mut self, cx: &mut Cx<'_, T>, f: &Facts, duplicate: bool) {
        if duplicate {
            self.cold.congestion.inflate(u32::from(self.mss));
        }
        // A partial ACK shows that the next segment is lost as well (RFC 6582 §3.2, step 3).
        if f.acked > 0 && !self.leave_recovery(cx) {
            let c = &mut self.cold;
            c.congestion.on_partial_ack(f.acked);
            c.partial_acked = true;
            c.resend_first = true;
        }
    }

    fn enter_fast_recovery<T>(&mut self, cx: &mut Cx<'_, T>, kind: Recovery, flight: u32) {
        cx.net.counters.fast_recoveries += 1;
        cx.net.counters.sack_recoveries += u64::from(kind == Recovery::Sack);
        self.prepare_undo(cx);
        let c = &mut self.cold;
        c.congestion.on_enter_recovery(flight);
        c.recover = self.snd_nxt;
        c.probe = None;
        c.resend_first = kind == Recovery::NewReno;
        c.partial_acked = false;
        self.recovery = kind;
        self.note_reduction();
        self.restart_timer(cx.now);
    }

    /// Saves the state before the window is reduced because of a suspected loss.
    pub(super) fn prepare_undo<T>(&mut self, cx: &Cx<'_, T>) {
        let stamp = self.flags.has(Flags::TIMESTAMPS).then(|| self.timestamp(cx.now));
        self.cold.undo = Some(Box::new(Undo {
            saved: self.cold.congestion.clone(),
            stamp,
            from: self.snd_una,
            until: self.snd_nxt,
            pending: 0,
            sent: false,
        }));
    }

    /// Counts octets that were sent again.
    pub(super) fn count_for_undo(&mut self, octets: u32) {
        if let Some(u) = &mut self.cold.undo {
            u.pending = u.pending.saturating_add(octets);
            u.sent = true;
            // The report of a duplicate arrives a round trip after the ACK that ends recovery, so the state is kept
            // until then.
            u.until = self.snd_nxt + 1;
        }
    }

    /// Handles a report of octets that arrived twice (RFC 2883).
    fn arrive_dsack<T>(&mut self, cx: &mut Cx<'_, T>, block: &Block) {
        cx.net.counters.dsacks_in += 1;
        self.cold.rack.on_dsack(self.snd_una, self.snd_nxt);
        if let Some(u) = &mut self.cold.undo
            && u.from.le(block.start)
        {
            u.pending = u.pending.saturating_sub(block.len());
        }
    }

    /// Undoes the reduction if the retransmission was a mistake. That is so if the ACK echoes a timestamp from before
    /// the first retransmission (RFC 3522), if all octets that were sent again have arrived twice (RFC 3708), or if
    /// after a timeout an octet arrives that was sent only once (RFC 5682).
    fn undo_if_mistaken<T>(&mut self, cx: &mut Cx<'_, T>, s: &Segment, f: &Facts, d: &Delivered) {
        let Some(u) = &self.cold.undo else { return };
        let in_recovery = self.recovery != Recovery::None;
        // The ACK of a retransmission echoes the timestamp of the segment that filled the gap.
        let echoed = match (u.stamp, s.timestamps, d.again) {
            (Some(first), Some(t), Some(again)) if f.acked > 0 => {
                let echo = Seq(t.echo);
                Some(echo.lt(Seq(first)) && echo.lt(Seq(self.timestamp(again))))
            }
            _ => None,
        };
        let all_twice = u.sent && u.pending == 0;
        let eifel = in_recovery && echoed == Some(true);
        // Without SACK it is ambiguous whether the arriving octets filled a gap (RFC 5682 §2.1). A timestamp resolves
        // this.
        let unambiguous = self.flags.has(Flags::SACK) || d.again.is_none();
        let original = d.original && unambiguous && echoed != Some(false);
        let frto = self.cold.frto != Frto::Off && original;
        if !(all_twice || eifel || frto) {
            return;
        }
        let c = &mut cx.net.counters;
        *match (frto, all_twice) {
            (true, _) => &mut c.spurious_timeouts,
            (_, true) => &mut c.dsack_undos,
            _ if self.recovery == Recovery::Timeout => &mut c.loss_undos,
            _ => &mut c.full_undos,
        } += 1;
        let pipe = self.outstanding() - self.cold.scoreboard.sacked();
        let Some(u) = self.cold.undo.take() else { return };
        let c = &mut self.cold;
        c.congestion.undo(u.saved, pipe, f.acked);
        if !in_recovery {
            return;
        }
        // The segments that counted as lost are still on their way, because the path reorders them or, after
        // a timeout, is slow.
        c.scoreboard.revive_lost();
        c.rack.reordering |= self.recovery == Recovery::Sack;
        c.frto = Frto::Off;
        c.resend_first = false;
        if self.recovery == Recovery::Timeout {
            c.rtt.after_spurious_timeout(); // RFC 4015 §3.6
        }
        self.recovery = Recovery::None;
        if self.outstanding() > 0 {
            self.restart_timer(cx.now);
        }
    }

    /// Handles an ACK after a timeout: F-RTO (RFC 5682 §3.1), slow start.
    fn after_timeout<T>(&mut self, cx: &mut Cx<'_, T>, f: &Facts, duplicate: bool) {
        let complete = self.snd_una.ge(self.cold.recover);
        self.cold.frto = match self.cold.frto {
            // Step 2b: sends two new segments instead of retransmissions, if there are any.
            Frto::Retransmitted if f.acked > 0 && !complete && self.has_sendable() => Frto::NewData,
            // Step 2a.
            Frto::Retransmitted if f.acked > 0 || duplicate => Frto::Off,
            // Step 3a: the new segments arrived, but the missing one did not.
            Frto::NewData if duplicate => {
                self.cold.congestion.after_genuine_timeout();
                Frto::Off
            }
            other => other,
        };
        self.grow(cx, f);
        if complete {
            self.recovery = Recovery::None;
            self.cold.frto = Frto::Off;
            self.cold.resend_first = false;
            self.cold.rack.on_recovery_exit();
            self.schedule_probe(cx.now);
        }
    }

    /// Returns whether there is new data that the peer's window allows.
    fn has_sendable(&self) -> bool {
        self.snd_nxt.lt(self.cold.queue.end()) && self.snd_nxt.lt(self.snd_una + self.snd_wnd)
    }
}
