//! MPA start-up: Request and Reply frames of revision 1 (RFC 5044 §7.1) and revision 2 (RFC 6581).
//!
//! The [`Initiator`] sends a Request and reads the Reply. The [`Responder`] reads a Request, passes it to its user
//! and sends the user's answer. Both take octets split in any way and keep at most one frame. An accepted Request ends
//! in a [`Negotiated`]. Time-outs are the caller's task (MPA-75, MPA-76). After any [`StartupError`], close the TCP
//! connection.

mod frame;
mod initiator;
mod responder;

pub use initiator::{Initiator, Outcome, Progress};
pub use responder::{Request, Responder};

use crate::Op;
use crate::peers::STAG_OF_NOTHING;
use frame::Frame;

/// Largest Private Data field of a frame, in octets (RFC 5044 §7.1.1).
pub const PRIVATE_DATA_MAX: usize = 512;
/// Largest private data of the user in an enhanced frame, in octets. Four octets of the field carry IRD and ORD
/// (MPAE-4).
pub const ENHANCED_PRIVATE_DATA_MAX: usize = PRIVATE_DATA_MAX - 4;
/// Largest IRD or ORD that can be negotiated (RFC 6581 §9.1).
pub const READS_MAX: u16 = 0x3FFE;

/// Role of one end in the start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sent the Request; sends the first FPDU.
    Initiator,
    /// Sent the Reply; sends nothing before the Initiator's first FPDU has arrived.
    Responder,
}

/// Limits on the Requests that a Responder accepts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Highest accepted MPA revision, 1 or 2. A Request of a higher revision ends the connection (MPA-58, MPAE-8).
    pub max_rev: u8,
    /// Maximum length of the private data of the peer's user, in octets. A Request with more is refused (MPA-90).
    pub max_private_data: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { max_rev: 2, max_private_data: PRIVATE_DATA_MAX }
    }
}

/// Parameters that one end proposes.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// MPA revision of a Request: 1, or 2 to negotiate IRD and ORD. A Reply has the revision of the Request.
    pub rev: u8,
    /// Whether we ask for CRCs. They are used if either end asks (MPA-55). Clear this only on the
    /// administrator's request (MPA-29).
    pub crc: bool,
    /// Whether we ask the peer to put markers into what it sends. The other direction is the peer's choice
    /// (MPA-54).
    pub markers: bool,
    /// Inbound RDMA Reads that we serve at once, at most [`READS_MAX`].
    pub ird: u16,
    /// Outbound RDMA Reads that we want to have outstanding at once, at most [`READS_MAX`].
    pub ord: u16,
    /// The user's private data: at most [`PRIVATE_DATA_MAX`] octets, [`ENHANCED_PRIVATE_DATA_MAX`] in revision 2.
    pub private_data: &'a [u8],
    /// In a Request of revision 2 that asks for the peer-to-peer model: the RTR kinds that we can send. `None`:
    /// client-server model. Ignored in a Reply, because a Responder accepts every request for the peer-to-peer model.
    pub peer_to_peer: Option<RtrKinds>,
}

impl Default for Offer<'_> {
    fn default() -> Self {
        Offer { rev: 2, crc: true, markers: false, ird: 16, ord: 16, private_data: &[], peer_to_peer: None }
    }
}

/// A set of RTR kinds (RFC 6581 §9.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RtrKinds {
    /// Zero-length Send.
    pub send: bool,
    /// Zero-length RDMA Write.
    pub write: bool,
    /// Zero-length RDMA Read.
    pub read: bool,
}

/// The ready-to-receive indication that the Initiator of a peer-to-peer connection sends first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// Zero-length Send.
    Send,
    /// Zero-length RDMA Write.
    Write,
    /// Zero-length RDMA Read. Do not report its [`crate::Delivery::ReadDone`] to the user as a completion (MPAE-34).
    Read,
}

impl Rtr {
    /// Returns the message that carries the indication. Begin this message first, with length 0 (MPAE-27, MPAE-28).
    pub fn op(self) -> Op {
        let stag = STAG_OF_NOTHING;
        match self {
            Rtr::Send => Op::Send { solicited: false, invalidate: None },
            Rtr::Write => Op::Write { stag, to: 0 },
            Rtr::Read => Op::Read { sink_stag: stag, sink_to: 0, src_stag: stag, src_to: 0 },
        }
    }
}

/// The peer's parameters, for the user (MPAE-11, MPAE-18).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerParams {
    /// MPA revision.
    pub rev: u8,
    /// Whether the peer asks for CRCs.
    pub crc: bool,
    /// Whether the peer asks for markers in what we send.
    pub markers: bool,
    /// Whether the frame is enhanced: an enhanced frame carries IRD and ORD.
    pub enhanced: bool,
    /// Inbound reads that the peer serves at once; `None`: not negotiated.
    pub ird: Option<u16>,
    /// Outbound reads that the peer wants to have outstanding; `None`: not negotiated.
    pub ord: Option<u16>,
    /// The RTR kinds of the peer-to-peer model; `None`: client-server model.
    pub peer_to_peer: Option<RtrKinds>,
}

impl PeerParams {
    fn of(frame: &Frame) -> PeerParams {
        let word = frame.word;
        PeerParams {
            rev: frame.rev,
            crc: frame.crc,
            markers: frame.markers,
            enhanced: word.is_some(),
            ird: word.and_then(|w| w.ird),
            ord: word.and_then(|w| w.ord),
            peer_to_peer: word.and_then(|w| w.rtr),
        }
    }
}

/// Parameters that both ends agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Role of our end.
    pub role: Role,
    /// MPA revision.
    pub rev: u8,
    /// Whether CRCs are generated and checked.
    pub crc: bool,
    /// Whether we put markers into what we send.
    pub tx_markers: bool,
    /// Whether the peer puts markers into what we receive.
    pub rx_markers: bool,
    /// Inbound reads that we serve at once.
    pub ird: u16,
    /// Outbound reads that we may have outstanding at once.
    pub ord: u16,
    /// The RTR indication that the Initiator sends first in the peer-to-peer model. `None` at the Responder and in
    /// the client-server model.
    pub rtr: Option<Rtr>,
    /// The RTR kinds of the Reply in the peer-to-peer model. `None` in the client-server model.
    pub peer_to_peer: Option<RtrKinds>,
}

/// Why start-up failed. Close the TCP connection (MPA-81).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartupError {
    /// The first octets are the key neither of the expected frame nor of a Request.
    #[error("the peer does not speak MPA")]
    NotMpa,
    /// Both ends are Initiators (MPA-74).
    #[error("the peer is also an MPA initiator")]
    BothInitiators,
    /// A revision that we do not support (MPA-58).
    #[error("the peer's MPA revision {0} is not supported")]
    Revision(u8),
    /// PD_Length above 512, or an enhanced frame without room for IRD and ORD (MPA-60, MPAE-3).
    #[error("the peer's MPA frame has an invalid private data length of {0}")]
    PrivateDataLength(u16),
    /// More private data than our user accepts (MPA-90).
    #[error("the peer's private data of {len} octets exceeds the limit of {max}")]
    PrivateDataLimit {
        /// Octets that arrived.
        len: usize,
        /// Octets that our user accepts.
        max: usize,
    },
    /// Octets that arrived after the Request and before our Reply (MPA-91).
    #[error("the peer sent octets after its MPA Request without waiting for the Reply")]
    Surplus,
    /// A Reply whose format differs from that of the Request (MPAE-6, MPAE-38).
    #[error("the peer's MPA Reply does not have the format of our Request")]
    ReplyFormat,
    /// Private data of our user that does not fit a frame.
    #[error("private data of {len} octets exceeds the {max} octets that an MPA frame has room for")]
    OwnPrivateData {
        /// Octets that our user gave.
        len: usize,
        /// Octets that fit.
        max: usize,
    },
    /// An [`Offer`] with a revision other than 1 or 2, IRD or ORD above [`READS_MAX`], or peer-to-peer in revision 1 or
    /// without any RTR kind.
    #[error(
        "the offer is not valid: the revision must be 1 or 2, IRD and ORD at most {READS_MAX}, and peer-to-peer needs \
         revision 2 and a kind of RTR"
    )]
    Offer,
    /// A call in the wrong state: no Request has arrived yet, or the Request has been answered already.
    #[error("the call does not fit the state of the MPA start-up")]
    OutOfTurn,
}

impl Offer<'_> {
    /// Checks the parameters that do not depend on the peer.
    fn validate(&self, enhanced: bool) -> Result<(), StartupError> {
        let rtr = self.peer_to_peer.is_none_or(|k| enhanced && (k.send || k.write || k.read));
        if self.ird > READS_MAX || self.ord > READS_MAX || !rtr {
            return Err(StartupError::Offer);
        }
        own_private_data(self.private_data, enhanced)
    }
}

fn own_private_data(data: &[u8], enhanced: bool) -> Result<(), StartupError> {
    let max = if enhanced { ENHANCED_PRIVATE_DATA_MAX } else { PRIVATE_DATA_MAX };
    if data.len() > max {
        return Err(StartupError::OwnPrivateData { len: data.len(), max });
    }
    Ok(())
}
