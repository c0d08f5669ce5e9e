//! Records that are queued or in flight, and their places in sequence space.

use crate::audit::{Fault, must};
use crate::buffers::{MAX_PIECES, Payload, Piece, UNEVEN};
use crate::seq::Seq;
use arrayvec::ArrayVec;
use std::collections::VecDeque;

/// Capacity to which a queue that has grown shrinks once it is idle.
const IDLE_CAPACITY: usize = 8;

#[derive(Debug)]
struct Record<P> {
    start: Seq,
    len: u32,
    /// Preferred distance of cuts, see [`Payload::unit`]; never zero.
    unit: u16,
    /// Whether the payload is asked for cuts.
    is_uneven: bool,
    payload: P,
}

impl<P: Payload> Record<P> {
    /// Returns the length of the segment at `seq`; see [`RecordQueue::segment_len`]. `rest`: octets of the record
    /// from `seq` on.
    fn cut(&self, seq: Seq, rest: u32, max: u32, train: u32) -> u32 {
        if self.is_uneven {
            let most = max.max(train);
            if self.start == seq && rest <= most {
                return rest;
            }
            return (self.payload.cut(seq.since(self.start) as usize, most as usize) as u32)
                .clamp(1, rest.min(most).max(1));
        }
        let unit = u32::from(self.unit);
        let into = seq.since(self.start) % unit;
        if into == 0 && unit <= max && train > max {
            // Only the last segment of a train may hold less than a unit.
            return if rest <= train { rest } else { train - train % unit };
        }
        rest.min(unit - into).min(max)
    }
}

/// Limits of the segments that are cut from the queue, in octets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Largest segment.
    pub segment: u32,
    /// Largest train: several segments in one frame.
    pub train: u32,
    /// Upper limit of a segment or train: a longer one is not cut at all.
    pub total: u32,
}

/// Records from SND.UNA on, in order and without gaps. Acknowledged records are dropped. The others can be cut into
/// segments any number of times.
#[derive(Debug)]
pub(crate) struct RecordQueue<P> {
    records: VecDeque<Record<P>>,
    /// Sequence number of the next record.
    end: Seq,
    /// Index of the record in which the next cut most likely begins.
    cursor: u32,
}

/// The pieces of one segment.
pub(crate) type Pieces<'a, P> = ArrayVec<Piece<'a, P>, MAX_PIECES>;

impl<P: Payload> RecordQueue<P> {
    pub fn new(start: Seq) -> Self {
        RecordQueue { records: VecDeque::new(), end: start, cursor: 0 }
    }

    /// Returns the sequence number after the last octet.
    #[inline]
    pub fn end(&self) -> Seq {
        self.end
    }

    /// Returns the number of records.
    pub fn records(&self) -> usize {
        self.records.len()
    }

    /// Returns how many records at the end of the queue, newest first, have a payload that satisfies `f`.
    pub fn records_at_end(&self, mut f: impl FnMut(&P) -> bool) -> usize {
        self.records.iter().rev().take_while(|r| f(&r.payload)).count()
    }

    #[inline]
    pub fn push(&mut self, payload: P, len: u32) {
        let (unit, is_uneven) = match payload.unit() {
            0 => (u16::MAX, false),
            unit => (unit, unit == UNEVEN),
        };
        let start = self.end;
        self.end += len;
        // With room, nothing can go wrong here, so that the record need not be in memory before it is in its place.
        if self.records.len() < self.records.capacity() {
            self.records.push_back(Record { start, len, unit, is_uneven, payload });
        } else {
            self.push_slowly(Record { start, len, unit, is_uneven, payload });
        }
    }

    #[cold]
    #[inline(never)]
    fn push_slowly(&mut self, record: Record<P>) {
        self.records.push_back(record);
    }

    /// Drops records that end at or before `una`.
    #[inline]
    pub fn acknowledge(&mut self, una: Seq) {
        while self.records.front().is_some_and(|r| (r.start + r.len).le(una)) {
            self.records.pop_front();
            self.cursor = self.cursor.saturating_sub(1);
        }
        if self.records.is_empty() {
            // The next record then goes to the start of the buffer again, so an idle connection reuses one place.
            self.records.clear();
        }
    }

    /// Returns the place of the first record, and its size in octets.
    pub fn first_place(&self) -> (*const u8, usize) {
        (self.records.as_slices().0.as_ptr().cast(), size_of::<Record<P>>())
    }

    /// Returns the payload of the oldest record.
    #[inline]
    pub fn front(&self) -> Option<&P> {
        self.records.front().map(|r| &r.payload)
    }

    /// Calls `f` with the payload of each record.
    pub fn each_payload(&mut self, mut f: impl FnMut(&mut P)) {
        self.records.iter_mut().for_each(|r| f(&mut r.payload));
    }

    /// Frees memory that only a burst needed.
    pub fn shrink(&mut self) {
        if self.records.len() <= IDLE_CAPACITY && self.records.capacity() > IDLE_CAPACITY {
            self.records.shrink_to(IDLE_CAPACITY);
        }
    }

    #[inline(always)]
    fn find(&self, seq: Seq) -> usize {
        match self.records.get(self.cursor as usize) {
            Some(r) if seq - r.start < r.len => self.cursor as usize,
            _ => self.search(seq),
        }
    }

    #[inline(never)]
    fn search(&self, seq: Seq) -> usize {
        let next = self.cursor as usize + 1;
        match self.records.get(next) {
            Some(r) if seq - r.start < r.len => next,
            _ => self.records.partition_point(|r| r.start.le(seq)).saturating_sub(1),
        }
    }

    /// Returns the unit of the record at `seq`.
    pub fn unit(&self, seq: Seq) -> u16 {
        self.records.get(self.find(seq)).map_or(u16::MAX, |r| r.unit)
    }

    /// Returns the length of the last segment, of at most `max` octets, of the train of `train` octets before `end`.
    pub fn last_segment(&self, end: Seq, train: u32, max: u32) -> u32 {
        let Some(r) = self.records.get(self.find(end - 1)).filter(|r| r.is_uneven) else {
            return (train - 1) % u32::from(self.unit(end - 1)).min(max).max(1) + 1;
        };
        let mut seq = end - train.min(end.since(r.start));
        loop {
            let left = end.since(seq);
            let len = r.cut(seq, left, max, 0);
            if len >= left {
                return left;
            }
            seq += len;
        }
    }

    /// Returns the length of the segment that starts at `seq` and has at most `max` octets: a part or the rest of a
    /// split record, or as many whole records as fit. If `train` allows more, returns the rest of the record, or as
    /// many of its units as fit into `train` octets.
    #[inline]
    pub fn segment_len(&mut self, seq: Seq, max: u32, train: u32) -> u32 {
        let i = self.find(seq);
        self.cursor = i as u32;
        self.len_at(i, seq, max, train)
    }

    /// Like `segment_len`; the record at index `i` contains `seq`.
    fn len_at(&self, i: usize, seq: Seq, max: u32, train: u32) -> u32 {
        let Some(first) = self.records.get(i) else { return 0 };
        let mut len = (first.start + first.len).since(seq);
        if len >= max || first.start != seq {
            return first.cut(seq, len, max, train);
        }
        for next in i + 1..i + MAX_PIECES {
            match self.records.get(next) {
                Some(r) if len + r.len <= max => len += r.len,
                _ => break,
            }
        }
        len
    }

    /// Checks, for tests, that the records follow each other without gaps and that `una` lies in the first one.
    pub fn audit(&self, una: Seq) -> Result<(), Fault> {
        let mut next = self.records.front().map_or(self.end, |r| r.start);
        must!(next.le(una) && una.le(self.end));
        for r in &self.records {
            must!(r.start == next && r.len > 0 && r.unit > 0);
            next += r.len;
            must!(next.gt(una));
        }
        must!(next == self.end);
        Ok(())
    }

    /// Puts the pieces of the segment of `len` octets at `seq` into `pieces`, which is empty. Returns the octets in
    /// them: `len`, or less if the queue is shorter or would need too many pieces.
    #[inline]
    pub fn pieces<'a>(&'a self, seq: Seq, len: u32, pieces: &mut Pieces<'a, P>) -> u32 {
        self.pieces_at(self.find(seq), seq, len, pieces)
    }

    fn pieces_at<'a>(&'a self, i: usize, seq: Seq, len: u32, pieces: &mut Pieces<'a, P>) -> u32 {
        let mut at = seq;
        let mut left = len;
        for i in i.. {
            let Some(r) = self.records.get(i) else { break };
            let from = at.since(r.start);
            let take = r.len.saturating_sub(from).min(left);
            if take == 0 || pieces.is_full() {
                break;
            }
            pieces.push(Piece { payload: &r.payload, range: from as usize..(from + take) as usize });
            at += take;
            left -= take;
        }
        len - left
    }

    /// Combines [`segment_len`](Self::segment_len) and [`pieces`](Self::pieces). Returns the length of the segment
    /// and the unit of its first record. If the segment would be longer than `limits.total`, cuts nothing and returns
    /// zero.
    #[inline(always)]
    pub fn cut<'a>(&'a mut self, seq: Seq, limits: Limits, pieces: &mut Pieces<'a, P>) -> (u32, u16) {
        let Limits { segment, train, total } = limits;
        let i = self.find(seq);
        self.cursor = i as u32;
        let Some(first) = self.records.get(i) else { return (0, 0) };
        // The usual cases: the record fills its segment exactly, or is short and the last one.
        let fills = first.len == segment && segment <= u32::from(first.unit);
        let is_last = first.len < segment && i + 1 == self.records.len();
        let whole = first.start == seq && (fills || is_last);
        let len = if whole { first.len } else { self.len_at(i, seq, segment, train) };
        if len > total {
            return (0, 0);
        }
        if !whole {
            return (self.pieces_at(i, seq, len, pieces), first.unit);
        }
        self.cursor = i as u32 + 1;
        pieces.push(Piece { payload: &first.payload, range: 0..len as usize });
        (len, first.unit)
    }
}

#[cfg(test)]
mod tests;
