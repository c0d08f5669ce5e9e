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

/// A protection domain: its queue pairs can use its memory regions and no others. Clones are handles to
/// the same domain; it lives as long as anything made from it.
#[derive(Clone)]
pub struct Pd {
    pub(crate) shared: Arc<PdShared>,
}

impl Pd {
    /// Registers `len` bytes of memory that the application has.
    ///
    /// The pages are faulted in first, for reading or, if `access` has a right to write, for writing.
    ///
    /// # Errors
    /// [`Error::Fault`] if the memory is not mapped as needed, [`Error::Invalid`] for an empty or wrapping range
    /// or rights that contradict each other, [`Error::Exhausted`] if there are too many regions.
    ///
    /// # Safety
    /// Until the region is dropped, the memory must stay mapped, and nothing may hold a Rust reference
    /// to it that the device's accesses (by the rights given, at any time) would violate.
    pub unsafe fn reg_mr(&self, ptr: *mut u8, len: usize, access: Access) -> Result<Mr> {
        // SAFETY: the caller's promise.
        unsafe { Mr::register(self, ptr, len, None, access) }
    }

    /// The same, with `iova` instead of its address as the name of the first byte, in scatter-gather elements and for the
    /// peer.
    ///
    /// # Errors
    /// As for [`reg_mr`](Self::reg_mr).
    ///
    /// # Safety
    /// As for [`reg_mr`](Self::reg_mr).
    pub unsafe fn reg_mr_iova(&self, ptr: *mut u8, len: usize, iova: u64, access: Access) -> Result<Mr> {
        // SAFETY: the caller's promise.
        unsafe { Mr::register(self, ptr, len, Some(iova), access) }
    }

    /// Allocates `len` bytes, zeroed, from the device's memory and registers them. This is the memory that
    /// every port can send from without copying.
    ///
    /// # Errors
    /// As for [`reg_mr`](Self::reg_mr), and [`Error::Os`] if there is no memory.
    pub fn alloc_mr(&self, len: usize, access: Access) -> Result<Mr> {
        Mr::allocate(self, len, access)
    }

    /// Allocates a memory window, which grants nothing until it is bound.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if there are too many regions and windows.
    pub fn alloc_mw(&self, kind: MwKind) -> Result<Mw> {
        Mw::allocate(self, kind)
    }

    /// Creates a queue pair.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes beyond the limits of the device or completion queues of another device,
    /// [`Error::Exhausted`] if there are too many queue pairs.
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<Qp> {
        self.create(init, None)
    }

    /// Creates a queue pair that takes its receives from a shared receive queue, which may belong to another
    /// protection domain. `max_recv_wr` and `max_recv_sge` do not count.
    ///
    /// # Errors
    /// As for [`create_qp`](Self::create_qp).
    pub fn create_qp_with_srq(&self, init: &QpInit<'_>, srq: &Srq) -> Result<Qp> {
        if !Arc::ptr_eq(&srq.pd().shared.device, &self.shared.device) {
            return Err(Error::Invalid("the shared receive queue belongs to another device"));
        }
        self.create(init, Some(srq))
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes beyond the limits of the device, [`Error::Exhausted`] if there are too many
    /// shared receive queues.
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
