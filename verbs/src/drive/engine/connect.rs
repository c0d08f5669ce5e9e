//! Connection set-up: from `connect` or `listen` through MPA start-up to RDMA mode.

use super::alarms::Alarm;
use super::endpoint::{Attempt, Endpoint, Farewell, Phase, Room};
use super::names::{self, EndpointId, EndpointIndex, NO_TAG, QpIndex, Qpn};
use super::qp::{Message, Origin, ReadLimits};
use super::teardown::info;
use super::unready::Awaits;
use super::{Clock, Core, Engine};
use crate::drive::shard::Way;
use crate::drive::transport::{Data, Transport};
use crate::shared::cm::{
    CmEvent, ConnParam, ConnRequest, ConnectFailure, DisconnectReason, EventQueue, RequestId, Terms,
};
use crate::shared::error::{Error, KERNEL_MEMORY};
use crate::shared::qp::QpState;
use crate::shared::source::Source;
use crate::shared::waiting::Waiting;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use urnic_config::RtrChoice;
use urnic_iwarp::startup::{
    Initiator, Limits, Negotiated, Offer, Outcome, PeerParams, Progress, Request, Responder, RtrKinds,
    StartupError,
};
use urnic_iwarp::{Role, Rtr, Stream, Terminate};
use urnic_tcp::{BindId, ConnId, ConnectError, ListenError, Time};

/// A listening port.
pub(super) struct Listener {
    pub(super) events: Arc<EventQueue>,
    /// The places for requests that the application has not answered.
    pub(super) backlog: Arc<Waiting>,
}

impl<D: Data> Core<D> {
    /// Returns the offer that this side makes as Initiator.
    fn request_offer<'a>(&self, request: &'a Attempt) -> Offer<'a> {
        Offer {
            rev: request.rev,
            crc: self.mpa.crc,
            markers: self.mpa.markers,
            ird: request.ird,
            ord: request.ord,
            private_data: &request.private_data,
            peer_to_peer: request.rtr,
        }
    }

    /// Returns the offer that this side makes as Responder.
    pub(super) fn reply_offer<'a>(&self, param: &'a ConnParam) -> Offer<'a> {
        Offer {
            crc: self.mpa.crc,
            markers: self.mpa.markers,
            ird: param.ird.min(self.mpa.ird),
            ord: param.ord.min(self.mpa.ord),
            private_data: &param.private_data,
            ..Offer::default()
        }
    }

    /// Makes an endpoint for a connection that has come in on a listening port, and returns the connection's tag;
    /// [`NO_TAG`], without an endpoint, if the port no longer has a listener.
    pub(super) fn admit(&mut self, listener: BindId, conn: ConnId, peer: SocketAddr) -> u64 {
        let Some(Listener { events, .. }) = self.listeners.get(&listener) else { return NO_TAG };
        let events = Arc::clone(events);
        let limits = Limits { max_rev: self.mpa.rev, ..Limits::default() };
        let phase = Phase::Awaiting { responder: Box::new(Responder::new(limits)) };
        let id = self.add_endpoint(Some(conn), peer, events, phase);
        if let Some(endpoint) = self.endpoints.get_mut(id.index) {
            endpoint.listener = Some(listener);
        }
        self.take_seat(id.index, Room::Starting, self.now + self.mpa.startup_timeout);
        names::tag(id)
    }

    pub(super) fn add_endpoint(
        &mut self,
        conn: Option<ConnId>,
        peer: SocketAddr,
        events: Arc<EventQueue>,
        phase: Phase,
    ) -> EndpointId {
        self.endpoints.insert(Endpoint {
            conn,
            peer,
            events,
            listener: None,
            seat: None,
            queued: false,
            greedy: false,
            outbox: Vec::new(),
            has_outbox: false,
            heard: false,
            nudges: 0,
            starved: false,
            bufferless: false,
            lender: None,
            stopped: false,
            carried: false,
            lingers: None,
            farewell: None,
            announced: false,
            phase,
        })
    }

    /// Sends the MPA Request, because the TCP handshake of an active connection is done (MPA-62).
    pub(super) fn send_request(&mut self, index: EndpointIndex) {
        let Some(endpoint) = self.endpoints.get_mut(index) else { return };
        let phase = std::mem::replace(&mut endpoint.phase, Phase::Closing);
        let Phase::Connecting { qp, request } = phase else {
            endpoint.phase = phase;
            return;
        };
        match Initiator::new(&self.request_offer(&request)) {
            Ok((initiator, octets)) => {
                let Some(endpoint) = self.endpoints.get_mut(index) else { return };
                endpoint.queue_startup(octets);
                endpoint.phase = Phase::Requesting { qp, initiator: Box::new(initiator), request };
                self.schedule(index);
            }
            // Unreachable: `attempt` has checked the offer already.
            Err(_) => self.connect_failed(index, qp, ConnectFailure::Terms),
        }
    }

    /// Returns whether endpoint `index` awaits its TCP connection, and so has sent no Request.
    pub(super) fn connecting(&self, index: EndpointIndex) -> bool {
        matches!(self.endpoints.get(index).map(|e| &e.phase), Some(Phase::Connecting { .. }))
    }

    /// Returns whether endpoint `index` awaits the Reply.
    pub(super) fn requesting(&self, index: EndpointIndex) -> bool {
        matches!(self.endpoints.get(index).map(|e| &e.phase), Some(Phase::Requesting { .. }))
    }

    /// Takes stream data that arrives before RDMA mode. The data may end start-up and begin RDMA mode. Returns the
    /// queue pair and the octets after the last start-up frame, for the queue pair's stream; `None` if there are none.
    pub(super) fn receive_startup(&mut self, index: EndpointIndex, mut data: D) -> Option<(QpIndex, D)> {
        let endpoint = self.endpoints.get_mut(index)?;
        data.keep();
        let octets = data.bytes();
        match &mut endpoint.phase {
            Phase::Requesting { qp, initiator, request } => {
                let (qp, rnr_retry) = (*qp, request.rnr_retry);
                request.heard = true;
                match initiator.receive(octets) {
                    Ok(Progress::NeedMore { .. }) => None,
                    Ok(Progress::Done {
                        consumed,
                        outcome: Outcome::Accepted(negotiated, peer, private_data),
                    }) => {
                        if !self.qps.get(qp).is_some_and(|core| core.state() == QpState::Idle) {
                            // The queue pair entered the error state before the peer's Reply came (MPAE-31).
                            let terminate = Terminate::STARTUP_CATASTROPHIC;
                            self.refuse_terms(index, qp, &negotiated, terminate, ConnectFailure::Aborted);
                            return None;
                        }
                        self.open(index, qp, &negotiated, &peer, private_data, rnr_retry);
                        data.skip(consumed);
                        (!data.bytes().is_empty()).then_some((qp, data))
                    }
                    Ok(Progress::Done { outcome: Outcome::Rejected(peer, private_data), .. }) => {
                        // MPA-66: the ULP closes the TCP connection. Here the connection manager acts as the ULP.
                        let qpn = self.release_qp(qp);
                        let event = CmEvent::Rejected {
                            qpn: qpn.0,
                            private_data,
                            peer_ird: peer.ird,
                            peer_ord: peer.ord,
                        };
                        self.end_startup(index, Farewell::Fin, Some(event));
                        None
                    }
                    Ok(Progress::Done {
                        outcome: Outcome::Unacceptable(negotiated, _, terminate), ..
                    }) => {
                        self.refuse_terms(index, qp, &negotiated, terminate, ConnectFailure::Terms);
                        None
                    }
                    Err(_) => {
                        self.connect_failed(index, qp, ConnectFailure::NotIwarp);
                        None
                    }
                }
            }
            Phase::Awaiting { responder } => {
                match responder.receive(octets) {
                    Ok(Request::NeedMore) => {}
                    Ok(Request::Arrived(peer, private_data)) => self.ask(index, &peer, private_data),
                    // MPA-64, MPA-81: the connection is closed without a Reply.
                    Err(_) => self.dismiss(index, Farewell::Fin),
                }
                None
            }
            Phase::Expecting { qp, responder, .. } => {
                let qp = *qp;
                match responder.receive(octets) {
                    Ok(Request::NeedMore) => {}
                    Ok(Request::Arrived(peer, private_data)) => self.answer(index, &peer, private_data),
                    // MPA-64: the connection is closed.
                    Err(_) => self.connect_failed(index, qp, ConnectFailure::NotIwarp),
                }
                None
            }
            // MPA-91: octets have arrived after the Request and before our Reply.
            Phase::Pending { .. } => {
                self.dismiss(index, Farewell::Fin);
                None
            }
            // The peer has sent data after our FIN. A reset tells the peer that the data is not read
            // (RFC 1122 §4.2.2.13). The reset cannot destroy a Reply, because no Reply was sent.
            Phase::Dismissed => {
                self.dismiss(index, Farewell::Reset);
                None
            }
            Phase::Connecting { .. } | Phase::Open { .. } | Phase::Closing => None,
        }
    }

    /// Passes a request to the application, or resets its connection if too many requests wait for the application.
    fn ask(&mut self, index: EndpointIndex, peer: &PeerParams, private_data: Vec<u8>) {
        let Some(id) = self.endpoints.id(index).map(|id| names::request(self.number, id)) else { return };
        self.leave_seat(index);
        let Some(endpoint) = self.endpoints.get(index) else { return };
        let (listener, source) = (endpoint.listener, Source::of(endpoint.peer.ip()));
        let listener = listener.and_then(|id| self.listeners.get(&id));
        let place = listener.and_then(|l| Waiting::take([&l.backlog, &self.rooms.waiting], source));
        if place.is_none() {
            return self.dismiss(index, Farewell::Reset);
        }
        let Some(endpoint) = self.endpoints.get_mut(index) else { return };
        endpoint.phase = match std::mem::replace(&mut endpoint.phase, Phase::Closing) {
            Phase::Awaiting { responder } => Phase::Pending { responder },
            other => other,
        };
        let request = ConnRequest::new(id, endpoint.peer, private_data, peer, place);
        endpoint.tell(CmEvent::ConnectRequest(request));
    }

    /// Enters RDMA mode.
    pub(super) fn open(
        &mut self,
        index: EndpointIndex,
        qp: QpIndex,
        negotiated: &Negotiated,
        peer: &PeerParams,
        private_data: Vec<u8>,
        rnr_retry: u8,
    ) {
        let Some(endpoint) = self.endpoints.get_mut(index) else { return };
        endpoint.listener = None;
        let Some(core) = self.qps.get_mut(qp) else { return };
        let mut stream = self.streams.boxed(Stream::new(negotiated, self.budget.clone()));
        // The RTR goes before all requests that the application has posted (MPAE-27, MPAE-28), and is not reported to
        // the application (MPAE-34).
        if let Some(rtr) = negotiated.rtr
            && let Ok(outgoing) = stream.begin(rtr.op(), 0)
        {
            core.tx.message = Some(Box::new(Message { outgoing, origin: Origin::None }));
            core.tx.rtr_read = rtr == Rtr::Read;
        }
        if rnr_retry > 0 {
            stream.let_sends_wait();
        }
        core.awaits = Awaits::with(rnr_retry);
        core.stream = Some(stream);
        core.endpoint = Some(index);
        core.reads = ReadLimits { ird: negotiated.ird, ord: negotiated.ord };
        core.tx.initiator = negotiated.role == Role::Initiator;
        core.shared.set_state(QpState::Rts);
        endpoint.phase = Phase::Open { qp };
        endpoint.tell(CmEvent::Established {
            qpn: core.shared.qpn,
            peer: endpoint.peer,
            private_data,
            ird: negotiated.ird,
            ord: negotiated.ord,
            terms: Terms::of(negotiated, peer),
        });
        if negotiated.role == Role::Responder && negotiated.peer_to_peer.is_some() {
            self.set_alarm(index, self.now + self.mpa.startup_timeout, Alarm::Rtr);
        }
        self.schedule(index);
    }

    /// Ends a connection that the peer has accepted, but that this side cannot use. The only FPDU that this side
    /// sends is a Terminate (MPAE-17, MPAE-29, MPAE-31).
    fn refuse_terms(
        &mut self,
        index: EndpointIndex,
        qp: QpIndex,
        negotiated: &Negotiated,
        terminate: Terminate,
        reason: ConnectFailure,
    ) {
        let Some(endpoint) = self.endpoints.get_mut(index) else { return };
        let Some(core) = self.qps.get_mut(qp) else { return };
        core.stream = Some(self.streams.boxed(Stream::new(negotiated, self.budget.clone())));
        core.shared.set_terminate(info(&terminate, true));
        core.tx.terminate = Some(Box::new(terminate));
        let state = if core.is_over() { core.state() } else { QpState::Terminate };
        core.end(state, None, crate::shared::wc::WcStatus::Flushed);
        endpoint.announced = true;
        endpoint.phase = Phase::Open { qp };
        endpoint.tell(CmEvent::ConnectError { qpn: core.shared.qpn, reason });
        self.set_alarm(index, self.now + super::TEARDOWN_WITHIN, Alarm::Teardown);
        self.schedule(index);
    }

    /// Tries again on a new connection with revision 1, unless the request needs revision 2 (MPAE-9). Returns whether
    /// it tries. Called when the peer has closed the connection instead of answering our Request: such a peer may know
    /// only revision 1 (MPAE-8).
    ///
    /// Not called when the peer has reset the connection. An overloaded peer, or a peer whose program has ended, also
    /// sends resets, and must not cause a connection without negotiated IRD and ORD.
    pub(super) fn fall_back(&mut self, index: EndpointIndex) -> bool {
        let Some(endpoint) = self.endpoints.get_mut(index) else { return false };
        let (peer, events) = (endpoint.peer, Arc::clone(&endpoint.events));
        match std::mem::replace(&mut endpoint.phase, Phase::Closing) {
            Phase::Requesting { qp, request, .. }
                if request.rev == 2 && request.rtr.is_none() && !request.heard && !request.converted =>
            {
                let mut request = request;
                request.rev = 1;
                request.second_try = true;
                let deadline = request.deadline;
                // If the program chose the local port, both connections have the same addresses. The first must then
                // be gone before the second begins, so its turn comes first and resets it.
                let farewell = if request.from.is_some() { Farewell::Reset } else { Farewell::Fin };
                self.end_startup(index, farewell, None);
                let again = self.add_endpoint(None, peer, events, Phase::Connecting { qp, request }).index;
                if let Some(core) = self.qps.get_mut(qp) {
                    core.endpoint = Some(again);
                }
                self.set_alarm(again, deadline, Alarm::Startup);
                self.schedule(again);
                true
            }
            other => {
                endpoint.phase = other;
                false
            }
        }
    }

    /// Separates a queue pair from a connection that was never established. Returns the queue pair's number.
    pub(super) fn release_qp(&mut self, qp: QpIndex) -> Qpn {
        let Some(core) = self.qps.get_mut(qp) else { return Qpn(0) };
        core.endpoint = None;
        core.qpn()
    }

    pub(super) fn connect_failed(&mut self, index: EndpointIndex, qp: QpIndex, reason: ConnectFailure) {
        let qpn = self.release_qp(qp);
        self.end_startup(index, Farewell::Fin, Some(CmEvent::ConnectError { qpn: qpn.0, reason }));
    }

    /// Resets a connection that the application has asked for and no longer wants. Does nothing after start-up.
    pub(super) fn give_up_connecting(&mut self, index: EndpointIndex) {
        if let Some((qp, _)) = self.endpoints.get(index).and_then(|e| e.phase.wanted()) {
            let qpn = self.release_qp(qp);
            let event = CmEvent::ConnectError { qpn: qpn.0, reason: ConnectFailure::Aborted };
            self.end_startup(index, Farewell::Reset, Some(event));
        }
    }

    /// Ends a connection that has not reached RDMA mode.
    pub(super) fn end_startup(&mut self, index: EndpointIndex, farewell: Farewell, event: Option<CmEvent>) {
        self.close_endpoint(index);
        if let Some(endpoint) = self.endpoints.get(index)
            && let Some(event) = event
        {
            endpoint.tell(event);
        }
        self.farewell(index, farewell);
    }

    /// Resets a connection that the program has asked for, because its start-up has taken too long.
    pub(super) fn startup_timed_out(&mut self, index: EndpointIndex) {
        if let Some((qp, _)) = self.endpoints.get(index).and_then(|e| e.phase.wanted()) {
            let qpn = self.release_qp(qp);
            let event = CmEvent::ConnectError { qpn: qpn.0, reason: ConnectFailure::TimedOut };
            self.end_startup(index, Farewell::Reset, Some(event));
        }
    }

    /// Resets an accepted connection whose peer has not sent its ready-to-receive indication, because this side
    /// must not send before the indication arrives.
    pub(super) fn rtr_timed_out(&mut self, index: EndpointIndex) {
        if let Some(&Endpoint { heard: false, phase: Phase::Open { qp }, .. }) = self.endpoints.get(index) {
            if let Some(core) = self.qps.get_mut(qp) {
                core.end(QpState::Error, None, crate::shared::wc::WcStatus::Flushed);
            }
            self.announce(index, DisconnectReason::TimedOut);
            self.farewell(index, Farewell::Reset);
        }
    }
}

impl<T: Transport, C: Clock> Engine<T, C> {
    pub(super) fn start_listening(
        &mut self,
        at: BindId,
        backlog: u32,
        places: Arc<Waiting>,
        events: Arc<EventQueue>,
    ) -> Result<(), Error> {
        self.transport.listen(at, backlog as usize).map_err(|e| match e {
            ListenError::NotReserved => {
                Error::Invalid("the address is not reserved, or a listener has it already")
            }
            ListenError::InUse(port) => Error::PortInUse(port),
            ListenError::NoMemory => Error::Exhausted(KERNEL_MEMORY),
        })?;
        self.core.listeners.insert(at, Listener { events, backlog: places });
        Ok(())
    }

    pub(super) fn stop_listening(&mut self, id: BindId) {
        if self.core.listeners.remove(&id).is_none() {
            return;
        }
        let orphans: Vec<EndpointIndex> =
            self.core.endpoints.iter().filter(|(_, e)| e.listener == Some(id)).map(|(i, _)| i).collect();
        for index in orphans {
            self.core.end_startup(index, Farewell::Reset, None);
        }
    }

    pub(super) fn start_connect(
        &mut self,
        qpn: Qpn,
        way: Way,
        param: &ConnParam,
        events: Arc<EventQueue>,
    ) -> Result<(), Error> {
        let qp = self.core.idle_qp(qpn)?;
        let now = self.now();
        let request = Box::new(self.core.attempt(now, way.from, param)?);
        let deadline = request.deadline;
        let to = self.transport.destination(way.to);
        let index = self.core.add_endpoint(None, to, events, Phase::Connecting { qp, request }).index;
        if let Err(error) = self.open_connection(index) {
            self.core.endpoints.remove(index);
            return Err(match error {
                ConnectError::Unreachable(_) => {
                    Error::NoRoute { to: to.ip(), remedy: self.transport.without_route() }
                }
                ConnectError::Forbidden(_) => Error::Forbidden(to.ip()),
                ConnectError::Address(_) => Error::Invalid("the peer's address names no host or has port 0"),
                ConnectError::Family(_) => {
                    Error::Invalid("the local address and the peer's are of different families (IPv4, IPv6)")
                }
                ConnectError::InUse(port) => Error::PortInUse(port),
                ConnectError::Elsewhere(_) => Error::Invalid(
                    "only another engine of the device can connect from the reserved address to this peer",
                ),
                ConnectError::NoDescriptor => Error::NoDescriptor,
                ConnectError::NoPort | ConnectError::TooMany => Error::Exhausted("connections or ports"),
            });
        }
        if let Some(core) = self.core.qps.get_mut(qp) {
            core.endpoint = Some(index);
        }
        self.core.set_alarm(index, deadline, Alarm::Startup);
        Ok(())
    }

    /// Starts the TCP connection of an endpoint that has none.
    fn open_connection(&mut self, index: EndpointIndex) -> Result<(), ConnectError> {
        let Some(id) = self.core.endpoints.id(index) else { return Ok(()) };
        let Some(endpoint) = self.core.endpoints.get_mut(index) else { return Ok(()) };
        let Phase::Connecting { request, .. } = &endpoint.phase else { return Ok(()) };
        let conn = self.transport.connect(self.core.now, request.from, endpoint.peer, names::tag(id))?;
        self.transport.set_patience(conn, request.patience);
        endpoint.conn = Some(conn);
        Ok(())
    }

    /// Runs the turn of an endpoint that has no TCP connection: opens the connection if the endpoint is a
    /// second try ([`fall_back`](Core::fall_back)), and otherwise removes the endpoint, because it is over.
    #[cold]
    pub(super) fn service_unconnected(&mut self, index: EndpointIndex) {
        match self.core.endpoints.get(index).map(|e| &e.phase) {
            Some(&Phase::Connecting { qp, .. }) => {
                if self.open_connection(index).is_err() {
                    self.core.connect_failed(index, qp, ConnectFailure::Reset);
                    self.core.endpoints.remove(index);
                }
            }
            _ => {
                self.core.endpoints.remove(index);
            }
        }
    }

    pub(super) fn accept_request(
        &mut self,
        request: RequestId,
        qpn: Qpn,
        param: &ConnParam,
    ) -> Result<(), Error> {
        let qp = self.core.idle_qp(qpn)?;
        let now = self.now();
        let index = self.core.pending(request)?;
        let offer = self.core.reply_offer(param);
        let Some(endpoint) = self.core.endpoints.get_mut(index) else { return Err(Error::RequestGone) };
        let Phase::Pending { responder } = &mut endpoint.phase else { return Err(Error::RequestGone) };
        let Some(peer) = responder.peer() else { return Err(Error::RequestGone) };
        let (reply, negotiated) = responder.accept(&offer).map_err(refused)?;
        endpoint.queue_startup(reply);
        if let Some(conn) = endpoint.conn {
            self.transport.set_patience(conn, param.patience);
            self.transport.welcome(now, conn);
        }
        self.core.open(index, qp, &negotiated, &peer, Vec::new(), param.rnr_retry);
        Ok(())
    }

    pub(super) fn reject_request(&mut self, request: RequestId, private_data: &[u8]) -> Result<(), Error> {
        let index = self.core.pending(request)?;
        let Some(endpoint) = self.core.endpoints.get_mut(index) else { return Err(Error::RequestGone) };
        let Phase::Pending { responder } = &mut endpoint.phase else { return Err(Error::RequestGone) };
        let reply = responder.reject(private_data).map_err(refused)?;
        endpoint.queue_startup(reply);
        self.core.end_startup(index, Farewell::Fin, None);
        Ok(())
    }
}

impl<D: Data> Core<D> {
    /// Makes the parameters of a connection that the application asks for. Checks them now, so that the application
    /// gets errors at once.
    pub(super) fn attempt(
        &self,
        now: Time,
        from: Option<BindId>,
        param: &ConnParam,
    ) -> Result<Attempt, Error> {
        let mpa = &self.mpa;
        let attempt = Attempt {
            from,
            private_data: param.private_data.clone(),
            ird: param.ird.min(mpa.ird),
            ord: param.ord.min(mpa.ord),
            rtr: rtr_kinds(param.rtr.unwrap_or(mpa.rtr)),
            rev: mpa.rev,
            patience: param.patience,
            rnr_retry: param.rnr_retry,
            deadline: now + startup_limit(param),
            second_try: false,
            heard: false,
            converted: false,
        };
        if attempt.rtr.is_some() && attempt.rev < 2 {
            return Err(Error::Invalid("an RTR needs MPA revision 2: choose no RTR, or set mpa.rev to 2"));
        }
        Initiator::new(&self.request_offer(&attempt)).map_err(refused)?;
        Ok(attempt)
    }

    pub(super) fn idle_qp(&self, qpn: Qpn) -> Result<QpIndex, Error> {
        let qp = self.known(qpn)?;
        match self.qps.get(qp) {
            Some(core) if core.endpoint.is_none() && core.state() == QpState::Idle => Ok(qp),
            Some(core) => Err(Error::QpState { qpn: qpn.0, state: core.state() }),
            None => Err(Error::UnknownQp(qpn.0)),
        }
    }

    pub(super) fn pending(&self, request: RequestId) -> Result<EndpointIndex, Error> {
        // Endpoints of different engines may have equal ids.
        let ours = request.engine == self.number;
        let index =
            self.endpoints.find(names::requested(request)).filter(|_| ours).ok_or(Error::RequestGone)?;
        match self.endpoints.get(index) {
            Some(e) if matches!(e.phase, Phase::Pending { .. }) => Ok(index),
            _ => Err(Error::RequestGone),
        }
    }
}

/// Returns the time limit of a start-up that the application has asked for.
pub(super) fn startup_limit(param: &ConnParam) -> Duration {
    param.timeout.min(Duration::from_secs(3600))
}

/// Returns the RTR kinds to offer; `None`: the connection is not peer-to-peer.
fn rtr_kinds(choice: RtrChoice) -> Option<RtrKinds> {
    let (send, write, read) = match choice {
        RtrChoice::Off => return None,
        RtrChoice::Any => (true, true, true),
        RtrChoice::Write => (false, true, false),
        RtrChoice::Read => (false, false, true),
        RtrChoice::Send => (true, false, false),
    };
    Some(RtrKinds { send, write, read })
}

/// Returns the error for an offer that the start-up refused.
fn refused(error: StartupError) -> Error {
    match error {
        StartupError::OwnPrivateData { .. } => {
            Error::Invalid("more than 508 bytes of private data, the limit of MPA revision 2")
        }
        StartupError::OutOfTurn => Error::RequestGone,
        _ => Error::Invalid("IRD and ORD must be at most 16382"),
    }
}
