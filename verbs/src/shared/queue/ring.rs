//! A ring whose entries may be released in any order.

use std::mem::MaybeUninit;

use crate::shared::sync::Cell;
use crate::shared::sync::atomic::{AtomicU32, Ordering};

/// A bounded ring of `T` with wrapping 32-bit entry numbers.
///
/// Entry `i` is in slot `i mod capacity`. The slot's sequence is `i` while it is free for entry `i`, `i + 1` once
/// that entry is published, and `i + capacity` when the slot is free again. Each side keeps its own number and never
/// reads the other's, so that the two share only a slot's cache line.
///
/// At any time only one thread may be the producer ([`write`](Self::write), [`publish`](Self::publish)), and only one
/// the consumer ([`peek`](Self::peek), [`release`](Self::release)). The owners of a ring ensure that by locks. A peeked
/// entry stays valid until the consumer releases it.
///
/// There is one exception: several consumers may share a ring if they agree by other means on one owner for each entry.
pub(crate) struct Ring<T: Entry> {
    slots: Box<[Slot<T>]>,
}

/// The content of a ring's slots.
pub(crate) trait Entry: Copy {
    /// A type that determines the slots' minimum alignment.
    type Align: Send;
}

/// A cache line, as the alignment of slots.
#[repr(align(64))]
pub(crate) struct CacheLine;

/// Returns the capacity of a ring for at least `entries`.
pub(crate) fn capacity_for(entries: u32) -> u32 {
    entries.clamp(2, 1 << 30).next_power_of_two()
}

pub(super) struct Slot<T: Entry> {
    pub(super) _align: [T::Align; 0],
    pub(super) sequence: AtomicU32,
    pub(super) entry: Cell<MaybeUninit<T>>,
}

impl<T: Entry> Slot<T> {
    /// Publishes entry `index`, which has been written here.
    #[inline]
    pub(super) fn publish(&self, index: u32) {
        self.sequence.store(index.wrapping_add(1), Ordering::Release);
    }

    /// Returns entry `index` if it is published here.
    #[inline]
    pub(super) fn peek(&self, index: u32) -> Option<&T> {
        if self.sequence.load(Ordering::Acquire) != index.wrapping_add(1) {
            return None;
        }
        // SAFETY: the entry is published, so it is initialized, and the producer leaves it alone until it is
        // released.
        Some(self.entry.with(|place| unsafe { (*place).assume_init_ref() }))
    }
}

// SAFETY: the producer accesses a slot's entry while its sequence marks it as free, the consumer while it is marked
// as published. The sequence hands the entry over with release and acquire.
unsafe impl<T: Entry + Send> Sync for Ring<T> {}

impl<T: Entry> Ring<T> {
    /// Makes a ring for at least `entries`. The capacity is a power of two, and at least 2: with a single slot, the
    /// sequence would be the same for "published" and "free again".
    pub(crate) fn new(entries: u32) -> Self {
        Self::starting_at(entries, 0)
    }

    /// Makes a ring whose first entry has the number `first`.
    pub(crate) fn starting_at(entries: u32, first: u32) -> Self {
        let capacity = capacity_for(entries);
        let slots = (0..capacity)
            .map(|i| Slot {
                _align: [],
                sequence: AtomicU32::new(first.wrapping_add(i.wrapping_sub(first) & (capacity - 1))),
                entry: Cell::new(MaybeUninit::uninit()),
            })
            .collect();
        Self { slots }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the slot number of an entry, always within the capacity.
    #[inline]
    pub(crate) fn slot_of(&self, index: u32) -> usize {
        index as usize & (self.slots.len() - 1)
    }

    /// Returns whether the producer may write entry `index`.
    #[inline]
    pub(crate) fn is_free(&self, index: u32) -> bool {
        self.slots[self.slot_of(index)].sequence.load(Ordering::Acquire) == index
    }

    /// Producer: writes and publishes entry `index`. Returns false if its slot is still taken.
    #[cfg(test)]
    pub(crate) fn push(&self, index: u32, entry: T) -> bool {
        let written = self.write(index, entry);
        if written {
            self.publish(index);
        }
        written
    }

    /// Producer: writes entry `index`, which is invisible until it is published. Returns false if its slot is still
    /// taken.
    #[inline]
    pub(crate) fn write(&self, index: u32, entry: T) -> bool {
        let slot = &self.slots[self.slot_of(index)];
        if slot.sequence.load(Ordering::Acquire) != index {
            return false;
        }
        // SAFETY: the sequence says that the slot belongs to the producer.
        slot.entry.with_mut(|place| unsafe { (*place).write(entry) });
        true
    }

    /// Producer: publishes entry `index`, which has been written.
    #[inline]
    pub(crate) fn publish(&self, index: u32) {
        self.slots[self.slot_of(index)].publish(index);
    }

    /// Consumer: returns entry `index` if it is published and not released.
    #[inline]
    pub(crate) fn peek(&self, index: u32) -> Option<&T> {
        self.slots[self.slot_of(index)].peek(index)
    }

    /// Returns whether entry `index` is published and not released. This is for rings with several consumers, which
    /// must not look at entries of others.
    #[inline]
    pub(crate) fn is_published(&self, index: u32) -> bool {
        self.slots[self.slot_of(index)].sequence.load(Ordering::Acquire) == index.wrapping_add(1)
    }

    /// Returns whether entry `index` was published, even if it has been released since. `index` must be within one
    /// capacity of the ring's present entries, because the numbers wrap: the distance of two numbers tells their order
    /// only if they are close.
    #[inline]
    pub(crate) fn was_published(&self, index: u32) -> bool {
        let sequence = self.slots[self.slot_of(index)].sequence.load(Ordering::Acquire);
        sequence.wrapping_sub(index.wrapping_add(1)) as i32 >= 0
    }

    /// Consumer, or the owner of entry `index` among several: frees the entry, which is published.
    #[inline]
    pub(crate) fn release(&self, index: u32) {
        let sequence = &self.slots[self.slot_of(index)].sequence;
        sequence.store(index.wrapping_add(self.capacity()), Ordering::Release);
    }
}
