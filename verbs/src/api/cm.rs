//! Connections: listening, connecting, accepting, and their events.
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use urnic_iwarp::Role;
use urnic_tcp::{BindId, Patience};

use super::device::DeviceShared;
use super::qp::Qp;
use crate::drive::shard::Way;
use crate::shared::cm::{
    Answers, CmEvent, ConnParam, ConnRequest, EventQueue, EventSink, RequestId, check_patience,
    check_private_data,
};
use crate::shared::convert::{ConvertError, Handover};
use crate::shared::error::{Error, Result};
use crate::shared::qp::QpShared;
use crate::shared::waiting::Waiting;

/// Maximum backlog, in requests of one source (IPv4 address, or IPv6 /64). A larger backlog is reduced to this one.
const MAX_BACKLOG: u32 = 65_536;

const FOREIGN: Error = Error::Invalid("the queue pair belongs to another device");
const FOREIGN_ADDRESS: Error = Error::Invalid("the address is reserved at another device");

/// A channel for connection events. Its descriptor ([`AsFd`]) is readable while events wait. Events of one peer
/// (IPv4 address, or IPv6 /64) come in order; peers take turns, one event each.
///
/// Dropping the channel rejects the requests that it still holds.
pub struct EventChannel {
    queue: Arc<EventQueue>,
    device: Arc<DeviceShared>,
}

impl EventChannel {
    pub(crate) fn new(device: &Arc<DeviceShared>, sink: Option<EventSink>) -> Result<Self> {
        Ok(Self { queue: EventQueue::new(sink)?, device: device.clone() })
    }

    /// Listens for connection requests on a TCP port (0: any free one) of all addresses of the device.
    ///
    /// Requests beyond these limits are reset: `backlog` unanswered requests of each source (IPv4 address, or
    /// IPv6 /64), 16 times `backlog` of all sources together, and, at each engine, 8,192 of all listeners. A
    /// `backlog` of 0 counts as 1, and one above 65,536 as 65,536. As the listener fills up, a source may have
    /// fewer unanswered requests than `backlog`. A request counts only once its MPA Request has arrived in full.
    ///
    /// # Errors
    /// [`Error::PortInUse`], [`Error::PortForbidden`], [`Error::Exhausted`], [`Error::NoDescriptor`].
    pub fn listen(&self, port: u16, backlog: u32) -> Result<Listener> {
        self.listen_at(Bound::new(&self.device, (Ipv6Addr::UNSPECIFIED, port).into(), false)?, backlog)
    }

    /// Listens as [`listen`](Self::listen) does, at the address that [`Device::bind`](crate::Device::bind) has
    /// reserved.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the address belongs to another device, or has a listener already;
    /// [`Error::PortInUse`], [`Error::Exhausted`].
    pub fn listen_at(&self, bound: Bound, backlog: u32) -> Result<Listener> {
        if !Arc::ptr_eq(&bound.device, &self.device) {
            return Err(FOREIGN_ADDRESS);
        }
        let backlog = backlog.clamp(1, MAX_BACKLOG);
        // All engines share the places of the listener.
        let places = Waiting::of_listener(backlog as usize);
        let _order = self.device.reservations.lock();
        self.device
            .shards
            .control_each(|_, engine| engine.listen(bound.id, backlog, places.clone(), self.queue.clone()))?;
        Ok(Listener { bound })
    }

    /// Starts to connect an idle queue pair. [`CmEvent::Established`], [`CmEvent::Rejected`] or
    /// [`CmEvent::ConnectError`] reports the outcome.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid `param` (for example too much private data), for an address that no host can
    /// have or TCP port 0, or for a queue pair of another device; [`Error::QpState`] if the queue pair is not idle;
    /// [`Error::NoRoute`], [`Error::Forbidden`], [`Error::NoDescriptor`], [`Error::Exhausted`].
    pub fn connect(&self, qp: &Qp, to: impl Into<SocketAddr>, param: &ConnParam) -> Result<Connection> {
        self.start(qp, Way { from: None, to: to.into() }, param)
    }

    /// Connects as [`connect`](Self::connect) does, from the address that [`Device::bind`](crate::Device::bind) has
    /// reserved. One reserved address may have connections to several peers, but only one connection at a time to the
    /// same peer.
    ///
    /// # Errors
    /// As for `connect`; [`Error::Invalid`] if the two addresses are of different families, if the reserved address
    /// belongs to another device, or if the queue pair must move to another engine but has completions that the program
    /// has not taken; [`Error::PortInUse`] if a connection from the reserved address to this peer exists already.
    pub fn connect_from(
        &self,
        bound: &Bound,
        qp: &Qp,
        to: impl Into<SocketAddr>,
        param: &ConnParam,
    ) -> Result<Connection> {
        if !Arc::ptr_eq(&bound.device, &self.device) {
            return Err(FOREIGN_ADDRESS);
        }
        self.start(qp, Way { from: Some(bound.id), to: to.into() }, param)
    }

    /// Makes a connected TCP socket the connection of an idle queue pair, after the program has spoken a protocol
    /// of its own on it. IT-API calls this socket conversion; RFC 5044 §7.1 describes it as the start of MPA by
    /// private agreement. Only a device on the kernel's sockets supports it.
    ///
    /// The two programs agree on where their own octets end, and on which of them is the MPA [`Role::Initiator`].
    /// Either program may be the initiator, no matter which of them opened the TCP connection. The initiator sends
    /// the MPA Request, which carries the private data of its `param`. The responder sends the Reply, with its own
    /// private data. Both sides get [`CmEvent::Established`] with the peer's private data, or
    /// [`CmEvent::ConnectError`]. An initiator may also get [`CmEvent::Rejected`]. `param.timeout` limits the whole
    /// start-up.
    ///
    /// `already_read` is what the program has read from the socket beyond its own protocol: the peer's first MPA
    /// octets may arrive together with the last octets of that protocol. A responder's buffer may thus contain the
    /// Request, or a part of it. Octets that the program has written, and the kernel has not yet sent, leave before
    /// the Request.
    ///
    /// If this call succeeds, the device owns the socket. It closes the socket with the connection, also if the
    /// start-up fails or is rejected. The socket may be blocking or not, and may have any options: those that would
    /// interfere (`SO_LINGER`, `SO_RCVLOWAT`, `TCP_CORK`, `TCP_USER_TIMEOUT`) are reset, and the sizes of its buffers
    /// stay. Remove the socket from epoll sets first, and do not use duplicates of it: octets that a duplicate reads
    /// are lost.
    ///
    /// ```
    /// use std::io::{BufRead, BufReader, Write};
    /// use std::net::{TcpListener, TcpStream};
    /// use std::time::Duration;
    /// use urnic::{CmEvent, Config, ConnParam, Device, QpInit, Role};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = Device::open(&Config::default())?;
    /// let (pd, cq) = (device.alloc_pd(), device.create_cq(16, None)?);
    /// let init = QpInit {
    ///     send_cq: &cq,
    ///     recv_cq: &cq,
    ///     max_send_wr: 4,
    ///     max_recv_wr: 4,
    ///     max_send_sge: 1,
    ///     max_recv_sge: 1,
    ///     max_inline: 0,
    ///     signal_all: true,
    /// };
    /// let (asks, answers) = (pd.create_qp(&init)?, pd.create_qp(&init)?);
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let mut client = TcpStream::connect(listener.local_addr()?)?;
    /// let mut server = BufReader::new(listener.accept()?.0);
    ///
    /// // The program's own protocol. The side that sends its last octets is the initiator: its Request comes next.
    /// client.write_all(b"let us go on by RDMA\n")?;
    /// let events = device.create_event_channel()?;
    /// events.convert(&asks, client, Role::Initiator, &[], &ConnParam::default())?;
    /// server.read_line(&mut String::new())?;
    /// // The buffered reader may hold octets beyond the line.
    /// let already_read = server.buffer().to_vec();
    /// events.convert(&answers, server.into_inner(), Role::Responder, &already_read, &ConnParam::default())?;
    /// for _ in [&asks, &answers] {
    ///     let event = events.wait(Duration::from_secs(10)).ok_or("nothing happens")?;
    ///     assert!(matches!(event, CmEvent::Established { .. }));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NotConvertible`]; [`Error::NoConversion`] if the device is not on the kernel's sockets;
    /// [`Error::NotOurAddress`] if the socket's local address is not one that the device uses; and the errors of
    /// [`connect`](Self::connect). The error contains the socket, unchanged.
    pub fn convert(
        &self,
        qp: &Qp,
        socket: impl Into<OwnedFd>,
        role: Role,
        already_read: &[u8],
        param: &ConnParam,
    ) -> Result<Connection, ConvertError> {
        let mut socket = Some(socket.into());
        let begun = self.hand_over(qp, Handover { socket: &mut socket, already_read, role }, param);
        match (begun, socket) {
            (Err(error), Some(socket)) => Err(ConvertError::new(error, socket)),
            // The engine has kept the socket, so the conversion has begun.
            _ => Ok(Connection::of(qp)),
        }
    }

    fn hand_over(&self, qp: &Qp, handover: Handover<'_>, param: &ConnParam) -> Result<()> {
        param.check()?;
        if !Arc::ptr_eq(&qp.pd().shared.device, &self.device) {
            return Err(FOREIGN);
        }
        let events = self.queue.clone();
        self.device.control_qp(&qp.shared, |engine| engine.convert(qp.qpn(), handover, param, events))
    }

    fn start(&self, qp: &Qp, way: Way, param: &ConnParam) -> Result<Connection> {
        param.check()?;
        if !Arc::ptr_eq(&qp.pd().shared.device, &self.device) {
            return Err(FOREIGN);
        }
        if let Some(neighbours) = &self.device.neighbours {
            neighbours.warn(way.to.ip());
        }
        let (qpn, events) = (qp.qpn(), self.queue.clone());
        self.device.move_to_opening_engine(&qp.shared, &way)?;
        self.device.control_qp(&qp.shared, |engine| engine.connect(qpn, way, param, events))?;
        Ok(Connection::of(qp))
    }

    /// Returns the next event; `None` if there is none. Drives the engine, unless a dedicated thread does
    /// ([`Progress::Dedicated`](crate::Progress::Dedicated)).
    pub fn poll(&self) -> Option<CmEvent> {
        if let Some(event) = self.take() {
            return Some(event);
        }
        self.device.shards.poll_passes();
        self.take()
    }

    /// Waits for the next event; `None` once `timeout` has passed.
    pub fn wait(&self, timeout: Duration) -> Option<CmEvent> {
        self.device.shards.wait(&self.queue.fd, Some(timeout), || self.take())
    }

    fn take(&self) -> Option<CmEvent> {
        let mut event = self.queue.take()?;
        if let CmEvent::ConnectRequest(request) = &mut event {
            self.adopt(request);
        }
        Some(event)
    }

    /// Makes it possible to answer a request that an event sink has received. A request that is dropped before this
    /// call is not rejected: its peer waits in vain.
    pub fn adopt(&self, request: &mut ConnRequest) {
        request.answers = Some(self.device.clone());
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.fd.as_fd()
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        while self.take().is_some() {}
    }
}

/// A reserved local address, for a listener or for connections. Dropping it ends the reservation.
pub struct Bound {
    id: BindId,
    address: SocketAddr,
    device: Arc<DeviceShared>,
}

impl Bound {
    pub(crate) fn new(device: &Arc<DeviceShared>, address: SocketAddr, v6only: bool) -> Result<Self> {
        let mut reserved = None;
        let outcome = {
            let _order = device.reservations.lock();
            device.shards.control_each(|_, engine| match reserved {
                None => engine.bind(address, v6only).map(|bound| reserved = Some(bound)),
                Some(bound) => engine.enter_binding(bound, v6only),
            })
        };
        // If an engine has refused the address, dropping `bound` ends the reservation at the other engines. That takes
        // the lock again.
        let bound =
            reserved.map(|bound| Self { id: bound.id, address: bound.address, device: device.clone() });
        outcome.and(bound.ok_or(Error::NoDescriptor))
    }

    /// Returns the requested address, with the reserved TCP port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _order = self.device.reservations.lock();
        // Continues with the other engines if one cannot be locked.
        for shard in self.device.shards.iter() {
            let _ = shard.control(|engine| {
                engine.unbind(self.id);
                Ok(())
            });
        }
    }
}

/// A listening port. Dropping it stops listening, and resets the connections of requests that have no answer
/// yet.
pub struct Listener {
    bound: Bound,
}

impl Listener {
    /// Returns the TCP port.
    pub fn port(&self) -> u16 {
        self.bound.address.port()
    }

    /// Returns the address and TCP port of the listener.
    pub fn address(&self) -> SocketAddr {
        self.bound.address
    }
}

impl ConnRequest {
    /// Accepts the request with an idle queue pair. [`CmEvent::Established`] follows.
    ///
    /// # Errors
    /// [`Error::RequestGone`] if the peer has given up; [`Error::QpState`] if the queue pair is not idle;
    /// [`Error::Invalid`] for too much private data, for a queue pair of another device, or for a queue pair that must
    /// move to another engine but has completions that the program has not taken. In each case the request is rejected.
    pub fn accept(mut self, qp: &Qp, param: &ConnParam) -> Result<Connection> {
        param.check()?;
        let answers = self.answers.as_ref().ok_or(Error::RequestGone)?;
        let device = &qp.pd().shared.device;
        if !std::ptr::addr_eq(Arc::as_ptr(answers), Arc::as_ptr(device)) {
            return Err(FOREIGN);
        }
        answers.accept(&mut self.id, &qp.shared, param)?;
        self.answers = None;
        Ok(Connection::of(qp))
    }

    /// Returns the local address and port that the request came to.
    ///
    /// # Errors
    /// [`Error::RequestGone`] if the peer has given up.
    pub fn local(&self) -> Result<SocketAddr> {
        self.answers.as_ref().ok_or(Error::RequestGone)?.local(self.id)
    }

    /// Rejects the request, with private data for the peer's application: at most
    /// [`MAX_PRIVATE_DATA`](crate::MAX_PRIVATE_DATA) bytes, and 4 bytes fewer if the peer negotiates IRD and
    /// ORD.
    ///
    /// # Errors
    /// [`Error::RequestGone`] if the peer has given up. [`Error::Invalid`] for too much private data; the
    /// request is then rejected without private data.
    pub fn reject(mut self, private_data: &[u8]) -> Result<()> {
        check_private_data(private_data)?;
        let answers = self.answers.take().ok_or(Error::RequestGone)?;
        let outcome = answers.reject(self.id, private_data);
        if matches!(outcome, Err(Error::Invalid(_))) {
            // Dropping the request rejects it.
            self.answers = Some(answers);
        }
        outcome
    }
}

impl Answers for DeviceShared {
    fn accept(&self, request: &mut RequestId, qp: &Arc<QpShared>, param: &ConnParam) -> Result<()> {
        self.accept_with(request, qp, param)
    }

    fn local(&self, request: RequestId) -> Result<SocketAddr> {
        self.shards.of(request.engine).control(|engine| engine.local(request))
    }

    fn reject(&self, request: RequestId, private_data: &[u8]) -> Result<()> {
        self.shards.of(request.engine).control(|engine| engine.reject(request, private_data))
    }
}

/// A connection, established or being established. The queue pair owns it: dropping this handle does nothing.
#[derive(Clone)]
pub struct Connection {
    qpn: u32,
    qp: Weak<QpShared>,
    device: Arc<DeviceShared>,
}

impl Connection {
    fn of(qp: &Qp) -> Self {
        let device = qp.pd().shared.device.clone();
        Self { qpn: qp.qpn(), qp: Arc::downgrade(&qp.shared), device }
    }

    /// Returns the number of the queue pair.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Closes gracefully: the engine completes the posted work, then ends the connection. A connection that is not
    /// yet established is given up ([`ConnectFailure::Aborted`](crate::ConnectFailure::Aborted)), and its queue pair
    /// stays idle.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    pub fn disconnect(&self) -> Result<()> {
        let qp = self.qp.upgrade().ok_or(Error::NotConnected)?;
        self.device.control_qp(&qp, |engine| engine.disconnect(self.qpn))
    }

    /// Sets how long the peer may be silent before it counts as dead. `None`: as the device's configuration says.
    ///
    /// ```no_run
    /// # fn example(connection: &urnic::Connection) -> urnic::Result<()> {
    /// use std::time::Duration;
    /// use urnic::{Keepalive, Patience};
    ///
    /// // Two seconds of silence while nothing is outstanding, five while something is.
    /// let keepalive =
    ///     Keepalive { idle: Duration::from_secs(1), interval: Duration::from_millis(250), count: 4 };
    /// connection.set_patience(Some(Patience {
    ///     keepalive: Some(keepalive),
    ///     user_timeout: Some(Duration::from_secs(5)),
    /// }))
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NotConnected`]; [`Error::Invalid`] for times below 10 ms or over 24 h, or a probe count of 0.
    pub fn set_patience(&self, patience: Option<Patience>) -> Result<()> {
        patience.as_ref().map_or(Ok(()), check_patience)?;
        let qp = self.qp.upgrade().ok_or(Error::NotConnected)?;
        self.device.arrange_qp(&qp, |engine| engine.set_patience(self.qpn, patience))
    }
}

#[cfg(test)]
mod tests;
