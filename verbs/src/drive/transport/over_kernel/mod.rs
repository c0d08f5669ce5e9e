//! The transport that uses TCP sockets of the kernel. No call to a socket waits.
//!
//! When a queue pair has its turn, the transport hands the queue pair's queued data to the kernel, usually in one call.
//! Arrived data is read into one large buffer, and placed from there. The connections on which data has arrived last
//! are hot: each pass of the engine tries to read from them at once, so that a poller gets their data with little
//! delay. For all other connections, epoll reports whether there is data to read.

mod adopt;
mod descriptors;
mod doors;
pub(crate) mod host;
mod info;
mod moved;
mod poll;
mod record;
mod socket;
mod stream;
mod turns;
mod watch;

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use urnic_config::KernelAddresses;
use urnic_tcp::slab::{Slab, SlabId};
use urnic_tcp::{
    Address, BindError, BindId, Bound, CloseReason, ConnId, ConnectError, ListenError, Patience, Scope, Time,
};

use super::{Adopted, Events, Facts, Sent, StreamFacts, Transport, Wakeup};
use crate::shared::convert::ConvertError;
use crate::shared::error::{Error, Result};
use crate::shared::quiet::forked;
use doors::{Door, Doors};
use info::TcpInfo;
use poll::Poll;
use record::{Pieces, Record, Spare};
use socket::Socket;
use stream::{Received, Stream};
use watch::WATCH;

/// Maximum octets of one read.
const READ: usize = 256 << 10;
/// Maximum octets of one read while other connections wait for their turn, so that connections with much data get
/// equal shares.
const SHARE: usize = 64 << 10;
/// Maximum number of hot connections: those that were read most recently, if that read returned fewer than `BULK`
/// octets. After a larger read, a connection waits for its turn like all others.
const HOT: usize = 2;
const BULK: usize = 16 << 10;
/// While there are hot connections, epoll is asked only once in this many passes. It is also asked if it reported
/// something last time, or if [`SHARE`] octets have been read or written since.
const LOOK_EVERY: u32 = 16;
/// Maximum number of connections and listeners that get their turn in one pass.
const TURNS: usize = 32;
/// Maximum number of connections that are accepted from a listener in one turn.
const ACCEPTS: usize = 16;
/// How long a listener rests after it could not accept a connection, mostly because no descriptor was left.
const REST: Duration = Duration::from_millis(100);
/// Minimum size, in octets, of payload that is lent: the kernel reads lent payload from the program's memory instead
/// of from a copy.
const LENDS_FROM: usize = 16 << 10;

/// Streams over the kernel's TCP sockets.
pub struct OverKernel {
    poll: Poll,
    streams: Slab<Stream>,
    places: Slab<Place>,
    doors: Arc<Doors>,
    /// Connections and listeners that have something to do.
    ready: VecDeque<Token>,
    /// The hot connections. The connection that was read last is first.
    hot: ArrayVec<ConnId, HOT>,
    /// Whether epoll reported anything when it was last asked (`heard`), and how many octets had been read and
    /// written by then (`looked_at`).
    heard: bool,
    looked_at: u64,
    /// Connections that have ended, with their tags. `advance` reports these ends to the engine.
    news: VecDeque<(ConnId, u64, CloseReason)>,
    /// Connections with octets that the kernel has taken, but that were not reported to the engine yet.
    taken: Vec<ConnId>,
    /// Connections with outstanding octets (`watched`), and when to check them next (`watch_at`).
    watched: Vec<ConnId>,
    watch_at: Time,
    /// Listeners that rest because they could not accept a connection (`resting`), and when to try again (`wake_at`).
    resting: Vec<BindId>,
    wake_at: Time,
    buffer: Arc<[u8]>,
    lends_from: usize,
    pieces: Pieces,
    spare: Spare,
    passes: u32,
    sent: u64,
    patience: Patience,
    addresses: KernelAddresses,
    /// The addresses that the host had when they were last read. They are reported if a later read fails, for example
    /// because no descriptor is left.
    known: RefCell<Vec<Address>>,
    /// The only address that this device may use. It replaces an unspecified or loopback address. `None`: the device
    /// may use all addresses of the host.
    home: Option<IpAddr>,
    counters: Counters,
}

/// This engine's state of a reserved address.
struct Place {
    door: Arc<Door>,
    listens: bool,
    /// True while the place is in the ready list and while it rests.
    listed: bool,
    /// Whether a warning that connections cannot be accepted here was logged.
    complained: bool,
}

#[derive(Default)]
struct Counters {
    reads: u64,
    writes: u64,
    octets_in: u64,
    octets_out: u64,
    accepted: u64,
    connected: u64,
    adopted: u64,
}

/// The subject of a kernel event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Stream(ConnId),
    Place(BindId),
}

impl Place {
    fn at(door: Arc<Door>) -> Self {
        Self { door, listens: false, listed: false, complained: false }
    }
}

impl Token {
    /// The bit of an index that distinguishes a place from a connection.
    const PLACE: u64 = 1 << 31;

    fn pack(self) -> u64 {
        match self {
            Token::Stream(conn) => SlabId::from(conn).to_bits(),
            Token::Place(bound) => SlabId::from(bound).to_bits() | Self::PLACE,
        }
    }

    fn unpack(bits: u64) -> Self {
        let id: SlabId = SlabId::from_bits(bits & !Self::PLACE);
        match bits & Self::PLACE {
            0 => Token::Stream(id.into()),
            _ => Token::Place(id.into()),
        }
    }
}

impl OverKernel {
    /// Makes a transport on all addresses of the host, or on one of them: the given address, or the first address of
    /// the given interface. `patience` applies to connections that have no time limits of their own.
    ///
    /// # Errors
    /// [`Error::Open`] if the host has none of the addresses. [`Error::NoDescriptor`] if the process or the
    /// system has no descriptor left. [`Error::Os`] if the kernel refuses for another reason.
    pub fn new(addresses: KernelAddresses, patience: Patience) -> Result<Self> {
        let known = host::addresses(&addresses)?;
        let (addresses, home) = match addresses {
            KernelAddresses::All => (KernelAddresses::All, None),
            wanted => {
                let there = known.first().map(|address| address.ip);
                let home = there.ok_or_else(|| Error::Open(format!(
                    "{wanted}: this host has no such address, or no such interface with an address; `ip address` \
                     lists them"
                )))?;
                // Later, another address may be the first of the interface, but this transport stays at this one.
                (KernelAddresses::One(home), Some(home))
            }
        };
        if let Some(limit) = descriptors::raise_limit() {
            tracing::debug!("each connection takes a file descriptor; this process may have {limit}");
        }
        Self::at(addresses, known, home, patience, Arc::default())
    }

    /// Makes the transport of another engine of the same device. The new transport can accept connections at the
    /// addresses that this transport reserves.
    ///
    /// # Errors
    /// [`Error::NoDescriptor`] if the process or the system has no descriptor left. [`Error::Os`] if the kernel
    /// refuses for another reason.
    pub fn beside(&self) -> Result<Self> {
        let known = self.known.borrow().clone();
        let mut other =
            Self::at(self.addresses.clone(), known, self.home, self.patience, self.doors.clone())?;
        other.lends_from = self.lends_from;
        Ok(other.reading(self.buffer.len()))
    }

    fn at(
        addresses: KernelAddresses,
        known: Vec<Address>,
        home: Option<IpAddr>,
        patience: Patience,
        doors: Arc<Doors>,
    ) -> Result<Self> {
        Ok(Self {
            addresses,
            known: RefCell::new(known),
            doors,
            poll: Poll::new().map_err(|source| Error::os("epoll", source))?,
            streams: Slab::new(),
            places: Slab::new(),
            ready: VecDeque::new(),
            hot: ArrayVec::new(),
            heard: false,
            looked_at: 0,
            news: VecDeque::new(),
            taken: Vec::new(),
            watched: Vec::new(),
            watch_at: Time::MAX,
            resting: Vec::new(),
            wake_at: Time::MAX,
            buffer: vec![0; READ].into(),
            lends_from: LENDS_FROM,
            pieces: Pieces::default(),
            spare: Spare::default(),
            passes: 0,
            sent: 0,
            patience,
            home,
            counters: Counters::default(),
        })
    }

    /// Limits each read to `octets`; the default is 256 KiB. With smaller reads, other connections get their turns
    /// sooner.
    #[must_use]
    pub fn reading(mut self, octets: usize) -> Self {
        self.buffer = vec![0; octets.max(1)].into();
        self
    }

    /// Makes the transport copy all payload, so that a program may change its memory at any time.
    #[must_use]
    pub fn copying(mut self) -> Self {
        self.lends_from = usize::MAX;
        self
    }

    fn stream(&self, conn: ConnId) -> Option<&Stream> {
        self.streams.get(self.streams.find(conn.into())?)
    }

    #[inline]
    fn stream_mut(&mut self, conn: ConnId) -> Option<&mut Stream> {
        self.streams.get_mut(self.streams.find(conn.into())?)
    }

    fn place_mut(&mut self, bound: BindId) -> Option<&mut Place> {
        self.places.get_mut(self.places.find(bound.into())?)
    }

    /// Adds a connection. The kernel reports its events from now on.
    fn add(&mut self, socket: Socket, peer: SocketAddr) -> io::Result<ConnId> {
        let id = self.streams.insert(Stream::new(socket, peer));
        let conn = id.into();
        let Some(stream) = self.streams.get_mut(id.index) else { return Err(io::ErrorKind::Other.into()) };
        if let Err(error) = self.poll.add(stream.socket.as_fd(), Token::Stream(conn).pack()) {
            self.streams.remove(id.index);
            return Err(error);
        }
        Ok(conn)
    }

    /// Puts a connection into the ready list, so that it gets a turn.
    fn list(&mut self, conn: ConnId) {
        if let Some(stream) = self.stream_mut(conn)
            && !std::mem::replace(&mut stream.listed, true)
        {
            self.ready.push_back(Token::Stream(conn));
        }
    }

    /// Removes a connection and closes its socket. `advance` reports this to the engine.
    fn end(&mut self, conn: ConnId, why: CloseReason) {
        if let Some(stream) = self.remove(conn) {
            self.news.push_back((conn, stream.tag, why));
        }
    }

    /// Removes a connection and resets its socket, so that the kernel drops all its data. `advance` reports this to
    /// the engine.
    fn give_up(&mut self, conn: ConnId, why: CloseReason) {
        if let Some(stream) = self.remove(conn) {
            self.news.push_back((conn, stream.tag, why));
            stream.socket.reset();
        }
    }

    fn remove(&mut self, conn: ConnId) -> Option<Stream> {
        let mut stream = self.streams.remove(self.streams.find(conn.into())?)?;
        stream.queue.clear(&mut self.spare);
        Some(stream)
    }

    /// Hands the queued data of a connection to the kernel.
    #[inline]
    fn put_out(&mut self, now: Time, conn: ConnId) {
        let Some(index) = self.streams.find(conn.into()) else { return };
        let Some(stream) = self.streams.get_mut(index) else { return };
        let before = stream.untold;
        let sent = stream.output(&mut self.pieces, &mut self.spare);
        let (untold, failed) = (stream.untold, stream.failure.is_some());
        if sent > 0 {
            self.counters.writes += 1;
            self.counters.octets_out += sent as u64;
            self.sent += 1;
            if !std::mem::replace(&mut stream.watched, true) {
                stream.progress = (0, now);
                self.watched.push(conn);
                self.watch_at = self.watch_at.min(now + WATCH);
            }
        }
        if before == 0 && untold > 0 {
            self.taken.push(conn);
        }
        if failed {
            self.list(conn);
        }
    }

    /// Reports to the engine what happened in calls that could not report it themselves, because they had no
    /// `events`.
    fn tell(&mut self, events: &mut impl Events<Received>) {
        while let Some(conn) = self.taken.pop() {
            self.tell_taken(conn, events);
        }
        while let Some((conn, tag, why)) = self.news.pop_front() {
            events.closed(conn, tag, why);
        }
    }

    /// Returns the local address for a connection from `bound` to `to`, and `v6only`, in the form that the kernel
    /// needs.
    fn source(&mut self, bound: BindId, to: SocketAddr) -> Result<(SocketAddr, bool), ConnectError> {
        let door = &self.place_mut(bound).ok_or(ConnectError::NoPort)?.door;
        let (real, v6only) = (door.real, door.v6only);
        match (real.ip().to_canonical(), to) {
            (IpAddr::V6(_), SocketAddr::V4(_)) if door.is_for_both() => {
                Ok(((Ipv4Addr::UNSPECIFIED, real.port()).into(), false))
            }
            (IpAddr::V6(_), SocketAddr::V6(_)) => Ok((real, v6only)),
            (IpAddr::V4(ip), SocketAddr::V4(_)) => Ok(((ip, real.port()).into(), v6only)),
            _ => Err(ConnectError::Family(to.ip())),
        }
    }
}

impl Drop for OverKernel {
    fn drop(&mut self) {
        // A forked child has closed the descriptors, and their numbers may now belong to other files.
        if !forked() {
            self.leave_to_kernel();
        }
    }
}

impl Transport for OverKernel {
    type Data = Received;
    type Draft = Record;

    fn bind(&mut self, address: SocketAddr, v6only: bool) -> Result<Bound, BindError> {
        let mut wanted = self.destination(address);
        if let Some(home) = self.home {
            if !Scope::of(wanted.ip(), v6only).covers(home) {
                return Err(BindError::NotOurs(address.ip()));
            }
            wanted.set_ip(home);
        }
        let scope = Scope::of(wanted.ip(), v6only);
        if address.port() > 0 && self.doors.have(scope, address.port()) {
            return Err(BindError::InUse(address.port()));
        }
        let socket = Socket::bind(wanted, v6only).or_else(|error| match error.raw_os_error() {
            // On a host without IPv6, "all addresses" means all IPv4 addresses.
            Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL) if scope == Scope::All && self.home.is_none() => {
                Socket::bind((Ipv4Addr::UNSPECIFIED, wanted.port()).into(), false)
            }
            _ => Err(error),
        });
        let socket = socket.inspect_err(|error| tracing::debug!("binding to {wanted}: {error}"));
        let socket = socket.map_err(|error| match error.raw_os_error() {
            Some(libc::EADDRINUSE) if address.port() > 0 => BindError::InUse(address.port()),
            Some(libc::EACCES | libc::EPERM) => BindError::Forbidden(address.port()),
            Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT) => BindError::NotOurs(address.ip()),
            Some(libc::EMFILE | libc::ENFILE) => BindError::NoDescriptor,
            Some(libc::ENOBUFS | libc::ENOMEM) => BindError::NoMemory,
            _ => BindError::Exhausted,
        })?;
        let port = socket.local().map_or(address.port(), |local| local.port());
        let mut address = address;
        address.set_port(port);
        wanted.set_port(port);
        let door = Arc::new(Door { socket, address, real: wanted, v6only });
        let id = self.places.insert(Place::at(door.clone())).into();
        self.doors.enter(id, door);
        Ok(Bound { id, address })
    }

    fn enter_binding(&mut self, bound: Bound, _v6only: bool) -> Result<(), BindError> {
        let door = self.doors.find(bound.id).ok_or(BindError::OutOfStep)?;
        let id = self.places.insert(Place::at(door));
        if BindId::from(id) != bound.id {
            self.places.remove(id.index);
            return Err(BindError::OutOfStep);
        }
        Ok(())
    }

    fn unbind(&mut self, bound: BindId) {
        self.doors.leave(bound);
        if let Some(index) = self.places.find(bound.into()) {
            self.places.remove(index);
        }
    }

    fn listen(&mut self, at: BindId, backlog: usize) -> Result<(), ListenError> {
        let index = self.places.find(at.into()).ok_or(ListenError::NotReserved)?;
        let place =
            self.places.get_mut(index).filter(|place| !place.listens).ok_or(ListenError::NotReserved)?;
        let token = Token::Place(at).pack();
        let listening =
            place.door.socket.listen(backlog).and_then(|()| self.poll.add(place.door.socket.as_fd(), token));
        listening.map_err(|error| {
            tracing::debug!("listening at {}: {error}", place.door.real);
            match error.raw_os_error() {
                Some(libc::ENOBUFS | libc::ENOMEM | libc::ENOSPC) => ListenError::NoMemory,
                _ => ListenError::InUse(place.door.address.port()),
            }
        })?;
        place.listens = true;
        Ok(())
    }

    fn connect(
        &mut self,
        now: Time,
        from: Option<BindId>,
        to: SocketAddr,
        tag: u64,
    ) -> Result<ConnId, ConnectError> {
        if to.port() == 0 || to.ip().is_unspecified() {
            return Err(ConnectError::Address(to));
        }
        let from = match from {
            Some(bound) => Some(self.source(bound, to)?),
            None => {
                self.home.filter(|home| home.is_ipv4() == to.is_ipv4()).map(|home| ((home, 0).into(), false))
            }
        };
        let failed = |error: io::Error| match error.raw_os_error() {
            Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL) => match from {
                Some((from, _)) if from.port() > 0 => ConnectError::InUse(from.port()),
                _ => ConnectError::NoPort,
            },
            Some(libc::EMFILE | libc::ENFILE) => ConnectError::NoDescriptor,
            Some(libc::ENOBUFS | libc::ENOMEM | libc::ENOSPC) => ConnectError::TooMany,
            Some(libc::EINVAL) => ConnectError::Address(to),
            Some(libc::EACCES | libc::EPERM) => ConnectError::Forbidden(to.ip()),
            _ => ConnectError::Unreachable(to.ip()),
        };
        let socket =
            Socket::connect(from, to).inspect_err(|error| tracing::debug!("connecting to {to}: {error}"));
        let socket = socket.map_err(failed)?;
        let conn = self.add(socket, to).map_err(failed)?;
        let (patience, doors) = (self.patience, self.doors.clone());
        if let Some(stream) = self.stream_mut(conn) {
            (stream.tag, stream.connecting) = (tag, true);
            let reserved = from.filter(|(from, _)| from.port() > 0).and_then(|_| stream.socket.local());
            stream.from = reserved.map(|from| doors.claim(from));
            stream.progress = (0, now);
            let _ = stream.socket.set_keepalive(patience.keepalive);
        }
        Ok(conn)
    }

    fn adopt(
        &mut self,
        now: Time,
        socket: OwnedFd,
        already_read: &[u8],
        tag: u64,
    ) -> Result<Adopted, ConvertError> {
        self.take_over(now, &socket, already_read, tag).map_err(|error| ConvertError::new(error, socket))
    }

    fn can_part(&self) -> bool {
        true
    }

    fn part_with(&mut self, conn: ConnId) -> Option<Box<dyn Any + Send>> {
        self.send_off(conn)
    }

    fn take_in(&mut self, _now: Time, stream: Box<dyn Any + Send>, tag: u64) -> Result<ConnId> {
        self.welcome_in(stream, tag)
    }

    fn set_patience(&mut self, conn: ConnId, patience: Option<Patience>) {
        let configured = self.patience;
        if let Some(stream) = self.stream_mut(conn) {
            stream.patience = patience;
            let _ = stream.socket.set_keepalive(patience.unwrap_or(configured).keepalive);
        }
    }

    fn close(&mut self, now: Time, conn: ConnId) {
        let Some(stream) = self.stream_mut(conn) else { return };
        stream.closing = true;
        if stream.connecting {
            return self.end(conn, CloseReason::Aborted);
        }
        self.put_out(now, conn);
        if self.stream(conn).is_some_and(|stream| stream.shut && stream.heard_end) {
            self.end(conn, CloseReason::Graceful);
        }
    }

    fn abort(&mut self, _now: Time, conn: ConnId) {
        self.give_up(conn, CloseReason::Aborted);
    }

    fn has_ended(&self, conn: ConnId) -> bool {
        let info = |stream: &Stream| stream.shut && stream.socket.info().is_none_or(|info| info.has_ended());
        self.stream(conn).is_none_or(info)
    }

    #[inline]
    fn receive(&mut self, now: Time, events: &mut impl Events<Received>) -> bool {
        self.passes = self.passes.wrapping_add(1);
        let mut any = false;
        for i in 0..self.hot.len() {
            let Some(conn) = self.hot.get(i).copied() else { break };
            match self.stream(conn) {
                None => {
                    self.hot.remove(i);
                    break;
                }
                Some(stream) if stream.listed || stream.stopped || stream.heard_end || stream.connecting => {}
                Some(_) => any |= self.read(conn, events),
            }
        }
        let moved = self.counters.octets_in + self.counters.octets_out;
        let busy = self.heard || moved - self.looked_at >= SHARE as u64;
        if busy || self.hot.is_empty() || self.passes.is_multiple_of(LOOK_EVERY) {
            (self.heard, self.looked_at) = (self.look(), moved);
        }
        for _ in 0..self.ready.len().min(TURNS) {
            any |= match self.ready.pop_front() {
                Some(Token::Stream(conn)) => self.serve(now, conn, events),
                Some(Token::Place(bound)) => self.admit(now, bound, events),
                None => break,
            };
        }
        any
    }

    #[inline]
    fn advance(&mut self, now: Time, events: &mut impl Events<Received>) {
        if now >= self.watch_at || now >= self.wake_at {
            self.tend(now);
        }
        self.tell(events);
    }

    fn next_deadline(&self) -> Option<Time> {
        if !(self.ready.is_empty() && self.news.is_empty() && self.taken.is_empty()) {
            return Some(Time::ZERO);
        }
        Some(self.watch_at.min(self.wake_at)).filter(|at| *at < Time::MAX)
    }

    /// Makes the next pass ask epoll, so that no event is left unhandled when the engine's thread sleeps.
    fn arm(&mut self) -> Option<Arc<dyn Wakeup>> {
        self.passes = LOOK_EVERY - 1;
        Some(self.poll.wakeup())
    }

    fn sent(&self) -> Sent {
        // A call takes up to 192 KiB. With a bound of the octets, every pass would be one call, and look at all sockets.
        Sent { frames: self.sent, octets: 0 }
    }

    fn resume(&mut self, _now: Time, conn: ConnId, events: &mut impl Events<Received>) {
        let Some(stream) = self.stream_mut(conn) else { return };
        let tag = stream.tag;
        if let Some(waiting) = stream.waiting.take() {
            // This data is already in memory of its own, so it need not be copied again.
            if let Some(rest) = events.data(conn, tag, waiting) {
                if let Some(stream) = self.stream_mut(conn) {
                    stream.waiting = Some(rest);
                }
                return;
            }
        }
        if let Some(stream) = self.stream_mut(conn)
            && std::mem::replace(&mut stream.stopped, false)
        {
            stream.readable = true;
            self.list(conn);
        }
    }

    #[inline]
    fn draft(&mut self) -> Option<Record> {
        Some(self.spare.take())
    }

    #[inline]
    fn segment(&self, conn: ConnId) -> usize {
        self.stream(conn).map_or(0, Stream::mss)
    }

    #[inline]
    fn record_max(&self, _conn: ConnId) -> usize {
        record::CAPACITY
    }

    #[inline]
    fn room(&self, conn: ConnId) -> usize {
        self.stream(conn).map_or(0, Stream::room)
    }

    #[inline]
    fn send(&mut self, conn: ConnId, record: Record, _sum: Option<u16>, _unit: u16) {
        if let Some(stream) = self.stream_mut(conn) {
            stream.send(record);
        }
    }

    #[inline]
    fn output(&mut self, now: Time, conn: ConnId) {
        self.put_out(now, conn);
    }

    /// Octets that the kernel has taken count as acknowledged once the engine has been told, because the kernel no
    /// longer reads our memory.
    #[inline]
    fn unacked(&self, conn: ConnId) -> u64 {
        self.stream(conn).map_or(0, Stream::unacked)
    }

    fn stalled_since(&self, conn: ConnId) -> Option<Time> {
        let stream = self.stream(conn).filter(|stream| stream.watched && stream.is_outstanding())?;
        Some(stream.progress.1)
    }

    fn is_held_up(&self, conn: ConnId) -> bool {
        let shut = |info: TcpInfo| info.snd_wnd < info.snd_mss;
        self.stream(conn)
            .is_some_and(|stream| stream.is_outstanding() && stream.socket.info().is_some_and(shut))
    }

    #[inline]
    fn lends_from(&self) -> usize {
        self.lends_from
    }

    #[inline]
    unsafe fn lend(&mut self, record: &mut Record, at: *const u8, len: usize, _ours: bool) -> bool {
        record.lend(at, len);
        true
    }

    fn take_back(&mut self, conn: ConnId, range: &Range<usize>) -> bool {
        if let Some(stream) = self.stream_mut(conn) {
            stream.queue.take_back(range);
        }
        true
    }

    fn peers_notice_end(&self) -> bool {
        true
    }

    fn finish(&mut self) {
        self.leave_to_kernel();
    }

    fn local(&self, conn: ConnId) -> Option<SocketAddr> {
        self.stream(conn)?.socket.local()
    }

    /// Keeps a loopback address, because the kernel serves it. But if this device may use only one address, and that is
    /// not a loopback address, the device's address replaces the loopback address.
    fn destination(&self, to: SocketAddr) -> SocketAddr {
        match self.home {
            Some(home) if to.ip().to_canonical().is_loopback() && !home.is_loopback() => {
                SocketAddr::new(home, to.port())
            }
            _ => to,
        }
    }

    fn source_for(&self, _now: Time, to: SocketAddr) -> Result<Option<IpAddr>> {
        host::source_for(self.home, to)
    }

    fn without_route(&self) -> &'static str {
        match self.home {
            None => {
                "this host has none; check the addresses and routes of this host (ip address, ip route get)"
            }
            Some(_) => {
                "this host has no route from the only address that this device may use (--port kernel:...); check the \
                 routes of this host (ip route get ... from ...), or give the device all addresses"
            }
        }
    }

    fn facts(&self) -> Facts {
        let c = &self.counters;
        if let Ok(now) = host::addresses(&self.addresses) {
            self.known.replace(now);
        }
        Facts {
            link_up: true,
            addresses: self.known.borrow().clone(),
            counters: vec![
                ("reads", c.reads),
                ("writes", c.writes),
                ("octets_in", c.octets_in),
                ("octets_out", c.octets_out),
                ("accepted", c.accepted),
                ("connected", c.connected),
                ("adopted", c.adopted),
            ],
            ..Facts::default()
        }
    }

    fn connections(&self) -> Vec<StreamFacts> {
        let facts = |(index, stream): (u32, &Stream)| {
            let (local, info) = (stream.socket.local()?, stream.socket.info()?);
            Some(StreamFacts {
                conn: self.streams.id(index)?.into(),
                local,
                peer: stream.peer,
                tcp: info.convert(),
            })
        };
        self.streams.iter().filter_map(facts).collect()
    }
}
