//! The stack: frames in, connections found, timers run, frames out.

mod audit;
mod bind;
mod burst;
mod foresee;
mod icmp;
mod icmp6;
mod ipv6;
mod passive;
mod user;

use crate::arp::{Claim, Resolved};
use crate::buffers::{BindId, Buffers, CloseReason, ConnId, Frame, Handler, Payload, Transmit};
use crate::config::{Address, ConfigError, Patience, StackConfig};
use crate::connection::{Birth, ConnInfo, Connection, Cx, Fate, Flags, PortFrom, State};
use crate::counters::Counters;
use crate::ipv6::is_no_host;
use crate::listen::{Binding, Embryo};
use crate::net::Net;
use crate::ports::{PortError, PortSpace};
use crate::sabotage::{Rule, broken};
use crate::slab::{Slab, SlabId};
use crate::table::{Key, Table};
use crate::time::Time;
use crate::timer::TimerWheel;
use crate::timewait::TimeWait;
use crate::wire::{
    self, Ip, PROTO_ICMP, PROTO_TCP, Refused, Segment, TYPE_ARP, TYPE_IPV4, TYPE_IPV6, TYPE_TAG, flag,
};
use burst::Acks;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::collections::{HashMap, VecDeque};
use thiserror::Error;

/// A network stack with one port and one address.
pub struct Stack<B: Buffers> {
    net: Net,
    ports: Box<dyn PortSpace + Send>,
    /// Who has which addresses.
    table: Table,
    connections: Slab<Connection<B>>,
    /// The connection that the last segment was for, if it still is one.
    last: u32,
    /// ACKs of the present burst that have not been counted.
    acks: Acks,
    wheel: TimerWheel,
    /// Connections that owe an ACK or may have something to send.
    work: VecDeque<u32>,
    bindings: Slab<Binding>,
    /// Those that listen, by port.
    listening: HashMap<u16, Vec<BindId>>,
    embryos: Slab<Embryo>,
    embryo_wheel: TimerWheel,
    /// Until when SYN cookies may come back.
    cookies_until: Time,
    timewaits: Slab<TimeWait>,
    /// Those in TIME-WAIT, the next to end first.
    timewait_order: VecDeque<(SlabId, Time)>,
    /// Connections that ended in a call without a handler.
    ended: Vec<(ConnId, u64, CloseReason)>,
    /// Where ICMP replies are built.
    scratch: Vec<u8>,
}

/// What an entry of the table names: the kind in the two highest bits, then the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Connection(u32),
    Embryo(u32),
    TimeWait(u32),
}

/// Stands for the EtherType of a frame of another VLAN; a length to Ethernet.
const OTHER_VLAN: u16 = 0;

const INDEX: u32 = (1 << 30) - 1;

impl Place {
    fn pack(self) -> u32 {
        match self {
            Place::Connection(i) => i,
            Place::Embryo(i) => i | 1 << 30,
            Place::TimeWait(i) => i | 2 << 30,
        }
    }

    #[inline]
    fn unpack(v: u32) -> Self {
        match v >> 30 {
            0 => Place::Connection(v & INDEX),
            1 => Place::Embryo(v & INDEX),
            _ => Place::TimeWait(v & INDEX),
        }
    }
}

/// Why a connection cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// No host has this address, or the port is zero.
    #[error("{0} is not the address of a host's port")]
    Address(SocketAddr),
    /// It is on another network and there is no gateway.
    #[error("no route to {0}")]
    Unreachable(IpAddr),
    /// What it was to come from is of the other family.
    #[error("the local address cannot reach {0}: it is of the other family")]
    Family(IpAddr),
    /// There is a connection from this local port to that port of the peer.
    #[error("port {0} has a connection to this peer already")]
    InUse(u16),
    /// All local ports are taken.
    #[error("no free local port")]
    NoPort,
    /// As many connections as are allowed, or as many neighbours.
    #[error("too many connections")]
    TooMany,
}

/// Why a record cannot be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// The connection is gone, or was closed by us.
    #[error("the connection is closed")]
    Closed,
    /// More is queued than `Stack::room` asked for, up to the limit.
    #[error("the send queue is full")]
    Full,
}

impl<B: Buffers> Stack<B> {
    /// A stack at `now`, without connections.
    ///
    /// # Errors
    /// A setting cannot work.
    pub fn new(cfg: StackConfig, ports: Box<dyn PortSpace + Send>, now: Time) -> Result<Self, ConfigError> {
        cfg.check()?;
        let mut net = Net::new(cfg, now);
        let table = Table::new(net.secret.random(), net.secret.random());
        Ok(Stack {
            net,
            ports,
            table,
            connections: Slab::new(),
            last: 0,
            acks: Acks::NONE,
            wheel: TimerWheel::new(now),
            work: VecDeque::new(),
            bindings: Slab::new(),
            listening: HashMap::new(),
            embryos: Slab::new(),
            embryo_wheel: TimerWheel::new(now),
            cookies_until: Time::ZERO,
            timewaits: Slab::new(),
            timewait_order: VecDeque::new(),
            ended: Vec::new(),
            scratch: Vec::new(),
        })
    }

    // ---- frames and time ----

    /// Takes a frame from the port, or one that was emitted with `loopback`.
    pub fn receive(
        &mut self,
        now: Time,
        frame: B::Frame,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        self.receive_burst(now, [frame], h, tx);
    }

    #[inline]
    fn take(
        &mut self,
        now: Time,
        frame: B::Frame,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        self.net.counters.frames_in += 1;
        let is_usual = frame.bytes().first_chunk().is_some_and(|h: &[u8; wire::ETHERNET]| {
            h.starts_with(&self.net.cfg.mac) && h.ends_with(&TYPE_IPV4.to_be_bytes())
        });
        if is_usual && self.net.cfg.vlan.is_none() {
            self.receive_ipv4(now, frame, wire::ETHERNET, h, tx);
        } else {
            self.receive_other(now, frame, h, tx);
        }
    }

    /// Takes a frame that may be anything.
    #[inline(never)]
    fn receive_other(
        &mut self,
        now: Time,
        frame: B::Frame,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        let bytes = frame.bytes();
        let for_us = bytes.starts_with(&self.net.cfg.mac)
            || bytes.starts_with(&[0xff; 6])
            || self.net.inet6.hears_frames_to(bytes);
        let (kind, at) = match wire::ether_type(bytes) {
            Some(TYPE_TAG) => self.untag(bytes),
            kind if self.net.cfg.vlan.is_none() => (kind, wire::ETHERNET),
            _ => (Some(OTHER_VLAN), wire::ETHERNET),
        };
        match kind {
            _ if !for_us => self.net.counters.not_for_us += 1,
            Some(TYPE_IPV4) => self.receive_ipv4(now, frame, at, h, tx),
            Some(TYPE_IPV6) => self.receive_ipv6(now, frame, at, h, tx),
            Some(TYPE_ARP) => {
                self.settle_acks(now, h, tx);
                self.receive_arp(now, bytes.get(at - wire::ETHERNET..).unwrap_or(&[]), h, tx);
            }
            Some(OTHER_VLAN) => self.net.counters.other_vlan += 1,
            Some(_) => self.net.counters.unknown_protocol += 1,
            None => self.net.counters.malformed += 1,
        }
    }

    /// What a frame with a tag carries, and where. A tag of VLAN zero is none but for its priority (IEEE 802.1Q), so
    /// stacks without a VLAN take it.
    fn untag(&self, frame: &[u8]) -> (Option<u16>, usize) {
        let at = wire::ETHERNET + wire::TAG;
        match wire::tagged(frame) {
            Some((vlan, kind)) if vlan == self.net.cfg.vlan.unwrap_or(0) => (Some(kind), at),
            Some(_) => (Some(OTHER_VLAN), at),
            None => (None, at),
        }
    }

    #[inline(always)]
    fn receive_ipv4(
        &mut self,
        now: Time,
        frame: B::Frame,
        at: usize,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        let ip = match wire::parse_ipv4(&frame, at) {
            Ok(ip) => ip,
            Err(refused) => {
                let c = &mut self.net.counters;
                *match refused {
                    Refused::Malformed => &mut c.malformed,
                    Refused::BadChecksum => &mut c.bad_ip_checksum,
                    Refused::Fragment => &mut c.fragments,
                } += 1;
                return;
            }
        };
        // Broadcasts and groups are nothing to TCP or echo (RFC 1122 §3.2.2.6, §4.2.3.10).
        let group = frame.bytes().first().is_none_or(|b| b & 1 != 0);
        if ip.dst != self.net.ip.to_bits() || ip.dst == 0 || group {
            self.net.counters.not_for_us += 1;
            return;
        }
        let source = Ipv4Addr::from_bits(ip.src);
        let may_be_none = matches!(ip.src >> 24, 0 | 127 | 224..);
        if may_be_none
            && (source.octets()[0] == 0
                || source.is_broadcast()
                || source.is_multicast()
                || source.is_loopback())
        {
            self.net.counters.malformed += 1;
            return;
        }
        match ip.protocol {
            PROTO_TCP => self.receive_tcp(now, frame, &ip, h, tx),
            PROTO_ICMP => {
                self.settle_acks(now, h, tx);
                self.receive_icmp(now, frame.bytes(), &ip, h, tx);
            }
            _ => self.net.counters.unknown_protocol += 1,
        }
    }

    #[inline(always)]
    fn receive_tcp(
        &mut self,
        now: Time,
        frame: B::Frame,
        ip: &Ip,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        let pseudo = |len| ip.pseudo_sum(len);
        let mut segment = Segment { ecn: ip.ecn, ..Segment::default() };
        let trusted = broken(Rule::Checksum);
        if let Err(refused) = wire::parse_tcp(&frame, &ip.payload, pseudo, trusted, &mut segment) {
            return self.refuse_segment(refused, wire::is_unfilled(&frame, &ip.payload, pseudo));
        }
        let key = Key::new(ip.src, segment.remote_port, segment.local_port);
        self.dispatch(now, key, &segment, frame, h, tx);
    }

    /// Counts a segment that cannot be used.
    fn refuse_segment(&mut self, refused: Refused, unfilled: bool) {
        if refused == Refused::BadChecksum {
            self.net.counters.bad_tcp_checksum += 1;
            self.net.counters.unfilled_tcp_checksum += u64::from(unfilled);
        } else {
            self.net.counters.malformed += 1;
        }
    }

    /// A segment arrives that is not what was to be expected.
    #[inline(never)]
    fn arrive_at(
        &mut self,
        now: Time,
        (key, place): (Key, Option<Place>),
        segment: &Segment,
        frame: B::Frame,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        match place {
            Some(Place::Connection(i)) => self.arrive(now, i, segment, frame, h, tx),
            Some(Place::Embryo(i)) => self.arrive_embryo(now, i, segment, frame, h, tx),
            Some(Place::TimeWait(i)) => self.arrive_timewait(now, i, segment, frame, h, tx),
            None => self.arrive_new(now, (key, None), segment, frame, h, tx),
        }
    }

    fn arrive(
        &mut self,
        now: Time,
        index: u32,
        segment: &Segment,
        frame: B::Frame,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        self.last = index;
        let Some(c) = self.connections.get_mut(index) else { return };
        let id = c.id(index);
        let fate = c.arrive(&mut Cx { now, net: &mut self.net, tx, id }, h, segment, frame);
        self.settle(now, id, fate, h);
    }

    fn receive_arp(
        &mut self,
        now: Time,
        frame: &[u8],
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        let (resolved, reply) = self.net.arp.receive(frame, now);
        self.net.counters.arp_conflicts = self.net.arp.conflicts().0;
        if let Some(reply) = reply
            && tx.room() > 0
        {
            self.net.counters.arp_replies_out += 1;
            self.net.emit_frame(tx, &reply, false);
        }
        if let Some(resolved) = resolved {
            self.wake_waiters(now, resolved, h);
        }
    }

    /// Runs the timers that are due, and reports connections that ended in a call without a handler.
    pub fn advance(&mut self, now: Time, h: &mut impl Handler<B::Frame>, tx: &mut impl Transmit<B::Payload>) {
        for (id, tag, reason) in self.ended.drain(..) {
            h.closed(id, tag, reason);
        }
        // All wheels are polled together, and say nothing new within a tick.
        if self.wheel.is_settled(now) {
            return;
        }
        while let Some(index) = self.wheel.poll(now) {
            let Some(c) = self.connections.get_mut(index) else { continue };
            let id = c.id(index);
            c.armed = Time::MAX;
            let mut fate = Fate::Keep;
            if c.deadline(&self.net) <= now {
                fate = c.on_timer(&mut Cx { now, net: &mut self.net, tx, id });
            }
            self.settle(now, id, fate, h);
        }
        self.advance_passive(now, tx);
        self.net.arp.advance_claim(now);
        while let Some(resolved) = self.net.arp.advance(now) {
            if let Some(resolved) = resolved {
                self.wake_waiters(now, resolved, h);
            }
        }
        self.advance_inet6(now, h);
    }

    /// Sends what accumulated during a pass: ARP requests, ACKs for in-order data, and what waited for room.
    pub fn flush(&mut self, now: Time, tx: &mut impl Transmit<B::Payload>) {
        self.flush_neighbours(tx);
        for _ in 0..self.work.len() {
            let Some(index) = self.work.pop_front() else { break };
            let Some(c) = self.connections.get_mut(index) else { continue };
            let id = c.id(index);
            c.flags.clear(Flags::LISTED);
            c.flush(&mut Cx { now, net: &mut self.net, tx, id });
            self.note(id.index);
        }
        // For those that want to send and do not know where to.
        self.flush_neighbours(tx);
    }

    /// Sends what is to be asked of neighbours.
    #[inline]
    fn flush_neighbours(&mut self, tx: &mut impl Transmit<B::Payload>) {
        while self.net.arp.has_requests() && tx.room() > 0 {
            if let Some(request) = self.net.arp.next_request() {
                self.net.counters.arp_requests_out += 1;
                self.net.emit_frame(tx, &request, false);
            }
        }
        self.flush_inet6(tx);
    }

    /// The link has come up: nobody need wait for the next try of what was lost while it was down.
    pub fn link_came_up(&mut self, now: Time) {
        self.net.arp.link_came_up(now);
        self.net.inet6.link_came_up(now);
    }

    /// Asks the network whether another host has our addresses, and announces them if not (RFC 5227, RFC 4862 §5.4):
    /// within 0.2 s [`claim`](Self::claim) tells. To be called when the link is up, before the addresses are used.
    pub fn claim_address(&mut self, now: Time) {
        if !self.net.ip.is_unspecified() {
            self.net.arp.claim_address(now);
            // At once: `advance` may have been called in this tick already.
            self.net.arp.advance_claim(now);
        }
        self.net.inet6.claim_addresses(now);
        self.net.inet6.advance(now);
    }

    /// Whether our addresses are ours.
    pub fn claim(&self) -> Claim {
        match (self.net.arp.claim(), self.net.inet6.claim()) {
            (Claim::Held, other)
            | (other @ Claim::Conflict(_), _)
            | (other @ Claim::Probing, Claim::Held) => other,
            (Claim::Probing, other) => other,
        }
    }

    /// The last other host that used an address of ours.
    pub fn rival(&self) -> Option<[u8; 6]> {
        self.net.arp.conflicts().1.or(self.net.inet6.conflicts().1)
    }

    /// The address of ours that another host used last.
    pub fn contested(&self) -> Option<IpAddr> {
        let v4 = self.net.arp.conflicts().1.map(|_| IpAddr::V4(self.net.ip));
        v4.or(self.net.inet6.contested_address().map(IpAddr::V6))
    }

    /// Our addresses that can be used at this moment, the main one first.
    pub fn addresses(&self) -> Vec<Address> {
        let v4 = self.net.cfg.addresses.iter().filter(|a| a.ip.is_ipv4()).copied();
        let v6: Vec<Address> = self.net.inet6.addresses().collect();
        if self.net.cfg.addresses.first().is_some_and(|a| a.ip.is_ipv6()) {
            v6.into_iter().chain(v4).collect()
        } else {
            v4.chain(v6).collect()
        }
    }

    /// When `advance` has something to do.
    pub fn next_deadline(&self) -> Option<Time> {
        if !self.ended.is_empty() {
            return Some(Time::ZERO);
        }
        let timers = [
            self.wheel.next_deadline(),
            self.embryo_wheel.next_deadline(),
            self.net.arp.next_deadline(),
            self.net.inet6.next_deadline(),
            self.next_timewait(),
        ];
        timers.into_iter().flatten().min()
    }

    /// `flush` has something to do: after a pass, because the port was full.
    pub fn wants_flush(&self) -> bool {
        !self.work.is_empty() || self.net.arp.has_requests() || self.net.inet6.has_frames()
    }

    // ---- inside ----

    #[inline]
    fn get(&self, conn: ConnId) -> Option<&Connection<B>> {
        self.connections.get(conn.index).filter(|c| c.generation == conn.generation)
    }

    #[inline]
    fn get_mut(&mut self, conn: ConnId) -> Option<&mut Connection<B>> {
        self.connections.get_mut(conn.index).filter(|c| c.generation == conn.generation)
    }

    /// Calls into a connection, then notes what it owes and when it is due.
    #[inline]
    fn with<T: Transmit<B::Payload>>(
        &mut self,
        now: Time,
        id: ConnId,
        tx: &mut T,
        f: impl FnOnce(&mut Connection<B>, &mut Cx<'_, T>),
    ) {
        let c = self.connections.get_mut(id.index).filter(|c| c.generation == id.generation);
        let Some(c) = c else { return };
        f(c, &mut Cx { now, net: &mut self.net, tx, id });
        self.note(id.index);
    }

    /// Puts a connection on the list of those that owe something, and its deadline into the wheel if that moved
    /// forward. (One that moved back is seen when the old one comes up.)
    #[inline]
    fn note(&mut self, index: u32) {
        let Some(c) = self.connections.get_mut(index) else { return };
        let owes = c.flags.has(Flags::OUTPUT) || c.flags.has(Flags::ACK);
        if owes && !c.waits_for_neighbour && !c.flags.has(Flags::LISTED) {
            c.flags.set(Flags::LISTED);
            self.work.push_back(index);
        }
        let deadline = c.next_deadline(&self.net);
        if deadline < c.armed {
            c.armed = deadline;
            self.wheel.schedule(index, deadline);
        }
    }

    #[inline]
    fn settle(&mut self, now: Time, id: ConnId, fate: Fate, h: &mut impl Handler<B::Frame>) {
        match fate {
            Fate::Keep => self.note(id.index),
            Fate::Closed(reason) => {
                if let Some(tag) = self.remove(id.index) {
                    h.closed(id, tag, reason);
                }
            }
            Fate::TimeWait => {
                let rest = self.connections.get(id.index).map(|c| c.time_wait(now, &self.net));
                if let Some(c) = self.take_out(id.index) {
                    if c.cold.port == PortFrom::Binding {
                        self.ports.release(c.key.local_port(), self.net.remote(c.key));
                    }
                    if let Some(rest) = rest {
                        self.begin_timewait(rest);
                    }
                    let tag = c.tag;
                    h.closed(id, tag, CloseReason::Graceful);
                }
            }
        }
    }

    /// Puts something under its addresses.
    fn enter(&mut self, key: Key, place: Place) {
        self.net.key_used(key);
        self.table.insert(key, place.pack());
    }

    /// Takes it out.
    fn leave(&mut self, key: Key) {
        if self.table.remove(key).is_some() {
            self.net.key_unused(key);
        }
    }

    /// Adds a connection under its addresses.
    fn adopt(&mut self, c: Connection<B>) -> ConnId {
        let key = c.key;
        let SlabId { index, generation } = self.connections.insert(c);
        if let Some(c) = self.connections.get_mut(index) {
            c.generation = generation;
        }
        self.enter(key, Place::Connection(index));
        ConnId { index, generation }
    }

    /// Ends a connection without a handler at hand.
    fn end(&mut self, id: ConnId, reason: CloseReason) {
        if self.get(id).is_some()
            && let Some(tag) = self.remove(id.index)
        {
            self.ended.push((id, tag, reason));
        }
    }

    fn remove(&mut self, index: u32) -> Option<u64> {
        let c = self.take_out(index)?;
        if c.cold.port != PortFrom::Listener {
            self.ports.release(c.key.local_port(), self.net.remote(c.key));
        }
        Some(c.tag)
    }

    fn take_out(&mut self, index: u32) -> Option<Connection<B>> {
        let c = self.connections.remove(index)?;
        c.leave(&self.net);
        self.leave(c.key);
        self.wheel.cancel(index);
        self.net.release(c.neighbour);
        self.net.held.changed(index, c.held(), 0);
        Some(c)
    }

    /// Whoever waited for a neighbour goes on, or gives up.
    fn wake_waiters(&mut self, now: Time, resolved: Resolved, h: &mut impl Handler<B::Frame>) {
        let (Resolved::Found(n) | Resolved::Absent(n)) = resolved;
        let found = matches!(resolved, Resolved::Found(_));
        self.net.counters.arp_failures += u64::from(!found);
        for id in self.net.take_waiters(n) {
            self.wake_connection(now, id, found, h);
        }
    }

    fn wake_connection(&mut self, now: Time, id: ConnId, found: bool, h: &mut impl Handler<B::Frame>) {
        let Some(c) = self.get_mut(id) else { return };
        c.waits_for_neighbour = false;
        let mut fate = Fate::Keep;
        if found {
            c.flags.set(Flags::OUTPUT);
        } else if c.state == State::SynSent {
            fate = Fate::Closed(CloseReason::Unreachable);
        } else {
            c.cold.soft_error = true; // RFC 1122 §4.2.3.9: others go on trying
        }
        self.settle(now, id, fate, h);
    }
}

#[cfg(test)]
mod tests;
