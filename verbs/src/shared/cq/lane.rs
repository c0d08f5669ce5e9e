//! The completions that one engine adds to one completion queue.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Poller;
use crate::shared::clock::DeviceClock;
use crate::shared::queue::{CompletionRing, Room, capacity_for};
use crate::shared::sync::Line;
use crate::shared::wc::Wc;

/// Completions, and their time stamps if these are wanted.
pub(crate) struct Entries {
    pub(crate) ring: CompletionRing,
    /// The time stamp of each slot's completion, in nanoseconds of the device's clock; empty without time
    /// stamps.
    times: Box<[AtomicU64]>,
}

impl Entries {
    pub(crate) fn new(depth: u32, stamped: bool) -> Self {
        let ring = CompletionRing::new(depth);
        let times = if stamped { ring.capacity() } else { 0 };
        Self { ring, times: (0..times).map(|_| AtomicU64::new(0)).collect() }
    }

    pub(crate) fn time(&self, index: u32) -> Option<&AtomicU64> {
        self.times.get(self.ring.slot_of(index))
    }

    /// Returns the number of the first completion that was not taken.
    #[inline]
    pub(crate) fn taken(&self) -> u32 {
        self.ring.released()
    }

    /// Frees the places of the completions before `end`. The caller has read these completions.
    #[inline]
    pub(crate) fn take_until(&self, end: u32) {
        self.ring.release_until(end);
    }

    fn is_stamped(&self) -> bool {
        !self.times.is_empty()
    }
}

/// The completions of one engine, in the order in which it added them.
pub(crate) struct Lane {
    /// The engine uses the entries under its lock, and pollers use them under theirs. They are replaced under both
    /// locks.
    entries: UnsafeCell<Entries>,
    head: Line<Head>,
}

/// State of a lane that only the engine writes, under its lock.
struct Head {
    /// Number of the next completion.
    next: AtomicU32,
    room: Room,
}

// SAFETY: only `replace` replaces the entries. Its caller has the engine lock and also the pollers' lock, as the
// argument `poller` proves. All other users have one of the two locks, and use the entries through shared references.
// Everything else is Sync.
unsafe impl Sync for Lane {}

impl Lane {
    pub(super) fn new(entries: Entries) -> Self {
        let head = Head { next: AtomicU32::new(0), room: entries.ring.room() };
        Self { entries: UnsafeCell::new(entries), head: Line(head) }
    }

    /// Called by the engine, under its lock: publishes a completion. Returns false if there is no room.
    #[inline(always)]
    pub(super) fn push(&self, wc: Wc, clock: Option<&DeviceClock>) -> bool {
        let Head { next, room } = &*self.head;
        let number = next.load(Ordering::Relaxed);
        // SAFETY: the caller has the engine lock.
        let entries = unsafe { &*self.entries.get() };
        if let Some(clock) = clock {
            stamp(entries, number, room, clock);
        }
        if !entries.ring.push(number, wc, room) {
            return false;
        }
        next.store(number.wrapping_add(1), Ordering::Relaxed);
        true
    }

    /// Returns the entries, for pollers.
    #[inline(always)]
    pub(crate) fn polled<'a>(&'a self, _poller: &'a Poller) -> &'a Entries {
        // SAFETY: a poller is borrowed from the guard of the pollers' lock, which is held as long as the reference
        // lives.
        unsafe { &*self.entries.get() }
    }

    /// Returns the number of completions that were not taken. The engine may add to them at any time.
    pub(super) fn pending(&self, poller: &Poller) -> u32 {
        self.head.next.load(Ordering::Relaxed).wrapping_sub(self.polled(poller).taken())
    }

    /// Moves the completions to `fresh`, which replaces the entries, and returns the old entries. The engine may have
    /// added completions since the caller chose the capacity of `fresh`. If they do not fit, new entries with a larger
    /// capacity are used instead of `fresh`, so that nothing is lost. The caller has the engine lock.
    pub(super) fn replace(&self, poller: &mut Poller, mut fresh: Entries) -> Entries {
        let pending = self.pending(poller);
        if pending > fresh.ring.capacity() {
            fresh = Entries::new(capacity_for(pending), fresh.is_stamped());
        }
        // SAFETY: the caller has the engine lock and, as the poller shows, the pollers' lock.
        let entries = unsafe { &mut *self.entries.get() };
        let (first, room) = (entries.taken(), fresh.ring.room());
        for new in 0..pending {
            let old = first.wrapping_add(new);
            if let Some(wc) = entries.ring.peek(old) {
                fresh.ring.push(new, *wc, &room);
            }
            if let (Some(from), Some(to)) = (entries.time(old), fresh.time(new)) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        self.head.next.store(pending, Ordering::Relaxed);
        self.head.room.replace(&room);
        std::mem::replace(entries, fresh)
    }

    /// Takes completions into `out`, and returns their number.
    #[inline(always)]
    pub(super) fn take(&self, poller: &Poller, out: &mut [Wc]) -> usize {
        let entries = self.polled(poller);
        let first = entries.taken();
        let mut taken = 0;
        while let Some(slot) = out.get_mut(taken) {
            let Some(wc) = entries.ring.peek(first.wrapping_add(taken as u32)) else { break };
            *slot = *wc;
            taken += 1;
        }
        if taken > 0 {
            entries.take_until(first.wrapping_add(taken as u32));
        }
        taken
    }

    /// Returns whether there is a completion to take.
    #[inline(always)]
    pub(super) fn has_some(&self, poller: &Poller) -> bool {
        let entries = self.polled(poller);
        entries.ring.peek(entries.taken()).is_some()
    }

    /// Called by the engine, under its lock: returns whether all completions have been taken.
    pub(super) fn is_empty(&self) -> bool {
        // SAFETY: the caller has the engine lock.
        let entries = unsafe { &*self.entries.get() };
        entries.taken() == self.head.next.load(Ordering::Relaxed)
    }

    /// Returns whether completions of this queue pair wait here.
    pub(super) fn holds_of(&self, poller: &Poller, qpn: u32) -> bool {
        let Entries { ring, .. } = self.polled(poller);
        let first = self.polled(poller).taken();
        let waiting = (0..ring.capacity()).map_while(|i| ring.peek(first.wrapping_add(i)));
        waiting.into_iter().any(|wc| wc.qpn == qpn)
    }
}

/// Stores the time of completion `number`, which the engine adds next.
#[inline(never)]
fn stamp(entries: &Entries, number: u32, room: &Room, clock: &DeviceClock) {
    if let Some(time) = entries.time(number)
        && entries.ring.is_free(number, room)
    {
        time.store(clock(), Ordering::Relaxed);
    }
}
