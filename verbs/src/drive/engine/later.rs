//! Functions ([`Deed`]s) that the engine calls at a later time for the layers above it.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use urnic_tcp::Time;

use crate::drive::shard::Deed;

struct Entry {
    at: Time,
    /// Keeps the order of entries with the same time.
    number: u64,
    deed: Deed,
}

impl Ord for Entry {
    /// The earliest entry is the greatest, because the heap returns the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

/// Deeds, earliest first.
#[derive(Default)]
pub(super) struct Later {
    entries: BinaryHeap<Entry>,
    next: u64,
}

impl Later {
    pub(super) fn set(&mut self, at: Time, deed: Deed) {
        self.entries.push(Entry { at, number: self.next, deed });
        self.next += 1;
    }

    /// Takes the next deed that is due at `now`.
    pub(super) fn due(&mut self, now: Time) -> Option<Deed> {
        match self.entries.peek() {
            Some(entry) if entry.at <= now => self.entries.pop().map(|entry| entry.deed),
            _ => None,
        }
    }

    /// Returns when the next deed is due; `None` if there is none.
    pub(super) fn next(&self) -> Option<Time> {
        self.entries.peek().map(|entry| entry.at)
    }
}
