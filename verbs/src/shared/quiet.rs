//! Two restrictions of a process: a forked child must leave the devices alone, and an ending process must hold back
//! what it would report to its own program.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// The restrictions, as bits of one word, so that pollers look at only one word.
static STATE: AtomicU8 = AtomicU8::new(0);
/// This process is a forked child of one that opened a device.
const FORKED: u8 = 1;
/// The process ends, and its engines are closing their connections. The program must not be told of the consequences:
/// its threads still run while the objects that they use are torn down.
const QUIET: u8 = 2;

/// The calls that are held back, in order. Each would tell the program something.
static HELD: Mutex<Vec<Box<dyn FnOnce() + Send>>> = Mutex::new(Vec::new());

/// Returns whether this process is a forked child, so that its devices belong to the parent process.
#[inline]
pub(crate) fn forked() -> bool {
    STATE.load(Ordering::Relaxed) & FORKED != 0
}

/// Returns whether this process is a forked child of one that had opened a device. Such a child cannot use that
/// device.
#[inline]
pub fn in_forked_child() -> bool {
    forked()
}

/// Returns whether the program must not be told anything new.
#[inline]
pub(crate) fn is_quiet() -> bool {
    STATE.load(Ordering::Relaxed) & QUIET != 0
}

/// Returns whether callers must leave the engines alone, because of either restriction.
#[inline]
pub(crate) fn must_leave_engines_alone() -> bool {
    STATE.load(Ordering::Relaxed) != 0
}

/// Marks this process as a forked child, for good.
pub(crate) fn mark_as_child() {
    STATE.fetch_or(FORKED, Ordering::Relaxed);
}

/// Holds back everything that the program would be told from now on. Async-signal-safe.
pub(crate) fn hold_back() {
    STATE.fetch_or(QUIET, Ordering::SeqCst);
}

/// Calls `tell`, which tells the program something. If the process is ending, holds the call back until
/// [`deliver_held`] is called.
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

/// Tells the program everything that was held back, because the program continues after all. The lock is not held
/// meanwhile: what the program does when it is told may lead to further deliveries, here or in a thread that the
/// program waits for.
pub(crate) fn deliver_held() {
    loop {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_empty() {
            // Cleared under the lock, so that new deliveries cannot overtake those that were held back.
            STATE.fetch_and(!QUIET, Ordering::SeqCst);
            return;
        }
        let tells = std::mem::take(&mut *held);
        drop(held);
        tells.into_iter().for_each(|tell| tell());
    }
}

#[cfg(test)]
mod tests;
