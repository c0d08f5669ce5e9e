//! Peers that keep the rules, and peers that do not.

use std::fs::File;
use std::os::fd::AsFd;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::*;
use crate::port::in_place::memory::Region;

/// The peer's addresses of its memory, of its rings, of a table of descriptors, and of its buffers.
pub(in super::super) const GUEST: u64 = 0x7000_0000;
pub(in super::super) const SIZE: u16 = 8;
pub(in super::super) const MEMORY: usize = 64 << 10;
pub(in super::super) const AVAILABLE: usize = 1024;
pub(in super::super) const USED: usize = 2048;
pub(in super::super) const TABLE: usize = 4096;
pub(in super::super) const BUFFERS: usize = 8192;

/// Offset of the memory in its file.
const OFFSET: usize = 4096;

/// A peer, with memory of one region that does not begin at the start of its file.
pub(in super::super) struct Peer {
    pub(in super::super) memory: Arc<Memory>,
    /// Our address of the peer's memory.
    pub(in super::super) at: NonNull<u8>,
    pub(in super::super) offers: u16,
}

impl Peer {
    pub(in super::super) fn new() -> Self {
        let file = File::from(memfd_create(c"peer", MFdFlags::MFD_CLOEXEC).expect("memory"));
        file.set_len((OFFSET + MEMORY) as u64).expect("memory");
        let region =
            Region { guest: GUEST, len: MEMORY, library: 0x5000, offset: OFFSET, file: file.as_fd() };
        let memory = Arc::new(Memory::map(&[region]).expect("a mapping"));
        let at = memory.at(GUEST, MEMORY).expect("all of it");
        assert_eq!(memory.of_library(0x5000 + 77, 1), memory.at(GUEST + 77, 1));
        Peer { memory, at, offers: 0 }
    }

    pub(in super::super) fn ring(&self, at: Positions) -> Ring {
        let [descriptors, available, used] = [0, AVAILABLE, USED].map(|offset| self.place(offset));
        let place = Place {
            descriptors: descriptors.cast(),
            available: available.cast(),
            used: used.cast(),
            size: SIZE,
        };
        // SAFETY: the three parts lie in the memory, apart from each other.
        unsafe { Ring::new(place, self.memory.clone(), at) }
    }

    pub(in super::super) fn place(&self, offset: usize) -> NonNull<u8> {
        self.memory.at(GUEST + offset as u64, 1).expect("within the memory")
    }

    pub(in super::super) fn write(&self, offset: usize, octets: &[u8]) {
        assert!(offset + octets.len() <= MEMORY);
        // SAFETY: within the memory.
        unsafe { self.at.add(offset).as_ptr().copy_from_nonoverlapping(octets.as_ptr(), octets.len()) };
    }

    pub(in super::super) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= MEMORY);
        // SAFETY: within the memory, which nobody writes now.
        unsafe { std::slice::from_raw_parts(self.at.add(offset).as_ptr(), len) }.to_vec()
    }

    /// Returns the octets before the region, which nothing may write.
    pub(in super::super) fn before(&self) -> Vec<u8> {
        // SAFETY: the region begins at this offset of the mapping.
        unsafe { std::slice::from_raw_parts(self.at.sub(OFFSET).as_ptr(), OFFSET) }.to_vec()
    }

    /// Writes entry `index` of the table at `table`.
    pub(in super::super) fn describe(
        &self,
        table: usize,
        index: u16,
        addr: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) {
        let entry =
            [&addr.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        self.write(table + usize::from(index) * 16, &entry);
    }

    /// Offers the chain that begins with the descriptor `chain`.
    pub(in super::super) fn offer(&mut self, chain: u16) {
        self.write(AVAILABLE + 4 + 2 * usize::from(self.offers % SIZE), &chain.to_le_bytes());
        self.offers = self.offers.wrapping_add(1);
        self.write(AVAILABLE + 2, &self.offers.to_le_bytes());
    }
}

fn octets(frame: &Offered) -> Vec<u8> {
    let piece = |piece: &Piece| {
        // SAFETY: the peer's memory is mapped, and nobody writes it now.
        unsafe { std::slice::from_raw_parts(piece.at, piece.len) }.to_vec()
    };
    frame.pieces.iter().flat_map(piece).collect()
}

fn used(chains: &[u16]) -> Vec<Used> {
    chains.iter().map(|&chain| Used { chain, written: 0 }).collect()
}

/// The header and the frame may lie in any number of buffers, named by the ring's own descriptors or by a table.
#[test]
fn frames_lie_in_any_number_of_buffers() {
    let header: Vec<u8> = (1..=12).collect();
    let frame: Vec<u8> = (0..300_u16).map(|i| i as u8).collect();
    let whole = [&header[..], &frame].concat();
    for cuts in [vec![], vec![12], vec![5, 12, 13], vec![1, 2, 100, 200], vec![40, 41, 42, 43, 44, 45]] {
        for indirect in [false, true] {
            let mut peer = Peer::new();
            let mut ring = peer.ring(Positions::default());
            assert_eq!(ring.offered(), 0);
            let ends = cuts.iter().copied().chain([whole.len()]);
            let starts = [0].into_iter().chain(cuts.iter().copied());
            let parts: Vec<_> = starts.zip(ends).collect();
            let table = if indirect { TABLE } else { 0 };
            for (i, &(start, end)) in parts.iter().enumerate() {
                let at = BUFFERS + 1000 * i;
                peer.write(at, &whole[start..end]);
                let flags = if i + 1 < parts.len() { NEXT } else { 0 };
                let (index, next) = (7 - i as u16, 6_u16.wrapping_sub(i as u16));
                // A table's chain begins with its first entry, a ring's anywhere.
                let (index, next) = if indirect { (i as u16, i as u16 + 1) } else { (index, next) };
                peer.describe(table, index, GUEST + at as u64, (end - start) as u32, flags, next);
            }
            if indirect {
                peer.describe(0, 3, GUEST + TABLE as u64, 16 * parts.len() as u32, INDIRECT, 0);
            }
            let chain = if indirect { 3 } else { 7 };
            peer.offer(chain);
            assert_eq!(ring.offered(), 1);
            let mut got = Offered::default();
            assert_eq!(ring.take(&mut got), Some(Taken { chain, is_sound: true }));
            assert_eq!(&got.header[..], &header[..]);
            assert_eq!(octets(&got), frame, "{cuts:?} indirect {indirect}");
            assert_eq!(ring.offered(), 0);
            ring.give(&used(&[chain]));
            assert!(ring.wants_notification(), "the peer has not said that it needs no notification");
            assert_eq!(peer.read(USED + 2, 2), [1, 0]);
            assert_eq!(peer.read(USED + 4, 8), [chain as u8, 0, 0, 0, 0, 0, 0, 0]);
        }
    }
}

/// Positions wrap, and the peer may ask for no notifications.
#[test]
fn positions_wrap() {
    let mut peer = Peer::new();
    let start = u16::MAX - 10;
    peer.offers = start;
    peer.write(AVAILABLE, &NO_INTERRUPT.to_le_bytes());
    let mut ring = peer.ring(Positions { taken: start, given: start });
    for chain in 0..SIZE {
        peer.write(BUFFERS, &[9; 13]);
        peer.describe(0, chain, GUEST + BUFFERS as u64, 13, 0, 0);
    }
    for round in 0..100_u16 {
        let (first, second) = (round % SIZE, (round + 3) % SIZE);
        peer.offer(first);
        peer.offer(second);
        assert_eq!(ring.offered(), 2);
        for chain in [first, second] {
            let mut got = Offered::default();
            assert_eq!(ring.take(&mut got), Some(Taken { chain, is_sound: true }));
            assert_eq!(octets(&got), [9]);
        }
        ring.give(&used(&[first, second]));
        assert!(!ring.wants_notification());
        let given = start.wrapping_add(2 * round + 2);
        assert_eq!(peer.read(USED + 2, 2), given.to_le_bytes());
        assert_eq!(ring.positions(), Positions { taken: given, given });
        let last = usize::from(given.wrapping_sub(1) % SIZE);
        assert_eq!(peer.read(USED + 4 + 8 * last, 2), second.to_le_bytes());
    }
}

/// A chain that makes no sense is no frame, but can be given back.
#[test]
fn senseless_chains_are_no_frames() {
    let (buffer, table) = (GUEST + BUFFERS as u64, GUEST + TABLE as u64);
    let end = GUEST + MEMORY as u64;
    let first: &[(u64, u32, u16, u16)] = &[
        // Memory that is not the peer's.
        (GUEST - 1, 100, 0, 0),
        (end, 1, 0, 0),
        (end - 99, 100, 0, 0),
        (0, 100, 0, 0),
        (u64::MAX, 100, 0, 0),
        (buffer, u32::MAX, 0, 0),
        // Too short for the header.
        (buffer, 11, 0, 0),
        (buffer, 0, 0, 0),
        // A chain that returns to itself, and one that leaves the ring.
        (buffer, 100, NEXT, 0),
        (buffer, 100, NEXT, SIZE),
        (buffer, 100, NEXT, u16::MAX),
        // A buffer for us to write.
        (buffer, 100, WRITE, 0),
        // Tables: none of theirs, an empty one, half an entry, one in a chain.
        (end - 8, 16, INDIRECT, 0),
        (table, 0, INDIRECT, 0),
        (table, 15, INDIRECT, 0),
        (table, u32::MAX, INDIRECT, 0),
        (table, 16, INDIRECT | NEXT, 1),
    ];
    for &(addr, len, flags, next) in first {
        let mut peer = Peer::new();
        peer.describe(TABLE, 0, buffer, 100, 0, 0);
        peer.describe(0, 1, buffer, 100, 0, 0);
        let mut ring = peer.ring(Positions::default());
        peer.describe(0, 0, addr, len, flags, next);
        peer.offer(0);
        peer.offer(1);
        assert_eq!(ring.offered(), 2);
        let mut got = Offered::default();
        let taken = ring.take(&mut got);
        assert_eq!(taken, Some(Taken { chain: 0, is_sound: false }), "{addr:#x} {len} {flags} {next}");
        assert_eq!(ring.take(&mut got), Some(Taken { chain: 1, is_sound: true }), "the next frame is good");
        assert_eq!(octets(&got).len(), 88);
        ring.give(&used(&[0, 1]));
        assert_eq!(peer.read(USED + 2, 2), [2, 0]);
    }
    // A table within a table, an entry outside the table, and a table longer than any chain may be.
    for entry in [(table, 16, INDIRECT, 0), (buffer, 100, NEXT, 2), (buffer, 100, NEXT, 0)] {
        let mut peer = Peer::new();
        let mut ring = peer.ring(Positions::default());
        peer.describe(TABLE, 0, entry.0, entry.1, entry.2, entry.3);
        peer.describe(0, 0, table, 32, INDIRECT, 0);
        peer.offer(0);
        let taken = ring.take(&mut Offered::default());
        assert_eq!(taken, Some(Taken { chain: 0, is_sound: false }), "{entry:?}");
    }
}

/// Buffers for us to write are those that say so, and what is put back is taken again.
#[test]
fn buffers_are_taken_and_put_back() {
    let mut peer = Peer::new();
    let start = u16::MAX - 1;
    peer.offers = start;
    let mut ring = peer.ring(Positions { taken: start, given: start });
    let [first, second] = [0, 1].map(|i| GUEST + (BUFFERS + 1000 * i) as u64);
    peer.describe(0, 0, first, 12, WRITE | NEXT, 1);
    peer.describe(0, 1, second, 100, WRITE, 0);
    // A table may say that we write it, although we do not (virtio 1.2 §2.7.5.3.2).
    peer.describe(0, 2, GUEST + TABLE as u64, 32, INDIRECT | WRITE, 0);
    peer.describe(TABLE, 0, first, 0, WRITE | NEXT, 1);
    peer.describe(TABLE, 1, second, 7, WRITE, 0);
    // A frame, and a chain that is half of each.
    peer.describe(0, 3, first, 100, 0, 0);
    peer.describe(0, 4, first, 100, WRITE | NEXT, 3);
    [0, 2, 3, 4].into_iter().for_each(|chain| peer.offer(chain));
    for n in [1, 2, 3, 4, 4] {
        assert_eq!(ring.offered(), 4);
        let mut pieces = ArrayVec::new();
        let mut take = |chain, is_sound, lens: &[usize]| {
            let before = pieces.len();
            assert_eq!(ring.take_buffers(&mut pieces), Some(Taken { chain, is_sound }));
            if is_sound {
                assert_eq!(pieces[before..].iter().map(|piece| piece.len).collect::<Vec<_>>(), lens);
            }
        };
        take(0, true, &[12, 100]);
        if n > 1 {
            take(2, true, &[7]);
        }
        if n > 2 {
            take(3, false, &[]);
        }
        if n > 3 {
            take(4, false, &[]);
        }
        assert_eq!(ring.offered(), 4 - n);
        ring.put_back(n);
        assert_eq!(ring.positions(), Positions { taken: start, given: start });
    }
    let written =
        [Used { chain: 0, written: 77 }, Used { chain: 2, written: 0x1_0001 }, Used { chain: 3, written: 0 }];
    (0..3).for_each(|_| assert!(ring.take_buffers(&mut ArrayVec::new()).is_some()));
    ring.give(&written);
    assert_eq!(ring.positions(), Positions { taken: 1, given: 1 });
    for (slot, entry) in [6, 7, 0].into_iter().zip(written) {
        let want = [u32::from(entry.chain), entry.written].map(u32::to_le_bytes).concat();
        assert_eq!(peer.read(USED + 4 + 8 * slot, 8), want);
    }
    assert_eq!(peer.read(USED + 2, 2), [1, 0]);
}

/// A peer that breaks the ring itself is not served any more.
#[test]
fn a_broken_ring_is_not_served() {
    let peer = Peer::new();
    let mut ring = peer.ring(Positions::default());
    peer.write(AVAILABLE + 2, &(SIZE + 1).to_le_bytes());
    assert_eq!(ring.offered(), 0, "more than the ring holds");
    peer.write(AVAILABLE + 2, &1_u16.to_le_bytes());
    assert_eq!(ring.offered(), 0, "it stays broken");
    let mut ring = peer.ring(Positions::default());
    peer.write(AVAILABLE + 4, &SIZE.to_le_bytes());
    assert_eq!(ring.offered(), 1);
    assert!(ring.take(&mut Offered::default()).is_none(), "there is no such descriptor");
    assert_eq!(ring.offered(), 0);
}

/// Whatever the memory contains, and however it changes, what is taken lies in it.
#[test]
fn random_memory_does_no_harm() {
    const ROUNDS: u64 = 3000;
    for seed in 0..ROUNDS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let peer = Peer::new();
        let mut ring = peer.ring(Positions { taken: rng.u16(..), given: rng.u16(..) });
        let (start, end) = (peer.at.as_ptr() as usize, peer.at.as_ptr() as usize + MEMORY);
        for _ in 0..4 {
            // Descriptors that are nearly right go further than random ones.
            for table in [0, TABLE] {
                for index in 0..SIZE {
                    let addr = GUEST.wrapping_add(rng.u64(..MEMORY as u64 + 64)).wrapping_sub(32);
                    let len = *rng.choice(&[0, 1, 12, 16, 64, 128, 4000, u32::MAX]).expect("one");
                    let flags = *rng.choice(&[0, NEXT, NEXT, NEXT, INDIRECT, WRITE, u16::MAX]).expect("one");
                    let addr = if flags == INDIRECT { GUEST + TABLE as u64 } else { addr };
                    peer.describe(table, index, addr, len, flags, rng.u16(..SIZE + 2));
                }
            }
            for slot in 0..SIZE {
                let beyond = u16::from(rng.u8(..) == 0);
                peer.write(AVAILABLE + 4 + 2 * usize::from(slot), &rng.u16(..SIZE + beyond).to_le_bytes());
            }
            let offers = ring.positions().taken.wrapping_add(rng.u16(..=SIZE));
            peer.write(AVAILABLE + 2, &offers.to_le_bytes());
            for _ in 0..ring.offered() {
                let mut frame = Offered::default();
                let Some(taken) = ring.take(&mut frame) else { break };
                for piece in frame.pieces.iter().filter(|_| taken.is_sound) {
                    let at = piece.at as usize;
                    assert!(piece.len > 0 && at >= start && at + piece.len <= end, "seed {seed}: {piece:?}");
                }
                ring.give(&used(&[taken.chain]));
            }
        }
    }
}

/// A region of hugepages need not end with one, and its mapping goes away all the same.
#[test]
fn hugepages_are_unmapped() {
    let Ok(file) = memfd_create(c"urnic-hugepages", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_HUGETLB) else {
        return;
    };
    let mapped = || std::fs::read_to_string("/proc/self/maps").expect("maps").contains("urnic-hugepages");
    let file = File::from(file);
    let region = Region { guest: GUEST, len: 0xa_0000, library: 0x5000, offset: 0, file: file.as_fd() };
    if file.set_len(2 << 20).is_ok()
        && let Some(memory) = Memory::map(&[region])
    {
        assert!(mapped());
        drop(memory);
        assert!(!mapped());
    }
}
