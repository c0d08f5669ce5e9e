//! A segment arrives (RFC 9293 §3.10.7.4, RFC 5961, RFC 7323 §5).

use super::{Connection, Cx, Fate, Flags, Recovery, State, coarse};
use crate::buffers::{Buffers, CloseReason, Handler, Transmit};
use crate::sabotage::{Rule, broken};
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::{Segment, flag};
use core::time::Duration;

/// TS.Recent of a connection idle for longer says nothing (RFC 7323 §5.5).
/// In units of 2^30 ns.
const TS_RECENT_LIFETIME: u32 = ((24 * 24 * 3600 * 1_000_000_000u64) >> 30) as u32;
/// Challenge ACKs per connection in `CHALLENGE_INTERVAL` (RFC 5961 §7).
const CHALLENGES: u8 = 10;
const CHALLENGE_INTERVAL: Duration = Duration::from_secs(1);

impl<B: Buffers> Connection<B> {
    /// Header prediction: an undisturbed connection receives what comes next, and nothing but data or an ACK. What the
    /// ACK says is another question. Only the hot part is asked.
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

    /// Takes a segment that is [predicted](Self::predicts), but for its ACK.
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

    /// RFC 7323 §4.3 (2): of segments that are acceptable in every respect, or who guesses a number could stop the peer.
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
        // RFC 5961 §5: an ACK from before the largest window, or of what was never sent.
        if s.ack.lt(self.snd_una - self.max_snd_wnd) || s.ack.gt(self.snd_nxt) {
            if self.state == State::SynReceived {
                self.reset_for(cx, s);
            } else {
                self.challenge(cx);
            }
            return Fate::Keep;
        }
        // Who answers, and with what can be no answer, is not the peer any more that this end knew.
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
        self.arrive_ack(cx, h, s);
        if let Some(fate) = self.after_our_fin(cx) {
            return fate;
        }
        if s.payload.is_empty() && !s.has(flag::FIN) {
            return Fate::Keep;
        }
        self.arrive_data(cx, h, s, frame)
    }

    /// PAWS (RFC 7323 §5.3 R1) and the rule that timestamps, once agreed on, are always there (§3.2).
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

    /// The segment has a number in the receive window (RFC 9293 §3.4 table 6). What begins right behind the window counts
    /// as well, because its ACK and, at a zero window, RST and FIN are heard (§3.10.7.4, first): a peer that has filled
    /// the window has no other number for them. Of its data nothing is taken.
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

    /// Both SYNs crossed, and this is the peer's SYN again, now with the ACK of ours (RFC 9293 §3.5, figure 7).
    #[cold]
    fn completes_simultaneous_open(&self, s: &Segment) -> bool {
        s.flags & (flag::SYN | flag::ACK | flag::RST) == flag::SYN | flag::ACK
            && s.seq + 1 == self.rcv_nxt
            && s.ack == self.snd_nxt
    }

    /// Tells the sender of an unacceptable segment what would be acceptable.
    #[cold]
    fn refuse<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>, s: &Segment) {
        if s.has(flag::RST) {
            return;
        }
        let beyond = s.seq.ge(self.rcv_nxt + self.rcv_wnd);
        if s.len() == 0 || s.has(flag::SYN) || beyond {
            // Keep-alives and window probes want an answer; two ends that disagree must not exchange them for ever.
            // A SYN is challenged wherever it lies (RFC 5961 §4.2). Beyond the window no honest peer sends.
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

    /// RFC 5961 §3 and §4.
    #[cold]
    fn arrive_rst_or_syn<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>, s: &Segment) -> Fate {
        if !s.has(flag::RST) || s.seq != self.rcv_nxt {
            self.challenge(cx);
            return Fate::Keep;
        }
        if self.only_reads() {
            return Fate::Keep; // as in TIME-WAIT (RFC 1337): a late ACK of ours met a peer that is gone
        }
        cx.net.counters.resets_in += 1;
        Fate::Closed(match self.state {
            State::SynReceived => CloseReason::Refused,
            _ => CloseReason::Reset,
        })
    }

    /// An ACK that a legitimate peer needs and an attacker learns nothing from; limited in number (RFC 5961 §7).
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

    /// What the acknowledgement of our FIN changes (RFC 9293 §3.10.7.4, fifth).
    #[inline]
    fn after_our_fin<T>(&mut self, cx: &mut Cx<'_, T>) -> Option<Fate> {
        if !self.flags.has(Flags::FIN) || self.snd_una != self.snd_nxt {
            return None;
        }
        // Both ends are done, but our user has not taken all that it was sent: that is kept as long as a FIN is waited for.
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
