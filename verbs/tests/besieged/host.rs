//! A node full of hostile peers. Their TCP behaves well enough for a server to accept their segments, and breaks the
//! rules as the kind of attack requires.

use crate::common::PORT;
use crate::common::frames::{
    self, ACK, FIN, Heard, IPV4, PSH, Place, RST, SYN, Segment, arp_answer, ethernet, heard,
};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;
use urnic::simulation::{Host, Simulation};

/// The MPA Request of revision 1, with CRC, and the MPA Reply to it.
pub const REQUEST: &[u8] = b"MPA ID Req Frame\x40\x01\0\0";
pub const REPLY: &[u8] = b"MPA ID Rep Frame\x40\x01\0\0";
/// The TCP option for an MSS of 1460.
pub const MSS: &[u8] = &[2, 4, 5, 0xb4];
/// The address that the server connects to.
pub const LISTENER: Place = (Ipv4Addr::new(10, 1, 255, 1), 9000);
/// Maximum payload of a segment, in octets.
const PIECE: usize = 1400;

/// Default time from the end of a connection to the peer's next connection.
const LATER: Duration = Duration::from_millis(500);

/// Time from the first connection of one peer to the first connection of the next peer.
const APART: Duration = Duration::from_micros(5);

/// How a kind of attack reaches the server.
#[derive(Clone, Copy)]
pub enum By {
    /// TCP connections to the server.
    Tcp,
    /// TCP connections to the server, with the start-up of MPA.
    Iwarp,
    /// The server connects to the node, which does not answer the Request.
    Listen,
    /// The server connects to the node, which answers the Request.
    Accept,
    /// Single frames; the function makes the frame with a given number.
    Frames(fn(&mut fastrand::Rng, u32) -> Vec<u8>),
}

/// A kind of attack.
#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    pub by: By,
    /// Options of the SYN.
    pub options: &'static [u8],
    /// Called for a peer once it is connected, or once its start-up is complete.
    pub does: fn(&mut Peer),
    /// Interval between calls of `does`; `None`: one call for each connection.
    pub every: Option<Duration>,
    /// Called when data arrives at a peer.
    pub hears: fn(&mut Peer, &Heard<'_>),
    /// Time from the end of a connection to the peer's next connection; `None`: the peer does not connect again.
    pub again: Option<Duration>,
    /// Number of addresses of the peers.
    pub sources: u32,
    /// Whether the peers leave without a FIN or a reset.
    pub vanishes: bool,
    /// Whether a few of the peers use up all resources that the server grants to one source.
    pub crowds: bool,
}

impl Kind {
    pub const fn new(name: &'static str, by: By) -> Self {
        let again = Some(LATER);
        Kind {
            name,
            by,
            options: MSS,
            does: |_| {},
            every: None,
            hears: |p, _| p.acknowledge(),
            again,
            sources: 1,
            vanishes: false,
            crowds: false,
        }
    }

    /// Returns whether this kind sends many frames in a short time.
    pub fn is_quick(&self) -> bool {
        let often = self.every.is_some_and(|every| every < LATER / 5);
        matches!(self.by, By::Frames(_)) || often || self.again.is_some_and(|again| again < LATER)
    }

    pub const fn does(self, does: fn(&mut Peer)) -> Self {
        Kind { does, ..self }
    }

    pub const fn every(self, millis: u64) -> Self {
        Kind { every: Some(Duration::from_millis(millis)), ..self }
    }

    pub const fn again(self, millis: u64) -> Self {
        Kind { again: Some(Duration::from_millis(millis)), ..self }
    }

    pub const fn hears(self, hears: fn(&mut Peer, &Heard<'_>)) -> Self {
        Kind { hears, ..self }
    }

    pub const fn options(self, options: &'static [u8]) -> Self {
        Kind { options, ..self }
    }

    pub const fn sources(self, sources: u32) -> Self {
        Kind { sources, ..self }
    }

    pub const fn crowds(self) -> Self {
        Kind { crowds: true, ..self }
    }

    pub const fn vanishes(self) -> Self {
        Kind { vanishes: true, again: None, ..self }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The peer waits for its time to connect.
    Away,
    Connecting,
    /// The start-up is under way: the peer waits for the server's Reply or Request; with [`By::Listen`], for
    /// any segment.
    Starting,
    Busy,
}

/// A peer, which makes one connection after another.
pub struct Peer {
    pub number: u32,
    /// The server's memory that peers may read: STag and first octet.
    pub hall: (u32, u64),
    /// The next sequence number to send.
    pub next: u32,
    /// The next sequence number that the peer expects.
    pub expected: u32,
    /// Octets that the peer has not yet sent.
    unsaid: VecDeque<u8>,
    /// The right edge of the server's window.
    edge: u32,
    /// The window that the peer's segments announce.
    pub window: u16,
    pub options: Vec<u8>,
    /// Whether the peer acknowledges octets that arrive in order.
    pub takes: bool,
    /// Number of calls of [`Kind::does`] for this connection.
    pub round: u32,
    /// Number of connections for which the peer has called [`Kind::does`].
    pub begun: u32,
    /// The first octets that the peer has received.
    heard: Vec<u8>,
    finished: bool,
    who: Place,
    to: Place,
    state: State,
    at: Option<Duration>,
    out: Vec<Vec<u8>>,
}

impl Peer {
    fn new(number: u32, hall: (u32, u64)) -> Self {
        Peer {
            number,
            hall,
            next: 0,
            expected: 0,
            unsaid: VecDeque::new(),
            edge: 0,
            window: u16::MAX,
            options: Vec::new(),
            takes: true,
            round: 0,
            begun: 0,
            heard: Vec::new(),
            finished: false,
            who: (Ipv4Addr::UNSPECIFIED, 0),
            to: (Simulation::address(0), PORT),
            state: State::Away,
            at: None,
            out: Vec::new(),
        }
    }

    /// Returns a regular segment with these flags.
    pub fn plain(&self, flags: u8) -> Segment<'static> {
        let (number, acknowledges, window) = (self.next, self.expected, self.window);
        Segment { number, acknowledges, flags, window, ..Segment::default() }
    }

    pub fn segment(&mut self, segment: &Segment<'_>) {
        let packet = if segment.options.is_empty() && !self.options.is_empty() {
            frames::tcp(self.who, self.to, &Segment { options: &self.options, ..*segment })
        } else {
            frames::tcp(self.who, self.to, segment)
        };
        self.out.push(ethernet(&Simulation::mac(0), Simulation::mac(crate::THEIRS), IPV4, &packet));
    }

    pub fn acknowledge(&mut self) {
        self.segment(&self.plain(ACK));
    }

    /// Sends octets in order, as far as the server's window allows.
    pub fn say(&mut self, octets: &[u8]) {
        self.unsaid.extend(octets);
        self.go_on();
    }

    /// Returns whether the peer has sent all its octets.
    pub fn has_said_all(&self) -> bool {
        self.unsaid.is_empty()
    }

    fn go_on(&mut self) {
        loop {
            let room = self.edge.wrapping_sub(self.next).min(PIECE as u32 * 1024) as usize;
            let room = if (self.edge.wrapping_sub(self.next) as i32) < 0 { 0 } else { room };
            let length = self.unsaid.len().min(PIECE).min(room);
            if length == 0 {
                return;
            }
            let piece: Vec<u8> = self.unsaid.drain(..length).collect();
            self.segment(&Segment { payload: &piece, ..self.plain(ACK | PSH) });
            self.next = self.next.wrapping_add(length as u32);
        }
    }

    /// Sends a FIN.
    pub fn finish(&mut self) {
        self.segment(&self.plain(FIN | ACK));
        self.next = self.next.wrapping_add(1);
    }

    /// Resets the connection.
    pub fn reset(&mut self) {
        self.segment(&self.plain(RST | ACK));
        self.state = State::Away;
    }

    /// Forgets the connection, without a FIN or a reset.
    pub fn vanish(&mut self) {
        self.state = State::Away;
    }

    fn connect(&mut self, kind: &Kind, who: Place, now: Duration) {
        *self = Peer {
            who,
            begun: self.begun,
            out: std::mem::take(&mut self.out),
            ..Peer::new(self.number, self.hall)
        };
        self.next = who.1.into();
        self.segment(&Segment { options: kind.options, ..self.plain(SYN) });
        self.next += 1;
        self.state = State::Connecting;
        // If the attempt to connect fails, the peer tries again after this time.
        self.at = Some(now + Duration::from_secs(3));
    }

    /// Handles the SYN by which the server opens a connection to the peer.
    fn admit(&mut self, kind: &Kind, heard: &Heard<'_>) {
        *self = Peer { who: heard.to, to: heard.from, next: 77, ..Peer::new(self.number, self.hall) };
        self.expected = heard.number.wrapping_add(1);
        self.segment(&Segment { options: kind.options, ..self.plain(SYN | ACK) });
        self.next += 1;
        self.state = State::Starting;
    }

    fn begin(&mut self, kind: &Kind, now: Duration) {
        self.state = State::Busy;
        self.begun += 1;
        self.act(kind, now);
    }

    fn act(&mut self, kind: &Kind, now: Duration) {
        (kind.does)(self);
        self.round += 1;
        self.at = match self.state {
            State::Away => kind.again.map(|pause| now + pause),
            _ => kind.every.map(|every| now + every),
        };
    }

    /// Handles a segment for the peer.
    fn hear(&mut self, kind: &Kind, heard: &Heard<'_>, now: Duration) {
        if heard.flags & RST != 0 {
            self.state = State::Away;
            self.at = kind.again.map(|pause| now + pause);
            return;
        }
        if heard.flags & ACK != 0 {
            self.edge = heard.acknowledges.wrapping_add(heard.window.into());
        }
        match self.state {
            State::Away => return,
            State::Connecting if heard.flags & (SYN | ACK) == SYN | ACK => {
                self.expected = heard.number.wrapping_add(1);
                self.at = None;
                // If the peer offers time stamps, every segment must have them.
                if kind.options.get(6) == Some(&8) {
                    self.options = kind.options[4..].to_vec();
                }
                self.acknowledge();
                match kind.by {
                    By::Iwarp => {
                        self.state = State::Starting;
                        self.say(REQUEST);
                    }
                    _ => self.begin(kind, now),
                }
                return;
            }
            State::Connecting => return,
            _ => {}
        }
        let in_order = heard.number == self.expected;
        let busy = self.state == State::Busy;
        if in_order && (self.takes || !busy) {
            self.expected = self.expected.wrapping_add(heard.payload.len() as u32);
            let room = 64 - self.heard.len().min(64);
            self.heard.extend(&heard.payload[..heard.payload.len().min(room)]);
            if heard.flags & FIN != 0 && !self.finished {
                self.finished = true;
                self.expected = self.expected.wrapping_add(1);
            }
        }
        if !heard.payload.is_empty() || heard.flags & FIN != 0 || !in_order {
            if busy { (kind.hears)(self, heard) } else { self.acknowledge() }
        }
        if self.state == State::Starting && self.heard.len() >= REQUEST.len() {
            if matches!(kind.by, By::Accept) {
                self.say(REPLY);
            }
            self.begin(kind, now);
        } else if self.state == State::Starting && matches!(kind.by, By::Listen) {
            self.begin(kind, now);
        }
        self.go_on();
        if self.finished && kind.again.is_some() && self.state == State::Busy {
            // The server has sent its FIN. A peer that will connect again answers with a reset.
            self.reset();
            self.at = kind.again.map(|pause| now + pause);
        }
    }
}

/// The node.
pub struct Camp {
    kind: Option<Kind>,
    hall: (u32, u64),
    peers: Vec<Peer>,
    by_place: HashMap<Place, usize>,
    /// The times at which peers act next, with the numbers of the peers.
    turns: BinaryHeap<Reverse<(Duration, usize)>>,
    /// Number of frames that floods have sent so far.
    frames: u32,
    /// Time of the next frame.
    next: Duration,
    /// Interval between frames.
    every: Duration,
    random: fastrand::Rng,
    now: Duration,
    /// Number of connections opened in this attack.
    pub opened: usize,
    /// Number of frames that a flood has sent in this attack; 0 for other attacks.
    pub sent: usize,
    /// Whether all peers leave at the next call of `turn`. From then on the node answers only ARP requests.
    pub leaves: bool,
}

/// Makes a node for a simulation, and the test's handle to this node.
pub fn camp() -> (Rc<RefCell<Camp>>, Box<dyn Host>) {
    let camp = Rc::new(RefCell::new(Camp {
        kind: None,
        hall: (0, 0),
        peers: Vec::new(),
        by_place: HashMap::new(),
        turns: BinaryHeap::new(),
        frames: 0,
        next: Duration::ZERO,
        every: Duration::ZERO,
        random: fastrand::Rng::with_seed(5),
        now: Duration::ZERO,
        opened: 0,
        sent: 0,
        leaves: false,
    }));
    (camp.clone(), Box::new(Shared(camp)))
}

impl Camp {
    /// Starts an attack by `count` peers. A flood sends 50 frames a second for each of them.
    pub fn attack(&mut self, kind: Kind, count: u32, hall: (u32, u64)) {
        (self.kind, self.hall) = (Some(kind), hall);
        (self.opened, self.sent) = (0, 0);
        self.every = Duration::from_millis(20) / count;
        self.next = self.now;
        if matches!(kind.by, By::Tcp | By::Iwarp) {
            // The requests are spread over time, because simultaneous requests of one source would exceed the backlog.
            let at = |number| self.now + number * APART;
            let peer = |number| Peer { at: Some(at(number)), ..Peer::new(number, hall) };
            self.peers = (0..count).map(peer).collect();
            self.turns = (0..count).map(|number| Reverse((at(number), number as usize))).collect();
        }
    }

    /// Returns how many peers have acted at least once.
    pub fn begun(&self) -> usize {
        self.peers.iter().filter(|peer| peer.begun > 0).count()
    }

    fn leave(&mut self, send: &mut Vec<Vec<u8>>) {
        let Some(kind) = self.kind.take() else { return };
        for peer in &mut self.peers {
            if peer.state != State::Away && !kind.vanishes {
                peer.reset();
            }
            send.append(&mut peer.out);
        }
        self.peers = Vec::new();
        self.by_place = HashMap::new();
        self.turns = BinaryHeap::new();
    }

    fn act(&mut self, i: usize) {
        let Some(kind) = self.kind else { return };
        let peer = &mut self.peers[i];
        match peer.state {
            State::Away | State::Connecting => {
                self.by_place.remove(&peer.who);
                let turn = peer.begun.wrapping_add(self.opened as u32 / 50_000);
                let address = Ipv4Addr::from_bits(0x0a01_0001 + peer.number % kind.sources);
                let port = 1024 + (peer.number + self.opened as u32 * 7 + turn) % 60_000;
                let port = (0..60_000).map(|step| 1024 + (port - 1024 + step) % 60_000);
                let port = port.map(|port| port as u16);
                let Some(port) = port.into_iter().find(|port| !self.by_place.contains_key(&(address, *port)))
                else {
                    return;
                };
                self.by_place.insert((address, port), i);
                self.opened += 1;
                peer.connect(&kind, (address, port), self.now);
            }
            _ => peer.act(&kind, self.now),
        }
        self.settle(i);
    }

    fn settle(&mut self, i: usize) {
        let peer = &mut self.peers[i];
        if let Some(at) = &mut peer.at {
            *at = self.now.max(*at);
            self.turns.push(Reverse((*at, i)));
        }
    }

    fn take(&mut self, frame: &[u8], send: &mut Vec<Vec<u8>>) {
        let mac = Simulation::mac(crate::THEIRS);
        let ours = |ip: Ipv4Addr| ip.octets()[..2] == [10, 1];
        send.extend(arp_answer(frame, mac, ours));
        let (Some(kind), Some(heard)) = (self.kind, heard(frame)) else { return };
        let listens = matches!(kind.by, By::Listen | By::Accept);
        // The connections that the server opens to the listener differ only in the server's ports.
        let place = if listens { (LISTENER.0, heard.from.1) } else { heard.to };
        let i = match self.by_place.get(&place) {
            Some(&i) => i,
            None if listens && heard.to == LISTENER && heard.flags & (SYN | ACK) == SYN => {
                let mut peer = Peer::new(self.peers.len() as u32, self.hall);
                peer.admit(&kind, &heard);
                send.append(&mut peer.out);
                self.by_place.insert(place, self.peers.len());
                self.peers.push(peer);
                self.opened += 1;
                return;
            }
            None => return,
        };
        let peer = &mut self.peers[i];
        let at = peer.at;
        peer.hear(&kind, &heard, self.now);
        send.append(&mut peer.out);
        if peer.at != at {
            self.settle(i);
        }
    }
}

struct Shared(Rc<RefCell<Camp>>);

impl Host for Shared {
    fn turn(
        &mut self,
        now: Duration,
        arrived: &mut VecDeque<Vec<u8>>,
        send: &mut Vec<Vec<u8>>,
    ) -> Option<Duration> {
        let mut camp = self.0.borrow_mut();
        camp.now = now;
        if std::mem::take(&mut camp.leaves) {
            camp.leave(send);
        }
        for frame in arrived.drain(..) {
            camp.take(&frame, send);
        }
        if let Some(Kind { by: By::Frames(frame), .. }) = camp.kind {
            while camp.next <= now {
                let number = camp.frames;
                send.push(frame(&mut camp.random, number));
                camp.frames += 1;
                camp.sent += 1;
                let every = camp.every;
                camp.next += every;
            }
            return Some(camp.next);
        }
        while let Some(&Reverse((at, i))) = camp.turns.peek() {
            if at > now {
                return Some(at);
            }
            camp.turns.pop();
            // The peer may have got another time to act by now.
            if camp.peers[i].at == Some(at) {
                camp.peers[i].at = None;
                camp.act(i);
                send.append(&mut camp.peers[i].out);
            }
        }
        None
    }
}
