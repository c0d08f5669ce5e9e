//! Wakes a thread that sleeps until frames arrive. This needs a driver with receive interrupts, such as that of
//! `virtio_user` or `vhost`. Such a driver has a descriptor for each queue, which becomes readable when a frame
//! arrives.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The maximum number of sources of an event.
const MOST: usize = urnic_config::MAX_ENGINES;

/// A descriptor that becomes readable when frames arrive at an armed port: see `Port::arm`.
#[derive(Debug)]
pub struct RxEvent {
    epoll: OwnedFd,
}

impl RxEvent {
    /// Creates an event from a source that becomes readable with every frame.
    ///
    /// # Errors
    /// The errors of epoll.
    pub fn new(source: BorrowedFd<'_>) -> io::Result<Self> {
        Self::of_all(&[source])
    }

    /// Creates an event from several sources, each of which becomes readable with every frame.
    ///
    /// # Errors
    /// The errors of epoll.
    pub fn of_all(sources: &[BorrowedFd<'_>]) -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        // Edge-triggered, because no thread reads what the peers write to the sources.
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        for source in sources {
            // SAFETY: both descriptors are open; the event is copied.
            let status = unsafe {
                libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, source.as_raw_fd(), &raw mut event)
            };
            if status < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { epoll })
    }

    /// Forgets past frames: the event is not readable until the next frame.
    pub fn clear(&self) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // Each source is reported once, and there are at most MOST.
        for _ in 0..MOST {
            // SAFETY: `event` has room for one event. The call does not wait.
            if unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), &raw mut event, 1, 0) } <= 0 {
                return;
            }
        }
    }
}

impl AsFd for RxEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
