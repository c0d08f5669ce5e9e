//! What an engine needs of whatever carries its streams: reliable byte streams between addresses, as TCP's.
//!
//! The engine is generic over [`Transport`], so that it knows nothing of frames, neighbours, checksums and pools, and no
//! call on the way of a message is dynamic. `over_port` is the project's own TCP on a port. Another one makes a
//! device by [`Device::over`](crate::Device::over).
//!
//! # A whole transport
//! Streams from a device to itself, without windows, timers and resets:
//!
//! ```
//! use std::collections::VecDeque;
//! use std::net::{Ipv4Addr, SocketAddr};
//! use std::time::Duration;
//! use urnic::transport::*;
//! use urnic::{Access, CmEvent, Config, ConnParam, Device, QpInit, SendFlags, SendOp, SendWr, Sge, Wc};
//!
//! /// Streams have two halves: 0 and 1, 2 and 3, and so on.
//! #[derive(Default)]
//! struct Loop {
//!     bound: Vec<SocketAddr>,
//!     listener: Option<(BindId, u16)>,
//!     halves: Vec<Half>,
//!     news: VecDeque<News>,
//! }
//!
//! #[derive(Default)]
//! struct Half {
//!     tag: u64,
//!     to: Option<SocketAddr>,
//!     queued: Vec<u8>,
//!     unacked: u64,
//!     /// What has arrived and was not taken.
//!     waiting: VecDeque<Octets>,
//!     stopped: bool,
//!     /// Our end is to come, the other one's has come.
//!     closes: bool,
//!     ended: bool,
//! }
//!
//! /// What half of which index hears.
//! enum News {
//!     Incoming(u32),
//!     Connected(u32),
//!     Data(u32, Octets),
//!     Acked(u32, u64),
//!     Finished(u32),
//!     Closed(u32, CloseReason),
//! }
//!
//! fn name(index: u32) -> ConnId {
//!     ConnId::new(index, 1)
//! }
//!
//! impl Loop {
//!     fn half(&mut self, index: u32) -> &mut Half {
//!         &mut self.halves[index as usize]
//!     }
//!
//!     fn deliver(&mut self, index: u32, octets: Octets, events: &mut impl Events<Octets>) {
//!         let (tag, len) = (self.half(index).tag, octets.bytes().len());
//!         let rest = events.data(name(index), tag, octets);
//!         let taken = (len - rest.as_ref().map_or(0, |rest| rest.bytes().len())) as u64;
//!         self.half(index ^ 1).unacked -= taken;
//!         self.news.push_back(News::Acked(index ^ 1, taken));
//!         if let Some(rest) = rest {
//!             self.half(index).stopped = true;
//!             self.half(index).waiting.push_front(rest);
//!         }
//!     }
//! }
//!
//! impl Transport for Loop {
//!     type Data = Octets;
//!     type Draft = Vec<u8>;
//!
//!     fn bind(&mut self, address: SocketAddr, _v6only: bool) -> Result<Bound, BindError> {
//!         if self.bound.contains(&address) {
//!             return Err(BindError::InUse(address.port()));
//!         }
//!         self.bound.push(address);
//!         Ok(Bound { id: BindId::new(self.bound.len() as u32 - 1, 1), address })
//!     }
//!
//!     fn unbind(&mut self, bound: BindId) {
//!         self.listener.take_if(|(id, _)| *id == bound);
//!     }
//!
//!     fn listen(&mut self, at: BindId, _backlog: usize) -> Result<(), ListenError> {
//!         let address = self.bound.get(at.index() as usize).ok_or(ListenError::NotReserved)?;
//!         self.listener = Some((at, address.port()));
//!         Ok(())
//!     }
//!
//!     fn connect(
//!         &mut self,
//!         _: Time,
//!         _from: Option<BindId>,
//!         to: SocketAddr,
//!         tag: u64,
//!     ) -> Result<ConnId, ConnectError> {
//!         let index = self.halves.len() as u32;
//!         self.halves.push(Half { tag, to: Some(to), ..Half::default() });
//!         self.halves.push(Half::default());
//!         if self.listener.is_some_and(|(_, port)| port == to.port()) {
//!             self.news.extend([News::Incoming(index ^ 1), News::Connected(index)]);
//!         } else {
//!             self.news.push_back(News::Closed(index, CloseReason::Refused));
//!         }
//!         Ok(name(index))
//!     }
//!
//!     fn close(&mut self, _: Time, conn: ConnId) {
//!         self.half(conn.index()).closes = true;
//!     }
//!
//!     fn abort(&mut self, now: Time, conn: ConnId) {
//!         self.close(now, conn);
//!         self.output(now, conn);
//!     }
//!
//!     fn has_ended(&self, conn: ConnId) -> bool {
//!         self.halves[conn.index() as usize ^ 1].ended
//!     }
//!
//!     fn local(&self, conn: ConnId) -> Option<SocketAddr> {
//!         let index = conn.index() as usize;
//!         self.halves[index].to.or(self.halves[index ^ 1].to)
//!     }
//!
//!     fn receive(&mut self, _: Time, events: &mut impl Events<Octets>) -> bool {
//!         let Some(news) = self.news.pop_front() else { return false };
//!         match news {
//!             News::Incoming(index) => {
//!                 let peer = self.half(index ^ 1).to.expect("who connects says where to");
//!                 let Some((listener, _)) = self.listener else { return true };
//!                 self.half(index).tag = events.incoming(listener, name(index), peer);
//!             }
//!             News::Connected(index) => events.connected(name(index), self.half(index).tag),
//!             News::Data(index, octets) if self.half(index).stopped => {
//!                 self.half(index).waiting.push_back(octets);
//!             }
//!             News::Data(index, octets) => self.deliver(index, octets, events),
//!             News::Acked(index, octets) => events.acked(name(index), self.half(index).tag, octets),
//!             News::Finished(index) => {
//!                 events.finished(name(index), self.half(index).tag);
//!                 self.half(index).ended = true;
//!                 if self.half(index ^ 1).ended {
//!                     let closed = |index| News::Closed(index, CloseReason::Graceful);
//!                     self.news.extend([closed(index), closed(index ^ 1)]);
//!                 }
//!             }
//!             News::Closed(index, why) => events.closed(name(index), self.half(index).tag, why),
//!         }
//!         true
//!     }
//!
//!     fn next_deadline(&self) -> Option<Time> {
//!         (!self.news.is_empty()).then_some(Time::ZERO)
//!     }
//!
//!     fn resume(&mut self, _: Time, conn: ConnId, events: &mut impl Events<Octets>) {
//!         self.half(conn.index()).stopped = false;
//!         while !self.half(conn.index()).stopped {
//!             let Some(octets) = self.half(conn.index()).waiting.pop_front() else { break };
//!             self.deliver(conn.index(), octets, events);
//!         }
//!     }
//!
//!     fn draft(&mut self) -> Option<Vec<u8>> {
//!         Some(Vec::new())
//!     }
//!
//!     fn segment(&self, _: ConnId) -> usize {
//!         1460
//!     }
//!
//!     fn room(&self, _: ConnId) -> usize {
//!         65_536
//!     }
//!
//!     fn send(&mut self, conn: ConnId, record: Vec<u8>, _sum: Option<u16>, _unit: u16) {
//!         let half = self.half(conn.index());
//!         half.unacked += record.len() as u64;
//!         half.queued.extend(record);
//!     }
//!
//!     fn output(&mut self, _: Time, conn: ConnId) {
//!         let (half, other) = (self.half(conn.index()), conn.index() ^ 1);
//!         let octets = Octets::new(std::mem::take(&mut half.queued));
//!         let ends = std::mem::take(&mut half.closes);
//!         if !octets.bytes().is_empty() {
//!             self.news.push_back(News::Data(other, octets));
//!         }
//!         if ends {
//!             self.news.push_back(News::Finished(other));
//!         }
//!     }
//!
//!     fn unacked(&self, conn: ConnId) -> u64 {
//!         self.halves[conn.index() as usize].unacked
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A device on it writes into its own memory.
//! let mut config = Config::default();
//! config.engine.progress = urnic::Progress::Inline;
//! let device = Device::over(Loop::default(), Watch::new(), &config)?;
//! let (pd, cq) = (device.alloc_pd(), device.create_cq(16, None)?);
//! let init = QpInit {
//!     send_cq: &cq,
//!     recv_cq: &cq,
//!     max_send_wr: 4,
//!     max_recv_wr: 4,
//!     max_send_sge: 1,
//!     max_recv_sge: 1,
//!     max_inline: 0,
//!     signal_all: true,
//! };
//! let (one, other) = (pd.create_qp(&init)?, pd.create_qp(&init)?);
//! let events = device.create_event_channel()?;
//! let _listener = events.listen(7500, 1)?;
//! let _connecting = events.connect(&one, (Ipv4Addr::LOCALHOST, 7500), &ConnParam::default())?;
//! let (mut accepted, mut established) = (None, 0);
//! while established < 2 {
//!     match events.wait(Duration::from_secs(1)).ok_or("nothing happens")? {
//!         CmEvent::ConnectRequest(request) => accepted = Some(request.accept(&other, &ConnParam::default())?),
//!         CmEvent::Established { .. } => established += 1,
//!         event => return Err(format!("{event:?}").into()),
//!     }
//! }
//! let from = pd.alloc_mr(100_000, Access::LOCAL_WRITE)?;
//! let to = pd.alloc_mr(100_000, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! from.write_at(99_999, &[7])?;
//! one.post_send(&SendWr {
//!     wr_id: 1,
//!     op: SendOp::Write { addr: to.addr(), rkey: to.rkey() },
//!     sges: &[Sge::of(&from, 0, 100_000)],
//!     flags: SendFlags::SIGNALED,
//! })?;
//! let mut last = [0];
//! for _ in 0..10_000 {
//!     cq.poll(&mut [Wc::default()]);
//!     to.read_at(99_999, &mut last)?;
//! }
//! assert_eq!(last, [7]);
//! # Ok(())
//! # }
//! ```

pub(crate) mod over_kernel;
pub(crate) mod over_port;

use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub use self::over_kernel::OverKernel;
pub use super::clock::{Clock, Watch};
pub use super::draft::Draft;
pub use super::wakeup::Wakeup;
use crate::shared::convert::ConvertError;
use crate::shared::error::{Error, Result};
use urnic_config::Cidr;
pub use urnic_iwarp::Chunk;
pub use urnic_tcp::{
    Address, BindError, BindId, Bound, CloseReason, ConnId, ConnInfo, ConnectError, ListenError, Patience,
    Scope, Time,
};

/// Streams of one engine. A connection is named by a [`ConnId`]; ids of connections that are gone are refused quietly
/// wherever they are used. Events of a connection carry the number that the engine gave it, its tag.
///
/// A pass of the engine calls, in this order: [`check`](Self::check) if it is due, the sending functions for connections that
/// have something to say, [`flush`](Self::flush) if any had, [`advance`](Self::advance), [`flush`](Self::flush),
/// [`receive`](Self::receive). Nothing here waits.
pub trait Transport: Send {
    /// Stream data that has arrived. It stays where it is for as long as it is held.
    type Data: Data + Send + 'static;
    /// A record under construction.
    type Draft: Draft + Send;

    // ---- connections ----

    /// Reserves a port (zero: any free one) of a local address. An unspecified address stands for all of its family,
    /// and `::` for both families unless `v6only` ([`Scope::of`]).
    ///
    /// # Errors
    /// The address is not the transport's, the port is taken, or none is free.
    fn bind(&mut self, address: SocketAddr, v6only: bool) -> Result<Bound, BindError>;

    /// Enters what the transport of another engine of the device has reserved, under the same name. Reservations are made,
    /// listened on and given back in the same order at all engines of a device; one reserves, the others enter.
    ///
    /// # Errors
    /// [`BindError::OutOfStep`]: the order was not the same, or the transport is made for one engine.
    fn bind_too(&mut self, _bound: Bound, _v6only: bool) -> Result<(), BindError> {
        Err(BindError::OutOfStep)
    }

    /// Returns the number of the engine of the device that must open a connection from a reserved address to `to`; `None` if
    /// any may, or none can.
    fn home_of(&self, _from: BindId, _to: SocketAddr) -> Option<usize> {
        None
    }

    /// Gives a reservation back, and admits no more connections to it.
    fn unbind(&mut self, bound: BindId);

    /// Admits connections to a reserved address, of which `backlog` may be half open.
    ///
    /// # Errors
    /// It is not reserved, another listener has it, or it listens already.
    fn listen(&mut self, at: BindId, backlog: usize) -> Result<(), ListenError>;

    /// Opens a connection, from a reserved address or from any port; [`Events::connected`] or [`Events::closed`] tells
    /// how it went.
    ///
    /// # Errors
    /// It cannot even be tried.
    fn connect(
        &mut self,
        now: Time,
        from: Option<BindId>,
        to: SocketAddr,
        tag: u64,
    ) -> Result<ConnId, ConnectError>;

    /// Takes a connected socket of the program's over. `already_read` is the beginning of what the peer says; it waits until
    /// the engine calls [`resume`](Self::resume), as all that follows does. There is no [`Events::connected`].
    ///
    /// # Errors
    /// The transport has no sockets ([`Error::NoConversion`](crate::Error::NoConversion)), or cannot take this one, which is
    /// given back as it was.
    fn adopt(
        &mut self,
        _now: Time,
        socket: OwnedFd,
        _already_read: &[u8],
        _tag: u64,
    ) -> Result<Adopted, ConvertError> {
        Err(ConvertError::new(Error::NoConversion, socket))
    }

    /// Whether a connection may go to the transport of another engine of the device.
    fn can_part(&self) -> bool {
        false
    }

    /// Parts with a connection on which nothing was sent, for [`take_in`](Self::take_in) of another engine; `None` if it is
    /// gone.
    fn part_with(&mut self, _conn: ConnId) -> Option<Box<dyn Any + Send>> {
        None
    }

    /// Takes in a connection that another engine has parted with; its events carry `tag` from now on.
    ///
    /// # Errors
    /// It is lost: there is no room for it.
    fn take_in(&mut self, _now: Time, _stream: Box<dyn Any + Send>, _tag: u64) -> Result<ConnId> {
        Err(Error::RequestGone)
    }

    /// The program wants this connection that has come in: until now its peer may have sent little more than an MPA Request.
    fn welcome(&mut self, _now: Time, _conn: ConnId) {}

    /// Gives a connection time limits of its own, or with `None` those of the configuration.
    fn set_patience(&mut self, _conn: ConnId, _patience: Option<Patience>) {}

    /// Ends a connection behind what is queued; what the peer still says arrives.
    fn close(&mut self, now: Time, conn: ConnId);

    /// Ends a connection at once; the peer sees a reset.
    fn abort(&mut self, now: Time, conn: ConnId);

    /// Whether the peer has acknowledged all that was sent on a connection that was closed, and its end.
    fn has_ended(&self, conn: ConnId) -> bool;

    /// Connections that there can be at once.
    fn max_connections(&self) -> u32 {
        1 << 19
    }

    // ---- a pass ----

    /// Looks at what changes rarely; says when to look again.
    fn check(&mut self, _now: Time, _events: &mut impl Events<Self::Data>) -> Time {
        Time::MAX
    }

    /// Takes what has arrived, a bounded amount. False: nothing has.
    fn receive(&mut self, now: Time, events: &mut impl Events<Self::Data>) -> bool;

    /// Lets due timers fire, tells of connections that have ended, and sends what is owed and found no company.
    fn advance(&mut self, _now: Time, _events: &mut impl Events<Self::Data>) {}

    /// Hands what was sent to the wire.
    fn flush(&mut self) {}

    /// When it wants [`advance`](Self::advance) to be called, even if nothing happens.
    fn next_deadline(&self) -> Option<Time>;

    /// Sends what waits for company: the engine may not be driven for long.
    fn flush_late(&mut self, now: Time) {
        let _ = now;
    }

    /// Lets what arrives from now on end a nap, if it can.
    fn arm(&mut self) -> Option<Arc<dyn Wakeup>> {
        None
    }

    /// Segments sent so far, or what comes close to them: a pass ends after some.
    fn sent(&self) -> u64 {
        0
    }

    /// Octets of its memory that data which is held may pin; [`Events::pinnable`] tells of changes. What may not be held is
    /// copied.
    fn pinnable(&self) -> usize {
        0
    }

    /// Calls [`Events::data`] with what waits because the engine could not take it.
    fn resume(&mut self, now: Time, conn: ConnId, events: &mut impl Events<Self::Data>);

    // ---- sending ----

    /// Whether anything can be sent now.
    fn has_room(&self) -> bool {
        true
    }

    /// A fresh record; `None` while there is no buffer for it.
    fn draft(&mut self) -> Option<Self::Draft>;

    /// Octets of data that a segment of the connection carries; zero for a connection that is gone. An FPDU fits into one
    /// (MPA-43).
    fn segment(&self, conn: ConnId) -> usize;

    /// Octets that a record had best have at most: as many as leave at once.
    fn record_max(&self, conn: ConnId) -> usize {
        self.segment(conn)
    }

    /// Octets worth sending now. Zero: wait for [`Events::acked`].
    fn room(&self, conn: ConnId) -> usize;

    /// Queues a record. `sum` is the one's-complement sum of its octets, if it is known; they had best be cut, if they do not
    /// go as a whole, at multiples of `unit` octets, zero: anywhere. A connection that is gone takes nothing; the engine hears
    /// of that by [`Events::closed`].
    fn send(&mut self, conn: ConnId, record: Self::Draft, sum: Option<u16>, unit: u16);

    /// Sends what is queued, as far as the peer's window goes.
    fn output(&mut self, now: Time, conn: ConnId);

    /// Octets that were sent and that the peer has not acknowledged.
    fn unacked(&self, conn: ConnId) -> u64;

    /// Octets that were sent to a connection and have not left, as far as the transport knows.
    fn unsent(&self, conn: ConnId) -> u64 {
        self.unacked(conn)
    }

    /// Since when the peer has acknowledged nothing of what it was sent; `None` if nothing is outstanding.
    fn stalled_since(&self, _conn: ConnId) -> Option<Time> {
        None
    }

    /// Whether something waits because the peer keeps its window shut; a peer that does not answer probes is found dead, and
    /// its connection ends. When the program is done with a connection, the engine waits for such a peer.
    fn is_held_up(&self, _conn: ConnId) -> bool {
        false
    }

    /// Whether records need the sum of their octets.
    fn wants_sum(&self) -> bool {
        false
    }

    // ---- buffers for what is sent ----

    /// Buffers that are free. `usize::MAX` where they are not what runs out.
    fn send_buffers(&self) -> usize {
        usize::MAX
    }

    /// All of them.
    fn all_send_buffers(&self) -> usize {
        usize::MAX
    }

    /// Records of a connection that the peer has not acknowledged.
    fn records(&self, _conn: ConnId) -> usize {
        0
    }

    /// Of those the newest that have buffers of the transport's.
    fn buffers(&self, _conn: ConnId) -> usize {
        0
    }

    /// Copies a connection's records to ordinary memory, as long as less than `most` octets lie there, so that their buffers are
    /// free for others.
    fn put_aside(&mut self, _conn: ConnId, _most: usize) {}

    /// Octets that lie there.
    fn aside(&self) -> usize {
        0
    }

    // ---- memory that is lent instead of copied ----

    /// From how many octets in one piece on payload had better be lent than copied; `usize::MAX` where none can be.
    fn lends_from(&self) -> usize {
        usize::MAX
    }

    /// Appends `len` octets at `at` to a record without copying them. `ours`: they are of the device's own allocator. False:
    /// it can't be done, and nothing has changed.
    ///
    /// # Safety
    /// The octets stay readable until they are acknowledged, or [`take_back`](Self::take_back) has copied them, and
    /// [`forget`](Self::forget) has dropped what waits.
    unsafe fn lend(&mut self, _record: &mut Self::Draft, _at: *const u8, _len: usize, _ours: bool) -> bool {
        false
    }

    /// Copies what a connection still has of memory within `range` (addresses). If that can't be done, the connection ends.
    fn take_back(&mut self, _now: Time, _conn: ConnId, _range: &Range<usize>) {}

    /// Drops what waits to be sent a second time, and shows memory within `range` (addresses).
    fn forget(&mut self, _range: &Range<usize>) {}

    // ---- the end ----

    /// The only peer that there can be is gone.
    fn is_deserted(&self) -> bool {
        false
    }

    /// The peers' kernels, or processes, notice when this one goes without a word.
    fn is_missed(&self) -> bool {
        false
    }

    /// Completes what it writes besides: the process is about to end.
    fn finish(&mut self) {}

    // ---- facts ----

    /// Returns our end of a connection; `None` if the connection is gone.
    fn local(&self, conn: ConnId) -> Option<SocketAddr>;

    /// Returns where a connection to `to` goes: a loopback address leads to ourselves, and [`bind`](Self::bind) takes it for
    /// any of its family. By default the first of [`facts`](Self::facts) of its family, unless one of these is of the
    /// loopback.
    fn destination(&self, to: SocketAddr) -> SocketAddr {
        let ip = to.ip().to_canonical();
        if !ip.is_loopback() {
            return to;
        }
        let own = self.facts().addresses;
        let has_loopback = own.iter().any(|own| own.ip.is_loopback());
        let home = own.iter().find(|own| !has_loopback && own.ip.is_ipv4() == ip.is_ipv4());
        home.map_or(to, |home| SocketAddr::new(home.ip, to.port()))
    }

    /// Returns the address of ours that a connection to `to` comes from; `None` if there is no way to it. By default that
    /// of [`facts`](Self::facts) whose network has it.
    ///
    /// # Errors
    /// It cannot be found out now.
    fn source_for(&self, _now: Time, to: SocketAddr) -> Result<Option<IpAddr>> {
        let (own, to) = (self.facts().addresses, to.ip());
        let has = |own: &Address| Cidr { address: own.ip, prefix: own.prefix_len }.contains(to);
        Ok(own.iter().find(|own| own.ip == to).or_else(|| own.iter().find(|own| has(own))).map(|own| own.ip))
    }

    /// Returns what the user may look at where there is no way to an address, to be put behind a colon.
    fn without_route(&self) -> &'static str {
        "the device's streams do not lead there"
    }

    /// Facts to show.
    fn facts(&self) -> Facts {
        Facts { link_up: true, ..Facts::default() }
    }

    /// The connections that there are.
    fn connections(&self) -> Vec<StreamFacts> {
        Vec::new()
    }
}

/// Octets in ordinary memory, for a transport that has no better place.
#[derive(Clone, Debug, Default)]
pub struct Octets {
    all: Arc<[u8]>,
    range: Range<usize>,
}

impl Octets {
    /// All of `octets`.
    pub fn new(octets: Vec<u8>) -> Self {
        let range = 0..octets.len();
        Self { all: octets.into(), range }
    }

    /// A part of these; nothing of what it leaves out is copied.
    pub fn part(&self, range: Range<usize>) -> Self {
        let (start, end) = (self.range.start + range.start, self.range.start + range.end);
        Self { all: self.all.clone(), range: start.min(self.range.end)..end.min(self.range.end) }
    }
}

impl Chunk for Octets {
    fn bytes(&self) -> &[u8] {
        self.all.get(self.range.clone()).unwrap_or_default()
    }
}

impl Data for Octets {
    fn skip(&mut self, n: usize) {
        self.range.start = (self.range.start + n).min(self.range.end);
    }
}

/// Octets of a stream, in order.
pub trait Data: Chunk {
    /// Takes the first `n` octets away.
    fn skip(&mut self, n: usize);
}

/// What a transport tells its engine, from inside its functions. The engine cannot call it back from there; it notes what it
/// wants to do and does it afterwards.
pub trait Events<D> {
    /// A connection has come in. Gives its tag.
    fn incoming(&mut self, listener: BindId, conn: ConnId, peer: SocketAddr) -> u64;

    /// A connection that was asked for is there.
    fn connected(&mut self, conn: ConnId, tag: u64);

    /// The next octets of a stream, each once and in order. What the engine cannot take it gives back (a suffix, not empty):
    /// that and what follows waits, and shuts the window, until [`Transport::resume`].
    fn data(&mut self, conn: ConnId, tag: u64, data: D) -> Option<D>;

    /// `octets` more of what was sent are acknowledged, so that the engine may reuse their memory. Also told with zero when
    /// there may be room for another reason.
    fn acked(&mut self, conn: ConnId, tag: u64, octets: u64);

    /// The peer will send no more; all its data has been told.
    fn finished(&mut self, conn: ConnId, tag: u64);

    /// The connection is gone.
    fn closed(&mut self, conn: ConnId, tag: u64, reason: CloseReason);

    /// Data that is held may pin so many octets of the transport's memory from now on. Zero: what is held must be copied.
    fn pinnable(&mut self, octets: usize);

    /// The link has come up, or gone down.
    fn link(&mut self, up: bool);
}

/// A connection that was a socket of the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// Its name.
    pub conn: ConnId,
    /// The other end.
    pub peer: SocketAddr,
}

/// Facts about a transport.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Whether there is a link.
    pub link_up: bool,
    /// Octets of payload that one frame may carry as several segments to the peer that is there now, or zero.
    pub gso_max: usize,
    /// Addresses that can be used at this moment, the main one first; none: those of the configuration.
    pub addresses: Vec<Address>,
    /// Names and values, in the order to show them.
    pub counters: Vec<(&'static str, u64)>,
}

/// A connection's figures.
#[derive(Clone, Debug)]
pub struct StreamFacts {
    /// Its name.
    pub conn: ConnId,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// What TCP says of it.
    pub tcp: ConnInfo,
}
