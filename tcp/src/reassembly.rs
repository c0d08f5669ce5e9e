//! Segments that arrived ahead of a hole, and the SACK blocks that tell the sender about them
//! (RFC 9293 §3.10.7.4, RFC 2018, RFC 2883).
//!
//! Frames are held as they came, with the range of their octets that is still wanted; nothing is copied.

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

/// A range of sequence numbers, `start` inclusive, `end` exclusive: one block of the SACK option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// First sequence number.
    pub start: Seq,
    /// The sequence number after the last.
    pub end: Seq,
}

impl Block {
    /// The octets from `start` up to `end`.
    pub fn new(start: Seq, end: Seq) -> Self {
        Block { start, end }
    }

    /// Octets covered; zero if `end` is not after `start`.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u32 {
        self.end.since(self.start)
    }

    /// All of `other` lies inside.
    pub fn covers(&self, other: &Block) -> bool {
        self.start.le(other.start) && other.end.le(self.end)
    }

    /// They overlap or are neighbours.
    fn touches(&self, other: &Block) -> bool {
        self.start.le(other.end) && other.start.le(self.end)
    }
}

/// What became of an out-of-order segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// It brought new octets and is held.
    Held,
    /// All its octets were held already, up to others in the place of some; it was dropped.
    Duplicate,
    /// There is no place for it; it was dropped.
    Full,
}

/// A held frame: the octets `at` of `frame` are the stream's from `start` on.
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

    /// `data`, the stream's from `seq` on, has the same octets wherever both have any.
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
    /// In sequence order, not overlapping, not empty.
    frames: VecDeque<Held<F>>,
    /// The contiguous runs of `frames`, the most recently touched first: what RFC 2018 §4 reports.
    runs: Vec<Block>,
    octets: usize,
}

/// The out-of-order queue of one connection. One word and a half while there is no hole.
#[derive(Debug)]
pub struct Reassembly<F> {
    holes: Option<Box<Holes<F>>>,
    /// The duplicate to report first in the next SACK option (RFC 2883 §4).
    duplicate: Option<Block>,
    limit: u32,
}

impl<F: Frame> Reassembly<F> {
    /// An empty queue that will hold at most `limit` frames.
    pub fn new(limit: u32) -> Self {
        Reassembly { holes: None, duplicate: None, limit }
    }

    /// Nothing is held.
    pub fn is_empty(&self) -> bool {
        self.holes.is_none()
    }

    /// Frames held.
    pub fn len(&self) -> usize {
        self.holes.as_ref().map_or(0, |h| h.frames.len())
    }

    /// Where the highest held frame begins.
    pub fn last(&self) -> Option<Seq> {
        self.holes.as_ref()?.frames.back().map(|f| f.start)
    }

    /// Octets held.
    pub fn octets(&self) -> usize {
        self.holes.as_ref().map_or(0, |h| h.octets)
    }

    /// Takes a segment that starts beyond RCV.NXT: the octets `at` of `frame`, `seq` being the number of the first.
    /// The caller has trimmed it to the receive window. Octets that are held already are trimmed off (held ones win),
    /// held frames that lie wholly inside the new one and have the same octets are dropped for it, and a full queue gives
    /// up its highest frame for one that is nearer to the hole.
    pub fn insert(&mut self, seq: Seq, frame: F, at: Range<usize>) -> Inserted {
        if at.is_empty() {
            return Inserted::Duplicate;
        }
        let holes = self
            .holes
            .get_or_insert_with(|| Box::new(Holes { frames: VecDeque::new(), runs: Vec::new(), octets: 0 }));
        let new = Block::new(seq, seq + at.len() as u32);
        if let Some(i) = holes.runs.iter().position(|r| r.covers(&new)) {
            // Say so, and report its run first (RFC 2883 §4 (3)).
            self.duplicate = Some(new);
            holes.runs[..=i].rotate_right(1);
            return Inserted::Duplicate;
        }
        if let Some(run) = holes.runs.iter().find(|r| r.start.lt(new.end) && new.start.lt(r.end)) {
            self.duplicate = Some(Block::new(run.start.max(new.start), run.end.min(new.end)));
        }
        if holes.frames.len() >= self.limit as usize {
            match holes.frames.back() {
                Some(last) if new.start.lt(last.start) => holes.drop_last(),
                _ => {
                    self.release_if_empty();
                    return Inserted::Full;
                }
            };
        }
        holes.insert(Held { start: seq, at, frame })
    }

    /// How many octets of `data`, the stream's from `seq` on, may be taken: all, or those up to the first held frame
    /// that has others in the same place. Of octets that differ, those that came first count: nobody can change what is
    /// there. (An honest peer sends the same again, in whatever segments.)
    pub fn agreeing(&self, seq: Seq, data: &[u8]) -> usize {
        let end = seq + data.len() as u32;
        let frames = self.holes.iter().flat_map(|h| &h.frames).take_while(|f| f.start.lt(end));
        let differing = frames.filter(|f| f.end().gt(seq)).find(|f| !f.agrees(seq, data));
        differing.map_or(data.len(), |f| f.start.since(seq) as usize)
    }

    /// The next frame in order, now that everything before `rcv_nxt` has arrived: its octets in this range are the
    /// stream's from `rcv_nxt` on. `None` when the next octets are still missing.
    pub fn pop(&mut self, rcv_nxt: Seq) -> Option<(F, Range<usize>)> {
        let holes = self.holes.as_mut()?;
        let mut next = None;
        while holes.frames.front().is_some_and(|first| first.start.le(rcv_nxt)) {
            let Some(first) = holes.frames.pop_front() else { break };
            holes.octets -= first.at.len();
            // An in-order segment may have overlapped it.
            let known = rcv_nxt.since(first.start) as usize;
            if known < first.at.len() {
                next = Some((first.frame, first.at.start + known..first.at.end));
                break;
            }
        }
        // Runs at or below what was just taken are no longer out of order.
        let taken = rcv_nxt + next.as_ref().map_or(0, |(_, at)| at.len() as u32);
        holes.runs.retain_mut(|r| {
            r.start = r.start.max(taken);
            r.start.lt(r.end)
        });
        self.release_if_empty();
        next
    }

    /// A segment brought octets again that lie before RCV.NXT: the next SACK option reports them (RFC 2883 §4).
    pub fn note_duplicate(&mut self, block: Block) {
        self.duplicate = Some(block);
    }

    /// A duplicate is to be reported.
    pub fn has_duplicate(&self) -> bool {
        self.duplicate.is_some()
    }

    /// There is something to report in a SACK option.
    pub fn has_sack(&self) -> bool {
        self.holes.is_some() || self.duplicate.is_some()
    }

    /// The blocks for the SACK option of an ACK, at most `max` of them: a duplicate first (reported once), then the
    /// run of the latest arrival, then the others by recency (RFC 2018 §4).
    pub fn sack_blocks(&mut self, max: usize) -> ArrayVec<Block, MAX_SACK_BLOCKS> {
        let max = max.min(MAX_SACK_BLOCKS);
        let runs = self.holes.iter().flat_map(|h| h.runs.iter().copied());
        self.duplicate.take().into_iter().chain(runs).take(max).collect()
    }

    /// Drops the held frame with the highest sequence number, to give its buffer back. What was only SACKed may be
    /// dropped (RFC 2018 §8); what was ACKed has left this queue. False if nothing is held.
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

    /// For tests: what is held lies behind `rcv_nxt` and before `end`, once each, and is what is reported.
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
    fn insert(&mut self, mut new: Held<F>) -> Inserted {
        // Where it belongs: after every frame that starts before it or with it.
        let i = self.frames.partition_point(|f| f.start.le(new.start));
        if let Some(before) = i.checked_sub(1).and_then(|b| self.frames.get(b)) {
            let known = before.end().since(new.start) as usize;
            if known >= new.at.len() {
                return Inserted::Duplicate;
            }
            new.start += known as u32;
            new.at.start += known;
        }
        // Frames that the new one covers are superseded; one that it reaches into, or that differs, keeps its octets.
        let superseded = |f: &&Held<F>| f.end().le(new.end()) && f.agrees(new.start, new.octets());
        let covered = self.frames.range(i..).take_while(superseded).count();
        for old in self.frames.drain(i..i + covered) {
            self.octets -= old.at.len();
        }
        if let Some(after) = self.frames.get(i) {
            let overlap = new.end().since(after.start) as usize;
            new.at.end -= overlap.min(new.at.len());
            if new.at.is_empty() {
                // Between neighbours there was no place, and the second keeps other octets.
                return Inserted::Duplicate;
            }
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
