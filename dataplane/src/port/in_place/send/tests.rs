//! Rings of receivers that keep the rules, and of others.

use super::super::ring::tests::{AVAILABLE, BUFFERS, GUEST, MEMORY, Peer, SIZE, TABLE};
use super::super::ring::{INDIRECT, NEXT, Positions, WRITE};
use super::*;

/// A frame of several mbufs, which are no pool's.
struct Frame {
    mbufs: Vec<sys::rte_mbuf>,
    octets: Vec<Vec<u8>>,
}

impl Frame {
    fn new(lens: &[usize]) -> Self {
        let mut n = 0_u8;
        let octets = lens.iter().map(|&len| {
            let mut octet = || {
                n = n.wrapping_mul(5).wrapping_add(3);
                n
            };
            (0..len).map(|_| octet()).collect::<Vec<_>>()
        });
        let octets: Vec<Vec<u8>> = octets.collect();
        let mut frame = Frame { mbufs: octets.iter().map(|_| sys::rte_mbuf::default()).collect(), octets };
        let mut next = std::ptr::null_mut();
        for (mbuf, octets) in frame.mbufs.iter_mut().zip(&frame.octets).rev() {
            mbuf.buf_addr = octets.as_ptr().cast_mut().cast();
            (mbuf.data_len, mbuf.next) = (octets.len() as u16, next);
            next = &raw mut *mbuf;
        }
        frame.mbufs[0].pkt_len = lens.iter().sum::<usize>() as u32;
        frame
    }

    fn at(&mut self) -> NonNull<sys::rte_mbuf> {
        NonNull::from(&mut self.mbufs[0])
    }
}

type Chains = ArrayVec<Used, { 2 * CHAINS }>;

/// Writes a frame, which `lens` are the segments of. Returns what became of it, and the chains with what was written.
fn send(ring: &mut Ring, known: &mut u16, merges: bool, lens: &[usize]) -> (Fate, Chains) {
    let (mut frame, mut used) = (Frame::new(lens), Chains::new());
    // SAFETY: a whole frame.
    (unsafe { write(frame.at(), ring, known, merges, &mut used) }, used)
}

/// A frame with as many chains as a ring has is sent; one that needs more is dropped, and leaves the ring as it was.
#[test]
fn a_frame_takes_all_chains_and_no_more() {
    let mut peer = Peer::new();
    let mut ring = peer.ring(Positions::default());
    for chain in 0..SIZE {
        peer.describe(0, chain, GUEST + (BUFFERS + 100 * usize::from(chain)) as u64, 50, WRITE, 0);
        peer.offer(chain);
    }
    let (mut known, all) = (0, 50 * usize::from(SIZE) - HEADER);
    assert!(matches!(send(&mut ring, &mut known, true, &[100, all - 99]), (Fate::Dropped, _)));
    assert_eq!((ring.positions(), known), (Positions::default(), SIZE));
    let (fate, used) = send(&mut ring, &mut known, true, &[100, all - 100]);
    assert!(matches!(fate, Fate::Sent));
    assert!(used.iter().map(|used| used.chain).eq(0..SIZE) && used.iter().all(|used| used.written == 50));
    assert_eq!((ring.positions().taken, known), (SIZE, 0));
    let frame = Frame::new(&[100, all - 100]).octets.concat();
    let read = |chain: u16| peer.read(BUFFERS + 100 * usize::from(chain), 50);
    let whole: Vec<u8> = (0..SIZE).flat_map(read).collect();
    assert_eq!(whole[..HEADER], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, SIZE as u8, 0]);
    assert!(whole[HEADER..] == frame);
}

/// Fewer chains than a frame needs stay, until there are more. What came is known.
#[test]
fn a_frame_waits_for_chains() {
    let mut peer = Peer::new();
    let mut ring = peer.ring(Positions::default());
    let mut known = 0;
    for chain in 0..4 {
        assert!(matches!(send(&mut ring, &mut known, true, &[150]), (Fate::Waits, _)));
        assert_eq!((ring.positions().taken, known), (0, chain));
        peer.describe(0, chain, GUEST + BUFFERS as u64, 41, WRITE, 0);
        peer.offer(chain);
    }
    let (fate, used) = send(&mut ring, &mut known, true, &[150]);
    assert!(matches!(fate, Fate::Sent));
    assert_eq!(used.iter().map(|used| used.written).collect::<Vec<_>>(), [41, 41, 41, 39]);
    // Where frames may not lie in several chains, this one is dropped.
    peer.offer(0);
    assert!(matches!(send(&mut ring, &mut known, false, &[30]), (Fate::Dropped, _)));
    assert_eq!((ring.positions().taken, known), (4, 1));
    assert!(matches!(send(&mut ring, &mut known, false, &[29]), (Fate::Sent, _)));
    assert_eq!((ring.positions().taken, known), (5, 0));
}

/// A chain that breaks the rules takes no frame. It stays the next one, as with the driver.
#[test]
fn senseless_chains_take_no_frame() {
    let (buffer, end) = (GUEST + BUFFERS as u64, GUEST + MEMORY as u64);
    let chains: &[(u64, u32, u16, u16)] = &[
        (GUEST - 1, 1000, WRITE, 0),
        (end - 999, 1000, WRITE, 0),
        (u64::MAX, 1000, WRITE, 0),
        (buffer, u32::MAX, WRITE, 0),
        (buffer, 1000, 0, 0),
        (buffer, 1000, WRITE | NEXT, 0),
        (buffer, 1000, WRITE | NEXT, SIZE),
        (GUEST + TABLE as u64, 15, INDIRECT, 0),
        (GUEST + TABLE as u64, 16, INDIRECT | NEXT, 1),
    ];
    for merges in [false, true] {
        for &(addr, len, flags, next) in chains {
            let mut peer = Peer::new();
            let (mut ring, mut known) = (peer.ring(Positions::default()), 0);
            peer.describe(0, 1, buffer, 100, WRITE, 0);
            peer.describe(0, 0, addr, len, flags, next);
            peer.offer(1);
            peer.offer(0);
            // The second chain of a frame.
            let fate = send(&mut ring, &mut known, merges, &[100]).0;
            assert!(matches!(fate, Fate::Dropped), "{addr:#x} {len} {flags} {next}");
            assert!(matches!(send(&mut ring, &mut known, merges, &[88]).0, Fate::Sent));
            for _ in 0..3 {
                assert!(matches!(send(&mut ring, &mut known, merges, &[1]).0, Fate::Waits));
                assert_eq!((ring.positions().taken, known), (1, 1));
            }
            // The peer may think better of it.
            peer.describe(0, 0, buffer, 100, WRITE, 0);
            assert!(matches!(send(&mut ring, &mut known, merges, &[1]).0, Fate::Sent));
        }
    }
}

/// A train in the longest chains, and in the most chains, that a frame may have.
#[test]
fn the_longest_frames_are_sent() {
    const LONGEST: usize = 65549;
    // The buffers overlap, so only the lengths matter.
    let (mut peer, mut known) = (Peer::new(), 0);
    let mut ring = peer.ring(Positions::default());
    for index in 0..LONGEST_CHAIN as u16 {
        let flags = if index < 255 { WRITE | NEXT } else { WRITE };
        peer.describe(TABLE + 8192, index, GUEST + BUFFERS as u64, 257, flags, index + 1);
    }
    peer.describe(0, 0, GUEST + TABLE as u64 + 8192, 16 * LONGEST_CHAIN as u32, INDIRECT, 0);
    for chain in [0, 0] {
        peer.offer(chain);
    }
    let (fate, used) = send(&mut ring, &mut known, true, &[30000, LONGEST - 30000]);
    assert!(matches!(fate, Fate::Sent));
    assert_eq!(used[0].written as usize, LONGEST + HEADER);
    // Twice as many pieces are too many.
    peer.offer(0);
    assert!(matches!(send(&mut ring, &mut known, true, &[30000, 30000, 30000]).0, Fate::Dropped));
    assert_eq!((ring.positions().taken, known), (1, 2));
}

/// Whatever the ring contains, nothing is written outside the peer's memory, and what is not sent leaves no trace.
#[test]
fn random_rings_do_no_harm() {
    let mut fates = [0; 3];
    for seed in 0..5000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut peer = Peer::new();
        let mut ring = peer.ring(Positions { taken: rng.u16(..), given: rng.u16(..) });
        let mut known = 0;
        for _ in 0..6 {
            for table in [0, TABLE] {
                for index in 0..SIZE {
                    let addr = GUEST.wrapping_add(rng.u64(..MEMORY as u64 + 64)).wrapping_sub(32);
                    let len = *rng.choice(&[0, 1, 11, 12, 16, 64, 128, 4000, u32::MAX]).expect("one");
                    let near = [WRITE, WRITE, WRITE, WRITE | NEXT, WRITE | NEXT, INDIRECT, 0, NEXT, u16::MAX];
                    let flags = *rng.choice(&near).expect("one");
                    let addr = if flags == INDIRECT { GUEST + TABLE as u64 } else { addr };
                    peer.describe(table, index, addr, len, flags, rng.u16(..SIZE + 2));
                }
            }
            for slot in 0..SIZE {
                let beyond = u16::from(rng.u8(..) == 0);
                peer.write(AVAILABLE + 4 + 2 * usize::from(slot), &rng.u16(..SIZE + beyond).to_le_bytes());
            }
            peer.offers = ring.positions().taken.wrapping_add(rng.u16(..=SIZE));
            peer.write(AVAILABLE + 2, &peer.offers.to_le_bytes());
            let lens: Vec<usize> =
                (0..rng.usize(1..4)).map(|_| rng.usize(..3000) / rng.usize(1..50)).collect();
            let before = ring.positions();
            let (fate, used) = send(&mut ring, &mut known, rng.bool(), &lens);
            fates[match fate {
                Fate::Sent => {
                    let written = used.iter().map(|used| used.written as usize).sum::<usize>();
                    assert_eq!(written, HEADER + lens.iter().sum::<usize>(), "seed {seed}");
                    assert_eq!(ring.positions().taken, before.taken.wrapping_add(used.len() as u16));
                    0
                }
                Fate::Dropped => 1,
                Fate::Waits => 2,
            }] += 1;
            if !matches!(fate, Fate::Sent) {
                assert_eq!((ring.positions(), used.len()), (before, 0), "seed {seed}");
            }
            assert!(used.iter().all(|used| used.chain < SIZE) && known <= SIZE, "seed {seed}");
            ring.give(&used);
            assert!(peer.before().iter().all(|octet| *octet == 0), "seed {seed}");
        }
    }
    assert!(fates.iter().all(|n| *n > 1000), "all fates: {fates:?}");
}
