//! Segments that arrived beyond a gap, and the SACK blocks that report them to the sender (RFC 9293 §3.10.7.4, RFC
//! 2018, RFC 2883).
//!
//! Frames are held as they arrived, with the range of their octets that is still needed. Nothing is copied.

use crate::audit::{Fault, must};
use crate::buffers::Frame;
use crate::seq::Seq;
use arrayvec::ArrayVec;
use core::ops::Range;
use std::collections::VecDeque;

#[cfg(test)]
mod tests;

/// Most SACK blocks that fit into the options of a segment without timestamps (RFC 2018 §3).
pub const MAX_SACK_BLOCKS: usize = 4;

/// One block of the SACK option: the sequence numbers from `start` (inclusive) to `end` (exclusive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// First sequence number.
    pub start: Seq,
    /// Sequence number after the last one.
    pub end: Seq,
}

impl Block {
    /// Makes the block from `start` up to `end`.
    pub fn new(start: Seq, end: Seq) -> Self {
        Block { start, end }
    }

    /// Returns the octets covered; zero if `end` is not after `start`.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u32 {
        self.end.since(self.start)
    }

    /// Returns whether all of `other` lies inside this block.
    pub fn covers(&self, other: &Block) -> bool {
        self.start.le(other.start) && other.end.le(self.end)
    }

    /// Returns whether the blocks overlap or are adjacent.
    fn touches(&self, other: &Block) -> bool {
        self.start.le(other.end) && other.start.le(self.end)
    }
}

/// Outcome of inserting an out-of-order segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The segment has new octets and is held.
    Held,
    /// The segment was dropped, because none of its octets can be held: each was received before, or lies at or beyond
    /// the start of a held frame whose octets differ.
    Duplicate,
    /// The segment was dropped, because there is no place for it.
    Full,
}

/// A held frame. The octets `at` of `frame` are the stream's octets from `start` on.
#[derive(Debug)]
struct Held<F> {
    start: Seq,
    at: Range<usize>,
    frame: F,
}

impl<F: Frame> Held<F> {
    fn octets(&self) -> &[u8] {
        self.frame.bytes().get(self.at.clone()).unwrap_or(&[])
    }

    /// Returns whether `data`, which starts at `seq`, has the same octets wherever both overlap.
    fn agrees(&self, seq: Seq, data: &[u8]) -> bool {
        let (mine, theirs) = (seq.since(self.start) as usize, self.start.since(seq) as usize);
        let mine = self.octets().get(mine..).unwrap_or(&[]);
        let theirs = data.get(theirs..).unwrap_or(&[]);
        let len = mine.len().min(theirs.len());
        mine.get(..len) == theirs.get(..len)
    }
}

impl<F> Held<F> {
    fn end(&self) -> Seq {
        self.start + self.at.len() as u32
    }

    fn block(&self) -> Block {
        Block::new(self.start, self.end())
    }
}

#[derive(Debug)]
struct Holes<F> {
    /// The held frames, in sequence order, not overlapping, not empty.
    frames: VecDeque<Held<F>>,
    /// The contiguous runs of `frames`, the most recently changed one first, as RFC 2018 §4 reports them.
    runs: Vec<Block>,
    octets: usize,
}

/// The out-of-order queue of one connection. It takes 24 octets, and no allocated memory, while there is no gap.
#[derive(Debug)]
pub struct Reassembly<F> {
    holes: Option<Box<Holes<F>>>,
    /// Duplicate to report first in the next SACK option (RFC 2883 §4).
    duplicate: Option<Block>,
    limit: u32,
}

impl<F: Frame> Reassembly<F> {
    /// Makes an empty queue that holds at most `limit` frames.
    pub fn new(limit: u32) -> Self {
        Reassembly { holes: None, duplicate: None, limit }
    }

    /// Returns whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.holes.is_none()
    }

    /// Returns the number of held frames.
    pub fn len(&self) -> usize {
        self.holes.as_ref().map_or(0, |h| h.frames.len())
    }

    /// Returns the start of the highest held frame; `None` if nothing is held.
    pub fn last(&self) -> Option<Seq> {
        self.holes.as_ref()?.frames.back().map(|f| f.start)
    }

    /// Returns the number of held octets.
    pub fn octets(&self) -> usize {
        self.holes.as_ref().map_or(0, |h| h.octets)
    }

    /// Inserts a segment that starts beyond RCV.NXT: the octets `at` of `frame`, of which the first has the number
    /// `seq`. The caller has trimmed the segment to the receive window. Octets that are already held are cut off the
    /// start of the new segment. Held frames that lie inside the new segment and have the same octets are dropped, and
    /// the new frame takes their place. The first held frame that lies only partly inside, or that differs, stays: the
    /// new segment is cut off where this frame starts, and loses its octets beyond this frame too. A full queue that
    /// needs a place drops its highest frame if the new one is nearer to the gap.
    pub fn insert(&mut self, seq: Seq, frame: F, at: Range<usize>) -> Inserted {
        if at.is_empty() {
            return Inserted::Duplicate;
        }
        let holes = self
            .holes
            .get_or_insert_with(|| Box::new(Holes { frames: VecDeque::new(), runs: Vec::new(), octets: 0 }));
        let new = Block::new(seq, seq + at.len() as u32);
        if let Some(i) = holes.runs.iter().position(|r| r.covers(&new)) {
            // Report the duplicate, and report its run first (RFC 2883 §4 (4)).
            self.duplicate = Some(new);
            holes.runs[..=i].rotate_right(1);
            return Inserted::Duplicate;
        }
        if let Some(run) = holes.runs.iter().find(|r| r.start.lt(new.end) && new.start.lt(r.end)) {
            self.duplicate = Some(Block::new(run.start.max(new.start), run.end.min(new.end)));
        }
        let inserted = holes.insert(Held { start: seq, at, frame }, self.limit as usize);
        self.release_if_empty();
        inserted
    }

    /// Returns how many octets of `data`, which starts at `seq`, may be taken: all, or those up to the first held
    /// frame that has different octets in the same place. The octets that came first stay, so nobody can change data
    /// that is already received. (An honest peer that retransmits sends the same octets, even if it cuts them
    /// into segments differently.)
    pub fn agreeing(&self, seq: Seq, data: &[u8]) -> usize {
        let end = seq + data.len() as u32;
        let frames = self.holes.iter().flat_map(|h| &h.frames).take_while(|f| f.start.lt(end));
        let differing = frames.filter(|f| f.end().gt(seq)).find(|f| !f.agrees(seq, data));
        differing.map_or(data.len(), |f| f.start.since(seq) as usize)
    }

    /// Returns the next frame in order, once everything before `rcv_nxt` has arrived. The returned range of its
    /// octets is the stream's data from `rcv_nxt` on. `None`: the next octets are still missing.
    pub fn pop(&mut self, rcv_nxt: Seq) -> Option<(F, Range<usize>)> {
        let holes = self.holes.as_mut()?;
        let mut next = None;
        while holes.frames.front().is_some_and(|first| first.start.le(rcv_nxt)) {
            let Some(first) = holes.frames.pop_front() else { break };
            holes.octets -= first.at.len();
            // An in-order segment may have overlapped this one.
            let known = rcv_nxt.since(first.start) as usize;
            if known < first.at.len() {
                next = Some((first.frame, first.at.start + known..first.at.end));
                break;
            }
        }
        // Runs at or below the returned octets are no longer out of order.
        let taken = rcv_nxt + next.as_ref().map_or(0, |(_, at)| at.len() as u32);
        holes.runs.retain_mut(|r| {
            r.start = r.start.max(taken);
            r.start.lt(r.end)
        });
        self.release_if_empty();
        next
    }

    /// Notes a segment that repeated octets below RCV.NXT. The next SACK option reports them (RFC 2883 §4).
    pub fn note_duplicate(&mut self, block: Block) {
        self.duplicate = Some(block);
    }

    /// Forgets the duplicate unless its octets lie before RCV.NXT or are held. RFC 2883 §4 (1) reports only duplicates
    /// of the last segment, but segments with data carry no SACK option, and so a duplicate may wait. Once RCV.NXT has
    /// moved on by 2^31 octets, the duplicate seems to lie beyond RCV.NXT, and the sender would believe that octets had
    /// arrived which it has not even sent. The same is true if octets that were received are dropped.
    pub fn forget_old_duplicate(&mut self, rcv_nxt: Seq) {
        let runs = self.holes.iter().flat_map(|h| &h.runs);
        let is_true = |d: &Block| d.end.le(rcv_nxt) || runs.into_iter().any(|r| r.covers(d));
        self.duplicate = self.duplicate.filter(is_true);
    }

    /// Returns whether a duplicate waits to be reported.
    pub fn has_duplicate(&self) -> bool {
        self.duplicate.is_some()
    }

    /// Returns whether there is anything to report in a SACK option.
    pub fn has_sack(&self) -> bool {
        self.holes.is_some() || self.duplicate.is_some()
    }

    /// Returns the blocks for the SACK option of an ACK, at most `max`: first a duplicate (reported once), then the
    /// run of the latest arrival, then the other runs by recency (RFC 2018 §4).
    pub fn sack_blocks(&mut self, max: usize) -> ArrayVec<Block, MAX_SACK_BLOCKS> {
        let max = max.min(MAX_SACK_BLOCKS);
        let runs = self.holes.iter().flat_map(|h| h.runs.iter().copied());
        self.duplicate.take().into_iter().chain(runs).take(max).collect()
    }

    /// Drops the held frame with the highest sequence number, to free its buffer. Octets that were only SACKed may be
    /// dropped (RFC 2018 §8); octets that were ACKed have left this queue. Returns `false` if nothing is held.
    pub fn drop_newest(&mut self) -> bool {
        let dropped = self.holes.as_mut().is_some_and(|h| h.drop_last());
        self.release_if_empty();
        dropped
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.holes = None;
        self.duplicate = None;
    }

    /// Checks, for tests, that held octets lie between `rcv_nxt` and `end`, are held once each, and are exactly those
    /// that SACK reports.
    pub(crate) fn audit(&self, rcv_nxt: Seq, end: Seq) -> Result<(), Fault> {
        let Some(holes) = &self.holes else { return Ok(()) };
        must!(!holes.frames.is_empty() && holes.frames.len() <= self.limit as usize);
        let mut runs: Vec<Block> = Vec::new();
        for f in &holes.frames {
            must!(!f.at.is_empty() && f.octets().len() == f.at.len());
            must!(f.start.gt(rcv_nxt) && f.end().le(end));
            match runs.last_mut() {
                Some(run) if run.end == f.start => run.end = f.end(),
                last => {
                    must!(last.is_none_or(|run| run.end.lt(f.start)));
                    runs.push(f.block());
                }
            }
        }
        must!(holes.octets == holes.frames.iter().map(|f| f.at.len()).sum::<usize>());
        must!(runs.len() == holes.runs.len() && runs.iter().all(|r| holes.runs.contains(r)));
        Ok(())
    }

    fn release_if_empty(&mut self) {
        if self.holes.as_ref().is_some_and(|h| h.frames.is_empty()) {
            self.holes = None;
        }
    }
}

impl<F: Frame> Holes<F> {
    fn insert(&mut self, mut new: Held<F>, limit: usize) -> Inserted {
        // The place of the new frame: after every frame that starts before it or at the same octet.
        let i = self.frames.partition_point(|f| f.start.le(new.start));
        if let Some(before) = i.checked_sub(1).and_then(|b| self.frames.get(b)) {
            let known = before.end().since(new.start) as usize;
            if known >= new.at.len() {
                return Inserted::Duplicate;
            }
            new.start += known as u32;
            new.at.start += known;
        }
        // Drops the frames that the new one covers with the same octets. A frame that is covered only in part, or
        // that differs, keeps its octets.
        let superseded = |f: &&Held<F>| f.end().le(new.end()) && f.agrees(new.start, new.octets());
        let covered = self.frames.range(i..).take_while(superseded).count();
        for old in self.frames.drain(i..i + covered) {
            self.octets -= old.at.len();
        }
        if self.frames.get(i).is_some_and(|after| after.start == new.start) {
            // The frame before the new one ends where `after` begins, and `after` stays because its octets differ.
            // So there is no gap between these two for the new frame.
            return Inserted::Duplicate;
        }
        if self.frames.len() >= limit {
            if i == self.frames.len() {
                return Inserted::Full;
            }
            self.drop_last();
        }
        if let Some(after) = self.frames.get(i) {
            let overlap = new.end().since(after.start) as usize;
            new.at.end -= overlap.min(new.at.len());
        }
        self.octets += new.at.len();
        let mut run = new.block();
        self.frames.insert(i, new);
        self.runs.retain(|r| {
            let joined = r.touches(&run);
            if joined {
                run = Block::new(r.start.min(run.start), r.end.max(run.end));
            }
            !joined
        });
        self.runs.insert(0, run);
        Inserted::Held
    }
}

impl<F> Holes<F> {
    fn drop_last(&mut self) -> bool {
        let Some(last) = self.frames.pop_back() else { return false };
        self.octets -= last.at.len();
        let end = last.start;
        self.runs.retain_mut(|r| {
            r.end = r.end.min(end);
            r.start.lt(r.end)
        });
        true
    }
}
