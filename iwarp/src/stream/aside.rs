//! Segments of queue 0 that wait for a receive, because the message that they begin with has found none.
//!
//! RFC 5041 §7.2 (ERR-22) has a message without a buffer end the stream. Programs written for InfiniBand count on the
//! receiver-not-ready retry instead, so a stream may be told to wait ([`super::Stream::let_sends_wait`]): the segments are
//! copied, and what else arrives is served meanwhile. To the peer this looks as if the network had been slower; the order
//! of messages on queue 0 stays (DDP-24).

use super::inbound::Segment;
use crate::header::UNTAGGED_LEN;
use crate::{Budget, Cause, Fault};

/// Octets of one stream that wait, at most, with [`FRAME`] for each segment: any one segment fits.
const ROOM: usize = 64 * 1024 + FRAME;

/// Octets in front of each segment: its length, and what [`Waiting::written`] says.
const FRAME: usize = 2 + 4;

/// Octets that waiting starts with.
const ROOM_MIN: usize = 256;

/// Octets of a ULPDU, in pieces or in one.
pub(super) trait Octets {
    /// Calls `f` with each piece of the ULPDU from octet `from` on, and where it starts behind that.
    fn pieces(&self, from: usize, f: impl FnMut(u32, &[u8]));
}

/// A ULPDU in one piece.
impl Octets for &[u8] {
    #[inline]
    fn pieces(&self, from: usize, mut f: impl FnMut(u32, &[u8])) {
        f(0, self.get(from..).unwrap_or_default());
    }
}

/// A segment that waits.
pub(super) struct Waiting<'a> {
    pub(super) ulpdu: &'a [u8],
    /// What Immediate Data in it reports of the Write right before it.
    pub(super) written: u32,
}

/// The segments, in order.
#[derive(Debug)]
pub(super) struct Aside {
    /// Each behind its [`FRAME`].
    octets: Vec<u8>,
    /// The first that waits.
    at: usize,
    /// Beginning and length of the segment that has found no receive, for a Terminate.
    unready: ([u8; UNTAGGED_LEN], u16),
    reserved: usize,
    budget: Budget,
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.budget.give_back_aside(self.reserved);
    }
}

impl Aside {
    /// Nothing yet behind `first`, which has found no receive.
    pub(super) fn new(budget: Budget, first: &Segment<'_>) -> Self {
        Aside { octets: Vec::new(), at: 0, unready: beginning(first), reserved: 0, budget }
    }

    /// Whether one more segment fits; makes room for it.
    pub(super) fn has_room(&mut self, s: &Segment<'_>) -> bool {
        let more = FRAME + usize::from(s.len);
        if self.octets.len() - self.at + more > ROOM {
            return false;
        }
        if self.octets.len() + more > ROOM {
            self.octets.drain(..self.at);
            self.at = 0;
        }
        let needed = self.octets.len() + more;
        if needed > self.reserved {
            let room = needed.max(2 * self.reserved).clamp(ROOM_MIN, ROOM);
            if !self.budget.reserve_aside(room - self.reserved) {
                return false;
            }
            self.reserved = room;
            self.octets.reserve_exact(room - self.octets.len());
        }
        true
    }

    /// Adds a segment that [`Self::has_room`] has been asked for.
    pub(super) fn push(&mut self, s: &Segment<'_>, octets: &impl Octets, written: u32) {
        self.octets.extend_from_slice(&s.len.to_be_bytes());
        self.octets.extend_from_slice(&written.to_be_bytes());
        octets.pieces(0, |_, piece| self.octets.extend_from_slice(piece));
    }

    /// The segment whose turn it is.
    pub(super) fn first(&self) -> Option<Waiting<'_>> {
        let (frame, rest) = self.octets.get(self.at..)?.split_first_chunk::<FRAME>()?;
        let &[l0, l1, w0, w1, w2, w3] = frame;
        let ulpdu = rest.get(..u16::from_be_bytes([l0, l1]).into())?;
        Some(Waiting { ulpdu, written: u32::from_be_bytes([w0, w1, w2, w3]) })
    }

    /// That one has been taken.
    pub(super) fn take_first(&mut self) {
        if let Some(Waiting { ulpdu, .. }) = self.first() {
            self.at += FRAME + ulpdu.len();
        }
    }

    /// That one has found no receive.
    pub(super) fn first_is_unready(&mut self) {
        if let Some(Waiting { ulpdu, .. }) = self.first() {
            self.unready = beginning(&Segment::of(ulpdu));
        }
    }

    /// What the stream ends with if it does not wait any longer (ERR-22).
    pub(super) fn fault(&self) -> Fault {
        let (head, len) = &self.unready;
        Segment { head, len: *len }.untagged(0x02, Cause::NoReceive)
    }
}

fn beginning(s: &Segment<'_>) -> ([u8; UNTAGGED_LEN], u16) {
    (s.head.first_chunk().copied().unwrap_or_default(), s.len)
}
