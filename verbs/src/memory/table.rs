//! The table of memory regions; touched only under the engine lock.

use std::collections::VecDeque;

use super::Access;
use super::stag::{INDEX_BITS, StagMap};
use crate::error::{Error, Result};
use crate::pd::PdId;
use crate::sabotage::{Rule, broken};

/// Most regions of a device.
pub(crate) const MAX_REGIONS: usize = 1 << 20;
/// Slots that wait at least until one of them is used again, so that an STag of old stays invalid for long.
const RESTING: usize = 1024;
const _: () = assert!(MAX_REGIONS <= 1 << INDEX_BITS);

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MrEntry {
    pub(crate) base: *mut u8,
    pub(crate) len: u64,
    pub(crate) pd: PdId,
    pub(crate) access: Access,
    /// Address or tagged offset of the first byte.
    pub(crate) virt: u64,
}

/// Memory that an access may touch, until the engine lock is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) ptr: *mut u8,
    pub(crate) len: u32,
}

/// Why an access is refused; in the order of the checks (RFC 5041 §7.1, RFC 5040 §7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MrFault {
    /// The STag names no valid region.
    InvalidStag,
    /// The region belongs to another protection domain.
    NotAssociated,
    /// The region lacks the right.
    NoRight,
    /// The address range wraps around.
    Wrap,
    /// The address range is not within the region.
    Bounds,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Valid,
    /// Invalidated by the peer; the application still holds it.
    Invalid,
}

struct Slot {
    entry: MrEntry,
    key: u8,
    state: State,
}

/// All memory regions of an engine. STag = scrambled slot (24 bits) | key (8 bits); local and remote keys are the same.
pub(crate) struct MrTable {
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    map: StagMap,
    random: fastrand::Rng,
}

// SAFETY: the base pointers are addresses of registered memory, which no thread owns.
unsafe impl Send for MrTable {}

impl MrTable {
    /// A table whose STags follow from `seed`, which must be secret outside of tests.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let map = StagMap::new(&mut random);
        Self { slots: Vec::new(), free: VecDeque::new(), map, random }
    }

    /// Enters a region and answers its STag, which is never 0.
    pub(crate) fn insert(&mut self, entry: MrEntry) -> Result<u32> {
        let index = if self.free.len() > RESTING || self.slots.len() >= MAX_REGIONS {
            self.free.pop_front().ok_or(Error::Exhausted("memory regions"))?
        } else {
            let key = self.random.u8(..);
            self.slots.push(Slot { entry, key, state: State::Free });
            self.slots.len() as u32 - 1
        };
        let slot = &mut self.slots[index as usize];
        // Another key each time, so that an old STag stays invalid for 256 uses of the slot.
        slot.key = slot.key.wrapping_add(1);
        if self.map.stag(index, slot.key) == 0 {
            slot.key = slot.key.wrapping_add(1);
        }
        slot.entry = entry;
        slot.state = State::Valid;
        Ok(self.map.stag(index, slot.key))
    }

    /// Removes a region, valid or invalidated.
    pub(crate) fn remove(&mut self, stag: u32) -> Result<()> {
        let (index, key) = self.map.slot(stag);
        match self.slots.get_mut(index as usize) {
            Some(slot) if slot.key == key && slot.state != State::Free => {
                slot.state = State::Free;
                self.free.push_back(index);
                Ok(())
            }
            _ => Err(Error::UnknownKey(stag)),
        }
    }

    /// A peer invalidates a region (RFC 5040 §5.3): it must be of the QP's protection domain and have remote rights.
    /// That it is invalid already is no fault.
    pub(crate) fn invalidate(&mut self, stag: u32, pd: PdId) -> Result<(), MrFault> {
        let (index, key) = self.map.slot(stag);
        let slot = match self.slots.get_mut(index as usize) {
            Some(slot) if slot.key == key && slot.state != State::Free => slot,
            _ => return Err(MrFault::InvalidStag),
        };
        if slot.entry.pd != pd {
            return Err(MrFault::NotAssociated);
        }
        if !slot.entry.access.intersects(Access::REMOTE) {
            return Err(MrFault::NoRight);
        }
        if !broken(Rule::Invalidate) {
            slot.state = State::Invalid;
        }
        Ok(())
    }

    /// The memory for an access of `len` bytes at `addr` that needs the rights `need` (empty: local reading).
    /// An access of no bytes is not checked.
    #[inline]
    pub(crate) fn resolve(
        &self,
        stag: u32,
        pd: PdId,
        need: Access,
        addr: u64,
        len: u32,
    ) -> Result<Span, MrFault> {
        if len == 0 {
            return Ok(Span { ptr: std::ptr::NonNull::dangling().as_ptr(), len });
        }
        let (index, key) = self.map.slot(stag);
        let entry = match self.slots.get(index as usize) {
            Some(slot) if slot.key == key && slot.state == State::Valid => &slot.entry,
            _ => return Err(MrFault::InvalidStag),
        };
        if entry.pd != pd && !broken(Rule::ProtectionDomain) {
            return Err(MrFault::NotAssociated);
        }
        if !entry.access.contains(need) && !broken(Rule::Rights) {
            return Err(MrFault::NoRight);
        }
        if addr.checked_add(len.into()).is_none() {
            return Err(MrFault::Wrap);
        }
        match addr.checked_sub(entry.virt) {
            Some(offset) if offset <= entry.len && u64::from(len) <= entry.len - offset => {
                Ok(Span { ptr: entry.base.wrapping_add(offset as usize), len })
            }
            _ if broken(Rule::Bounds) => {
                let offset = addr.wrapping_sub(entry.virt);
                Ok(Span { ptr: entry.base.wrapping_add(offset as usize), len })
            }
            _ => Err(MrFault::Bounds),
        }
    }
}
