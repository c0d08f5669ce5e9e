//! Memory on EAL's heap: hugepages, or ordinary pages where there are none. Any port can send from it.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;

use dpdk_sys as sys;

use crate::{Eal, MemoryKind, joined};

/// EAL's heap has no free block of the wanted size.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "no block of {len} bytes in {} memory ({free_mb} MiB free, perhaps in pieces): {}",
    .memory.name(),
    .memory.advice()
)]
pub struct ArenaError {
    len: usize,
    memory: MemoryKind,
    free_mb: usize,
}

/// Allocates memory to be registered.
#[derive(Clone, Debug)]
pub struct Arena {
    eal: Arc<Eal>,
}

impl Arena {
    /// Creates an allocator on EAL's heap.
    pub fn new(eal: &Arc<Eal>) -> Self {
        Self { eal: Arc::clone(eal) }
    }

    /// Allocates a zeroed block of `len` bytes (at least one), aligned to `align` (a power of two) or a cache line,
    /// whichever is larger.
    pub fn alloc(&self, len: usize, align: usize) -> Result<HugeBuf, ArenaError> {
        let failure = || ArenaError { len, memory: self.eal.memory(), free_mb: self.eal.heap().1 >> 20 };
        let layout = Layout::from_size_align(len.max(1), align.max(64)).map_err(|_| failure())?;
        let align = u32::try_from(layout.align()).map_err(|_| failure())?;
        // A control call, because the heap may grow. The virtio drivers then tell their peers over sockets, which may
        // raise SIGPIPE.
        let at = self.eal.control(|| {
            // SAFETY: EAL runs; a null type is allowed.
            unsafe { sys::rte_zmalloc_socket(std::ptr::null(), layout.size(), align, -1) as usize }
        });
        let ptr = NonNull::new(at as *mut u8).ok_or_else(failure)?;
        Ok(HugeBuf { ptr, len, eal: Arc::clone(&self.eal) })
    }

    /// Returns whether all of these bytes are EAL memory. They may be from this arena, or the program may have got
    /// them from EAL by calls of its own (as SPDK does). The caller must own the bytes and keep them in place during
    /// the call.
    pub fn holds(&self, base: *const u8, len: usize) -> bool {
        joined::holds(base, len)
    }
}

/// A block of EAL memory, freed on drop. Peers and applications may write it at any time, so it must never be accessed
/// as a slice.
#[derive(Debug)]
pub struct HugeBuf {
    ptr: NonNull<u8>,
    len: usize,
    eal: Arc<Eal>,
}

// SAFETY: only an address and a length; code that accesses the bytes follows its own rules.
unsafe impl Send for HugeBuf {}
// SAFETY: as above; there are no methods that access the bytes.
unsafe impl Sync for HugeBuf {}

impl HugeBuf {
    /// Returns the address of the first byte.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Returns the length of the block in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the block was allocated with length 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for HugeBuf {
    fn drop(&mut self) {
        // A forked child has only a copy of EAL, without the thread that makes control calls.
        if joined::is_gone() || self.eal.is_parents() {
            return;
        }
        let at = self.ptr.as_ptr() as usize;
        // SAFETY: allocated by rte_zmalloc_socket, freed once.
        self.eal.control(|| unsafe { sys::rte_free(at as *mut _) });
    }
}
