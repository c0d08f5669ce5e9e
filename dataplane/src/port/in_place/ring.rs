//! A ring in which the peer offers frames, or buffers for frames: a split virtqueue (virtio 1.2 §2.7) on the device's
//! side.
//!
//! All of it is in memory that the peer may change at any time. So every value is read once, and checked before it is
//! used.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, compiler_fence};

use arrayvec::ArrayVec;

use super::memory::Memory;
use crate::buffers::borrowed::Piece;
use crate::buffers::prefetch_for_writing;

/// Most descriptors of one frame, as for the driver.
pub(super) const LONGEST_CHAIN: usize = 256;

/// Length of the header before each frame (virtio 1.2 §5.1.6).
pub(super) const HEADER: usize = 12;

/// A descriptor (virtio 1.2 §2.7.5). All its fields are little-endian.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Descriptor {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
    pub(super) next: u16,
}

/// The frame goes on in the descriptor `next`.
pub(super) const NEXT: u16 = 1;
/// The buffer is for the device to write.
pub(super) const WRITE: u16 = 2;
/// The buffer is a table of descriptors.
pub(super) const INDIRECT: u16 = 4;

/// Flag of the ring of available descriptors: the peer needs no notification.
const NO_INTERRUPT: u16 = 1;

/// Addresses of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) descriptors: NonNull<Descriptor>,
    pub(super) available: NonNull<u16>,
    pub(super) used: NonNull<u16>,
    /// Number of descriptors, a power of two.
    pub(super) size: u16,
}

// SAFETY: addresses of shared memory, which are only used through raw pointers.
unsafe impl Send for Place {}

impl Place {
    /// Octets of the table of `size` descriptors, of the ring of available ones, and of the ring of used ones.
    pub(super) const fn lengths(size: u16) -> [usize; 3] {
        let size = size as usize;
        [size * size_of::<Descriptor>(), 4 + 2 * size, 4 + 8 * size]
    }
}

/// The two positions that say how far a ring has been served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Positions {
    /// Number of chains taken, modulo 2^16.
    pub(super) taken: u16,
    /// Number of chains given back, modulo 2^16.
    pub(super) given: u16,
}

/// A chain that was taken from the ring, to be [given back](Ring::give) after use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) chain: u16,
    /// Whether the chain holds a frame, or buffers for one. If not, the peer has broken the rules.
    pub(super) is_sound: bool,
}

/// A chain to be given back, and how many octets were written to its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) chain: u16,
    pub(super) written: u32,
}

/// The octets of a frame that the peer offers.
#[derive(Debug, Default)]
pub(super) struct Offered {
    pub(super) header: [u8; HEADER],
    /// The frame itself.
    pub(super) pieces: ArrayVec<Piece, LONGEST_CHAIN>,
}

/// Asks the processor to fetch `lines` cache lines from that of `at` on.
#[inline]
pub(super) fn prefetch(at: *const u8, lines: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..lines {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(64 * line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, lines);
}

/// A ring, and how far it has been served.
#[derive(Debug)]
pub(super) struct Ring {
    place: Place,
    memory: Arc<Memory>,
    at: Positions,
    /// Whether the peer has broken the rules in a way that leaves nothing to do but to wait for a new ring.
    broken: bool,
}

impl Ring {
    /// Wraps the ring at `place`, which has been served up to `at`.
    ///
    /// # Safety
    /// `place` lies in `memory`, with the [lengths](Place::lengths) that its size means, and is aligned. Its size is a
    /// power of two. Nothing else takes from this ring.
    pub(super) unsafe fn new(place: Place, memory: Arc<Memory>, at: Positions) -> Self {
        Ring { place, memory, at, broken: false }
    }

    /// Replaces the memory that the ring and its frames are in.
    ///
    /// # Safety
    /// As [`new`](Self::new). Nothing uses pieces of earlier frames.
    pub(super) unsafe fn move_to(&mut self, place: Place, memory: Arc<Memory>) {
        self.place = place;
        self.memory = memory;
    }

    /// Returns how far the ring has been served.
    pub(super) fn positions(&self) -> Positions {
        self.at
    }

    fn word(&self, ring: NonNull<u16>, index: usize) -> &AtomicU16 {
        // SAFETY: the callers pass an index within the ring. Shared memory is only accessed by atomics and raw reads.
        unsafe { AtomicU16::from_ptr(ring.as_ptr().add(index)) }
    }

    /// Returns the number of descriptors.
    #[inline]
    pub(super) fn size(&self) -> u16 {
        self.place.size
    }

    /// Returns how many chains the peer offers now.
    #[inline]
    pub(super) fn offered(&mut self) -> u16 {
        let offers = u16::from_le(self.word(self.place.available, 1).load(Ordering::Acquire));
        let offered = offers.wrapping_sub(self.at.taken);
        if offered > self.place.size || self.broken {
            // More than the ring holds.
            self.broken = true;
            return 0;
        }
        offered
    }

    /// Asks the processor to fetch the buffer or the table that begins the chain which is taken after `ahead` others.
    #[inline]
    pub(super) fn foresee(&self, ahead: u16) {
        let index = usize::from(self.at.taken.wrapping_add(ahead) & (self.place.size - 1));
        let chain = u16::from_le(self.word(self.place.available, 2 + index).load(Ordering::Relaxed));
        // SAFETY: less than the size of the ring.
        let d = unsafe { Self::descriptor(self.place.descriptors, chain & (self.place.size - 1)) };
        if let Some(at) = self.memory.at(d.addr, 1) {
            prefetch(at.as_ptr(), 2);
        }
    }

    /// Asks the processor to fetch, for writing, the start of the buffers that are taken next.
    #[inline]
    pub(super) fn foresee_buffers(&self) {
        const LINES: usize = 3;
        let index = usize::from(self.at.taken & (self.place.size - 1));
        let chain = u16::from_le(self.word(self.place.available, 2 + index).load(Ordering::Relaxed));
        // SAFETY: less than the size of the ring.
        let d = unsafe { Self::descriptor(self.place.descriptors, chain & (self.place.size - 1)) };
        if let Some(at) = self.memory.at(d.addr, 1) {
            prefetch_for_writing(at.as_ptr(), 64 * LINES);
        }
    }

    /// Takes the next chain, and stores its frame in `frame`. Call this at most [`offered`](Self::offered) times.
    /// `None`: the peer has broken the ring.
    #[inline]
    pub(super) fn take(&mut self, frame: &mut Offered) -> Option<Taken> {
        frame.pieces.clear();
        let mut taken = self.take_chain(0, &mut frame.pieces)?;
        taken.is_sound = taken.is_sound && frame.cut_header();
        Some(taken)
    }

    /// Takes the next chain, and appends its buffers, which are for us to write, to `pieces`. Call this at most
    /// [`offered`](Self::offered) times. `None`: the peer has broken the ring.
    #[inline]
    pub(super) fn take_buffers(&mut self, pieces: &mut ArrayVec<Piece, LONGEST_CHAIN>) -> Option<Taken> {
        self.take_chain(WRITE, pieces)
    }

    /// Takes the next chain, whose descriptors must have the flag [`WRITE`] exactly if `written` has it.
    #[inline]
    fn take_chain(&mut self, written: u16, pieces: &mut ArrayVec<Piece, LONGEST_CHAIN>) -> Option<Taken> {
        let index = usize::from(self.at.taken & (self.place.size - 1));
        let chain = u16::from_le(self.word(self.place.available, 2 + index).load(Ordering::Relaxed));
        if chain >= self.place.size {
            self.broken = true;
            return None;
        }
        self.at.taken = self.at.taken.wrapping_add(1);
        Some(Taken { chain, is_sound: self.walk(chain, written, pieces).is_some() })
    }

    /// Puts back the `n` chains that were taken last.
    pub(super) fn put_back(&mut self, n: u16) {
        self.at.taken = self.at.taken.wrapping_sub(n);
    }

    /// Returns a copy of entry `index` of a table of descriptors.
    ///
    /// # Safety
    /// The table has this entry.
    #[inline]
    unsafe fn descriptor(table: NonNull<Descriptor>, index: u16) -> Descriptor {
        // SAFETY: as the caller promises. The peer may write the entry meanwhile; its values are checked.
        let d = unsafe { table.add(index.into()).as_ptr().read_unaligned() };
        // The compiler must not read again what was checked.
        compiler_fence(Ordering::SeqCst);
        Descriptor {
            addr: u64::from_le(d.addr),
            len: u32::from_le(d.len),
            flags: u16::from_le(d.flags),
            next: u16::from_le(d.next),
        }
    }

    /// Appends the buffers of a chain to `pieces`; `None` if the chain breaks the rules, or `pieces` has no room for all
    /// of them.
    #[inline]
    fn walk(&self, chain: u16, written: u16, pieces: &mut ArrayVec<Piece, LONGEST_CHAIN>) -> Option<()> {
        // SAFETY: `chain` is less than the size of the ring.
        let mut d = unsafe { Self::descriptor(self.place.descriptors, chain) };
        let (mut table, mut entries) = (self.place.descriptors, usize::from(self.place.size));
        if d.flags & INDIRECT != 0 {
            entries = d.len as usize / size_of::<Descriptor>();
            if d.flags & NEXT != 0 || entries == 0 {
                return None;
            }
            table = self.memory.at(d.addr, d.len as usize)?.cast();
            // SAFETY: the table has at least one entry.
            d = unsafe { Self::descriptor(table, 0) };
        }
        for _ in 0..LONGEST_CHAIN {
            if d.flags & (WRITE | INDIRECT) != written {
                return None;
            }
            let (at, len) = (self.memory.at(d.addr, d.len as usize)?, d.len as usize);
            if len > 0 {
                pieces.try_push(Piece { at: at.as_ptr(), len }).ok()?;
            }
            if d.flags & NEXT == 0 {
                return Some(());
            }
            if usize::from(d.next) >= entries {
                return None;
            }
            // SAFETY: the table has this entry.
            d = unsafe { Self::descriptor(table, d.next) };
        }
        None
    }

    /// Gives chains back to the peer.
    pub(super) fn give(&mut self, chains: &[Used]) {
        if chains.is_empty() {
            return;
        }
        for &Used { chain, written } in chains {
            let index = usize::from(self.at.given & (self.place.size - 1));
            // SAFETY: the ring has `size` entries of eight octets after its first four octets.
            unsafe {
                let entry = self.place.used.add(2 + 4 * index).cast::<[u32; 2]>();
                entry.as_ptr().write_unaligned([u32::from(chain).to_le(), written.to_le()]);
            }
            self.at.given = self.at.given.wrapping_add(1);
        }
        self.word(self.place.used, 1).store(self.at.given.to_le(), Ordering::Release);
    }

    /// Returns whether the peer wants to be notified of chains that are given back. The peer may begin to want it just
    /// after it has last looked for them: only a fence after [`give`](Self::give) makes the answer certain.
    #[inline]
    pub(super) fn wants_notification(&self) -> bool {
        self.word(self.place.available, 0).load(Ordering::Relaxed) & NO_INTERRUPT.to_le() == 0
    }
}

impl Offered {
    /// Moves the header from the pieces to its own place. Returns `false` if they are shorter.
    #[inline]
    fn cut_header(&mut self) -> bool {
        let (mut have, mut whole) = (0, 0);
        for piece in &mut self.pieces {
            let n = piece.len.min(HEADER - have);
            // SAFETY: `n` octets are within the piece, and within what is left of the header.
            unsafe {
                piece.at.copy_to_nonoverlapping(self.header.as_mut_ptr().add(have), n);
                piece.at = piece.at.add(n);
            }
            (have, piece.len) = (have + n, piece.len - n);
            whole += usize::from(piece.len == 0);
            if have == HEADER {
                break;
            }
        }
        if whole > 0 {
            self.pieces.drain(..whole);
        }
        have == HEADER
    }
}

#[cfg(test)]
pub(super) mod tests;
