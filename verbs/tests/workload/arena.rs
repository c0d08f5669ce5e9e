//! An arena: the memory of one node, registered in pieces, with its expected content.

use std::alloc::Layout;
use urnic::{Access, Mr, Pd};

/// A range of an [`Arena`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub at: usize,
    pub len: usize,
}

/// All the memory of a node that an RNIC might touch, including guard areas, and a shadow with its expected
/// content.
pub struct Arena {
    base: *mut u8,
    layout: Layout,
    next: usize,
    pub shadow: Vec<u8>,
}

impl Arena {
    /// Makes an arena of `len` octets of random content.
    pub fn new(len: usize, rng: &mut fastrand::Rng) -> Arena {
        let len = len.next_multiple_of(8);
        let layout = Layout::from_size_align(len, 4096).unwrap();
        // SAFETY: len is not 0.
        let base = unsafe { std::alloc::alloc(layout) };
        assert!(!base.is_null());
        let mut shadow = Vec::with_capacity(len);
        while shadow.len() < len {
            shadow.extend_from_slice(&rng.u64(..).to_ne_bytes());
        }
        // SAFETY: both have `len` octets.
        unsafe { base.copy_from_nonoverlapping(shadow.as_ptr(), len) };
        Arena { base, layout, next: 0, shadow }
    }

    pub fn address(&self, at: usize) -> u64 {
        self.base as u64 + at as u64
    }

    /// Registers `len` octets after a guard of `guard` octets.
    pub fn region(&mut self, pd: &Pd, len: usize, guard: usize, access: Access) -> Region {
        let at = self.next + guard;
        self.next = at + len;
        self.register(pd, at, len, access)
    }

    /// Registers `len` octets at `at`, even if they are registered already.
    pub fn register(&self, pd: &Pd, at: usize, len: usize, access: Access) -> Region {
        assert!(at + len <= self.shadow.len(), "the arena is too small");
        // SAFETY: within the allocation, which outlives the region, because the world drops its ends first. There
        // are no references to it.
        let mr = unsafe { pd.reg_mr(self.base.add(at), len, access) }.unwrap();
        Region::new(mr, at, len)
    }

    /// Writes to the arena and to the shadow, as the application.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        self.shadow[at..at + bytes.len()].copy_from_slice(bytes);
        // SAFETY: the shadow is as long as the arena, so the range is in bounds.
        unsafe { self.base.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Returns the present content of a range.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.shadow.len());
        let mut out = vec![0; len];
        // SAFETY: within bounds; engines run only in this thread, and not now.
        unsafe { out.as_mut_ptr().copy_from_nonoverlapping(self.base.add(at), len) };
        out
    }

    /// Returns the content of `pieces`, one after the other.
    pub fn gather(&self, pieces: &[Piece]) -> Vec<u8> {
        pieces.iter().flat_map(|p| self.read(p.at, p.len)).collect()
    }

    /// Returns the position of the first octet that differs from the shadow, with its present and its expected value;
    /// `None` if no octet differs.
    pub fn first_difference(&self) -> Option<(usize, u8, u8)> {
        let now = self.read(0, self.shadow.len());
        if now == self.shadow {
            return None;
        }
        let at = now.iter().zip(&self.shadow).position(|(a, b)| a != b)?;
        Some((at, now[at], self.shadow[at]))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.base, self.layout) };
    }
}

/// Registered memory in an arena. Each octet is used once.
pub struct Region {
    pub mr: Option<Mr>,
    pub at: usize,
    pub len: usize,
    used: usize,
}

impl Region {
    pub fn new(mr: Mr, at: usize, len: usize) -> Region {
        Region { mr: Some(mr), at, len, used: 0 }
    }

    pub fn key(&self) -> u32 {
        self.mr.as_ref().map_or(0, Mr::rkey)
    }

    pub fn left(&self) -> usize {
        self.len - self.used
    }

    /// Returns the next `len` octets after a gap of `gap` octets; `None` if not enough octets are left.
    pub fn take(&mut self, gap: usize, len: usize) -> Option<Piece> {
        if gap + len > self.left() {
            return None;
        }
        let at = self.at + self.used + gap;
        self.used += gap + len;
        Some(Piece { at, len })
    }
}
