//! Two or more stacks on a simulated network, with applications that check every octet.

use crate::broken::{Rule, Unruly};
use crate::paths::{Path, too_big};
use fastrand::Rng;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use urnic_sim::{Impairment, Network};
use urnic_tcp::{
    Address, BindId, Buffers, CloseReason, ConnId, Elsewhere, Emit, Handler, LocalPorts, PortSpace, Stack,
    StackConfig, Time, Transmit, sum,
};

/// Sent data, shared.
pub type Record = Rc<[u8]>;

pub struct Vectors;

impl Buffers for Vectors {
    type Frame = Vec<u8>;
    type Payload = Record;
}

/// Frames that a stack has emitted and that wait to be taken, at most `limit`.
pub struct Out {
    pub frames: Vec<Vec<u8>>,
    pub loopback: Vec<Vec<u8>>,
    pub limit: usize,
    pub retransmitted: u64,
}

impl Transmit<Record> for Out {
    fn room(&self) -> usize {
        self.limit - (self.frames.len() + self.loopback.len()).min(self.limit)
    }

    fn emit(&mut self, e: Emit<'_, Record>) {
        assert!(self.room() > 0, "emitted without room");
        assert!(e.payload.len() <= urnic_tcp::MAX_PIECES);
        let mut frame = e.headers.to_vec();
        for p in e.payload {
            assert!(!p.range.is_empty(), "empty piece");
            frame.extend_from_slice(&p.payload[p.range.clone()]);
        }
        self.retransmitted += u64::from(e.retransmit);
        if e.loopback { self.loopback.push(frame) } else { self.frames.push(frame) }
    }
}

/// Returns the octet at `position` of the stream that `who` sends.
pub fn octet(who: u64, position: u64) -> u8 {
    let x = (position ^ (who << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x >> 56) as u8
}

/// The behaviour of an application on one connection.
#[derive(Clone, Debug)]
pub struct Script {
    /// Octets to send.
    pub send: u64,
    /// Record lengths, used in turn.
    pub records: Vec<usize>,
    /// The application closes when everything is queued. If false, it closes only after the peer has finished
    /// as well.
    pub close_first: bool,
}

impl Script {
    pub fn send(octets: u64) -> Self {
        Script { send: octets, records: vec![1400], close_first: true }
    }

    pub fn silent() -> Self {
        Script { send: 0, records: vec![1], close_first: false }
    }
}

/// A connection from its application's view.
#[derive(Debug)]
pub struct Session {
    pub conn: ConnId,
    /// Identities of the sent and the received stream (see [`octet`]).
    pub who: u64,
    pub peer_who: u64,
    pub script: Script,
    pub queued: u64,
    pub acked: u64,
    pub received: u64,
    /// Whether the application has left data with the stack.
    pub unread: bool,
    pub record: usize,
    pub established: bool,
    pub peer_finished: bool,
    pub close_called: bool,
    pub closed: Option<CloseReason>,
}

/// The application of a host, with the events of its stack.
#[derive(Default)]
pub struct App {
    pub sessions: Vec<Session>,
    by_conn: HashMap<ConnId, usize>,
    /// Script for accepted connections; `None`: a silent one.
    pub on_accept: Option<Script>,
    /// Whether received octets are taken without a comparison with [`octet`].
    pub unchecked: bool,
    pub accepted: usize,
    /// Random source of an application that takes arrived data at any time and in any amount; `None`: it takes
    /// everything at once.
    pub moody: Option<Rng>,
    /// Time when the application looks at the data that it has left with the stack; `None`: no time is set.
    reads_at: Option<Time>,
    /// Frames that concern other stacks of the device.
    pub handed_over: Vec<(Elsewhere, Vec<u8>)>,
}

impl App {
    pub fn add(&mut self, conn: ConnId, who: u64, peer_who: u64, script: Script, established: bool) -> usize {
        let i = self.sessions.len();
        self.sessions.push(Session {
            conn,
            who,
            peer_who,
            script,
            queued: 0,
            acked: 0,
            received: 0,
            unread: false,
            record: 0,
            established,
            peer_finished: false,
            close_called: false,
            closed: None,
        });
        self.by_conn.insert(conn, i);
        i
    }

    /// Returns how many of the offered octets the application takes now.
    fn appetite(&mut self, offered: usize) -> usize {
        match &mut self.moody {
            Some(rng) => match rng.u8(..8) {
                0 => 0,
                1 => rng.usize(..offered),
                _ => offered,
            },
            None => offered,
        }
    }

    fn session(&mut self, conn: ConnId) -> &mut Session {
        let i = self.by_conn[&conn];
        &mut self.sessions[i]
    }
}

impl Handler<Vec<u8>> for App {
    fn accepted(&mut self, _: BindId, conn: ConnId, peer: SocketAddr) -> u64 {
        // Both sides derive the identities from the active opener's port.
        let who = u64::from(peer.port());
        let script = self.on_accept.clone().unwrap_or(Script::silent());
        self.add(conn, 1_000_000 + who, who, script, true);
        self.accepted += 1;
        0
    }

    fn connected(&mut self, conn: ConnId, _: u64) {
        let s = self.session(conn);
        assert!(!s.established, "connected twice");
        s.established = true;
    }

    fn data(
        &mut self,
        conn: ConnId,
        _: u64,
        frame: Vec<u8>,
        range: Range<usize>,
    ) -> Option<(Vec<u8>, Range<usize>)> {
        let unchecked = self.unchecked;
        let taken = self.appetite(range.len());
        let s = self.session(conn);
        assert!(s.established && !s.peer_finished && s.closed.is_none(), "data at the wrong time: {s:?}");
        assert!(!range.is_empty());
        let rest = range.start + taken..range.end;
        if !unchecked {
            for (i, &b) in frame[range.start..rest.start].iter().enumerate() {
                let at = s.received + i as u64;
                assert_eq!(b, octet(s.peer_who, at), "wrong octet at {at} of {s:?}");
            }
        }
        s.received += taken as u64;
        s.unread |= !rest.is_empty();
        (!rest.is_empty()).then_some((frame, rest))
    }

    fn acked(&mut self, conn: ConnId, _: u64, bytes: u64) {
        let s = self.session(conn);
        s.acked += bytes;
        assert!(s.acked <= s.queued, "more ACKed than sent: {s:?}");
    }

    fn finished(&mut self, conn: ConnId, _: u64) {
        let s = self.session(conn);
        assert!(!s.peer_finished, "finished twice");
        s.peer_finished = true;
    }

    fn closed(&mut self, conn: ConnId, _: u64, reason: CloseReason) {
        let s = self.session(conn);
        assert!(s.closed.is_none(), "closed twice");
        s.closed = Some(reason);
        self.by_conn.remove(&conn);
    }

    fn hand_over(&mut self, to: Elsewhere, frame: &Vec<u8>) {
        self.handed_over.push((to, frame.clone()));
    }
}

/// A stack with its application.
pub struct Host {
    pub stack: Stack<Vectors>,
    pub app: App,
    pub out: Out,
    /// Frames that have arrived for the next pass.
    pub inbox: VecDeque<Vec<u8>>,
    /// Frames for the next pass from other stacks of its device.
    pub taken_over: VecDeque<Vec<u8>>,
    /// The application answers data before the ACK that came with it is handled.
    pub answers_first: bool,
    /// The rule that the stack breaks; `None`: none.
    pub broken: Option<Rule>,
}

impl Host {
    pub fn new(n: u8, tune: impl FnOnce(&mut StackConfig)) -> Self {
        let mut config = StackConfig::new(mac(n), ip(n), 24, 0x1234_5678 + u64::from(n));
        tune(&mut config);
        let ports = Box::new(LocalPorts::new(config.seed));
        Host::with(config, ports)
    }

    pub fn with(config: StackConfig, ports: Box<dyn PortSpace + Send>) -> Self {
        let stack = Stack::new(config, ports, Time::ZERO).expect("valid configuration");
        let out = Out { frames: Vec::new(), loopback: Vec::new(), limit: 64, retransmitted: 0 };
        let (inbox, taken_over) = Default::default();
        Host { stack, app: App::default(), out, inbox, taken_over, answers_first: false, broken: None }
    }

    /// Returns the host's main address.
    pub fn address(&self) -> IpAddr {
        self.stack.config().addresses[0].ip
    }

    /// Opens a connection that follows `script`.
    pub fn connect(&mut self, now: Time, to: impl Into<SocketAddr>, script: Script) -> usize {
        let conn = self.stack.connect(now, to, 0, &mut self.out).expect("connect");
        let who = u64::from(self.stack.local_addr(conn).expect("is live").port());
        self.app.add(conn, who, 1_000_000 + who, script, false)
    }

    /// Runs one pass: a burst of frames, timers, the application, and delayed frames. If the application
    /// [answers first](Self::answers_first), timers come before the frames.
    pub fn pass(&mut self, now: Time) {
        let burst = self.inbox.len().min(32);
        let rule = self.broken.filter(|rule| rule.has_cause(self.stack.counters()));
        let seen = |frame| if let Some(rule) = rule { rule.arriving(frame) } else { frame };
        let burst = self.inbox.drain(..burst).map(seen);
        let app = &mut Unruly { inner: &mut self.app, rule };
        let out = &mut Unruly { inner: &mut self.out, rule };
        if self.answers_first {
            self.stack.advance(now, app, out);
            self.stack.receive_data_first(now, burst, app, out);
        } else {
            self.stack.receive_burst(now, burst, app, out);
        }
        if !self.taken_over.is_empty() {
            self.stack.take_over(now, self.taken_over.drain(..), app, out);
        }
        if !self.answers_first {
            self.stack.advance(now, app, out);
        }
        self.read(now);
        self.act(now);
        self.stack.flush(now, &mut self.out);
    }

    /// Lets a moody application look at the data that it has left, sooner or later.
    fn read(&mut self, now: Time) {
        if self.app.reads_at.is_some_and(|at| at <= now) {
            self.app.reads_at = None;
            for i in 0..self.app.sessions.len() {
                if std::mem::take(&mut self.app.sessions[i].unread) {
                    let conn = self.app.sessions[i].conn;
                    self.stack.resume(now, conn, &mut self.app, &mut self.out);
                }
            }
        }
        if let Some(rng) = &mut self.app.moody
            && self.app.reads_at.is_none()
            && self.app.sessions.iter().any(|s| s.unread)
        {
            // Occasionally the application waits long.
            let longest = if rng.u8(..16) == 0 { 60_000 } else { 20 };
            self.app.reads_at = Some(now + Duration::from_millis(rng.u64(1..=longest)));
        }
    }

    /// Runs the scripts: keeps the stack's queue filled, and closes when it is time.
    fn act(&mut self, now: Time) {
        for s in &mut self.app.sessions {
            if !s.established || s.closed.is_some() {
                continue;
            }
            while s.queued < s.script.send && self.stack.room(s.conn) > 0 {
                let wish = s.script.records[s.record % s.script.records.len()] as u64;
                s.record += 1;
                let len = wish.min(s.script.send - s.queued);
                let bytes: Record = (s.queued..s.queued + len).map(|i| octet(s.who, i)).collect();
                if self.stack.send(s.conn, bytes).is_err() {
                    break;
                }
                s.queued += len;
            }
            self.stack.output(now, s.conn, &mut self.out);
            let may_close = s.queued == s.script.send && (s.script.close_first || s.peer_finished);
            if may_close && !s.close_called {
                s.close_called = true;
                self.stack.close(now, s.conn, &mut self.out);
            }
        }
    }

    /// Returns whether all connections are gone.
    pub fn done(&self) -> bool {
        self.app.sessions.iter().all(|s| s.closed.is_some())
    }
}

pub fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

/// Returns the IPv6 address of a host.
pub fn ip6(n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into())
}

/// Configures host `n` with only an IPv6 address.
pub fn only_v6(n: u8, c: &mut StackConfig) {
    c.addresses = vec![Address { ip: ip6(n).into(), prefix_len: 64 }];
    c.mtu = c.mtu.max(1280);
}

/// Returns a neighbour solicitation: `from` asks `to` for its Ethernet address, and includes its own (RFC 4861 §4.3).
pub fn solicitation(from: u8, to: u8) -> Vec<u8> {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(ip6(to).octets());
    message.extend([1, 1]);
    message.extend(mac(from));
    let addresses = [ip6(from).octets(), ip6(to).octets()].concat();
    let pseudo = [&addresses[..], &[0, 0, 0, message.len() as u8, 0, 0, 0, 58]].concat();
    let checksum = !sum::add(sum::sum(&pseudo), sum::sum(&message));
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = [mac(to), mac(from)].concat();
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, message.len() as u8, 58, 255]);
    frame.extend(addresses);
    frame.extend(message);
    frame
}

pub fn ip(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

/// Hosts 1, 2, … (nodes 0, 1, …) on one network.
pub struct World {
    pub now: Time,
    pub net: Network<Vec<u8>>,
    pub hosts: Vec<Host>,
    /// The path between any two hosts.
    pub path: Path,
    /// Every frame put on the network; `None`: not recorded.
    pub trace: Option<Vec<(Time, usize, Vec<u8>)>>,
    /// The one frame that the network will lose: the host that sends it, and the number of frames that the host sends
    /// before it. `None`: no such frame, or it has been lost.
    pub to_lose: Option<(usize, u64)>,
}

impl World {
    pub fn new(impairment: &Impairment, hosts: Vec<Host>) -> Self {
        World {
            now: Time::ZERO,
            net: Network::new(hosts.len(), impairment),
            hosts,
            path: Path::OPEN,
            trace: None,
            to_lose: None,
        }
    }

    /// Makes two hosts with the same settings.
    pub fn pair(impairment: &str, tune: impl Fn(&mut StackConfig)) -> Self {
        let impairment = impairment.parse().expect("valid impairment");
        World::new(&impairment, vec![Host::new(1, &tune), Host::new(2, &tune)])
    }

    /// Lets node 1 listen on port 7, and node 0 connect to it.
    pub fn open(&mut self, client: Script, server: Script) {
        self.hosts[1].app.on_accept = Some(server);
        self.hosts[1].stack.listen_on(7, 1024).expect("listen");
        let to = SocketAddr::new(self.hosts[1].address(), 7);
        self.hosts[0].connect(self.now, to, client);
    }

    /// Moves frames between stacks and network, without passing time, until nothing more happens.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            while let Some(d) = self.net.pop(self.now.0) {
                self.hosts[d.to].inbox.push_back(d.frame);
            }
            let mut busy = false;
            for i in 0..self.hosts.len() {
                let host = &mut self.hosts[i];
                let had_input = !host.inbox.is_empty();
                host.pass(self.now);
                let sent = std::mem::take(&mut host.out.frames);
                busy |= had_input || !sent.is_empty() || !host.out.loopback.is_empty();
                host.inbox.extend(host.out.loopback.drain(..));
                for frame in sent {
                    self.transmit(i, frame);
                }
            }
            if !busy {
                return;
            }
        }
        panic!("the stacks never come to rest at {:?}", self.now);
    }

    /// Checks the invariants of the stacks, and compares the two ends of each connection. Skipped with many
    /// connections.
    fn audit(&self) {
        if self.hosts.iter().any(|h| h.app.sessions.len() > 40) {
            return;
        }
        for (i, h) in self.hosts.iter().enumerate() {
            if let Err(fault) = h.stack.audit() {
                panic!("host {i}: {fault:?} {}", self.describe());
            }
        }
        let all = || {
            let numbered = self.hosts.iter().enumerate();
            numbered.flat_map(|(i, h)| h.app.sessions.iter().map(move |s| (i, h, s)))
        };
        // Two hosts may use the same port. A connection within one host has both ends there.
        let alone = self.hosts.iter().filter(|h| !h.app.sessions.is_empty()).count() == 1;
        for (i, h, s) in all() {
            let other = |j, t: &Session| (i != j || alone) && (t.who, t.peer_who) == (s.peer_who, s.who);
            let Some((_, g, t)) = all().find(|&(j, _, t)| other(j, t)) else {
                continue;
            };
            let parked = g.stack.info(t.conn).map_or(0, |info| u64::from(info.parked));
            assert!(s.acked <= t.received + parked && t.received + parked <= s.queued, "{s:?} {t:?}");
            if let (Some(n), Some(m), true) =
                (h.stack.numbers(s.conn), g.stack.numbers(t.conn), s.established && t.established)
            {
                assert!(n.snd_una.le(m.rcv_nxt) && m.rcv_nxt.le(n.snd_nxt), "{s:?} {n:?} {t:?} {m:?}");
                assert!(n.snd_nxt.le(m.rcv_end + 1), "beyond the window: {s:?} {n:?} {t:?} {m:?}");
            }
        }
    }

    fn transmit(&mut self, from: usize, frame: Vec<u8>) {
        if let Some(trace) = &mut self.trace {
            trace.push((self.now, from, frame.clone()));
        }
        if let Some((_, before)) = self.to_lose.as_mut().filter(|(host, _)| *host == from) {
            if *before == 0 {
                self.to_lose = None;
                return;
            }
            *before -= 1;
        }
        if frame.len() - 14 > self.path.mtu {
            if let Some(message) = too_big(&frame, self.path.mtu).filter(|_| self.path.tells)
                && let [2, 0, 0, 0, 0, n] = frame[..6]
            {
                self.net.push(self.now.0, usize::from(n) - 1, from, message);
            }
            return;
        }
        match frame[..6] {
            [2, 0, 0, 0, 0, n] if n != 0 => self.net.push(self.now.0, from, usize::from(n) - 1, frame),
            _ => self.net.broadcast(self.now.0, from, &frame),
        }
    }

    /// Returns the time of the next event; `None` if there is none.
    pub fn next(&self) -> Option<Time> {
        let deadlines = self.hosts.iter().flat_map(|h| [h.stack.next_deadline(), h.app.reads_at]);
        deadlines.flatten().chain(self.net.next_arrival().map(Time)).min()
    }

    /// Runs until `done` or until `limit` of virtual time has passed. Returns whether it was done.
    pub fn run(&mut self, limit: Duration, mut done: impl FnMut(&World) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            self.settle();
            self.audit();
            if done(self) {
                return true;
            }
            match self.next() {
                Some(t) if t <= end => self.now = self.now.max(t),
                _ => {
                    self.now = end;
                    return false;
                }
            }
        }
    }

    /// Runs until all connections are gone. Checks that each connection delivered everything in both directions.
    pub fn run_to_end(&mut self, limit: Duration) {
        let done = self.run(limit, |w| {
            w.hosts.iter().all(Host::done) && w.hosts.iter().map(|h| h.app.sessions.len()).sum::<usize>() > 1
        });
        assert!(done, "not finished at {:?}: {}", self.now, self.describe());
        for host in &self.hosts {
            for s in &host.app.sessions {
                assert_eq!(s.closed, Some(CloseReason::Graceful), "{s:?}");
                assert!(s.peer_finished && s.acked == s.script.send, "{s:?}");
            }
        }
        let (a, b) = (&self.hosts[0].app.sessions, &self.hosts[1].app.sessions);
        for (x, y) in a.iter().zip(b) {
            assert_eq!((x.received, y.received), (y.script.send, x.script.send), "{x:?} {y:?}");
        }
    }

    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (i, h) in self.hosts.iter().enumerate() {
            for s in &h.app.sessions {
                text += &format!("\n  host {i}: {s:?}\n    {:?}", h.stack.info(s.conn));
            }
            text += &format!("\n    {:?}", h.stack.counters());
        }
        for l in self.net.links() {
            text += &format!("\n  {:?}", l.statistics());
        }
        text
    }
}

/// Default number of seeds of the test that runs the most.
pub const MOST_SEEDS: u64 = 500;

/// Returns the seeds of a randomized test. Their number is `default` · `URNIC_SEEDS` / [`MOST_SEEDS`].
pub fn seeds(default: u64) -> Range<u64> {
    let wanted = std::env::var("URNIC_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(MOST_SEEDS);
    0..(default * wanted / MOST_SEEDS).max(1)
}

/// Runs `test` for every seed. Prints the seed that failed.
pub fn for_seeds(default: u64, test: impl Fn(u64)) {
    for seed in seeds(default) {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(seed)));
        if let Err(panic) = caught {
            eprintln!("failed with seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
