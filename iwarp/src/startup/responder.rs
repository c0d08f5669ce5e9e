//! The end that answers a Request.

use super::frame::{Collector, Frame, REPLY_KEY, REQUEST_KEY, Word};
use super::{Limits, Negotiated, Offer, PeerParams, Role, RtrKinds, StartupError, own_private_data};

/// Waits for a Request and answers it.
#[derive(Debug)]
pub struct Responder {
    limits: Limits,
    state: State,
}

#[derive(Debug)]
enum State {
    Waiting(Collector),
    Asked(Frame),
    Answered,
}

/// What octets have led to.
#[derive(Debug, PartialEq, Eq)]
pub enum Request {
    /// The Request is not whole.
    NeedMore,
    /// A Request to answer with [`Responder::accept`] or [`Responder::reject`].
    Arrived(PeerParams, Vec<u8>),
}

impl Responder {
    /// Waits for a Request.
    pub fn new(limits: Limits) -> Responder {
        Responder { limits, state: State::Waiting(Collector::new(REQUEST_KEY, limits.max_rev)) }
    }

    /// Takes octets of the Request, in any split. Octets behind it are an error until it is answered (MPA-91).
    pub fn receive(&mut self, octets: &[u8]) -> Result<Request, StartupError> {
        let State::Waiting(collector) = &mut self.state else {
            return if octets.is_empty() { Ok(Request::NeedMore) } else { Err(StartupError::Surplus) };
        };
        let (consumed, done) = collector.take(octets)?;
        let Some((request, private_data)) = done else { return Ok(Request::NeedMore) };
        let max = self.limits.max_private_data;
        if private_data.len() > max {
            return Err(StartupError::PrivateDataLimit { len: private_data.len(), max });
        }
        if consumed < octets.len() {
            return Err(StartupError::Surplus);
        }
        let peer = PeerParams::of(&request);
        self.state = State::Asked(request);
        Ok(Request::Arrived(peer, private_data))
    }

    /// What the Request said, while it waits for an answer.
    pub fn peer(&self) -> Option<PeerParams> {
        match &self.state {
            State::Asked(request) => Some(PeerParams::of(request)),
            State::Waiting(_) | State::Answered => None,
        }
    }

    /// Accepts: the Reply to send, and what to enter Full Operation with. [`Offer::rev`] and
    /// [`Offer::peer_to_peer`] are not looked at; both follow the Request (MPAE-6, MPAE-24).
    pub fn accept(&mut self, offer: &Offer<'_>) -> Result<(Vec<u8>, Negotiated), StartupError> {
        let State::Asked(request) = &self.state else { return Err(StartupError::OutOfTurn) };
        Offer { peer_to_peer: None, ..*offer }.validate(request.word.is_some())?;
        let (mut ird, mut ord) = (offer.ird, offer.ord);
        let word = request.word.map(|w| {
            if w.rtr.is_some_and(|kinds| kinds.read) {
                ird = ird.max(1); // an RTR Read needs a place (MPAE-14)
            }
            if let Some(peer_ird) = w.ird {
                ord = ord.min(peer_ird); // MPAE-12
            }
            Word {
                ird: w.ord.map(|_| ird), // the peer's ORD is not negotiated: neither is our IRD (MPAE-19)
                ord: w.ird.map(|_| ord), // and the other way round (MPAE-21)
                rtr: w.rtr.map(rtr_kinds),
            }
        });
        let crc = offer.crc || request.crc;
        let reply = Frame { markers: offer.markers, crc, reject: false, rev: request.rev, word };
        let negotiated = Negotiated {
            role: Role::Responder,
            rev: request.rev,
            crc,
            tx_markers: request.markers,
            rx_markers: offer.markers,
            ird,
            ord,
            rtr: None,
            peer_to_peer: word.and_then(|w| w.rtr),
        };
        let octets = reply.octets(REPLY_KEY, offer.private_data);
        self.state = State::Answered;
        Ok((octets, negotiated))
    }

    /// Rejects: the Reply to send. TCP stays open until the user closes it (MPA-66).
    pub fn reject(&mut self, private_data: &[u8]) -> Result<Vec<u8>, StartupError> {
        let State::Asked(request) = &self.state else { return Err(StartupError::OutOfTurn) };
        own_private_data(private_data, request.word.is_some())?;
        let octets = rejection(request).octets(REPLY_KEY, private_data);
        self.state = State::Answered;
        Ok(octets)
    }
}

/// A rejecting Reply in the format of the Request.
fn rejection(request: &Frame) -> Frame {
    let word = request.word.map(|w| Word { ird: Some(0), ord: Some(0), rtr: w.rtr.map(rtr_kinds) });
    Frame { markers: false, crc: request.crc, reject: true, rev: request.rev, word }
}

/// The RTR kinds that a Reply lists: those of the Request, as we take every kind, or if it names none those that use
/// nothing of the user's (MPAE-25, MPAE-26).
fn rtr_kinds(asked: RtrKinds) -> RtrKinds {
    if asked == RtrKinds::default() { RtrKinds { send: false, write: true, read: true } } else { asked }
}
