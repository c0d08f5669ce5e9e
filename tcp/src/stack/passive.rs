//! Passive opens, and what follows a connection: SYN-RECEIVED and TIME-WAIT.

use super::*;
use crate::connection::DEFAULT_PEER_MSS;
use crate::connection::open::{syn_ack_window, syn_flags, syn_options};
use crate::cookie::{self, Cookies};
use crate::ecn;
use crate::seq::Seq;
use crate::timewait::Verdict;
use crate::wire::{Options, SynOptions, TcpFields, Timestamps, put_syn, put_timestamps};

impl<B: Buffers> Stack<B> {
    /// A segment for addresses that have nothing (RFC 9293 §3.10.7.1 and §3.10.7.2). Where they had a connection before,
    /// our initial sequence number must not lie below a certain one.
    pub(super) fn arrive_new(
        &mut self,
        now: Time,
        (key, above): (Key, Option<Seq>),
        s: &Segment,
        frame: B::Frame,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        let Some(mac) = source_mac(&frame) else { return };
        let Some(listener) = self.listener_at(key) else {
            self.net.counters.no_connection += 1;
            return self.refuse(now, key, s, &frame, tx);
        };
        let mut embryo = self.conceive(now, key, listener, s, mac);
        embryo.iss = above.map_or(embryo.iss, |above| embryo.iss.max(above));
        match s.flags & (flag::RST | flag::ACK | flag::SYN) {
            flag::SYN => self.begin_embryo(now, embryo, tx),
            flag::ACK if now < self.cookies_until && !self.is_full() => match self.eat_cookie(now, embryo, s)
            {
                Some(e) => self.complete(now, &e, s, frame, h, tx),
                None => self.refuse(now, key, s, &frame, tx),
            },
            f if f & flag::RST == 0 && f & flag::ACK != 0 => self.refuse(now, key, s, &frame, tx),
            _ => {}
        }
    }

    /// What a SYN at `listener` asks for, or an ACK once did.
    fn conceive(&self, now: Time, key: Key, listener: BindId, s: &Segment, mac: [u8; 6]) -> Embryo {
        Embryo {
            key,
            listener,
            iss: self.net.initial_sequence(key, now),
            irs: s.seq,
            ts_offset: self.net.timestamp_offset(key),
            timestamp: s.timestamps.map(|t| t.value),
            syn: s.syn_options(),
            window: s.window,
            mac,
            retries: 0,
            sent_at: now,
            cookie: false,
        }
    }

    /// Answers with RST, to where the frame came from.
    fn refuse(
        &mut self,
        now: Time,
        key: Key,
        s: &Segment,
        frame: &B::Frame,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        if let Some(mac) = source_mac(frame) {
            self.net.reset(now, tx, mac, key, s);
        }
    }

    /// There are as many connections as are allowed.
    fn is_full(&self) -> bool {
        self.connections.len() >= self.net.cfg.tcp.max_connections as usize
    }

    fn begin_embryo(&mut self, now: Time, mut e: Embryo, tx: &mut impl Transmit<B::Payload>) {
        if self.is_full() {
            self.net.counters.syn_backlog_full += 1;
            return;
        }
        let room = self.embryos.len() < self.net.cfg.tcp.max_syn_backlog as usize;
        let Some(l) = self.listener_mut(e.listener) else { return };
        if l.half_open >= l.backlog || !room {
            // A flood must not keep honest peers out (RFC 4987).
            self.net.counters.syn_backlog_full += 1;
            self.bake_cookie(now, &mut e);
            send_syn_ack(&mut self.net, now, &e, tx);
            return;
        }
        l.half_open += 1;
        let key = e.key;
        let index = self.embryos.insert(e).index;
        self.enter(key, Place::Embryo(index));
        self.repeat_syn_ack(now, index, tx);
    }

    fn cookies(&self, e: &Embryo) -> Cookies<'_> {
        let (local, remote) = (self.net.local(e.key), self.net.remote(e.key));
        Cookies { secret: &self.net.secret, local, remote, irs: e.irs }
    }

    /// Makes the SYN-ACK one that need not be remembered.
    fn bake_cookie(&mut self, now: Time, e: &mut Embryo) {
        e.cookie = true;
        e.syn.ecn = false;
        e.iss = self.cookies(e).number(now, e.syn.mss.unwrap_or(DEFAULT_PEER_MSS));
        if e.timestamp.is_none() || !self.net.cfg.tcp.timestamps {
            (e.syn.window_scale, e.syn.sack_permitted) = (None, false);
        }
        self.cookies_until = now + cookie::LIFETIME;
        self.net.counters.syn_cookies_out += 1;
    }

    /// The ACK of a SYN-ACK that was not remembered: what `e` must have been, if it was sent at all.
    fn eat_cookie(&mut self, now: Time, mut e: Embryo, s: &Segment) -> Option<Embryo> {
        (e.cookie, e.iss, e.irs) = (true, s.ack - 1, s.seq - 1);
        let Some(mss) = self.cookies(&e).check(now, e.iss) else {
            self.net.counters.syn_cookies_failed += 1;
            return None;
        };
        let timestamps = s.timestamps.filter(|_| self.net.cfg.tcp.timestamps);
        e.syn = match timestamps {
            Some(t) => cookie::options(t.echo.wrapping_sub(e.ts_offset), mss),
            None => SynOptions { mss: Some(mss), ..SynOptions::default() },
        };
        self.net.counters.syn_cookies_in += 1;
        Some(e)
    }

    pub(super) fn drop_embryo(&mut self, index: u32) -> Option<Embryo> {
        let e = self.embryos.remove(index)?;
        self.leave(e.key);
        self.embryo_wheel.cancel(index);
        if let Some(l) = self.listener_mut(e.listener) {
            l.half_open = l.half_open.saturating_sub(1);
        }
        Some(e)
    }

    /// Sends a half-open connection's SYN-ACK and sets the timer for the next.
    fn repeat_syn_ack(&mut self, now: Time, index: u32, tx: &mut impl Transmit<B::Payload>) {
        let Some(e) = self.embryos.get_mut(index) else { return };
        let cfg = &self.net.cfg.tcp;
        self.embryo_wheel.schedule(index, now + e.timeout(cfg.rto_initial, cfg.rto_max));
        if tx.room() > 0 {
            e.sent_at = now;
        }
        send_syn_ack(&mut self.net, now, e, tx);
    }

    /// A segment in SYN-RECEIVED after a passive open (RFC 9293 §3.10.7.4, RFC 5961).
    pub(super) fn arrive_embryo(
        &mut self,
        now: Time,
        index: u32,
        s: &Segment,
        frame: B::Frame,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        let Some(e) = self.embryos.get(index) else { return };
        let (next, key) = (e.irs + 1, e.key);
        let in_window = next.le(s.seq) && s.seq.lt(next + u32::from(syn_ack_window(&self.net)));
        if s.has(flag::RST) {
            if s.seq == next {
                self.net.counters.resets_in += 1;
                self.drop_embryo(index);
            }
            return;
        }
        if s.seq != e.irs && s.flags & (flag::SYN | flag::ACK) == flag::SYN {
            return self.answer_rival(now, index, s, &frame, tx);
        }
        if s.ack != e.iss + 1
            && s.flags & (flag::SYN | flag::ACK) == flag::ACK
            && now < self.cookies_until
            && !self.is_full()
            && let Some(mac) = source_mac(&frame)
        {
            let rival = self.conceive(now, key, e.listener, s, mac);
            if let Some(rival) = self.eat_cookie(now, rival, s) {
                self.drop_embryo(index);
                return self.complete(now, &rival, s, frame, h, tx);
            }
        }
        let Some(e) = self.embryos.get(index) else { return };
        if s.has(flag::SYN) || !in_window {
            // The peer's SYN again, or something odd: our SYN-ACK says what is expected.
            // The source address of the first SYN may have been damaged under way: no checksum covers it.
            if s.has(flag::SYN)
                && s.seq == e.irs
                && let (Some(mac), Some(e)) = (source_mac(&frame), self.embryos.get_mut(index))
            {
                e.mac = mac;
            }
            if self.net.may_reply(now) {
                self.repeat_syn_ack(now, index, tx);
            }
            return;
        }
        if !s.has(flag::ACK) {
            return;
        }
        if s.ack != e.iss + 1 {
            self.refuse(now, key, s, &frame, tx);
            return;
        }
        if !self.is_full()
            && let Some(e) = self.drop_embryo(index)
        {
            return self.complete(now, &e, s, frame, h, tx);
        }
        // The SYN-ACK comes again, and with it the peer's answer.
        self.net.counters.syn_backlog_full += 1;
    }

    /// Another SYN for addresses that are half open. One of the two was forged, or is old: whichever it is, the other must
    /// not be kept out, as it would be if our answer went on going to where the first one came from. So this one is answered
    /// by a cookie, and the one that comes back opens the connection.
    fn answer_rival(
        &mut self,
        now: Time,
        index: u32,
        s: &Segment,
        frame: &B::Frame,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        let (Some(e), Some(mac)) = (self.embryos.get(index), source_mac(frame)) else { return };
        let mut rival = self.conceive(now, e.key, e.listener, s, mac);
        if self.net.may_reply(now) {
            self.bake_cookie(now, &mut rival);
            send_syn_ack(&mut self.net, now, &rival, tx);
        }
    }

    /// The peer has our SYN-ACK: the connection is open.
    fn complete(
        &mut self,
        now: Time,
        e: &Embryo,
        s: &Segment,
        frame: B::Frame,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        let peer = self.net.remote(e.key);
        let Some(hop) = self.net.next_hop(peer.ip(), now) else { return };
        let Some(neighbour) = self.net.hold(hop, now) else { return };
        let birth =
            Birth { key: e.key, iss: e.iss, ts_offset: e.ts_offset, neighbour, port: PortFrom::Listener };
        let mut c = Connection::new(birth, &self.net.cfg.tcp, now);
        c.accept(e, &self.net, now);
        let id = self.adopt(c);
        self.net.counters.passive_opens += 1;
        let tag = h.accepted(e.listener, id, peer);
        if let Some(c) = self.connections.get_mut(id.index) {
            c.tag = tag;
        }
        self.arrive(now, id.index, s, frame, h, tx);
    }

    /// Timers of half-open connections and of TIME-WAIT.
    pub(super) fn advance_passive(&mut self, now: Time, tx: &mut impl Transmit<B::Payload>) {
        while let Some(index) = self.embryo_wheel.poll(now) {
            let retries = self.net.cfg.tcp.syn_retries;
            match self.embryos.get_mut(index) {
                Some(e) if e.retries >= retries => {
                    self.drop_embryo(index);
                }
                Some(e) => {
                    e.retries += 1;
                    self.repeat_syn_ack(now, index, tx);
                }
                None => {}
            }
        }
        while let Some(&(id, at)) = self.timewait_order.front() {
            if at > now {
                break;
            }
            self.timewait_order.pop_front();
            let Some(index) = self.timewaits.find(id) else { continue };
            match self.timewaits.get(index).map(|t| t.until) {
                // It began anew in the meantime.
                Some(until) if until > now => self.timewait_order.push_back((id, until)),
                _ => self.end_timewait(index),
            }
        }
    }

    pub(super) fn next_timewait(&self) -> Option<Time> {
        self.timewait_order.front().map(|&(_, at)| crate::timer::round_up(at))
    }

    /// A connection's addresses begin to wait; the oldest make room if there are too many.
    pub(super) fn begin_timewait(&mut self, t: TimeWait) {
        let limit = self.net.cfg.tcp.max_time_wait as usize;
        while self.timewaits.len() >= limit.max(1) {
            let Some((id, _)) = self.timewait_order.pop_front() else { break };
            if let Some(index) = self.timewaits.find(id) {
                self.end_timewait(index);
            }
        }
        let (key, until) = (t.key, t.until);
        let id = self.timewaits.insert(t);
        self.enter(key, Place::TimeWait(id.index));
        self.timewait_order.push_back((id, until));
    }

    pub(super) fn end_timewait(&mut self, index: u32) {
        let Some(t) = self.timewaits.remove(index) else { return };
        self.leave(t.key);
        if t.owns_port {
            self.ports.release(t.key.local_port(), self.net.remote(t.key));
        }
    }

    /// A segment for addresses in TIME-WAIT.
    pub(super) fn arrive_timewait(
        &mut self,
        now: Time,
        index: u32,
        s: &Segment,
        frame: B::Frame,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        let until = now + self.net.cfg.tcp.time_wait;
        let Some(key) = self.timewaits.get(index).map(|t| t.key) else { return };
        let listens = self.listener_at(key).is_some();
        let Some(t) = self.timewaits.get_mut(index) else { return };
        match t.judge(s, self.net.cfg.tcp.timestamps) {
            Verdict::Ignore => return,
            Verdict::Reopen if listens => {
                let above = t.next_sequence();
                self.end_timewait(index);
                self.arrive_new(now, (key, Some(above)), s, frame, h, tx);
                return;
            }
            Verdict::Restart => t.until = until,
            Verdict::Acknowledge | Verdict::Reopen => {}
        }
        let Some(dst_mac) = source_mac(&frame) else { return };
        if tx.room() == 0 || !self.net.may_reply(now) {
            return;
        }
        let mut options = Options::new();
        if let Some(echo) = t.ts_recent {
            let value = (now.as_millis() as u32).wrapping_add(t.ts_offset);
            put_timestamps(&mut options, Timestamps { value, echo });
        }
        let fields = TcpFields {
            dst_mac,
            key: t.key,
            seq: t.snd_nxt,
            ack: t.rcv_nxt,
            flags: flag::ACK,
            ecn: ecn::NOT_ECT,
            window: t.window,
            options: &options,
        };
        self.net.counters.acks_out += 1;
        self.net.emit(tx, &fields, &[], false, 0);
    }
}

fn send_syn_ack<P: Payload>(net: &mut Net, now: Time, e: &Embryo, tx: &mut impl Transmit<P>) {
    if tx.room() == 0 {
        net.counters.tx_full += 1;
        return;
    }
    let timestamps = e.timestamp.filter(|_| net.cfg.tcp.timestamps).map(|echo| {
        let clock = now.as_millis() as u32;
        let value = if e.cookie { cookie::timestamp(clock, &e.syn) } else { clock };
        Timestamps { value: value.wrapping_add(e.ts_offset), echo }
    });
    let mut options = Options::new();
    let accepted = syn_options(net, e.key, Some(&e.syn));
    put_syn(&mut options, accepted, timestamps);
    let fields = TcpFields {
        dst_mac: e.mac,
        key: e.key,
        seq: e.iss,
        ack: e.irs + 1,
        flags: syn_flags(true, accepted.ecn),
        ecn: ecn::NOT_ECT,
        window: syn_ack_window(net),
        options: &options,
    };
    net.emit(tx, &fields, &[], e.retries > 0, 0);
}

/// The MAC address that a frame came from.
fn source_mac(frame: &impl Frame) -> Option<[u8; 6]> {
    frame.bytes().get(6..12)?.try_into().ok()
}
