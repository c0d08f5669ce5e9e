//! What is outstanding, and what became of it: when each part was sent, whether the receiver has said that it holds it
//! (RFC 2018), whether it counts as lost (RFC 8985), and whether it was sent again.
//!
//! The scoreboard keeps runs, not segments: what was sent at the same time, next to each other and with the same fate,
//! is one entry. A transfer without losses has one entry per burst, added at one end and removed at the other. The
//! octets in flight are always known without looking at the entries.

use crate::audit::{Fault, must};
use crate::reassembly::Block;
use crate::seq::Seq;
use crate::time::Time;
use core::ops::Range;
use core::time::Duration;
use std::collections::VecDeque;

#[cfg(test)]
mod tests;

/// Duplicate ACKs, or segments SACKed, that mean loss (RFC 5681 §3.2, RFC 8985 §6.2 step 4).
pub const DUP_THRESH: u32 = 3;

/// SACKed ranges kept per connection; blocks that would need more are ignored, which only costs retransmissions.
const MAX_RANGES: u32 = 1024;
/// A scoreboard that grew beyond this shrinks again when it has been empty for a while.
const IDLE_CAPACITY: usize = 4;

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// In flight, as far as one knows.
    Sent,
    /// The receiver holds it.
    Sacked,
    /// It left the network without arriving.
    Lost,
}

/// Neighbouring octets that share a fate and the time at which they were sent last. They begin where the run before
/// them ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    end: Seq,
    fate: Fate,
    /// Sent more than once.
    again: bool,
    at: Time,
}

/// A transmission: when it was sent, the sequence number after it, and whether it was not the first of its octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// When.
    pub at: Time,
    /// The sequence number after its last octet.
    pub end: Seq,
    /// It was a retransmission.
    pub again: bool,
}

impl Sent {
    /// `self` was sent after `other`, or may have been (RFC 8985 §6.2, RACK_sent_after). Of what is sent at the same time
    /// only what is of one kind is sent in order.
    pub fn after(&self, other: &Sent) -> bool {
        self.at > other.at || (self.at == other.at && (self.again != other.again || self.end.gt(other.end)))
    }
}

/// What an ACK newly tells to have arrived.
#[derive(Clone, Copy, Debug)]
pub struct Delivered {
    /// Octets, ACKed or SACKed.
    pub octets: u32,
    /// Those of them that were SACKed and not ACKed.
    pub sacked: u32,
    /// The transmission among them that was sent last.
    pub newest: Option<Sent>,
    /// Octets below `before` are among them that were sent once only.
    pub original: bool,
    /// When the first of them that were sent more than once were sent last.
    pub again: Option<Time>,
    /// The end of the lowest transmission among them that was sent once only.
    pub lowest_original: Option<Seq>,
    /// The highest end of all.
    pub highest: Option<Seq>,
    /// See `original`.
    before: Seq,
}

impl Delivered {
    /// Nothing yet. `before` bounds what counts as [`original`](Self::original).
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

/// What RACK compares transmissions with (RFC 8985 §6.2 step 5).
#[derive(Clone, Copy, Debug)]
pub struct Yardstick {
    /// The latest transmission that is known to have arrived.
    pub latest: Sent,
    /// What was sent so long ago and before that one is lost: its round-trip time and the reordering window.
    pub patience: Duration,
    /// The present.
    pub now: Time,
}

/// What RACK found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Octets that count as lost in addition.
    pub lost: u32,
    /// Runs among them that had been sent again before.
    pub again: u32,
    /// When what is still given time would be lost.
    pub due: Option<Time>,
}

/// The scoreboard of one connection: a few words while nothing is outstanding.
#[derive(Clone, Debug)]
pub struct Scoreboard {
    runs: VecDeque<Run>,
    /// SND.UNA, where the first run begins.
    una: Seq,
    /// Octets SACKed.
    sacked: u32,
    /// Octets that count as lost and were not sent again since.
    lost: u32,
    /// SACKed ranges.
    ranges: u32,
    /// Nothing below counts as lost.
    lost_from: Seq,
}

impl Scoreboard {
    /// Nothing outstanding, `snd_una` being the next octet to be sent.
    pub fn new(snd_una: Seq) -> Self {
        Scoreboard { runs: VecDeque::new(), una: snd_una, sacked: 0, lost: 0, ranges: 0, lost_from: snd_una }
    }

    /// Octets SACKed and not yet ACKed.
    #[inline]
    pub fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Octets that count as lost and wait to be sent again.
    #[inline]
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// Something is SACKed or counts as lost.
    #[inline]
    pub fn is_disturbed(&self) -> bool {
        self.sacked | self.lost != 0
    }

    /// As many segments are SACKed as mean loss while no reordering was seen (RFC 8985 §6.2 step 4). Three ranges are
    /// three segments, whatever their size.
    pub fn dup_thresh_reached(&self, mss: u32) -> bool {
        self.ranges >= DUP_THRESH || self.sacked > (DUP_THRESH - 1) * mss
    }

    /// Gives memory back that a burst needed.
    pub fn shrink(&mut self) {
        if self.runs.len() <= IDLE_CAPACITY && self.runs.capacity() > IDLE_CAPACITY {
            self.runs.shrink_to(IDLE_CAPACITY);
        }
    }

    /// New octets up to `end` were sent.
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

    /// Everything below `una` is ACKed.
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
        self.una = una;
    }

    /// The receiver discarded octets that it had SACKed: the first octet that it has not ACKed was among them
    /// (RFC 2018 §8). Then all that it SACKed counts as lost.
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

    /// Takes the SACK blocks of an ACK. Blocks that are not within what is outstanding are ignored. Answers the octets
    /// that arrived twice, if the ACK tells of such (RFC 2883).
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

    /// The sequence number after all that is outstanding.
    fn end(&self) -> Seq {
        self.runs.back().map_or(self.una, |r| r.end)
    }

    /// The run that the octet is in, or would be.
    fn find(&self, seq: Seq) -> usize {
        self.runs.partition_point(|r| r.end.le(seq))
    }

    fn start(&self, i: usize) -> Seq {
        i.checked_sub(1).and_then(|i| self.runs.get(i)).map_or(self.una, |r| r.end)
    }

    /// Cuts the run that `seq` is within; answers the run that begins there.
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

    /// The same, but what is SACKed stays in one piece.
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
        // Octets that are SACKed already may reach beyond both ends of the block, others not.
        let at_end = self.find(block.end - 1);
        if self.runs.get(at_end).is_some_and(|r| r.fate != Fate::Sacked) {
            self.split(block.end);
        }
        // Neighbours become one with it.
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

    /// What was sent long enough before the yardstick, and has not arrived, is lost (RFC 8985 §6.2 step 5).
    pub fn detect_lost(&mut self, y: &Yardstick) -> Found {
        let mut found = Found::default();
        let mut start = self.una;
        for run in &mut self.runs {
            let from = core::mem::replace(&mut start, run.end);
            if run.fate != Fate::Sent {
                continue;
            }
            if (Sent { at: run.at, end: run.end, again: run.again }).after(&y.latest) {
                // What follows was sent after it, for the first time or again.
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

    /// The retransmission timer expired: what is not SACKed counts as lost, except what was sent after `recent`; the
    /// first segment in any case (RFC 8985 §6.3).
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

    /// Of `range` what has not arrived is lost, as a router told.
    pub fn lose(&mut self, range: Range<Seq>) {
        if !range.start.lt(range.end) {
            return;
        }
        // What is SACKed stays whole.
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

    /// Nothing was lost after all, it was only late.
    pub fn revive_lost(&mut self) {
        for run in self.runs.iter_mut().filter(|r| r.fate == Fate::Lost) {
            run.fate = Fate::Sent;
        }
        self.lost = 0;
    }

    /// Octets from SND.UNA on that are not SACKed.
    pub fn first_hole(&self) -> u32 {
        let missing = self.runs.iter().take_while(|r| r.fate != Fate::Sacked);
        missing.last().map_or(0, |r| r.end.since(self.una))
    }

    /// The first octets that count as lost, up to the next that do not.
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

    /// For tests: the sums are those of the runs, and the runs lie between SND.UNA and SND.NXT.
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

    /// The octets of `range` were sent again.
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
            // One run with what was sent again just before it.
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

/// The first block tells of a duplicate when it is ACKed or lies within the second (RFC 2883 §5 (1)).
fn duplicate(blocks: &[Block], snd_una: Seq) -> Option<Block> {
    let first = blocks.first().filter(|b| b.start.lt(b.end))?;
    let acked = first.end.le(snd_una);
    let within = blocks.get(1).is_some_and(|second| second.covers(first));
    (acked || within).then_some(*first)
}
