//! Descriptors of sockets: chooses their numbers, raises their limit, and closes them in forked children.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Lowest number of our descriptors, where possible. Lower numbers are left to the program, because `select` works
/// only with these, and a program may expect to get the lowest free numbers.
const LOWEST: libc::c_int = 1024;
/// Only descriptors below this number can be noted in [`OPEN`]. Descriptors with higher numbers stay open in forked
/// children.
const NOTED: usize = 1 << 20;

/// The noted descriptors, which are open: one bit for each.
static OPEN: [AtomicU64; NOTED / 64] = [const { AtomicU64::new(0) }; NOTED / 64];

/// The soft limit that [`raise_limit`] found before it raised the limit; 0: it has not raised the limit.
static GIVEN: AtomicU64 = AtomicU64::new(0);

/// Raises this process's limit of descriptors to the maximum. Forked children get the original limit back, because
/// they may use `select`. Returns the limit; `None` if it cannot be read.
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
        // SAFETY: the function exists as long as the program, takes no arguments, and does only what a forked child
        // may do.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// A descriptor that forked children close, so that the peer sees the end of the connection when the parent closes
/// it.
pub(super) struct Descriptor(OwnedFd);

impl Descriptor {
    /// Moves a descriptor to a number of at least [`LOWEST`], if one is free, and notes the descriptor.
    pub(super) fn new(fd: OwnedFd) -> Self {
        let high = copy(fd.as_fd(), LOWEST).unwrap_or(fd);
        Self::note(high)
    }

    /// Makes a second descriptor, with a number of at least [`LOWEST`] if one is free, and notes it.
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

/// Makes a second descriptor with a number of at least `lowest`. `exec` closes it.
fn copy(fd: BorrowedFd<'_>, lowest: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed; the new descriptor is ours.
    let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and has no other owner.
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

/// Restores the limit and closes the noted descriptors in a forked child. Does only what a program with threads may
/// do between `fork` and `exec`.
extern "C" fn in_child() {
    let given = GIVEN.load(Ordering::Relaxed);
    if given > 0 {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the structure is ours, and exists until both calls have returned.
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
            // SAFETY: no pointers are passed; the child does not use the device.
            unsafe { libc::close(fd as libc::c_int) };
            bits &= bits - 1;
        }
    }
}
