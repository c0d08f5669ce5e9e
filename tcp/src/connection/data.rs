//! Data and FIN of an acceptable segment (RFC 9293 §3.10.7.4, seventh and eighth).

use super::{Connection, Cx, Fate, Flags, State};
use crate::buffers::{Buffers, Frame, Handler, Transmit};
use crate::reassembly::{Block, Inserted};
use crate::sabotage::{Rule, broken};
use crate::seq::Seq;
use crate::wire::{Segment, flag};
use core::ops::Range;

impl<B: Buffers> Connection<B> {
    pub(super) fn arrive_data<T: Transmit<B::Payload>>(
        &mut self,
        cx: &mut Cx<'_, T>,
        h: &mut impl Handler<B::Frame>,
        s: &Segment,
        frame: B::Frame,
    ) -> Fate {
        if !matches!(self.state, State::Established | State::FinWait1 | State::FinWait2) {
            // The peer has sent its FIN; what is behind it is no data.
            self.flags.set(Flags::ACK);
            return Fate::Keep;
        }
        if self.ect != 0 {
            self.note_marks(cx, s);
        }
        let mut seq = s.seq;
        let mut at = s.payload.clone();
        let end = seq + at.len() as u32;
        // Behind the window, or behind a FIN that is known.
        let fin = if self.flags.has(Flags::HOLES) { self.cold.peer_fin } else { None };
        let limit = fin.unwrap_or(self.rcv_nxt + self.rcv_wnd);
        if end.gt(limit) {
            at.end -= (end - limit).min(at.len() as u32) as usize;
        } else if s.has(flag::FIN) && self.cold.peer_fin.is_none() {
            self.cold.peer_fin = Some(end);
        }
        if seq.lt(self.rcv_nxt) && !broken(Rule::OverlapOnce) {
            let known = self.rcv_nxt.since(seq).min(at.len() as u32);
            if known > 0 && self.flags.has(Flags::SACK) {
                self.reports = true;
                self.cold.reassembly.note_duplicate(Block::new(seq, seq + known));
            }
            at.start += known as usize;
            seq = self.rcv_nxt;
        }
        if seq.gt(self.rcv_nxt) && !broken(Rule::InOrder) {
            self.hold(cx, seq, frame, at);
            return Fate::Keep;
        }
        if self.flags.has(Flags::HOLES) {
            let data = frame.bytes().get(at.clone()).unwrap_or(&[]);
            at.end = at.start + self.cold.reassembly.agreeing(seq, data);
        }
        if !at.is_empty() {
            self.deliver(cx, h, frame, at);
        }
        if !self.flags.has(Flags::HOLES) && !s.has(flag::FIN) {
            // The usual case: acknowledged once per burst, or with the next data that we send.
            self.flags.set(Flags::ACK);
            return Fate::Keep;
        }
        self.close_gap(cx, h)
    }

    #[inline(always)]
    pub(super) fn deliver<T>(
        &mut self,
        cx: &mut Cx<'_, T>,
        h: &mut impl Handler<B::Frame>,
        frame: B::Frame,
        at: Range<usize>,
    ) {
        self.rcv_nxt += at.len() as u32;
        cx.net.counters.bytes_in += at.len() as u64;
        self.received += at.len() as u64;
        h.data(cx.id, self.tag, frame, at);
    }

    /// Keeps a segment that came before its turn, and says at once what is missing (RFC 5681 §4.2).
    #[cold]
    fn hold<T: Transmit<B::Payload>>(
        &mut self,
        cx: &mut Cx<'_, T>,
        seq: Seq,
        frame: B::Frame,
        at: Range<usize>,
    ) {
        cx.net.counters.out_of_order += 1;
        if broken(Rule::AckReceived) {
            self.rcv_nxt = seq;
        }
        let before = self.cold.reassembly.len();
        if self.may_hold(cx, seq) && !at.is_empty() {
            match self.cold.reassembly.insert(seq, frame, at) {
                Inserted::Held => {}
                Inserted::Duplicate => cx.net.counters.duplicate += 1,
                Inserted::Full => cx.net.counters.out_of_order_dropped += 1,
            }
        }
        cx.net.held.changed(cx.id.index, before, self.cold.reassembly.len());
        if !self.cold.reassembly.is_empty() || self.cold.peer_fin.is_some() {
            self.flags.set(Flags::HOLES);
        }
        self.reports = true;
        self.send_ack(cx);
    }

    /// There is a place for a segment at `seq`: one of what is free for all, or that of another farther from the hole.
    fn may_hold<T>(&mut self, cx: &mut Cx<'_, T>, seq: Seq) -> bool {
        let held = &mut self.cold.reassembly;
        if !cx.net.pressure && cx.net.held.admits(held.len()) {
            return true;
        }
        cx.net.counters.out_of_order_dropped += 1;
        held.last().is_some_and(|last| seq.lt(last)) && held.drop_newest()
    }

    /// RCV.NXT moved, and something was waiting for that: held segments, the peer's FIN.
    #[cold]
    fn close_gap<T: Transmit<B::Payload>>(
        &mut self,
        cx: &mut Cx<'_, T>,
        h: &mut impl Handler<B::Frame>,
    ) -> Fate {
        let had_holes = self.flags.has(Flags::HOLES);
        let before = self.cold.reassembly.len();
        while let Some((frame, at)) = self.cold.reassembly.pop(self.rcv_nxt) {
            self.deliver(cx, h, frame, at);
        }
        let finished = self.cold.peer_fin == Some(self.rcv_nxt);
        if finished {
            self.rcv_nxt += 1;
            self.cold.reassembly.clear();
        }
        cx.net.held.changed(cx.id.index, before, self.cold.reassembly.len());
        if finished || (self.cold.reassembly.is_empty() && self.cold.peer_fin.is_none()) {
            self.flags.clear(Flags::HOLES);
        }
        if had_holes {
            self.send_ack(cx); // RFC 5681 §4.2: a segment that fills a gap is acknowledged at once
        } else {
            self.flags.set(Flags::ACK);
        }
        if !finished {
            return Fate::Keep;
        }
        h.finished(cx.id, self.tag);
        match self.state {
            State::Established => self.enter(State::CloseWait, cx.net),
            State::FinWait1 => self.enter(State::Closing, cx.net),
            State::FinWait2 => {
                self.send_ack(cx);
                return Fate::TimeWait;
            }
            _ => {}
        }
        Fate::Keep
    }
}
