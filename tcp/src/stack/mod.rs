//! The stack: takes frames, finds their connections, runs timers, sends frames.
//!
//! A pass is one round of calls by the engine that drives the stack.

mod audit;
mod bind;
mod burst;
mod call;
mod foresee;
mod icmp;
mod icmp6;
mod ipv6;
mod passive;
mod receive;
mod user;

use crate::arp::{Claim, Resolved};
use crate::buffers::{BindId, Buffers, CloseReason, ConnId, Elsewhere, Frame, Handler, Payload, Transmit};
use crate::config::{Address, ConfigError, Patience, StackConfig};
use crate::connection::{Birth, Cold, ConnInfo, Connection, Cx, Fate, Flags, PortFrom, State};
use crate::counters::Counters;
use crate::ipv6::is_no_host;
use crate::listen::{Binding, Embryo};
use crate::net::Net;
use crate::ports::{PortError, PortSpace};
use crate::rows::BoxRows;
use crate::slab::{Slab, SlabId};
use crate::table::{Key, Table};
use crate::time::Time;
use crate::timer::TimerWheel;
use crate::timewait::TimeWait;
use crate::wire::{
    self, Ip, PROTO_ICMP, PROTO_TCP, Refused, Segment, TYPE_ARP, TYPE_IPV4, TYPE_IPV6, TYPE_TAG, flag,
};
use burst::Acks;
use call::Call;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use receive::Incoming;
use std::collections::{HashMap, VecDeque};
use thiserror::Error;

/// A network stack on one port, or on one of its queues.
pub struct Stack<B: Buffers> {
    net: Net,
    ports: Box<dyn PortSpace + Send>,
    /// The entry for each pair of addresses and ports.
    table: Table,
    connections: Slab<Connection<B>>,
    /// Memory for the cold parts of connections.
    colds: BoxRows<Cold<B>>,
    /// Index of the connection that got the last segment. It is only a guess for the next segment: the connection may
    /// have ended.
    last: u32,
    /// Consecutive ACKs of the present burst that wait to be handled as one, or an ACK of the last burst that came with
    /// data.
    acks: Acks,
    wheel: TimerWheel,
    /// Connections that owe an ACK or may have data to send.
    work: VecDeque<u32>,
    /// Connections that owe a delayed ACK, and its deadline; the earliest first. An entry is void if the connection
    /// has sent the ACK or ended.
    late: VecDeque<(u32, Time)>,
    bindings: Slab<Binding>,
    /// Listening bindings, by port.
    listening: HashMap<u16, Vec<BindId>>,
    embryos: Slab<Embryo>,
    embryo_wheel: TimerWheel,
    /// Time until which SYN cookies may come back.
    cookies_until: Time,
    timewaits: Slab<TimeWait>,
    /// Entries in TIME-WAIT; the next one to end first.
    timewait_order: VecDeque<(SlabId, Time)>,
    /// Connections that ended in a call without a handler.
    ended: Vec<(ConnId, u64, CloseReason)>,
    /// Buffer in which ICMP replies are built.
    scratch: Vec<u8>,
    /// The frames of this call come from another stack of the device.
    taking_over: bool,
}

/// The meaning of a table entry. Its packed form has the kind in the two highest bits and the index in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Connection(u32),
    Embryo(u32),
    TimeWait(u32),
}

/// Stands in place of the EtherType for a frame of another VLAN. No EtherType has this value, because Ethernet uses
/// small values as lengths.
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
    /// The address is not a host's, or the port is zero.
    #[error("{0} is not the address and port of a host")]
    Address(SocketAddr),
    /// There is no route: we have no address or no gateway for the destination, or no host can have its address.
    #[error("no route to {0}")]
    Unreachable(IpAddr),
    /// Our own kernel forbids the connection. Only connections over the kernel's sockets report this.
    #[error("the host forbids connections to {0}")]
    Forbidden(IpAddr),
    /// The local address is of the other family.
    #[error("the local address cannot reach {0}: the two are of different families")]
    Family(IpAddr),
    /// The local port already has a connection to this address and port of the peer.
    #[error("port {0} has a connection to this peer already")]
    InUse(u16),
    /// Another stack of the device owns connections with these addresses. Open the connection there.
    #[error("the connection belongs to engine {0} of the device")]
    Elsewhere(usize),
    /// All local ports for which this stack would be the owner are taken, or the given reservation does not exist.
    #[error("no local port is free")]
    NoPort,
    /// The process has no file descriptor left. A connection over the kernel's sockets takes one.
    #[error("no file descriptor is left")]
    NoDescriptor,
    /// The limit of connections, of neighbours or of IPv6 address pairs is reached, or an earlier connection between
    /// the same addresses and ports still has an entry.
    #[error("too many connections")]
    TooMany,
}

/// Why a record cannot be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// The connection has ended, or the user has closed it.
    #[error("the connection is closed")]
    Closed,
    /// The queue has no room for the record. [`Stack::room`] recommends queueing less than the queue can hold.
    #[error("the send queue is full")]
    Full,
}

impl<B: Buffers> Stack<B> {
    /// Creates a stack at time `now`, without connections.
    ///
    /// # Errors
    /// A setting is invalid.
    pub fn new(cfg: StackConfig, ports: Box<dyn PortSpace + Send>, now: Time) -> Result<Self, ConfigError> {
        cfg.check()?;
        let mut net = Net::new(cfg, now);
        let table = Table::new(net.secret.random(), net.secret.random());
        Ok(Stack {
            net,
            ports,
            table,
            connections: Slab::new(),
            colds: BoxRows::default(),
            last: 0,
            acks: Acks::NONE,
            wheel: TimerWheel::new(now),
            work: VecDeque::new(),
            late: VecDeque::new(),
            bindings: Slab::new(),
            listening: HashMap::new(),
            embryos: Slab::new(),
            embryo_wheel: TimerWheel::new(now),
            cookies_until: Time::ZERO,
            timewaits: Slab::new(),
            timewait_order: VecDeque::new(),
            ended: Vec::new(),
            scratch: Vec::new(),
            taking_over: false,
        })
    }

    /// Takes a frame from the port, or a frame that was emitted with `loopback`.
    pub fn receive(
        &mut self,
        now: Time,
        frame: B::Frame,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        self.receive_burst(now, [frame], h, tx);
    }

    /// Runs the timers that are due. Reports connections that ended in a call without a handler.
    pub fn advance(&mut self, now: Time, h: &mut impl Handler<B::Frame>, tx: &mut impl Transmit<B::Payload>) {
        // Timers must know what has been acknowledged.
        self.settle(h, tx);
        for (id, tag, reason) in self.ended.drain(..) {
            h.closed(id, tag, reason);
        }
        // All wheels are polled together, and polling again within the same tick finds nothing new.
        if self.wheel.is_settled(now) {
            return;
        }
        Call { stack: self, now, handler: h, tx }.run_timers();
    }

    /// Sends what has accumulated during a pass: requests to neighbours, ACKs for in-order data, and data that waited
    /// for room.
    pub fn flush(&mut self, now: Time, tx: &mut impl Transmit<B::Payload>) {
        self.flush_neighbours(tx);
        if self.late.front().is_some_and(|(_, due)| *due <= now) {
            self.list_late(now);
        }
        if self.work.is_empty() {
            return;
        }
        for _ in 0..self.work.len() {
            let Some(index) = self.work.pop_front() else { break };
            let Some(c) = self.connections.get_mut(index) else { continue };
            let id = c.id(index);
            c.flags.clear(Flags::LISTED);
            c.flush(&mut Cx { now, net: &mut self.net, tx, id });
            self.note(now, id.index);
        }
        // Asks for the neighbours that connections have just found to be unknown.
        self.flush_neighbours(tx);
    }

    /// Sends the delayed ACKs now. Call this when the stack will not be driven for some time.
    pub fn flush_late(&mut self, now: Time, tx: &mut impl Transmit<B::Payload>) {
        if !self.late.is_empty() {
            self.list_late(Time::MAX);
            self.flush(now, tx);
        }
    }

    /// Lists the connections whose delayed ACKs are due at `now`, so that the next flush sends them.
    fn list_late(&mut self, now: Time) {
        while let Some(&(index, due)) = self.late.front()
            && due <= now
        {
            self.late.pop_front();
            let Some(c) = self.connections.get_mut(index) else { continue };
            let owes = core::mem::take(&mut c.late) && c.owes_ack();
            if owes && !c.flags.has(Flags::LISTED) && !c.waits_for_neighbour {
                c.flags.set(Flags::ACK | Flags::LISTED);
                self.work.push_back(index);
            }
        }
    }

    /// Sends requests to neighbours.
    #[inline]
    fn flush_neighbours(&mut self, tx: &mut impl Transmit<B::Payload>) {
        if self.net.arp.has_requests() || self.has_for_link() {
            self.flush_requests(tx);
        }
    }

    #[inline(never)]
    fn flush_requests(&mut self, tx: &mut impl Transmit<B::Payload>) {
        while self.net.arp.has_requests() && tx.room() > 0 {
            if let Some(request) = self.net.arp.next_request() {
                self.net.counters.arp_requests_out += 1;
                self.net.emit_frame(tx, &request, false);
            }
        }
        if self.has_for_link() {
            self.flush_inet6(tx);
        }
    }

    /// Notes that the link has come up. Requests that were lost while it was down are repeated without waiting for
    /// their timers.
    pub fn link_came_up(&mut self, now: Time) {
        self.net.arp.ask_again(now);
        self.net.inet6.link_came_up(now);
    }

    /// Asks the network whether another host has our addresses, and announces them if none has (RFC 5227, RFC 4862
    /// §5.4). [`claim`](Self::claim) returns the result within 0.2 s. Call this when the link is up, before using the
    /// addresses.
    pub fn claim_address(&mut self, now: Time) {
        if !self.net.ip.is_unspecified() {
            self.net.arp.claim_address(now);
            // Queues the first probe now, because `advance` may have run already in this tick.
            self.net.arp.advance_claim(now);
        }
        self.net.inet6.claim_addresses(now);
        self.net.inet6.advance(now);
    }

    /// Returns whether our addresses may be used, or which host has one of them.
    pub fn claim(&self) -> Claim {
        match (self.net.arp.claim(), self.net.inet6.claim()) {
            (Claim::Held, other)
            | (other @ Claim::Conflict(_), _)
            | (other @ Claim::Probing, Claim::Held) => other,
            (Claim::Probing, other) => other,
        }
    }

    /// Returns the MAC address of another host that used one of our addresses: the last one that used our IPv4 address,
    /// else the last one that used one of our IPv6 addresses; `None` if there was none.
    pub fn rival(&self) -> Option<[u8; 6]> {
        self.net.arp.conflicts().1.or(self.net.inet6.conflicts().1)
    }

    /// Returns our address that the host of [`rival`](Self::rival) used; `None` if there was none.
    pub fn contested(&self) -> Option<IpAddr> {
        let v4 = self.net.arp.conflicts().1.map(|_| IpAddr::V4(self.net.ip));
        v4.or(self.net.inet6.contested_address().map(IpAddr::V6))
    }

    /// Returns our IPv4 address, in any state of its claim, and our IPv6 addresses that can be used now. The family of
    /// the first configured address comes first.
    pub fn addresses(&self) -> Vec<Address> {
        let v4 = self.net.cfg.addresses.iter().filter(|a| a.ip.is_ipv4()).copied();
        let v6: Vec<Address> = self.net.inet6.addresses().collect();
        if self.net.cfg.addresses.first().is_some_and(|a| a.ip.is_ipv6()) {
            v6.into_iter().chain(v4).collect()
        } else {
            v4.chain(v6).collect()
        }
    }

    /// Returns when the next pass is needed even if no frame arrives: when a timer or a delayed ACK is due, or
    /// at once if `advance` must report the end of a connection or [settle](Self::settle) an ACK. `None`: no pass is
    /// needed.
    pub fn next_deadline(&self) -> Option<Time> {
        if !self.ended.is_empty() || self.acks.waits() {
            return Some(Time::ZERO);
        }
        let timers = [
            self.wheel.next_deadline(),
            self.embryo_wheel.next_deadline(),
            self.net.arp.next_deadline(),
            self.net.inet6.next_deadline(),
            self.next_timewait(),
            self.late.front().map(|(_, due)| *due),
        ];
        timers.into_iter().flatten().min()
    }

    /// Returns whether `flush` has something to send. After a pass this means that the port was full.
    pub fn wants_flush(&self) -> bool {
        !self.work.is_empty() || self.net.arp.has_requests() || self.net.inet6.has_frames()
    }

    #[inline]
    fn get(&self, conn: ConnId) -> Option<&Connection<B>> {
        self.connections.get(conn.index).filter(|c| c.generation == conn.generation)
    }

    #[inline]
    fn get_mut(&mut self, conn: ConnId) -> Option<&mut Connection<B>> {
        self.connections.get_mut(conn.index).filter(|c| c.generation == conn.generation)
    }

    /// Calls into a connection, then notes what it owes and its next deadline.
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
        self.note(now, id.index);
    }

    /// Lists a connection if it owes an ACK or output, and schedules its deadline.
    #[inline]
    fn note(&mut self, now: Time, index: u32) {
        let Some(c) = self.connections.get_mut(index) else { return };
        let owes = c.flags.has(Flags::OUTPUT) || c.flags.has(Flags::ACK);
        if owes && !c.waits_for_neighbour && !c.flags.has(Flags::LISTED) {
            c.flags.set(Flags::LISTED);
            self.work.push_back(index);
        } else if !owes && !c.late && c.owes_ack() {
            c.late = true;
            self.late.push_back((index, now + self.net.cfg.tcp.ack_wait()));
        }
        let deadline = c.next_deadline(&self.net);
        if deadline < c.armed {
            c.armed = deadline;
            self.wheel.schedule(index, deadline);
        }
    }

    /// Puts a connection's deadline into the wheel if it is earlier than the armed one. A later deadline is checked
    /// when the armed one expires.
    #[inline]
    fn schedule(&mut self, index: u32) {
        let Some(c) = self.connections.get_mut(index) else { return };
        let deadline = c.next_deadline(&self.net);
        if deadline < c.armed {
            c.armed = deadline;
            self.wheel.schedule(index, deadline);
        }
    }

    /// Adds an entry to the table.
    fn enter(&mut self, key: Key, place: Place) {
        self.net.key_used(key);
        self.table.insert(key, place.pack());
    }

    /// Removes the entry of these addresses from the table.
    fn leave(&mut self, key: Key) {
        if self.table.remove(key).is_some() {
            self.net.key_unused(key);
        }
    }

    /// Adds a connection to the slab and the table.
    fn adopt(&mut self, c: Connection<B>) -> ConnId {
        let key = c.key;
        let id = self.connections.insert(c);
        if let Some(c) = self.connections.get_mut(id.index) {
            c.generation = id.generation;
        }
        self.enter(key, Place::Connection(id.index));
        id.into()
    }

    /// Ends a connection in a call without a handler.
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
        self.acks.forget(index);
        c.leave(&self.net);
        self.leave(c.key);
        self.wheel.cancel(index);
        self.net.release(c.neighbour);
        self.net.held.changed(index, c.held(), 0);
        Some(c)
    }
}

#[cfg(test)]
mod tests;
