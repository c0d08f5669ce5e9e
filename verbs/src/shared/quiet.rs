//! What this process must leave alone: the devices, in a forked child; the program, while the process ends.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// Reasons not to go on as usual, in one word because pollers look at it.
static STATE: AtomicU8 = AtomicU8::new(0);
/// This process is a forked child of one that opened a device.
const FORKED: u8 = 1;
/// The process ends, and its engines say goodbye: the program hears of nothing that comes of that, because its threads
/// still run while what they use is torn down.
const QUIET: u8 = 2;

/// What the program was not told, in order.
static HELD: Mutex<Vec<Box<dyn FnOnce() + Send>>> = Mutex::new(Vec::new());

/// Whether the devices of this process image belong to the parent process.
#[inline]
pub(crate) fn forked() -> bool {
    STATE.load(Ordering::Relaxed) & FORKED != 0
}

/// Whether this process is a forked child of one that has opened a device: it has none.
#[inline]
pub fn in_forked_child() -> bool {
    forked()
}

/// Whether the program must not see anything new.
#[inline]
pub(crate) fn is_quiet() -> bool {
    STATE.load(Ordering::Relaxed) & QUIET != 0
}

/// Whether callers leave the engines alone, for either reason.
#[inline]
pub(crate) fn stands_back() -> bool {
    STATE.load(Ordering::Relaxed) != 0
}

/// In a forked child, for good.
pub(crate) fn is_child() {
    STATE.fetch_or(FORKED, Ordering::Relaxed);
}

/// From now on the program hears of nothing. Async-signal-safe.
pub(crate) fn hush() {
    STATE.fetch_or(QUIET, Ordering::SeqCst);
}

/// Tells the program something, now or when the engines' goodbye is over.
#[inline]
pub(crate) fn deliver(tell: impl FnOnce() + Send + 'static) {
    if is_quiet() { hold(Box::new(tell)) } else { tell() }
}

#[cold]
fn hold(tell: Box<dyn FnOnce() + Send>) {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if is_quiet() {
        held.push(tell);
    } else {
        drop(held);
        tell();
    }
}

/// Tells the program what was held back: it goes on after all.
pub(crate) fn speak() {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    for tell in held.drain(..) {
        tell();
    }
    // Under the lock, lest what comes now overtakes what was held.
    STATE.fetch_and(!QUIET, Ordering::SeqCst);
}
