//! A lock for sections of a few dozen instructions that take no other lock and wait for nothing.

use std::arch::asm;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use super::atomic::{AtomicUsize, Ordering};
use super::{Cell, SPINS, hint, thread};
use crate::shared::error::{Error, Result};
use crate::shared::quiet::{forked, is_quiet};

/// While the process ends, its threads may have been stopped. A waiter gives up after this time.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns the identity of this thread within the process: the address of its control block, never 0.
#[inline(always)]
pub(crate) fn this_thread() -> usize {
    let block: usize;
    // SAFETY: reads the word at fs:0. In the ABI of x86-64, this word contains its own address.
    unsafe { asm!("mov {}, fs:0", out(reg) block, options(pure, readonly, nostack, preserves_flags)) };
    block
}

/// A lock that knows its holder, so that a signal handler does not wait for the thread that it has interrupted.
#[derive(Debug)]
pub(crate) struct LeafLock<T> {
    /// The thread that has the lock ([`this_thread`]), or 0.
    owner: AtomicUsize,
    value: Cell<T>,
}

// SAFETY: the lock gives one thread at a time access to the value.
unsafe impl<T: Send> Sync for LeafLock<T> {}

impl<T> LeafLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { owner: AtomicUsize::new(0), value: Cell::new(value) }
    }

    /// Takes the lock unless it is taken. Never waits.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<LeafGuard<'_, T>> {
        self.owner
            .compare_exchange(0, this_thread(), Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| LeafGuard { lock: self })
    }

    /// Waits for the lock. A pass of an engine must call [`try_lock`](Self::try_lock) instead, because the holder may
    /// have lost its core, and then all connections of the engine would wait.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if its holder cannot continue; [`Error::Forked`].
    pub(crate) fn lock(&self) -> Result<LeafGuard<'_, T>> {
        if forked() {
            return Err(Error::Forked);
        }
        match self.try_lock() {
            Some(guard) => Ok(guard),
            None => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> Result<LeafGuard<'_, T>> {
        let (mut spins, mut since) = (0, None);
        loop {
            if let Some(guard) = self.try_lock() {
                return Ok(guard);
            }
            if spins < SPINS {
                spins += 1;
                hint::spin_loop();
            } else if self.is_stuck(&mut since) {
                return Err(Error::Interrupted);
            } else {
                thread::yield_now();
            }
        }
    }

    /// Returns whether waiting is in vain. Either the holder is this thread, which a signal handler has interrupted;
    /// or the process ends, and the holder has been stopped. Under the model checker, all threads have the same
    /// identity, so the holder is not compared.
    fn is_stuck(&self, since: &mut Option<Instant>) -> bool {
        cfg!(not(feature = "loom")) && self.owner.load(Ordering::Relaxed) == this_thread()
            || is_quiet() && since.get_or_insert_with(Instant::now).elapsed() >= PATIENCE
    }
}

pub(crate) struct LeafGuard<'a, T> {
    lock: &'a LeafLock<T>,
}

// SAFETY: sharing the guard shares only the value.
unsafe impl<T: Sync> Sync for LeafGuard<'_, T> {}

impl<T> Deref for LeafGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for LeafGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock and is borrowed mutably.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for LeafGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.owner.store(0, Ordering::Release);
    }
}
