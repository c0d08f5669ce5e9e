//! The receive queue of a queue pair or a shared receive queue.

use std::cell::UnsafeCell;

use super::{Entry, Ring, WrNumber, elements};
use crate::shared::error::PostError;
use crate::shared::sync::{Line, SpinGuard, SpinLock};
use crate::shared::wr::{RecvWr, Sge};

#[derive(Clone, Copy, Debug)]
struct RecvEntry {
    wr_id: u64,
    length: u32,
    num_sge: u8,
    /// The scatter-gather list, if it has at most one element.
    only: [Sge; 1],
}

impl Entry for RecvEntry {
    type Align = Self;
}

/// A posted receive, as the engine sees it.
#[derive(Clone, Copy)]
pub(crate) struct RecvView<'a> {
    pub(crate) wr_id: u64,
    pub(crate) sges: &'a [Sge],
    /// Size of the buffer, in bytes.
    pub(crate) length: u32,
}

/// Carries receives from the application (one thread at a time, under `tail`) to the engine (under the engine lock).
/// Several engines may take from a shared receive queue, each only those receives that it has claimed.
#[repr(C)]
pub(crate) struct RecvQueue {
    ring: Ring<RecvEntry>,
    /// Scatter-gather lists of several elements: `max_sge` elements for each slot, which belong to the owner of the
    /// slot. Empty if `max_sge` is 0 or 1.
    sges: Box<[UnsafeCell<Sge>]>,
    max_sge: u8,
    /// Number of the next receive. On a cache line of its own, because posters write it while the engine reads
    /// the other fields.
    tail: Line<SpinLock<u32>>,
}

// SAFETY: a slot's list has the same owner as the ring's slot.
unsafe impl Sync for RecvQueue {}

impl RecvQueue {
    pub(crate) fn new(entries: u32, max_sge: u8) -> Self {
        let ring = Ring::new(entries);
        let sges = elements(ring.capacity(), max_sge);
        Self { ring, sges, max_sge, tail: Line(SpinLock::new(0)) }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    pub(crate) fn max_sge(&self) -> u8 {
        self.max_sge
    }

    /// Application: takes the right to post, until the result is dropped.
    pub(crate) fn poster(&self) -> RecvPoster<'_> {
        RecvPoster { queue: self, tail: self.tail.lock(), written: 0 }
    }

    /// Engine: returns a receive; `None` if it is not posted yet, or was released.
    #[inline]
    pub(crate) fn peek(&self, number: WrNumber) -> Option<RecvView<'_>> {
        let entry = self.ring.peek(number.0)?;
        let count = usize::from(entry.num_sge);
        let sges = entry.only.get(..count).unwrap_or_else(|| {
            let start = self.sges_at(self.ring.slot_of(number.0)).cast_const();
            // SAFETY: the slot is published: the producer wrote `num_sge` <= max_sge elements of its share, and
            // leaves them alone until they are released.
            unsafe { std::slice::from_raw_parts(start, count) }
        });
        Some(RecvView { wr_id: entry.wr_id, sges, length: entry.length })
    }

    /// Engine: frees the slot of receive `number`. The receive must belong to the calling engine alone.
    #[inline]
    pub(crate) fn release(&self, number: WrNumber) {
        self.ring.release(number.0);
    }

    /// Returns whether receive `number` is posted and not taken.
    #[inline]
    pub(crate) fn has(&self, number: WrNumber) -> bool {
        self.ring.is_published(number.0)
    }

    /// Returns whether receive `number` was posted, even if it was taken since.
    pub(crate) fn was_posted(&self, number: WrNumber) -> bool {
        self.ring.was_published(number.0)
    }

    /// Returns the start of the slot's list; valid for `max_sge` elements.
    fn sges_at(&self, slot: usize) -> *mut Sge {
        self.sges.as_ptr().cast_mut().cast::<Sge>().wrapping_add(slot * usize::from(self.max_sge))
    }
}

/// The application's end of a receive queue, with the lock.
pub(crate) struct RecvPoster<'a> {
    queue: &'a RecvQueue,
    tail: SpinGuard<'a, u32>,
    /// Number of receives from `tail` on that are written and not published.
    written: u32,
}

impl RecvPoster<'_> {
    /// Returns the number of the next receive.
    #[inline]
    pub(crate) fn next(&self) -> WrNumber {
        WrNumber(self.tail.wrapping_add(self.written))
    }

    /// Posts one receive, or refuses it and changes nothing.
    #[inline]
    pub(crate) fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.write(wr)?;
        self.publish();
        Ok(())
    }

    /// Publishes all written receives to the engine. Returns false if there are none. Receives that are never
    /// published were never posted.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        let end = self.next().0;
        while *self.tail != end {
            self.queue.ring.publish(*self.tail);
            *self.tail = self.tail.wrapping_add(1);
        }
        std::mem::take(&mut self.written) > 0
    }

    /// Writes one receive, or refuses it and changes nothing.
    pub(crate) fn write(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let queue = self.queue;
        let index = self.next().0;
        if wr.sges.len() > usize::from(queue.max_sge) {
            return Err(PostError::TooManySges);
        }
        let length: u64 = wr.sges.iter().map(|sge| u64::from(sge.len)).sum();
        let length = u32::try_from(length).map_err(|_| PostError::TooLong)?;
        if !queue.ring.is_free(index) {
            return Err(PostError::QueueFull);
        }
        let only = [wr.sges.first().copied().unwrap_or_default()];
        if wr.sges.len() > only.len() {
            let list = queue.sges_at(queue.ring.slot_of(index));
            // SAFETY: the slot is free, so its list is ours; at most max_sge elements are written.
            unsafe { std::ptr::copy_nonoverlapping(wr.sges.as_ptr(), list, wr.sges.len()) };
        }
        queue.ring.write(index, RecvEntry { wr_id: wr.wr_id, length, num_sge: wr.sges.len() as u8, only });
        self.written += 1;
        Ok(())
    }
}
