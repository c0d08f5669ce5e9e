//! Tells a thread that sleeps of frames, where the driver can: an interrupt, as far as memory links have them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use dpdk_sys as sys;

/// A descriptor that becomes readable when frames arrive at a port that was armed: see [`super::Port::arm`].
#[derive(Debug)]
pub struct RxEvent {
    epoll: OwnedFd,
}

impl RxEvent {
    /// Of the receive queue of a started device; none if its driver has no interrupts.
    pub(super) fn of(id: u16) -> Option<Self> {
        // SAFETY: no pointers are passed; a port that does not exist is refused.
        let fd = unsafe { sys::rte_eth_dev_rx_intr_ctl_q_get_fd(id, 0) };
        if fd < 0 {
            return None;
        }
        // SAFETY: the driver keeps it open as long as the device is started, and that is longer than this call.
        Self::new(unsafe { BorrowedFd::borrow_raw(fd) })
            .inspect_err(|e| tracing::warn!("frames that arrive while nobody polls will wait: {e}"))
            .ok()
    }

    /// Of what becomes readable with every frame.
    ///
    /// # Errors
    /// What epoll says.
    pub fn new(source: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else owns it.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        // Its edges: nobody reads what the peers write there.
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        // SAFETY: both descriptors are open; the event is copied.
        let status = unsafe {
            libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, source.as_raw_fd(), &raw mut event)
        };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { epoll }) }
    }

    /// What has happened so far is known: not readable until the next frame.
    pub fn clear(&self) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event; it does not wait.
        unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), &raw mut event, 1, 0) };
    }
}

impl AsFd for RxEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
