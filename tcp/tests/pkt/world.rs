//! The stack under test, and the script's view of it: time, frames, flows, events.

use crate::packet::{self, Arp, Origin, Packet, RST, SYN, Segment};
use crate::translate::Wire;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use urnic_tcp::{
    BindId, Buffers, CloseReason, ConnId, Emit, Handler, LocalPorts, Payload, Stack, StackConfig, Time,
    Transmit, cut_between_parts, sum,
};

pub const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
pub const US_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
pub const PEER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0xfe);
/// Our default port in a script, and the first of the peers' ports.
pub const PORT: u16 = 7471;
const PEER_PORT: u16 = 40_000;
/// A span of time, and how often the stack may wake in this span without sending anything.
const SPIN: (Duration, u32) = (Duration::from_millis(10), 300);
/// A peer's clock for timestamps at the start of a script.
const PEER_CLOCK: u32 = 1000;

pub struct Kinds;

impl Buffers for Kinds {
    type Frame = Vec<u8>;
    type Payload = Record;
}

#[derive(Clone)]
pub struct Record {
    pub bytes: Rc<[u8]>,
    pub unit: u16,
    /// Lengths of the parts, if the unit is [`UNEVEN`].
    pub parts: Rc<[usize]>,
}

impl Payload for Record {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn unit(&self) -> u16 {
        self.unit
    }

    fn cut(&self, from: usize, max: usize) -> usize {
        let mut parts = self.parts.iter();
        cut_between_parts(self.len(), from, max, |_| *parts.next().expect("a part begins there"))
    }

    fn sum(&self, r: Range<usize>) -> u16 {
        sum::sum(&self.bytes[r])
    }
}

/// Returns the MAC address of the host with address `ip`, which must not be ours.
pub fn mac_of(ip: impl Into<IpAddr>) -> [u8; 6] {
    let [a, b, c, d] = match ip.into() {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => ip.to_bits().to_be_bytes()[12..].try_into().expect("four octets"),
    };
    [2, 0, a, b, c, d]
}

/// Returns our address of the peer's family.
pub fn us(peer: IpAddr) -> IpAddr {
    if peer.is_ipv4() { US.into() } else { US_V6.into() }
}

/// Returns the octet that we or the peer send at a sequence number relative to the first.
pub fn octet(ours: bool, seq: u32) -> u8 {
    (seq.wrapping_mul(0x9e37_79b1) >> 24) as u8 ^ if ours { 0x5a } else { 0 }
}

/// The way out for the stack's frames. They wait here until a script looks at them.
#[derive(Default)]
pub struct Out {
    frames: VecDeque<Vec<u8>>,
    /// Number of frames that it still takes; `None`: any number.
    pub room: Option<usize>,
}

impl Transmit<Record> for Out {
    fn room(&self) -> usize {
        self.room.unwrap_or(1 << 20)
    }

    fn emit(&mut self, e: Emit<'_, Record>) {
        assert!(self.room() > 0, "a frame was emitted without room");
        if let Some(room) = &mut self.room {
            *room -= 1;
        }
        let mut bytes = e.headers.to_vec();
        for p in e.payload {
            bytes.extend_from_slice(&p.payload.bytes[p.range.clone()]);
        }
        self.frames.push_back(bytes);
    }
}

/// Events of a connection.
#[derive(Default)]
pub struct Session {
    pub accepted: bool,
    pub connected: bool,
    pub finished: bool,
    pub closed: Option<CloseReason>,
    /// Whether the script has expected `closed`.
    pub close_seen: bool,
    pub acked: u64,
    pub data: Vec<u8>,
    /// Octets that the user still takes; `None`: any number.
    pub appetite: Option<usize>,
    /// Ranges of `data` that a script has checked itself.
    pub known: Vec<Range<usize>>,
}

#[derive(Default)]
pub struct Events {
    pub sessions: HashMap<ConnId, Session>,
    accepted: Vec<(ConnId, SocketAddr)>,
}

impl Handler<Vec<u8>> for Events {
    fn accepted(&mut self, _: BindId, conn: ConnId, peer: SocketAddr) -> u64 {
        let peer = crate::translate::script_address(peer);
        self.sessions.entry(conn).or_default().accepted = true;
        self.accepted.push((conn, peer));
        0
    }

    fn connected(&mut self, conn: ConnId, _: u64) {
        self.sessions.entry(conn).or_default().connected = true;
    }

    fn data(
        &mut self,
        conn: ConnId,
        _: u64,
        frame: Vec<u8>,
        range: Range<usize>,
    ) -> Option<(Vec<u8>, Range<usize>)> {
        assert!(!range.is_empty(), "an empty range was delivered as data");
        let session = self.sessions.entry(conn).or_default();
        let taken = session.appetite.map_or(range.len(), |n| n.min(range.len()));
        session.appetite = session.appetite.map(|n| n - taken);
        let rest = range.start + taken..range.end;
        session.data.extend_from_slice(&frame[range.start..rest.start]);
        (!rest.is_empty()).then_some((frame, rest))
    }

    fn acked(&mut self, conn: ConnId, _: u64, bytes: u64) {
        self.sessions.entry(conn).or_default().acked += bytes;
    }

    fn finished(&mut self, conn: ConnId, _: u64) {
        self.sessions.entry(conn).or_default().finished = true;
    }

    fn closed(&mut self, conn: ConnId, _: u64, reason: CloseReason) {
        self.sessions.entry(conn).or_default().closed = Some(reason);
    }
}

/// A named connection: its addresses, and the state of the peer.
#[derive(Clone)]
pub struct Flow {
    pub name: String,
    pub peer: SocketAddr,
    pub port: u16,
    pub listener: Option<BindId>,
    pub conn: Option<ConnId>,
    /// Our initial sequence number; `None` until it was seen.
    pub iss: Option<u32>,
    pub peer_isn: u32,
    /// The window that the peer advertises from now on.
    pub window: u16,
    /// Our timestamp at the start of the script; `None` before our first timestamp.
    ts_origin: Option<u32>,
    /// Our last timestamp.
    pub ts_last: u32,
    /// Whether our SYN had timestamps.
    pub ts_ours: bool,
    /// Whether the peer's SYN had timestamps.
    pub ts_peer: bool,
    /// Octets that the script has sent.
    pub sent: u32,
}

impl Flow {
    /// Returns the origin of the numbers that we send.
    pub fn ours(&self) -> Origin {
        Origin { seq: self.iss.unwrap_or(0), ack: self.peer_isn, ts: self.ts_origin.unwrap_or(0) }
    }

    /// Returns the origin of the numbers that the peer sends.
    pub fn theirs(&self) -> Origin {
        Origin { seq: self.peer_isn, ack: self.iss.unwrap_or(0), ts: 0 }
    }
}

pub struct World {
    pub stack: Stack<Kinds>,
    pub out: Out,
    pub events: Events,
    pub start: Time,
    pub now: Time,
    pub flows: Vec<Flow>,
    /// Sent packets that no line has expected yet, with their times.
    pub pending: VecDeque<(Time, Packet)>,
    pub wire: Wire,
    /// Whether all hosts answer ARP requests.
    pub arp: bool,
    /// Default address of peers.
    pub peer: IpAddr,
    pub peer_isn: u32,
    pub peer_window: u16,
    /// Prescribed initial sequence number of our first connection; `None`: any.
    pub our_isn: Option<u32>,
    /// Time by which the script must start later so that `our_isn` holds; `None` if it holds.
    pub shift: Option<Duration>,
    pub trace: Vec<String>,
}

impl World {
    pub fn new(cfg: StackConfig, start: Time) -> Result<World, String> {
        let ports = Box::new(LocalPorts::new(cfg.seed));
        Ok(World {
            stack: Stack::new(cfg, ports, start).map_err(|e| e.to_string())?,
            out: Out::default(),
            events: Events::default(),
            start,
            now: start,
            flows: Vec::new(),
            pending: VecDeque::new(),
            wire: Wire::default(),
            arp: true,
            peer: PEER.into(),
            peer_isn: 1_000_000,
            peer_window: 0xffff,
            our_isn: None,
            shift: None,
            trace: Vec::new(),
        })
    }

    /// Returns the seconds since the start of the script.
    pub fn clock(&self, at: Time) -> String {
        format!("{:.6}", (at - self.start).as_secs_f64())
    }

    fn millis(&self) -> u32 {
        (self.now.as_millis() - self.start.as_millis()) as u32
    }

    pub fn peer_clock(&self) -> u32 {
        PEER_CLOCK + self.millis()
    }

    pub fn flow(&mut self, name: &str) -> usize {
        if let Some(i) = self.flows.iter().position(|f| f.name == name) {
            return i;
        }
        let n = self.flows.len() as u16;
        self.flows.push(Flow {
            name: name.into(),
            peer: SocketAddr::new(self.peer, PEER_PORT + n),
            port: PORT,
            listener: None,
            conn: None,
            iss: None,
            peer_isn: self.peer_isn,
            window: self.peer_window,
            ts_origin: None,
            ts_last: 0,
            ts_ours: false,
            ts_peer: false,
            sent: 0,
        });
        usize::from(n)
    }

    pub fn session(&mut self, flow: usize) -> Option<&mut Session> {
        let conn = self.flows[flow].conn?;
        Some(self.events.sessions.entry(conn).or_default())
    }

    /// Lets the stack receive a frame. The next `settle` completes the pass.
    pub fn receive(&mut self, frame: Vec<u8>) {
        if let Some(frame) = self.wire.inward(frame) {
            self.stack.receive(self.now, frame, &mut self.events, &mut self.out);
        }
    }

    /// Finishes a pass, and collects what the stack sent in it.
    pub fn settle(&mut self) -> Result<(), String> {
        loop {
            self.stack.advance(self.now, &mut self.events, &mut self.out);
            self.stack.flush(self.now, &mut self.out);
            for (conn, peer) in std::mem::take(&mut self.events.accepted) {
                let port = self.stack.local_addr(conn).map(|a| a.port());
                let of = |f: &&mut Flow| f.peer == peer && port.is_none_or(|port| f.port == port);
                if let Some(f) = self.flows.iter_mut().find(of) {
                    f.conn = Some(conn);
                    f.sent = 0;
                }
            }
            let mut answered = false;
            while let Some(frame) = self.out.frames.pop_front() {
                let outward = self.wire.outward(frame).map_err(|e| format!("the stack sent {e}"))?;
                let Some(frame) = outward else { continue };
                let packet = packet::parse(&frame).map_err(|e| format!("the stack sent {e}"))?;
                match packet {
                    Packet::Arp(a) if self.arp && a.request && a.target != US => {
                        self.arp_reply(a.target, mac_of(a.target));
                        answered = true;
                    }
                    Packet::Solicitation { target, from } => {
                        if target != US_V6 {
                            let us = self.stack.config().mac;
                            self.receive(packet::neighbour(us, mac_of(target), target, from));
                            answered = true;
                        }
                    }
                    Packet::Housekeeping => {}
                    packet => self.sent(packet)?,
                }
            }
            if !answered {
                return Ok(());
            }
        }
    }

    pub fn arp_reply(&mut self, sender: Ipv4Addr, sender_mac: [u8; 6]) {
        let us = self.stack.config().mac;
        let reply = Arp { request: false, dst_mac: us, sender_mac, sender, target_mac: us, target: US };
        self.receive(reply.frame());
    }

    fn sent(&mut self, packet: Packet) -> Result<(), String> {
        let millis = self.millis();
        if let Packet::Tcp(s) = &packet {
            let (from, to) = (s.src, SocketAddr::new(s.dst.0, s.dst.1));
            if from.0 != us(to.ip()) || s.src_mac != self.stack.config().mac {
                return Err("the stack sent a segment whose source addresses are not its own".into());
            }
            let Some(i) = self.flows.iter().position(|f| f.peer == to && f.port == from.1) else {
                return Err(format!(
                    "the stack sent a segment from port {} to {to}: no flow is there",
                    from.1
                ));
            };
            let f = &mut self.flows[i];
            if s.flags & SYN != 0 {
                f.iss = Some(s.seq);
                f.ts_ours = s.options.iter().any(|o| matches!(o, packet::Opt::Ts(..)));
                if let Some(wanted) = self.our_isn.take()
                    && wanted != s.seq
                {
                    // The clock of initial sequence numbers ticks every 4 µs (RFC 6528 §3).
                    self.shift = Some(Duration::from_micros(4 * u64::from(wanted.wrapping_sub(s.seq))));
                }
            }
            if let Some((value, _)) = timestamps(s)
                && s.flags & RST == 0
            {
                f.ts_origin.get_or_insert(value.wrapping_sub(millis));
                f.ts_last = value;
            }
        }
        let line = format!("{}  {}", self.clock(self.now), self.show(&packet));
        self.trace.push(line);
        self.pending.push_back((self.now, packet));
        Ok(())
    }

    /// Returns a packet of the stack in the language of scripts.
    pub fn show(&self, packet: &Packet) -> String {
        match packet {
            Packet::Tcp(s) => {
                let to = SocketAddr::new(s.dst.0, s.dst.1);
                match self.flows.iter().find(|f| f.peer == to && f.port == s.src.1) {
                    Some(f) if !f.name.is_empty() => format!("@{} {}", f.name, packet::show(s, f.ours())),
                    Some(f) => packet::show(s, f.ours()),
                    None => packet::show(s, Origin::default()),
                }
            }
            Packet::Arp(a) if a.request => format!("> arp request for {} from {}", a.target, a.sender),
            Packet::Arp(a) => format!("> arp reply to {}", a.target),
            Packet::Echo { reply: true, data } => format!("> icmp echo-reply {}", data.len()),
            Packet::Echo { data, .. } => format!("> icmp echo {}", data.len()),
            Packet::Solicitation { target, .. } => format!("> who has {target}?"),
            Packet::Housekeeping => "> something of IPv6".into(),
        }
    }

    /// Lets time pass up to `end`, or until something is sent. The stack must not ask to be called much more often
    /// than it has work, because a deadline that stays in the past would keep a core busy.
    pub fn advance(&mut self, end: Time) -> Result<(), String> {
        let (mut wakes, mut since) = (0, self.now);
        while self.pending.is_empty() {
            match self.stack.next_deadline() {
                Some(at) if at <= end => {
                    self.now = self.now.max(at);
                    if self.now - since > SPIN.0 {
                        (wakes, since) = (0, self.now);
                    }
                    wakes += 1;
                    if wakes > SPIN.1 {
                        return Err(format!("the stack wakes for nothing, {wakes} times in {:?}", SPIN.0));
                    }
                }
                _ => {
                    self.now = self.now.max(end);
                    return self.settle();
                }
            }
            self.settle()?;
        }
        Ok(())
    }

    /// Checks that delivered data equals the data that the peer sent, except for ranges that a script has checked
    /// itself.
    pub fn check_data(&self) -> Result<(), String> {
        for f in &self.flows {
            let Some(s) = f.conn.and_then(|c| self.events.sessions.get(&c)) else { continue };
            let wrong =
                s.data.iter().enumerate().find(|(i, b)| {
                    **b != octet(false, *i as u32 + 1) && !s.known.iter().any(|r| r.contains(i))
                });
            if let Some((i, _)) = wrong {
                return Err(format!("octet {} of the received data is wrong", i + 1));
            }
        }
        Ok(())
    }
}

pub fn timestamps(s: &Segment) -> Option<(u32, u32)> {
    s.options.iter().find_map(|o| match o {
        packet::Opt::Ts(v, e) => Some((*v, *e)),
        _ => None,
    })
}
