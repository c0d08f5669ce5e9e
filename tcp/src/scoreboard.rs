//! What the receiver has said it holds, and what to send next because of it (RFC 6675).
//!
//! The scoreboard keeps ranges, not segments: its work is proportional to their number, and to at most three of them
//! for deciding what is lost.

use crate::reassembly::Block;
use crate::seq::Seq;
use core::ops::Range;

#[cfg(test)]
mod tests;

/// Duplicate ACKs that mean loss (RFC 5681 §3.2).
pub const DUP_THRESH: u32 = 3;

/// Ranges kept per connection; SACK blocks that would need more are ignored, which only costs retransmissions.
const MAX_RANGES: usize = 256;

/// What an ACK's SACK blocks said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// Octets that had not been SACKed before; more than none makes the ACK a duplicate ACK (RFC 6675 §2).
    pub newly_sacked: u32,
    /// The receiver discarded octets that it had SACKed (RFC 2018 §8). All its SACK information was dropped.
    pub reneged: bool,
    /// Octets that arrived twice (RFC 2883).
    pub duplicate: Option<(Seq, Seq)>,
}

/// What to send in recovery (RFC 6675 §4, NextSeg).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextSeg {
    /// Retransmit up to this range (rules 1 and 3), then tell [`Scoreboard::retransmitted`].
    Retransmit(Range<Seq>),
    /// Send one segment of new data (rule 2).
    New,
    /// Retransmit this range (rule 4), once per recovery; HighRxt does not move.
    Rescue(Range<Seq>),
}

/// The scoreboard of one connection: a few words while nothing is SACKed.
#[derive(Clone, Debug)]
pub struct Scoreboard {
    /// SACKed ranges above SND.UNA in order, with unSACKed octets between them.
    sacked: Vec<Block>,
    /// Octets in `sacked`.
    octets: u32,
    /// What is below this and not SACKed is lost (RFC 6675 §4, IsLost); SND.UNA when nothing is.
    lost_below: Seq,
    /// HighACK: SND.UNA of the last update.
    una: Seq,
    /// The end of what was retransmitted in this recovery (HighRxt), exclusive.
    high_rxt: Seq,
    /// A rescue retransmission waits until SND.UNA is above this (RescueRxt, exclusive).
    rescue_rxt: Option<Seq>,
}

impl Scoreboard {
    /// Nothing SACKed, `snd_una` being the first octet that is not ACKed.
    pub fn new(snd_una: Seq) -> Self {
        Scoreboard {
            sacked: Vec::new(),
            octets: 0,
            lost_below: snd_una,
            una: snd_una,
            high_rxt: snd_una,
            rescue_rxt: None,
        }
    }

    /// Nothing is SACKed.
    pub fn is_empty(&self) -> bool {
        self.sacked.is_empty()
    }

    /// Octets SACKed and not yet ACKed.
    pub fn sacked_octets(&self) -> u32 {
        self.octets
    }

    /// Takes an ACK: its SACK blocks in the order of the option, and SND.UNA after it. Blocks that are not within
    /// what is outstanding are ignored (RFC 2883 §5 has use for the first one).
    pub fn update(&mut self, blocks: &[Block], snd_una: Seq, snd_nxt: Seq, mss: u32) -> Update {
        let mut update = Update { duplicate: duplicate(blocks, snd_una), ..Update::default() };
        self.advance(snd_una);
        // A receiver that held what follows SND.UNA would have ACKed it.
        if self.sacked.first().is_some_and(|b| b.start.le(snd_una)) {
            self.forget();
            update.reneged = true;
        }
        let before = self.octets;
        for &block in blocks {
            let (start, end) = (block.start.offset_from(snd_una), block.end.offset_from(snd_una));
            let sane = 0 < start && start < end && end <= snd_nxt.offset_from(snd_una);
            if sane {
                self.insert(block);
            }
        }
        update.newly_sacked = self.octets - before;
        self.find_lost(mss);
        update
    }

    /// Drops what is ACKed.
    fn advance(&mut self, snd_una: Seq) {
        if self.una.lt(snd_una) {
            self.una = snd_una;
            self.high_rxt = self.high_rxt.max(snd_una);
            self.lost_below = self.lost_below.max(snd_una);
        }
        let gone = self.sacked.partition_point(|b| b.end.le(self.una));
        for b in self.sacked.drain(..gone) {
            self.octets -= b.len();
        }
        if self.sacked.is_empty() && self.sacked.capacity() > 0 {
            self.sacked = Vec::new();
        }
    }

    fn insert(&mut self, mut new: Block) {
        // The ranges that the new one touches become one with it.
        let from = self.sacked.partition_point(|b| b.end.lt(new.start));
        let count = self.sacked[from..].iter().take_while(|b| b.start.le(new.end)).count();
        if count == 0 && self.sacked.len() >= MAX_RANGES {
            return;
        }
        let touched = &self.sacked[from..from + count];
        if let (Some(first), Some(last)) = (touched.first(), touched.last()) {
            new = Block::new(new.start.min(first.start), new.end.max(last.end));
            self.octets -= touched.iter().map(Block::len).sum::<u32>();
        }
        self.octets += new.len();
        self.sacked.splice(from..from + count, [new]);
    }

    /// IsLost for all octets at once: it holds below some range and not above it, because what is SACKed above an
    /// octet only shrinks as the octet moves up.
    fn find_lost(&mut self, mss: u32) {
        self.lost_below = self.una;
        let mut octets = 0u32;
        for (ranges, b) in (1..).zip(self.sacked.iter().rev()) {
            octets += b.len();
            if ranges >= DUP_THRESH || octets > (DUP_THRESH - 1) * mss {
                self.lost_below = b.start;
                return;
            }
        }
    }

    /// The octet is not SACKed and presumed lost (RFC 6675 §4, IsLost).
    pub fn is_lost(&self, seq: Seq) -> bool {
        seq.lt(self.lost_below)
    }

    /// Octets from `from` up to `to` that are not SACKed.
    pub fn unsacked_between(&self, from: Seq, to: Seq) -> u32 {
        let sacked: u32 = self.sacked.iter().map(|b| b.end.min(to).since(b.start.max(from))).sum();
        to.since(from) - sacked
    }

    /// The estimate of octets in flight (RFC 6675 §4, SetPipe): (a) not lost, plus (b) retransmitted.
    pub fn pipe(&self, snd_nxt: Seq) -> u32 {
        self.unsacked_between(self.lost_below, snd_nxt) + self.unsacked_between(self.una, self.high_rxt)
    }

    /// Fast retransmit sent the segment that ends at `end` (RFC 6675 §5 (4.3)).
    pub fn enter_recovery(&mut self, end: Seq) {
        self.high_rxt = end;
        self.rescue_rxt = Some(end);
    }

    /// The octets up to `end` were retransmitted (RFC 6675 §5 (C.2)).
    pub fn retransmitted(&mut self, end: Seq) {
        self.high_rxt = self.high_rxt.max(end);
    }

    /// What to send now (RFC 6675 §4, NextSeg), one segment of at most `mss` octets. `new_data`: there is unsent
    /// data and the receiver's window lets it go. `recovery_point`: SND.NXT when recovery began.
    pub fn next_seg(
        &mut self,
        snd_nxt: Seq,
        recovery_point: Seq,
        mss: u32,
        new_data: bool,
    ) -> Option<NextSeg> {
        let hole = self.hole_from(self.high_rxt);
        let retransmit = |r: &Range<Seq>| NextSeg::Retransmit(r.start..r.end.min(r.start + mss));
        match &hole {
            Some(r) if self.is_lost(r.start) => return Some(retransmit(r)), // (1)
            _ if new_data => return Some(NextSeg::New),                     // (2)
            Some(r) => return Some(retransmit(r)),                          // (3)
            None => {}
        }
        // (4)
        if self.rescue_rxt.is_some_and(|r| self.una.le(r)) {
            return None;
        }
        let end = match self.sacked.last() {
            Some(b) if b.end == snd_nxt => b.start,
            _ => snd_nxt,
        };
        let below = self.sacked.iter().rev().find(|b| b.end.le(end)).map_or(self.una, |b| b.end);
        let start = below.max(end - mss.min(end.since(self.una)));
        if start == end {
            return None;
        }
        self.rescue_rxt = Some(recovery_point);
        Some(NextSeg::Rescue(start..end))
    }

    /// The first unSACKed octets at or above `from`, below the highest SACKed one, up to the next SACKed one.
    fn hole_from(&self, from: Seq) -> Option<Range<Seq>> {
        let mut start = from.max(self.una);
        let i = self.sacked.partition_point(|b| b.end.le(start));
        let mut above = self.sacked[i..].iter();
        let mut next = above.next()?;
        if next.start.le(start) {
            start = next.end;
            next = above.next()?;
        }
        Some(start..next.start)
    }

    /// The first octets at or above `from` and below `to` that are not SACKed, up to the next that are.
    pub fn unsacked_from(&self, from: Seq, to: Seq) -> Option<Range<Seq>> {
        let mut start = from.max(self.una);
        let mut above = self.sacked.iter().skip(self.sacked.partition_point(|b| b.end.le(start)));
        let mut next = above.next();
        if let Some(b) = next.filter(|b| b.start.le(start)) {
            start = b.end;
            next = above.next();
        }
        let end = next.map_or(to, |b| b.start.min(to));
        start.lt(end).then_some(start..end)
    }

    /// The retransmission timer expired: the receiver may have reneged, so nothing it SACKed counts any more
    /// (RFC 6675 §5.1, RFC 2018 §8).
    pub fn on_rto(&mut self) {
        self.forget();
    }

    fn forget(&mut self) {
        *self = Scoreboard::new(self.una);
    }
}

/// The first block tells of a duplicate when it is ACKed or lies within the second (RFC 2883 §5 (1)).
fn duplicate(blocks: &[Block], snd_una: Seq) -> Option<(Seq, Seq)> {
    let first = blocks.first().filter(|b| b.start.lt(b.end))?;
    let acked = first.end.le(snd_una);
    let within = blocks.get(1).is_some_and(|second| second.covers(first));
    (acked || within).then_some((first.start, first.end))
}
