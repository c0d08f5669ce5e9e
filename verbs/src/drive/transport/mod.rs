//! What an engine needs from a transport: reliable byte streams between addresses, like TCP's.
//!
//! The engine is generic over [`Transport`]. It therefore knows nothing of frames, neighbours, checksums and pools,
//! and the path of a message has no dynamic calls. `over_port` is urnic's own TCP on a port, `over_kernel` the
//! kernel's TCP sockets. [`Device::over`](crate::Device::over) makes a device on any other transport.
//!
//! # A whole transport
//! This one carries streams from a device to itself, without windows, timers and resets:
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
//!     /// Octets that have arrived and were not taken.
//!     waiting: VecDeque<Octets>,
//!     stopped: bool,
//!     /// This half will close; the other half has ended.
//!     closes: bool,
//!     ended: bool,
//! }
//!
//! /// An event, with the index of the half that it is for.
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
//! // A device on this transport writes into its own memory.
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

/// The streams of one engine. A [`ConnId`] names a connection. Every function must ignore ids of connections that
/// no longer exist. Each event of a connection carries the connection's tag, a number chosen by the engine.
///
/// A pass of the engine calls, in this order: [`check`](Self::check) if it is due, the sending functions for
/// connections that have data to send, [`flush`](Self::flush) if any had, [`advance`](Self::advance),
/// [`flush`](Self::flush), [`receive`](Self::receive). None of these functions may wait.
pub trait Transport: Send {
    /// Stream data that has arrived. It stays in place for as long as it is held.
    type Data: Data + Send + 'static;
    /// A record under construction.
    type Draft: Draft + Send;

    // ---- connections ----

    /// Reserves a port (0: any free one) of a local address. An unspecified address stands for all addresses of its
    /// family, and `::` for those of both families unless `v6only` ([`Scope::of`]).
    ///
    /// # Errors
    /// [`BindError`] if the address is not the transport's, the port is taken, or none is free.
    fn bind(&mut self, address: SocketAddr, v6only: bool) -> Result<Bound, BindError>;

    /// Enters a reservation that the transport of another engine of the device has made, with the same id.
    /// Reservations are made, listened on and ended in the same order at all engines of a device: one engine
    /// reserves, the others enter.
    ///
    /// # Errors
    /// [`BindError::OutOfStep`] if the order was not the same, or the transport supports only one engine.
    fn bind_too(&mut self, _bound: Bound, _v6only: bool) -> Result<(), BindError> {
        Err(BindError::OutOfStep)
    }

    /// Returns the number of the engine of the device that must open a connection from a reserved address to `to`;
    /// `None` if any engine may, or none can.
    fn home_of(&self, _from: BindId, _to: SocketAddr) -> Option<usize> {
        None
    }

    /// Ends a reservation. No more connections are admitted to it.
    fn unbind(&mut self, bound: BindId);

    /// Admits connections to a reserved address. At most `backlog` of them may be half open.
    ///
    /// # Errors
    /// [`ListenError`] if the address is not reserved, another listener has it, or it has a listener already.
    fn listen(&mut self, at: BindId, backlog: usize) -> Result<(), ListenError>;

    /// Opens a connection, from a reserved address or from any port (`None`). [`Events::connected`] or
    /// [`Events::closed`] reports the outcome.
    ///
    /// # Errors
    /// [`ConnectError`] if the connection cannot even be attempted.
    fn connect(
        &mut self,
        now: Time,
        from: Option<BindId>,
        to: SocketAddr,
        tag: u64,
    ) -> Result<ConnId, ConnectError>;

    /// Takes over a connected socket of the program. `already_read` is the beginning of the peer's data. It waits,
    /// like all data that follows, until the engine calls [`resume`](Self::resume). There is no
    /// [`Events::connected`].
    ///
    /// # Errors
    /// [`ConvertError`] with the unchanged socket: the transport has no sockets
    /// ([`Error::NoConversion`](crate::Error::NoConversion)), or cannot take this one.
    fn adopt(
        &mut self,
        _now: Time,
        socket: OwnedFd,
        _already_read: &[u8],
        _tag: u64,
    ) -> Result<Adopted, ConvertError> {
        Err(ConvertError::new(Error::NoConversion, socket))
    }

    /// Returns whether connections may move to the transport of another engine of the device.
    fn can_part(&self) -> bool {
        false
    }

    /// Gives up a connection on which nothing was sent, for [`take_in`](Self::take_in) at another engine; `None` if
    /// the connection no longer exists.
    fn part_with(&mut self, _conn: ConnId) -> Option<Box<dyn Any + Send>> {
        None
    }

    /// Takes in a connection that another engine has given up. Its events carry `tag` from now on.
    ///
    /// # Errors
    /// The connection is lost if this transport has no room for it.
    fn take_in(&mut self, _now: Time, _stream: Box<dyn Any + Send>, _tag: u64) -> Result<ConnId> {
        Err(Error::RequestGone)
    }

    /// The program accepts this incoming connection. Until now its peer was allowed to send little more than an MPA
    /// Request.
    fn welcome(&mut self, _now: Time, _conn: ConnId) {}

    /// Sets time limits for a silent peer of a connection; `None`: those of the configuration.
    fn set_patience(&mut self, _conn: ConnId, _patience: Option<Patience>) {}

    /// Ends a connection after its queued data has been sent. Data that the peer still sends arrives.
    fn close(&mut self, now: Time, conn: ConnId);

    /// Ends a connection at once. The peer sees a reset.
    fn abort(&mut self, now: Time, conn: ConnId);

    /// Returns whether the peer has acknowledged all data of a closed connection, and its end.
    fn has_ended(&self, conn: ConnId) -> bool;

    /// Returns the maximum number of connections.
    fn max_connections(&self) -> u32 {
        1 << 19
    }

    // ---- a pass ----

    /// Checks what changes rarely. Returns when to call this again.
    fn check(&mut self, _now: Time, _events: &mut impl Events<Self::Data>) -> Time {
        Time::MAX
    }

    /// Takes a bounded amount of what has arrived. Returns false if nothing has.
    fn receive(&mut self, now: Time, events: &mut impl Events<Self::Data>) -> bool;

    /// Fires due timers, reports connections that have ended, and sends acknowledgements that no data carried.
    fn advance(&mut self, _now: Time, _events: &mut impl Events<Self::Data>) {}

    /// Hands to the wire what was sent.
    fn flush(&mut self) {}

    /// Returns when [`advance`](Self::advance) must be called even if nothing happens; `None`: never.
    fn next_deadline(&self) -> Option<Time>;

    /// Sends what waits to share a frame, because the engine may not be driven for long.
    fn flush_late(&mut self, now: Time) {
        let _ = now;
    }

    /// Arms the transport, if it can signal: what arrives from now on ends a nap. `None`: it cannot signal.
    fn arm(&mut self) -> Option<Arc<dyn Wakeup>> {
        None
    }

    /// Returns the number of segments sent so far, or an approximation. A pass ends after a certain number.
    fn sent(&self) -> u64 {
        0
    }

    /// Returns how many octets of its memory held data may pin. Data beyond that is copied. [`Events::pinnable`]
    /// reports changes.
    fn pinnable(&self) -> usize {
        0
    }

    /// Calls [`Events::data`] with the data that waits because the engine could not take it.
    fn resume(&mut self, now: Time, conn: ConnId, events: &mut impl Events<Self::Data>);

    // ---- sending ----

    /// Returns whether anything can be sent now.
    fn has_room(&self) -> bool {
        true
    }

    /// Returns a fresh record; `None` while there is no buffer for it.
    fn draft(&mut self) -> Option<Self::Draft>;

    /// Returns the number of data octets in a segment of the connection; 0 if the connection no longer exists. An
    /// FPDU fits into one segment (MPA-43).
    fn segment(&self, conn: ConnId) -> usize;

    /// Recommended maximum record size, in octets: what leaves at once.
    fn record_max(&self, conn: ConnId) -> usize {
        self.segment(conn)
    }

    /// Returns how many octets are worth sending now. 0: wait for [`Events::acked`].
    fn room(&self, conn: ConnId) -> usize;

    /// Queues a record. `sum` is the one's-complement sum of its octets, if known. If the record does not leave as
    /// a whole, it should be cut at multiples of `unit` octets; 0: anywhere. A connection that no longer exists
    /// takes nothing; [`Events::closed`] has told the engine, or will.
    fn send(&mut self, conn: ConnId, record: Self::Draft, sum: Option<u16>, unit: u16);

    /// Sends queued records, as far as the peer's window allows.
    fn output(&mut self, now: Time, conn: ConnId);

    /// Returns the number of octets that were sent and that the peer has not acknowledged.
    fn unacked(&self, conn: ConnId) -> u64;

    /// Returns the number of octets that were sent on a connection and have not left this host, as far as the
    /// transport knows.
    fn unsent(&self, conn: ConnId) -> u64 {
        self.unacked(conn)
    }

    /// Returns since when the peer has acknowledged nothing of what is outstanding; `None` if nothing is.
    fn stalled_since(&self, _conn: ConnId) -> Option<Time> {
        None
    }

    /// Returns whether data waits because the peer keeps its window shut. The transport must find out whether such
    /// a peer is dead, by probes, and then end the connection: after the program is done with a connection, the
    /// engine waits for such a peer.
    fn is_held_up(&self, _conn: ConnId) -> bool {
        false
    }

    /// Returns whether records need the sum of their octets.
    fn wants_sum(&self) -> bool {
        false
    }

    // ---- buffers for what is sent ----

    /// Returns the number of free send buffers; `usize::MAX` if they are not a limited resource.
    fn send_buffers(&self) -> usize {
        usize::MAX
    }

    /// Returns the number of all send buffers; `usize::MAX` if they are not a limited resource.
    fn all_send_buffers(&self) -> usize {
        usize::MAX
    }

    /// Returns the number of records of a connection that the peer has not acknowledged.
    fn records(&self, _conn: ConnId) -> usize {
        0
    }

    /// Returns how many of the newest of these records occupy the transport's buffers.
    fn buffers(&self, _conn: ConnId) -> usize {
        0
    }

    /// Copies a connection's records to ordinary memory, as long as less than `most` octets are there, so that
    /// other connections get their buffers.
    fn put_aside(&mut self, _conn: ConnId, _most: usize) {}

    /// Returns the number of octets in that memory.
    fn aside(&self) -> usize {
        0
    }

    // ---- memory that is lent instead of copied ----

    /// Returns the size, in octets, from which a contiguous piece should be lent rather than copied; `usize::MAX`
    /// if the transport cannot lend.
    fn lends_from(&self) -> usize {
        usize::MAX
    }

    /// Appends `len` octets at `at` to a record without copying them. With `ours`, they are in memory of the
    /// device's own allocator. Returns false, and changes nothing, if the transport cannot do that.
    ///
    /// # Safety
    /// The octets must stay readable until they are acknowledged, or until [`take_back`](Self::take_back) has
    /// copied them and [`forget`](Self::forget) has dropped what waits.
    unsafe fn lend(&mut self, _record: &mut Self::Draft, _at: *const u8, _len: usize, _ours: bool) -> bool {
        false
    }

    /// Copies what a connection still refers to within `range` (addresses). If it cannot be copied, ends the
    /// connection.
    fn take_back(&mut self, _now: Time, _conn: ConnId, _range: &Range<usize>) {}

    /// Drops queued retransmissions that refer to memory within `range` (addresses).
    fn forget(&mut self, _range: &Range<usize>) {}

    // ---- the end ----

    /// Returns whether the only possible peer is gone.
    fn is_deserted(&self) -> bool {
        false
    }

    /// Returns whether the peers' kernels or processes notice by themselves when this process ends.
    fn is_missed(&self) -> bool {
        false
    }

    /// Completes what the transport writes besides frames, because the process is about to end.
    fn finish(&mut self) {}

    // ---- facts ----

    /// Returns the local address of a connection; `None` if the connection no longer exists.
    fn local(&self, conn: ConnId) -> Option<SocketAddr>;

    /// Returns the address that a connection to `to` must use. A loopback address means this host, and
    /// [`bind`](Self::bind) takes it for any address of its family. By default, a loopback address becomes the
    /// first of the [`facts`](Self::facts)' addresses of its family, unless one of these is a loopback address.
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

    /// Returns the local address that a connection to `to` would come from; `None` if no route leads to `to`. By
    /// default, the address of [`facts`](Self::facts) whose network contains `to`.
    ///
    /// # Errors
    /// The transport's, if the address cannot be found now.
    fn source_for(&self, _now: Time, to: SocketAddr) -> Result<Option<IpAddr>> {
        let (own, to) = (self.facts().addresses, to.ip());
        let has = |own: &Address| Cidr { address: own.ip, prefix: own.prefix_len }.contains(to);
        Ok(own.iter().find(|own| own.ip == to).or_else(|| own.iter().find(|own| has(own))).map(|own| own.ip))
    }

    /// Returns what the user should check if no route leads to an address. It follows a colon in the message.
    fn without_route(&self) -> &'static str {
        "the device's transport does not reach it"
    }

    /// Returns the facts to show.
    fn facts(&self) -> Facts {
        Facts { link_up: true, ..Facts::default() }
    }

    /// Returns the present connections.
    fn connections(&self) -> Vec<StreamFacts> {
        Vec::new()
    }
}

/// Octets in ordinary memory, for a transport that has no better place for received data.
#[derive(Clone, Debug, Default)]
pub struct Octets {
    all: Arc<[u8]>,
    range: Range<usize>,
}

impl Octets {
    /// Makes an object of all of `octets`.
    pub fn new(octets: Vec<u8>) -> Self {
        let range = 0..octets.len();
        Self { all: octets.into(), range }
    }

    /// Returns the part `range` of these octets, without copying.
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
    /// Removes the first `n` octets.
    fn skip(&mut self, n: usize);
}

/// The engine, as a transport reports events to it from inside its functions. The engine cannot call the transport
/// from there; it notes what to do, and does it afterwards.
pub trait Events<D> {
    /// A connection has come in. Returns its tag.
    fn incoming(&mut self, listener: BindId, conn: ConnId, peer: SocketAddr) -> u64;

    /// A connection that the engine has opened is established.
    fn connected(&mut self, conn: ConnId, tag: u64);

    /// The next octets of a stream, each once and in order. The engine returns the octets that it cannot take (a
    /// non-empty suffix). These, and what follows, wait and shut the window until [`Transport::resume`].
    fn data(&mut self, conn: ConnId, tag: u64, data: D) -> Option<D>;

    /// `octets` more of what was sent are acknowledged, so that the engine may reuse their memory. Also called with
    /// 0 if there may be room for another reason.
    fn acked(&mut self, conn: ConnId, tag: u64, octets: u64);

    /// The peer will send no more, and all its data has been reported.
    fn finished(&mut self, conn: ConnId, tag: u64);

    /// The connection has ended.
    fn closed(&mut self, conn: ConnId, tag: u64, reason: CloseReason);

    /// Held data may pin this many octets of the transport's memory from now on. 0: held data must be copied.
    fn pinnable(&mut self, octets: usize);

    /// The link has come up, or gone down.
    fn link(&mut self, up: bool);
}

/// A connection that was a socket of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// Its id.
    pub conn: ConnId,
    /// Address of the peer.
    pub peer: SocketAddr,
}

/// Facts about a transport.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Whether the link is up.
    pub link_up: bool,
    /// Payload octets that one frame to the present peer may carry as several segments; 0 if it cannot carry
    /// several.
    pub gso_max: usize,
    /// Addresses that can be used now, the main one first. Empty: those of the configuration.
    pub addresses: Vec<Address>,
    /// Counters: names and values, in display order.
    pub counters: Vec<(&'static str, u64)>,
}

/// Facts about a connection.
#[derive(Clone, Debug)]
pub struct StreamFacts {
    /// Its id.
    pub conn: ConnId,
    /// Local address.
    pub local: SocketAddr,
    /// Address of the peer.
    pub peer: SocketAddr,
    /// State and figures of TCP.
    pub tcp: ConnInfo,
}
