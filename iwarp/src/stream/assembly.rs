//! Finds FPDUs in chunks (RFC 5044 §6): by ULPDU_Length, in order, however the stream is split.

use super::inbound::Head;
use crate::outgoing::pad;
use crate::{Budget, Chunk, Markers, Octets};
use std::ops::Range;

/// Most chunks of one FPDU that are held.
const MAX_HELD: usize = 8;

/// Least number of octets that the held chunks must carry on average. Without this limit, a peer that sends
/// octet by octet would pin one frame per octet.
const WORTH_HOLDING: usize = 256;

/// Octets of the largest FPDU with its markers: the most that staging allocates.
const FPDU_MAX: usize = 65544 + 4 * 130;

/// Least number of octets that staging allocates.
const STAGE_MIN: usize = 256;

/// Least number of octets of an FPDU after which the next one is fetched early. The processor's own prefetcher copes
/// with shorter ones.
const WORTH_FORESEEING: usize = 512;

/// Most octets of an FPDU that are fetched early: a segment of Ethernet. The processor's own prefetcher fetches the
/// rest of a longer one in time.
const FORESEEN: usize = 1536;

/// Returns the size in octets of an FPDU with this ULPDU_Length, without markers.
#[inline]
pub fn fpdu_size(ulpdu: u16) -> usize {
    let ulpdu = usize::from(ulpdu);
    2 + ulpdu + pad(ulpdu) + 4
}

/// Returns the FPDU at the start of `octets` and its ULPDU_Length, which is read once; `None` if the FPDU is
/// incomplete.
#[inline]
pub(super) fn whole(octets: Octets<'_>) -> Option<(Octets<'_>, u16)> {
    let ulpdu = u16::from_be_bytes(octets.first_chunk()?);
    Some((octets.get(0..fpdu_size(ulpdu))?, ulpdu))
}

/// Asks the processor to fetch the FPDU after the first one, which is `size` octets long, if there is one. It is
/// probably as long. Another core has written them, so fetching one takes about as long as handling one.
#[inline]
pub(super) fn foresee(octets: Octets<'_>, size: usize) {
    if size >= WORTH_FORESEEING
        && let Some(next) = octets.get(size..octets.len().min(size + size.min(FORESEEN)))
    {
        next.prefetch();
    }
}

/// An FPDU of which some octets have arrived, but not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncompleteFpdu {
    /// Distinguishes this FPDU from other incomplete ones of the same stream.
    pub number: u32,
    /// Octets that it has reserved in the [`Budget`](crate::Budget).
    pub reserved: usize,
}

/// Reason for which a stream has stopped: the thing that it needs before it can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Room in the [`Budget`](crate::Budget).
    Memory,
    /// A posted receive, then a call of [`Stream::take_up_sends`](crate::Stream::take_up_sends).
    Receive,
    /// The end of an invalidation ([`Invalidation::Later`](crate::Invalidation::Later)).
    Invalidation,
}

/// A chunk that the stream has not taken to its end.
#[derive(Debug)]
pub struct Rest<C> {
    /// The whole chunk.
    pub chunk: C,
    /// Octets taken from its start. The rest begins here.
    pub taken: usize,
    /// Reason for which the stream has stopped.
    pub wants: Wants,
}

/// Octets of one incomplete FPDU: first copied octets, then chunks.
#[derive(Debug)]
pub(super) struct Assembly<C> {
    /// Copied octets. Grows as octets arrive, to one FPDU at most; freed with the FPDU.
    staged: Vec<u8>,
    /// Chunks after the staged octets.
    held: Vec<C>,
    /// Octets of the first held chunk that belong to earlier FPDUs.
    skip: usize,
    /// Octets of the FPDU so far, staged and held.
    len: usize,
    /// Octets that the held chunks pin.
    pinned: usize,
    /// Octets that the FPDU has reserved in the budget: its size with markers, and at least [`STAGE_MIN`] if it began
    /// to be kept before its size was known.
    reserved: u32,
    /// Number of the present incomplete FPDU, or of the next one.
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

    /// Returns the budget that all streams share.
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

    /// Returns the incomplete FPDU; `None` if there is none.
    pub(super) fn incomplete(&self) -> Option<IncompleteFpdu> {
        (self.len > 0).then_some(IncompleteFpdu { number: self.number, reserved: self.reserved() })
    }

    #[inline]
    pub(super) fn holds_chunks(&self) -> bool {
        !self.held.is_empty()
    }

    /// Drops the FPDU. Frees the staging memory; the small list of chunks keeps its capacity.
    pub(super) fn clear(&mut self) {
        self.staged = Vec::new();
        self.release_chunks();
        self.len = 0;
        self.budget.give_back(self.reserved());
        self.reserved = 0;
        self.number = self.number.wrapping_add(1);
    }

    /// Returns the end, in `chunk`, of the octets from `from` on that complete the FPDU, and its ULPDU_Length, which is
    /// read once; `None` if the FPDU stays incomplete.
    pub(super) fn completed_by(&self, chunk: &C, from: usize, markers: Markers) -> Option<(usize, u16)> {
        let ulpdu = self.gathered(chunk, from..chunk.len(), markers).ulpdu_len()?;
        let missing = markers.size(fpdu_size(ulpdu)).checked_sub(self.len)?;
        let end = from + missing;
        (end <= chunk.len()).then_some((end, ulpdu))
    }

    /// Keeps the octets of `chunk` from `from` on. Holds the chunk if the held chunks, with this one, are few and carry
    /// enough octets on average, and if the budget lets it be pinned. Otherwise copies the octets of all held chunks
    /// and releases them. The FPDU must stay incomplete with these octets, so the chunk must not be shared.
    ///
    /// Returns the rest of the chunk if the budget has no room for this FPDU. Once the FPDU's size is reserved, every
    /// later octet of the FPDU is kept.
    pub(super) fn keep(&mut self, chunk: C, from: usize, markers: Markers) -> Option<Rest<C>> {
        let len = chunk.len().saturating_sub(from);
        // The size is unknown until both octets of ULPDU_Length have arrived; a marker may precede them.
        let size = match self.gathered(&chunk, from..chunk.len(), markers).ulpdu_len() {
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
        self.len += len;
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

    /// Copies the octets of the held chunks and releases the chunks.
    pub(super) fn stage(&mut self) {
        if self.held.is_empty() {
            return;
        }
        if self.staged.capacity() < self.len {
            let room = self.len.max(2 * self.staged.capacity()).clamp(STAGE_MIN, FPDU_MAX);
            self.staged.reserve_exact(room - self.staged.len());
        }
        for chunk in &self.held {
            self.staged.extend_from_slice(chunk.bytes().get(self.skip..).unwrap_or_default());
            self.skip = 0;
        }
        self.release_chunks();
    }

    fn release_chunks(&mut self) {
        self.held.clear();
        self.budget.unpin(std::mem::take(&mut self.pinned));
    }

    /// Returns the octets of the FPDU so far, followed by the octets `tail` of `chunk`, which may complete it.
    pub(super) fn gathered<'a>(
        &'a self,
        chunk: &'a C,
        tail: Range<usize>,
        markers: Markers,
    ) -> Gathered<'a, C> {
        Gathered { assembly: self, chunk, tail, markers }
    }
}

/// An FPDU in pieces: the assembly's octets, then the octets `tail` of `chunk`, with markers in between. The octets of
/// a shared chunk may differ each time that they are read.
pub(super) struct Gathered<'a, C> {
    assembly: &'a Assembly<C>,
    chunk: &'a C,
    tail: Range<usize>,
    pub(super) markers: Markers,
}

impl<C: Chunk> Gathered<'_, C> {
    /// Returns the octets received, markers included.
    pub(super) fn len(&self) -> usize {
        self.assembly.len + self.tail.len()
    }

    /// Returns ULPDU_Length; `None` if it has not arrived.
    pub(super) fn ulpdu_len(&self) -> Option<u16> {
        let mut length = [0; 2];
        (self.copy_wire(self.markers.wire(0), &mut length) == 2).then(|| u16::from_be_bytes(length))
    }

    /// Calls `f` with each piece of the wire octets in `range`, markers included, and with the piece's offset in the
    /// range. The pieces together have exactly the range's length, as far as the FPDU reaches.
    pub(super) fn wire(&self, range: Range<usize>, mut f: impl FnMut(usize, Octets<'_>)) {
        let mut skip = self.assembly.skip;
        let held = self.assembly.held.iter().map(|chunk| {
            let bytes = chunk.bytes().get(skip..).unwrap_or_default();
            skip = 0;
            bytes
        });
        let mut at = self.tail.start;
        let tail = std::iter::from_fn(|| {
            let piece = self.chunk.piece(at);
            let piece = piece.get(0..piece.len().min(self.tail.end.saturating_sub(at)))?;
            at += piece.len();
            (!piece.is_empty()).then_some(piece)
        });
        let mut start = 0; // offset of the piece in the FPDU
        let kept = std::iter::once(&self.assembly.staged[..]).chain(held).map(Octets::from);
        for piece in kept.chain(tail) {
            let end = start + piece.len();
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to
                && let Some(part) = piece.get(from - start..to - start)
            {
                f(from - range.start, part);
            }
            start = end;
            if start >= range.end {
                break;
            }
        }
    }

    /// Calls `f` with each piece of the FPDU's own octets in `range`, without the markers (MPA-26).
    pub(super) fn pieces(&self, range: Range<usize>, mut f: impl FnMut(usize, Octets<'_>)) {
        let mut at = range.start;
        while at < range.end {
            let run = self.markers.run(at).min(range.end - at);
            let from = self.markers.wire(at);
            self.wire(from..from + run, |within, piece| f(at - range.start + within, piece));
            at += run;
        }
    }

    /// Copies the start of the ULPDU, which has `ulpdu_len` octets, to `head`.
    #[inline]
    pub(super) fn copy_head(&self, ulpdu_len: u16, head: &mut Head) {
        head.fill(ulpdu_len, |head| {
            self.copy(2, head);
        });
    }

    /// Copies the FPDU's own octets from `at` on. Returns how many it copied.
    fn copy(&self, at: usize, out: &mut [u8]) -> usize {
        let mut copied = 0;
        self.pieces(at..at + out.len(), |to, piece| {
            copied += out.get_mut(to..).map_or(0, |out| piece.copy_to(out));
        });
        copied
    }

    /// Copies wire octets from `at` on, markers included. Returns how many it copied.
    pub(super) fn copy_wire(&self, at: usize, out: &mut [u8]) -> usize {
        let mut copied = 0;
        self.wire(at..at + out.len(), |to, piece| {
            copied += out.get_mut(to..).map_or(0, |out| piece.copy_to(out));
        });
        copied
    }
}
