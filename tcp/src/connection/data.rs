//! Data and FIN of an acceptable segment (RFC 9293 §3.10.7.4, seventh and eighth).

use super::{Connection, Cx, Fate, Flags, State};
use crate::buffers::{Buffers, Frame, Handler, Transmit};
use crate::reassembly::{Block, Inserted};
use crate::seq::Seq;
use crate::wire::{Segment, flag};
use core::ops::Range;

/// Amount of unacknowledged data, in octets, from which on the ACK is not delayed. A full segment usually has at
/// least this much. A delay would be costly here, because the sender's congestion window waits for the ACK. Besides, if
/// the sender's stack does not copy its data, the data's memory is in use until the ACK arrives.
const MUCH: u32 = 1024;

impl<B: Buffers> Connection<B> {
    pub(super) fn arrive_data<T: Transmit<B::Payload>>(
        &mut self,
        cx: &mut Cx<'_, T>,
        h: &mut impl Handler<B::Frame>,
        s: &Segment,
        frame: B::Frame,
    ) -> Fate {
        if !matches!(self.state, State::Established | State::FinWait1 | State::FinWait2) {
            // The peer's FIN has arrived, so these octets are not part of the stream.
            self.flags.set(Flags::ACK);
            return Fate::Keep;
        }
        if self.ect != 0 {
            self.note_marks(cx, s);
        }
        let mut seq = s.seq;
        let mut at = s.payload.clone();
        let end = seq + at.len() as u32;
        // Cut off octets beyond the window, or beyond a known FIN.
        let fin = if self.flags.has(Flags::HOLES) { self.cold.peer_fin } else { None };
        let limit = fin.unwrap_or(self.rcv_nxt + self.rcv_wnd);
        if end.gt(limit) {
            at.end -= (end - limit).min(at.len() as u32) as usize;
        } else if s.has(flag::FIN) && self.cold.peer_fin.is_none() && end.ge(self.rcv_nxt) {
            // While the window is shut, a FIN before RCV.NXT can be acceptable. It does not count, because it would
            // hide the true FIN for ever.
            self.cold.peer_fin = Some(end);
        }
        if seq.lt(self.rcv_nxt) {
            let known = self.rcv_nxt.since(seq).min(at.len() as u32);
            if known > 0 && self.flags.has(Flags::SACK) {
                self.reports = true;
                self.cold.reassembly.note_duplicate(Block::new(seq, seq + known));
            }
            at.start += known as usize;
            seq = self.rcv_nxt;
        }
        if seq.gt(self.rcv_nxt) {
            self.hold(cx, seq, frame, at);
            return Fate::Keep;
        }
        if self.flags.has(Flags::HOLES) {
            let data = frame.bytes().get(at.clone()).unwrap_or(&[]);
            at.end = at.start + self.cold.reassembly.agreeing(seq, data);
        }
        if !at.is_empty() {
            self.deliver_or_park(cx, h, frame, at);
        }
        if !self.flags.has(Flags::HOLES) && !s.has(flag::FIN) {
            self.owe_ack(cx);
            return Fate::Keep;
        }
        self.close_gap(cx, h)
    }

    /// Marks in-order data for acknowledgement. Our next data carries the ACK. Without such data, a large amount is
    /// acknowledged by the end of the [pass](crate#a-pass) and a small amount after
    /// [`TcpConfig::ack_delay`](crate::TcpConfig::ack_delay) (RFC 1122 §4.2.3.2, RFC 5681 §4.2). With ECN no ACK
    /// waits, because the ACKs tell which segments were marked.
    #[inline(always)]
    pub(super) fn owe_ack<T>(&mut self, cx: &Cx<'_, T>) {
        let delay = cx.net.cfg.tcp.ack_delay;
        if self.rcv_nxt.since(self.last_ack_sent) >= MUCH || self.ect != 0 || delay.is_zero() {
            self.flags.set(Flags::ACK);
        }
    }

    /// Returns whether in-order data has arrived that is not acknowledged.
    #[inline(always)]
    pub(crate) fn owes_ack(&self) -> bool {
        self.last_ack_sent != self.rcv_nxt
    }

    /// Passes the next octets to the handler. Nothing may be parked on the connection.
    #[inline(always)]
    pub(super) fn deliver<T>(
        &mut self,
        cx: &mut Cx<'_, T>,
        h: &mut impl Handler<B::Frame>,
        frame: B::Frame,
        at: Range<usize>,
    ) {
        self.came_in_order(cx, at.len() as u32);
        if let Some((frame, rest)) = h.data(cx.id, self.tag, frame, at) {
            self.park(cx, frame, rest);
        }
    }

    /// Counts octets that have arrived in order.
    #[inline(always)]
    fn came_in_order<T>(&mut self, cx: &mut Cx<'_, T>, octets: u32) {
        self.rcv_nxt += octets;
        cx.net.counters.bytes_in += u64::from(octets);
        self.received += u64::from(octets);
    }

    /// Passes the next octets to the handler, or parks them if others are parked already.
    fn deliver_or_park<T>(
        &mut self,
        cx: &mut Cx<'_, T>,
        h: &mut impl Handler<B::Frame>,
        frame: B::Frame,
        at: Range<usize>,
    ) {
        if self.cold.parked.is_empty() {
            return self.deliver(cx, h, frame, at);
        }
        self.came_in_order(cx, at.len() as u32);
        self.park(cx, frame, at);
    }

    /// Parks in-order octets that the handler has not taken. RCV.NXT covers them already. If there is no buffer for
    /// them, RCV.NXT moves back, as if they had never arrived.
    #[cold]
    fn park<T>(&mut self, cx: &mut Cx<'_, T>, mut frame: B::Frame, rest: Range<usize>) {
        let octets = rest.len() as u32;
        let before = self.held();
        let places = super::held_frames(cx.net.cfg.tcp.recv_window) as usize;
        if cx.net.pressure || self.cold.parked.len() >= places || !cx.net.held.admits(before) {
            cx.net.counters.in_order_dropped += 1;
            cx.net.counters.bytes_in -= u64::from(octets);
            self.received -= u64::from(octets);
            self.rcv_nxt = self.rcv_nxt - octets;
            return;
        }
        // The right edge of the window stays. The window is rounded up to a unit of the window field, because
        // rounding down would move the edge back.
        let shut = self.rcv_wnd == 0;
        let unit = 1u32 << self.rcv_wscale;
        self.rcv_wnd = self.rcv_wnd.saturating_sub(octets).next_multiple_of(unit);
        cx.net.counters.windows_shut += u64::from(self.rcv_wnd == 0 && !shut);
        // The octets will be acknowledged, and must not change from then on.
        frame.keep();
        self.cold.parked.push(frame, rest);
        cx.net.held.changed(cx.id.index, before, before + 1);
        self.flags.set(Flags::HOLES);
    }

    /// Offers parked data to the handler, which may be able to take it now. Reopens the window by the octets that the
    /// handler took, and informs the peer if that is worth a segment.
    pub fn resume<T>(&mut self, cx: &mut Cx<'_, T>, h: &mut impl Handler<B::Frame>) -> Fate {
        if self.cold.parked.is_empty() {
            return Fate::Keep;
        }
        let before = self.held();
        while let Some((frame, at)) = self.cold.parked.pop() {
            if let Some((frame, rest)) = h.data(cx.id, self.tag, frame, at) {
                self.cold.parked.push_front(frame, rest);
                break;
            }
        }
        cx.net.held.changed(cx.id.index, before, self.held());
        self.reopen(cx);
        if !self.cold.parked.is_empty() {
            return Fate::Keep;
        }
        self.settle_holes();
        if !core::mem::take(&mut self.cold.fin_waits) {
            return Fate::Keep;
        }
        h.finished(cx.id, self.tag);
        if self.state == State::FinWait2 { Fate::TimeWait } else { Fate::Keep }
    }

    /// Opens the window fully, because the user wants all data of this peer. The next segment tells the peer.
    pub fn welcome<T>(&mut self, cx: &mut Cx<'_, T>) {
        if core::mem::take(&mut self.cold.newcomer) {
            self.reopen(cx);
        }
    }

    /// Moves the right edge of the window into the free space. To avoid silly windows (RFC 9293 §3.8.6.2.2), the edge
    /// moves only if the window gains a segment or half of its size, whichever is less, or becomes the full window.
    fn reopen<T>(&mut self, cx: &mut Cx<'_, T>) {
        let full = self.full_window(cx.net);
        let unit = 1u32 << self.rcv_wscale;
        let free = full.saturating_sub(self.cold.parked.octets()) / unit * unit;
        let gain = free.saturating_sub(self.rcv_wnd);
        let worth = gain >= (full / 2).min(u32::from(self.mss));
        if worth || free == full {
            cx.net.counters.windows_reopened += u64::from(self.rcv_wnd == 0);
            self.rcv_wnd = self.rcv_wnd.max(free);
        }
        // After its FIN the peer needs no window. It may be gone already and would answer with a RST.
        if worth && !self.cold.peer_fin.is_some_and(|fin| fin.lt(self.rcv_nxt)) {
            self.flags.set(Flags::ACK);
        }
    }

    /// Sets or clears the flag `HOLES` to match the receiving state.
    pub(super) fn settle_holes(&mut self) {
        let c = &self.cold;
        let fin_ahead = c.peer_fin.is_some_and(|fin| fin.ge(self.rcv_nxt));
        if c.reassembly.is_empty() && c.parked.is_empty() && !fin_ahead {
            self.flags.clear(Flags::HOLES);
        } else {
            self.flags.set(Flags::HOLES);
        }
    }

    /// Keeps an out-of-order segment, and reports the gap at once (RFC 5681 §4.2).
    #[cold]
    fn hold<T: Transmit<B::Payload>>(
        &mut self,
        cx: &mut Cx<'_, T>,
        seq: Seq,
        frame: B::Frame,
        at: Range<usize>,
    ) {
        cx.net.counters.out_of_order += 1;
        let before = self.held();
        if self.may_hold(cx, seq) && !at.is_empty() {
            match self.cold.reassembly.insert(seq, frame, at) {
                Inserted::Held => {}
                Inserted::Duplicate => cx.net.counters.duplicate += 1,
                Inserted::Full => cx.net.counters.out_of_order_dropped += 1,
            }
        }
        cx.net.held.changed(cx.id.index, before, self.held());
        if !self.cold.reassembly.is_empty() || self.cold.peer_fin.is_some() {
            self.flags.set(Flags::HOLES);
        }
        self.reports = true;
        self.send_ack(cx);
    }

    /// Returns whether there is a place for a segment at `seq`. If no place is free, drops the held segment that is
    /// farthest from the gap and uses its place, unless `seq` lies farther still.
    fn may_hold<T>(&mut self, cx: &mut Cx<'_, T>, seq: Seq) -> bool {
        if !cx.net.pressure && cx.net.held.admits(self.held()) {
            return true;
        }
        let held = &mut self.cold.reassembly;
        cx.net.counters.out_of_order_dropped += 1;
        held.last().is_some_and(|last| seq.lt(last)) && held.drop_newest()
    }

    /// Delivers the held segments that RCV.NXT has reached, and then the peer's FIN if RCV.NXT has reached it too.
    #[cold]
    fn close_gap<T: Transmit<B::Payload>>(
        &mut self,
        cx: &mut Cx<'_, T>,
        h: &mut impl Handler<B::Frame>,
    ) -> Fate {
        let had_holes = self.flags.has(Flags::HOLES);
        loop {
            let before = self.held();
            let next = self.cold.reassembly.pop(self.rcv_nxt);
            cx.net.held.changed(cx.id.index, before, self.held());
            let Some((frame, at)) = next else { break };
            self.deliver_or_park(cx, h, frame, at);
        }
        let finished = self.cold.peer_fin == Some(self.rcv_nxt);
        if finished {
            let before = self.held();
            self.rcv_nxt += 1;
            self.cold.reassembly.clear();
            cx.net.held.changed(cx.id.index, before, self.held());
        }
        self.settle_holes();
        if had_holes {
            self.send_ack(cx); // RFC 5681 §4.2: a segment that fills a gap is acknowledged at once
        } else {
            self.flags.set(Flags::ACK);
        }
        if !finished {
            return Fate::Keep;
        }
        // The ACK of the FIN does not wait for the handler, which learns of the FIN after it has taken the data
        // before it.
        let waits = !self.cold.parked.is_empty();
        if waits {
            self.cold.fin_waits = true;
        } else {
            h.finished(cx.id, self.tag);
        }
        match self.state {
            State::Established => self.enter(State::CloseWait, cx.net),
            State::FinWait1 => self.enter(State::Closing, cx.net),
            State::FinWait2 => {
                self.send_ack(cx);
                return if waits { Fate::Keep } else { Fate::TimeWait };
            }
            _ => {}
        }
        Fate::Keep
    }
}
