//! An endpoint: one TCP connection on its way through MPA start-up, RDMA mode and teardown.

use super::crowd::Seat;
use super::names::QpIndex;
use crate::shared::cm::{CmEvent, ConnParam, EventQueue};
use std::net::SocketAddr;
use std::sync::Arc;
use urnic_iwarp::startup::{Initiator, Responder, RtrKinds};
use urnic_tcp::{BindId, ConnId, Patience, Time};

/// One TCP connection of the engine.
pub(super) struct Endpoint {
    /// The connection; `None` before the stack has given an id.
    pub(super) conn: Option<ConnId>,
    pub(super) peer: SocketAddr,
    pub(super) events: Arc<EventQueue>,
    /// The listening port that this connection came in on, until it is in RDMA mode or over.
    pub(super) listener: Option<BindId>,
    /// Its seat among those that are in start-up, or that are over and have not closed.
    pub(super) seat: Option<(Room, Seat)>,
    /// `Disconnected` has been reported.
    pub(super) announced: bool,
    /// In the ready list.
    pub(super) queued: bool,
    /// It had more to send at its last turn than the turn, or the window, took.
    pub(super) greedy: bool,
    /// Its stream has stopped for want of memory, and it waits to be tried again.
    pub(super) stopped: bool,
    /// Start-up octets that wait for a transmit buffer.
    pub(super) outbox: Vec<u8>,
    /// Has work that waits for the TCP window.
    pub(super) starved: bool,
    /// Waits for buffers.
    pub(super) bufferless: bool,
    /// Its place among the lenders, while TCP may hold memory that was lent to it.
    pub(super) lender: Option<usize>,
    /// It was in RDMA mode and has lost its queue pair: what was completed may still be on its way.
    pub(super) carried: bool,
    /// Set when the end takes longer than it may with a silent peer.
    pub(super) lingers: Option<Lingers>,
    /// How the connection is to end, at the end of the next turn.
    pub(super) farewell: Option<Farewell>,
    /// Stream data of the peer has arrived in RDMA mode.
    pub(super) heard: bool,
    /// Writes of nothing that were sent because nothing was heard.
    pub(super) nudges: u8,
    pub(super) phase: Phase,
}

impl Endpoint {
    /// Tells the application of an event.
    pub(super) fn tell(&self, event: CmEvent) {
        self.events.push(self.peer.ip(), event);
    }

    /// Notes how the connection is to end. A reset stays one.
    pub(super) fn bid(&mut self, farewell: Farewell) {
        if self.farewell != Some(Farewell::Reset) {
            self.farewell = Some(farewell);
        }
    }
}

/// An end that waits for a slow peer.
pub(super) struct Lingers {
    /// When it is broken off.
    pub(super) until: Time,
    /// The peer was slow when it was last looked at: it gets time for its own end, too, when it has taken all.
    pub(super) slow: bool,
}

/// Where endpoints sit that strangers can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Those whose MPA Request is not complete.
    Starting,
    /// Those of [`Phase::Dismissed`] and [`Phase::Closing`] whose connection is not gone.
    Closing,
    /// Those of them that were a queue pair's.
    Carried,
}

/// Where an endpoint stands.
pub(super) enum Phase {
    /// Active side: the TCP handshake is under way.
    Connecting { qp: QpIndex, request: Box<Attempt> },
    /// Active side: the MPA Request is sent, the Reply awaited.
    Requesting { qp: QpIndex, initiator: Box<Initiator>, request: Box<Attempt> },
    /// Passive side: the MPA Request is awaited.
    Awaiting { responder: Box<Responder> },
    /// Passive side: the MPA Request is awaited on a socket that was converted, and answered at once.
    Expecting { qp: QpIndex, responder: Box<Responder>, answer: Box<ConnParam> },
    /// Passive side: the application has the request and decides.
    Pending { responder: Box<Responder> },
    /// RDMA mode, with the queue pair at this index.
    Open { qp: QpIndex },
    /// Passive side: the connection ends without a word of ours. What arrives now resets it.
    Dismissed,
    /// Nothing more is to be said; what arrives is acknowledged and discarded until the connection closes.
    Closing,
}

impl Phase {
    /// Returns the queue pair of a start-up that the program wants, and whether it is the second try.
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

/// What the application asked for in `connect`.
pub(super) struct Attempt {
    /// The reserved address it comes from.
    pub(super) from: Option<BindId>,
    pub(super) private_data: Vec<u8>,
    pub(super) ird: u16,
    pub(super) ord: u16,
    /// Peer-to-peer, and the RTR kinds to offer.
    pub(super) rtr: Option<RtrKinds>,
    /// MPA revision to offer.
    pub(super) rev: u8,
    /// When the peer counts as dead, once it has answered.
    pub(super) patience: Option<Patience>,
    /// [`ConnParam::rnr_retry`].
    pub(super) rnr_retry: u8,
    /// When the peer must have answered.
    pub(super) deadline: Time,
    /// The peer has closed a connection on which we offered a higher revision.
    pub(super) second_try: bool,
    /// Octets of a Reply have come.
    pub(super) heard: bool,
    /// The connection was a socket of the program's, for which there is no second one.
    pub(super) converted: bool,
}

/// How we end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Farewell {
    /// FIN behind what is queued.
    Fin,
    /// RST.
    Reset,
}
