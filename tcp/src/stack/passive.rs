//! Passive opens, and what follows a connection: SYN-RECEIVED and TIME-WAIT.

use super::*;
use crate::connection::open::{syn_options, syn_window};
use crate::seq::Seq;
use crate::timewait::Verdict;
use crate::wire::{Options, TcpFields, Timestamps, ecn, put_syn, put_timestamps};

impl<B: Buffers> Stack<B> {
    /// Accepts connections to `port` (zero: any free one), at most `backlog` of them half open at a time.
    ///
    /// # Errors
    /// The port is taken.
    pub fn listen(&mut self, port: u16, backlog: usize) -> Result<ListenerId, ListenError> {
        let port = self.ports.listen(port).map_err(|e| match e {
            PortError::InUse => ListenError::InUse(port),
            PortError::Exhausted => ListenError::Exhausted,
        })?;
        self.listeners_made = self.listeners_made.wrapping_add(1);
        let generation = self.listeners_made;
        self.listeners.insert(port, Listener { generation, backlog: backlog.max(1), half_open: 0 });
        Ok(ListenerId { port, generation })
    }

    /// Accepts no more. Half-open connections of the listener are dropped, open ones stay.
    pub fn unlisten(&mut self, listener: ListenerId) {
        if self.listeners.get(&listener.port).is_none_or(|l| l.generation != listener.generation) {
            return;
        }
        self.listeners.remove(&listener.port);
        self.ports.unlisten(listener.port);
        for i in 0..self.embryos.places() {
            if self.embryos.get(i).is_some_and(|e| e.listener == listener) {
                self.drop_embryo(i);
            }
        }
    }

    /// A segment for addresses that have nothing (RFC 9293 §3.10.7.1 and §3.10.7.2). `above`: what our initial sequence
    /// number must not lie below, since the addresses had a connection before.
    pub(super) fn arrive_new(
        &mut self,
        now: Time,
        key: Key,
        s: &Segment,
        above: Option<Seq>,
        frame: &B::Frame,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        let Some(listener) = self.listeners.get(&key.local_port()) else {
            self.net.counters.no_connection += 1;
            self.refuse(now, key, s, frame, tx);
            return;
        };
        let port = key.local_port();
        let id = ListenerId { port, generation: listener.generation };
        match s.flags & (flag::RST | flag::ACK | flag::SYN) {
            flag::SYN => {
                if let Some(mac) = source_mac(frame) {
                    self.begin_embryo(now, key, id, s, above, mac, tx);
                }
            }
            f if f & flag::RST == 0 && f & flag::ACK != 0 => self.refuse(now, key, s, frame, tx),
            _ => {}
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
            self.net.reset(now, tx, mac, key.remote().ip().to_bits(), s);
        }
    }

    fn begin_embryo(
        &mut self,
        now: Time,
        key: Key,
        listener: ListenerId,
        s: &Segment,
        above: Option<Seq>,
        mac: [u8; 6],
        tx: &mut impl Transmit<B::Payload>,
    ) {
        let cfg = &self.net.cfg.tcp;
        let max_half_open = cfg.max_syn_backlog as usize;
        let Some(l) = self.listeners.get(&listener.port) else { return };
        if self.connections.len() + 1 > cfg.max_connections as usize || max_half_open == 0 {
            self.net.counters.syn_backlog_full += 1;
            return;
        }
        if l.half_open >= l.backlog || self.embryos.len() >= max_half_open {
            // A flood must not keep honest peers out: a random one goes (RFC 4987 §3.3). The table is small and full,
            // so a few draws find one that counts against the same limit.
            self.net.counters.syn_backlog_full += 1;
            let own_limit = l.half_open >= l.backlog;
            let start = self.net.secret.below(self.embryos.places());
            let victim = (0..self.embryos.places())
                .map(|i| (start + i) % self.embryos.places().max(1))
                .find(|&i| self.embryos.get(i).is_some_and(|e| !own_limit || e.listener == listener));
            let Some(victim) = victim else { return };
            self.drop_embryo(victim);
        }
        let iss = self.net.initial_sequence(key, now);
        let index = self.embryos.insert(Embryo {
            key,
            listener,
            iss: above.map_or(iss, |above| iss.max(above)),
            irs: s.seq,
            ts_offset: self.net.timestamp_offset(key),
            timestamp: s.timestamps.map(|t| t.value),
            syn: s.syn,
            window: s.window,
            mac,
            retries: 0,
            sent_at: now,
        });
        self.table.insert(key, Place::Embryo(index).pack());
        if let Some(l) = self.listeners.get_mut(&listener.port) {
            l.half_open += 1;
        }
        self.send_syn_ack(now, index, tx);
    }

    fn drop_embryo(&mut self, index: u32) -> Option<Embryo> {
        let e = self.embryos.remove(index)?;
        self.table.remove(e.key);
        self.embryo_wheel.cancel(index);
        if let Some(l) = self.listeners.get_mut(&e.listener.port)
            && l.generation == e.listener.generation
        {
            l.half_open = l.half_open.saturating_sub(1);
        }
        Some(e)
    }

    fn send_syn_ack(&mut self, now: Time, index: u32, tx: &mut impl Transmit<B::Payload>) {
        let Some(e) = self.embryos.get_mut(index) else { return };
        let cfg = &self.net.cfg.tcp;
        self.embryo_wheel.schedule(index, now + e.timeout(cfg.rto_initial, cfg.rto_max));
        if tx.room() == 0 {
            self.net.counters.tx_full += 1;
            return;
        }
        e.sent_at = now;
        let timestamps = e
            .timestamp
            .filter(|_| self.net.cfg.tcp.timestamps)
            .map(|echo| Timestamps { value: (now.as_millis() as u32).wrapping_add(e.ts_offset), echo });
        let mut options = Options::new();
        put_syn(&mut options, syn_options(&self.net, Some(&e.syn)), timestamps);
        let fields = TcpFields {
            dst_mac: e.mac,
            remote_ip: e.key.remote().ip().to_bits(),
            remote_port: e.key.remote().port(),
            local_port: e.key.local_port(),
            seq: e.iss,
            ack: e.irs + 1,
            flags: flag::SYN | flag::ACK,
            ecn: ecn::NOT_ECT,
            window: syn_window(&self.net),
            options: &options,
        };
        let again = e.retries > 0;
        self.net.emit(tx, &fields, &[], again, 0);
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
        let in_window = next.le(s.seq) && s.seq.lt(next + u32::from(syn_window(&self.net)));
        if s.has(flag::RST) {
            if s.seq == next {
                self.net.counters.resets_in += 1;
                self.drop_embryo(index);
            }
            return;
        }
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
                self.send_syn_ack(now, index, tx);
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
        if self.connections.len() >= self.net.cfg.tcp.max_connections as usize {
            self.net.counters.syn_backlog_full += 1;
            return; // the SYN-ACK comes again, and with it the peer's answer
        }
        let Some(hop) = self.net.next_hop(*key.remote().ip()) else { return };
        let Some(neighbour) = self.net.arp.hold(hop) else { return };
        let Some(e) = self.drop_embryo(index) else { return };
        let birth = Birth { key, iss: e.iss, ts_offset: e.ts_offset, neighbour, owns_port: false };
        let mut c = Connection::new(birth, &self.net.cfg.tcp, now);
        c.accept(&e, &self.net, now);
        let id = self.adopt(c);
        self.net.counters.passive_opens += 1;
        h.accepted(e.listener, id, key.remote());
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
                    self.send_syn_ack(now, index, tx);
                }
                None => {}
            }
        }
        while let Some(&(index, generation, at)) = self.timewait_order.front() {
            if at > now {
                break;
            }
            self.timewait_order.pop_front();
            if self.timewaits.generation(index) != Some(generation) {
                continue;
            }
            match self.timewaits.get(index).map(|t| t.until) {
                // It began anew in the meantime.
                Some(until) if until > now => self.timewait_order.push_back((index, generation, until)),
                _ => self.end_timewait(index),
            }
        }
    }

    pub(super) fn next_timewait(&self) -> Option<Time> {
        self.timewait_order.front().map(|&(_, _, at)| crate::timer::round_up(at))
    }

    /// A connection's addresses begin to wait; the oldest make room if there are too many.
    pub(super) fn begin_timewait(&mut self, t: TimeWait) {
        let limit = self.net.cfg.tcp.max_time_wait as usize;
        while self.timewaits.len() >= limit.max(1) {
            let Some((index, generation, _)) = self.timewait_order.pop_front() else { break };
            if self.timewaits.generation(index) == Some(generation) {
                self.end_timewait(index);
            }
        }
        let (key, until) = (t.key, t.until);
        let index = self.timewaits.insert(t);
        self.table.insert(key, Place::TimeWait(index).pack());
        let generation = self.timewaits.generation(index).unwrap_or(0);
        self.timewait_order.push_back((index, generation, until));
    }

    fn end_timewait(&mut self, index: u32) {
        let Some(t) = self.timewaits.remove(index) else { return };
        self.table.remove(t.key);
        if t.owns_port {
            self.ports.release(t.key.local_port(), t.key.remote());
        }
    }

    /// A segment for addresses in TIME-WAIT.
    pub(super) fn arrive_timewait(
        &mut self,
        now: Time,
        index: u32,
        s: &Segment,
        frame: &B::Frame,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        let until = now + self.net.cfg.tcp.time_wait;
        let Some(t) = self.timewaits.get_mut(index) else { return };
        match t.judge(s, self.net.cfg.tcp.timestamps) {
            Verdict::Ignore => return,
            Verdict::Reopen if self.listeners.contains_key(&t.key.local_port()) => {
                let (key, above) = (t.key, t.next_sequence());
                self.end_timewait(index);
                self.arrive_new(now, key, s, Some(above), frame, tx);
                return;
            }
            Verdict::Restart => t.until = until,
            Verdict::Acknowledge | Verdict::Reopen => {}
        }
        let Some(dst_mac) = source_mac(frame) else { return };
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
            remote_ip: t.key.remote().ip().to_bits(),
            remote_port: t.key.remote().port(),
            local_port: t.key.local_port(),
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

/// The MAC address that a frame came from.
fn source_mac(frame: &impl Frame) -> Option<[u8; 6]> {
    frame.bytes().get(6..12)?.try_into().ok()
}
