//! Keeps the `tap` driver from sending this process a real-time signal for every burst that arrives.
//!
//! The driver takes the first signal without a handler. If none is free it polls, as we do anyway: that is faster,
//! and does not interrupt the program's system calls.

use std::mem;
use std::ptr;

/// Runs `plug` while all real-time signals without a handler, except the lowest and the highest, are ignored,
/// so that the driver finds none free.
pub(super) fn reserved<T>(plug: impl FnOnce() -> T) -> T {
    let reserved: Vec<_> =
        (libc::SIGRTMIN() + 1..libc::SIGRTMAX()).filter(|&signal| reserve(signal)).collect();
    let result = plug();
    for signal in reserved {
        dispose(signal, libc::SIG_DFL);
    }
    result
}

/// Ignores a signal if it has its default action. Returns whether the signal had that action.
fn reserve(signal: i32) -> bool {
    // SAFETY: a structure of integers, filled in by the call; nothing is changed.
    let action = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        if libc::sigaction(signal, ptr::null(), &raw mut action) != 0 {
            return false;
        }
        action.sa_sigaction
    };
    action == libc::SIG_DFL && dispose(signal, libc::SIG_IGN)
}

fn dispose(signal: i32, handler: libc::sighandler_t) -> bool {
    // SAFETY: a structure of integers; the handlers passed are SIG_DFL and SIG_IGN, which are not functions.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handler;
        libc::sigaction(signal, &raw const action, ptr::null_mut()) == 0
    }
}
