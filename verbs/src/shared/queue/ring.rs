//! The ring itself.

use std::mem::MaybeUninit;

use crate::shared::sync::atomic::{AtomicU32, Ordering};
use crate::shared::sync::{Cell, Line};

/// A bounded ring of `T` with wrapping 32-bit entry numbers.
///
/// Entry `i` lives in slot `i mod capacity`. The slot's sequence is `i` while it is free for entry `i`,
/// `i + 1` once that is published, and `i + capacity` when it is free again. Each side keeps its own
/// number and never reads the other's, so a slot's cache line is all that the two share.
///
/// Exactly one thread at a time may be the producer ([`push`](Self::push)) and one the consumer
/// ([`peek`](Self::peek), [`release`](Self::release)); the owners of a ring see to that by locks.
/// What the consumer peeked stays valid until it releases the entry.
///
/// Several consumers may share a ring if they agree by other means on one owner for each entry, which gives it back
/// [by itself](Self::release_one).
pub(crate) struct Ring<T> {
    slots: Box<[Slot<T>]>,
    /// The consumer's: the next entry to be released.
    released: Line<AtomicU32>,
}

/// The capacity of a ring for at least `entries`.
pub(crate) fn capacity_for(entries: u32) -> u32 {
    entries.clamp(2, 1 << 30).next_power_of_two()
}

struct Slot<T> {
    sequence: AtomicU32,
    entry: Cell<MaybeUninit<T>>,
}

// SAFETY: a slot's entry is accessed by the producer while its sequence says free and by the consumer
// while it says published; the sequence hands it over with release and acquire.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// A ring for at least `entries`; the capacity is a power of two of at least 2 (with one slot "published"
    /// and "free again" would be the same number).
    pub(crate) fn new(entries: u32) -> Self {
        Self::starting_at(entries, 0)
    }

    /// The same, with `first` as the number of the first entry.
    pub(crate) fn starting_at(entries: u32, first: u32) -> Self {
        let capacity = capacity_for(entries);
        let slots = (0..capacity)
            .map(|i| Slot {
                sequence: AtomicU32::new(first.wrapping_add(i.wrapping_sub(first) & (capacity - 1))),
                entry: Cell::new(MaybeUninit::uninit()),
            })
            .collect();
        Self { slots, released: Line(AtomicU32::new(first)) }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The slot number of an entry, always within the capacity.
    #[inline]
    pub(crate) fn slot_of(&self, index: u32) -> usize {
        index as usize & (self.slots.len() - 1)
    }

    /// Whether the producer may write entry `index`.
    #[inline]
    pub(crate) fn is_free(&self, index: u32) -> bool {
        self.slots[self.slot_of(index)].sequence.load(Ordering::Acquire) == index
    }

    /// Producer: writes and publishes entry `index`. False if its slot is still taken.
    #[inline]
    pub(crate) fn push(&self, index: u32, entry: T) -> bool {
        let written = self.write(index, entry);
        if written {
            self.publish(index);
        }
        written
    }

    /// Producer: writes entry `index`, which nobody sees before it is published. False if its slot is still taken.
    #[inline]
    pub(crate) fn write(&self, index: u32, entry: T) -> bool {
        let slot = &self.slots[self.slot_of(index)];
        if slot.sequence.load(Ordering::Acquire) != index {
            return false;
        }
        // SAFETY: the sequence says that the slot is the producer's.
        slot.entry.with_mut(|place| unsafe { (*place).write(entry) });
        true
    }

    /// Producer: publishes entry `index`, which is written.
    #[inline]
    pub(crate) fn publish(&self, index: u32) {
        self.slots[self.slot_of(index)].sequence.store(index.wrapping_add(1), Ordering::Release);
    }

    /// Consumer: entry `index`, if it is published and not released.
    #[inline]
    pub(crate) fn peek(&self, index: u32) -> Option<&T> {
        let slot = &self.slots[self.slot_of(index)];
        if slot.sequence.load(Ordering::Acquire) != index.wrapping_add(1) {
            return None;
        }
        // SAFETY: published, so it is initialized, and the producer leaves it alone until release.
        Some(slot.entry.with(|place| unsafe { (*place).assume_init_ref() }))
    }

    /// Whether entry `index` is published and not released. Several consumers ask this, since they must not look at an
    /// entry that is not theirs.
    #[inline]
    pub(crate) fn is_published(&self, index: u32) -> bool {
        self.slots[self.slot_of(index)].sequence.load(Ordering::Acquire) == index.wrapping_add(1)
    }

    /// Whether entry `index` was published, even if it was released since. It must be within a capacity of what is.
    #[inline]
    pub(crate) fn was_published(&self, index: u32) -> bool {
        let sequence = self.slots[self.slot_of(index)].sequence.load(Ordering::Acquire);
        sequence.wrapping_sub(index.wrapping_add(1)) as i32 >= 0
    }

    /// One of several consumers, the owner of entry `index`: that is free again, whatever others do with theirs.
    #[inline]
    pub(crate) fn release_one(&self, index: u32) {
        let sequence = &self.slots[self.slot_of(index)].sequence;
        sequence.store(index.wrapping_add(self.capacity()), Ordering::Release);
    }

    /// Consumer: the number of the first entry that is not released.
    #[inline]
    pub(crate) fn released(&self) -> u32 {
        self.released.load(Ordering::Relaxed)
    }

    /// Consumer: all entries up to and including `index` are free again. Entries not published yet, and
    /// entries already released, are left alone.
    #[inline]
    pub(crate) fn release(&self, index: u32) {
        let mut next = self.released.load(Ordering::Relaxed);
        while (index.wrapping_sub(next) as i32) >= 0 {
            let sequence = &self.slots[self.slot_of(next)].sequence;
            if sequence.load(Ordering::Relaxed) != next.wrapping_add(1) {
                break;
            }
            sequence.store(next.wrapping_add(self.capacity()), Ordering::Release);
            next = next.wrapping_add(1);
        }
        self.released.store(next, Ordering::Relaxed);
    }
}
