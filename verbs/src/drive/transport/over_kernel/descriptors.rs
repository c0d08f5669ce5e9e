//! Descriptors of sockets: where they lie, how many there may be, and what becomes of them in a forked child.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Programs wait for descriptors below this by `select`, and take the lowest that is free for granted now and then.
const LOWEST: libc::c_int = 1024;
/// Descriptors that can be noted. Those above it stay open in forked children.
const NOTED: usize = 1 << 20;

/// Those that are open: a bit for each.
static OPEN: [AtomicU64; NOTED / 64] = [const { AtomicU64::new(0) }; NOTED / 64];

/// The limit that the program was started with, while it is raised; zero before that.
static GIVEN: AtomicU64 = AtomicU64::new(0);

/// Lets this process have as many descriptors as it may, and its forked children as many as it was given: they may wait by
/// `select`. Returns the limit.
pub(super) fn raise_limit() -> Option<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
        GIVEN.store(soft, Ordering::Relaxed);
        watch_forks();
        return Some(hard);
    }
    Some(soft)
}

fn watch_forks() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        // SAFETY: the function is there as long as the program, takes nothing, and does what a forked child may.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// A descriptor that a forked child closes, so that the peer sees the end of the connection when the parent ends it.
pub(super) struct Descriptor(OwnedFd);

impl Descriptor {
    /// Moves a descriptor out of the program's way, if there is room there, and notes it.
    pub(super) fn new(fd: OwnedFd) -> Self {
        let high = copy(fd.as_fd(), LOWEST).unwrap_or(fd);
        Self::note(high)
    }

    /// Makes a descriptor of what another one is of, out of the program's way if there is room there, and notes it.
    pub(super) fn duplicate(fd: BorrowedFd<'_>) -> io::Result<Self> {
        copy(fd, LOWEST).or_else(|_| copy(fd, 0)).map(Self::note)
    }

    fn note(fd: OwnedFd) -> Self {
        watch_forks();
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

/// A second descriptor, with a number of `lowest` or more, that `exec` closes.
fn copy(fd: BorrowedFd<'_>, lowest: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; a new descriptor is ours.
    let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
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
extern "C" fn in_child() {
    let given = GIVEN.load(Ordering::Relaxed);
    if given > 0 {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a structure of our own, that lives through both calls.
        unsafe {
            if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
                limit.rlim_cur = given.min(limit.rlim_max);
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            }
        }
    }
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
