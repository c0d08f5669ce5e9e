//! For tests: two stacks and a wire between them. Buffers are vectors and time is a number.

use crate::*;
use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

pub struct Plain;

impl Buffers for Plain {
    type Frame = Vec<u8>;
    type Payload = Shared;
}

#[derive(Clone, Debug)]
pub struct Shared(pub Rc<[u8]>, u16);

impl Shared {
    pub fn new(bytes: &[u8]) -> Self {
        Shared(bytes.into(), 0)
    }

    pub fn with_unit(bytes: &[u8], unit: u16) -> Self {
        Shared(bytes.into(), unit)
    }

    /// Returns a record of parts, each of which begins with its length in one octet.
    pub fn uneven(parts: &[u8]) -> Self {
        let octets: Vec<u8> = parts.iter().flat_map(|&len| vec![len; len.into()]).collect();
        Shared(octets.into(), UNEVEN)
    }
}

impl Payload for Shared {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn unit(&self) -> u16 {
        self.1
    }

    fn cut(&self, from: usize, max: usize) -> usize {
        cut_between_parts(self.len(), from, max, |at| self.0[at].into())
    }

    fn sum(&self, r: Range<usize>) -> u16 {
        sum::sum(&self.0[r])
    }
}

/// A frame that was sent, with its attributes.
#[derive(Clone, Debug)]
pub struct Sent {
    pub bytes: Vec<u8>,
    pub retransmit: bool,
    pub loopback: bool,
}

/// The way out of a node. Frames wait here until the test moves them.
#[derive(Debug)]
pub struct Out {
    pub frames: VecDeque<Sent>,
    /// Most frames that may wait here.
    pub room: usize,
}

impl Transmit<Shared> for Out {
    fn room(&self) -> usize {
        self.room - self.frames.len().min(self.room)
    }

    fn emit(&mut self, e: Emit<'_, Shared>) {
        assert!(self.room() > 0, "emitted without room");
        assert!(e.payload.len() <= MAX_PIECES);
        let mut bytes = e.headers.to_vec();
        for p in e.payload {
            assert!(!p.range.is_empty(), "empty piece");
            bytes.extend_from_slice(&p.payload.0[p.range.clone()]);
        }
        self.frames.push_back(Sent { bytes, retransmit: e.retransmit, loopback: e.loopback });
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Accepted(BindId, ConnId, SocketAddr),
    Connected(ConnId, u64),
    Finished(ConnId),
    Closed(ConnId, CloseReason),
}

#[derive(Default)]
pub struct Recorder {
    pub events: Vec<Event>,
    pub data: HashMap<ConnId, Vec<u8>>,
    pub acked: HashMap<ConnId, u64>,
}

impl Handler<Vec<u8>> for Recorder {
    fn accepted(&mut self, l: BindId, c: ConnId, peer: SocketAddr) -> u64 {
        self.events.push(Event::Accepted(l, c, peer));
        0
    }

    fn connected(&mut self, c: ConnId, tag: u64) {
        self.events.push(Event::Connected(c, tag));
    }

    fn data(
        &mut self,
        c: ConnId,
        _: u64,
        frame: Vec<u8>,
        range: Range<usize>,
    ) -> Option<(Vec<u8>, Range<usize>)> {
        assert!(!range.is_empty());
        self.data.entry(c).or_default().extend_from_slice(&frame[range]);
        None
    }

    fn acked(&mut self, c: ConnId, _: u64, bytes: u64) {
        *self.acked.entry(c).or_default() += bytes;
    }

    fn finished(&mut self, c: ConnId, _: u64) {
        self.events.push(Event::Finished(c));
    }

    fn closed(&mut self, c: ConnId, _: u64, reason: CloseReason) {
        self.events.push(Event::Closed(c, reason));
    }
}

pub struct Node {
    pub stack: Stack<Plain>,
    pub seen: Recorder,
    pub out: Out,
}

impl Node {
    pub fn new(cfg: StackConfig) -> Self {
        let ports = Box::new(LocalPorts::new(cfg.seed));
        Node::with_ports(cfg, ports)
    }

    pub fn with_ports(cfg: StackConfig, ports: Box<dyn PortSpace + Send>) -> Self {
        Node {
            stack: Stack::new(cfg, ports, Time::ZERO).unwrap(),
            seen: Recorder::default(),
            out: Out { frames: VecDeque::new(), room: 1 << 20 },
        }
    }

    pub fn receive(&mut self, now: Time, frame: Vec<u8>) {
        self.stack.receive(now, frame, &mut self.seen, &mut self.out);
    }

    pub fn advance(&mut self, now: Time) {
        self.stack.advance(now, &mut self.seen, &mut self.out);
    }

    pub fn flush(&mut self, now: Time) {
        self.stack.flush(now, &mut self.out);
    }

    pub fn data(&self, c: ConnId) -> &[u8] {
        self.seen.data.get(&c).map_or(&[], |d| d)
    }

    pub fn closed(&self, c: ConnId) -> Option<CloseReason> {
        self.seen.events.iter().find_map(|e| match e {
            Event::Closed(id, reason) if *id == c => Some(*reason),
            _ => None,
        })
    }

    pub fn accepted(&self) -> Option<ConnId> {
        self.seen.events.iter().rev().find_map(|e| match e {
            Event::Accepted(_, c, _) => Some(*c),
            _ => None,
        })
    }

    pub fn finished(&self, c: ConnId) -> bool {
        self.seen.events.contains(&Event::Finished(c))
    }
}

/// Chooses the same local port for every connection.
pub struct Fixed(pub u16);

impl PortSpace for Fixed {
    fn bind(&mut self, _: Scope, port: u16) -> Result<u16, PortError> {
        Ok(port)
    }

    fn unbind(&mut self, _: Scope, _: u16) {}

    fn connect(&mut self, _: SocketAddr, _: &dyn Fn(u16) -> bool) -> Result<u16, PortError> {
        Ok(self.0)
    }

    fn connect_from(&mut self, _: u16, _: SocketAddr) -> Result<(), PortError> {
        Ok(())
    }

    fn release(&mut self, _: u16, _: SocketAddr) {}
}

pub const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const PORT: u16 = 7471;

pub fn config(ip: Ipv4Addr) -> StackConfig {
    let o = ip.octets();
    StackConfig::new([2, 0, o[0], o[1], o[2], o[3]], ip, 24, 0x5eed + u64::from(o[3]))
}

/// Returns two ranges of a frame, tagged or not, IPv4 or IPv6: that of the IP addresses and that of the TCP segment.
/// `None` for other frames.
pub fn ends(frame: &[u8]) -> Option<(Range<usize>, Range<usize>)> {
    let at = if frame.get(12..14)? == [0x81, 0] { 18 } else { 14 };
    let word = |i: usize| usize::from(u16::from_be_bytes([frame[i], frame[i + 1]]));
    match (word(at - 2), frame[at + 9], frame[at + 6]) {
        (0x0800, 6, _) => Some((at + 12..at + 20, at + 20..at + word(at + 2))),
        (0x86dd, _, 6) => Some((at + 8..at + 40, at + 40..at + 40 + word(at + 4))),
        _ => None,
    }
}

/// Returns the IPv6 address of the host that has an IPv4 address.
pub fn v6(ip: Ipv4Addr) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(ip.octets()[3]))
}

/// Replaces a host's IPv4 address by an IPv6 address.
pub fn only_v6(c: &mut StackConfig) {
    let ip = v6(c.ipv4().unwrap().0);
    c.addresses = vec![Address { ip: ip.into(), prefix_len: 64 }];
}

/// A view of an emitted TCP segment.
#[derive(Clone, Debug)]
pub struct View {
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

impl View {
    pub fn of(frame: &[u8]) -> Option<View> {
        let t = &frame[ends(frame)?.1];
        let header = usize::from(t[12] >> 4) * 4;
        let word = |i: usize| u32::from_be_bytes(t[i..i + 4].try_into().unwrap());
        Some(View {
            seq: word(4),
            ack: word(8),
            flags: t[13],
            window: u16::from_be_bytes([t[14], t[15]]),
            options: t[20..header].to_vec(),
            payload: t[header..].to_vec(),
        })
    }

    pub fn has_sack(&self) -> bool {
        let mut o = &self.options[..];
        while let [kind, rest @ ..] = o {
            match kind {
                0 => return false,
                1 => o = rest,
                5 => return true,
                _ => o = &o[usize::from(o[1])..],
            }
        }
        false
    }
}

/// Treatment of a frame by the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Pass,
    Drop,
    /// The frame arrives after all frames of its direction and exchange that are not delayed. Delayed frames keep their
    /// order.
    Delay,
    Twice,
}

/// Two nodes on one link, on which each exchange of frames takes 5 µs.
pub struct Pair {
    pub a: Node,
    pub b: Node,
    pub now: Time,
}

/// The node that sent a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    A,
    B,
}

impl Pair {
    pub fn new(change: impl Fn(&mut StackConfig)) -> Pair {
        let make = |ip| {
            let mut c = config(ip);
            change(&mut c);
            Node::new(c)
        };
        Pair { a: make(A), b: make(B), now: Time::from_secs(1) }
    }

    /// Exchanges frames until both nodes are silent, without running timers. Returns the number of frames.
    pub fn settle_with(&mut self, mut wire: impl FnMut(Side, &Sent) -> Act) -> usize {
        let mut frames = 0;
        loop {
            self.a.flush(self.now);
            self.b.flush(self.now);
            if self.a.out.frames.is_empty() && self.b.out.frames.is_empty() {
                return frames;
            }
            self.now += Duration::from_micros(5);
            for side in [Side::A, Side::B] {
                let (from, to) = match side {
                    Side::A => (&mut self.a, &mut self.b),
                    Side::B => (&mut self.b, &mut self.a),
                };
                let mut late = Vec::new();
                for sent in std::mem::take(&mut from.out.frames) {
                    check(&sent, from.stack.config());
                    frames += 1;
                    assert!(frames < 1_000_000, "they never fall silent");
                    let target = if sent.loopback { &mut *from } else { &mut *to };
                    match wire(side, &sent) {
                        Act::Pass => target.receive(self.now, sent.bytes),
                        Act::Drop => {}
                        Act::Delay => late.push(sent.bytes),
                        Act::Twice => {
                            target.receive(self.now, sent.bytes.clone());
                            target.receive(self.now, sent.bytes);
                        }
                    }
                }
                for bytes in late {
                    to.receive(self.now, bytes);
                }
            }
        }
    }

    pub fn settle(&mut self) -> usize {
        self.settle_with(|_, _| Act::Pass)
    }

    /// Lets time pass for `d`: timers run and frames flow.
    pub fn run_with(&mut self, d: Duration, mut wire: impl FnMut(Side, &Sent) -> Act) {
        let end = self.now + d;
        self.settle_with(&mut wire);
        loop {
            let next = [self.a.stack.next_deadline(), self.b.stack.next_deadline()];
            let next = next.into_iter().flatten().min().unwrap_or(Time::MAX);
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            self.a.advance(self.now);
            self.b.advance(self.now);
            self.settle_with(&mut wire);
        }
        self.now = self.now.max(end);
    }

    pub fn run(&mut self, d: Duration) {
        self.run_with(d, |_, _| Act::Pass);
    }

    /// Opens a connection from A to B. Returns both ends.
    pub fn connect(&mut self) -> (ConnId, ConnId) {
        let b = self.b.stack.config().addresses[0].ip;
        self.b.stack.listen_on(PORT, 16).ok();
        let client = self.a.stack.connect(self.now, SocketAddr::new(b, PORT), 77, &mut self.a.out).unwrap();
        self.settle();
        assert!(self.a.seen.events.contains(&Event::Connected(client, 77)), "{:?}", self.a.seen.events);
        (client, self.b.accepted().expect("accepted"))
    }

    /// Sends all of `data` from A in records of `record` octets, as room allows, until B has it. Panics if B
    /// does not have it after `limit`.
    pub fn transfer(
        &mut self,
        from: ConnId,
        to: ConnId,
        data: &[u8],
        record: usize,
        limit: Duration,
        mut wire: impl FnMut(Side, &Sent) -> Act,
    ) {
        let end = self.now + limit;
        let had = self.b.data(to).len();
        let mut records = data.chunks(record).peekable();
        while self.b.data(to).len() < had + data.len() {
            assert!(self.now < end, "{} of {} octets arrived", self.b.data(to).len() - had, data.len());
            assert_eq!(self.a.closed(from), None);
            let mut fed = false;
            while records.peek().is_some() && self.a.stack.room(from) > 0 {
                let r = records.next().unwrap();
                self.a.stack.send(from, Shared::new(r)).unwrap();
                fed = true;
            }
            self.a.stack.output(self.now, from, &mut self.a.out);
            let moved = self.settle_some(&mut wire);
            if !fed && !moved {
                let next = [self.a.stack.next_deadline(), self.b.stack.next_deadline()];
                let next = next.into_iter().flatten().min().expect("nothing will ever happen again");
                self.now = self.now.max(next);
                self.a.advance(self.now);
                self.b.advance(self.now);
            }
        }
        assert!(self.b.data(to)[had..] == *data, "the data is not what was sent");
    }

    /// Runs one exchange in each direction. Returns whether there were any frames.
    fn settle_some(&mut self, wire: &mut impl FnMut(Side, &Sent) -> Act) -> bool {
        self.a.flush(self.now);
        self.b.flush(self.now);
        let any = !self.a.out.frames.is_empty() || !self.b.out.frames.is_empty();
        self.now += Duration::from_micros(5);
        for side in [Side::A, Side::B] {
            let (from, to) = match side {
                Side::A => (&mut self.a, &mut self.b),
                Side::B => (&mut self.b, &mut self.a),
            };
            let mut late = Vec::new();
            for sent in std::mem::take(&mut from.out.frames) {
                check(&sent, from.stack.config());
                match wire(side, &sent) {
                    Act::Pass => to.receive(self.now, sent.bytes),
                    Act::Drop => {}
                    Act::Delay => late.push(sent.bytes),
                    Act::Twice => {
                        to.receive(self.now, sent.bytes.clone());
                        to.receive(self.now, sent.bytes);
                    }
                }
            }
            for bytes in late {
                to.receive(self.now, bytes);
            }
        }
        any
    }
}

/// Checks what must hold for every frame that a stack sends.
fn check(sent: &Sent, cfg: &StackConfig) {
    assert!(
        sent.bytes.len() <= 14 + 4 * usize::from(cfg.vlan.is_some()) + usize::from(cfg.mtu),
        "longer than the MTU"
    );
    if let Some(v) = View::of(&sent.bytes) {
        assert!(v.payload.is_empty() || !v.has_sack(), "SACK blocks on a data segment");
        let (addresses, segment) = ends(&sent.bytes).unwrap();
        let pseudo = sum::fold(u64::from(sum::sum(&sent.bytes[addresses])) + 6 + segment.len() as u64);
        assert_eq!(sum::add(pseudo, sum::sum(&sent.bytes[segment])), 0xffff, "bad checksum");
    }
}

/// Returns octets that differ from place to place.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect()
}
