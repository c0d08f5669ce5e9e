//! Memory regions.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::api::pd::Pd;
use crate::api::qp::Qp;
use crate::shared::error::{Error, Result};
use crate::shared::memory::{Access, Block, MrEntry, copy, fault_in};
use crate::shared::quiet::in_forked_child;
use crate::shared::wr::Sge;

/// A memory region. Dropping it deregisters it: afterwards the device no longer touches the memory, even for
/// work that was under way, and windows that were bound to the region grant nothing. A drop in a signal handler
/// that has interrupted the device's own work cannot wait for that work: the device may then still touch the
/// memory.
///
/// ```
/// use urnic::simulation::{Options, Simulation};
/// use urnic::{Access, Error, Rereg};
///
/// # fn main() -> Result<(), Error> {
/// let simulation = Simulation::new(&Options::default())?;
/// let pd = simulation.device(0).alloc_pd();
/// let mut mr = pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
/// mr.write_at(100, b"hello")?;
/// // A peer that knows these two can write to the region:
/// let (address, key) = (mr.addr(), mr.rkey());
/// // Now no peer can:
/// mr.revoke()?;
/// // From now on peers may only read it. They use another key, and count its bytes from 0.
/// let access = Access::REMOTE_READ | Access::ZERO_BASED;
/// // SAFETY: the memory is the device's own, and no references to it exist.
/// unsafe { mr.rereg(&Rereg { access: Some(access), ..Rereg::default() })? };
/// assert!(mr.addr() == 0 && mr.rkey() != key && address != 0);
/// # Ok(())
/// # }
/// ```
pub struct Mr {
    base: *mut u8,
    len: u64,
    /// Address or tagged offset of the first byte.
    virt: u64,
    access: Access,
    stag: u32,
    pd: Pd,
    /// The block of the device's allocator that holds the memory, freed after deregistration; `None` for memory of
    /// the application.
    block: Option<Box<dyn Block>>,
}

// SAFETY: a handle accesses the memory behind `base` only by volatile copies, and by atomic loads and stores of
// single bytes; everything else is Send + Sync.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

/// The changes that [`Mr::rereg`] makes. A field that is `None` changes nothing.
#[derive(Clone, Copy, Default)]
pub struct Rereg<'a> {
    /// New rights.
    pub access: Option<Access>,
    /// New protection domain, of the same device.
    pub pd: Option<&'a Pd>,
    /// New memory, of the application: first byte and length in bytes. It is addressed by virtual addresses, or
    /// from 0 if the rights contain [`Access::ZERO_BASED`].
    pub memory: Option<(*mut u8, usize)>,
}

impl Mr {
    /// # Safety
    /// As for [`Pd::reg_mr`].
    pub(crate) unsafe fn register(
        pd: &Pd,
        base: *mut u8,
        len: usize,
        iova: Option<u64>,
        access: Access,
    ) -> Result<Self> {
        let virt = first_offset(base, iova, access)?;
        check(base, len, virt, access)?;
        fault_in(base, len, access.contains(Access::LOCAL_WRITE))?;
        Self::insert(pd, base, len, virt, access, None)
    }

    pub(crate) fn allocate(pd: &Pd, len: usize, access: Access) -> Result<Self> {
        if len == 0 {
            return Err(Error::Invalid("a memory region needs at least one byte"));
        }
        if in_forked_child() {
            return Err(Error::Forked);
        }
        let block = pd.shared.device.memory.allocate(len)?;
        let base = block.base();
        let virt = first_offset(base, None, access)?;
        check(base, len, virt, access)?;
        Self::insert(pd, base, len, virt, access, Some(block))
    }

    fn insert(
        pd: &Pd,
        base: *mut u8,
        len: usize,
        virt: u64,
        access: Access,
        block: Option<Box<dyn Block>>,
    ) -> Result<Self> {
        let len = len as u64;
        let ours = block.is_some() || pd.shared.device.memory.holds(base, len as usize);
        let entry = MrEntry { base, len, pd: pd.shared.scope, access, virt, ours };
        let stag = pd.shared.device.table.insert(entry)?;
        pd.shared.regions.insert(stag, base, len, virt);
        Ok(Self { base, len, virt, access, stag, pd: pd.clone(), block })
    }

    /// Deregisters the region as dropping it does, but only if no windows are bound to it.
    ///
    /// # Errors
    /// [`Error::WindowsBound`], [`Error::Forked`], [`Error::Interrupted`]; each with the region, which stays
    /// registered.
    pub fn deregister(self) -> Result<(), (Self, Error)> {
        match self.refuse_if_bound() {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }

    fn refuse_if_bound(&self) -> Result<()> {
        match self.pd.shared.device.table.windows(self.stag)? {
            0 => Ok(()),
            windows => Err(Error::WindowsBound(windows)),
        }
    }

    /// Withdraws all access to the region, of peers and of this node. The memory stays registered to the device.
    /// When this returns, no work can read or change the memory, not even work that was under way.
    /// [`SendOp::RegMr`](crate::SendOp::RegMr) and [`rereg`](Self::rereg) grant access again.
    ///
    /// # Errors
    /// [`Error::WindowsBound`]: nothing has changed. [`Error::Interrupted`]: the memory may still be used,
    /// because the calling signal handler has interrupted the device's own work; call this again outside of the
    /// handler.
    pub fn revoke(&self) -> Result<()> {
        let device = &self.pd.shared.device;
        device.table.revoke(self.stag)?;
        device.take_back(&self.range())
    }

    /// Limits the region to `qp`: the domain's other queue pairs, and their peers, can no longer use it. `qp`'s
    /// peer may invalidate the region if the region has any remote right. When `qp` is destroyed or goes back
    /// to idle, the region cannot be used until it is limited anew, to the same queue pair or another, or
    /// [registered anew](Self::rereg).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the queue pair belongs to another protection domain. [`Error::Interrupted`]: other
    /// queue pairs may still use the region; call this again outside of the signal handler.
    pub fn restrict_to(&self, qp: &Qp) -> Result<()> {
        if !Arc::ptr_eq(&qp.pd().shared, &self.pd.shared) {
            return Err(Error::Invalid("the queue pair belongs to another protection domain"));
        }
        let scope = qp.shared.scopes.qp;
        let device = &self.pd.shared.device;
        device.table.restrict(self.stag, scope)?;
        device.await_passes()
    }

    /// Registers the region anew, with other rights, in another protection domain or with other memory.
    /// Afterwards the region is like a newly registered one, and has new keys. When this returns, the old keys
    /// grant nothing, and the device no longer touches memory that the region has given up. A region registered
    /// with an `iova` ([`Pd::reg_mr_iova`]) keeps the `iova` as long as the region keeps its memory, and
    /// meanwhile cannot become [`Access::ZERO_BASED`] ([`Error::Invalid`]).
    ///
    /// # Errors
    /// As for [`Pd::reg_mr`], and [`Error::WindowsBound`]: the region is unchanged then.
    /// [`Error::Interrupted`]: if the region still has its old keys, it is unchanged. If it has new keys, it has
    /// changed, but device work that the calling signal handler has interrupted may still touch the old memory.
    ///
    /// # Safety
    /// As for [`Pd::reg_mr`], for the new memory and rights.
    pub unsafe fn rereg(&mut self, change: &Rereg<'_>) -> Result<()> {
        let pd = change.pd.unwrap_or(&self.pd).clone();
        if !Arc::ptr_eq(&pd.shared.device, &self.pd.shared.device) {
            return Err(Error::Invalid("the protection domain belongs to another device"));
        }
        let access = change.access.unwrap_or(self.access);
        let (base, len) = change.memory.unwrap_or((self.base, self.len as usize));
        let kept = change.memory.is_none() && !self.access.contains(Access::ZERO_BASED);
        let iova = (kept && self.virt != self.base as u64).then_some(self.virt);
        let virt = first_offset(base, iova, access)?;
        check(base, len, virt, access)?;
        fault_in(base, len, access.contains(Access::LOCAL_WRITE))?;
        let ours =
            change.memory.is_none() && self.block.is_some() || pd.shared.device.memory.holds(base, len);
        let entry = MrEntry { base, len: len as u64, pd: pd.shared.scope, access, virt, ours };
        let device = &pd.shared.device;
        let stag = device.table.replace(self.stag, entry)?;
        self.pd.shared.regions.remove(self.stag);
        pd.shared.regions.insert(stag, base, len as u64, virt);
        let taken_back = device.take_back(&self.range());
        if taken_back.is_ok() {
            let _ = device.table.release(self.stag);
        }
        if change.memory.is_some() {
            let block = self.block.take();
            if taken_back.is_err() {
                // Leaks the block, because a pass still uses it: the pass goes on when the signal handler that
                // called this returns.
                std::mem::forget(block);
            }
        }
        (self.base, self.len, self.virt) = (base, len as u64, virt);
        (self.access, self.stag, self.pd) = (access, stag, pd);
        taken_back
    }

    /// Returns the address that names the first byte: in scatter-gather elements of this node, and for the peer as a
    /// tagged offset. It is the virtual address unless the region was registered with [`Access::ZERO_BASED`] or by
    /// [`Pd::reg_mr_iova`].
    pub fn addr(&self) -> u64 {
        self.virt
    }

    /// Returns the virtual addresses of the region.
    fn range(&self) -> Range<usize> {
        self.base as usize..self.base as usize + self.len as usize
    }

    /// Returns a pointer to the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base
    }

    /// Returns the length in bytes; never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the key for scatter-gather elements of this node. While the region is registered by a
    /// [`SendOp::RegMr`](crate::SendOp::RegMr), the key of that request is valid instead.
    pub fn lkey(&self) -> u32 {
        self.stag
    }

    /// Returns the key (STag) for the peer.
    pub fn rkey(&self) -> u32 {
        self.stag
    }

    /// Returns the rights.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Copies `src` into the region at byte `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; nothing is copied then.
    pub fn write_at(&self, offset: u64, src: &[u8]) -> Result<()> {
        let to = self.within(offset, src.len() as u64)?;
        // SAFETY: the bounds are checked, and the memory lives as long as the region.
        unsafe { copy::write(to, src) };
        Ok(())
    }

    /// Copies bytes of the region, from byte `offset` on, into `dst`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; nothing is copied then.
    pub fn read_at(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        let from = self.within(offset, dst.len() as u64)?;
        // SAFETY: the bounds are checked, and the memory lives as long as the region.
        unsafe { copy::read(from, dst) };
        Ok(())
    }

    /// Reads one byte with acquire ordering. Bytes that the device has placed before this one are visible
    /// afterwards; the device places the bytes of a message in ascending order.
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

/// Returns the address or tagged offset that names the first byte.
fn first_offset(base: *mut u8, iova: Option<u64>, access: Access) -> Result<u64> {
    match iova {
        Some(_) if access.contains(Access::ZERO_BASED) => {
            Err(Error::Invalid("a zero-based memory region begins at address 0: give no other first address"))
        }
        Some(iova) => Ok(iova),
        None if access.contains(Access::ZERO_BASED) => Ok(0),
        None => Ok(base as u64),
    }
}

/// Checks that the range is neither empty nor wraps around, and that the rights are known and consistent.
fn check(base: *mut u8, len: usize, virt: u64, access: Access) -> Result<()> {
    if base.is_null() || len == 0 {
        return Err(Error::Invalid("a memory region needs at least one byte"));
    }
    if (base as usize).checked_add(len).is_none() || virt.checked_add(len as u64).is_none() {
        return Err(Error::Invalid("the memory region wraps around the address space"));
    }
    if !Access::all().contains(access) {
        return Err(Error::Invalid("unknown access rights"));
    }
    access.check()
}

impl Sge {
    /// Returns the element for `len` bytes of `mr` from byte `offset` on. Bounds are checked when the request is
    /// executed, not here.
    pub fn of(mr: &Mr, offset: u64, len: u32) -> Self {
        Self { addr: mr.addr().wrapping_add(offset), len, lkey: mr.lkey() }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.pd.shared.regions.remove(self.stag);
        let device = &self.pd.shared.device;
        // Taking each engine's lock is the grace period: when this returns, no engine uses the memory.
        let withdrawn = device.table.withdraw(self.stag).and_then(|()| device.take_back(&self.range()));
        if let Err(Error::Interrupted) = withdrawn.and_then(|()| device.table.release(self.stag)) {
            // Leaks the block, because a pass still uses it: the pass goes on when the signal handler that called this
            // returns.
            std::mem::forget(self.block.take());
        }
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
