//! The sources of registered memory.

use std::io;

use crate::shared::error::{Error, Result};

/// A block of memory. Dropping it frees it.
pub(crate) trait Block: Send + Sync {
    /// Returns the address of the block's first byte.
    fn base(&self) -> *mut u8;
}

/// An allocator of memory to register.
pub(crate) trait Allocate: Send + Sync {
    /// Allocates `len` zeroed bytes (at least 1), aligned to a page.
    fn allocate(&self, len: usize) -> Result<Box<dyn Block>>;

    /// Returns whether memory of an application is of the kind that this allocator supplies, so that every port can
    /// send from it.
    fn holds(&self, _base: *const u8, _len: usize) -> bool {
        false
    }
}

/// Alignment of blocks from EAL's heap, in bytes.
#[cfg(feature = "dpdk")]
const PAGE: usize = 4096;

#[cfg(feature = "dpdk")]
impl Allocate for urnic_dataplane::Arena {
    fn allocate(&self, len: usize) -> Result<Box<dyn Block>> {
        match self.alloc(len, PAGE) {
            Ok(block) => Ok(Box::new(block)),
            Err(error) => Err(Error::NoMemory(error.to_string())),
        }
    }

    fn holds(&self, base: *const u8, len: usize) -> bool {
        Self::holds(self, base, len)
    }
}

#[cfg(feature = "dpdk")]
impl Block for urnic_dataplane::HugeBuf {
    fn base(&self) -> *mut u8 {
        self.as_ptr().as_ptr()
    }
}

/// Allocates ordinary private pages, which are present from the start.
pub(crate) struct PageAllocator;

struct Pages {
    base: *mut u8,
    len: usize,
}

// SAFETY: an anonymous mapping belongs to no thread.
unsafe impl Send for Pages {}
// SAFETY: as above; `base` returns only a raw pointer.
unsafe impl Sync for Pages {}

impl Allocate for PageAllocator {
    fn allocate(&self, len: usize) -> Result<Box<dyn Block>> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os("allocating memory for a region"));
        }
        Ok(Box::new(Pages { base: base.cast(), len }))
    }
}

impl Block for Pages {
    fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; its region was deregistered before.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// Makes the pages of a range present, for reading or for writing. Needs Linux 5.14.
///
/// # Errors
/// [`Error::Fault`] if the range is not mapped, or not with these rights, or if the kernel is older than 5.14.
pub(crate) fn fault_in(base: *mut u8, len: usize, write: bool) -> Result<()> {
    // SAFETY: only returns a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let start = base.map_addr(|a| a & !(page - 1));
    let span = len + (base as usize - start as usize);
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        // SAFETY: populating does not change contents; the kernel refuses unmapped ranges.
        if unsafe { libc::madvise(start.cast(), span, advice) } == 0 {
            return Ok(());
        }
        let source = io::Error::last_os_error();
        if source.kind() != io::ErrorKind::Interrupted {
            return Err(Error::Fault { addr: base as u64, len: len as u64, source });
        }
    }
}
