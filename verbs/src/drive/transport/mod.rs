//! The interface of an engine to its transport, which provides reliable byte streams between addresses, like TCP's.
//!
//! The engine is generic over [`Transport`]. So the engine knows nothing of frames, headers and neighbours, and its
//! calls of the transport are not dynamic. `over_port` uses urnic's own TCP on a port, and `over_kernel` uses
//! the kernel's TCP sockets. [`Device::over`](crate::Device::over) makes a device on any other transport.
//!
//! # A whole transport
//! The following transport carries streams from a device to itself, without windows, timers and resets:
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
//!     /// Octets that have arrived, but that the engine has not taken.
//!     waiting: VecDeque<Octets>,
//!     stopped: bool,
//!     /// Whether this half will close (`closes`), and whether the other half has ended (`ended`).
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
//!                 let peer = self.half(index ^ 1).to.expect("a connecting half names its peer");
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

/// What a transport has sent since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frames, or calls of the kernel. A train of segments is one frame.
    pub frames: u64,
    /// Octets of payload; always 0 if only the number of frames shall bound a pass.
    pub octets: u64,
}

/// The streams of one engine. A [`ConnId`] names a connection. Every function must ignore the ids of connections that
/// no longer exist. Each event of a connection carries the connection's tag, a number that the engine has chosen.
///
/// A pass of the engine calls, in this order: [`check`](Self::check) if it is due, the sending functions for
/// connections that have data to send, [`flush`](Self::flush) if there were such connections,
/// [`advance`](Self::advance), [`flush`](Self::flush), [`receive`](Self::receive). If no pass was run for a while, it
/// also calls [`receive`](Self::receive) before [`advance`](Self::advance). Most passes that find no work call
/// only [`flush`](Self::flush) and [`receive`](Self::receive). None of these functions may block.
pub trait Transport: Send {
    /// Stream data that has arrived. Its octets must not move in memory while the value exists.
    type Data: Data + Send + 'static;
    /// A record under construction. A record is the piece of a stream that one call of [`send`](Self::send) queues.
    type Draft: Draft + Send;

    // ---- connections ----

    /// Reserves a TCP port of a local address; port 0 means any free port. An unspecified address means all addresses
    /// of its family. Unless `v6only` is true, `::` means all addresses of both families ([`Scope::of`]).
    ///
    /// # Errors
    /// [`BindError`] if the address does not belong to the transport, the port is taken, or no port is free.
    fn bind(&mut self, address: SocketAddr, v6only: bool) -> Result<Bound, BindError>;

    /// Enters a reservation that the transport of another engine of the device has made, with the id that it has
    /// there. One engine reserves an address, and then all other engines enter the reservation. All engines of a
    /// device make, use and end their reservations in the same order.
    ///
    /// # Errors
    /// [`BindError::OutOfStep`] if the orders differ, or if the transport supports only one engine.
    fn enter_binding(&mut self, _bound: Bound, _v6only: bool) -> Result<(), BindError> {
        Err(BindError::OutOfStep)
    }

    /// Returns the number of the engine of the device that must open a connection from a reserved address to `to`;
    /// `None` if any engine may open it, or no engine can.
    fn home_of(&self, _from: BindId, _to: SocketAddr) -> Option<usize> {
        None
    }

    /// Ends a reservation. No more connections are admitted to it.
    fn unbind(&mut self, bound: BindId);

    /// Admits connections to a reserved address. At most `backlog` of them may be half open.
    ///
    /// # Errors
    /// [`ListenError`] if the address is not reserved, or already has a listener, here or elsewhere on the host.
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

    /// Takes over a connected socket of the program. `already_read` is what the program has read from the socket
    /// beyond its own protocol: the beginning of the peer's MPA octets. This data and all later data wait until the
    /// engine calls [`resume`](Self::resume). The transport does not report [`Events::connected`].
    ///
    /// # Errors
    /// [`ConvertError`], which contains the unchanged socket, if the transport has no sockets
    /// ([`Error::NoConversion`](crate::Error::NoConversion)) or cannot take this socket.
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

    /// Removes a connection on which nothing was sent, and returns it for [`take_in`](Self::take_in) at another
    /// engine; `None` if the connection no longer exists.
    fn part_with(&mut self, _conn: ConnId) -> Option<Box<dyn Any + Send>> {
        None
    }

    /// Takes in a connection that the transport of another engine has removed. The connection's events carry `tag`
    /// from now on.
    ///
    /// # Errors
    /// If this transport has no room for the connection, the connection is lost.
    fn take_in(&mut self, _now: Time, _stream: Box<dyn Any + Send>, _tag: u64) -> Result<ConnId> {
        Err(Error::RequestGone)
    }

    /// Notes that the program accepts this incoming connection. Before this call, the transport may limit the peer to
    /// little more data than an MPA Request.
    fn welcome(&mut self, _now: Time, _conn: ConnId) {}

    /// Sets the time limits for a silent peer of a connection; `None`: the limits of the configuration.
    fn set_patience(&mut self, _conn: ConnId, _patience: Option<Patience>) {}

    /// Ends this side of a connection after its queued data has been sent. Data of the peer continues to arrive.
    fn close(&mut self, now: Time, conn: ConnId);

    /// Ends a connection at once. The peer sees a reset.
    fn abort(&mut self, now: Time, conn: ConnId);

    /// Returns whether the peer of a closed connection has acknowledged all data and the end of this side.
    fn has_ended(&self, conn: ConnId) -> bool;

    /// Returns the maximum number of connections.
    fn max_connections(&self) -> u32 {
        1 << 19
    }

    // ---- a pass ----

    /// Checks things that change rarely, like the state of the link. Returns the time at which the engine must call
    /// this again.
    fn check(&mut self, _now: Time, _events: &mut impl Events<Self::Data>) -> Time {
        Time::MAX
    }

    /// Takes in a limited amount of data and events that have arrived, and reports them. Returns false if nothing has
    /// arrived.
    fn receive(&mut self, now: Time, events: &mut impl Events<Self::Data>) -> bool;

    /// Handles what [`receive`](Self::receive) has postponed, so that the program gets its data earlier: an
    /// acknowledgement that came with data. Until this call, it counts as not yet arrived. Returns whether there was
    /// one.
    fn settle_acks(&mut self, _events: &mut impl Events<Self::Data>) -> bool {
        false
    }

    /// Fires due timers, reports connections that have ended, and sends acknowledgements that no data has carried.
    fn advance(&mut self, _now: Time, _events: &mut impl Events<Self::Data>) {}

    /// Hands to the wire everything that was sent.
    fn flush(&mut self) {}

    /// Returns when the engine must call [`advance`](Self::advance) even if nothing happens; `None`: it need not.
    fn next_deadline(&self) -> Option<Time>;

    /// Sends what the transport has kept back so that later data may carry it, such as delayed ACKs. Called when the
    /// engine's thread is about to sleep, so that nothing waits for the end of the sleep.
    fn flush_late(&mut self, now: Time) {
        let _ = now;
    }

    /// Arms the transport to signal everything that arrives from now on, and returns the event that signals it; `None`:
    /// the transport cannot signal.
    fn arm(&mut self) -> Option<Arc<dyn Wakeup>> {
        None
    }

    /// Returns how much was sent so far, at least approximately. A pass ends after a certain number of frames or octets.
    fn sent(&self) -> Sent {
        Sent::default()
    }

    /// Returns how many octets of the transport's memory the engine may pin by holding data. The engine copies data
    /// beyond that. [`Events::pinnable`] reports changes of this value.
    fn pinnable(&self) -> usize {
        0
    }

    /// Calls [`Events::data`] again with data that waits because the engine could not take it.
    fn resume(&mut self, now: Time, conn: ConnId, events: &mut impl Events<Self::Data>);

    // ---- sending ----

    /// Returns whether anything can be sent now.
    fn has_room(&self) -> bool {
        true
    }

    /// Returns an empty record; `None` while no buffer is free.
    fn draft(&mut self) -> Option<Self::Draft>;

    /// Returns the maximum number of data octets in a segment of the connection; 0 if the connection no longer exists.
    /// The engine makes FPDUs that fit into one segment (MPA-43).
    fn segment(&self, conn: ConnId) -> usize;

    /// Returns the recommended maximum record size, in octets: as much as the transport sends as one piece.
    fn record_max(&self, conn: ConnId) -> usize {
        self.segment(conn)
    }

    /// Returns how many octets the engine should send now. 0: the engine must wait for [`Events::acked`].
    fn room(&self, conn: ConnId) -> usize;

    /// Queues a record. `sum` is the one's-complement sum of its octets, if known. A transport that does not send the
    /// record as one piece should cut the record at multiples of `unit` octets; 0: anywhere;
    /// [`UNEVEN`](urnic_tcp::UNEVEN): between FPDUs, whose lengths differ. If the connection no longer exists, the
    /// record is dropped, and [`Events::closed`] has told the engine or will do so.
    fn send(&mut self, conn: ConnId, record: Self::Draft, sum: Option<u16>, unit: u16);

    /// Sends queued records, as far as the peer's window allows.
    fn output(&mut self, now: Time, conn: ConnId);

    /// Like [`output`](Self::output), but hands the records to the wire now, so that the peer can take them while the
    /// engine builds more. The default does nothing, which suits transports whose calls cost much: the records leave
    /// with `output`.
    fn send_early(&mut self, _now: Time, _conn: ConnId) {}

    /// Sets whether [`output`](Self::output) sends its frames before anything else, even before the connection's own
    /// accounts, rather than at the next [`flush`](Self::flush) with those of other connections.
    fn hurry(&mut self, _hurries: bool) {}

    /// Returns whether the transport has so many connections that their state is not in the processor's cache.
    fn has_crowd(&self) -> bool {
        false
    }

    /// Prefetches the state of connections on which the engine is about to send.
    fn foresee_output(&self, _conns: &[ConnId]) {}

    /// Returns the number of octets that the engine has sent and the peer has not acknowledged.
    fn unacked(&self, conn: ConnId) -> u64;

    /// Returns the number of octets that the engine has sent on a connection and that have not left this host, as far
    /// as the transport knows.
    fn unsent(&self, conn: ConnId) -> u64 {
        self.unacked(conn)
    }

    /// Returns the time since which the peer has acknowledged no octet although some are outstanding; `None` if no
    /// octets are outstanding.
    fn stalled_since(&self, _conn: ConnId) -> Option<Time> {
        None
    }

    /// Returns whether data waits because the peer keeps its window shut. The transport must probe whether the peer
    /// is still alive, and end the connection if it is dead, because the engine waits for a peer with a shut window
    /// even after the program is done with the connection.
    fn is_held_up(&self, _conn: ConnId) -> bool {
        false
    }

    /// Returns whether the engine must compute the sum of each record's octets.
    fn wants_sum(&self) -> bool {
        false
    }

    // ---- send buffers ----

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

    /// Returns how many of a connection's unacknowledged [`records`](Self::records) occupy send buffers of the
    /// transport. Counts from the newest record back to the first that has been put aside.
    fn buffers(&self, _conn: ConnId) -> usize {
        0
    }

    /// Puts a connection's records aside: copies them to ordinary memory, so that other connections get their
    /// buffers. Stops when the records that are put aside have `most` octets in total.
    fn put_aside(&mut self, _conn: ConnId, _most: usize) {}

    /// Returns the total number of octets of records that are put aside.
    fn aside(&self) -> usize {
        0
    }

    // ---- memory that is lent instead of copied ----

    /// Returns the size, in octets, from which a contiguous piece should be lent rather than copied; `usize::MAX`
    /// if the transport cannot lend.
    fn lends_from(&self) -> usize {
        usize::MAX
    }

    /// Appends `len` octets at `at` to a record without copying them. `ours` tells whether they are in memory of the
    /// device's own allocator. Returns false, and changes nothing, if the transport cannot lend this memory.
    ///
    /// # Safety
    /// The octets must stay readable until the peer has acknowledged them, or until [`take_back`](Self::take_back)
    /// has copied them and [`forget`](Self::forget) has dropped the queued frames that refer to them.
    unsafe fn lend(&mut self, _record: &mut Self::Draft, _at: *const u8, _len: usize, _ours: bool) -> bool {
        false
    }

    /// Copies the lent octets within `range` (addresses) to which a connection still refers. Returns false if some
    /// cannot be copied: the engine then aborts the connection.
    fn take_back(&mut self, _conn: ConnId, _range: &Range<usize>) -> bool {
        true
    }

    /// Drops queued frames that refer to lent memory within `range` (addresses).
    fn forget(&mut self, _range: &Range<usize>) {}

    /// Returns whether unacknowledged data of a connection is lent memory within `range` (addresses), and the link's
    /// peer may read frames of it even after they have left the queue of this end.
    fn is_read_late(&mut self, _conn: ConnId, _range: &Range<usize>) -> bool {
        false
    }

    // ---- the end ----

    /// Returns whether the only possible peer has ended.
    fn only_peer_has_ended(&self) -> bool {
        false
    }

    /// Returns whether the peers notice the end of this process by themselves.
    fn peers_notice_end(&self) -> bool {
        false
    }

    /// Completes output that is not finished, such as packet captures or data that the kernel has not taken, because
    /// the process is about to end.
    fn finish(&mut self) {}

    // ---- facts ----

    /// Returns the local address of a connection; `None` if the connection no longer exists.
    fn local(&self, conn: ConnId) -> Option<SocketAddr>;

    /// Returns the address that a connection to `to` must use. A loopback address means this host. By default, it is
    /// replaced by the first address of its family in [`facts`](Self::facts), unless these addresses include a
    /// loopback address. A transport that replaces loopback addresses should reserve all addresses of the family if
    /// [`bind`](Self::bind) gets a loopback address.
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

    /// Returns the local address from which a connection to `to` would come; `None` if no route leads to `to`. By
    /// default, this is the address in [`facts`](Self::facts) whose network contains `to`.
    ///
    /// # Errors
    /// An error of the transport, if it cannot find the address now.
    fn source_for(&self, _now: Time, to: SocketAddr) -> Result<Option<IpAddr>> {
        let (own, to) = (self.facts().addresses, to.ip());
        let has = |own: &Address| Cidr { address: own.ip, prefix: own.prefix_len }.contains(to);
        Ok(own.iter().find(|own| own.ip == to).or_else(|| own.iter().find(|own| has(own))).map(|own| own.ip))
    }

    /// Returns text that tells the user what to check if no route leads to an address. In the message, this text
    /// follows a colon.
    fn without_route(&self) -> &'static str {
        "the device's transport does not reach it"
    }

    /// Returns the present facts about the transport.
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
    /// Makes a value that contains all of `octets`.
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

/// The engine, as the receiver of events. The transport reports events from inside its own functions. The engine
/// cannot call the transport meanwhile, so it notes what it must do, and does it afterwards.
pub trait Events<D> {
    /// Reports that a connection has come in. Returns the connection's tag.
    fn incoming(&mut self, listener: BindId, conn: ConnId, peer: SocketAddr) -> u64;

    /// Reports that a connection that the engine has opened is now established.
    fn connected(&mut self, conn: ConnId, tag: u64);

    /// Announces that data or ACKs of the connections with these tags come next, so that the engine may prefetch its
    /// own state of them. The transport may also leave this out.
    fn foresee(&self, _tags: &[u64]) {}

    /// Reports the next octets of a stream. Each octet is reported once, and all in order. Returns the octets that
    /// the engine cannot take (a non-empty suffix); `None`: the engine has taken all. The transport must keep the
    /// returned octets and all later ones, and so shut the window, until the engine calls [`Transport::resume`].
    fn data(&mut self, conn: ConnId, tag: u64, data: D) -> Option<D>;

    /// Reports that the peer has acknowledged `octets` more, so that the engine may reuse their memory. Also called
    /// with 0 if there may be room to send for another reason.
    fn acked(&mut self, conn: ConnId, tag: u64, octets: u64);

    /// Reports that the peer will send no more data, after all its data has been reported.
    fn finished(&mut self, conn: ConnId, tag: u64);

    /// Reports that the connection has ended.
    fn closed(&mut self, conn: ConnId, tag: u64, reason: CloseReason);

    /// Reports that the engine may pin this many octets of the transport's memory from now on. 0: the engine must
    /// copy all data that it holds.
    fn pinnable(&mut self, octets: usize);

    /// Reports that the link has come up or gone down.
    fn link(&mut self, up: bool);
}

/// A connection that was a socket of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// Id of the connection.
    pub conn: ConnId,
    /// Address of the peer.
    pub peer: SocketAddr,
}

/// Facts about a transport.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Whether the link is up.
    pub link_up: bool,
    /// Maximum payload octets of a frame that carries several segments to the present peer; 0 if frames cannot carry
    /// several segments.
    pub gso_max: usize,
    /// Local addresses that connections can use now, the main address first. Empty: the addresses of the
    /// configuration.
    pub addresses: Vec<Address>,
    /// Counters: names and values, in display order.
    pub counters: Vec<(&'static str, u64)>,
}

/// Facts about a connection.
#[derive(Clone, Debug)]
pub struct StreamFacts {
    /// Id of the connection.
    pub conn: ConnId,
    /// Local address.
    pub local: SocketAddr,
    /// Address of the peer.
    pub peer: SocketAddr,
    /// State and figures of TCP.
    pub tcp: ConnInfo,
}
