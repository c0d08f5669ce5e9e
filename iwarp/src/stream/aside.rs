//! Waiting segments of queue 0: the segments of a message that found no receive request, and all later ones.
//!
//! By RFC 5041 §7.1 (ERR-22) a message without a receive buffer ends the stream. Programs written for
//! InfiniBand rely on its receiver-not-ready retry instead. So a stream may let such messages wait
//! ([`super::Stream::let_sends_wait`]): it copies their segments and serves all other traffic meanwhile. To the
//! peer this looks like a slower network. The order of messages on queue 0 is kept (DDP-24).

use super::inbound::Segment;
use crate::header::UNTAGGED_LEN;
use crate::{Budget, Cause, Fault, Octets};

/// Most octets that wait on one stream, including a [`FRAME`] for each segment. Any single segment fits.
const ROOM: usize = 64 * 1024 + FRAME;

/// Octets before each segment: its length and [`Waiting::written`].
const FRAME: usize = 2 + 4;

/// Smallest reservation, in octets.
const ROOM_MIN: usize = 256;

/// The octets of a ULPDU, in one piece or in several.
pub(super) trait Ulpdu {
    /// Calls `f` with each piece of the ULPDU from octet `from` on, and with the piece's offset relative to `from`. The
    /// pieces together have exactly the ULPDU's length, even if their octets change meanwhile.
    fn pieces(&self, from: usize, f: impl FnMut(u32, Octets<'_>));
}

/// A ULPDU in one piece.
impl Ulpdu for Octets<'_> {
    #[inline]
    fn pieces(&self, from: usize, mut f: impl FnMut(u32, Octets<'_>)) {
        if let Some(piece) = self.get(from..self.len()) {
            f(0, piece);
        }
    }
}

/// A waiting segment.
pub(super) struct Waiting<'a> {
    pub(super) ulpdu: &'a [u8],
    /// Octets of the Write directly before the message, which the receiver of Immediate Data is told; 0 if there is no
    /// such Write, or if this is not the message's last segment.
    pub(super) written: u32,
}

/// Waiting segments in order of arrival.
#[derive(Debug)]
pub(super) struct Aside {
    /// The segments, each after its [`FRAME`].
    octets: Vec<u8>,
    /// Offset in `octets` of the [`FRAME`] before the oldest waiting segment.
    at: usize,
    /// Header and length of the segment that found no receive, for a Terminate.
    unready: ([u8; UNTAGGED_LEN], u16),
    /// Octets reserved in `budget`.
    reserved: usize,
    budget: Budget,
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.budget.give_back_aside(self.reserved);
    }
}

impl Aside {
    /// Starts empty. `first` is the segment that found no receive.
    pub(super) fn new(budget: Budget, first: &Segment<'_>) -> Self {
        Aside { octets: Vec::new(), at: 0, unready: beginning(first), reserved: 0, budget }
    }

    /// Returns whether one more segment fits. If so, reserves memory for it.
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

    /// Appends a segment. The caller must have called [`Self::has_room`]. The head is that of `s`, which has been
    /// checked: in `ulpdu` it may have changed since.
    pub(super) fn push(&mut self, s: &Segment<'_>, ulpdu: &impl Ulpdu, written: u32) {
        self.octets.extend_from_slice(&s.len.to_be_bytes());
        self.octets.extend_from_slice(&written.to_be_bytes());
        self.octets.extend_from_slice(s.head);
        ulpdu.pieces(s.head.len(), |_, piece| piece.append_to(&mut self.octets));
    }

    /// Returns the oldest waiting segment; `None` if none waits.
    pub(super) fn first(&self) -> Option<Waiting<'_>> {
        let (frame, rest) = self.octets.get(self.at..)?.split_first_chunk::<FRAME>()?;
        let &[l0, l1, w0, w1, w2, w3] = frame;
        let ulpdu = rest.get(..u16::from_be_bytes([l0, l1]).into())?;
        Some(Waiting { ulpdu, written: u32::from_be_bytes([w0, w1, w2, w3]) })
    }

    /// Removes the oldest waiting segment.
    pub(super) fn take_first(&mut self) {
        if let Some(Waiting { ulpdu, .. }) = self.first() {
            self.at += FRAME + ulpdu.len();
        }
    }

    /// Notes that the oldest waiting segment found no receive.
    pub(super) fn first_is_unready(&mut self) {
        if let Some(Waiting { ulpdu, .. }) = self.first() {
            self.unready = beginning(&Segment::of(ulpdu));
        }
    }

    /// Returns the fault for a stream that must end because a waiting message found no receive (ERR-22).
    pub(super) fn fault(&self) -> Fault {
        let (head, len) = &self.unready;
        Segment { head, len: *len, opens: false }.untagged(0x02, Cause::NoReceive)
    }
}

fn beginning(s: &Segment<'_>) -> ([u8; UNTAGGED_LEN], u16) {
    (s.head.first_chunk().copied().unwrap_or_default(), s.len)
}
