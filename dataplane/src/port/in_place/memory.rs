//! The memory that a peer shares with us, in mappings of our own.
//!
//! DPDK's vhost library maps this memory too, but takes its mappings away whenever the peer says so. A mapping of our
//! own stays valid until we drop it. If the peer has taken the memory out of use meanwhile, or is gone, we read old
//! octets, and do no harm.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::fstat;

/// A region of the peer's memory, as the vhost library describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region<'a> {
    /// Start of the region in the peer's own addresses, in which its descriptors are.
    pub(super) guest: u64,
    /// Length of the region.
    pub(super) len: usize,
    /// Address at which the library has mapped the region.
    pub(super) library: u64,
    /// Offset of the region in its file.
    pub(super) offset: usize,
    /// The file.
    pub(super) file: BorrowedFd<'a>,
}

/// A region, mapped by us.
#[derive(Debug)]
struct Mapped {
    guest: u64,
    library: u64,
    /// Start of the region.
    at: NonNull<u8>,
    len: usize,
    /// The whole mapping.
    map: NonNull<c_void>,
    map_len: usize,
}

/// All memory of a peer.
#[derive(Debug, Default)]
pub(super) struct Memory(Vec<Mapped>);

// SAFETY: addresses of shared memory, which are only used through raw pointers.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps the regions; `None` if one of them cannot be mapped.
    pub(super) fn map(regions: &[Region<'_>]) -> Option<Self> {
        let mut memory = Self::default();
        for region in regions {
            // A mapping of hugepages, which are the blocks of their files, can only be removed with all of its last
            // one.
            let block = usize::try_from(fstat(region.file).ok()?.st_blksize).ok()?;
            let map_len = region.offset.checked_add(region.len)?.checked_next_multiple_of(block)?;
            let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            // SAFETY: a mapping at a place that the kernel chooses.
            let map = unsafe {
                mmap(None, NonZeroUsize::new(map_len)?, access, MapFlags::MAP_SHARED, region.file, 0).ok()?
            };
            // SAFETY: the offset lies within the mapping.
            let at = unsafe { map.cast::<u8>().add(region.offset) };
            let Region { guest, len, library, .. } = *region;
            memory.0.push(Mapped { guest, library, at, len, map, map_len });
        }
        Some(memory)
    }

    /// Returns where the `len` octets at the peer's address `guest` are; `None` if they are not all in one region.
    #[inline]
    pub(super) fn at(&self, guest: u64, len: usize) -> Option<NonNull<u8>> {
        self.0.iter().find_map(|region| region.find(region.guest, guest, len))
    }

    /// Returns where the `len` octets are that the library has mapped at `library`; `None` if they are not all in one
    /// region.
    pub(super) fn of_library(&self, library: u64, len: usize) -> Option<NonNull<u8>> {
        self.0.iter().find_map(|region| region.find(region.library, library, len))
    }
}

impl Mapped {
    /// Returns where the `len` octets at `address` are, if the region starts at `start` in the same address space.
    #[inline]
    fn find(&self, start: u64, address: u64, len: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(address.checked_sub(start)?).ok()?;
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // SAFETY: within the region.
        Some(unsafe { self.at.add(offset) })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our own mapping. Whoever used it has dropped the memory.
        let _ = unsafe { munmap(self.map, self.map_len) };
    }
}
