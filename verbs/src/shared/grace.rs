//! Grace periods: after a revocation, the time until every other engine has ended the pass that it was in.
//!
//! A pass takes its engine's lock by a read-modify-write of the lock word. Whoever begins a grace period writes that word
//! too, by one that does not change it, after its revocation. Of the two, one comes first in the order of the word's changes.
//! If the pass does, the grace period finds the lock taken and waits for the pass. If the grace period does, the pass sees
//! the revocation. For that all four are sequentially consistent: the revocation, both writes of the word, and the passes'
//! reads of what may be revoked. Acquire and release would not do: a pass that takes the lock over from a pass that was
//! under way reads what that one stored, and not what was written before. On x86-64 it costs passes nothing, because a locked
//! instruction is a fence and all loads are alike. Revocations, which are rare, pay.

use std::sync::{Arc, OnceLock, Weak};

use super::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Names one pass of an engine. It wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PassNumber(pub(crate) u32);

/// The lock of an engine, which counts how often it is let go.
#[derive(Default)]
pub(crate) struct PassLock {
    /// Names the thread that has the engine; 0: none.
    owner: AtomicUsize,
    /// Times that the engine was let go; written under the lock.
    passes: AtomicU64,
}

impl PassLock {
    /// In the place of a thread: the engine is closed. No thread's control block is there.
    pub(crate) const CLOSED: usize = 1;

    /// Takes the lock for `thread`, unless it is taken.
    #[inline]
    pub(crate) fn try_take(&self, thread: usize) -> bool {
        if self.owner.load(Ordering::Relaxed) != 0 {
            return false;
        }
        let taken = self.owner.compare_exchange(0, thread, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        full_fence();
        taken
    }

    /// Lets go of the lock, which the caller has.
    #[inline]
    pub(crate) fn let_go(&self) {
        // Under the lock, so no read-modify-write is needed.
        self.passes.store(self.passes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        self.owner.store(0, Ordering::Release);
    }

    /// Keeps the lock, which the caller has, for good.
    #[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
    pub(crate) fn close(&self) {
        self.owner.store(Self::CLOSED, Ordering::Release);
    }

    /// Returns whether the engine is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.owner.load(Ordering::Acquire) == Self::CLOSED
    }

    /// Returns the thread that has the engine, or 0.
    pub(crate) fn owner(&self) -> usize {
        self.owner.load(Ordering::Relaxed)
    }

    /// Returns how often the engine was let go.
    pub(crate) fn count(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    /// See [`Fellow::pass_under_way`].
    pub(crate) fn under_way(&self) -> Option<PassNumber> {
        full_fence();
        let owner = self.owner.fetch_add(0, Ordering::SeqCst);
        let held = owner != 0 && owner != Self::CLOSED;
        // If that pass has ended by now this is the number of a later one, which is waited for in its place.
        held.then(|| PassNumber(self.passes.load(Ordering::Acquire) as u32))
    }

    /// See [`Fellow::has_ended`].
    pub(crate) fn has_ended(&self, pass: PassNumber) -> bool {
        let owner = self.owner.load(Ordering::Acquire);
        owner == 0 || owner == Self::CLOSED || self.passes.load(Ordering::Acquire) as u32 != pass.0
    }
}

/// Says to the model checker what sequentially consistent accesses say to the compiler: it takes those for accesses with
/// acquire and release ordering.
#[inline(always)]
fn full_fence() {
    #[cfg(feature = "loom")]
    super::sync::atomic::fence(Ordering::SeqCst);
}

/// An engine as the other engines of its device see it. Nothing here waits.
pub(crate) trait Fellow: Send + Sync {
    /// Enters the doorbell of a queue pair that belongs to that engine, and wakes whoever drives it.
    fn ring(&self, qpn: u32);

    /// Tells that engine that a shared queue has receives for which messages wait there, and wakes its driver.
    fn ring_receives(&self);

    /// Wakes whoever drives that engine, if it sleeps: something has been put where the engine's next pass finds it.
    fn wake(&self);

    /// Returns the pass (or verb) that holds the engine at this moment; `None` if nobody does. Whatever the caller stored
    /// before is seen by all passes that begin after this.
    fn pass_under_way(&self) -> Option<PassNumber>;

    /// Returns whether a pass that was under way has ended. What it did is seen by the caller then.
    fn has_ended(&self, pass: PassNumber) -> bool;
}

/// The engines of a device, by number, once they have been introduced.
#[derive(Default)]
pub(crate) struct Fellows(OnceLock<Box<[Weak<dyn Fellow>]>>);

impl Fellows {
    /// Tells the engines of each other, once.
    pub(crate) fn introduce(&self, fellows: impl IntoIterator<Item = Weak<dyn Fellow>>) {
        let _ = self.0.set(fellows.into_iter().collect());
    }

    /// Returns the engine with this index; `None` if it is gone, or not there yet.
    pub(crate) fn get(&self, index: usize) -> Option<Arc<dyn Fellow>> {
        self.0.get()?.get(index)?.upgrade()
    }

    /// Returns the number of engines; 1 until they have been introduced.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.0.get().map_or(1, |fellows| fellows.len())
    }

    /// Returns those whose passes a revocation must wait for: all but `own`, whose pass the caller is in. None if the device
    /// has one engine: that engine's passes and whatever they ask for come one after another.
    pub(crate) fn witnesses(&self, own: Option<usize>) -> Witnesses {
        if self.count() == 1 {
            return Witnesses(Vec::new());
        }
        let others = (0..self.count()).filter(|index| Some(*index) != own);
        Witnesses(others.filter_map(|index| Some((index as u8, self.get(index)?))).collect())
    }
}

/// Engines whose passes a revocation must wait for. It keeps them: it must not be dropped under a lock, because the end of an
/// engine may take long.
pub(crate) struct Witnesses(Vec<(u8, Arc<dyn Fellow>)>);

impl Witnesses {
    /// Begins a grace period for what the caller has revoked.
    pub(crate) fn begin(&self) -> Grace {
        let under_way = |(index, fellow): &(u8, Arc<dyn Fellow>)| Some((*index, fellow.pass_under_way()?));
        Grace(self.0.iter().filter_map(under_way).collect())
    }
}

/// A grace period: the passes that it waits for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grace(Vec<(u8, PassNumber)>);

impl Grace {
    /// Returns whether it is known to be over.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// Asks whether it is over. What the passes did that it has waited for is seen by the caller then.
    pub(crate) fn has_ended(&mut self, fellows: &Fellows) -> bool {
        let waits = |(index, pass): &(u8, PassNumber)| {
            fellows.get((*index).into()).is_some_and(|fellow| !fellow.has_ended(*pass))
        };
        self.0.retain(waits);
        self.is_over()
    }
}

#[cfg(all(test, feature = "loom"))]
mod models;
