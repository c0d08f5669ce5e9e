//! A counter that a program can wait for by poll, epoll or select.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::shared::error::{Error, Result};

/// An eventfd in semaphore mode: each [`take`](Self::take) takes what one [`signal`](Self::signal) added.
///
/// Our own operations never block. Whether a program's read of the descriptor blocks is the program's choice, so
/// the descriptor starts without `O_NONBLOCK`. On Linux before 5.8, the first `take` sets this flag, and the program's
/// reads then do not block.
#[derive(Debug)]
pub(crate) struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(Error::last_os("eventfd"));
        }
        // SAFETY: the descriptor is new, and has no other owner.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Adds one. The counter cannot overflow, because each count stands for an object in a queue.
    pub(crate) fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the buffer has 8 readable bytes.
        unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes one. Returns false if there is none.
    pub(crate) fn take(&self) -> bool {
        let mut count = [0u8; 8];
        let buffer = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        let fd = self.fd.as_raw_fd();
        // SAFETY: one buffer of 8 writable bytes.
        let read = unsafe { libc::preadv2(fd, &buffer, 1, -1, libc::RWF_NOWAIT) };
        if read < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EOPNOTSUPP) {
            return self.take_on_old_kernel();
        }
        read == count.len() as isize
    }

    /// Takes one on Linux before 5.8, where a read of an eventfd can avoid waiting only by `O_NONBLOCK`.
    #[cold]
    fn take_on_old_kernel(&self) -> bool {
        let mut count = [0u8; 8];
        let fd = self.fd.as_raw_fd();
        // SAFETY: the only pointer is to a buffer of 8 writable bytes.
        unsafe {
            libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK);
            libc::read(fd, count.as_mut_ptr().cast(), count.len()) == count.len() as isize
        }
    }

    /// Waits until there is something to take, or `timeout` has passed (`None`: no limit). Returns an error, of the
    /// kind [`Interrupted`](io::ErrorKind::Interrupted), if a signal handler has run.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let limit = timeout.map(|t| libc::timespec {
            tv_sec: t.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: t.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: one pollfd, and a timespec that lives through the call, or null.
        let ready = unsafe { libc::ppoll(&mut poll, 1, limit, std::ptr::null()) };
        if ready < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
