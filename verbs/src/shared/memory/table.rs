//! The table of STags: memory regions and windows.
//!
//! All engines of a device, and its verbs, use the table at the same time. Passes look up STags without a lock: a
//! slot never moves, and its last word tells whether the rest of it is valid. Changes of the table take a leaf lock,
//! for which passes do not wait.
//!
//! A change of that word revokes a slot. The slot is rewritten only when the grace period that began then is over
//! ([`crate::shared::grace`]), so that the content that a pass reads after a valid word belongs to that word.

mod links;
mod manage;
mod slot;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::stag::{INDEX_BITS, StagMap};
use super::{Access, MwKind};
use crate::shared::error::{Error, Result};
use crate::shared::grace::{Fellows, Grace};
use crate::shared::scope::{Scope, Scopes};
use crate::shared::sync::{LeafLock, Line};
use links::Links;
use slot::{Content, Slot, State, Word};

pub(crate) use manage::{Bind, Refused};

/// Maximum number of memory regions and windows of a device, taken together.
pub(crate) const MAX_REGIONS: usize = 1 << 20;
/// Number of free slots that are kept before one of them is used again, so that an old STag stays invalid for long.
/// When all slots have been used, fewer are kept.
const RESTING: usize = 1024;
// Some indices name no slot. One of them stands for lists: see `MrTable::list`.
const _: () = assert!(MAX_REGIONS < 1 << INDEX_BITS);

/// Number of slots of a table; few for the model checker.
const SLOTS: usize = if cfg!(feature = "loom") { 4 } else { MAX_REGIONS };

/// A bit beside the rights, set if the region has [`MrEntry::ours`].
const OURS: Access = Access::from_bits_retain(1 << 6);

/// The parameters of a memory region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MrEntry {
    pub(crate) base: *mut u8,
    pub(crate) len: u64,
    pub(crate) pd: Scope,
    pub(crate) access: Access,
    /// Address or tagged offset of the first byte. The range does not wrap.
    pub(crate) virt: u64,
    /// Whether the memory is from the device's own allocator, or of the same kind
    /// ([`Allocate::holds`](super::Allocate::holds)), so that every port can send from it.
    pub(crate) ours: bool,
}

/// Memory that an access may touch until the pass ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) ptr: *mut u8,
    pub(crate) len: u32,
}

/// Why an access is refused, in the order of the checks (RFC 5041 §7.1, RFC 5040 §7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MrFault {
    /// The STag does not name a valid region or window.
    InvalidStag,
    /// The STag belongs to another protection domain or queue pair.
    NotAssociated,
    /// The STag lacks the right.
    NoRight,
    /// The address range wraps around.
    Wrap,
    /// The address range is not within what the STag grants.
    Bounds,
}

/// The rest of an STag's state, at which accesses do not look. Only changes of the table use it.
struct Home {
    pd: Scope,
    kind: Kind,
    /// The slot's place in a ring, which consists of one region and the windows that are bound to it. An unbound window
    /// is alone in its ring.
    bound: Links,
    /// The slot's place in a ring of the slots that are limited to the same queue pair; in use if `limited_to` is
    /// `Some`.
    limited: Links,
    limited_to: Option<Scope>,
    /// The slot must not be rewritten until this is over.
    grace: Grace,
}

#[derive(Clone, Copy)]
enum Kind {
    Region {
        /// The region's whole memory. The slot may grant a part of it.
        base: *mut u8,
        len: u64,
        /// Whether the memory was registered for writing.
        writable: bool,
        /// Number of windows bound to the region, which cannot be invalidated while there are any.
        windows: u32,
    },
    Window {
        kind: MwKind,
        /// While the slot is valid: the slot of the region that the window is bound to.
        region: u32,
    },
}

/// State that only changes of the table use.
struct Managed {
    /// One for each slot that has been used.
    homes: Vec<Home>,
    free: VecDeque<u32>,
    /// By queue pair: the first of the STags that are limited to it. Such STags are bound windows of type 2, and
    /// regions that the application has limited.
    limited: HashMap<Scope, u32>,
    random: fastrand::Rng,
}

// SAFETY: the base pointers are addresses of registered memory, which no thread owns.
unsafe impl Send for Managed {}

/// All STags of a device. STag = scrambled slot (24 bits) | key (8 bits). Local and remote keys are the same.
pub(crate) struct MrTable {
    slots: Box<[Slot; SLOTS]>,
    map: StagMap,
    list: u32,
    fellows: Arc<Fellows>,
    /// Written by each registration, so on cache lines that accesses do not read.
    managed: Line<LeafLock<Managed>>,
}

impl MrTable {
    /// Makes a table for the engines `fellows`. The STags follow from `seed`, which must be secret outside of
    /// tests.
    pub(crate) fn new(seed: u64, fellows: Arc<Fellows>) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let map = StagMap::new(&mut random);
        let list = map.beyond(MAX_REGIONS as u32, &mut random.clone());
        let managed = Managed { homes: Vec::new(), free: VecDeque::new(), limited: HashMap::new(), random };
        Self { slots: slot::reserve(), map, list, fellows, managed: Line(LeafLock::new(managed)) }
    }

    /// Returns the STag that stands for the scatter list of a Read of this device. No region or window ever has it,
    /// so every other use of it is refused as an invalid STag.
    #[inline]
    pub(crate) fn list(&self) -> u32 {
        self.list
    }

    /// Returns the engines that use the table.
    #[inline]
    pub(crate) fn fellows(&self) -> &Fellows {
        &self.fellows
    }

    /// Enters a region, and returns its STag, which is never 0.
    pub(crate) fn insert(&self, entry: MrEntry) -> Result<u32> {
        let (content, home) = of_region(entry);
        self.enter(&mut *self.managed.lock()?, content, home)
    }

    /// Enters a window, which grants nothing until it is bound, and returns its STag.
    pub(crate) fn insert_window(&self, kind: MwKind, pd: Scope) -> Result<u32> {
        let word = Word::new(pd, Access::empty(), 0, State::Invalid);
        let content = Content { base: std::ptr::null_mut(), len: 0, virt: 0, word };
        self.enter(&mut *self.managed.lock()?, content, Home::new(pd, Kind::Window { kind, region: 0 }))
    }

    fn enter(&self, managed: &mut Managed, content: Content, mut home: Home) -> Result<u32> {
        let Managed { homes, free, random, .. } = managed;
        let fresh = free.len() <= RESTING && homes.len() < SLOTS;
        let index = match fresh {
            true => homes.len() as u32,
            false => free.pop_front().ok_or(Error::Exhausted("memory regions"))?,
        };
        let Some(slot) = self.slots.get(index as usize) else {
            return Err(Error::Exhausted("memory regions"));
        };
        // A different key each time, so that an old STag stays invalid for 255 uses of the slot.
        let mut key = if fresh { random.u8(..) } else { slot.word().key() }.wrapping_add(1);
        if self.map.stag(index, key) == 0 {
            key = key.wrapping_add(1);
        }
        home.bound = Links::alone(index);
        home.limited = Links::alone(index);
        match homes.get_mut(index as usize) {
            Some(place) => *place = home,
            None => homes.push(home),
        }
        slot.write(Content { word: content.word.with_key(key), ..content });
        Ok(self.map.stag(index, key))
    }

    /// Returns the slot that all 32 bits of `stag` name, and its word; `None` if the slot is not in use.
    fn named(&self, stag: u32) -> Option<(usize, Word)> {
        let (index, key) = self.map.slot(stag);
        let word = self.slots.get(index as usize)?.word();
        let in_use = matches!(word.state(), State::Valid | State::Invalid);
        (word.key() == key && in_use).then_some((index as usize, word))
    }

    /// Returns the slot of the application's handle with `stag`. The slot's key may have changed since.
    fn held(&self, stag: u32) -> Result<usize> {
        let index = self.map.slot(stag).0 as usize;
        match self.slots.get(index).map(|slot| slot.word().state()) {
            Some(State::Valid | State::Invalid) => Ok(index),
            _ => Err(Error::UnknownKey(stag)),
        }
    }

    /// Returns whether the slot of `stag`, whatever its key, grants memory from which every port can send
    /// ([`MrEntry::ours`]).
    pub(crate) fn is_ours(&self, stag: u32) -> bool {
        self.slots.get(self.map.slot(stag).0 as usize).is_some_and(|slot| slot.word().access().contains(OURS))
    }

    /// Returns the memory for an access of `len` bytes at `addr` that needs the rights `need`, by a queue pair with
    /// the scopes `by`. An access of no bytes is not checked.
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
        let Some(slot) = self.slots.get(index as usize) else { return Err(MrFault::InvalidStag) };
        let word = slot.word();
        if !word.is_valid(key) {
            return Err(MrFault::InvalidStag);
        }
        if !by.include(word.scope()) {
            return Err(MrFault::NotAssociated);
        }
        if !word.access().contains(need) {
            return Err(MrFault::NoRight);
        }
        let (base, all, virt) = slot.grants();
        match addr.checked_sub(virt) {
            // The granted range does not wrap, so no range within it does.
            Some(offset) if offset <= all && u64::from(len) <= all - offset => {
                Ok(Span { ptr: base.wrapping_add(offset as usize), len })
            }
            _ if addr.checked_add(len.into()).is_none() => Err(MrFault::Wrap),
            _ => Err(MrFault::Bounds),
        }
    }
}

impl Home {
    fn new(pd: Scope, kind: Kind) -> Self {
        let (bound, limited) = (Links::alone(0), Links::alone(0));
        Home { pd, kind, bound, limited, limited_to: None, grace: Grace::default() }
    }
}

/// Returns the content of a region's slot, without its key, and the rest of its state.
fn of_region(entry: MrEntry) -> (Content, Home) {
    let MrEntry { base, len, pd, access, virt, ours } = entry;
    let writable = access.contains(Access::LOCAL_WRITE);
    let home = Home::new(pd, Kind::Region { base, len, writable, windows: 0 });
    let access = access | Access::LOCAL_READ | if ours { OURS } else { Access::empty() };
    (Content { base, len, virt, word: Word::new(pd, access, 0, State::Valid) }, home)
}

#[cfg(all(test, feature = "loom"))]
mod models;
