//! The table of STags: memory regions and windows; touched only under the engine lock.

mod manage;

use std::collections::VecDeque;

use super::stag::{INDEX_BITS, StagMap};
use super::{Access, MwKind};
use crate::shared::error::{Error, Result};
use crate::shared::scope::{Scope, Scopes};

pub(crate) use manage::Bind;

/// Most memory regions and windows of a device, taken together.
pub(crate) const MAX_REGIONS: usize = 1 << 20;
/// Slots that wait at least until one of them is used again, so that an STag of old stays invalid for long.
const RESTING: usize = 1024;
// Some are left, of which one stands for lists: see `MrTable::list`.
const _: () = assert!(MAX_REGIONS < 1 << INDEX_BITS);

/// The scope of no queue pair at all.
const NOBODY: Scope = Scope(u32::MAX);

/// A memory region to enter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MrEntry {
    pub(crate) base: *mut u8,
    pub(crate) len: u64,
    pub(crate) pd: Scope,
    pub(crate) access: Access,
    /// Address or tagged offset of the first byte; the range does not wrap.
    pub(crate) virt: u64,
    /// The memory is of the device's own allocator, or of the same kind ([`Allocate::holds`](super::Allocate::holds)), so
    /// that every port can send from it.
    pub(crate) ours: bool,
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
    /// The STag names nothing valid.
    InvalidStag,
    /// The STag is of another protection domain or queue pair.
    NotAssociated,
    /// The STag lacks the right.
    NoRight,
    /// The address range wraps around.
    Wrap,
    /// The address range is not within what the STag grants.
    Bounds,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Valid,
    /// Grants nothing at the moment; the application still holds it.
    Invalid,
}

/// What an access looks at: half a cache line.
#[derive(Clone, Copy)]
struct Slot {
    base: *mut u8,
    len: u64,
    virt: u64,
    scope: Scope,
    /// With [`Access::LOCAL_READ`], unless it is a window.
    access: Access,
    key: u8,
    state: State,
}

const _: () = assert!(size_of::<Slot>() == 32);

/// What else there is to an STag.
#[derive(Clone, Copy)]
struct Home {
    pd: Scope,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Region {
        /// All of its memory; the slot may grant a part.
        base: *mut u8,
        len: u64,
        /// Whether the memory was registered for writing.
        writable: bool,
        /// See [`MrEntry::ours`].
        ours: bool,
        /// Windows bound to it; while there are any it can't be invalidated.
        windows: u32,
    },
    Window {
        kind: MwKind,
        /// While the slot is valid: the slot of the region that it is bound to.
        region: u32,
    },
}

/// All STags of an engine. STag = scrambled slot (24 bits) | key (8 bits); local and remote keys are the same.
pub(crate) struct MrTable {
    slots: Vec<Slot>,
    homes: Vec<Home>,
    free: VecDeque<u32>,
    /// STags limited to one queue pair: windows of type 2 that are bound, and regions that say so.
    limited: u32,
    map: StagMap,
    random: fastrand::Rng,
    list: u32,
}

// SAFETY: the base pointers are addresses of registered memory, which no thread owns.
unsafe impl Send for MrTable {}

impl MrTable {
    /// A table whose STags follow from `seed`, which must be secret outside of tests.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let map = StagMap::new(&mut random);
        let list = map.beyond(MAX_REGIONS as u32, &mut random.clone());
        Self { slots: Vec::new(), homes: Vec::new(), free: VecDeque::new(), limited: 0, map, random, list }
    }

    /// The STag that stands for the scatter list of a Read of ours. It is never one of a region or window, so whatever else
    /// names it is refused as naming nothing.
    #[inline]
    pub(crate) fn list(&self) -> u32 {
        self.list
    }

    /// Enters a region and answers its STag, which is never 0.
    pub(crate) fn insert(&mut self, entry: MrEntry) -> Result<u32> {
        let MrEntry { base, len, pd, access, virt, ours } = entry;
        let writable = access.contains(Access::LOCAL_WRITE);
        let home = Home { pd, kind: Kind::Region { base, len, writable, ours, windows: 0 } };
        let access = access | Access::LOCAL_READ;
        self.enter(Slot { base, len, virt, scope: pd, access, key: 0, state: State::Valid }, home)
    }

    /// Enters a window, which grants nothing until it is bound.
    pub(crate) fn insert_window(&mut self, kind: MwKind, pd: Scope) -> Result<u32> {
        let slot = Slot {
            base: std::ptr::null_mut(),
            len: 0,
            virt: 0,
            scope: pd,
            access: Access::empty(),
            key: 0,
            state: State::Invalid,
        };
        self.enter(slot, Home { pd, kind: Kind::Window { kind, region: 0 } })
    }

    fn enter(&mut self, slot: Slot, home: Home) -> Result<u32> {
        let index = if self.free.len() > RESTING || self.slots.len() >= MAX_REGIONS {
            self.free.pop_front().ok_or(Error::Exhausted("memory regions"))? as usize
        } else {
            self.slots.push(Slot { key: self.random.u8(..), state: State::Free, ..slot });
            self.homes.push(home);
            self.slots.len() - 1
        };
        // Another key each time, so that an old STag stays invalid for 255 uses of the slot.
        let mut key = self.slots[index].key.wrapping_add(1);
        if self.map.stag(index as u32, key) == 0 {
            key = key.wrapping_add(1);
        }
        self.slots[index] = Slot { key, ..slot };
        self.homes[index] = home;
        Ok(self.map.stag(index as u32, key))
    }

    /// The slot that `stag` names in all of its 32 bits, if it is in use.
    fn named(&self, stag: u32) -> Option<usize> {
        let (index, key) = self.map.slot(stag);
        let slot = self.slots.get(index as usize)?;
        (slot.key == key && slot.state != State::Free).then_some(index as usize)
    }

    /// The slot that the application's handle with `stag` is for. Its key may have changed since.
    fn held(&self, stag: u32) -> Result<usize> {
        let index = self.map.slot(stag).0 as usize;
        match self.slots.get(index) {
            Some(slot) if slot.state != State::Free => Ok(index),
            _ => Err(Error::UnknownKey(stag)),
        }
    }

    /// Whether what `stag` names is memory of the device's own allocator.
    pub(crate) fn is_ours(&self, stag: u32) -> bool {
        let home = self.homes.get(self.map.slot(stag).0 as usize);
        home.is_some_and(|home| matches!(home.kind, Kind::Region { ours: true, .. }))
    }

    /// The memory for an access of `len` bytes at `addr` that needs the rights `need`, by a queue pair whose scopes are
    /// `by`. An access of no bytes is not checked.
    #[inline]
    pub(crate) fn resolve(
        &self,
        stag: u32,
        by: Scopes,
        need: Access,
        addr: u64,
        len: u32,
    ) -> Result<Span, MrFault> {
        if len == 0 {
            return Ok(Span { ptr: std::ptr::NonNull::dangling().as_ptr(), len });
        }
        let (index, key) = self.map.slot(stag);
        let slot = match self.slots.get(index as usize) {
            Some(slot) if slot.key == key && slot.state == State::Valid => slot,
            _ => return Err(MrFault::InvalidStag),
        };
        if !by.include(slot.scope) {
            return Err(MrFault::NotAssociated);
        }
        if !slot.access.contains(need) {
            return Err(MrFault::NoRight);
        }
        if addr.checked_add(len.into()).is_none() {
            return Err(MrFault::Wrap);
        }
        match addr.checked_sub(slot.virt) {
            Some(offset) if offset <= slot.len && u64::from(len) <= slot.len - offset => {
                Ok(Span { ptr: slot.base.wrapping_add(offset as usize), len })
            }
            _ => Err(MrFault::Bounds),
        }
    }
}
