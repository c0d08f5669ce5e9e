//! An endpoint: one TCP connection in MPA start-up, RDMA mode or teardown.

use super::crowd::Seat;
use super::names::QpIndex;
use crate::shared::cm::{CmEvent, ConnParam, EventQueue};
use std::net::SocketAddr;
use std::sync::Arc;
use urnic_iwarp::startup::{Initiator, Responder, RtrKinds};
use urnic_tcp::{BindId, ConnId, Patience, Time};

/// One TCP connection of the engine. The first cache line has all that an endpoint in RDMA mode needs.
#[repr(C, align(64))]
pub(super) struct Endpoint {
    pub(super) phase: Phase,
    /// Id of the connection; `None` before the transport has given one.
    pub(super) conn: Option<ConnId>,
    /// The endpoint's place in the list of lenders; `None`: TCP holds no memory that this endpoint has lent.
    pub(super) lender: Option<u32>,
    /// Whether the endpoint is in the ready list.
    pub(super) queued: bool,
    /// Whether the endpoint's last turn in RDMA mode was long, or ended before the endpoint's work did (`Turn::More` or
    /// `Turn::Starved`), so that turns of endpoints with less work come first.
    pub(super) greedy: bool,
    /// Whether the stream has stopped for want of memory, and waits for another try.
    pub(super) stopped: bool,
    /// Whether the endpoint has work that waits for an ACK, because the TCP window is full or buffers are scarce.
    pub(super) starved: bool,
    /// Whether the endpoint waits for buffers.
    pub(super) bufferless: bool,
    /// Whether the endpoint was in RDMA mode and has lost its queue pair. Data of completed requests may still be on
    /// its way.
    pub(super) carried: bool,
    /// How the endpoint's next turn ends the connection; `None`: it does not, or an earlier turn has ended it.
    pub(super) farewell: Option<Farewell>,
    /// Whether stream data of the peer has arrived in RDMA mode.
    pub(super) heard: bool,
    /// Number of times that [`Alarm::Nudge`](super::alarms::Alarm::Nudge) rang while no data had arrived.
    pub(super) nudges: u8,
    /// Whether the application has got the last event of the connection: `Disconnected`, or `ConnectError` for terms
    /// that this side refuses.
    pub(super) announced: bool,
    /// Whether `outbox` holds octets.
    pub(super) has_outbox: bool,
    /// Start-up octets that wait for a transmit buffer.
    pub(super) outbox: Vec<u8>,
    pub(super) peer: SocketAddr,
    pub(super) events: Arc<EventQueue>,
    /// The listening port at which the connection came in, until the connection is in RDMA mode or over; `None` for
    /// other connections.
    pub(super) listener: Option<BindId>,
    /// The endpoint's seat in one of the [`rooms`](super::rooms); `None`: the endpoint has no seat.
    pub(super) seat: Option<(Room, Seat)>,
    /// The wait for a slow peer beyond `TEARDOWN_WITHIN`; `None`: there is no such wait.
    pub(super) lingers: Option<Lingers>,
}

impl Endpoint {
    /// Passes an event to the application.
    pub(super) fn tell(&self, event: CmEvent) {
        self.events.push(self.peer.ip(), event);
    }

    /// Queues start-up octets for the next turn. The caller must not call this while octets are queued.
    pub(super) fn queue_startup(&mut self, octets: Vec<u8>) {
        self.has_outbox = !octets.is_empty();
        self.outbox = octets;
    }

    /// Removes the first `n` start-up octets, which are on their way.
    pub(super) fn startup_sent(&mut self, n: usize) {
        self.outbox.drain(..n);
        self.has_outbox = !self.outbox.is_empty();
    }

    /// Notes how the connection ends. A FIN does not replace a reset that was noted before.
    pub(super) fn set_farewell(&mut self, farewell: Farewell) {
        if self.farewell != Some(Farewell::Reset) {
            self.farewell = Some(farewell);
        }
    }
}

/// The state of a connection that should have closed, but waits for a slow peer.
pub(super) struct Lingers {
    /// Time at which the wait ends.
    pub(super) until: Time,
    /// Whether the peer was slow at the last check. If the next check finds that it is no longer slow, it gets another
    /// `TEARDOWN_WITHIN`, for its own FIN.
    pub(super) slow: bool,
}

/// The rooms, each of which limits the endpoints of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Endpoints whose MPA Request is not complete.
    Starting,
    /// Endpoints in [`Phase::Dismissed`], and endpoints in [`Phase::Closing`] that were never in RDMA mode. Their
    /// connections still exist.
    Closing,
    /// Endpoints in [`Phase::Closing`] that were in RDMA mode, and whose connection still exists.
    Carried,
}

/// The phase of an endpoint.
pub(super) enum Phase {
    /// Active side: the TCP handshake is under way.
    Connecting { qp: QpIndex, request: Box<Attempt> },
    /// Active side: the MPA Request has been sent, and the Reply is awaited.
    Requesting { qp: QpIndex, initiator: Box<Initiator>, request: Box<Attempt> },
    /// Passive side: the MPA Request is awaited.
    Awaiting { responder: Box<Responder> },
    /// Passive side: the MPA Request is awaited on a converted socket. The engine will answer it at once with
    /// `answer`.
    Expecting { qp: QpIndex, responder: Box<Responder>, answer: Box<ConnParam> },
    /// Passive side: the application has received the request, and has not answered it.
    Pending { responder: Box<Responder> },
    /// RDMA mode, with the queue pair at this index.
    Open { qp: QpIndex },
    /// Passive side: the connection ends without a Reply. If data arrives now, the engine resets the connection.
    Dismissed,
    /// The endpoint is over. Only data that was queued before is still sent, such as a rejecting Reply. Arriving data
    /// is acknowledged and discarded until the connection closes.
    Closing,
}

impl Phase {
    /// Returns the queue pair of a start-up that the program has asked for, and whether this is the second try;
    /// `None` in other phases.
    pub(super) fn wanted(&self) -> Option<(QpIndex, bool)> {
        match self {
            Phase::Connecting { qp, request } | Phase::Requesting { qp, request, .. } => {
                Some((*qp, request.second_try))
            }
            Phase::Expecting { qp, .. } => Some((*qp, false)),
            _ => None,
        }
    }
}

/// The parameters and the progress of a start-up that this side initiates: by `connect`, or on a converted socket.
pub(super) struct Attempt {
    /// The reserved local address; `None`: any.
    pub(super) from: Option<BindId>,
    pub(super) private_data: Vec<u8>,
    pub(super) ird: u16,
    pub(super) ord: u16,
    /// The RTR kinds to offer for a peer-to-peer connection; `None`: the connection is not peer-to-peer.
    pub(super) rtr: Option<RtrKinds>,
    /// MPA revision to offer.
    pub(super) rev: u8,
    /// When TCP gives up on a silent peer; `None`: as configured.
    pub(super) patience: Option<Patience>,
    /// The value of [`ConnParam::rnr_retry`].
    pub(super) rnr_retry: u8,
    /// Time by which the peer must have answered.
    pub(super) deadline: Time,
    /// Whether this is the second try, because the peer has closed a connection on which we offered a higher
    /// revision.
    pub(super) second_try: bool,
    /// Whether octets of a Reply have arrived.
    pub(super) heard: bool,
    /// Whether the connection is a converted socket of the program, for which there is no second try.
    pub(super) converted: bool,
}

/// How this side ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Farewell {
    /// FIN after the queued data.
    Fin,
    /// RST.
    Reset,
}

#[cfg(test)]
mod tests {
    use std::mem::{align_of, offset_of};

    use super::Endpoint;

    #[test]
    fn rdma_mode_needs_one_cache_line() {
        assert_eq!(align_of::<Endpoint>(), 64);
        assert_eq!(offset_of!(Endpoint, phase), 0);
        assert!(offset_of!(Endpoint, has_outbox) < 64);
    }
}
