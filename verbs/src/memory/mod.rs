//! Memory regions. The peer and the application may write registered memory at any time, so it is never a Rust
//! slice: all access is by volatile copies within checked bounds.

mod allocate;
mod copy;
mod regions;
mod stag;
mod table;

use std::sync::atomic::{AtomicU8, Ordering};

use bitflags::bitflags;

pub(crate) use allocate::{Allocate, Block, PageAllocator};
pub(crate) use regions::Regions;
pub(crate) use table::{MAX_REGIONS, MrEntry, MrFault, MrTable};

use crate::error::{Error, Result};
use crate::pd::Pd;

bitflags! {
    /// What may be done with a memory region. Local reading always may.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Access: u8 {
        /// Receives and Reads of this node may write it.
        const LOCAL_WRITE = 1;
        /// The peer may write it; needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may read it.
        const REMOTE_READ = 1 << 2;
    }
}

impl Access {
    /// The rights that a peer can have; a region with any of them can be invalidated remotely.
    pub(crate) const REMOTE: Self = Self::REMOTE_WRITE.union(Self::REMOTE_READ);
}

/// A memory region. Dropping it deregisters it; after that the device does not touch the memory any more.
pub struct Mr {
    base: *mut u8,
    len: u64,
    access: Access,
    stag: u32,
    pd: Pd,
    /// Memory of the device's allocator; freed after deregistration.
    _block: Option<Box<dyn Block>>,
}

// SAFETY: the memory behind `base` is only accessed by volatile copies; everything else is Send + Sync.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// # Safety
    /// As [`Pd::reg_mr`].
    pub(crate) unsafe fn register(pd: &Pd, base: *mut u8, len: usize, access: Access) -> Result<Self> {
        check(base, len, access)?;
        allocate::fault_in(base, len, access.contains(Access::LOCAL_WRITE))?;
        Self::insert(pd, base, len, access, None)
    }

    pub(crate) fn allocate(pd: &Pd, len: usize, access: Access) -> Result<Self> {
        if len == 0 {
            return Err(Error::Invalid("a memory region needs at least one byte"));
        }
        let block = pd.shared.device.memory.allocate(len)?;
        let base = block.base();
        check(base, len, access)?;
        Self::insert(pd, base, len, access, Some(block))
    }

    fn insert(
        pd: &Pd,
        base: *mut u8,
        len: usize,
        access: Access,
        block: Option<Box<dyn Block>>,
    ) -> Result<Self> {
        let len = len as u64;
        let entry = MrEntry { base, len, pd: pd.shared.id, access, virt: base as u64 };
        let stag = pd.shared.device.shard.control(|engine| engine.table().insert(entry))?;
        pd.shared.regions.insert(stag, base, len);
        Ok(Self { base, len, access, stag, pd: pd.clone(), _block: block })
    }

    /// Address of the first byte; also its tagged offset for the peer.
    pub fn addr(&self) -> u64 {
        self.base as u64
    }

    /// Where the region starts.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base
    }

    /// Length in bytes; never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The key for scatter-gather elements of this node.
    pub fn lkey(&self) -> u32 {
        self.stag
    }

    /// The key (STag) for the peer.
    pub fn rkey(&self) -> u32 {
        self.stag
    }

    /// The rights.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Copies `src` into the region at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; nothing is copied then.
    pub fn write_at(&self, offset: u64, src: &[u8]) -> Result<()> {
        let to = self.within(offset, src.len() as u64)?;
        // SAFETY: the bounds are checked, and the region's memory is there as long as the region.
        unsafe { copy::write(to, src) };
        Ok(())
    }

    /// Copies from the region at `offset` into `dst`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; nothing is copied then.
    pub fn read_at(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        let from = self.within(offset, dst.len() as u64)?;
        // SAFETY: the bounds are checked, and the region's memory is there as long as the region.
        unsafe { copy::read(from, dst) };
        Ok(())
    }

    /// Reads one byte with acquire ordering: what the device placed before it (placement ascends) is
    /// visible after it.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn load_u8(&self, offset: u64) -> Result<u8> {
        let at = self.within(offset, 1)?;
        // SAFETY: the byte is in bounds; a byte is always aligned.
        Ok(unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Acquire))
    }

    /// Writes one byte with release ordering.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn store_u8(&self, offset: u64, value: u8) -> Result<()> {
        let at = self.within(offset, 1)?;
        // SAFETY: the byte is in bounds; a byte is always aligned.
        unsafe { AtomicU8::from_ptr(at) }.store(value, Ordering::Release);
        Ok(())
    }

    fn within(&self, offset: u64, len: u64) -> Result<*mut u8> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.base.wrapping_add(offset as usize)),
            _ => Err(Error::OutOfBounds { offset, len, region: self.len }),
        }
    }
}

/// Whether range and rights make sense (verbs §7).
fn check(base: *mut u8, len: usize, access: Access) -> Result<()> {
    if base.is_null() || len == 0 {
        return Err(Error::Invalid("a memory region needs at least one byte"));
    }
    if (base as usize).checked_add(len).is_none() {
        return Err(Error::Invalid("the memory region wraps around the address space"));
    }
    if access.contains(Access::REMOTE_WRITE) && !access.contains(Access::LOCAL_WRITE) {
        return Err(Error::Invalid("REMOTE_WRITE needs LOCAL_WRITE"));
    }
    Ok(())
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.pd.shared.regions.remove(self.stag);
        // Between passes: when this returns, nothing of the engine uses the memory.
        let _ = self.pd.shared.device.shard.control(|engine| engine.table().remove(self.stag));
    }
}

impl std::fmt::Debug for Mr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mr")
            .field("addr", &self.base)
            .field("len", &self.len)
            .field("access", &self.access)
            .field("stag", &format_args!("{:#010x}", self.stag))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
