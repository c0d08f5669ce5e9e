//! Arrival of a segment (RFC 9293 §3.10.7.4, RFC 5961, RFC 7323 §5).

use super::{Connection, Cx, Fate, Flags, Recovery, State, coarse};
use crate::buffers::{Buffers, CloseReason, Handler, Transmit};
use crate::ecn;
use crate::sabotage::{Rule, broken};
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::{Segment, flag};
use core::time::Duration;

/// Idle time after which TS.Recent is no longer valid (RFC 7323 §5.5), in units of 2^30 ns.
const TS_RECENT_LIFETIME: u32 = ((24 * 24 * 3600 * 1_000_000_000u64) >> 30) as u32;
/// Maximum number of challenge ACKs per connection in `CHALLENGE_INTERVAL` (RFC 5961 §7).
const CHALLENGES: u8 = 10;
const CHALLENGE_INTERVAL: Duration = Duration::from_secs(1);

impl<B: Buffers> Connection<B> {
    /// Returns whether an undisturbed connection receives the next segment in order, with nothing but data or
    /// an ACK (header prediction). Does not check the ACK itself. Reads only the hot part.
    #[inline(always)]
    pub fn predicts(&self, s: &Segment) -> bool {
        let stamped = match s.timestamps {
            Some(t) => Seq(t.value).ge(Seq(self.ts_recent)),
            None => false,
        };
        s.flags & !flag::PSH == flag::ACK
            && s.seq == self.rcv_nxt
            && (stamped || !self.flags.has(Flags::TIMESTAMPS))
            && s.payload.len() as u32 <= self.rcv_wnd
            && self.state == State::Established
            && !self.flags.has(Flags::HOLES)
            && self.ect == 0
            && s.sack.is_empty()
            && self.recovery == Recovery::None
    }

    /// Takes a [predicted](Self::predicts) segment, except for its ACK.
    #[inline(always)]
    pub fn take_predicted<T>(
        &mut self,
        cx: &mut Cx<'_, T>,
        h: &mut impl Handler<B::Frame>,
        s: &Segment,
        frame: B::Frame,
    ) {
        self.heard = cx.now;
        self.probes = 0;
        self.note_timestamp(cx.now, s);
        if !s.payload.is_empty() {
            self.deliver(cx, h, frame, s.payload.clone());
            self.owe_ack(cx);
        }
    }

    /// Updates TS.Recent (RFC 7323 §4.3 (2)). Only fully acceptable segments may do so. Otherwise an attacker who
    /// guesses a sequence number could set a timestamp so high that we drop all segments of the peer as old.
    #[inline(always)]
    fn note_timestamp(&mut self, now: Time, s: &Segment) {
        if let Some(t) = s.timestamps
            && s.seq.le(self.last_ack_sent)
            && Seq(t.value).ge(Seq(self.ts_recent))
            && self.flags.has(Flags::TIMESTAMPS)
        {
            self.ts_recent = t.value;
            self.ts_recent_at = coarse(now);
        }
    }

    /// Takes a segment for this connection.
    pub fn arrive<T: Transmit<B::Payload>>(
        &mut self,
        cx: &mut Cx<'_, T>,
        h: &mut impl Handler<B::Frame>,
        s: &Segment,
        frame: B::Frame,
    ) -> Fate {
        if self.state == State::SynSent {
            self.heard = cx.now;
            return self.arrive_syn_sent(cx, h, s);
        }
        if !self.timestamps_acceptable(cx, s) {
            return Fate::Keep;
        }
        if self.state == State::SynReceived && self.completes_simultaneous_open(s) {
            if !s.syn_options().ecn {
                self.ect = ecn::NOT_ECT; // the peer's SYN offered ECN, but its SYN-ACK does not accept it
            }
            self.establish(cx, s.ack);
            self.flags.set(Flags::ACK);
            h.connected(cx.id, self.tag);
            return Fate::Keep;
        }
        if !self.in_window(s) && !broken(Rule::SequenceWindow) {
            cx.net.counters.unacceptable += 1;
            self.refuse(cx, s);
            return Fate::Keep;
        }
        if s.flags & (flag::RST | flag::SYN) != 0 {
            return self.arrive_rst_or_syn(cx, s);
        }
        if !s.has(flag::ACK) {
            return Fate::Keep;
        }
        // RFC 5961 §5: the ACK is further behind `snd_una` than the largest window, or acknowledges data never sent.
        if s.ack.lt(self.snd_una - self.max_snd_wnd) || s.ack.gt(self.snd_nxt) {
            if self.state == State::SynReceived {
                self.reset_for(cx, s);
            } else {
                self.challenge(cx);
            }
            return Fate::Keep;
        }
        // Only acceptable segments show that the peer we knew is alive.
        self.heard = cx.now;
        self.note_timestamp(cx.now, s);
        if self.state == State::SynReceived {
            if s.ack.le(self.snd_una) {
                self.reset_for(cx, s);
                return Fate::Keep;
            }
            self.establish(cx, self.cold.iss + 1);
            h.connected(cx.id, self.tag);
        }
        let nxt = self.snd_nxt;
        self.arrive_ack(cx, h, s, nxt);
        if let Some(fate) = self.after_our_fin(cx) {
            return fate;
        }
        if s.payload.is_empty() && !s.has(flag::FIN) {
            return Fate::Keep;
        }
        self.arrive_data(cx, h, s, frame)
    }

    /// Checks PAWS (RFC 7323 §5.3 R1), and that segments have timestamps if both ends agreed on them (§3.2).
    #[inline]
    fn timestamps_acceptable<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>, s: &Segment) -> bool {
        if !self.flags.has(Flags::TIMESTAMPS) || s.has(flag::RST) {
            return true;
        }
        let Some(t) = s.timestamps else {
            cx.net.counters.paws_dropped += 1;
            return false;
        };
        if Seq(t.value).ge(Seq(self.ts_recent)) {
            return true;
        }
        if coarse(cx.now).wrapping_sub(self.ts_recent_at) > TS_RECENT_LIFETIME {
            self.ts_recent = t.value;
            return true;
        }
        cx.net.counters.paws_dropped += 1;
        self.refuse(cx, s);
        false
    }

    /// Returns whether the segment lies in the receive window (RFC 9293 §3.4 table 5). An empty segment may
    /// also begin directly at the end of the window, because a peer that has filled the window has no other
    /// sequence number for an ACK. At a zero window, any segment may begin there, because its ACK, RST or FIN
    /// counts (§3.10.7.4, first). Data beyond the window is not taken.
    #[inline]
    fn in_window(&self, s: &Segment) -> bool {
        let end = self.rcv_nxt + self.rcv_wnd;
        let len = s.len();
        if len == 0 || end == self.rcv_nxt {
            self.rcv_nxt.le(s.seq + len) && s.seq.le(end)
        } else {
            s.seq.lt(end) && (s.seq + len).gt(self.rcv_nxt)
        }
    }

    /// Returns whether the SYNs crossed and this is the peer's SYN again, now with the ACK of ours (RFC 9293 §3.5,
    /// figure 7).
    #[cold]
    fn completes_simultaneous_open(&self, s: &Segment) -> bool {
        s.flags & (flag::SYN | flag::ACK | flag::RST) == flag::SYN | flag::ACK
            && s.seq + 1 == self.rcv_nxt
            && s.ack == self.snd_nxt
    }

    /// Answers an unacceptable segment with an ACK, which tells the peer the sequence numbers that we accept.
    #[cold]
    fn refuse<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>, s: &Segment) {
        if s.has(flag::RST) {
            return;
        }
        let beyond = s.seq.ge(self.rcv_nxt + self.rcv_wnd);
        if s.len() == 0 || s.has(flag::SYN) || beyond {
            // These segments get a challenge ACK, whose rate is limited. An empty segment may be a keep-alive or a
            // window probe, which needs an answer; without a limit, two ends that disagree would exchange ACKs for
            // ever. A SYN gets a challenge ACK whatever its sequence number (RFC 5961 §4.2). A segment beyond the
            // window deserves no more than that, because no honest peer sends one.
            self.challenge(cx);
            return;
        }
        cx.net.counters.duplicate += 1;
        if self.flags.has(Flags::SACK) && !s.payload.is_empty() && (s.seq + s.len()).le(self.rcv_nxt) {
            let end = s.seq + s.payload.len() as u32;
            self.reports = true;
            self.cold.reassembly.note_duplicate(crate::reassembly::Block::new(s.seq, end));
        }
        self.send_ack(cx);
    }

    /// Handles a RST or SYN in SYN-RECEIVED or a synchronized state (RFC 5961 §3 and §4).
    #[cold]
    fn arrive_rst_or_syn<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>, s: &Segment) -> Fate {
        if !s.has(flag::RST) || s.seq != self.rcv_nxt {
            self.challenge(cx);
            return Fate::Keep;
        }
        if self.only_reads() {
            // As in TIME-WAIT (RFC 1337), the RST is ignored. A peer that is gone answers our late ACK with a RST, and
            // the user would lose its unread data.
            return Fate::Keep;
        }
        cx.net.counters.resets_in += 1;
        Fate::Closed(match self.state {
            State::SynReceived => CloseReason::Refused,
            _ => CloseReason::Reset,
        })
    }

    /// Sends a challenge ACK, which a legitimate peer needs and which tells an attacker nothing. The rate of
    /// challenge ACKs is limited (RFC 5961 §7).
    #[cold]
    pub(super) fn challenge<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>) {
        let c = &mut self.cold;
        if c.challenges == 0 || cx.now - c.challenge_window > CHALLENGE_INTERVAL {
            (c.challenge_window, c.challenges) = (cx.now, 0);
        }
        if c.challenges >= CHALLENGES {
            cx.net.counters.limited += 1;
            return;
        }
        c.challenges += 1;
        cx.net.counters.challenge_acks += 1;
        self.send_ack(cx);
    }

    /// Changes the state if our FIN is acknowledged (RFC 9293 §3.10.7.4, fifth). Returns the fate of a connection that
    /// ends or enters TIME-WAIT; `None`: the connection stays, and the rest of the segment must be processed.
    #[inline]
    fn after_our_fin<T>(&mut self, cx: &mut Cx<'_, T>) -> Option<Fate> {
        if !self.flags.has(Flags::FIN) || self.snd_una != self.snd_nxt {
            return None;
        }
        // If our user has data left to read, the connection stays for the time of FIN-WAIT-2, although both ends are
        // closed.
        let unread = !self.cold.parked.is_empty();
        match self.state {
            State::Closing | State::LastAck if unread => self.begin_fin_wait(cx),
            State::FinWait1 => self.begin_fin_wait(cx),
            State::Closing => Some(Fate::TimeWait),
            State::LastAck => Some(Fate::Closed(CloseReason::Graceful)),
            _ => None,
        }
    }

    #[cold]
    fn begin_fin_wait<T>(&mut self, cx: &mut Cx<'_, T>) -> Option<Fate> {
        self.enter(State::FinWait2, cx.net);
        self.cold.fin_wait_until = cx.now + cx.net.cfg.tcp.fin_wait;
        self.timed = true;
        None
    }
}
