//! Layout of Request and Reply frames (RFC 5044 §7.1.1, RFC 6581 §6 and §9).

use super::{PRIVATE_DATA_MAX, RtrKinds, StartupError};

pub(super) const REQUEST_KEY: &[u8; 16] = b"MPA ID Req Frame";
pub(super) const REPLY_KEY: &[u8; 16] = b"MPA ID Rep Frame";
/// Octets before the Private Data.
pub(super) const FIXED_LEN: usize = 20;

const M: u8 = 0x80;
const C: u8 = 0x40;
const R: u8 = 0x20;
const S: u8 = 0x10;

const PEER_TO_PEER: u32 = 0x8000_0000;
const RTR_SEND: u32 = 0x4000_0000;
const RTR_WRITE: u32 = 0x0000_8000;
const RTR_READ: u32 = 0x0000_4000;
/// Value of IRD or ORD that declines negotiation.
const NO_NEGOTIATION: u16 = 0x3FFF;

/// The word with IRD and ORD that precedes the user's private data in an enhanced frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// Inbound and outbound Reads at once; `None`: the sender declines to negotiate.
    pub(super) ird: Option<u16>,
    pub(super) ord: Option<u16>,
    /// RTR kinds of the peer-to-peer model; `None`: client-server model.
    pub(super) rtr: Option<RtrKinds>,
}

impl Word {
    fn parse(octets: [u8; 4]) -> Word {
        let word = u32::from_be_bytes(octets);
        let reads = |v: u32| {
            let v = v as u16 & NO_NEGOTIATION;
            (v != NO_NEGOTIATION).then_some(v)
        };
        // The flags B, C and D have no meaning unless flag A is set (MPAE-30).
        let rtr = (word & PEER_TO_PEER != 0).then_some(RtrKinds {
            send: word & RTR_SEND != 0,
            write: word & RTR_WRITE != 0,
            read: word & RTR_READ != 0,
        });
        Word { ird: reads(word >> 16), ord: reads(word), rtr }
    }

    fn octets(&self) -> [u8; 4] {
        let reads = |v: Option<u16>| u32::from(v.unwrap_or(NO_NEGOTIATION) & NO_NEGOTIATION);
        let flags = self.rtr.map_or(0, |k| {
            PEER_TO_PEER
                | if k.send { RTR_SEND } else { 0 }
                | if k.write { RTR_WRITE } else { 0 }
                | if k.read { RTR_READ } else { 0 }
        });
        (flags | reads(self.ird) << 16 | reads(self.ord)).to_be_bytes()
    }
}

/// A Request or Reply without its private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) markers: bool,
    pub(super) crc: bool,
    pub(super) reject: bool,
    pub(super) rev: u8,
    /// `None`: the frame is not enhanced.
    pub(super) word: Option<Word>,
}

impl Frame {
    /// Returns the octets of the frame. The caller has checked that `private_data` fits.
    pub(super) fn octets(&self, key: &[u8; 16], private_data: &[u8]) -> Vec<u8> {
        let word = self.word.map(|w| w.octets());
        let word = word.as_ref().map_or(&[][..], |w| &w[..]);
        let flags = if self.markers { M } else { 0 }
            | if self.crc { C } else { 0 }
            | if self.reject { R } else { 0 }
            | if self.word.is_some() { S } else { 0 };
        let pd_len = (word.len() + private_data.len()) as u16;
        [&key[..], &[flags, self.rev], &pd_len.to_be_bytes(), word, private_data].concat()
    }
}

/// A frame and the private data of its user.
pub(super) type Received = (Frame, Vec<u8>);

/// Collects the octets of one frame.
#[derive(Debug)]
pub(super) struct Collector {
    key: &'static [u8; 16],
    /// Highest supported revision.
    max_rev: u8,
    octets: Vec<u8>,
}

impl Collector {
    pub(super) fn new(key: &'static [u8; 16], max_rev: u8) -> Collector {
        Collector { key, max_rev, octets: Vec::new() }
    }

    /// Takes octets up to the end of the frame. Returns how many it took, and the frame with its user's private data
    /// once the frame is whole. Reports an error as soon as the octets show it, so a peer without MPA is usually
    /// detected at its first octet.
    pub(super) fn take(&mut self, input: &[u8]) -> Result<(usize, Option<Received>), StartupError> {
        let fixed = self.fill(input, FIXED_LEN);
        let key = self.octets.len().min(self.key.len());
        if self.octets[..key] != self.key[..key] {
            let request = REQUEST_KEY.starts_with(&self.octets[..key]);
            return Err(if request { StartupError::BothInitiators } else { StartupError::NotMpa });
        }
        let Some(&[.., flags, rev, pd_high, pd_low]) = self.octets.first_chunk::<FIXED_LEN>() else {
            return Ok((fixed, None));
        };
        // Ignores the Res bits (MPA-57). In revision 1, the S bit is reserved as well (MPAE-40).
        if !(1..=self.max_rev.min(2)).contains(&rev) {
            return Err(StartupError::Revision(rev));
        }
        let enhanced = rev >= 2 && flags & S != 0;
        let pd_len = u16::from_be_bytes([pd_high, pd_low]);
        if usize::from(pd_len) > PRIVATE_DATA_MAX || enhanced && pd_len < 4 {
            return Err(StartupError::PrivateDataLength(pd_len));
        }
        let taken = fixed + self.fill(&input[fixed..], FIXED_LEN + usize::from(pd_len));
        let private_data = &self.octets[FIXED_LEN..];
        if private_data.len() < pd_len.into() {
            return Ok((taken, None));
        }
        let (word, private_data) = match private_data.split_first_chunk::<4>() {
            Some((word, rest)) if enhanced => (Some(Word::parse(*word)), rest),
            _ => (None, private_data),
        };
        let frame = Frame { markers: flags & M != 0, crc: flags & C != 0, reject: flags & R != 0, rev, word };
        Ok((taken, Some((frame, private_data.to_vec()))))
    }

    /// Copies from `input` until `self.octets` holds `len` octets. Returns how many octets it took.
    fn fill(&mut self, input: &[u8], len: usize) -> usize {
        let n = len.saturating_sub(self.octets.len()).min(input.len());
        self.octets.extend_from_slice(&input[..n]);
        n
    }
}
