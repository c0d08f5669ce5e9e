//! Sending: ACKs, new data, FIN and retransmissions (RFC 9293 §3.8.6, §3.10.2, RFC 5681, RFC 6675).

use super::queue::Pieces;
use super::repair::Frto;
use super::{Connection, Cx, Due, Flags, Recovery, State};
use crate::buffers::{Buffers, Transmit};
use crate::ecn;
use crate::scoreboard::DUP_THRESH;
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::{Options, Segment, TcpFields, Timestamps, flag, put_sack, put_timestamps};

/// A segment to send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub seq: Seq,
    pub len: u32,
    pub fin: bool,
    pub again: bool,
}

impl<B: Buffers> Connection<B> {
    /// Returns the MAC address to send to, if a frame can go now. `None`: the connection will be called again by a
    /// flush, or when the neighbour answers.
    #[inline]
    pub(super) fn ready_to_send<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>) -> Option<[u8; 6]> {
        if cx.tx.room() == 0 {
            cx.net.counters.tx_full += 1;
            self.flags.set(Flags::OUTPUT);
            return None;
        }
        let mac = cx.net.resolve(self.neighbour, cx.now);
        if mac.is_none() && !self.waits_for_neighbour {
            self.waits_for_neighbour = cx.net.wait(self.neighbour, cx.id);
        }
        mac
    }

    #[inline]
    pub(super) fn fields<'a>(
        &self,
        dst_mac: [u8; 6],
        seq: Seq,
        flags: u8,
        options: &'a Options,
    ) -> TcpFields<'a> {
        TcpFields {
            dst_mac,
            key: self.key,
            seq,
            ack: self.rcv_nxt,
            flags: flags | self.echo,
            ecn: ecn::NOT_ECT,
            window: self.window_field(),
            options,
        }
    }

    #[inline]
    pub(super) fn timestamp_option(&self, now: Time) -> Options {
        let mut options = Options::new();
        if self.flags.has(Flags::TIMESTAMPS) {
            put_timestamps(&mut options, Timestamps { value: self.timestamp(now), echo: self.ts_recent });
        }
        options
    }

    /// Sends an ACK now, with SACK blocks. Without room, a later flush sends it.
    pub(crate) fn send_ack<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>) {
        let seq = self.snd_nxt;
        self.send_bare(cx, seq);
    }

    /// Sends an ACK that the peer must answer, because its sequence number lies before the window. Used for keep-alive
    /// (RFC 9293 §3.8.4) and window probes. It carries no data, because an octet of data would split a record.
    pub(super) fn send_probe<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>) {
        let seq = self.snd_una - 1;
        self.send_bare(cx, seq);
    }

    fn send_bare<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>, seq: Seq) {
        self.flags.set(Flags::ACK);
        let Some(dst_mac) = self.ready_to_send(cx) else { return };
        let mut options = self.timestamp_option(cx.now);
        if self.reports && self.flags.has(Flags::SACK) {
            let held = &mut self.cold.reassembly;
            held.forget_old_duplicate(self.rcv_nxt);
            if held.has_sack() {
                let room = (options.remaining_capacity() - 4) / 8;
                cx.net.counters.dsacks_out += u64::from(held.has_duplicate());
                put_sack(&mut options, &held.sack_blocks(room));
            }
            self.reports = held.has_sack();
        }
        cx.net.emit(cx.tx, &self.fields(dst_mac, seq, flag::ACK, &options), &[], false, 0);
        cx.net.counters.acks_out += 1;
        self.acknowledged();
    }

    #[inline]
    pub(super) fn acknowledged(&mut self) {
        self.last_ack_sent = self.rcv_nxt;
        self.flags.clear(Flags::ACK);
    }

    /// Sends a RST with SND.NXT, the sequence number that the peer expects once all that we sent has arrived.
    pub(crate) fn send_reset<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>) {
        if self.state == State::SynSent || cx.tx.room() == 0 {
            return;
        }
        let Some(dst_mac) = cx.net.resolve(self.neighbour, cx.now) else { return };
        let options = Options::new();
        cx.net.counters.resets_out += 1;
        let mut fields = self.fields(dst_mac, self.snd_nxt, 0, &options);
        fields.flags = flag::RST | flag::ACK;
        cx.net.emit(cx.tx, &fields, &[], false, 0);
    }

    /// Sends the RST that answers `s`, which carries an unacceptable ACK during the handshake (RFC 9293 §3.10.7.3
    /// first, §3.10.7.4 fifth).
    pub(super) fn reset_for<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>, s: &Segment) {
        if let Some(mac) = cx.net.resolve(self.neighbour, cx.now) {
            cx.net.reset(cx.now, cx.tx, mac, self.key, s);
        }
    }

    /// Sends what is due at the end of a pass. If this is only an ACK, the cold part is not touched.
    #[inline]
    pub(crate) fn flush<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>) {
        if self.flags.has(Flags::OUTPUT) || matches!(self.state, State::SynSent | State::SynReceived) {
            self.output(cx);
        } else if self.flags.has(Flags::ACK) {
            self.send_ack(cx);
        }
    }

    /// Sends what is due: retransmissions, new data and FIN. Sends an ACK if no segment carried one.
    pub(crate) fn output<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>) {
        let waited = self.flags.has(Flags::OUTPUT);
        self.flags.clear(Flags::OUTPUT);
        match self.state {
            State::SynSent | State::SynReceived => {
                if waited {
                    self.send_syn(cx); // the SYN waited for room or for the neighbour
                }
                return;
            }
            _ if self.has_work() => self.send_segments(cx),
            _ => {}
        }
        if self.flags.has(Flags::ACK) {
            self.send_ack(cx);
        }
    }

    fn send_segments<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>) {
        if self.cold.path_mtu.is_due(cx.now) {
            self.try_larger(cx);
        }
        if self.outstanding() == 0 && self.snd_nxt.lt(self.cold.queue.end()) {
            let last = self.cold.last_sent;
            if cx.now.nanos_since(last) > self.cold.rtt.rto_nanos() {
                self.cold.congestion.on_idle(cx.now - last, self.cold.rtt.rto()); // RFC 2861
            }
        }
        let mut pipe = self.pipe();
        self.cold.cwnd_limited = false;
        pipe = pipe.saturating_add(self.send_volley(cx, pipe));
        let paced = cx.net.cfg.tcp.pacing;
        while self.has_work() {
            if paced && self.must_wait(cx.now, pipe) {
                return;
            }
            let Some(dst_mac) = self.ready_to_send(cx) else {
                self.watch_neighbour(cx);
                return;
            };
            let Some(next) = self.next(cx, pipe) else { return };
            let len = self.send(cx, dst_mac, next);
            if len == 0 && !next.fin {
                return; // there is nothing to send after all
            }
            pipe = pipe.saturating_add(len);
            self.sent(cx, Next { len, ..next });
            if paced {
                self.pace(cx.now, len);
            }
        }
    }

    /// Starts the timer of a connection that has data to send but no answer from its neighbour. When the timer
    /// expires, the neighbour is asked again; in the end the connection is given up.
    #[cold]
    fn watch_neighbour<T>(&mut self, cx: &Cx<'_, T>) {
        if self.waits_for_neighbour && self.rtx_at == Time::MAX {
            self.cold.stalled_since = self.cold.stalled_since.min(cx.now);
            self.cold.due = Due::Timeout;
            self.rtx_at = cx.now + self.cold.rtt.rto();
        }
    }

    /// Returns whether there may be something to send. The caller checks this first, so that a full link or an
    /// unknown neighbour concerns only connections that have something to send.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.snd_nxt.lt(self.cold.queue.end())
            || self.recovery != Recovery::None
            || self.cold.resend_first
            || (self.flags.has(Flags::CLOSE) && !self.flags.has(Flags::FIN))
    }

    /// Emits one segment. Returns the octets of data in it.
    pub(super) fn send<T: Transmit<B::Payload>>(
        &mut self,
        cx: &mut Cx<'_, T>,
        dst_mac: [u8; 6],
        next: Next,
    ) -> u32 {
        let mut pieces = Pieces::new();
        let len = self.cold.queue.pieces(next.seq, next.len, &mut pieces);
        if len == 0 && !next.fin {
            return 0;
        }
        let mut flags = flag::ACK;
        if next.fin {
            flags |= flag::FIN;
        }
        if len > 0 && next.seq + len == self.cold.queue.end() {
            flags |= flag::PSH;
        }
        let options = self.timestamp_option(cx.now);
        let mut fields = self.fields(dst_mac, next.seq, flags, &options);
        if self.ect == ecn::ECT0 && !next.again && len > 0 {
            // RFC 3168 §6.1.2, §6.1.4, §6.1.5: neither retransmissions nor packets without data carry ECT or CWR.
            fields.ecn = self.ect;
            fields.flags |= self.reduced;
        }
        let mss = self.mss;
        let gso_size = if len > u32::from(mss) { self.cold.queue.unit(next.seq).min(mss) } else { 0 };
        cx.net.emit(cx.tx, &fields, &pieces, next.again, gso_size);
        drop(pieces);
        self.reduced &= if next.again { flag::CWR } else { 0 };
        self.acknowledged();
        len
    }

    /// Updates the state after a segment was sent.
    pub(super) fn sent<T>(&mut self, cx: &mut Cx<'_, T>, next: Next) {
        let end = next.seq + next.len;
        let idle = self.outstanding() == 0;
        let c = &mut self.cold;
        c.last_sent = cx.now;
        c.stalled_since = c.stalled_since.min(cx.now);
        if next.fin {
            self.flags.set(Flags::FIN);
        }
        let end = end + u32::from(next.fin);
        if next.again {
            c.retransmits += 1;
            match self.recovery {
                Recovery::None => {}
                Recovery::Timeout => cx.net.counters.timeout_retransmissions += 1,
                Recovery::Sack | Recovery::NewReno => cx.net.counters.fast_retransmissions += 1,
            }
            c.scoreboard.sent_again(next.seq..end, cx.now);
            self.count_for_undo(end - next.seq);
        } else {
            if self.timed {
                c.hold_until = Time::MAX;
            }
            c.last_len = next.len;
            c.scoreboard.sent(end, cx.now);
        }
        if self.recovery == Recovery::Sack {
            self.cold.congestion.on_recovery_sent(end - next.seq);
        }
        self.snd_nxt = self.snd_nxt.max(end);
        if idle {
            self.restart_timer(cx.now); // RFC 6298 (5.1)
        } else if !next.again {
            self.schedule_probe(cx.now);
        }
    }

    /// Returns the segment to send next while `pipe` octets are in flight; `None` if nothing may be sent.
    fn next<T>(&mut self, cx: &mut Cx<'_, T>, pipe: u32) -> Option<Next> {
        let mss = u32::from(self.mss);
        let cwnd = self.cold.congestion.allowed(pipe, cx.net.gso_max);
        let timeout = self.recovery == Recovery::Timeout;
        if !timeout && core::mem::take(&mut self.cold.resend_first) && self.outstanding() > 0 {
            let hole = self.cold.scoreboard.first_hole();
            return Some(self.again(self.snd_una, mss.min(hole)));
        }
        let by_scoreboard = timeout || self.recovery == Recovery::Sack;
        if by_scoreboard && self.cold.frto != Frto::NewData && self.cold.scoreboard.lost() > 0 {
            return self.next_lost(pipe, cwnd); // lost data goes before new data
        }
        // RFC 3042: each of the first two duplicate ACKs allows one new segment. With SACK, `pipe` accounts for this.
        let limited = if self.recovery == Recovery::None && !self.flags.has(Flags::SACK) {
            u32::from(self.dup_acks).min(DUP_THRESH - 1) * mss
        } else {
            0
        };
        // Outside of recovery, new data may go in trains of segments if the link takes them.
        let train = if self.recovery == Recovery::None { cwnd.saturating_sub(pipe) } else { 0 };
        let new = self.new_segment(cx, train)?;
        let allowed = pipe.saturating_add(new.len) <= cwnd.saturating_add(limited) || pipe == 0;
        self.cold.cwnd_limited = !allowed;
        (allowed || new.len == 0).then_some(new)
    }

    /// Returns the end of the data that was sent: SND.NXT without our FIN.
    pub(super) fn data_sent(&self) -> Seq {
        self.snd_nxt.min(self.cold.queue.end())
    }

    /// Returns a retransmission of at most `max` octets from `seq` on, with our FIN if it follows directly.
    pub(super) fn again(&mut self, seq: Seq, max: u32) -> Next {
        let max = max.min(u32::from(self.mss)).min(self.data_sent().since(seq));
        let len = if max == 0 { 0 } else { self.cold.queue.segment_len(seq, max, 0) };
        let fin = self.flags.has(Flags::FIN) && seq + len == self.cold.queue.end();
        Next { seq, len, fin, again: true }
    }

    /// Returns the next lost segment if the window allows it. The first lost segment of a recovery is sent in
    /// any case (RFC 6298 (5.4), RFC 6675 §5 (4.3)), because recovery would otherwise wait for the timer.
    fn next_lost(&mut self, pipe: u32, cwnd: u32) -> Option<Next> {
        let lost = self.cold.scoreboard.next_lost()?;
        let next = self.again(lost.start, lost.end - lost.start);
        let first = match self.recovery {
            Recovery::Timeout => core::mem::take(&mut self.cold.resend_first),
            _ => self.recovery == Recovery::Sack && self.cold.congestion.nothing_recovered(),
        };
        let fits = pipe.saturating_add(next.len) <= cwnd || pipe == 0 || first;
        fits.then_some(next)
    }

    /// Returns the next new segment that the peer's window allows, or our FIN. If one frame may carry several
    /// segments, returns as many as fit `train` octets. Starts the persist or override timer if the window is too
    /// small.
    pub(super) fn new_segment<T>(&mut self, cx: &mut Cx<'_, T>, train: u32) -> Option<Next> {
        let (seq, end) = (self.snd_nxt, self.cold.queue.end());
        let closing = self.flags.has(Flags::CLOSE) && !self.flags.has(Flags::FIN);
        if !seq.lt(end) {
            return closing.then_some(Next { seq, len: 0, fin: true, again: false });
        }
        let usable = (self.snd_una + self.snd_wnd).since(seq);
        let train = train.min(cx.net.gso_max).min(usable);
        let len = self.cold.queue.segment_len(seq, u32::from(self.mss), train);
        let segment = |len| Some(Next { seq, len, fin: closing && seq + len == end, again: false });
        if len <= usable {
            return segment(len);
        }
        // The record stays whole and waits until the window is large enough. If no window was ever large enough, the
        // record waits until the window is half of the largest one, and is then cut. After the override time it is cut
        // in any case (RFC 9293 §3.8.6.2.1). While the window is closed, the record waits and the window is probed.
        if usable == 0 {
            self.cold.hold_until = Time::MAX;
            if self.outstanding() == 0 && !self.cold.persist {
                self.cold.persist = true;
                self.cold.stalled_since = Time::MAX; // the data may have waited for the neighbour before
                self.cold.due = Due::Timeout;
                self.rtx_at = self.rtx_at.min(cx.now + self.cold.rtt.rto());
            }
            return None;
        }
        let never_fits = len > self.max_snd_wnd && usable >= self.max_snd_wnd / 2;
        if never_fits {
            return segment(usable);
        }
        if self.cold.hold_until == Time::MAX {
            self.cold.hold_until = cx.now + cx.net.cfg.tcp.sws_override;
            self.timed = true;
        } else if self.cold.hold_until <= cx.now {
            cx.net.counters.sws_overrides += 1;
            return segment(usable);
        }
        None
    }
}
