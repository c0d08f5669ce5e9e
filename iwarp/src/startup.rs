//! MPA start-up: Request and Reply frames of revision 1 (RFC 5044 §7.1) and revision 2 (RFC 6581).
//!
//! The [`Initiator`] sends a Request and reads the Reply; the [`Responder`] reads a Request, lets its user look at
//! it, and answers. Both take octets in any split, keep at most one frame, and end in a [`Negotiated`]. Time-outs
//! are the caller's (MPA-75, MPA-76). Any [`StartupError`] means: close the TCP connection.

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
/// Largest private data of the user in an enhanced frame, which spends four octets on IRD and ORD (MPAE-4).
pub const ENHANCED_PRIVATE_DATA_MAX: usize = PRIVATE_DATA_MAX - 4;
/// Largest IRD or ORD that can be negotiated (RFC 6581 §9.1).
pub const READS_MAX: u16 = 0x3FFE;

/// Which end of the start-up a node was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sent the Request; sends the first FPDU.
    Initiator,
    /// Sent the Reply; silent until the first FPDU has come.
    Responder,
}

/// Bounds of what a Responder accepts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Highest MPA revision, 1 or 2. A Request of a higher one ends the connection (MPA-58, MPAE-8).
    pub max_rev: u8,
    /// Most private data of the peer's user, in octets; more is refused whole (MPA-90).
    pub max_private_data: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { max_rev: 2, max_private_data: PRIVATE_DATA_MAX }
    }
}

/// What one end brings to the start-up.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// MPA revision of a Request: 1, or 2 to negotiate IRD and ORD. A Reply follows the Request.
    pub rev: u8,
    /// Ask for CRCs. They are used if either end asks (MPA-55). Clear it only on the administrator's request (MPA-29).
    pub crc: bool,
    /// Ask the peer for markers in what it sends. Whether it asks for them in what we send is its own affair (MPA-54).
    pub markers: bool,
    /// Inbound RDMA Reads that we serve at once, at most [`READS_MAX`].
    pub ird: u16,
    /// Outbound RDMA Reads that we would like to have outstanding, at most [`READS_MAX`].
    pub ord: u16,
    /// The user's private data: at most [`PRIVATE_DATA_MAX`] octets, [`ENHANCED_PRIVATE_DATA_MAX`] in revision 2.
    pub private_data: &'a [u8],
    /// A Request for the peer-to-peer model and the RTR kinds that we can send; revision 2 only. Not looked at in
    /// a Reply: a Responder serves any request for it.
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
    /// Zero-length RDMA Read. Its [`crate::Delivery::ReadDone`] is no completion of the user (MPAE-34).
    Read,
}

impl Rtr {
    /// The message to begin, with length 0, before any other (MPAE-27, MPAE-28).
    pub fn op(self) -> Op {
        let stag = STAG_OF_NOTHING;
        match self {
            Rtr::Send => Op::Send { solicited: false, invalidate: None },
            Rtr::Write => Op::Write { stag, to: 0 },
            Rtr::Read => Op::Read { sink_stag: stag, sink_to: 0, src_stag: stag, src_to: 0 },
        }
    }
}

/// What the peer said, for the user (MPAE-11, MPAE-18).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerParams {
    /// MPA revision.
    pub rev: u8,
    /// The peer asks for CRCs.
    pub crc: bool,
    /// The peer asks for markers in what we send.
    pub markers: bool,
    /// The frame carries IRD and ORD.
    pub enhanced: bool,
    /// The peer's inbound reads; `None`: not negotiated.
    pub ird: Option<u16>,
    /// The peer's outbound reads; `None`: not negotiated.
    pub ord: Option<u16>,
    /// The peer-to-peer model and its RTR kinds; `None`: client-server.
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

/// What both ends agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Our end.
    pub role: Role,
    /// MPA revision.
    pub rev: u8,
    /// CRCs are generated and checked.
    pub crc: bool,
    /// We put markers into what we send.
    pub tx_markers: bool,
    /// The peer puts markers into what we receive.
    pub rx_markers: bool,
    /// Inbound reads that we serve at once.
    pub ird: u16,
    /// Outbound reads that we may have outstanding.
    pub ord: u16,
    /// Peer-to-peer: what the Initiator sends first. `None` at the Responder, and in the client-server model.
    pub rtr: Option<Rtr>,
    /// Peer-to-peer: the RTR kinds of the Reply. `None` in the client-server model.
    pub peer_to_peer: Option<RtrKinds>,
}

/// Why start-up failed. Close the connection (MPA-81).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartupError {
    /// The first octets are not the MPA key.
    #[error("the peer does not speak MPA")]
    NotMpa,
    /// Both ends are Initiators (MPA-74).
    #[error("the peer is an MPA initiator, too")]
    BothInitiators,
    /// A revision we cannot work with (MPA-58).
    #[error("the peer's MPA revision {0} is not supported")]
    Revision(u8),
    /// PD_Length above 512, or an enhanced frame without room for IRD and ORD (MPA-60, MPAE-3).
    #[error("the peer's MPA frame has an invalid private data length of {0}")]
    PrivateDataLength(u16),
    /// More private data than the user takes (MPA-90).
    #[error("the peer's private data of {len} octets exceeds the limit of {max}")]
    PrivateDataLimit {
        /// What arrived.
        len: usize,
        /// What the user takes.
        max: usize,
    },
    /// Octets behind the Request, before our Reply (MPA-91).
    #[error("the peer sent octets behind its MPA Request before the Reply")]
    Surplus,
    /// A Reply of another format than the Request (MPAE-6, MPAE-38).
    #[error("the peer's MPA Reply does not have the format of our Request")]
    ReplyFormat,
    /// The user's private data does not fit a frame.
    #[error("private data of {len} octets exceeds the {max} that an MPA frame has room for")]
    OwnPrivateData {
        /// What was given.
        len: usize,
        /// What fits.
        max: usize,
    },
    /// An [`Offer`] with a revision other than 1 or 2, IRD or ORD above [`READS_MAX`], or peer-to-peer in revision 1 or
    /// without any RTR kind.
    #[error("the connection parameters are not valid")]
    Offer,
    /// A call out of turn: no Request yet, or answered already.
    #[error("MPA start-up is not at this step")]
    OutOfTurn,
}

impl Offer<'_> {
    /// Checks what does not depend on the peer.
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
