//! Outstanding data and its fate: when each part was sent, whether the receiver has SACKed it (RFC 2018), whether it
//! counts as lost (RFC 8985), and whether it was sent again.
//!
//! The scoreboard keeps runs instead of segments. Octets that are adjacent, were sent at the same time and have the
//! same fate are one entry. A transfer without losses has one entry per burst, added at one end and removed at the
//! other. The octets in flight are always known without looking at the entries.

use crate::audit::{Fault, must};
use crate::reassembly::Block;
use crate::seq::Seq;
use crate::time::Time;
use core::ops::Range;
use core::time::Duration;
use std::collections::VecDeque;

#[cfg(test)]
mod tests;

/// Duplicate ACKs, or SACKed segments, that indicate loss (RFC 5681 §3.2, RFC 8985 §6.2 step 4).
pub const DUP_THRESH: u32 = 3;

/// Most SACKed ranges kept per connection. Blocks that would need more are ignored, which only costs retransmissions.
const MAX_RANGES: u32 = 1024;
/// Capacity, in runs, to which `shrink` reduces a scoreboard that has grown.
const IDLE_CAPACITY: usize = 4;

/// Fate of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Believed to be in flight.
    Sent,
    /// The receiver holds it.
    Sacked,
    /// It is believed to have left the network without arriving.
    Lost,
}

/// Adjacent octets that have the same fate and were last sent at the same time. They begin where the run before them
/// ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    end: Seq,
    fate: Fate,
    /// Sent more than once.
    again: bool,
    at: Time,
}

/// A transmission of a run of octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Time of sending.
    pub at: Time,
    /// Sequence number after its last octet.
    pub end: Seq,
    /// It was a retransmission.
    pub again: bool,
}

impl Sent {
    /// Returns whether `self` was sent after `other`, or may have been (RFC 8985 §6.2, RACK_sent_after).
    /// Transmissions with the same time are known to be in order only if both are new data or both are
    /// retransmissions.
    pub fn after(&self, other: &Sent) -> bool {
        self.at > other.at || (self.at == other.at && (self.again != other.again || self.end.gt(other.end)))
    }
}

/// Octets that an ACK newly reports as arrived.
#[derive(Clone, Copy, Debug)]
pub struct Delivered {
    /// Number of octets, ACKed or SACKed.
    pub octets: u32,
    /// Part of `octets` that was SACKed but not ACKed.
    pub sacked: u32,
    /// The latest transmission among the arrived ones; `None` if nothing arrived.
    pub newest: Option<Sent>,
    /// One of the arrived runs was sent only once and ends at or below `before`.
    pub original: bool,
    /// Time of the last transmission of the first arrived run that was sent more than once; `None` if no such run
    /// arrived.
    pub again: Option<Time>,
    /// End of the lowest arrived run that was sent only once; `None` if no such run arrived.
    pub lowest_original: Option<Seq>,
    /// End of the highest arrived run; `None` if nothing arrived.
    pub highest: Option<Seq>,
    /// Sequence number up to which octets can count as [`original`](Self::original).
    before: Seq,
}

impl Delivered {
    /// Makes an empty report. Only octets below `before` can count as [`original`](Self::original).
    #[inline]
    pub fn new(before: Seq) -> Self {
        Delivered {
            octets: 0,
            sacked: 0,
            newest: None,
            original: false,
            again: None,
            lowest_original: None,
            highest: None,
            before,
        }
    }

    #[inline]
    fn note(&mut self, run: &Run, end: Seq, octets: u32) {
        self.octets += octets;
        let sent = Sent { at: run.at, end, again: run.again };
        if self.newest.is_none_or(|n| sent.after(&n)) {
            self.newest = Some(sent);
        }
        if run.again {
            self.again = self.again.or(Some(run.at));
        } else {
            self.original |= end.le(self.before);
            self.lowest_original = Some(self.lowest_original.map_or(end, |l| l.min(end)));
        }
        self.highest = Some(self.highest.map_or(end, |h| h.max(end)));
    }
}

/// The values with which RACK compares transmissions (RFC 8985 §6.2 step 5).
#[derive(Clone, Copy, Debug)]
pub struct RackReference {
    /// The latest transmission that is known to have arrived.
    pub latest: Sent,
    /// Time from the sending of a segment until it counts as lost, if it was sent before `latest`: the round-trip time
    /// of `latest` plus the reordering window.
    pub patience: Duration,
    /// The present time.
    pub now: Time,
}

/// Result of loss detection by RACK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Octets newly found lost.
    pub lost: u32,
    /// Number of newly lost runs that were retransmissions.
    pub again: u32,
    /// Time by which all segments sent before [`RackReference::latest`] will count as lost unless they arrive;
    /// `None` if none of them is in flight.
    pub due: Option<Time>,
}

/// The scoreboard of one connection. While nothing is outstanding it has no runs, but keeps the memory for them until
/// [`shrink`](Self::shrink), which leaves room for a few.
#[derive(Clone, Debug)]
pub struct Scoreboard {
    runs: VecDeque<Run>,
    /// SND.UNA, where the first run begins.
    una: Seq,
    /// Octets SACKed.
    sacked: u32,
    /// Octets that count as lost and were not sent again since.
    lost: u32,
    /// Number of SACKed ranges.
    ranges: u32,
    /// Lower limit of the octets that count as lost: `next_lost` searches from here on.
    lost_from: Seq,
}

impl Scoreboard {
    /// Makes a scoreboard with nothing outstanding. `snd_una` is the next octet to be sent.
    pub fn new(snd_una: Seq) -> Self {
        Scoreboard { runs: VecDeque::new(), una: snd_una, sacked: 0, lost: 0, ranges: 0, lost_from: snd_una }
    }

    /// Returns the octets that are SACKed and not ACKed.
    #[inline]
    pub fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Returns the octets that count as lost and wait to be sent again.
    #[inline]
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// Returns whether any octets are SACKed or count as lost.
    #[inline]
    pub fn is_disturbed(&self) -> bool {
        self.sacked | self.lost != 0
    }

    /// Returns whether enough segments are SACKed to indicate loss as long as no reordering was seen (RFC 8985 §6.2
    /// step 4). Three ranges are at least three segments, whatever their size.
    pub fn dup_thresh_reached(&self, mss: u32) -> bool {
        self.ranges >= DUP_THRESH || self.sacked > (DUP_THRESH - 1) * mss
    }

    /// Frees memory that only a burst needed.
    pub fn shrink(&mut self) {
        if self.runs.len() <= IDLE_CAPACITY && self.runs.capacity() > IDLE_CAPACITY {
            self.runs.shrink_to(IDLE_CAPACITY);
        }
    }

    /// Returns the memory address of the first run, and its size in octets, for prefetching.
    pub fn first_place(&self) -> (*const u8, usize) {
        (self.runs.as_slices().0.as_ptr().cast(), size_of::<Run>())
    }

    /// Notes that new octets up to `end` were sent.
    #[inline]
    pub fn sent(&mut self, end: Seq, now: Time) {
        if let Some(last) = self.runs.back_mut()
            && last.at == now
            && last.fate == Fate::Sent
            && !last.again
        {
            last.end = end;
            return;
        }
        self.runs.push_back(Run { end, fate: Fate::Sent, again: false, at: now });
    }

    /// Notes that everything below `una` is ACKed.
    #[inline]
    pub fn acknowledge(&mut self, una: Seq, delivered: &mut Delivered) {
        while let Some(&run) = self.runs.front() {
            let end = run.end.min(una);
            let octets = end.since(self.una);
            match run.fate {
                Fate::Sent if octets > 0 => delivered.note(&run, end, octets),
                Fate::Lost if octets > 0 => {
                    self.lost -= octets;
                    delivered.note(&run, end, octets);
                }
                Fate::Sacked => self.sacked -= octets,
                Fate::Sent | Fate::Lost => {}
            }
            self.una = end;
            if run.end.gt(una) {
                return;
            }
            self.ranges -= u32::from(run.fate == Fate::Sacked);
            self.runs.pop_front();
        }
        // No run is left. Clearing moves the start of the queue back, so the next run goes to the start of the memory.
        self.runs.clear();
        self.una = una;
    }

    /// Handles reneging: the receiver has discarded octets that it had SACKed. This shows when the first octet that
    /// is not ACKed is a SACKed one (RFC 2018 §8). Then all SACKed octets count as lost. Returns whether that
    /// happened.
    pub fn drop_reneged(&mut self) -> bool {
        if self.runs.front().is_none_or(|r| r.fate != Fate::Sacked) {
            return false;
        }
        for run in self.runs.iter_mut().filter(|r| r.fate == Fate::Sacked) {
            run.fate = Fate::Lost;
        }
        self.lost += core::mem::take(&mut self.sacked);
        self.ranges = 0;
        self.lost_from = self.una;
        true
    }

    /// Takes the SACK blocks of an ACK. Ignores blocks outside of the outstanding data. Returns the octets that the
    /// ACK reports to have arrived twice; `None` if there are none (RFC 2883).
    pub fn sack(&mut self, blocks: &[Block], delivered: &mut Delivered) -> Option<Block> {
        let outstanding = self.end().offset_from(self.una);
        for &block in blocks {
            let (start, end) = (block.start.offset_from(self.una), block.end.offset_from(self.una));
            if 0 < start && start < end && end <= outstanding {
                self.insert(block, delivered);
            }
        }
        duplicate(blocks, self.una)
    }

    /// Returns the sequence number after the outstanding data.
    fn end(&self) -> Seq {
        self.runs.back().map_or(self.una, |r| r.end)
    }

    /// Returns the index of the run that contains `seq`, or would contain it.
    fn find(&self, seq: Seq) -> usize {
        self.runs.partition_point(|r| r.end.le(seq))
    }

    fn start(&self, i: usize) -> Seq {
        i.checked_sub(1).and_then(|i| self.runs.get(i)).map_or(self.una, |r| r.end)
    }

    /// Cuts the run that contains `seq`. Returns the index of the run that begins there.
    fn split(&mut self, seq: Seq) -> usize {
        let i = self.find(seq);
        if let Some(&run) = self.runs.get(i)
            && self.start(i).lt(seq)
        {
            self.runs.insert(i, Run { end: seq, ..run });
            return i + 1;
        }
        i
    }

    /// Like `split`, but leaves a SACKed run in one piece.
    fn split_unless_sacked(&mut self, seq: Seq) -> usize {
        let i = self.find(seq);
        if self.runs.get(i).is_some_and(|r| r.fate == Fate::Sacked) { i } else { self.split(seq) }
    }

    fn insert(&mut self, block: Block, delivered: &mut Delivered) {
        let first = self.find(block.start);
        let Some(run) = self.runs.get(first) else { return };
        let known = run.fate == Fate::Sacked;
        if known && block.end.le(run.end) {
            return;
        }
        if !known && self.ranges >= MAX_RANGES {
            return;
        }
        let mut i = if known { first } else { self.split(block.start) };
        // A run that is SACKed already may reach beyond one end of the block. Other runs are cut there.
        let at_end = self.find(block.end - 1);
        if self.runs.get(at_end).is_some_and(|r| r.fate != Fate::Sacked) {
            self.split(block.end);
        }
        // Merges adjacent SACKed runs.
        if i > 0 && self.runs.get(i - 1).is_some_and(|r| r.fate == Fate::Sacked) {
            i -= 1;
        }
        let (from, mut start) = (i, self.start(i));
        let mut last = start;
        let mut joined = 0;
        while let Some(run) = self.runs.get_mut(i) {
            if run.fate == Fate::Sacked {
                if start.gt(block.end) {
                    break;
                }
                joined += 1;
            } else {
                if start.ge(block.end) {
                    break;
                }
                let octets = run.end.since(start);
                self.lost -= if run.fate == Fate::Lost { octets } else { 0 };
                self.sacked += octets;
                delivered.sacked += octets;
                delivered.note(run, run.end, octets);
            }
            start = run.end;
            last = run.end;
            i += 1;
        }
        if let Some(run) = self.runs.get_mut(from) {
            (run.end, run.fate) = (last, Fate::Sacked);
            self.runs.drain(from + 1..i);
            self.ranges = self.ranges + 1 - joined;
        }
    }

    /// Marks as lost the octets that have not arrived, were sent before `y.latest`, and were sent at least
    /// `y.patience` ago (RFC 8985 §6.2 step 5).
    pub fn detect_lost(&mut self, y: &RackReference) -> Found {
        let mut found = Found::default();
        let mut start = self.una;
        for run in &mut self.runs {
            let from = core::mem::replace(&mut start, run.end);
            if run.fate != Fate::Sent {
                continue;
            }
            if (Sent { at: run.at, end: run.end, again: run.again }).after(&y.latest) {
                // All later runs were sent after this one, whether as new data or as retransmissions.
                if !run.again && run.at > y.latest.at {
                    break;
                }
                continue;
            }
            let deadline = run.at + y.patience;
            if deadline > y.now {
                found.due = found.due.max(Some(deadline));
                continue;
            }
            if self.lost + found.lost == 0 || from.lt(self.lost_from) {
                self.lost_from = from;
            }
            found.lost += run.end.since(from);
            found.again += u32::from(run.again);
            run.fate = Fate::Lost;
        }
        self.lost += found.lost;
        found
    }

    /// Handles the retransmission timeout. All octets that are not SACKed count as lost, except those that were sent
    /// after `recent`. The first run counts as lost in any case (RFC 8985 §6.3: the first segment).
    pub fn on_timeout(&mut self, recent: Time) {
        let mut start = self.una;
        for (i, run) in self.runs.iter_mut().enumerate() {
            let from = core::mem::replace(&mut start, run.end);
            if run.fate == Fate::Sent && (i == 0 || run.at <= recent) {
                run.fate = Fate::Lost;
                self.lost += run.end.since(from);
            }
        }
        self.lost_from = self.una;
    }

    /// Marks as lost the octets of `range` that have not arrived, because a router reported them as too large.
    pub fn lose(&mut self, range: Range<Seq>) {
        if !range.start.lt(range.end) {
            return;
        }
        // A SACKed run stays whole.
        for end in [range.start, range.end] {
            if self.runs.get(self.find(end)).is_some_and(|r| r.fate == Fate::Sent) {
                self.split(end);
            }
        }
        let mut i = self.find(range.start);
        let mut start = self.start(i);
        while let Some(run) = self.runs.get_mut(i)
            && start.lt(range.end)
        {
            let from = core::mem::replace(&mut start, run.end);
            if run.fate == Fate::Sent {
                run.fate = Fate::Lost;
                self.lost += run.end.since(from);
            }
            i += 1;
        }
        self.lost_from = self.lost_from.min(range.start).max(self.una);
    }

    /// Marks all lost octets as in flight again, because they were only late.
    pub fn revive_lost(&mut self) {
        for run in self.runs.iter_mut().filter(|r| r.fate == Fate::Lost) {
            run.fate = Fate::Sent;
        }
        self.lost = 0;
    }

    /// Returns the number of octets from SND.UNA up to the first SACKed one, or up to the end of the outstanding data
    /// if none is SACKed.
    pub fn first_hole(&self) -> u32 {
        let missing = self.runs.iter().take_while(|r| r.fate != Fate::Sacked);
        missing.last().map_or(0, |r| r.end.since(self.una))
    }

    /// Returns the first contiguous octets that count as lost; `None` if there are none.
    pub fn next_lost(&mut self) -> Option<Range<Seq>> {
        if self.lost == 0 {
            return None;
        }
        let mut i = self.find(self.lost_from.max(self.una));
        while self.runs.get(i).is_some_and(|r| r.fate != Fate::Lost) {
            i += 1;
        }
        let start = self.start(i);
        let lost = self.runs.range(i.min(self.runs.len())..).take_while(|r| r.fate == Fate::Lost);
        let end = lost.last()?.end;
        self.lost_from = start;
        Some(start..end)
    }

    /// Checks, for tests, that the sums match the runs and that the runs lie between SND.UNA and SND.NXT.
    pub(crate) fn audit(&self, una: Seq, nxt: Seq) -> Result<(), Fault> {
        must!(self.una == una && self.end() == nxt);
        let (mut start, mut sacked, mut lost, mut ranges) = (una, 0, 0, 0);
        let mut before = None;
        for run in &self.runs {
            must!(start.lt(run.end));
            let octets = run.end - start;
            match run.fate {
                Fate::Sent => {}
                Fate::Sacked => (sacked, ranges) = (sacked + octets, ranges + 1),
                Fate::Lost => lost += octets,
            }
            must!(run.fate != Fate::Lost || start.ge(self.lost_from.max(una)));
            must!(run.fate != Fate::Sacked || before != Some(Fate::Sacked));
            before = Some(run.fate);
            start = run.end;
        }
        must!((sacked, lost, ranges) == (self.sacked, self.lost, self.ranges));
        must!(ranges <= MAX_RANGES);
        Ok(())
    }

    /// Notes that the octets of `range` were sent again.
    pub fn sent_again(&mut self, range: Range<Seq>, now: Time) {
        if !range.start.lt(range.end) {
            return;
        }
        let mut i = self.split_unless_sacked(range.start);
        self.split_unless_sacked(range.end);
        let mut start = range.start;
        while let Some(run) = self.runs.get_mut(i)
            && start.lt(range.end)
        {
            let from = core::mem::replace(&mut start, run.end);
            if run.fate == Fate::Sacked {
                i += 1;
                continue;
            }
            self.lost -= if run.fate == Fate::Lost { run.end.since(from) } else { 0 };
            *run = Run { end: run.end, fate: Fate::Sent, again: true, at: now };
            let same = *run;
            // Merge with the run sent again just before it.
            match i.checked_sub(1).and_then(|before| self.runs.get_mut(before)) {
                Some(before) if before.fate == Fate::Sent && before.again && before.at == now => {
                    before.end = same.end;
                    self.runs.remove(i);
                }
                _ => i += 1,
            }
        }
    }
}

/// Returns the first block if it reports a duplicate: it is ACKed, or it lies within the second block (RFC 2883
/// §5).
fn duplicate(blocks: &[Block], snd_una: Seq) -> Option<Block> {
    let first = blocks.first().filter(|b| b.start.lt(b.end))?;
    let acked = first.end.le(snd_una);
    let within = blocks.get(1).is_some_and(|second| second.covers(first));
    (acked || within).then_some(*first)
}
