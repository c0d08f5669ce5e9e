//! The part of an STag that accesses look at: half a cache line, which passes read without a lock.

use super::SLOTS;
use crate::shared::memory::Access;
use crate::shared::scope::Scope;
use crate::shared::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The state of an STag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    Valid,
    /// The STag grants nothing now. The application still holds it.
    Invalid,
    /// The STag grants nothing, and the application has given it up. Passes that use it may still be under way.
    Leaving,
}

/// The word that decides whether a slot grants anything: scope (32 bits), unused (8), rights (8), state (8), key (8).
/// The rights contain [`Access::LOCAL_READ`], unless the slot is a window's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(u64);

impl Word {
    pub(super) fn new(scope: Scope, access: Access, key: u8, state: State) -> Self {
        let low = u64::from(access.bits()) << 16 | (state as u64) << 8 | u64::from(key);
        Self(u64::from(scope.0) << 32 | low)
    }

    #[inline]
    pub(super) fn key(self) -> u8 {
        self.0 as u8
    }

    #[inline]
    pub(super) fn state(self) -> State {
        match (self.0 >> 8) as u8 {
            1 => State::Valid,
            2 => State::Invalid,
            3 => State::Leaving,
            _ => State::Free,
        }
    }

    /// Returns whether the slot is valid and has this key.
    #[inline]
    pub(super) fn is_valid(self, key: u8) -> bool {
        self.0 as u16 == (State::Valid as u16) << 8 | u16::from(key)
    }

    #[inline]
    pub(super) fn access(self) -> Access {
        Access::from_bits_retain((self.0 >> 16) as u8)
    }

    #[inline]
    pub(super) fn scope(self) -> Scope {
        Scope((self.0 >> 32) as u32)
    }

    pub(super) fn with_key(self, key: u8) -> Self {
        Self(self.0 & !0xff | u64::from(key))
    }

    pub(super) fn with_state(self, state: State) -> Self {
        Self(self.0 & !0xff00 | (state as u64) << 8)
    }

    pub(super) fn with_scope(self, scope: Scope) -> Self {
        Self(self.0 & u64::from(u32::MAX) | u64::from(scope.0) << 32)
    }
}

/// The content of a slot.
#[derive(Clone, Copy)]
pub(super) struct Content {
    pub(super) base: *mut u8,
    pub(super) len: u64,
    pub(super) virt: u64,
    pub(super) word: Word,
}

/// A slot. All zeroes means free.
pub(super) struct Slot {
    base: AtomicPtr<u8>,
    len: AtomicU64,
    virt: AtomicU64,
    word: AtomicU64,
}

#[cfg(not(feature = "loom"))]
const _: () = assert!(size_of::<Slot>() == 32);

impl Slot {
    /// Returns the word. Passes that begin after the start of a grace period see what was revoked before it: see
    /// [`crate::shared::grace`].
    #[inline]
    pub(super) fn word(&self) -> Word {
        Word(self.word.load(Ordering::SeqCst))
    }

    /// Returns base, length and first offset. They belong to the word that the same pass has found valid before.
    #[inline]
    pub(super) fn grants(&self) -> (*mut u8, u64, u64) {
        let (base, len) = (self.base.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        (base, len, self.virt.load(Ordering::Relaxed))
    }

    /// Replaces the word. Called under the lock.
    pub(super) fn set_word(&self, word: Word) {
        self.word.store(word.0, Ordering::SeqCst);
    }

    /// Writes all of the slot, the word last. Called under the lock, after the grace period of its last revocation.
    pub(super) fn write(&self, content: Content) {
        self.base.store(content.base, Ordering::Relaxed);
        self.len.store(content.len, Ordering::Relaxed);
        self.virt.store(content.virt, Ordering::Relaxed);
        self.set_word(content.word);
    }
}

/// Makes the maximum number of free slots. The system supplies memory only for the slots that are used.
#[cfg(not(feature = "loom"))]
pub(super) fn reserve() -> Box<[Slot; SLOTS]> {
    let layout = std::alloc::Layout::new::<[Slot; SLOTS]>();
    // SAFETY: the layout is not empty.
    let slots = unsafe { std::alloc::alloc_zeroed(layout) };
    if slots.is_null() {
        std::alloc::handle_alloc_error(layout);
    }
    // SAFETY: the slots were allocated with that layout, and zeroes are valid slots.
    unsafe { Box::from_raw(slots.cast()) }
}

#[cfg(feature = "loom")]
pub(super) fn reserve() -> Box<[Slot; SLOTS]> {
    Box::new(std::array::from_fn(|_| Slot {
        base: AtomicPtr::new(std::ptr::null_mut()),
        len: AtomicU64::new(0),
        virt: AtomicU64::new(0),
        word: AtomicU64::new(0),
    }))
}
