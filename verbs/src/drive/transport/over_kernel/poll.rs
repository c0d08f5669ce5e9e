//! Reports when sockets become ready to read or write, by edge-triggered epoll.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use crate::drive::wakeup::Wakeup;

/// Maximum number of events taken at once.
const BATCH: usize = 64;

/// An epoll instance that reports each change of a socket once.
#[derive(Clone)]
pub(super) struct Poll(Arc<Epoll>);

struct Epoll(OwnedFd);

/// A change of a socket's state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    /// The token with which the socket was added.
    pub(super) token: u64,
    /// Whether there is data to read, or the end of the data.
    pub(super) readable: bool,
    /// Whether the kernel has room for data to send, or an error to report.
    pub(super) writable: bool,
    /// Whether the peer has ended its half, or the connection has failed.
    pub(super) ended: bool,
}

impl Poll {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and has no other owner.
        Ok(Self(Arc::new(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))))
    }

    /// Begins to report events of a socket, with `token`. The reports end with [`remove`](Self::remove), or when all
    /// descriptors of the socket are closed, including those of the program and of other processes.
    pub(super) fn add(&self, socket: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: both descriptors are open; the event is copied.
        let status = unsafe {
            libc::epoll_ctl(self.0.0.as_raw_fd(), libc::EPOLL_CTL_ADD, socket.as_raw_fd(), &raw mut event)
        };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Ends the reports about a socket, which stays open.
    pub(super) fn remove(&self, socket: BorrowedFd<'_>) {
        // SAFETY: both descriptors are open; Linux ignores the event.
        unsafe {
            libc::epoll_ctl(
                self.0.0.as_raw_fd(),
                libc::EPOLL_CTL_DEL,
                socket.as_raw_fd(),
                std::ptr::null_mut(),
            )
        };
    }

    /// Calls `f` for each of at most [`BATCH`] sockets whose state has changed. Returns false if no socket's state
    /// has changed.
    pub(super) fn look(&self, mut f: impl FnMut(Ready)) -> bool {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        // SAFETY: the array has room for the stated number of events; the call does not wait.
        let n =
            unsafe { libc::epoll_wait(self.0.0.as_raw_fd(), events.as_mut_ptr(), BATCH as libc::c_int, 0) };
        for event in events.iter().take(usize::try_from(n).unwrap_or(0)) {
            let has = |bits: libc::c_int| event.events & bits as u32 != 0;
            let over = has(libc::EPOLLERR | libc::EPOLLHUP);
            f(Ready {
                token: event.u64,
                readable: over || has(libc::EPOLLIN | libc::EPOLLRDHUP),
                writable: over || has(libc::EPOLLOUT),
                ended: over || has(libc::EPOLLRDHUP),
            });
        }
        n > 0
    }

    /// Returns the descriptor that wakes the engine's sleeping thread when a socket's state changes.
    pub(super) fn wakeup(&self) -> Arc<dyn Wakeup> {
        self.0.clone()
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Wakeup for Epoll {
    /// Does nothing, because the engine takes the events in its next pass.
    fn clear(&self) {}

    fn is_certain(&self) -> bool {
        true
    }
}
