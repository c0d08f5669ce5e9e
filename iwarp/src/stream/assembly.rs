//! Finding FPDUs in chunks (RFC 5044 §6): by ULPDU_Length, in order, whatever the split.

use crate::outgoing::pad;
use crate::{Budget, Chunk, Markers};
use std::ops::Range;

/// Chunks held of one FPDU, at most.
const MAX_HELD: usize = 8;

/// A held chunk is worth its frame when it holds at least this many octets on average; otherwise a peer that
/// dribbles would pin a frame per octet.
const WORTH_HOLDING: usize = 256;

/// The largest FPDU, with markers: more is never staged.
const FPDU_MAX: usize = 65544 + 4 * 130;

/// Octets that staging starts with.
const STAGE_MIN: usize = 256;

/// Size in octets of an FPDU by its ULPDU_Length, markers not counted.
pub(super) fn fpdu_size(ulpdu: u16) -> usize {
    let ulpdu = usize::from(ulpdu);
    2 + ulpdu + pad(ulpdu) + 4
}

/// The FPDU at the start of `bytes`, if all of it is there, and its ULPDU_Length.
pub(super) fn whole(bytes: &[u8]) -> Option<(&[u8], u16)> {
    let ulpdu = u16::from_be_bytes(*bytes.first_chunk()?);
    Some((bytes.get(..fpdu_size(ulpdu))?, ulpdu))
}

/// An FPDU of which something has arrived, and not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncompleteFpdu {
    /// Tells it from others of its stream that were incomplete.
    pub number: u32,
    /// Octets that it has reserved of the [`Budget`](crate::Budget).
    pub reserved: usize,
}

/// What a stream has stopped for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Room in the [`Budget`](crate::Budget).
    Memory,
    /// A receive, and [`Stream::take_up_sends`](crate::Stream::take_up_sends).
    Receive,
    /// That an invalidation is done ([`Invalidation::Later`](crate::Invalidation::Later)).
    Invalidation,
}

/// A chunk the rest of which the stream cannot take now.
#[derive(Debug)]
pub struct Rest<C> {
    /// All of the chunk.
    pub chunk: C,
    /// Octets that were taken: the rest begins here.
    pub taken: usize,
    /// What it has stopped for.
    pub wants: Wants,
}

/// Octets of one incomplete FPDU: a copied beginning, then chunks.
#[derive(Debug)]
pub(super) struct Assembly<C> {
    /// Copied octets. Grows as octets arrive, never beyond one FPDU; freed with the FPDU.
    staged: Vec<u8>,
    /// Chunks behind the staged octets.
    held: Vec<C>,
    /// Octets of the first held chunk that belong to earlier FPDUs.
    skip: usize,
    /// Octets here, staged and held.
    len: usize,
    /// What the held chunks pin, in octets, and what the FPDU has reserved of the budget: one FPDU at most.
    pinned: usize,
    reserved: u32,
    /// Numbers the FPDUs that were not whole at once.
    number: u32,
    budget: Budget,
}

impl<C> Drop for Assembly<C> {
    fn drop(&mut self) {
        self.budget.unpin(self.pinned);
        self.budget.give_back(self.reserved as usize);
    }
}

impl<C: Chunk> Assembly<C> {
    pub(super) fn new(budget: Budget) -> Self {
        Assembly {
            staged: Vec::new(),
            held: Vec::new(),
            skip: 0,
            len: 0,
            pinned: 0,
            reserved: 0,
            number: 0,
            budget,
        }
    }

    /// That of all streams.
    #[inline]
    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }

    fn reserved(&self) -> usize {
        self.reserved as usize
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the FPDU; `None` if there is none.
    pub(super) fn incomplete(&self) -> Option<IncompleteFpdu> {
        (self.len > 0).then_some(IncompleteFpdu { number: self.number, reserved: self.reserved() })
    }

    #[inline]
    pub(super) fn holds_chunks(&self) -> bool {
        !self.held.is_empty()
    }

    /// Forgets the FPDU. The list of chunks keeps its few words of room, staging memory is freed.
    pub(super) fn clear(&mut self) {
        self.staged = Vec::new();
        self.release_chunks();
        self.len = 0;
        self.budget.give_back(self.reserved());
        self.reserved = 0;
        self.number = self.number.wrapping_add(1);
    }

    /// How many octets of `next` complete the FPDU; `None` if it stays incomplete.
    pub(super) fn completed_by(&self, next: &[u8], markers: Markers) -> Option<usize> {
        let ulpdu = self.gathered(next, markers).ulpdu_len()?;
        let missing = markers.size(fpdu_size(ulpdu)) - self.len;
        (missing <= next.len()).then_some(missing)
    }

    /// Keeps `chunk` from `from` on: itself, or where that is not worth a buffer or not allowed, a copy. Its octets must
    /// leave the FPDU incomplete. Returns the chunk from `from` on if the budget has no room for this FPDU; once it has,
    /// all of the FPDU is kept.
    pub(super) fn keep(&mut self, chunk: C, from: usize, markers: Markers) -> Option<Rest<C>> {
        let octets = &chunk.bytes()[from..];
        // An octet or two may come before its size is known.
        let size = match self.gathered(octets, markers).ulpdu_len() {
            Some(ulpdu) => markers.size(fpdu_size(ulpdu)),
            None => STAGE_MIN,
        };
        if size > self.reserved() {
            if !self.budget.reserve(size - self.reserved()) {
                return Some(Rest { chunk, taken: from, wants: Wants::Memory });
            }
            self.reserved = size as u32;
        }
        if self.held.is_empty() {
            self.skip = from;
        }
        self.len += octets.len();
        let pins = chunk.pins();
        self.held.push(chunk);
        let held = self.len - self.staged.len();
        let worth = self.held.len() <= MAX_HELD && held >= WORTH_HOLDING * self.held.len();
        if worth && self.budget.pin(pins) {
            self.pinned += pins;
        } else {
            self.stage();
        }
        None
    }

    /// Copies what is held and releases the chunks.
    pub(super) fn stage(&mut self) {
        if self.held.is_empty() {
            return;
        }
        if self.staged.capacity() < self.len {
            let room = self.len.max(2 * self.staged.capacity()).clamp(STAGE_MIN, FPDU_MAX);
            self.staged.reserve_exact(room - self.staged.len());
        }
        for chunk in &self.held {
            self.staged.extend_from_slice(&chunk.bytes()[self.skip..]);
            self.skip = 0;
        }
        self.release_chunks();
    }

    fn release_chunks(&mut self) {
        self.held.clear();
        self.budget.unpin(std::mem::take(&mut self.pinned));
    }

    /// The FPDU that `tail` completes.
    pub(super) fn gathered<'a>(&'a self, tail: &'a [u8], markers: Markers) -> Gathered<'a, C> {
        Gathered { assembly: self, tail, markers }
    }
}

/// An FPDU in pieces: the assembly's octets and then `tail`, with markers in between.
pub(super) struct Gathered<'a, C> {
    assembly: &'a Assembly<C>,
    tail: &'a [u8],
    pub(super) markers: Markers,
}

impl<C: Chunk> Gathered<'_, C> {
    /// Octets as they came, markers included.
    pub(super) fn len(&self) -> usize {
        self.assembly.len + self.tail.len()
    }

    /// ULPDU_Length; `None` if it is not here yet.
    pub(super) fn ulpdu_len(&self) -> Option<u16> {
        let mut length = [0; 2];
        (self.copy_wire(self.markers.wire(0), &mut length) == 2).then(|| u16::from_be_bytes(length))
    }

    /// Calls `f` with the octets in `range` of what came, markers included, piece by piece, and where each piece starts
    /// within the range.
    pub(super) fn wire(&self, range: Range<usize>, mut f: impl FnMut(usize, &[u8])) {
        let mut skip = self.assembly.skip;
        let held = self.assembly.held.iter().map(|chunk| {
            let bytes = &chunk.bytes()[skip..];
            skip = 0;
            bytes
        });
        let mut start = 0; // of the piece within the FPDU
        for piece in std::iter::once(&self.assembly.staged[..]).chain(held).chain([self.tail]) {
            let end = start + piece.len();
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                f(from - range.start, &piece[from - start..to - start]);
            }
            start = end;
            if start >= range.end {
                break;
            }
        }
    }

    /// The same for a range of the FPDU's own octets: what lies between the markers (MPA-26).
    pub(super) fn pieces(&self, range: Range<usize>, mut f: impl FnMut(usize, &[u8])) {
        let mut at = range.start;
        while at < range.end {
            let run = self.markers.run(at).min(range.end - at);
            let from = self.markers.wire(at);
            self.wire(from..from + run, |within, piece| f(at - range.start + within, piece));
            at += run;
        }
    }

    /// Copies the FPDU's own octets from `at` on; returns how many there were.
    pub(super) fn copy(&self, at: usize, out: &mut [u8]) -> usize {
        let mut copied = 0;
        self.pieces(at..at + out.len(), |to, piece| {
            out[to..to + piece.len()].copy_from_slice(piece);
            copied += piece.len();
        });
        copied
    }

    /// Copies octets as they came from `at` on; returns how many there were.
    pub(super) fn copy_wire(&self, at: usize, out: &mut [u8]) -> usize {
        let mut copied = 0;
        self.wire(at..at + out.len(), |to, piece| {
            out[to..to + piece.len()].copy_from_slice(piece);
            copied += piece.len();
        });
        copied
    }
}
