//! Connections: what is asked for, and the events that tell what came of it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use urnic_config::RtrChoice;
use urnic_iwarp::Rtr;
use urnic_iwarp::startup::{Negotiated, PeerParams};
use urnic_tcp::Patience;

use super::by_source::BySource;
use super::engines::EngineNumber;
use super::error::{Error, Result};
use super::eventfd::EventFd;
use super::qp::QpShared;
use super::quiet::deliver;
use super::source::Source;
use super::waiting::Place;

/// A connection request that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestId {
    /// The engine that has its connection.
    pub(crate) engine: EngineNumber,
    /// What that engine knows it by.
    pub(crate) endpoint: u64,
}

/// Most private data of a connection request or answer, in bytes (RFC 5044 §7.1.1).
pub const MAX_PRIVATE_DATA: usize = 512;

/// [`ConnParam::rnr_retry`] that has Sends wait for receives as long as it takes.
pub const RNR_WITHOUT_LIMIT: u8 = 7;

/// What one side brings to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnParam {
    /// Bytes for the peer's application; at most [`MAX_PRIVATE_DATA`].
    pub private_data: Vec<u8>,
    /// Reads of the peer that may be outstanding here; at most what the configuration says is used.
    pub ird: u16,
    /// Reads that may be outstanding at the peer; at most what the configuration says is used.
    pub ord: u16,
    /// How long the peer may take to answer.
    pub timeout: Duration,
    /// When a silent peer counts as dead; `None`: as configured. By default that is after 15 s if nothing is
    /// outstanding (10 s of silence, then five probes), after 30 s if something is.
    pub patience: Option<Patience>,
    /// What the side that connects sends first of its own accord, so that the other side need not wait for the
    /// application to send something (RFC 6581 §5); `None`: as configured. The side that accepts serves whatever is
    /// asked for.
    pub rtr: Option<RtrChoice>,
    /// How long a Send of the peer that finds no receive here waits for one, in retries of 100 ms;
    /// [`RNR_WITHOUT_LIMIT`]: as long as it takes, 0: not at all. Then the connection ends with a Terminate. What else
    /// comes is served meanwhile.
    pub rnr_retry: u8,
}

impl Default for ConnParam {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            ird: u16::MAX,
            ord: u16::MAX,
            timeout: Duration::from_secs(10),
            patience: None,
            rtr: None,
            rnr_retry: RNR_WITHOUT_LIMIT,
        }
    }
}

impl ConnParam {
    pub(crate) fn check(&self) -> Result<()> {
        check_private_data(&self.private_data)?;
        self.patience.as_ref().map_or(Ok(()), check_patience)
    }
}

/// As the configuration does.
pub(crate) fn check_patience(patience: &Patience) -> Result<()> {
    let sane = |time: Duration| (Duration::from_millis(10)..=Duration::from_secs(24 * 3600)).contains(&time);
    let probes = patience.keepalive.is_none_or(|k| sane(k.idle) && sane(k.interval) && k.count > 0);
    if probes && patience.user_timeout.is_none_or(sane) {
        Ok(())
    } else {
        Err(Error::Invalid("times for dead peers are from 10 ms to 24 h, and at least one probe is needed"))
    }
}

pub(crate) fn check_private_data(data: &[u8]) -> Result<()> {
    if data.len() > MAX_PRIVATE_DATA {
        return Err(Error::Invalid("more than 512 bytes of private data"));
    }
    Ok(())
}

/// Why a connection could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// Nobody listens there.
    #[error("connection refused: nobody listens on that port")]
    Refused,
    /// The address, or the router to it, cannot be reached.
    #[error(
        "host unreachable: it, or the gateway that leads to it, does not answer to ARP; or a router says so; or there \
         is no link"
    )]
    Unreachable,
    /// No answer in time.
    #[error("timed out: the peer did not answer")]
    TimedOut,
    /// The peer reset the connection during the start-up.
    #[error("the peer closed the connection during the MPA start-up")]
    Reset,
    /// The peer does not speak MPA, or not a version of it that we do.
    #[error("the peer is no iWARP node: what it sent is no MPA start-up frame for this end")]
    NotIwarp,
    /// The peer's terms cannot be met.
    #[error("the peer's IRD, ORD or RTR terms cannot be met")]
    Terms,
    /// This side gave it up: the queue pair went into the error state or was destroyed meanwhile, or
    /// [`Connection::disconnect`](crate::Connection::disconnect) was called.
    #[error("given up by this side")]
    Aborted,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// This side closed it.
    #[error("closed by this side")]
    Local,
    /// The peer closed it.
    #[error("closed by the peer")]
    Peer,
    /// The peer closed it in the middle of a message, or of an FPDU: something was lost (RFC 5044 §8, code 1).
    #[error("closed by the peer in the middle of a message")]
    Truncated,
    /// The peer reset it.
    #[error("reset by the peer")]
    Reset,
    /// The peer does not answer any more.
    #[error("the peer does not answer")]
    TimedOut,
    /// An error was told to the peer by a Terminate message.
    #[error("terminated by this side")]
    TerminateSent,
    /// The peer told of an error by a Terminate message.
    #[error("terminated by the peer")]
    TerminateReceived,
    /// The link went down: the process at its other end is gone.
    #[error("the link is down: the peer process is gone")]
    LinkLost,
    /// This side gave it up, by [`Qp::to_error`](crate::Qp::to_error) or because of a local error.
    #[error("aborted by this side")]
    Aborted,
}

/// What happened to connections.
#[derive(Debug)]
#[non_exhaustive]
pub enum CmEvent {
    /// A peer asks for a connection; it waits for [`ConnRequest::accept`] or [`ConnRequest::reject`].
    ConnectRequest(ConnRequest),
    /// The connection stands: work is sent from now on.
    Established {
        /// The queue pair.
        qpn: u32,
        /// The other end.
        peer: SocketAddr,
        /// What the peer said, at the side that asked for the connection, and at both sides of one that was a socket
        /// ([`EventChannel::convert`](crate::EventChannel::convert)).
        private_data: Vec<u8>,
        /// Reads of the peer that may be outstanding here.
        ird: u16,
        /// Reads that may be outstanding at the peer.
        ord: u16,
        /// What else was agreed on.
        terms: Terms,
    },
    /// The peer rejected the connection; the queue pair is idle and can be connected again.
    Rejected {
        /// The queue pair.
        qpn: u32,
        /// What the peer said.
        private_data: Vec<u8>,
        /// Reads that may be outstanding at the peer; `None`: it does not say.
        peer_ird: Option<u16>,
        /// Reads that the peer wants to have outstanding here; `None`: it does not say.
        peer_ord: Option<u16>,
    },
    /// The connection could not be made; the queue pair is idle and can be connected again, or in the error state if the
    /// peer had accepted already ([`ConnectFailure::Terms`], [`ConnectFailure::Aborted`]).
    ConnectError {
        /// The queue pair.
        qpn: u32,
        /// Why.
        reason: ConnectFailure,
    },
    /// The connection ended; the queue pair is in the error state, and what was posted has been flushed or will be. One that
    /// stood when its queue pair was destroyed ends by that, and this comes at once, with [`DisconnectReason::Local`].
    Disconnected {
        /// The queue pair.
        qpn: u32,
        /// Why.
        reason: DisconnectReason,
    },
}

/// What the MPA start-up of a connection came to (RFC 5044 §7.1, RFC 6581 §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Terms {
    /// MPA revision. In revision 1 IRD and ORD are not negotiated: the applications agree on them by themselves.
    pub rev: u8,
    /// CRCs are generated and checked.
    pub crc: bool,
    /// What we send has markers.
    pub tx_markers: bool,
    /// What we receive has markers.
    pub rx_markers: bool,
    /// Peer-to-peer: the side that connected has sent, or will send, a ready-to-receive indication of its own accord.
    pub peer_to_peer: bool,
    /// The kind of it, at the side that connected.
    pub rtr: Option<Rtr>,
    /// Reads that may be outstanding at the peer, as it says; `None`: it does not.
    pub peer_ird: Option<u16>,
    /// Reads that the peer may have outstanding here, as it says; `None`: it does not.
    pub peer_ord: Option<u16>,
}

impl Terms {
    pub(crate) fn of(negotiated: &Negotiated, peer: &PeerParams) -> Self {
        Terms {
            rev: negotiated.rev,
            crc: negotiated.crc,
            tx_markers: negotiated.tx_markers,
            rx_markers: negotiated.rx_markers,
            peer_to_peer: negotiated.peer_to_peer.is_some(),
            rtr: negotiated.rtr,
            peer_ird: peer.ird,
            peer_ord: peer.ord,
        }
    }
}

/// Takes events at once; see [`Device::create_event_sink`](crate::Device::create_event_sink).
pub type EventSink = Box<dyn Fn(CmEvent) + Send + Sync>;

/// Events on their way from the engine to the application: peers' addresses take turns, so that a newcomer's request does
/// not wait until the program has worked off what thousands of connections of another one have come to.
pub(crate) struct EventQueue {
    events: BySource<CmEvent>,
    pub(crate) fd: EventFd,
    sink: Option<EventSink>,
}

impl EventQueue {
    pub(crate) fn new(sink: Option<EventSink>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { events: BySource::new(), fd: EventFd::new()?, sink }))
    }

    /// Engine: tells of an event of a connection with `peer`.
    pub(crate) fn push(self: &Arc<Self>, peer: IpAddr, event: CmEvent) {
        let queue = self.clone();
        deliver(move || queue.give(Source::of(peer), event));
    }

    fn give(&self, source: Source, event: CmEvent) {
        if let Some(sink) = &self.sink {
            return sink(event);
        }
        self.events.push(source, event);
        self.fd.signal();
    }

    /// The next event.
    pub(crate) fn take(&self) -> Option<CmEvent> {
        if self.fd.take() { self.events.pop() } else { None }
    }
}

/// Who answers requests: the device whose engine has them.
pub(crate) trait Answers: Send + Sync {
    /// Accepts with an idle queue pair. The request may have another name then, also if that fails.
    fn accept(&self, request: &mut RequestId, qp: &Arc<QpShared>, param: &ConnParam) -> Result<()>;
    /// Which address and port of ours it has come to.
    fn local(&self, request: RequestId) -> Result<SocketAddr>;
    /// Refuses.
    fn reject(&self, request: RequestId, private_data: &[u8]) -> Result<()>;
}

/// A peer's wish for a connection. Dropping it without an answer rejects it.
pub struct ConnRequest {
    pub(crate) id: RequestId,
    peer: SocketAddr,
    private_data: Vec<u8>,
    ird: u16,
    ord: u16,
    peer_to_peer: bool,
    /// Set on delivery, taken by the answer.
    pub(crate) answers: Option<Arc<dyn Answers>>,
    /// Its place in the listener's backlog; `None` for a request without one.
    _place: Option<Place>,
}

impl ConnRequest {
    /// Engine: a request, what it says, and its place in the backlog.
    pub(crate) fn new(
        id: RequestId,
        peer: SocketAddr,
        private_data: Vec<u8>,
        says: &PeerParams,
        place: Option<Place>,
    ) -> Self {
        let (ird, ord) = (says.ird.unwrap_or(0), says.ord.unwrap_or(0));
        let peer_to_peer = says.peer_to_peer.is_some();
        Self { id, peer, private_data, ird, ord, peer_to_peer, answers: None, _place: place }
    }

    /// Who asks.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What the peer said.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Whether the peer will send a ready-to-receive indication of its own accord (RFC 6581 §5). Otherwise what is posted
    /// here waits until its application sends something.
    pub fn peer_to_peer(&self) -> bool {
        self.peer_to_peer
    }

    /// Reads that may be outstanding at the peer; 0 if it does not say.
    pub fn ird(&self) -> u16 {
        self.ird
    }

    /// Reads that the peer would like to have outstanding here; 0 if it does not say.
    pub fn ord(&self) -> u16 {
        self.ord
    }
}

impl Drop for ConnRequest {
    fn drop(&mut self) {
        if let Some(answers) = self.answers.take() {
            let _ = answers.reject(self.id, &[]);
        }
    }
}

impl fmt::Debug for ConnRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnRequest").field("peer", &self.peer).finish_non_exhaustive()
    }
}
