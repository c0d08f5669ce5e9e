//! Protection domains.

use std::sync::Arc;

use crate::api::cq::Cq;
use crate::api::device::DeviceShared;
use crate::api::mr::Mr;
use crate::api::mw::Mw;
use crate::api::qp::{Qp, QpInit};
use crate::api::srq::{Srq, SrqInit};
use crate::shared::error::{Error, Result};
use crate::shared::memory::{Access, MwKind, Regions};
use crate::shared::scope::Scope;

pub(crate) struct PdShared {
    pub(crate) scope: Scope,
    pub(crate) regions: Regions,
    pub(crate) device: Arc<DeviceShared>,
}

impl Drop for PdShared {
    fn drop(&mut self) {
        self.device.scopes.give_back(self.scope);
    }
}

/// A protection domain: its queue pairs can use its memory regions and no others. Clones are handles to the same
/// domain, which lives as long as any object made from it.
#[derive(Clone)]
pub struct Pd {
    pub(crate) shared: Arc<PdShared>,
}

impl Pd {
    /// Registers `len` bytes of the application's memory, starting at `ptr`.
    ///
    /// The pages are faulted in first: for writing if `access` contains `LOCAL_WRITE`, otherwise for reading.
    /// This needs Linux 5.14.
    ///
    /// # Errors
    /// [`Error::Fault`] if the memory is not mapped with the necessary rights, or the kernel is too old,
    /// [`Error::Invalid`] for an empty or wrapping range or for contradictory rights, [`Error::Exhausted`] if
    /// the device already has [`DeviceAttr::max_mr`](crate::DeviceAttr::max_mr) regions and windows.
    ///
    /// # Safety
    /// Until the region is dropped, the memory must stay mapped. The device may access it at any time, within the
    /// rights given: no Rust reference to the memory may exist that forbids such accesses.
    pub unsafe fn reg_mr(&self, ptr: *mut u8, len: usize, access: Access) -> Result<Mr> {
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { Mr::register(self, ptr, len, None, access) }
    }

    /// Registers memory as [`reg_mr`](Self::reg_mr) does, with `iova` instead of the address of the first byte:
    /// scatter-gather elements and the peer address the region from `iova` on.
    ///
    /// # Errors
    /// As for [`reg_mr`](Self::reg_mr).
    ///
    /// # Safety
    /// As for [`reg_mr`](Self::reg_mr).
    pub unsafe fn reg_mr_iova(&self, ptr: *mut u8, len: usize, iova: u64, access: Access) -> Result<Mr> {
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { Mr::register(self, ptr, len, Some(iova), access) }
    }

    /// Allocates `len` zeroed bytes from the device's memory and registers them. A port that can send
    /// registered memory without a copy can always do so with this memory.
    ///
    /// # Errors
    /// As for [`reg_mr`](Self::reg_mr); [`Error::NoMemory`] or [`Error::Os`] if there is not enough memory.
    pub fn alloc_mr(&self, len: usize, access: Access) -> Result<Mr> {
        Mr::allocate(self, len, access)
    }

    /// Allocates a memory window. It grants nothing until it is bound.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if the device already has [`DeviceAttr::max_mr`](crate::DeviceAttr::max_mr) regions and
    /// windows.
    pub fn alloc_mw(&self, kind: MwKind) -> Result<Mw> {
        Mw::allocate(self, kind)
    }

    /// Creates a queue pair.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes beyond the device's limits or completion queues of another device,
    /// [`Error::Exhausted`] if the device already has [`DeviceAttr::max_qp`](crate::DeviceAttr::max_qp) queue pairs.
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<Qp> {
        self.create(init, None)
    }

    /// Creates a queue pair that takes its receives from a shared receive queue, which may belong to another
    /// protection domain. `max_recv_wr` and `max_recv_sge` of `init` are ignored.
    ///
    /// # Errors
    /// As for [`create_qp`](Self::create_qp); [`Error::Invalid`] if the shared receive queue belongs to another
    /// device.
    pub fn create_qp_with_srq(&self, init: &QpInit<'_>, srq: &Srq) -> Result<Qp> {
        if !Arc::ptr_eq(&srq.pd().shared.device, &self.shared.device) {
            return Err(Error::Invalid("the shared receive queue belongs to another device"));
        }
        self.create(init, Some(srq))
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes beyond the device's limits, [`Error::Exhausted`] if the device already has
    /// [`DeviceAttr::max_srq`](crate::DeviceAttr::max_srq) shared receive queues.
    pub fn create_srq(&self, init: &SrqInit) -> Result<Srq> {
        Srq::create(self, init)
    }

    fn create(&self, init: &QpInit<'_>, srq: Option<&Srq>) -> Result<Qp> {
        let of_device = |cq: &Cq| Arc::ptr_eq(&cq.device, &self.shared.device);
        if !of_device(init.send_cq) || !of_device(init.recv_cq) {
            return Err(Error::Invalid("the completion queue belongs to another device"));
        }
        Qp::create(self, init, srq)
    }
}
