//! Memory regions.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::api::pd::Pd;
use crate::api::qp::Qp;
use crate::shared::error::{Error, Result};
use crate::shared::memory::{Access, Block, MrEntry, copy, fault_in};
use crate::shared::wr::Sge;

/// A memory region. Dropping it deregisters it: after that the device does not touch the memory any more, whatever was
/// under way, and windows that were bound to it grant nothing.
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
/// // A peer that knows these two can write to it:
/// let (address, key) = (mr.addr(), mr.rkey());
/// // Not any more:
/// mr.revoke()?;
/// // Peers may only read it from now on, by another key, and count from 0.
/// let access = Access::REMOTE_READ | Access::ZERO_BASED;
/// // SAFETY: the memory is the device's own, and nobody has references to it.
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
    /// Memory of the device's allocator; freed after deregistration.
    block: Option<Box<dyn Block>>,
}

// SAFETY: the memory behind `base` is only accessed by volatile copies; everything else is Send + Sync.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

/// What [`Mr::rereg`] is to change; what is `None` stays.
#[derive(Clone, Copy, Default)]
pub struct Rereg<'a> {
    /// Other rights.
    pub access: Option<Access>,
    /// Another protection domain, of the same device.
    pub pd: Option<&'a Pd>,
    /// Other memory, of the application: first byte and length. Its bytes are addressed by their addresses, or from 0.
    pub memory: Option<(*mut u8, usize)>,
}

impl Mr {
    /// # Safety
    /// As [`Pd::reg_mr`].
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

    /// Deregisters the region as dropping it does, unless windows are bound to it.
    ///
    /// # Errors
    /// The region back, with [`Error::WindowsBound`].
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

    /// Takes back what the region grants, to peers and to this node; its memory stays registered. When this returns,
    /// nothing can change the memory or read it, not even what is under way.
    /// [`SendOp::RegMr`](crate::SendOp::RegMr) and [`rereg`](Self::rereg) grant anew.
    ///
    /// # Errors
    /// [`Error::WindowsBound`].
    pub fn revoke(&self) -> Result<()> {
        let device = &self.pd.shared.device;
        device.table.revoke(self.stag)?;
        device.take_back(&self.range())
    }

    /// From now on only `qp` can use the region: neither the peers of other queue pairs of the domain, nor requests posted
    /// to those. The peer may invalidate it, if it has any remote right. When the queue pair is destroyed or goes back to
    /// idle, nobody can use the region until it is limited to another one.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the queue pair is of another protection domain.
    pub fn restrict_to(&self, qp: &Qp) -> Result<()> {
        if !Arc::ptr_eq(&qp.pd().shared, &self.pd.shared) {
            return Err(Error::Invalid("the queue pair is of another protection domain"));
        }
        let scope = qp.shared.scopes.qp;
        let device = &self.pd.shared.device;
        device.table.restrict(self.stag, scope)?;
        device.await_passes()
    }

    /// Registers anew, with other rights, in another protection domain or with other memory; the region is as just
    /// registered then, and its keys are others. When this returns the old ones grant nothing, and memory that is given up
    /// is not touched any more. What was addressed by an offset of its own ([`Pd::reg_mr_iova`]) keeps it.
    ///
    /// # Errors
    /// As for [`Pd::reg_mr`], and [`Error::WindowsBound`]; nothing has changed then.
    ///
    /// # Safety
    /// As for [`Pd::reg_mr`], for memory and rights to come.
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
                // A pass that goes on after this signal handler still uses it.
                std::mem::forget(block);
            }
        }
        (self.base, self.len, self.virt) = (base, len as u64, virt);
        (self.access, self.stag, self.pd) = (access, stag, pd);
        taken_back
    }

    /// What names the first byte in scatter-gather elements, and as tagged offset for the peer: its address, unless the
    /// region was registered otherwise ([`Access::ZERO_BASED`], [`Pd::reg_mr_iova`]).
    pub fn addr(&self) -> u64 {
        self.virt
    }

    /// The addresses of the region.
    fn range(&self) -> Range<usize> {
        self.base as usize..self.base as usize + self.len as usize
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

/// What is to name the first byte.
fn first_offset(base: *mut u8, iova: Option<u64>, access: Access) -> Result<u64> {
    match iova {
        Some(_) if access.contains(Access::ZERO_BASED) => {
            Err(Error::Invalid("a memory region that counts from 0 has no other first address"))
        }
        Some(iova) => Ok(iova),
        None if access.contains(Access::ZERO_BASED) => Ok(0),
        None => Ok(base as u64),
    }
}

/// Whether range and rights make sense (verbs §7).
fn check(base: *mut u8, len: usize, virt: u64, access: Access) -> Result<()> {
    if base.is_null() || len == 0 {
        return Err(Error::Invalid("a memory region needs at least one byte"));
    }
    if (base as usize).checked_add(len).is_none() || virt.checked_add(len as u64).is_none() {
        return Err(Error::Invalid("the memory region wraps around the address space"));
    }
    if !Access::all().contains(access) {
        return Err(Error::Invalid("rights that do not exist"));
    }
    access.check()
}

impl Sge {
    /// `len` bytes of `mr` from byte `offset`. Bounds are checked when the work request is executed.
    pub fn of(mr: &Mr, offset: u64, len: u32) -> Self {
        Self { addr: mr.addr().wrapping_add(offset), len, lkey: mr.lkey() }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.pd.shared.regions.remove(self.stag);
        let device = &self.pd.shared.device;
        // The wait for each engine's lock is the grace period: when this returns, nothing of the engines uses the memory.
        let withdrawn = device.table.withdraw(self.stag).and_then(|()| device.take_back(&self.range()));
        if let Err(Error::Interrupted) = withdrawn.and_then(|()| device.table.release(self.stag)) {
            // A pass that goes on after this signal handler still uses it.
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
