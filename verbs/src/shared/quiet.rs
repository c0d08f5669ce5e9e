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
static HELD: Mutex<Calls> = Mutex::new(Vec::new());
type Calls = Vec<Box<dyn FnOnce() + Send>>;

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

/// Tells the program everything that was held back, because the program continues after all.
pub(crate) fn deliver_held() {
    deliver_all(&HELD, || {
        STATE.fetch_and(!QUIET, Ordering::SeqCst);
    });
}

/// Makes all calls that are held back, and calls `end` when there are none left. The calls run without the lock,
/// because they may lead to other calls, which are then held back too.
fn deliver_all(held: &Mutex<Calls>, end: impl FnOnce()) {
    loop {
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_empty() {
            // Under the lock, so that new deliveries cannot overtake those that were held back.
            return end();
        }
        let calls = std::mem::take(&mut *held);
        drop(held);
        for tell in calls {
            tell();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call may lead to another one, which is then held back too, until the first has returned.
    #[test]
    fn a_call_that_is_delivered_may_hold_another_back() {
        static CALLS: Mutex<Calls> = Mutex::new(Vec::new());
        static TOLD: Mutex<Vec<u8>> = Mutex::new(Vec::new());
        let tell = |what| move || TOLD.lock().unwrap().push(what);
        CALLS.lock().unwrap().push(Box::new(move || {
            CALLS.try_lock().expect("the lock is free").push(Box::new(tell(3)));
            tell(1)();
        }));
        CALLS.lock().unwrap().push(Box::new(tell(2)));
        deliver_all(&CALLS, || assert!(CALLS.try_lock().is_err(), "the end comes under the lock"));
        assert_eq!(*TOLD.lock().unwrap(), [1, 2, 3]);
    }
}
