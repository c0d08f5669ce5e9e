//! Streams in memory between engines of one process, for tests of the engine without TCP.
//!
//! The medium loses nothing, and its only delay is the time for each octet. As with TCP, octets arrive in pieces whose
//! borders do not depend on the records in which they were sent.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use urnic::config::Config;
use urnic::simulation::{Options, SimClock, Simulation};
use urnic::transport::*;
use urnic::{Device, Progress, TcpState};

thread_local! {
    /// The medium that connects the devices of this thread's simulation.
    static MEDIUM: RefCell<Medium> = RefCell::default();
}

/// Makes device number `index` of a simulation, with the prefix length, the CRC implementation and the MPA
/// settings of `options`, but without its exceptions.
pub fn device(options: &Options, index: usize, clock: &SimClock) -> urnic::Result<Device> {
    device_over(options, index, clock, |end| end)
}

/// Makes the same device as [`device`], but `wrap` turns the device's end of the medium into its transport.
pub fn device_over<T: Transport + 'static>(
    options: &Options,
    index: usize,
    clock: &SimClock,
    wrap: impl FnOnce(Memory) -> T,
) -> urnic::Result<Device> {
    if index == 0 {
        MEDIUM.take();
    }
    let ip = Simulation::address(index).into();
    let mut config = Config::default();
    config.engine.progress = Progress::Inline;
    config.engine.crc_kernel = options.crc_kernel;
    config.ip.addresses = vec![urnic::Cidr { address: ip, prefix: options.prefix }];
    config.mpa.rev = options.mpa_rev;
    config.mpa.crc = options.crc;
    config.mpa.markers = options.markers;
    config.mpa.rtr = options.rtr;
    (config.mpa.ird, config.mpa.ord) = (255, 255);
    let end = MEDIUM.with_borrow(|medium| medium.end(vec![Address { ip, prefix_len: options.prefix }]));
    Device::over(wrap(end), clock.clone(), &config)
}

/// Returns the unacknowledged octets of the stream at each call by which device number `index` of this thread's
/// simulation sent early, and forgets them.
pub fn sent_early(index: usize) -> Vec<usize> {
    MEDIUM.with_borrow(|medium| std::mem::take(&mut medium.lock()[index].early))
}

/// Maximum number of octets under way on a stream, in each direction.
const WINDOW: usize = 64 << 10;
/// Octets of a segment, and maximum octets of a record.
pub const SEGMENT: usize = 1448;
/// Nanoseconds for each octet: a gigabit per second for everything that an end receives.
const PER_OCTET: u64 = 8;
/// Lowest port that an end chooses itself.
const EPHEMERAL: u16 = 32_768;
/// Maximum number of news that one pass takes.
const NEWS_PER_PASS: usize = 32;
/// Maximum number of octets that held data may pin.
const PINNABLE: usize = 2 << 20;

/// The medium, which connects the ends.
#[derive(Clone, Default)]
pub struct Medium(Arc<Mutex<Vec<End>>>);

/// An end, as the medium knows it.
struct End {
    addresses: Vec<Address>,
    bound: HashMap<BindId, Reserved>,
    generation: u32,
    last_port: u16,
    halves: Vec<Option<Half>>,
    /// The news that the engine will get, with their times.
    news: VecDeque<(Time, News)>,
    /// Time at which the last of the news arrives.
    busy: Time,
    sent: Sent,
    /// Unacknowledged octets of the stream at each call that sent early.
    early: Vec<usize>,
}

/// A reserved address.
struct Reserved {
    scope: Scope,
    port: u16,
    listens: bool,
}

/// One end's half of a stream.
struct Half {
    conn: ConnId,
    tag: u64,
    local: SocketAddr,
    peer: SocketAddr,
    /// Whether this end has opened the stream.
    asked: bool,
    /// The end and the connection of the other half; `None` if there was no listener.
    other: Option<(usize, ConnId)>,
    /// Records that have not been sent yet.
    queued: VecDeque<Vec<u8>>,
    /// Number of queued or sent octets that the other end has not taken.
    unacked: usize,
    /// Octets that have arrived, but that the engine could not take.
    waiting: VecDeque<Octets>,
    /// Whether the half waits for `resume`.
    stopped: bool,
    /// Whether the engine has requested the end of the stream (`close`), whether that end has been sent (`closed`), and
    /// whether the other engine has got it (`acknowledged`).
    close: bool,
    closed: bool,
    acknowledged: bool,
    /// Whether the other end's FIN waits behind the waiting octets.
    end_waits: bool,
}

/// An event that an end's engine will get.
enum News {
    Incoming(BindId, ConnId),
    Connected(ConnId),
    Data(ConnId, Octets),
    Acked(ConnId, u64),
    Finished(ConnId),
    /// The other half was aborted.
    Reset(ConnId),
    /// The half no longer exists.
    Closed(ConnId, u64, CloseReason),
}

impl Medium {
    /// Makes an end with these addresses.
    pub fn end(&self, addresses: Vec<Address>) -> Memory {
        let mut ends = self.lock();
        ends.push(End {
            addresses,
            bound: HashMap::new(),
            generation: 0,
            last_port: EPHEMERAL,
            halves: Vec::new(),
            news: VecDeque::new(),
            busy: Time::ZERO,
            sent: Sent::default(),
            early: Vec::new(),
        });
        Memory { medium: self.clone(), me: ends.len() - 1, pieces: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<End>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl End {
    /// Returns the listener at an address of this end; `None` if there is none.
    fn listener_at(&self, at: SocketAddr) -> Option<BindId> {
        let listens = |r: &Reserved| r.listens && r.port == at.port() && r.scope.covers(at.ip());
        self.bound.iter().find(|(_, reserved)| listens(reserved)).map(|(id, _)| *id)
    }

    /// Returns whether this end has opened a stream from the port.
    fn uses(&self, port: u16) -> bool {
        let mut halves = self.halves.iter().flatten();
        halves.any(|half| half.asked && half.local.port() == port)
    }

    fn next_generation(&mut self) -> u32 {
        self.generation += 1;
        self.generation
    }

    /// Adds half a stream.
    fn add(&mut self, tag: u64, local: SocketAddr, peer: SocketAddr) -> ConnId {
        let index = self.halves.iter().position(Option::is_none).unwrap_or(self.halves.len());
        let conn = ConnId::new(index as u32, self.next_generation());
        let half = Half {
            conn,
            tag,
            local,
            peer,
            asked: false,
            other: None,
            queued: VecDeque::new(),
            unacked: 0,
            waiting: VecDeque::new(),
            stopped: false,
            close: false,
            closed: false,
            acknowledged: false,
            end_waits: false,
        };
        if index == self.halves.len() {
            self.halves.push(None);
        }
        self.halves[index] = Some(half);
        conn
    }

    /// Returns the half that `conn` names; `None` if it no longer exists.
    fn half(&mut self, conn: ConnId) -> Option<&mut Half> {
        self.halves.get_mut(conn.index() as usize)?.as_mut().filter(|half| half.conn == conn)
    }

    /// Queues news for the engine, to arrive after all earlier news.
    fn tell(&mut self, now: Time, news: News) {
        let octets = if let News::Data(_, piece) = &news { piece.bytes().len() as u64 } else { 0 };
        self.busy = Time(self.busy.max(now).0 + PER_OCTET * octets);
        self.news.push_back((self.busy, news));
    }

    /// Removes a half, and queues the news of its end.
    fn end(&mut self, now: Time, conn: ConnId, reason: CloseReason) {
        if let Some(half) = self.half(conn) {
            let tag = half.tag;
            self.halves[conn.index() as usize] = None;
            self.tell(now, News::Closed(conn, tag, reason));
        }
    }
}

/// One end of a [`Medium`].
pub struct Memory {
    medium: Medium,
    me: usize,
    /// Number of pieces cut so far.
    pieces: usize,
}

impl Memory {
    /// Calls `f` with this end, as the medium knows it.
    fn with<R>(&self, f: impl FnOnce(&mut End) -> R) -> R {
        f(&mut self.medium.lock()[self.me])
    }

    /// Calls `f` with a half of this end. Returns the result; the default value if the half no longer exists.
    fn of<R: Default>(&self, conn: ConnId, f: impl FnOnce(&mut Half) -> R) -> R {
        self.with(|end| end.half(conn).map(f)).unwrap_or_default()
    }

    /// Returns the tag of a half; `None` if it no longer exists.
    fn tag(&self, conn: ConnId) -> Option<u64> {
        self.of(conn, |half| Some(half.tag))
    }

    /// Gives a piece to the engine, and acknowledges the octets that the engine takes. Returns whether the engine took
    /// all.
    fn deliver(&self, now: Time, conn: ConnId, piece: Octets, events: &mut impl Events<Octets>) -> bool {
        let Some(tag) = self.tag(conn) else { return true };
        let mut taken = piece.bytes().len();
        let rest = events.data(conn, tag, piece);
        let all = rest.is_none();
        let mut ends = self.medium.lock();
        let Some(half) = ends[self.me].half(conn) else { return all };
        if let Some(rest) = rest {
            taken -= rest.bytes().len();
            half.stopped = true;
            half.waiting.push_front(rest);
        }
        let other = half.other;
        if let Some((other, there)) = other
            && let Some(half) = ends[other].half(there)
        {
            half.unacked -= taken;
            ends[other].tell(now, News::Acked(there, taken as u64));
        }
        all
    }

    /// Tells the engine that the peer has ended its half.
    fn finish_half(&self, now: Time, conn: ConnId, events: &mut impl Events<Octets>) {
        let Some(tag) = self.tag(conn) else { return };
        events.finished(conn, tag);
        let other = self.of(conn, |half| half.other);
        if let Some((other, there)) = other
            && let Some(half) = self.medium.lock()[other].half(there)
        {
            half.acknowledged = true;
        }
        self.settle(now, conn);
    }

    /// Ends a stream if both halves have ended.
    fn settle(&self, now: Time, conn: ConnId) {
        let mut ends = self.medium.lock();
        let Some(other) = ends[self.me].half(conn).and_then(|half| half.other) else { return };
        let halves = [(self.me, conn), other];
        let mut is_over = |(end, conn): (usize, ConnId)| {
            ends[end].half(conn).is_some_and(|half| half.acknowledged && half.unacked == 0)
        };
        if halves.into_iter().all(&mut is_over) {
            for (end, conn) in halves {
                ends[end].end(now, conn, CloseReason::Graceful);
            }
        }
    }
}

impl Transport for Memory {
    type Data = Octets;
    type Draft = Vec<u8>;

    fn bind(&mut self, address: SocketAddr, v6only: bool) -> Result<Bound, BindError> {
        // As at a port, a loopback address stands for all addresses of its family.
        let any = match address.ip() {
            ip if !ip.is_loopback() => ip,
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let scope = Scope::of(any, v6only);
        self.with(|end| {
            if let Scope::One(ip) = scope
                && !end.addresses.iter().any(|own| own.ip == ip)
            {
                return Err(BindError::NotOurs(ip));
            }
            let is_free = |port: u16| {
                let mut others = end.bound.values().filter(|other| other.port == port);
                !others.any(|other| other.scope.overlaps(scope)) && !end.uses(port)
            };
            let port = match address.port() {
                0 => (EPHEMERAL..=u16::MAX).find(|port| is_free(*port)).ok_or(BindError::Exhausted)?,
                port if is_free(port) => port,
                port => return Err(BindError::InUse(port)),
            };
            let id = BindId::new(port.into(), end.next_generation());
            end.bound.insert(id, Reserved { scope, port, listens: false });
            Ok(Bound { id, address: SocketAddr::new(address.ip(), port) })
        })
    }

    fn unbind(&mut self, bound: BindId) {
        self.with(|end| end.bound.remove(&bound));
    }

    fn listen(&mut self, at: BindId, _backlog: usize) -> Result<(), ListenError> {
        self.with(|end| {
            let reserved = end
                .bound
                .get_mut(&at)
                .filter(|reserved| !reserved.listens)
                .ok_or(ListenError::NotReserved)?;
            reserved.listens = true;
            Ok(())
        })
    }

    fn connect(
        &mut self,
        now: Time,
        from: Option<BindId>,
        to: SocketAddr,
        tag: u64,
    ) -> Result<ConnId, ConnectError> {
        if to.port() == 0 {
            return Err(ConnectError::Address(to));
        }
        let mut ends = self.medium.lock();
        let has = |end: &End, ip: IpAddr| end.addresses.iter().any(|own| own.ip == ip);
        let other = ends.iter().position(|end| has(end, to.ip()));
        let end = &mut ends[self.me];
        let (scope, port) = match from {
            None => {
                end.last_port = end.last_port.wrapping_add(1).max(EPHEMERAL);
                (Scope::All, end.last_port)
            }
            Some(id) => end.bound.get(&id).map(|r| (r.scope, r.port)).ok_or(ConnectError::NoPort)?,
        };
        let mut addresses = end.addresses.iter().map(|own| own.ip).filter(|ip| scope.covers(*ip));
        let own = addresses.find(|ip| ip.is_ipv4() == to.is_ipv4());
        let (Some(other), Some(own)) = (other, own) else { return Err(ConnectError::Unreachable(to.ip())) };
        let local = SocketAddr::new(own, port);
        if end.halves.iter().flatten().any(|half| (half.local, half.peer) == (local, to)) {
            return Err(ConnectError::InUse(port));
        }
        let conn = end.add(tag, local, to);
        let Some(listener) = ends[other].listener_at(to) else {
            ends[self.me].end(now, conn, CloseReason::Refused);
            return Ok(conn);
        };
        let there = ends[other].add(0, to, local);
        ends[other].tell(now, News::Incoming(listener, there));
        ends[self.me].tell(now, News::Connected(conn));
        if let Some(half) = ends[self.me].half(conn) {
            half.asked = true;
            half.other = Some((other, there));
        }
        if let Some(half) = ends[other].half(there) {
            half.other = Some((self.me, conn));
        }
        Ok(conn)
    }

    fn close(&mut self, _now: Time, conn: ConnId) {
        self.of(conn, |half| half.close = true);
    }

    fn abort(&mut self, now: Time, conn: ConnId) {
        let mut ends = self.medium.lock();
        let Some(half) = ends[self.me].half(conn) else { return };
        if let Some((other, there)) = half.other {
            ends[other].tell(now, News::Reset(there));
        }
        ends[self.me].end(now, conn, CloseReason::Aborted);
    }

    fn has_ended(&self, conn: ConnId) -> bool {
        self.of(conn, |half| half.closed && half.unacked == 0)
    }

    fn local(&self, conn: ConnId) -> Option<SocketAddr> {
        self.of(conn, |half| Some(half.local))
    }

    fn receive(&mut self, now: Time, events: &mut impl Events<Octets>) -> bool {
        for heard in 0..NEWS_PER_PASS {
            let due = |end: &mut End| {
                let is_due = end.news.front().is_some_and(|(at, _)| *at <= now);
                if is_due { end.news.pop_front() } else { None }
            };
            let Some((_, news)) = self.with(due) else { return heard > 0 };
            match news {
                News::Incoming(listener, conn) => {
                    let peer = self.of(conn, |half| Some(half.peer));
                    if let Some(peer) = peer {
                        let tag = events.incoming(listener, conn, peer);
                        self.of(conn, |half| half.tag = tag);
                    }
                }
                News::Connected(conn) => {
                    if let Some(tag) = self.tag(conn) {
                        events.connected(conn, tag);
                    }
                }
                News::Data(conn, piece) => {
                    if self.of(conn, |half| half.stopped) {
                        self.of(conn, |half| half.waiting.push_back(piece));
                    } else {
                        self.deliver(now, conn, piece, events);
                    }
                }
                News::Acked(conn, octets) => {
                    if let Some(tag) = self.tag(conn) {
                        events.acked(conn, tag, octets);
                        self.settle(now, conn);
                    }
                }
                News::Finished(conn) => {
                    self.of(conn, |half| half.end_waits = half.stopped);
                    if !self.of(conn, |half| half.end_waits) {
                        self.finish_half(now, conn, events);
                    }
                }
                News::Reset(conn) => self.with(|end| end.end(now, conn, CloseReason::Reset)),
                News::Closed(conn, tag, reason) => events.closed(conn, tag, reason),
            }
        }
        true
    }

    fn next_deadline(&self) -> Option<Time> {
        self.with(|end| end.news.front().map(|(at, _)| *at))
    }

    fn sent(&self) -> Sent {
        self.with(|end| end.sent)
    }

    fn pinnable(&self) -> usize {
        PINNABLE
    }

    fn resume(&mut self, now: Time, conn: ConnId, events: &mut impl Events<Octets>) {
        self.of(conn, |half| half.stopped = false);
        while let Some(piece) = self.of(conn, |half| half.waiting.pop_front()) {
            if !self.deliver(now, conn, piece, events) {
                return;
            }
        }
        if self.of(conn, |half| std::mem::take(&mut half.end_waits)) {
            self.finish_half(now, conn, events);
        }
    }

    fn draft(&mut self) -> Option<Vec<u8>> {
        Some(Vec::new())
    }

    fn segment(&self, conn: ConnId) -> usize {
        self.of(conn, |_| SEGMENT)
    }

    fn room(&self, conn: ConnId) -> usize {
        self.of(conn, |half| WINDOW.saturating_sub(half.unacked))
    }

    fn send(&mut self, conn: ConnId, record: Vec<u8>, _sum: Option<u16>, _unit: u16) {
        self.of(conn, |half| {
            if !half.close && !record.is_empty() {
                half.unacked += record.len();
                half.queued.push_back(record);
            }
        });
    }

    fn output(&mut self, now: Time, conn: ConnId) {
        let mut ends = self.medium.lock();
        let Some(half) = ends[self.me].half(conn) else { return };
        let (queued, other) = (std::mem::take(&mut half.queued), half.other);
        let closes = half.close && !std::mem::replace(&mut half.closed, half.close);
        let Some((other, there)) = other else { return };
        let octets = Octets::new(queued.into_iter().flatten().collect());
        let mut at = 0;
        while at < octets.bytes().len() {
            self.pieces += 1;
            // Some of these pieces have one octet, and some cut a header in two.
            let n = [SEGMENT, 1, 700, 17, 2 * SEGMENT, 3][self.pieces % 6].min(octets.bytes().len() - at);
            let piece = octets.part(at..at + n);
            ends[other].tell(now, News::Data(there, piece));
            ends[self.me].sent.frames += 1;
            ends[self.me].sent.octets += n as u64;
            at += n;
        }
        if closes {
            ends[other].tell(now, News::Finished(there));
        }
    }

    fn send_early(&mut self, now: Time, conn: ConnId) {
        let unacked = self.of(conn, |half| half.unacked);
        self.with(|end| end.early.push(unacked));
        self.output(now, conn);
    }

    fn unacked(&self, conn: ConnId) -> u64 {
        self.of(conn, |half| half.unacked as u64)
    }

    fn records(&self, conn: ConnId) -> usize {
        self.of(conn, |half| half.queued.len())
    }

    fn peers_notice_end(&self) -> bool {
        true
    }

    fn facts(&self) -> Facts {
        self.with(|end| Facts { link_up: true, addresses: end.addresses.clone(), ..Facts::default() })
    }

    fn connections(&self) -> Vec<StreamFacts> {
        let facts = |half: &Half| StreamFacts {
            conn: half.conn,
            local: half.local,
            peer: half.peer,
            tcp: ConnInfo { state: TcpState::Established, ..ConnInfo::default() },
        };
        self.with(|end| end.halves.iter().flatten().map(facts).collect())
    }
}
