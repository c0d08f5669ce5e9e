//! The end that sends the Request.

use super::frame::{Collector, Frame, REPLY_KEY, REQUEST_KEY, Word};
use super::{Negotiated, Offer, PeerParams, Role, Rtr, RtrKinds, StartupError};
use crate::Terminate;

/// Waits for the Reply to a Request.
#[derive(Debug)]
pub struct Initiator {
    collector: Collector,
    rev: u8,
    crc: bool,
    markers: bool,
    ird: u16,
    ord: u16,
    peer_to_peer: Option<RtrKinds>,
}

/// Result of taking octets.
#[derive(Debug)]
pub enum Progress {
    /// The Reply is not complete yet.
    NeedMore {
        /// Octets taken: always all that were offered.
        consumed: usize,
    },
    /// The Reply is complete.
    Done {
        /// Octets taken. The octets after them belong to Full Operation.
        consumed: usize,
        /// The peer's answer.
        outcome: Outcome,
    },
}

/// The peer's answer. Each [`Vec`] is the private data of the peer's user.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The peer accepted: enter Full Operation. If [`Negotiated::rtr`] is `Some`, send that indication first.
    Accepted(Negotiated, PeerParams, Vec<u8>),
    /// The peer rejected. TCP stays open until our user closes it (MPA-66).
    Rejected(PeerParams, Vec<u8>),
    /// The peer accepted with parameters that we cannot meet. Enter Full Operation, send the Terminate as the only
    /// FPDU, and close (MPAE-17, MPAE-29, MPAE-39).
    Unacceptable(Negotiated, PeerParams, Terminate),
}

impl Initiator {
    /// Begins the start-up. Also returns the Request to send.
    pub fn new(offer: &Offer<'_>) -> Result<(Initiator, Vec<u8>), StartupError> {
        if !matches!(offer.rev, 1 | 2) {
            return Err(StartupError::Offer);
        }
        let enhanced = offer.rev == 2;
        offer.validate(enhanced)?;
        let word = Word { ird: Some(offer.ird), ord: Some(offer.ord), rtr: offer.peer_to_peer };
        let request = Frame {
            markers: offer.markers,
            crc: offer.crc,
            reject: false,
            rev: offer.rev,
            word: enhanced.then_some(word),
        };
        let initiator = Initiator {
            collector: Collector::new(REPLY_KEY, 2),
            rev: offer.rev,
            crc: offer.crc,
            markers: offer.markers,
            ird: offer.ird,
            ord: offer.ord,
            peer_to_peer: offer.peer_to_peer,
        };
        Ok((initiator, request.octets(REQUEST_KEY, offer.private_data)))
    }

    /// Takes octets of the Reply, split in any way.
    pub fn receive(&mut self, octets: &[u8]) -> Result<Progress, StartupError> {
        let (consumed, done) = self.collector.take(octets)?;
        let Some((reply, private_data)) = done else { return Ok(Progress::NeedMore { consumed }) };
        let outcome = self.conclude(&reply, private_data)?;
        Ok(Progress::Done { consumed, outcome })
    }

    fn conclude(&self, reply: &Frame, private_data: Vec<u8>) -> Result<Outcome, StartupError> {
        let peer = PeerParams::of(reply);
        if reply.reject {
            return Ok(Outcome::Rejected(peer, private_data));
        }
        // The Reply must be enhanced if and only if the Request is (MPAE-6, MPAE-38).
        if peer.enhanced != (self.rev == 2) {
            return Err(StartupError::ReplyFormat);
        }
        let mut negotiated = Negotiated {
            role: Role::Initiator,
            rev: reply.rev,
            crc: self.crc || reply.crc,
            tx_markers: reply.markers,
            rx_markers: self.markers,
            ird: self.ird,
            // Our ORD must not exceed the peer's IRD, unless the peer declines to negotiate (MPAE-16, MPAE-20).
            ord: peer.ird.map_or(self.ord, |ird| self.ord.min(ird)),
            rtr: None,
            peer_to_peer: peer.peer_to_peer,
        };
        if peer.ord.is_some_and(|ord| ord > self.ird) {
            return Ok(Outcome::Unacceptable(negotiated, peer, Terminate::INSUFFICIENT_IRD));
        }
        match (self.peer_to_peer, peer.peer_to_peer) {
            (None, None) => {}
            (Some(ours), Some(theirs)) if choose(ours, theirs).is_some() => {
                negotiated.rtr = choose(ours, theirs);
                if negotiated.rtr == Some(Rtr::Read) {
                    // The RTR Read needs a credit like any other Read (MPAE-14).
                    negotiated.ord = negotiated.ord.max(1);
                }
            }
            _ => return Ok(Outcome::Unacceptable(negotiated, peer, Terminate::NO_MATCHING_RTR)),
        }
        Ok(Outcome::Accepted(negotiated, peer, private_data))
    }
}

/// Chooses the least costly of the RTR kinds that both ends know. A Write uses neither a read credit nor a receive
/// request.
fn choose(ours: RtrKinds, theirs: RtrKinds) -> Option<Rtr> {
    if ours.write && theirs.write {
        Some(Rtr::Write)
    } else if ours.read && theirs.read {
        Some(Rtr::Read)
    } else if ours.send && theirs.send {
        Some(Rtr::Send)
    } else {
        None
    }
}
