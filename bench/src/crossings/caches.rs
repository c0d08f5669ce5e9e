//! Models which cores hold which cache lines, in caches of unlimited size.

use std::collections::HashMap;

/// Bytes of a cache line.
const LINE: u64 = 64;

/// Why a cache line moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Move {
    /// A core without the line reads or writes it, and another core wrote it last.
    Fetched,
    /// A core with a copy of the line writes it while other cores have copies, which become invalid.
    Taken,
}

#[derive(Default)]
struct Line {
    /// One bit for each core with a copy.
    holders: u32,
    /// The core that wrote the line last; `None`: no core has written it.
    writer: Option<usize>,
}

/// The lines of all cores.
#[derive(Default)]
pub(super) struct Caches(HashMap<u64, Line>);

impl Caches {
    /// Notes an access of `size` bytes by `core`, and returns the movements that it causes. The access is noted
    /// line by line as the caller takes items, so the caller must use up the iterator.
    pub(super) fn access(
        &mut self,
        core: usize,
        address: u64,
        size: u64,
        writes: bool,
    ) -> impl Iterator<Item = Move> + use<'_> {
        let last = address.saturating_add(size.max(1) - 1) / LINE;
        (address / LINE..=last).filter_map(move |number| {
            let line = self.0.entry(number).or_default();
            let own = 1 << core;
            let moved = if line.holders & own == 0 {
                line.writer.filter(|writer| *writer != core).map(|_| Move::Fetched)
            } else {
                (writes && line.holders != own).then_some(Move::Taken)
            };
            if writes {
                *line = Line { holders: own, writer: Some(core) };
            } else {
                line.holders |= own;
            }
            moved
        })
    }
}

#[cfg(test)]
mod tests;
