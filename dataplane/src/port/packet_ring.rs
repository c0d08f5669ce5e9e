//! Adjusts the packet sockets of DPDK's `af_packet` driver, one for each queue.
//!
//! The driver's send buffer is too small for its ring. When the buffer is full, the kernel leaves frames in the ring
//! until the next frames are sent, but the driver reports these frames as sent. The driver also receives
//! frames that other programs send on the interface, and does not report how many frames found no room. The driver does
//! not expose its sockets, so we find them among our descriptors.

use std::fs;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// A second descriptor of one of the driver's sockets.
#[derive(Debug)]
pub(super) struct PacketRing {
    socket: OwnedFd,
    drops: AtomicU64,
}

/// Returns the descriptors of the packet sockets of this process that receive every frame.
pub(super) fn sockets() -> Vec<RawFd> {
    let descriptors = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = descriptors.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|&fd| bound_to(fd).is_some()).collect()
}

/// Returns the index of the interface from which a packet socket receives every frame; `None` for other descriptors.
fn bound_to(fd: RawFd) -> Option<i32> {
    // SAFETY: integers only.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    let mut len = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address has the length stated; any other descriptor is refused.
    let status = unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) };
    let is_packet = status == 0 && i32::from(address.sll_family) == libc::AF_PACKET;
    (is_packet && address.sll_protocol == (libc::ETH_P_ALL as u16).to_be()).then_some(address.sll_ifindex)
}

impl PacketRing {
    /// Finds the sockets on the interface with index `index` that are not among those of `before`, and sets each up
    /// for a ring of `in_flight` bytes of frames. Returns them by ascending descriptor, which usually is the order of
    /// their queues.
    pub(super) fn find_all(index: i32, before: &[RawFd], in_flight: usize) -> Vec<Self> {
        let is_ours = |fd: &RawFd| !before.contains(fd) && bound_to(*fd) == Some(index);
        let mut found: Vec<RawFd> = sockets().into_iter().filter(is_ours).collect();
        found.sort_unstable();
        found.into_iter().filter_map(|fd| Self::of(fd, in_flight)).collect()
    }

    fn of(fd: RawFd, in_flight: usize) -> Option<Self> {
        // SAFETY: the driver keeps it open until its device, which was just plugged in, is removed.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok()?;
        let ring = Self { socket, drops: AtomicU64::new(0) };
        const PACKET_IGNORE_OUTGOING: i32 = 23;
        if !ring.set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1) {
            tracing::debug!(
                "this port also receives frames that other sockets send on the interface: the kernel cannot omit them"
            );
        }
        // Twice the frames' bytes, because the kernel also counts its own data about each frame.
        let bytes = i32::try_from(in_flight * 2).unwrap_or(i32::MAX / 2);
        // Without the privilege for such a large buffer, takes as much as is allowed. `kick` later sends the frames
        // that are left.
        if !ring.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes) {
            ring.set(libc::SOL_SOCKET, libc::SO_SNDBUF, bytes);
        }
        Some(ring)
    }

    fn set(&self, level: i32, option: i32, value: i32) -> bool {
        let (len, fd) = (mem::size_of::<i32>() as libc::socklen_t, self.socket.as_raw_fd());
        // SAFETY: the options used here take an int.
        unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), len) == 0 }
    }

    /// Makes the kernel send the frames that are left in the ring.
    pub(super) fn kick(&self) {
        // SAFETY: nothing is passed; the kernel reads the ring.
        unsafe { libc::sendto(self.socket.as_raw_fd(), ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0) };
    }

    /// Returns how many frames were dropped because the ring was full, since the socket was made.
    pub(super) fn drops(&self) -> u64 {
        #[repr(C)]
        #[derive(Default)]
        struct Statistics {
            frames: u32,
            drops: u32,
        }
        let mut statistics = Statistics::default();
        let mut len = mem::size_of_val(&statistics) as libc::socklen_t;
        let (fd, at) = (self.socket.as_raw_fd(), (&raw mut statistics).cast());
        // SAFETY: the option fills in two integers, of the length stated. Reading resets the kernel's counts.
        unsafe { libc::getsockopt(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, at, &raw mut len) };
        self.drops.fetch_add(statistics.drops.into(), Ordering::Relaxed) + u64::from(statistics.drops)
    }
}
