//! Which QPs have new work.

use crate::shared::engines::EngineNumber;
use crate::shared::sync::Line;
use crate::shared::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// What a slot holds that nobody has rung at.
const FREE: u32 = u32::MAX;
/// What it holds instead of the number of a QP that is gone.
const FORGOTTEN: u32 = u32::MAX - 1;

/// Whether a QP's number is among the doorbells, or about to be.
#[derive(Default)]
pub(crate) struct Bell(AtomicBool);

impl Bell {
    /// Whether it has rung and was not answered. Only a hint: it says nothing about what was posted.
    #[inline]
    pub(crate) fn is_ringing(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Poster: whether the QP's number is to be entered. The swap also orders the posted entry before the engine's look.
    #[inline]
    pub(crate) fn ring(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Engine: takes the ring back; to be called before looking at the queues. A post that the look then misses
    /// rings again.
    #[inline]
    pub(crate) fn answer(&self) {
        self.0.swap(false, Ordering::AcqRel);
    }
}

/// Whether messages wait for receives that are posted to a queue. Who posts one has the engine look again then.
#[derive(Default)]
pub(crate) struct Awaited(AtomicBool);

impl Awaited {
    /// Engine: messages wait. To be called before looking at the queue once more: either that look finds what was posted,
    /// or whoever posts it [sees this](Self::seen_after_post).
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Engine: none waits any more.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Poster, when the receive is in the queue: whether the engine is to look.
    #[inline]
    pub(crate) fn seen_after_post(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed)
    }
}

/// The engines at which messages wait for receives that are posted to a shared queue, a bit each. A poster has all of them
/// look again.
#[derive(Default)]
pub(crate) struct AwaitedBy(AtomicU64);

impl AwaitedBy {
    /// Engine: messages wait here. To be called before looking at the queue once more: either that look finds what was
    /// posted, or its poster [sees this](Self::seen_after_post).
    pub(crate) fn set(&self, engine: EngineNumber) {
        self.0.fetch_or(engine.bit(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Engine: none waits here any more.
    pub(crate) fn clear(&self, engine: EngineNumber) {
        self.0.fetch_and(!engine.bit(), Ordering::Relaxed);
    }

    /// Returns the engines at which some wait. Only a hint.
    #[inline]
    pub(crate) fn all(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Poster, when the receive is in the queue: returns the engines that must look.
    #[inline]
    pub(crate) fn seen_after_post(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed)
    }
}

/// The numbers of QPs with work, each at most once (see [`Bell`]), so there is room for all. Any thread
/// rings; only the holder of the engine lock takes numbers out.
pub(crate) struct Doorbells {
    /// A power of two of them; ring `i` goes to slot `i mod len`.
    slots: Box<[AtomicU32]>,
    /// How often was rung; wraps.
    rung: Line<AtomicU32>,
    /// How many of these were taken out.
    taken: Line<AtomicU32>,
    /// A shared queue for whose receives Sends wait has got some.
    receives: AtomicBool,
}

impl Doorbells {
    /// For at most `qps` QPs.
    pub(crate) fn new(qps: usize) -> Self {
        let slots = (0..qps.max(1).next_power_of_two()).map(|_| AtomicU32::new(FREE)).collect();
        Self { slots, rung: Line::default(), taken: Line::default(), receives: AtomicBool::new(false) }
    }

    #[inline]
    fn slot(&self, index: u32) -> &AtomicU32 {
        &self.slots[index as usize & (self.slots.len() - 1)]
    }

    /// A QP has work and was not entered yet.
    #[inline]
    pub(crate) fn ring(&self, qpn: u32) {
        let slot = self.slot(self.rung.fetch_add(1, Ordering::AcqRel));
        debug_assert_eq!(slot.load(Ordering::Relaxed), FREE, "a QP was entered twice");
        slot.store(qpn, Ordering::Release);
    }

    /// Receives for which Sends wait were posted to a shared queue.
    #[inline]
    pub(crate) fn ring_receives(&self) {
        self.receives.store(true, Ordering::SeqCst);
    }

    /// Engine: whether that was so since this was last asked; to be called before looking at the queues.
    #[inline]
    pub(crate) fn take_receives(&self) -> bool {
        self.receives.load(Ordering::Relaxed) && self.receives.swap(false, Ordering::AcqRel)
    }

    /// Whether nobody has rung.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.is_taken_out() && !self.receives.load(Ordering::Acquire)
    }

    /// Whether no QP is entered.
    #[inline]
    fn is_taken_out(&self) -> bool {
        self.taken.load(Ordering::Relaxed) == self.rung.load(Ordering::Acquire)
    }

    /// Engine: the next QP with work. [`Bell::answer`] comes next, then the look at its queues.
    #[inline]
    pub(crate) fn pop(&self) -> Option<u32> {
        while !self.is_taken_out() {
            let taken = self.taken.load(Ordering::Relaxed);
            let slot = self.slot(taken);
            let entry = slot.load(Ordering::Acquire);
            if entry == FREE {
                break; // whoever rings is about to write it
            }
            slot.store(FREE, Ordering::Relaxed);
            self.taken.store(taken.wrapping_add(1), Ordering::Relaxed);
            if entry != FORGOTTEN {
                return Some(entry);
            }
        }
        None
    }

    /// Under the engine lock: removes the entry of a QP that nobody can post to any more.
    pub(crate) fn forget(&self, qpn: u32) {
        let mut index = self.taken.load(Ordering::Relaxed);
        while index != self.rung.load(Ordering::Acquire) {
            let entry = self.slot(index);
            if entry.load(Ordering::Relaxed) == qpn {
                entry.store(FORGOTTEN, Ordering::Relaxed);
            }
            index = index.wrapping_add(1);
        }
    }
}
