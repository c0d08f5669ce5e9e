//! Passive opens (SYN-RECEIVED) and TIME-WAIT.

use super::*;
use crate::connection::mss_of;
use crate::connection::open::{syn_ack_window, syn_flags, syn_options};
use crate::cookie::{self, Cookies};
use crate::ecn;
use crate::neighbours::Neighbour;
use crate::sabotage::{Rule, broken};
use crate::seq::Seq;
use crate::timewait::Verdict;
use crate::wire::{Options, SynOptions, TcpFields, Timestamps, put_syn, put_timestamps};

impl<B: Buffers, H: Handler<B::Frame>, T: Transmit<B::Payload>> Call<'_, B, H, T> {
    /// Takes a segment for addresses without an entry (RFC 9293 §3.10.7.1 and §3.10.7.2). If they had a connection
    /// before, our initial sequence number must not be below `above`.
    pub fn arrive_new(&mut self, incoming: Incoming<'_, B::Frame>, above: Option<Seq>) {
        let Some(mac) = incoming.source_mac() else { return };
        if self.leaves_to_owner(&incoming) {
            return;
        }
        let Some(listener) = self.stack.listener_at(incoming.key) else {
            self.stack.net.counters.no_connection += 1;
            return self.refuse(&incoming);
        };
        let s = incoming.segment;
        let mut embryo = self.half_open_from(listener, &incoming, mac);
        embryo.iss = above.map_or(embryo.iss, |above| embryo.iss.max(above));
        match s.flags & (flag::RST | flag::ACK | flag::SYN) {
            flag::SYN => self.begin_embryo(embryo),
            flag::ACK if self.takes_cookies() => match self.accept_cookie(embryo, s) {
                Some(e) => {
                    if let Some(neighbour) = self.hold_peer(e.key) {
                        self.complete(&e, neighbour, incoming);
                    }
                }
                // A frame that another stack hands over arrives later than one that comes straight from the link. So
                // data, or the ACK of a second SYN-ACK, may overtake the ACK that holds the cookie. This is no reason
                // for a RST: that ACK opens the connection, and the peer retransmits the data.
                None if !self.stack.net.cfg.steering.is_alone() => {}
                None => self.refuse(&incoming),
            },
            f if f & flag::RST == 0 && f & flag::ACK != 0 => self.refuse(&incoming),
            _ => {}
        }
    }

    /// Returns whether another stack of the device owns the segment's addresses. If so, hands it the frame.
    #[inline]
    fn leaves_to_owner(&mut self, incoming: &Incoming<'_, B::Frame>) -> bool {
        let Some(owner) = self.stack.other_owner(incoming.key) else { return false };
        if broken(Rule::OwnerRefuses) {
            self.refuse(incoming);
        }
        // The owner counts this segment.
        let counters = &mut self.stack.net.counters;
        counters.segments_in -= 1;
        counters.congestion_marks_in -= u64::from(incoming.segment.ecn == ecn::CE);
        self.hand_over(Elsewhere::Stack(owner), &incoming.frame);
        true
    }

    /// Returns whether SYN cookies may come back and there is room for the connections that they open.
    fn takes_cookies(&self) -> bool {
        self.now < self.stack.cookies_until && !self.stack.is_full()
    }

    /// Returns the half-open connection for a SYN to `listener`, or for the SYN that must have preceded an ACK.
    fn half_open_from(&self, listener: BindId, incoming: &Incoming<'_, B::Frame>, mac: [u8; 6]) -> Embryo {
        let (key, s) = (incoming.key, incoming.segment);
        Embryo {
            key,
            listener,
            iss: self.stack.net.initial_sequence(key, self.now),
            irs: s.seq,
            ts_offset: self.stack.net.timestamp_offset(key),
            timestamp: s.timestamps.map(|t| t.value),
            syn: s.syn_options(),
            window: s.window,
            mac,
            retries: 0,
            sent_at: self.now,
            cookie: false,
        }
    }

    /// Answers with RST, to the MAC address that the frame came from.
    fn refuse(&mut self, incoming: &Incoming<'_, B::Frame>) {
        if let Some(mac) = incoming.source_mac() {
            self.stack.net.reset(self.now, self.tx, mac, incoming.key, incoming.segment);
        }
    }

    /// Begins a half-open connection. If there is no room for it, answers with a cookie. At the limit of connections,
    /// does not answer.
    fn begin_embryo(&mut self, e: Embryo) {
        let stack = &mut *self.stack;
        if stack.is_full() {
            stack.net.counters.syn_backlog_full += 1;
            return;
        }
        let room = stack.embryos.len() < stack.net.cfg.tcp.max_syn_backlog as usize;
        let Some(l) = stack.listener_mut(e.listener) else { return };
        if l.half_open >= l.backlog || !room {
            // A flood must not keep honest peers out (RFC 4987).
            stack.net.counters.syn_backlog_full += 1;
            return self.send_cookie(e);
        }
        l.half_open += 1;
        let key = e.key;
        let index = stack.embryos.insert(e).index;
        stack.enter(key, Place::Embryo(index));
        self.repeat_syn_ack(index);
    }

    /// Answers with a SYN-ACK that holds a cookie. The stack keeps no state.
    fn send_cookie(&mut self, mut e: Embryo) {
        e.cookie = true;
        e.syn.ecn = false;
        e.iss = self.stack.cookies(&e).number(self.now, mss_of(&e.syn, e.key));
        let net = &mut self.stack.net;
        // The cookie keeps window scale and SACK in our timestamp (`cookie::timestamp`), so without timestamps the
        // SYN-ACK must not accept them.
        if e.timestamp.is_none() || !net.cfg.tcp.timestamps {
            (e.syn.window_scale, e.syn.sack_permitted) = (None, false);
        }
        self.stack.cookies_until = self.now + cookie::LIFETIME;
        net.counters.syn_cookies_out += 1;
        send_syn_ack(net, self.now, &e, self.tx);
    }

    /// Takes the ACK of a SYN-ACK that held a cookie. Returns `e` as it was when that SYN-ACK was sent; `None` if the
    /// ACK holds no valid cookie.
    fn accept_cookie(&mut self, mut e: Embryo, s: &Segment) -> Option<Embryo> {
        (e.cookie, e.iss, e.irs) = (true, s.ack - 1, s.seq - 1);
        let Some(mss) = self.stack.cookies(&e).check(self.now, e.iss) else {
            self.stack.net.counters.syn_cookies_failed += 1;
            return None;
        };
        let timestamps = s.timestamps.filter(|_| self.stack.net.cfg.tcp.timestamps);
        e.syn = match timestamps {
            Some(t) => cookie::options(t.echo.wrapping_sub(e.ts_offset), mss),
            None => SynOptions { mss: Some(mss), ..SynOptions::default() },
        };
        self.stack.net.counters.syn_cookies_in += 1;
        Some(e)
    }

    /// Sends the SYN-ACK of a half-open connection and sets the timer for the next one.
    fn repeat_syn_ack(&mut self, index: u32) {
        let Stack { embryos, embryo_wheel, net, .. } = &mut *self.stack;
        let Some(e) = embryos.get_mut(index) else { return };
        let cfg = &net.cfg.tcp;
        embryo_wheel.schedule(index, self.now + e.timeout(cfg.rto_initial, cfg.rto_max));
        if self.tx.room() > 0 {
            e.sent_at = self.now;
        }
        send_syn_ack(net, self.now, e, self.tx);
    }

    /// Takes a segment in SYN-RECEIVED after a passive open (RFC 9293 §3.10.7.4, RFC 5961).
    pub fn arrive_embryo(&mut self, index: u32, incoming: Incoming<'_, B::Frame>) {
        let Some(e) = self.stack.embryos.get(index) else { return };
        let s = incoming.segment;
        let next = e.irs + 1;
        let in_window = next.le(s.seq) && s.seq.lt(next + u32::from(syn_ack_window(&self.stack.net)));
        if s.has(flag::RST) {
            if s.seq == next {
                self.stack.net.counters.resets_in += 1;
                self.stack.drop_embryo(index);
            }
            return;
        }
        if s.seq != e.irs && s.flags & (flag::SYN | flag::ACK) == flag::SYN {
            return self.answer_rival(e.listener, &incoming);
        }
        if s.ack != e.iss + 1
            && s.flags & (flag::SYN | flag::ACK) == flag::ACK
            && self.takes_cookies()
            && let Some(mac) = incoming.source_mac()
        {
            let rival = self.half_open_from(e.listener, &incoming, mac);
            if let Some(rival) = self.accept_cookie(rival, s) {
                if let Some(neighbour) = self.hold_peer(rival.key) {
                    self.stack.drop_embryo(index);
                    self.complete(&rival, neighbour, incoming);
                }
                return;
            }
        }
        let Some(e) = self.stack.embryos.get_mut(index) else { return };
        if s.has(flag::SYN) || !in_window {
            // This is the peer's SYN again, or a segment that does not fit. Our SYN-ACK tells the peer what we
            // expect. It goes to the MAC address of the repeated SYN, because that of the first SYN may have been
            // damaged on the way: the TCP checksum does not cover it.
            if s.has(flag::SYN)
                && s.seq == e.irs
                && let Some(mac) = incoming.source_mac()
            {
                e.mac = mac;
                // After a SYN without ECN, data should not be sent as ECT (RFC 3168 §6.1.1).
                e.syn.ecn &= s.syn_options().ecn;
            }
            if self.stack.net.may_reply(self.now) {
                self.repeat_syn_ack(index);
            }
            return;
        }
        if !s.has(flag::ACK) {
            return;
        }
        if s.ack != e.iss + 1 {
            return self.refuse(&incoming);
        }
        // If the connection cannot be opened now, we will send the SYN-ACK again, and the peer will answer again.
        let key = e.key;
        if self.stack.is_full() {
            self.stack.net.counters.syn_backlog_full += 1;
        } else if let Some(neighbour) = self.hold_peer(key)
            && let Some(e) = self.stack.drop_embryo(index)
        {
            self.complete(&e, neighbour, incoming);
        }
    }

    /// Holds the neighbour through which the peer of a new connection is reached. If there is no route, or no place for
    /// the neighbour, returns `None` and counts this. The caller then drops the peer's ACK, which the peer repeats when
    /// it gets our SYN-ACK again or retransmits its data.
    fn hold_peer(&mut self, key: Key) -> Option<Neighbour> {
        let net = &mut self.stack.net;
        let peer = net.remote(key).ip();
        let neighbour = net.next_hop(peer, self.now).and_then(|hop| net.hold(hop, self.now));
        net.counters.syn_backlog_full += u64::from(neighbour.is_none());
        neighbour
    }

    /// Answers another SYN for addresses that are half open. One of the two SYNs was forged or is old, and the stack
    /// does not know which. If it answered only the first SYN, it could keep the genuine one out. So the second SYN
    /// gets a cookie, and the answer that comes back first opens the connection.
    fn answer_rival(&mut self, listener: BindId, incoming: &Incoming<'_, B::Frame>) {
        let Some(mac) = incoming.source_mac() else { return };
        let rival = self.half_open_from(listener, incoming, mac);
        if self.stack.net.may_reply(self.now) {
            self.send_cookie(rival);
        }
    }

    /// Opens the connection, because the peer has answered our SYN-ACK.
    fn complete(&mut self, e: &Embryo, neighbour: Neighbour, incoming: Incoming<'_, B::Frame>) {
        let net = &mut self.stack.net;
        let peer = net.remote(e.key);
        let birth =
            Birth { key: e.key, iss: e.iss, ts_offset: e.ts_offset, neighbour, port: PortFrom::Listener };
        let mut c = Connection::new(birth, &net.cfg.tcp, &mut self.stack.colds, self.now);
        c.accept(e, net, self.now);
        net.counters.passive_opens += 1;
        let id = self.stack.adopt(c);
        let tag = self.handler.accepted(e.listener, id, peer);
        if let Some(c) = self.stack.connections.get_mut(id.index) {
            c.tag = tag;
        }
        self.arrive(id.index, incoming);
    }

    /// Takes a segment for addresses in TIME-WAIT.
    pub fn arrive_timewait(&mut self, index: u32, incoming: Incoming<'_, B::Frame>) {
        let listens = self.stack.listener_at(incoming.key).is_some();
        let Stack { timewaits, net, .. } = &mut *self.stack;
        let Some(t) = timewaits.get_mut(index) else { return };
        match t.judge(incoming.segment, net.cfg.tcp.timestamps) {
            Verdict::Ignore => return,
            Verdict::Disowned => return t.disowned = true,
            Verdict::Reopen if listens => {
                let above = t.next_sequence();
                self.stack.end_timewait(index);
                return self.arrive_new(incoming, Some(above));
            }
            Verdict::Restart => t.until = self.now + net.cfg.tcp.time_wait,
            Verdict::Acknowledge | Verdict::Reopen => {}
        }
        let Some(dst_mac) = incoming.source_mac() else { return };
        if self.tx.room() == 0 || !net.may_reply(self.now) {
            return;
        }
        let mut options = Options::new();
        if let Some(echo) = t.ts_recent {
            let value = (self.now.as_millis() as u32).wrapping_add(t.ts_offset);
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
        net.counters.acks_out += 1;
        net.emit(self.tx, &fields, &[], false, 0);
    }

    /// Runs the timers of half-open connections and of TIME-WAIT.
    pub fn run_passive_timers(&mut self) {
        while let Some(index) = self.stack.embryo_wheel.poll(self.now) {
            let retries = self.stack.net.cfg.tcp.syn_retries;
            match self.stack.embryos.get_mut(index) {
                Some(e) if e.retries >= retries => {
                    self.stack.drop_embryo(index);
                }
                Some(e) => {
                    e.retries += 1;
                    self.repeat_syn_ack(index);
                }
                None => {}
            }
        }
        self.stack.end_timewaits(self.now);
    }
}

impl<B: Buffers> Stack<B> {
    /// Returns the number of the stack that owns the addresses, among the stacks of this device; `None` if this stack
    /// owns them.
    #[inline]
    pub(super) fn other_owner(&self, key: Key) -> Option<usize> {
        let steering = &self.net.cfg.steering;
        if steering.is_alone() {
            return None;
        }
        steering.other_owner(self.net.local(key), self.net.remote(key))
    }

    /// Returns whether the limit of connections is reached.
    fn is_full(&self) -> bool {
        self.connections.len() >= self.net.cfg.tcp.max_connections as usize
    }

    fn cookies(&self, e: &Embryo) -> Cookies<'_> {
        let (local, remote) = (self.net.local(e.key), self.net.remote(e.key));
        Cookies { secret: &self.net.secret, local, remote, irs: e.irs }
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

    pub(super) fn next_timewait(&self) -> Option<Time> {
        self.timewait_order.front().map(|&(_, at)| crate::timer::round_up(at))
    }

    /// Puts a connection's addresses into TIME-WAIT. Drops the oldest entries if there are too many.
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

    /// Ends the TIME-WAIT entries whose time is over.
    fn end_timewaits(&mut self, now: Time) {
        while let Some(&(id, at)) = self.timewait_order.front() {
            if at > now {
                break;
            }
            self.timewait_order.pop_front();
            let Some(index) = self.timewaits.find(id) else { continue };
            match self.timewaits.get(index).map(|t| t.until) {
                // The wait was restarted in the meantime.
                Some(until) if until > now => self.timewait_order.push_back((id, until)),
                _ => self.end_timewait(index),
            }
        }
    }

    pub(super) fn end_timewait(&mut self, index: u32) {
        let Some(t) = self.timewaits.remove(index) else { return };
        self.leave(t.key);
        if t.owns_port {
            self.ports.release(t.key.local_port(), self.net.remote(t.key));
        }
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
