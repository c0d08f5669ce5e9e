//! Descriptors of sockets: where they lie, and what becomes of them in a forked child.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Programs wait for descriptors below this by `select`, and take the lowest that is free for granted now and then.
const LOWEST: libc::c_int = 1024;
/// Descriptors that can be noted. Those above it stay open in forked children.
const NOTED: usize = 1 << 20;

/// Those that are open: a bit for each.
static OPEN: [AtomicU64; NOTED / 64] = [const { AtomicU64::new(0) }; NOTED / 64];

/// A descriptor that a forked child closes, so that the peer sees the end of the connection when the parent ends it.
pub(super) struct Descriptor(OwnedFd);

impl Descriptor {
    /// Moves a descriptor out of the program's way, if there is room there, and notes it.
    pub(super) fn new(fd: OwnedFd) -> Self {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            // SAFETY: the function is there as long as the program, takes nothing and closes descriptors.
            unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
        });
        // SAFETY: no pointers; a new descriptor is ours.
        let high = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LOWEST) };
        let fd = if high >= 0 {
            // SAFETY: just made, and nobody else has it.
            unsafe { OwnedFd::from_raw_fd(high) }
        } else {
            fd
        };
        mark(fd.as_raw_fd(), true);
        Self(fd)
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        mark(self.0.as_raw_fd(), false);
    }
}

fn mark(fd: libc::c_int, open: bool) {
    let Some((word, bit)) =
        usize::try_from(fd).ok().and_then(|fd| Some((OPEN.get(fd / 64)?, 1 << (fd % 64))))
    else {
        return;
    };
    if open {
        word.fetch_or(bit, Ordering::Relaxed);
    } else {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Only what may be called between `fork` and `exec` of a program with threads.
extern "C" fn close_in_child() {
    for (i, word) in OPEN.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = i * 64 + bits.trailing_zeros() as usize;
            // SAFETY: no pointers; the child does not use the device.
            unsafe { libc::close(fd as libc::c_int) };
            bits &= bits - 1;
        }
    }
}
