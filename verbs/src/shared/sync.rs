//! Synchronization primitives.

mod leaf;

use std::ops::{Deref, DerefMut};

pub(crate) use leaf::{LeafLock, this_thread};
pub(crate) use primitives::{Cell, atomic, hint, thread};

use atomic::{AtomicU8, Ordering};

/// The primitives of locks, rings and doorbells.
#[cfg(not(feature = "loom"))]
mod primitives {
    pub(crate) use std::sync::atomic;
    pub(crate) use std::{hint, thread};

    /// [`UnsafeCell`](std::cell::UnsafeCell), with the interface that a model checker can watch.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub(crate) struct Cell<T>(std::cell::UnsafeCell<T>);

    impl<T> Cell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Calls `f` with the pointer, for reading.
        #[inline(always)]
        pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Calls `f` with the pointer, for writing.
        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

/// The same primitives for loom, which runs a test under every order that the memory model allows.
#[cfg(feature = "loom")]
mod primitives {
    pub(crate) type Cell<T> = loom::cell::UnsafeCell<T>;
    pub(crate) use loom::sync::atomic;
    pub(crate) use loom::{hint, thread};
}

/// Follows an atomic exchange that all threads must see before later loads of this thread. If all of these operations
/// are sequentially consistent, that suffices, but loom knows such an order only of fences.
#[inline(always)]
pub(crate) fn before_later_loads() {
    #[cfg(feature = "loom")]
    atomic::fence(Ordering::SeqCst);
}

/// Number of spins before a waiter yields its core.
const SPINS: u32 = 64;

/// A value on a cache line of its own.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(crate) struct Line<T>(pub(crate) T);

impl<T> Deref for Line<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// A lock for sections of a few dozen instructions, such as writing one work request. A waiter yields after a
/// while, because the holder may have been preempted.
#[derive(Debug, Default)]
pub(crate) struct SpinLock<T> {
    /// [`FREE`], [`HELD`] or [`BRIEFLY`].
    hold: AtomicU8,
    value: Cell<T>,
}

const FREE: u8 = 0;
const HELD: u8 = 1;
const BRIEFLY: u8 = 2;

// SAFETY: the lock gives one thread at a time access to the value.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { hold: AtomicU8::new(FREE), value: Cell::new(value) }
    }

    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        self.take(HELD)
    }

    /// Takes the lock for a section that ends soon and never waits for a pass. What the holder loads in it comes after
    /// the taking in the one order of all sequentially consistent operations: see
    /// [`is_held_briefly`](Self::is_held_briefly).
    #[inline]
    pub(crate) fn lock_briefly(&self) -> SpinGuard<'_, T> {
        let guard = self.take(BRIEFLY);
        before_later_loads();
        guard
    }

    /// Returns whether a thread holds the lock by [`lock_briefly`](Self::lock_briefly). If not, what the holders before
    /// did is visible.
    #[inline]
    pub(crate) fn is_held_briefly(&self) -> bool {
        self.hold.load(Ordering::SeqCst) == BRIEFLY
    }

    #[inline]
    fn take(&self, hold: u8) -> SpinGuard<'_, T> {
        while self.hold.compare_exchange_weak(FREE, hold, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            self.wait();
        }
        SpinGuard { lock: self }
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        let free = self.hold.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Not `then_some`: dropping a guard made in vain would release the holder's lock.
        free.then(|| SpinGuard { lock: self })
    }

    #[cold]
    fn wait(&self) {
        let mut spins = 0;
        while self.hold.load(Ordering::Relaxed) != FREE {
            if spins < SPINS {
                spins += 1;
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }
}

pub(crate) struct SpinGuard<'a, T> {
    lock: &'a SpinLock<T>,
}

// SAFETY: sharing the guard shares only the value.
unsafe impl<T: Sync> Sync for SpinGuard<'_, T> {}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock and is borrowed mutably.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.hold.store(FREE, Ordering::Release);
    }
}

#[cfg(all(test, feature = "loom"))]
mod models;
#[cfg(test)]
mod tests;
