//! Blocks SIGPIPE around calls that may write to a socket whose peer is dead.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Runs `call` with SIGPIPE blocked in this thread, and discards a SIGPIPE that it raised.
pub(super) fn blocked<T>(call: impl FnOnce() -> T) -> T {
    let mut pipe = SigSet::empty();
    pipe.add(Signal::SIGPIPE);
    let Ok(before) = pipe.thread_swap_mask(SigmaskHow::SIG_BLOCK) else { return call() };
    let was_pending = pending();
    let result = call();
    if !was_pending && pending() {
        // The signal is pending, so this returns at once.
        let _ = pipe.wait();
    }
    let _ = before.thread_set_mask();
    result
}

fn pending() -> bool {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: sigpending fills the set, or fails and we do not read it.
    unsafe { libc::sigpending(set.as_mut_ptr()) == 0 && libc::sigismember(set.as_ptr(), libc::SIGPIPE) == 1 }
}
