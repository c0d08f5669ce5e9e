//! Pools of mbufs.

use std::cell::UnsafeCell;
use std::ffi::CString;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dpdk_sys as sys;

use super::mbuf::prefetch_for_writing;
use super::references::release_one_more;
use super::{ATTACHED, Mbuf, TxBuf};
use crate::eal::{self, Eal};

mod lifo;

/// Headroom, in bytes, before the data of a fresh mbuf.
pub const HEADROOM: usize = sys::RTE_PKTMBUF_HEADROOM as usize;

/// The threads that use a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Users {
    /// One thread at a time: the thread that drives the engine that owns the port.
    Engine,
    /// The engine's thread, and the thread of the peer of an in-process link, which returns mbufs.
    Link,
}

/// A pool could not be made.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "no memory for a pool of {frames} frames of {room} bytes ({reason}); DPDK has {free_mb} MiB free: raise \
     memory.mb, or lower port.mtu; if the program starts DPDK itself, let it start DPDK with more memory (EAL's option \
     -m, SPDK's -s)"
)]
pub struct PoolError {
    frames: u32,
    room: usize,
    reason: String,
    free_mb: usize,
}

/// A fixed number of mbufs, from which one engine takes.
///
/// Mempools cache mbufs only for threads that EAL knows, and EAL usually knows none of the threads that drive an engine
/// (SPDK's reactors are an exception). So the mempool has no cache. If only the engine uses it, the mempool keeps its
/// mbufs on a stack without locks. If the peer of an in-process link returns mbufs as well, the mempool keeps them in
/// DPDK's ring.
#[derive(Debug)]
pub struct Pool {
    mempool: NonNull<sys::rte_mempool>,
    capacity: usize,
    room: usize,
    eal: Arc<Eal>,
    leases: Arc<()>,
}

/// Keeps a mempool alive even after the pool's owner is gone, for a driver that is going to take mbufs from it.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    mempool: NonNull<sys::rte_mempool>,
    _kept: Arc<()>,
}

// SAFETY: only an address; the users of the mempool ensure that only the threads that `Users` names use it.
unsafe impl Send for Lease {}
// SAFETY: as above; nothing here changes.
unsafe impl Sync for Lease {}

impl Lease {
    pub(crate) fn as_ptr(&self) -> *mut sys::rte_mempool {
        self.mempool.as_ptr()
    }
}

/// Data shared by all mbufs that refer to lent memory, which is memory outside the pool that is sent without a copy.
/// DPDK requires a reference count here, and a function that it calls when the count becomes 0. All lent memory shares
/// this count, so it has no meaning, and the function does nothing. Lenders learn from TCP when their memory is free.
struct Lent(UnsafeCell<sys::rte_mbuf_ext_shared_info>);

// SAFETY: only the count changes, by DPDK's atomic instructions.
unsafe impl Sync for Lent {}

static LENT: Lent = Lent(UnsafeCell::new(sys::rte_mbuf_ext_shared_info {
    free_cb: Some(ignore_free),
    fcb_opaque: ptr::null_mut(),
    refcnt: 1,
}));

/// Returns the shared data of all mbufs that refer to lent memory.
#[inline]
pub(crate) fn lent() -> *mut sys::rte_mbuf_ext_shared_info {
    LENT.0.get()
}

/// Does nothing when the meaningless count of [`Lent`] becomes 0.
unsafe extern "C" fn ignore_free(_: *mut std::ffi::c_void, _: *mut std::ffi::c_void) {}

/// A mempool whose owner was dropped. Frames in its mbufs may still be alive.
struct Retired {
    mempool: NonNull<sys::rte_mempool>,
    capacity: usize,
    leases: Arc<()>,
}

// SAFETY: only `reap` uses the pointer, under the lock of RETIRED. It counts the mbufs in a mempool without leases, and
// frees the mempool once all its mbufs are back.
unsafe impl Send for Retired {}

static RETIRED: Mutex<Vec<Retired>> = Mutex::new(Vec::new());

impl Pool {
    /// Makes a pool of `frames` mbufs. Each has `room` bytes after the headroom, rounded up to a multiple of 64. The
    /// pool is in memory of NUMA node `node`; of any node if `node` is `None` or EAL has too little memory there.
    pub(crate) fn new(
        eal: &Arc<Eal>,
        frames: u32,
        room: usize,
        users: Users,
        node: Option<u32>,
    ) -> Result<Self, PoolError> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let name = format!("urnic{}", SERIAL.fetch_add(1, Ordering::Relaxed));
        let name = CString::new(name).unwrap_or_default();
        let ops = match users {
            Users::Engine => lifo::NAME,
            Users::Link => c"ring_mp_mc",
        };
        let full = HEADROOM + room.next_multiple_of(64);
        let made =
            u16::try_from(full).map_err(|_| "a frame of at most 64 KiB fits".to_owned()).and_then(|full| {
                eal.control(|| {
                    reap();
                    lifo::register().map_err(eal::strerror)?;
                    // SAFETY: EAL runs; the strings are NUL-terminated.
                    let made_at = |node: i32| unsafe {
                        NonNull::new(sys::rte_pktmbuf_pool_create_by_ops(
                            name.as_ptr(),
                            frames,
                            0,
                            0,
                            full,
                            node,
                            ops.as_ptr(),
                        ))
                    };
                    const ANY: i32 = -1;
                    let near = node.and_then(|node| made_at(i32::try_from(node).unwrap_or(ANY)));
                    if let (Some(node), None) = (node, near) {
                        tracing::warn!(
                            "the port's NUMA node {node} has no memory for frames, so they use that of another node, which \
                             is slower: reserve hugepages in /sys/devices/system/node/node{node}/hugepages"
                        );
                    }
                    near.or_else(|| made_at(ANY)).map(|m| m.as_ptr() as usize).ok_or_else(|| eal::strerror(eal::errno()))
                })
            });
        match made {
            Ok(at) => Ok(Self {
                // SAFETY: not null, checked above; nobody uses the pool yet.
                mempool: unsafe {
                    lifo::honour_marks(at as *mut sys::rte_mempool);
                    NonNull::new_unchecked(at as *mut sys::rte_mempool)
                },
                capacity: frames as usize,
                room: full - HEADROOM,
                eal: Arc::clone(eal),
                leases: Arc::default(),
            }),
            Err(reason) => Err(PoolError { frames, room, reason, free_mb: eal.heap().1 >> 20 }),
        }
    }

    /// Returns the number of all mbufs, taken or not.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns how many mbufs can be taken now.
    #[inline]
    pub fn available(&self) -> usize {
        let pool = self.mempool.as_ptr();
        // SAFETY: the mempool lives, and is ours to use.
        unsafe { lifo::available(pool).unwrap_or_else(|| sys::rte_mempool_avail_count(pool) as usize) }
    }

    /// Returns how many bytes of data an mbuf can hold after its headroom.
    pub fn room(&self) -> usize {
        self.room
    }

    pub(crate) fn lease(&self) -> Lease {
        Lease { mempool: self.mempool, _kept: Arc::clone(&self.leases) }
    }

    /// From now on, drivers get at least `least` mbufs at a time, or none.
    #[inline]
    pub(crate) fn set_least(&mut self, least: u32) {
        // SAFETY: the mempool lives, and is ours to use.
        unsafe { lifo::set_least(self.mempool.as_ptr(), least) }
    }

    /// Takes an mbuf without data; `None` if the pool is empty.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<NonNull<sys::rte_mbuf>> {
        let pool = self.mempool.as_ptr();
        // SAFETY: the mempool lives, and is ours to use.
        let object = unsafe {
            lifo::take(pool).or_else(|| {
                let mut object = ptr::null_mut();
                (sys::rte_mempool_get_bulk(pool, &raw mut object, 1) == 0).then_some(object)
            })
        }?;
        let mut m = NonNull::new(object.cast::<sys::rte_mbuf>())?;
        // SAFETY: mbufs in a pool are unused, with reference count one and no next segment.
        let mbuf = unsafe { m.as_mut() };
        mbuf.data_off = HEADROOM as u16;
        mbuf.data_len = 0;
        mbuf.pkt_len = 0;
        mbuf.ol_flags = 0;
        Some(m)
    }

    /// Takes an mbuf to write a frame into; `None` if the pool is empty.
    #[inline]
    pub fn mbuf(&mut self) -> Option<Mbuf> {
        // SAFETY: `take` gives ownership of a fresh mbuf.
        self.take().map(|m| unsafe { Mbuf::from_raw(m) })
    }

    /// Takes a buffer to write payload into; `None` if the pool is empty.
    #[inline]
    pub fn buffer(&mut self) -> Option<TxBuf> {
        self.take().map(|m| {
            // SAFETY: `take` gives ownership of a fresh mbuf.
            unsafe {
                prefetch_for_writing(m.as_ref().buf_addr.cast(), HEADROOM + 64);
                TxBuf::new(Mbuf::from_raw(m))
            }
        })
    }
}

/// Returns an mbuf to its pool.
///
/// # Safety
/// `m` is a single-segment direct mbuf without other users, and the caller no longer uses it.
#[inline]
pub(crate) unsafe fn give_back(m: NonNull<sys::rte_mbuf>) {
    // SAFETY: as the caller promises; such an mbuf is in the state in which pools keep them.
    unsafe {
        if lifo::give_back(m.as_ref().pool, m.as_ptr().cast()).is_none() {
            sys::rte_pktmbuf_free_seg(m.as_ptr());
        }
    }
}

/// Releases one reference to each segment of a frame, as `rte_pktmbuf_free` does, but without atomic instructions.
///
/// # Safety
/// `m` is the first mbuf of a frame, and the caller no longer uses it. Only this thread uses the frame's mbufs.
#[inline]
pub(crate) unsafe fn release(m: NonNull<sys::rte_mbuf>) {
    let mut segment = Some(m);
    while let Some(m) = segment {
        // SAFETY: as the caller promises. The link is read before the mbuf is released.
        unsafe {
            segment = NonNull::new(m.as_ref().next);
            release_alone(m);
        }
    }
}

/// Returns whether the pool of an mbuf is kept as a stack.
///
/// # Safety
/// `m` is alive.
#[inline]
pub(super) unsafe fn is_stack(m: NonNull<sys::rte_mbuf>) -> bool {
    // SAFETY: as the caller promises.
    unsafe { lifo::is_stack(m.as_ref().pool) }
}

/// Releases one reference to an mbuf, as `rte_pktmbuf_free_seg` does, but faster if only this thread uses the mbuf's
/// pool.
///
/// # Safety
/// The reference is the caller's, who no longer uses the mbuf.
#[inline]
pub(crate) unsafe fn release_segment(m: NonNull<sys::rte_mbuf>) {
    // SAFETY: as the caller promises. Only one thread at a time uses a pool that is kept as a stack, and its mbufs.
    unsafe {
        match is_stack(m) {
            true => release_alone(m),
            false => sys::rte_pktmbuf_free_seg(m.as_ptr()),
        }
    }
}

/// Releases one reference to an mbuf, without atomic instructions.
///
/// # Safety
/// As [`release_segment`]. Only this thread uses the mbuf.
#[inline]
unsafe fn release_alone(mut m: NonNull<sys::rte_mbuf>) {
    // SAFETY: as the caller promises. An mbuf without other users is reset to the state in which pools keep mbufs.
    unsafe {
        // First, whatever the count, so that an mbuf with a mark has a payload (references.rs).
        if release_one_more(m) {
            return;
        }
        let mbuf = m.as_mut();
        match mbuf.refcnt {
            1 if mbuf.ol_flags & ATTACHED == 0 => {
                mbuf.next = ptr::null_mut();
                mbuf.nb_segs = 1;
                give_back(m);
            }
            1 => sys::rte_pktmbuf_free_seg(m.as_ptr()),
            shared => mbuf.refcnt = shared - 1,
        }
    }
}

/// Maximum number of bytes of payload that are prefetched at a time: a processor has some ten to fifty fetches under
/// way.
pub(crate) const FORESEEN: usize = 2048;

/// Prefetches for writing the mbuf that the pool of `m` gives next, and its buffer: the headroom, in which the headers
/// end, and `len` bytes of payload. The buffer begins where the mbuf ends, because our pools have no private data.
///
/// # Safety
/// `m` is alive, and only this thread uses its pool.
#[inline]
pub(crate) unsafe fn foresee_next(m: NonNull<sys::rte_mbuf>, len: usize) {
    // SAFETY: as the caller promises.
    if let Some(next) = unsafe { lifo::top(m.as_ref().pool) } {
        let len = len.min(FORESEEN);
        prefetch_for_writing(next.cast(), size_of::<sys::rte_mbuf>() + HEADROOM + len);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let leases = std::mem::take(&mut self.leases);
        let retired = Retired { mempool: self.mempool, capacity: self.capacity, leases };
        RETIRED.lock().unwrap_or_else(PoisonError::into_inner).push(retired);
        self.eal.control(reap);
    }
}

/// Frees the retired mempools that have no lease and to which every frame has come back. Runs on the control thread,
/// because freeing may change the memory that the virtio drivers share with their peers.
fn reap() {
    let mut retired = RETIRED.lock().unwrap_or_else(PoisonError::into_inner);
    retired.retain(|r| {
        let leased = Arc::strong_count(&r.leases) > 1;
        // SAFETY: the mempool lives until it is freed here.
        let full =
            !leased && unsafe { sys::rte_mempool_avail_count(r.mempool.as_ptr()) } as usize >= r.capacity;
        if full {
            // SAFETY: its owner is gone and all its mbufs are in it, so nothing refers to it.
            unsafe { sys::rte_mempool_free(r.mempool.as_ptr()) }
        }
        !full
    });
}

/// Returns the number of pools that wait for frames to come back. For tests of leaks.
#[doc(hidden)]
pub fn retired_pools() -> usize {
    RETIRED.lock().unwrap_or_else(PoisonError::into_inner).len()
}
