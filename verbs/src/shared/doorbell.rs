//! Doorbells: which queue pairs have new work.

use crate::shared::engines::EngineNumber;
use crate::shared::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use crate::shared::sync::{Line, before_later_loads};

/// Value of a slot in which no number was entered.
const FREE: u32 = u32::MAX;
/// Value of a slot whose queue pair no longer exists.
const FORGOTTEN: u32 = u32::MAX - 1;

/// Whether a queue pair's number is among the doorbells, or about to be entered.
#[derive(Default)]
pub(crate) struct Bell(AtomicBool);

impl Bell {
    /// Rings, and returns whether the queue pair's number must be entered. A poster's swap also orders the posted entry
    /// before the engine's look at the queues.
    #[inline]
    pub(crate) fn ring(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Returns whether the bell has rung and was not answered: see
    /// [`SendQueue::post`](crate::shared::queue::SendQueue::post).
    #[inline]
    pub(crate) fn has_rung(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Withdraws the ring: see [`SendQueue::answer`](crate::shared::queue::SendQueue::answer).
    #[inline]
    pub(crate) fn withdraw(&self) {
        self.0.swap(false, Ordering::SeqCst);
        before_later_loads();
    }
}

/// Whether messages wait for a receive to be posted to a queue. If so, posting a receive makes the engine look again.
#[derive(Default)]
pub(crate) struct Awaited(AtomicBool);

impl Awaited {
    /// Called by the engine when messages wait, before it looks at the queue once more. Either that look finds what
    /// was posted, or the poster [sees this](Self::seen_after_post).
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Called by the engine when messages no longer wait.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Called by the poster when the receive is in the queue: returns whether the engine must look.
    #[inline]
    pub(crate) fn seen_after_post(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed)
    }
}

/// The engines at which messages wait for a receive to be posted to a shared queue, one bit each. A poster makes all of
/// them look again.
#[derive(Default)]
pub(crate) struct AwaitedBy(AtomicU64);

impl AwaitedBy {
    /// Called by the engine when messages wait there, before it looks at the queue once more. Either that look
    /// finds what was posted, or the poster [sees this](Self::seen_after_post).
    pub(crate) fn set(&self, engine: EngineNumber) {
        self.0.fetch_or(engine.bit(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Called by the engine when messages no longer wait there.
    pub(crate) fn clear(&self, engine: EngineNumber) {
        self.0.fetch_and(!engine.bit(), Ordering::Relaxed);
    }

    /// Returns the engines at which messages wait. Only a hint.
    #[inline]
    pub(crate) fn all(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Called by the poster when the receive is in the queue: returns the engines that must look.
    #[inline]
    pub(crate) fn seen_after_post(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed)
    }
}

/// The numbers of queue pairs with work. Each is entered at most once (see [`Bell`]), so there is room for all. Any
/// thread may ring; only the holder of the engine lock takes numbers out.
pub(crate) struct Doorbells {
    /// The slots; their number is a power of two. Ring `i` uses slot `i mod len`.
    slots: Box<[AtomicU32]>,
    /// Number of rings so far; wraps.
    rung: Line<AtomicU32>,
    /// Whether requests were posted to queue pairs that were already entered.
    joined: Line<AtomicBool>,
    /// Number of rings that were taken out; wraps.
    taken: Line<AtomicU32>,
    /// Whether receives were posted to a shared queue at which Sends wait.
    receives: AtomicBool,
}

impl Doorbells {
    /// Makes doorbells for at most `qps` queue pairs.
    pub(crate) fn new(qps: usize) -> Self {
        let slots = (0..qps.max(1).next_power_of_two()).map(|_| AtomicU32::new(FREE)).collect();
        let (rung, taken, joined) = (Line::default(), Line::default(), Line::default());
        Self { slots, rung, joined, taken, receives: AtomicBool::new(false) }
    }

    #[inline]
    fn slot(&self, index: u32) -> &AtomicU32 {
        &self.slots[index as usize & (self.slots.len() - 1)]
    }

    /// Enters a queue pair whose [bell](Bell::ring) has rung. A caller that afterwards finds the engine's thread awake
    /// can leave the queue pair to it, because the thread [looks again](Self::is_empty) after it has said that it
    /// sleeps.
    #[inline]
    pub(crate) fn ring(&self, qpn: u32) {
        let slot = self.slot(self.rung.fetch_add(1, Ordering::SeqCst));
        debug_assert_eq!(slot.load(Ordering::Relaxed), FREE, "a QP was entered twice");
        slot.store(qpn, Ordering::Release);
    }

    /// Notes that a request was posted to a queue pair that is already entered. Only a hint.
    #[inline]
    pub(crate) fn join(&self) {
        if !self.joined.load(Ordering::Relaxed) {
            self.joined.store(true, Ordering::Relaxed);
        }
    }

    /// Called by the engine: returns whether [`Self::join`] was called since the last time.
    #[inline]
    pub(crate) fn take_joined(&self) -> bool {
        let joined = self.joined.load(Ordering::Relaxed);
        if joined {
            self.joined.store(false, Ordering::Relaxed);
        }
        joined
    }

    /// Notes that receives were posted to a shared queue at which Sends wait, or to a queue pair that is already
    /// entered.
    #[inline]
    pub(crate) fn ring_receives(&self) {
        self.receives.store(true, Ordering::SeqCst);
    }

    /// Called by the engine before it looks at the queues: returns whether [`Self::ring_receives`] was called since the
    /// last time.
    #[inline]
    pub(crate) fn take_receives(&self) -> bool {
        self.receives.load(Ordering::Relaxed) && self.receives.swap(false, Ordering::AcqRel)
    }

    /// Returns whether the engine has nothing to take: no queue pair is entered, and no receives were posted to a
    /// shared queue at which Sends wait.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.are_at_most(0)
    }

    /// Returns whether at most this many queue pairs are entered, and no receives were posted to a shared queue at
    /// which Sends wait.
    #[inline]
    pub(crate) fn are_at_most(&self, qps: u32) -> bool {
        self.entered() <= qps && !self.receives.load(Ordering::SeqCst)
    }

    /// Returns how many queue pairs are entered. The numbers of the last may not be written yet.
    #[inline]
    pub(crate) fn entered(&self) -> u32 {
        self.rung.load(Ordering::SeqCst).wrapping_sub(self.taken.load(Ordering::Relaxed))
    }

    /// Returns whether no queue pair is entered.
    #[inline]
    fn is_taken_out(&self) -> bool {
        self.taken.load(Ordering::Relaxed) == self.rung.load(Ordering::Acquire)
    }

    /// Called by the engine: takes out the next queue pair with work. The engine then
    /// [answers](crate::shared::queue::SendQueue::answer), and looks at the queues.
    #[inline]
    pub(crate) fn pop(&self) -> Option<u32> {
        while !self.is_taken_out() {
            let taken = self.taken.load(Ordering::Relaxed);
            let slot = self.slot(taken);
            let entry = slot.load(Ordering::Acquire);
            if entry == FREE {
                break; // the ringing thread is about to write the number
            }
            slot.store(FREE, Ordering::Relaxed);
            self.taken.store(taken.wrapping_add(1), Ordering::Relaxed);
            if entry != FORGOTTEN {
                return Some(entry);
            }
        }
        None
    }

    /// Called under the engine lock: removes the entry of a queue pair to which nothing can be posted now or later.
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

#[cfg(all(test, not(feature = "loom")))]
mod tests;
