//! What is to be done at a later time for those above the engine.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use urnic_tcp::Time;

use crate::drive::shard::Deed;

struct Entry {
    at: Time,
    /// Keeps those of one time in order.
    number: u64,
    deed: Deed,
}

impl Ord for Entry {
    /// The earliest is the greatest, because the heap gives that first.
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

/// Deeds by time.
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

    /// The next deed due at `now`.
    pub(super) fn due(&mut self, now: Time) -> Option<Deed> {
        match self.entries.peek() {
            Some(entry) if entry.at <= now => self.entries.pop().map(|entry| entry.deed),
            _ => None,
        }
    }

    /// When the next deed is due.
    pub(super) fn next(&self) -> Option<Time> {
        self.entries.peek().map(|entry| entry.at)
    }
}
