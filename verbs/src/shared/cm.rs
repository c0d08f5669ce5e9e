//! Connections: their parameters, and the events that report what became of them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use urnic_config::{MAX_PROBES, RtrChoice};
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

/// Id of a connection request that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestId {
    /// The engine that has the request's connection.
    pub(crate) engine: EngineNumber,
    /// The engine's id for the connection.
    pub(crate) endpoint: u64,
}

/// Maximum private data of a connection request or answer, in bytes (RFC 5044 §7.1.1). In revision 2 of MPA,
/// which is the default, IRD and ORD take 4 of these bytes, so that 508 remain (MPAE-4).
pub const MAX_PRIVATE_DATA: usize = 512;

/// The [`ConnParam::rnr_retry`] with which Sends wait for receives without limit.
pub const RNR_WITHOUT_LIMIT: u8 = 7;

/// What one side offers for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnParam {
    /// Bytes for the peer's application; at most [`MAX_PRIVATE_DATA`], or 508 in revision 2 of MPA.
    pub private_data: Vec<u8>,
    /// Maximum number of the peer's Reads that may be outstanding here. The configuration limits it too.
    pub ird: u16,
    /// Maximum number of this side's Reads that may be outstanding at the peer. The configuration limits it too.
    pub ord: u16,
    /// Time limit of the start-up at the side that connects or converts a socket; at most one hour. Ignored by
    /// [`ConnRequest::accept`].
    pub timeout: Duration,
    /// When a silent peer counts as dead; `None`: as configured. The default is 15 s if nothing is outstanding (10
    /// s of silence, then five probes), and 30 s if something is.
    pub patience: Option<Patience>,
    /// The ready-to-receive indication that the connecting side sends of its own accord, so that the other side need
    /// not wait for the application to send something (RFC 6581 §5); `None`: as configured. The accepting side serves
    /// any kind of indication that the peer asks for.
    pub rtr: Option<RtrChoice>,
    /// Time limit for a Send of the peer that finds no receive and waits for one, in units of 100 ms. 0: the Send does
    /// not wait; [`RNR_WITHOUT_LIMIT`] or more: no limit. If no receive is posted in time, the connection ends with a
    /// Terminate. Other work of the peer is served meanwhile.
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

/// Checks the times as the configuration does.
pub(crate) fn check_patience(patience: &Patience) -> Result<()> {
    let sane = |time: Duration| (Duration::from_millis(10)..=Duration::from_secs(24 * 3600)).contains(&time);
    let counts = 1..=MAX_PROBES;
    let probes =
        patience.keepalive.is_none_or(|k| sane(k.idle) && sane(k.interval) && counts.contains(&k.count));
    if probes && patience.user_timeout.is_none_or(sane) {
        Ok(())
    } else {
        Err(Error::Invalid(
            "keepalive times and the user timeout must be from 10 ms to 24 h, and probes from 1 to 100",
        ))
    }
}

pub(crate) fn check_private_data(data: &[u8]) -> Result<()> {
    if data.len() > MAX_PRIVATE_DATA {
        return Err(Error::Invalid("more than 512 bytes of private data"));
    }
    Ok(())
}

/// Why a connection could not be established.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// No program listens there.
    #[error("connection refused: no program listens on that port")]
    Refused,
    /// The peer, or the router to it, cannot be reached.
    #[error(
        "host unreachable: the host or the router to it does not answer ARP or neighbour discovery, a router \
         reports it unreachable, or there is no link"
    )]
    Unreachable,
    /// The peer did not answer in time.
    #[error("timed out: the peer did not answer")]
    TimedOut,
    /// The peer closed or reset the connection during the start-up.
    #[error("the peer closed the connection during the MPA start-up")]
    Reset,
    /// The peer does not speak MPA, or not in a version that this end supports.
    #[error("the peer is no iWARP node: it did not send the MPA start-up frame that this end expects")]
    NotIwarp,
    /// This end cannot meet the peer's terms, or the peer cannot meet this end's.
    #[error(
        "the two ends cannot agree on IRD, ORD or RTR: compare what their programs ask for and their settings mpa.ird, \
         mpa.ord and mpa.rtr"
    )]
    Terms,
    /// This end gave up: the queue pair went into the error state or was destroyed meanwhile, or
    /// [`Connection::disconnect`](crate::Connection::disconnect) was called.
    #[error("aborted by this end")]
    Aborted,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// This end closed it.
    #[error("closed by this end")]
    Local,
    /// The peer closed it.
    #[error("closed by the peer")]
    Peer,
    /// The peer closed it in the middle of a message or an FPDU, so that octets are missing (RFC 5044 §8, code
    /// 1), or while a Send of the peer waited in vain for a receive.
    #[error("closed by the peer in the middle of a message")]
    Truncated,
    /// The peer reset it.
    #[error("reset by the peer")]
    Reset,
    /// The peer no longer answers, or has not sent its ready-to-receive indication in time.
    #[error("the peer does not answer")]
    TimedOut,
    /// This end reported an error to the peer by a Terminate message.
    #[error("terminated by this end")]
    TerminateSent,
    /// The peer reported an error by a Terminate message.
    #[error("terminated by the peer")]
    TerminateReceived,
    /// The link went down because the process at its other end ended.
    #[error("the link is down: the peer process is gone")]
    LinkLost,
    /// This end ended it: by [`Qp::to_error`](crate::Qp::to_error), because of a local error, or because a
    /// graceful close took too long.
    #[error("aborted by this end")]
    Aborted,
}

/// An event of a connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum CmEvent {
    /// A peer requests a connection, and waits for [`ConnRequest::accept`] or [`ConnRequest::reject`].
    ConnectRequest(ConnRequest),
    /// The connection is established, and posted work is sent from now on. Only the MPA responder must wait before it
    /// sends, until the peer's first message has arrived ([`Terms::peer_to_peer`]).
    Established {
        /// Number of the queue pair.
        qpn: u32,
        /// Address of the peer.
        peer: SocketAddr,
        /// Private data of the peer. Empty at the side that accepted a [`ConnRequest`], because the request contains
        /// the data ([`ConnRequest::private_data`]). With a converted socket
        /// ([`EventChannel::convert`](crate::EventChannel::convert)), both sides get the data here.
        private_data: Vec<u8>,
        /// Number of the peer's Reads that may be outstanding here.
        ird: u16,
        /// Number of this side's Reads that may be outstanding at the peer.
        ord: u16,
        /// The other terms of the connection.
        terms: Terms,
    },
    /// The peer rejected the connection. The queue pair is idle and can be connected again.
    Rejected {
        /// Number of the queue pair.
        qpn: u32,
        /// Private data of the peer.
        private_data: Vec<u8>,
        /// Number of Reads that may be outstanding at the peer; `None` if the peer does not tell.
        peer_ird: Option<u16>,
        /// Number of Reads that the peer wants to have outstanding here; `None` if the peer does not tell.
        peer_ord: Option<u16>,
    },
    /// The connection could not be established. The queue pair is idle and can be connected again, with two
    /// exceptions. If the peer had already accepted, and this end could not meet its terms
    /// ([`ConnectFailure::Terms`]), the queue pair is in the terminate state and then in the error state. If
    /// the program moved the queue pair to the error state, it stays there.
    ConnectError {
        /// Number of the queue pair.
        qpn: u32,
        /// The reason.
        reason: ConnectFailure,
    },
    /// The connection ended. The queue pair is in the error state, or in the terminate state first if a
    /// Terminate ended the connection. Its work has been flushed or will be. If the queue pair was destroyed,
    /// this event comes at once, with [`DisconnectReason::Local`].
    Disconnected {
        /// Number of the queue pair.
        qpn: u32,
        /// The reason.
        reason: DisconnectReason,
    },
}

/// The terms of a connection after its MPA start-up (RFC 5044 §7.1, RFC 6581 §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Terms {
    /// MPA revision. Revision 1 does not negotiate IRD and ORD: the applications must agree on them.
    pub rev: u8,
    /// Whether CRCs are generated and checked.
    pub crc: bool,
    /// Whether this side sends markers.
    pub tx_markers: bool,
    /// Whether the peer sends markers.
    pub rx_markers: bool,
    /// Whether the connection is peer-to-peer: the side that connected sends a ready-to-receive indication of its
    /// own accord.
    pub peer_to_peer: bool,
    /// Kind of that indication, at the side that connected; otherwise `None`.
    pub rtr: Option<Rtr>,
    /// The IRD that the peer has told: how many of this side's Reads may be outstanding at the peer. `None` if the
    /// peer has told none.
    pub peer_ird: Option<u16>,
    /// The ORD that the peer has told: how many Reads the peer may have outstanding here. `None` if the peer has told
    /// none.
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

/// A callback for connection events; see [`Device::create_event_sink`](crate::Device::create_event_sink).
pub type EventSink = Box<dyn Fn(CmEvent) + Send + Sync>;

/// Events on their way from the engine to the application. The addresses of peers take turns: a newcomer's request
/// does not wait behind the events of thousands of connections of another address.
pub(crate) struct EventQueue {
    events: BySource<CmEvent>,
    pub(crate) fd: EventFd,
    sink: Option<EventSink>,
}

impl EventQueue {
    pub(crate) fn new(sink: Option<EventSink>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { events: BySource::new(), fd: EventFd::new()?, sink }))
    }

    /// Called by the engine: adds an event of a connection with `peer`.
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

    /// Returns the next event; `None` if there is none.
    pub(crate) fn take(&self) -> Option<CmEvent> {
        if self.fd.take() { self.events.pop() } else { None }
    }
}

/// Answers connection requests. The device whose engines have the requests implements this.
pub(crate) trait Answers: Send + Sync {
    /// Accepts with an idle queue pair. The request may have another id afterwards, even if this fails, because its
    /// connection may have moved to the queue pair's engine.
    fn accept(&self, request: &mut RequestId, qp: &Arc<QpShared>, param: &ConnParam) -> Result<()>;
    /// Returns the local address and port that the request came to.
    fn local(&self, request: RequestId) -> Result<SocketAddr>;
    /// Rejects the request.
    fn reject(&self, request: RequestId, private_data: &[u8]) -> Result<()>;
}

/// A peer's request for a connection. Dropping it without an answer rejects it.
pub struct ConnRequest {
    pub(crate) id: RequestId,
    peer: SocketAddr,
    private_data: Vec<u8>,
    ird: Option<u16>,
    ord: Option<u16>,
    peer_to_peer: bool,
    /// The device that answers the request; set on delivery, taken by the answer.
    pub(crate) answers: Option<Arc<dyn Answers>>,
    /// The request's place in the listener's backlog; `None` for a request without a place.
    _place: Option<Place>,
}

impl ConnRequest {
    /// Called by the engine: makes a request with the parameters `says` of the peer's frame, and with its place in
    /// the backlog.
    pub(crate) fn new(
        id: RequestId,
        peer: SocketAddr,
        private_data: Vec<u8>,
        says: &PeerParams,
        place: Option<Place>,
    ) -> Self {
        let (ird, ord) = (says.ird, says.ord);
        let peer_to_peer = says.peer_to_peer.is_some();
        Self { id, peer, private_data, ird, ord, peer_to_peer, answers: None, _place: place }
    }

    /// Returns the address of the peer.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the private data of the peer.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns whether the peer will send a ready-to-receive indication of its own accord (RFC 6581 §5). If not,
    /// work posted here waits until the peer's application sends something.
    pub fn peer_to_peer(&self) -> bool {
        self.peer_to_peer
    }

    /// Returns the number of Reads that may be outstanding at the peer; `None` if the peer does not tell, because it
    /// speaks revision 1 of MPA, or leaves its limits out of revision 2 (RFC 6581 §9.1, MPAE-19, MPAE-21).
    pub fn ird(&self) -> Option<u16> {
        self.ird
    }

    /// Returns the number of Reads that the peer wants to have outstanding here; `None` if the peer does not tell, as
    /// for [`ird`](Self::ird).
    pub fn ord(&self) -> Option<u16> {
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
