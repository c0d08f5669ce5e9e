//! A ring whose entries are released in order.

use std::mem::MaybeUninit;

use super::ring::{Entry, Slot, capacity_for};
use crate::shared::prefetch::prefetch_for_writing;
use crate::shared::sync::Cell;
use crate::shared::sync::atomic::{AtomicU32, Ordering};

/// A bounded ring like [`Ring`](super::Ring), whose consumer releases entries in the order of their numbers.
///
/// One number therefore tells which slots are free. The producer reads it only when it has used up the [`Room`] that
/// it knows of. The consumer does not write the entries' slots. If the producer and the consumer are on
/// different cores, the cache line of a slot moves to each of them once per entry; in a [`Ring`](super::Ring)
/// it moves there twice, for reading and for writing.
///
/// At any time only one thread may be the producer ([`write`](Self::write), [`publish`](Self::publish)), and only one
/// the consumer ([`peek`](Self::peek), [`release_until`](Self::release_until)). The owners of a ring ensure that by
/// locks. A peeked entry stays valid until the consumer releases it.
pub(crate) struct OrderedRing<T: Entry> {
    /// One slot more than the capacity. Entry `i` is in slot `i mod capacity`, and is published when the slot's
    /// sequence is `i + 1`. The last slot has no entry: its sequence is the number of the first entry that is not
    /// released.
    slots: Box<[Slot<T>]>,
}

/// The producer's knowledge of a ring's free slots. It belongs to one ring.
#[derive(Debug)]
pub(crate) struct Room {
    /// The number of the first entry that may have no free slot.
    end: AtomicU32,
}

impl Room {
    /// Takes over the room `by` of a new ring, which replaces the ring that this room belongs to.
    pub(crate) fn replace(&self, by: &Room) {
        self.end.store(by.end.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

// SAFETY: the producer accesses only slots of entries that are not yet published and whose former entries are released:
// it stays less than `capacity` entries ahead of the first entry that is not released. The consumer accesses only slots
// of published entries that are not released. The sequences hand over an entry with release and acquire, and the number
// of the first entry that is not released hands back slots in the same way.
unsafe impl<T: Entry + Send> Sync for OrderedRing<T> {}

impl<T: Entry> OrderedRing<T> {
    /// Makes a ring for at least `entries`, whose first entry has the number 0.
    pub(crate) fn new(entries: u32) -> Self {
        Self::starting_at(entries, 0)
    }

    /// Makes a ring whose first entry has the number `first`.
    pub(crate) fn starting_at(entries: u32, first: u32) -> Self {
        let capacity = capacity_for(entries);
        let slot = |sequence| Slot {
            _align: [],
            sequence: AtomicU32::new(sequence),
            entry: Cell::new(MaybeUninit::uninit()),
        };
        // The sequence `i` of the slot for entry `i` means that this entry is not published.
        let unpublished = |i: u32| first.wrapping_add(i.wrapping_sub(first) & (capacity - 1));
        Self { slots: (0..capacity).map(unpublished).chain([first]).map(slot).collect() }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.slots.len() as u32 - 1
    }

    /// Returns the slot number of an entry, always within the capacity.
    #[inline]
    pub(crate) fn slot_of(&self, index: u32) -> usize {
        index as usize & (self.slots.len() - 2)
    }

    /// Returns the place of the number of the first entry that is not released.
    #[inline]
    fn first(&self) -> &AtomicU32 {
        &self.slots[self.slots.len() - 1].sequence
    }

    /// Returns the room of a ring's producer.
    pub(crate) fn room(&self) -> Room {
        Room { end: AtomicU32::new(self.released().wrapping_add(self.capacity())) }
    }

    /// Producer: returns whether entry `index`, which must be the next one, may be written.
    #[inline]
    pub(crate) fn is_free(&self, index: u32, room: &Room) -> bool {
        index != room.end.load(Ordering::Relaxed) || self.has_more(index, room)
    }

    /// Looks how far the consumer has come.
    #[cold]
    fn has_more(&self, index: u32, room: &Room) -> bool {
        let end = self.first().load(Ordering::Acquire).wrapping_add(self.capacity());
        room.end.store(end, Ordering::Relaxed);
        index != end
    }

    /// Producer: writes and publishes entry `index`, which must be the next one. Returns false if the ring is full.
    #[inline]
    pub(crate) fn push(&self, index: u32, entry: T, room: &Room) -> bool {
        let written = self.write(index, entry, room);
        if written {
            self.publish(index);
        }
        written
    }

    /// Producer: writes entry `index`, which must be the next one, and which is invisible until it is published.
    /// Returns false if the ring is full.
    #[inline]
    pub(crate) fn write(&self, index: u32, entry: T, room: &Room) -> bool {
        if !self.is_free(index, room) {
            return false;
        }
        // SAFETY: there is room for the entry, so the slot belongs to the producer.
        self.slots[self.slot_of(index)].entry.with_mut(|place| unsafe { (*place).write(entry) });
        true
    }

    /// Producer: fetches the cache line of the slot of entry `index`, for writing. `index` may be up to `capacity`
    /// entries ahead of the next one. Does nothing if the producer does not know that the slot is free, because the
    /// consumer may still want the line.
    #[inline]
    pub(crate) fn fetch_slot(&self, index: u32, room: &Room) {
        let left = room.end.load(Ordering::Relaxed).wrapping_sub(index);
        if (1..=self.capacity()).contains(&left) {
            prefetch_for_writing(&raw const self.slots[self.slot_of(index)]);
        }
    }

    /// Producer: publishes entry `index`, which has been written.
    #[inline]
    pub(crate) fn publish(&self, index: u32) {
        self.slots[self.slot_of(index)].publish(index);
    }

    /// Consumer: returns entry `index`, which must not have been released, if it is published.
    #[inline]
    pub(crate) fn peek(&self, index: u32) -> Option<&T> {
        debug_assert!(index.wrapping_sub(self.released()) <= self.capacity(), "the entry was released");
        self.slots[self.slot_of(index)].peek(index)
    }

    /// Returns the number of the first entry that is not released. For the consumer the number is exact; for others it
    /// may be too low.
    #[inline]
    pub(crate) fn released(&self) -> u32 {
        self.first().load(Ordering::Relaxed)
    }

    /// Consumer: releases the entries before `end`, which are published.
    #[inline]
    pub(crate) fn release_until(&self, end: u32) {
        self.first().store(end, Ordering::Release);
    }
}
