//! Grace periods: after a revocation, the time until every other engine has ended the pass that it was in.
//!
//! A pass takes its engine's lock by a read-modify-write of the lock word. A thread that begins a grace period does
//! so after its revocation, by another read-modify-write of that word, which leaves the value unchanged. One of the
//! two comes first in the modification order of the word. If the pass comes first, the grace period finds the lock
//! taken and waits for the pass. If the grace period comes first, the pass sees the revocation.
//!
//! For this, all four accesses must be sequentially consistent: the revocation, both writes of the word, and the
//! passes' reads of what may be revoked. Acquire and release would not suffice, because a pass may take the lock
//! after another pass that was under way at the revocation. The later pass then reads the value that the earlier pass
//! stored at its end. So the later pass is ordered after the earlier pass, but not after the writes of the revoking
//! thread. On x86-64, sequential consistency costs passes nothing, because a locked instruction is a fence and all
//! loads are alike. Only revocations, which are rare, pay.

use std::sync::{Arc, OnceLock, Weak};

use super::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Identifies one pass of an engine; wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PassNumber(pub(crate) u32);

/// The lock of an engine, which counts its releases.
#[derive(Default)]
pub(crate) struct PassLock {
    /// The thread that has the engine; 0: none; [`CLOSED`](Self::CLOSED): the engine is closed.
    owner: AtomicUsize,
    /// Number of releases; written under the lock.
    passes: AtomicU64,
}

impl PassLock {
    /// Value in place of a thread if the engine is closed. No thread's control block has this address.
    pub(crate) const CLOSED: usize = 1;

    /// Takes the lock for `thread` if it is free. Returns false if it is taken.
    #[inline]
    pub(crate) fn try_take(&self, thread: usize) -> bool {
        if self.owner.load(Ordering::Relaxed) != 0 {
            return false;
        }
        let taken = self.owner.compare_exchange(0, thread, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        full_fence();
        taken
    }

    /// Releases the lock, which the caller has.
    #[inline]
    pub(crate) fn let_go(&self) {
        // Written under the lock, so no read-modify-write is needed.
        self.passes.store(self.passes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        self.owner.store(0, Ordering::Release);
    }

    /// Keeps the lock, which the caller has, forever.
    #[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
    pub(crate) fn close(&self) {
        self.owner.store(Self::CLOSED, Ordering::Release);
    }

    /// Returns whether the engine is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.owner.load(Ordering::Acquire) == Self::CLOSED
    }

    /// Returns the thread that has the engine; 0 if none has it, or [`CLOSED`](Self::CLOSED).
    pub(crate) fn owner(&self) -> usize {
        self.owner.load(Ordering::Relaxed)
    }

    /// Returns the number of releases.
    pub(crate) fn count(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    /// See [`Fellow::pass_under_way`].
    pub(crate) fn under_way(&self) -> Option<PassNumber> {
        full_fence();
        let owner = self.owner.fetch_add(0, Ordering::SeqCst);
        let held = owner != 0 && owner != Self::CLOSED;
        // If the pass that held the lock has ended by now, this is the number of a later pass, which is waited for
        // instead.
        held.then(|| PassNumber(self.passes.load(Ordering::Acquire) as u32))
    }

    /// See [`Fellow::has_ended`].
    pub(crate) fn has_ended(&self, pass: PassNumber) -> bool {
        let owner = self.owner.load(Ordering::Acquire);
        owner == 0 || owner == Self::CLOSED || self.passes.load(Ordering::Acquire) as u32 != pass.0
    }
}

/// Supplements sequentially consistent accesses for the model checker, which treats them only as accesses with
/// acquire and release ordering.
#[inline(always)]
fn full_fence() {
    #[cfg(feature = "loom")]
    super::sync::atomic::fence(Ordering::SeqCst);
}

/// An engine, as the other engines of its device see it. None of these functions waits.
pub(crate) trait Fellow: Send + Sync {
    /// Enters the doorbell of a queue pair that belongs to that engine, and wakes the thread that drives the
    /// engine.
    fn ring(&self, qpn: u32);

    /// Tells that engine that a shared queue has receives for the messages that wait at that engine, and wakes the
    /// thread that drives the engine.
    fn ring_receives(&self);

    /// Wakes the thread that drives that engine, if it sleeps: there is something that the engine's next pass will
    /// find.
    fn wake(&self);

    /// Returns the pass (or verb) that holds the engine now; `None` if the engine is free. All passes that begin
    /// later see what the caller stored before.
    fn pass_under_way(&self) -> Option<PassNumber>;

    /// Returns whether a pass that was under way has ended. If so, the caller sees the effects of that pass.
    fn has_ended(&self, pass: PassNumber) -> bool;
}

/// The engines of a device, by number, once they have been introduced.
#[derive(Default)]
pub(crate) struct Fellows(OnceLock<Box<[Weak<dyn Fellow>]>>);

impl Fellows {
    /// Introduces the engines to each other, once.
    pub(crate) fn introduce(&self, fellows: impl IntoIterator<Item = Weak<dyn Fellow>>) {
        let _ = self.0.set(fellows.into_iter().collect());
    }

    /// Returns the engine with this index; `None` if it no longer exists, or does not exist yet.
    pub(crate) fn get(&self, index: usize) -> Option<Arc<dyn Fellow>> {
        self.0.get()?.get(index)?.upgrade()
    }

    /// Returns the number of engines; 1 until they have been introduced.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.0.get().map_or(1, |fellows| fellows.len())
    }

    /// Returns the engines whose passes a revocation must wait for: all but `own`, the engine whose pass makes the
    /// revocation (`None`: a verb makes it). Empty if the device has one engine, because its passes, and the operations
    /// that they start, come one after the other.
    pub(crate) fn witnesses(&self, own: Option<usize>) -> Witnesses {
        if self.count() == 1 {
            return Witnesses(Vec::new());
        }
        let others = (0..self.count()).filter(|index| Some(*index) != own);
        Witnesses(others.filter_map(|index| Some((index as u8, self.get(index)?))).collect())
    }
}

/// Engines whose passes a revocation must wait for. This value keeps the engines alive. It must not be dropped under
/// a lock, because the end of an engine may take long.
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
    /// Returns whether the grace period is known to be over.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks whether the grace period is over. If so, the caller sees the effects of the passes that ended meanwhile.
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
