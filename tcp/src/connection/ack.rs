//! Effects of an acknowledgement: windows, round-trip time, congestion (RFC 9293 §3.10.7.4, RFC 5681, RFC 6298).
//! Unusual cases go to `repair`.

use super::repair::Facts;
use super::{Connection, Cx, Due, Flags, Recovery};
use crate::buffers::{Buffers, Handler};
use crate::ecn;
use crate::sabotage::{Rule, broken};
use crate::scoreboard::{Delivered, Sent};
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::{Segment, flag};
use core::time::Duration;

impl<B: Buffers> Connection<B> {
    /// Takes an ACK that does not exceed `nxt`: SND.NXT at its arrival, at the time `cx.now`. More may have been sent
    /// since.
    pub fn arrive_ack<T>(
        &mut self,
        cx: &mut Cx<'_, T>,
        h: &mut impl Handler<B::Frame>,
        s: &Segment,
        nxt: Seq,
    ) {
        self.probes = 0;
        if s.ack.lt(self.snd_una) {
            return; // an old ACK; its window is old as well
        }
        if self.is_no_news(s) {
            (self.snd_wl1, self.snd_wl2) = (s.seq, s.ack);
            return;
        }
        let right_edge = self.snd_una + self.snd_wnd;
        let window = u32::from(s.window) << self.snd_wscale;
        let same_window = window == self.snd_wnd;
        let acked = s.ack - self.snd_una;
        // RFC 9293 §3.10.7.4, fifth. An ACK that moves SND.UNA is newer than all before, even if its segment is a
        // retransmission with an old sequence number. Its window must be taken, because the known window, counted
        // from the new SND.UNA, would reach beyond the right edge that the peer has set.
        if acked > 0 || self.snd_wl1.lt(s.seq) || (self.snd_wl1 == s.seq && self.snd_wl2.le(s.ack)) {
            self.update_window(window, s);
        }
        let flight = nxt - self.snd_una;
        let idle = acked == 0 && flight > 0 && same_window && s.payload.is_empty() && !s.has(flag::FIN);
        let marked = s.has(flag::ECE) && self.ect == ecn::ECT0;
        let mut facts = Facts { acked, flight, una: self.snd_una, idle, marked, rtt: None, turned: false };
        let unquiet = idle || self.is_unquiet(s);
        let mut delivered = Delivered::new(self.cold.recover);
        if acked > 0 {
            facts.turned = self.advance(cx, s, nxt, &mut delivered);
            if self.cold.cwnd_limited && self.cold.congestion.in_first_slow_start() {
                facts.rtt = delivered.newest.filter(|n| !n.again).map(|n| cx.now - n.at);
            }
        }
        let mut left = false;
        if unquiet {
            left = self.repair(cx, s, &facts, delivered);
        } else if acked > 0 {
            self.grow(cx, &facts);
        }
        if marked {
            self.arrive_echo(cx, flight);
        }
        if self.has_work() {
            self.flags.set(Flags::OUTPUT);
        }
        let room_grew = left || (self.snd_una + self.snd_wnd).gt(right_edge);
        let data = self.data_octets(acked);
        if data > 0 || (room_grew && self.may_send()) {
            h.acked(cx.id, self.tag, u64::from(data));
        }
    }

    /// Returns whether a segment has no news for the sending side: it repeats the last ACK and window, as segments with
    /// data and keep-alives do. In addition, either nothing is outstanding, or it has data and no loss is known or
    /// suspected. (Without data it would be a duplicate ACK, RFC 5681 §2.) Connections that mostly receive get many of
    /// these, also while a request of ours is on its way.
    #[inline(always)]
    pub fn is_no_news(&self, s: &Segment) -> bool {
        s.ack == self.snd_una
            && self.snd_wl1.le(s.seq)
            && u32::from(s.window) << self.snd_wscale == self.snd_wnd
            && s.sack.is_empty()
            && !s.has(flag::ECE)
            && self.recovery == Recovery::None
            && (self.snd_una == self.snd_nxt || (!s.payload.is_empty() && !self.is_unquiet(s)))
    }

    /// Returns whether an ACK must go through `repair`: data is missing or was thought to be, a loss probe is not
    /// answered, or the ACK has SACK blocks.
    #[inline]
    fn is_unquiet(&self, s: &Segment) -> bool {
        let c = &self.cold;
        !s.sack.is_empty()
            || self.recovery != Recovery::None
            || c.scoreboard.is_disturbed()
            || c.probe.is_some()
            || c.undo.is_some()
    }

    /// Returns how many of `acked` octets of sequence space, just acknowledged, are data: all but our FIN.
    fn data_octets(&self, acked: u32) -> u32 {
        let fin = self.flags.has(Flags::FIN) && acked > 0 && self.snd_una == self.snd_nxt;
        acked - u32::from(fin)
    }

    fn update_window(&mut self, window: u32, s: &Segment) {
        self.snd_wnd = window;
        (self.snd_wl1, self.snd_wl2) = (s.seq, s.ack);
        self.max_snd_wnd = self.max_snd_wnd.max(window);
        if self.cold.persist && window > 0 {
            // The window opened, so probing ends. `output` sets the timers that are needed then.
            self.cold.persist = false;
            self.cold.retries = 0;
            self.rtx_at = Time::MAX;
        }
    }

    /// Moves SND.UNA. Returns whether this ends a round trip whose delivery rate is known.
    fn advance<T>(&mut self, cx: &mut Cx<'_, T>, s: &Segment, nxt: Seq, delivered: &mut Delivered) -> bool {
        let una = core::mem::replace(&mut self.snd_una, s.ack);
        if (una.0 ^ s.ack.0) >> 30 != 0 {
            self.follow();
        }
        self.dup_acks = 0;
        self.cold.scoreboard.acknowledge(s.ack, delivered);
        let flight = nxt - una;
        let rtt = delivered.newest.and_then(|newest| self.measure(cx.now, s, nxt, &newest));
        let c = &mut self.cold;
        c.queue.acknowledge(s.ack);
        c.delivered += u64::from(s.ack - una);
        c.round.app_limited |= !c.cwnd_limited;
        let turned = rtt.is_some() && self.end_round(cx.now);
        if let (Some(rtt), Some(delay)) = (rtt, cx.net.cfg.tcp.queue_delay)
            && !broken(Rule::QueueStaysShort)
        {
            self.cold.congestion.on_round_trip(Duration::from_nanos(rtt), flight, delay);
        }
        let c = &mut self.cold;
        c.retries = 0;
        c.soft_error = false;
        if self.snd_una == self.snd_nxt {
            self.rtx_at = Time::MAX; // RFC 6298 (5.2)
            c.due = Due::Timeout;
            c.stalled_since = Time::MAX;
            return turned;
        }
        c.stalled_since = cx.now;
        // RFC 6298 (5.3); in NewReno's recovery only for the first partial ACK (RFC 6582 §3.2, step 3).
        if !(self.recovery == Recovery::NewReno && c.partial_acked) {
            self.restart_timer(cx.now);
        }
        turned
    }

    /// Ends the measured round trip and begins the next one. Returns whether the delivery rate of the ended one is
    /// known.
    #[inline(never)]
    fn end_round(&mut self, now: Time) -> bool {
        let c = &mut self.cold;
        let rate = c.round.turn(now, c.delivered);
        c.rate = rate.or(c.rate);
        rate.is_some()
    }

    /// Moves long-lived sequence numbers along with SND.UNA. If left behind, they would seem to lie ahead of SND.UNA
    /// after 2^31 octets. A call each time that SND.UNA passes a multiple of 2^30 is enough, because windows are
    /// smaller than 2^30.
    #[cold]
    fn follow(&mut self) {
        let (una, c) = (self.snd_una, &mut self.cold);
        c.recover = c.recover.max(una - 1);
        c.marks_until = c.marks_until.max(una - 1);
        // Without timestamps, no round trip is measured while retransmissions are the newest to arrive (RFC 6298 §3).
        c.sample_at = c.sample_at.max(una - 1);
        c.rack.follow(una);
        c.path_mtu.follow(una);
    }

    /// Takes a round-trip sample, once per round trip, from the newest transmission that was acknowledged. If that was
    /// a retransmission, the sample counts only if the ACK echoes a timestamp that was sent with the retransmission or
    /// later (RFC 6298 §3, RFC 7323 §4.1). Returns the sample in nanoseconds; `None`: no round trip has ended, or the
    /// sample is not certain.
    #[inline]
    fn measure(&mut self, now: Time, s: &Segment, nxt: Seq, newest: &Sent) -> Option<u64> {
        if s.ack.le(self.cold.sample_at) {
            return None;
        }
        let rtt = now.nanos_since(newest.at);
        if newest.again {
            let since = |t: u32| Seq(t).ge(Seq(self.timestamp(newest.at)));
            let sure = self.flags.has(Flags::TIMESTAMPS) && s.timestamps.is_some_and(|t| since(t.echo));
            if !sure || Duration::from_nanos(rtt) < self.cold.rtt.min_rtt() {
                return None;
            }
        }
        self.cold.rtt.sample_nanos(rtt);
        self.cold.sample_at = nxt;
        self.cold.sampled = true;
        Some(rtt)
    }

    /// Returns the estimated octets in flight (pipe of RFC 6675 §4), without those that are SACKed or count as
    /// lost.
    #[inline]
    pub(super) fn pipe(&self) -> u32 {
        self.outstanding() - self.cold.scoreboard.sacked() - self.cold.scoreboard.lost()
    }
}
