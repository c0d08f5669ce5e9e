//! References to mbufs.
//!
//! A frame and the payload in it share an mbuf, so its reference count would be 2. Drivers do not write to an mbuf
//! with other users: `virtio_user`'s then has its header elsewhere, not in front of the frame, and a descriptor and a
//! cache line more for each frame. But a payload does not use what lies in front of it. So the first frame that is
//! made in a payload's mbuf is not counted: a mark says that there is one reference more. When DPDK frees an mbuf
//! whose count is 1, it gives it back to its pool, which removes the mark instead of taking the mbuf
//! ([`lifo`](super::pool)). All references count alike, so it does not matter whose ends first.
//!
//! DPDK also unlinks an mbuf whose count is 1 when it frees it. So a frame that a driver holds must be counted unless
//! the only other reference is the payload's: a payload that ends takes the mark with it. The mbufs of a chain, which
//! must stay linked, are always counted, and so are those of pools of other kinds.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering, fence};

use dpdk_sys as sys;

use super::pool;

/// The mark, in a field that has a meaning only for received frames, and never this value.
const ONE_MORE: u32 = 1 << 31;

/// Returns whether the mbuf has one reference. If so, all accesses by former users have ended.
///
/// # Safety
/// The caller holds a reference.
#[inline]
pub(super) unsafe fn is_alone(m: NonNull<sys::rte_mbuf>) -> bool {
    // SAFETY: as the caller promises.
    let alone = unsafe { count(m).load(Ordering::Relaxed) == 1 && !has_one_more(m) };
    fence(Ordering::Acquire);
    alone
}

/// Takes one more reference to the mbuf of a payload that is no chain, for a frame or a clone.
///
/// # Safety
/// The caller holds a reference, and only this thread uses the mbuf's pool.
#[inline]
pub(super) unsafe fn retain(m: NonNull<sys::rte_mbuf>) {
    // SAFETY: as the caller promises.
    unsafe {
        if is_alone(m) && pool::is_stack(m) {
            set_mark(m, ONE_MORE);
        } else {
            retain_counted(m);
        }
    }
}

/// Takes one more reference, which is counted.
///
/// # Safety
/// The caller holds a reference, and only this thread uses the mbuf's pool.
#[inline]
pub(super) unsafe fn retain_counted(m: NonNull<sys::rte_mbuf>) {
    // SAFETY: as the caller promises.
    unsafe {
        if is_alone(m) {
            count(m).store(2, Ordering::Relaxed);
        } else {
            count(m).fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Makes `m` refer to the memory of `to`, and so take a counted reference to it.
///
/// # Safety
/// `m` is a fresh mbuf of ours. The caller holds a reference to `to`.
#[inline]
pub(super) unsafe fn attach(m: NonNull<sys::rte_mbuf>, to: NonNull<sys::rte_mbuf>) {
    // SAFETY: as the caller promises. The mark is copied too, but it is about `to` alone.
    unsafe {
        sys::rte_pktmbuf_attach(m.as_ptr(), to.as_ptr());
        set_mark(m, 0);
    }
}

/// Removes the mark. Returns whether there was one, so that the mbuf still has a user.
///
/// # Safety
/// `m` is an mbuf of a pool that is kept as a stack, and the reference that ends is the caller's.
#[inline]
pub(super) unsafe fn release_one_more(m: NonNull<sys::rte_mbuf>) -> bool {
    // SAFETY: as the caller promises.
    unsafe {
        let had = has_one_more(m);
        if had {
            set_mark(m, 0);
        }
        had
    }
}

/// # Safety
/// `m` is alive.
#[inline]
unsafe fn has_one_more(m: NonNull<sys::rte_mbuf>) -> bool {
    // SAFETY: as the caller promises. A number in any case.
    unsafe { m.as_ref().__bindgen_anon_1.packet_type == ONE_MORE }
}

/// # Safety
/// `m` is alive, and only this thread uses its pool.
#[inline]
unsafe fn set_mark(mut m: NonNull<sys::rte_mbuf>, mark: u32) {
    // SAFETY: as the caller promises.
    unsafe { m.as_mut().__bindgen_anon_1.packet_type = mark };
}

/// Returns the reference count, as DPDK itself accesses it.
///
/// # Safety
/// The caller holds a reference for as long as it uses the result.
#[inline]
unsafe fn count<'a>(m: NonNull<sys::rte_mbuf>) -> &'a AtomicU16 {
    // SAFETY: alive, as the caller promises; DPDK accesses the field by atomic operations of the same width.
    unsafe { AtomicU16::from_ptr(&raw mut (*m.as_ptr()).refcnt) }
}
