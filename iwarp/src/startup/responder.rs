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

/// Result of taking octets.
#[derive(Debug, PartialEq, Eq)]
pub enum Request {
    /// The Request is not complete yet.
    NeedMore,
    /// A Request to answer with [`Responder::accept`] or [`Responder::reject`]. The [`Vec`] is the private data of
    /// the peer's user.
    Arrived(PeerParams, Vec<u8>),
}

impl Responder {
    /// Starts waiting for a Request.
    pub fn new(limits: Limits) -> Responder {
        Responder { limits, state: State::Waiting(Collector::new(REQUEST_KEY, limits.max_rev)) }
    }

    /// Takes octets of the Request, split in any way. Octets after the Request are an error, because the peer
    /// must wait for the Reply (MPA-91). After the answer, pass octets to the [`Stream`](crate::Stream).
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

    /// Returns the parameters of the Request while it waits for an answer; `None` before and after that.
    pub fn peer(&self) -> Option<PeerParams> {
        match &self.state {
            State::Asked(request) => Some(PeerParams::of(request)),
            State::Waiting(_) | State::Answered => None,
        }
    }

    /// Accepts the Request. Returns the Reply to send and the parameters of Full Operation. Ignores [`Offer::rev`] and
    /// [`Offer::peer_to_peer`], because both follow the Request (MPAE-6, MPAE-24).
    pub fn accept(&mut self, offer: &Offer<'_>) -> Result<(Vec<u8>, Negotiated), StartupError> {
        let State::Asked(request) = &self.state else { return Err(StartupError::OutOfTurn) };
        Offer { peer_to_peer: None, ..*offer }.validate(request.word.is_some())?;
        let (mut ird, mut ord) = (offer.ird, offer.ord);
        let word = request.word.map(|w| {
            let rtr = w.rtr.map(rtr_kinds);
            if rtr.is_some_and(|kinds| kinds.read) {
                ird = ird.max(1); // the RTR Read that the Reply lists needs an IRD of at least 1 (MPAE-14)
            }
            if let Some(peer_ird) = w.ird {
                ord = ord.min(peer_ird); // MPAE-12
            }
            Word {
                ird: w.ord.map(|_| ird), // a peer that does not negotiate its ORD gets no IRD of ours (MPAE-19)
                ord: w.ird.map(|_| ord), // a peer that does not negotiate its IRD gets no ORD of ours (MPAE-21)
                rtr,
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

    /// Rejects the Request. Returns the Reply to send. TCP stays open until our user closes it (MPA-66).
    pub fn reject(&mut self, private_data: &[u8]) -> Result<Vec<u8>, StartupError> {
        let State::Asked(request) = &self.state else { return Err(StartupError::OutOfTurn) };
        own_private_data(private_data, request.word.is_some())?;
        let octets = rejection(request).octets(REPLY_KEY, private_data);
        self.state = State::Answered;
        Ok(octets)
    }
}

/// Returns a rejecting Reply in the format of the Request.
fn rejection(request: &Frame) -> Frame {
    let word = request.word.map(|w| Word { ird: Some(0), ord: Some(0), rtr: w.rtr.map(rtr_kinds) });
    Frame { markers: false, crc: request.crc, reject: true, rev: request.rev, word }
}

/// Returns the RTR kinds for the Reply. These are the kinds of the Request, because we accept every kind. If the
/// Request names none, they are the kinds that use no receive request of our user (MPAE-25, MPAE-26).
fn rtr_kinds(asked: RtrKinds) -> RtrKinds {
    if asked == RtrKinds::default() { RtrKinds { send: false, write: true, read: true } } else { asked }
}
