//! The regions of a protection domain, for inline data. The posting thread copies inline data. It is in no pass, so
//! it cannot use the table of STags: nothing there would keep the memory registered until the copy is done.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use super::copy;
use crate::shared::error::PostError;
use crate::shared::wr::Sge;

struct Region {
    base: *mut u8,
    len: u64,
    virt: u64,
}

// SAFETY: the pointer is used only for volatile copies while the region is in the map.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// Regions by key. Readers of the lock are only posters of inline data from registered memory. A poster keeps the
/// lock while it copies, so that the region cannot be removed meanwhile.
#[derive(Default)]
pub(crate) struct Regions {
    by_key: RwLock<HashMap<u32, Region>>,
}

impl Regions {
    pub(crate) fn insert(&self, stag: u32, base: *mut u8, len: u64, virt: u64) {
        let region = Region { base, len, virt };
        self.by_key.write().unwrap_or_else(PoisonError::into_inner).insert(stag, region);
    }

    pub(crate) fn remove(&self, stag: u32) {
        self.by_key.write().unwrap_or_else(PoisonError::into_inner).remove(&stag);
    }

    /// Copies the bytes that `sges` name into `room`, whose length is the sum of the lengths of `sges`.
    pub(crate) fn gather(&self, sges: &[Sge], mut room: &mut [u8]) -> Result<(), PostError> {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        for sge in sges.iter().filter(|sge| sge.len > 0) {
            let region = by_key.get(&sge.lkey).ok_or(PostError::InlineAccess)?;
            let offset = sge.addr.checked_sub(region.virt).ok_or(PostError::InlineAccess)?;
            if offset.checked_add(sge.len.into()).is_none_or(|end| end > region.len) {
                return Err(PostError::InlineAccess);
            }
            let (part, rest) = room.split_at_mut_checked(sge.len as usize).ok_or(PostError::InlineTooLong)?;
            // SAFETY: within the bounds of a region that stays registered while the lock is held.
            unsafe { copy::read(region.base.wrapping_add(offset as usize), part) };
            room = rest;
        }
        Ok(())
    }
}
