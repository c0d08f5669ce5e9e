//! Memory for incomplete FPDUs, shared by streams (RFC 5044 §6).

mod support;

use std::collections::VecDeque;
use support::*;
use urnic_iwarp::*;

const STAG: u32 = 7;
/// Octets of the buffer that holds a chunk.
const BUFFER: usize = 2048;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

/// Returns the FPDU of a Write of `len` octets to offset 0.
fn written(len: usize) -> Vec<u8> {
    fpdu(&tagged(0xC1, 0x40, STAG, 0, &pattern(len)))
}

/// A part of a stream, in a receive buffer.
struct Part(Vec<u8>);

impl Chunk for Part {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn pins(&self) -> usize {
        BUFFER
    }
}

struct End {
    stream: Stream<Part>,
    memory: Memory,
    /// Chunks that the stream has not taken, in order.
    left: VecDeque<Vec<u8>>,
}

impl End {
    fn new(budget: &Budget) -> End {
        let negotiated = negotiated(Role::Responder, 4, 4);
        let mut memory = Memory::default();
        memory.add(STAG, 0, 1 << 17);
        End { stream: Stream::new(&negotiated, budget.clone()), memory, left: VecDeque::new() }
    }

    /// Offers `octets` after the octets left before, as TCP does. Returns whether all are taken.
    fn offer(&mut self, octets: &[u8]) -> bool {
        if !octets.is_empty() {
            self.left.push_back(octets.to_vec());
        }
        while let Some(next) = self.left.pop_front() {
            if let Some(Rest { chunk: Part(octets), taken, .. }) =
                self.stream.receive(Part(next), &mut self.memory).unwrap()
            {
                self.left.push_front(octets[taken..].to_vec());
                return false;
            }
        }
        true
    }

    fn holds(&self, len: usize) -> bool {
        self.memory.region(STAG).data()[..len] == pattern(len)
    }
}

#[test]
fn a_stream_stops_before_an_fpdu_that_finds_no_room() {
    let (large, small) = (written(60_000), written(100));
    let budget = Budget::new(large.len(), usize::MAX);
    let (mut a, mut b) = (End::new(&budget), End::new(&budget));
    assert!(a.offer(&large[..40_000]));
    assert_eq!(budget.reserved(), large.len());
    // Whole FPDUs need no room. The stream takes no octet of the incomplete FPDU after them.
    assert!(!b.offer(&[&small[..], &large[..1000]].concat()));
    assert!(b.holds(100));
    assert_eq!((b.left.len(), b.left[0].len()), (1, 1000));
    assert!(!b.stream.mid_fpdu());
    // Later octets wait, although they would fit.
    assert!(!b.offer(&large[1000..]));
    assert!(!b.offer(&small));
    assert_eq!(b.memory.placements, 100);
    // The FPDU that was begun is finished, and its reservation is released.
    assert!(a.offer(&large[40_000..]));
    assert!(a.holds(60_000));
    assert_eq!((budget.reserved(), budget.pinned()), (0, 0));
    assert!(b.offer(&[]));
    assert!(b.holds(60_000));
    assert_eq!(b.memory.placements, 100 + 60_000 + 100);
    assert_eq!((budget.reserved(), budget.pinned()), (0, 0));
}

/// One octet of a ULPDU_Length does not give the size. A small reservation lasts until the other octet arrives.
#[test]
fn half_a_length_is_no_size() {
    let large = written(60_000);
    let budget = Budget::new(large.len() + 1000, usize::MAX);
    let (mut a, mut b) = (End::new(&budget), End::new(&budget));
    assert!(b.offer(&large[..1]));
    assert!(b.stream.mid_fpdu());
    assert!(a.offer(&large[..2]));
    assert!(budget.reserved() > large.len());
    assert!(!b.offer(&large[1..2]));
    assert!(a.offer(&large[2..]));
    assert!(b.offer(&large[2..]));
    assert!(a.holds(60_000) && b.holds(60_000));
    assert_eq!(budget.reserved(), 0);
}

/// An incomplete FPDU has a number and a reservation, by which the engine recognises an FPDU that it has seen.
#[test]
fn each_incomplete_fpdu_is_told_from_the_one_before() {
    let (first, second) = (written(9000), written(5000));
    let budget = Budget::new(100_000, usize::MAX);
    assert_eq!(budget.reservable(), 100_000);
    let mut end = End::new(&budget);
    assert_eq!(end.stream.incomplete(), None);
    assert!(end.offer(&first[..4000]));
    let IncompleteFpdu { number, reserved } = end.stream.incomplete().unwrap();
    assert_eq!((reserved, budget.reserved()), (first.len(), first.len()));
    assert!(end.offer(&first[4000..8000]));
    assert_eq!(end.stream.incomplete(), Some(IncompleteFpdu { number, reserved }));
    // The next FPDU begins in the chunk in which this FPDU ends.
    assert!(end.offer(&[&first[8000..], &second[..1000]].concat()));
    let IncompleteFpdu { number: next, reserved } = end.stream.incomplete().unwrap();
    assert_eq!((reserved, budget.reserved()), (second.len(), second.len()));
    assert_ne!(next, number);
    assert!(end.offer(&second[1000..]));
    assert_eq!((end.stream.incomplete(), budget.reserved()), (None, 0));
}

/// Budgets count whole buffers. Octets that may not be pinned are copied. Held octets are copied when buffers become
/// scarce.
#[test]
fn buffers_are_pinned_within_the_budget_only() {
    let large = written(9000);
    let budget = Budget::new(usize::MAX, 3 * BUFFER);
    let (mut a, mut b) = (End::new(&budget), End::new(&budget));
    for end in [&mut a, &mut b] {
        assert!(end.offer(&large[..1400]));
        assert!(end.stream.holds_chunks());
    }
    assert_eq!(budget.pinned(), 2 * BUFFER);
    assert!(b.offer(&large[1400..2800]));
    assert_eq!(budget.pinned(), 3 * BUFFER);
    assert!(a.offer(&large[1400..2800]));
    assert!(!a.stream.holds_chunks());
    assert_eq!(budget.pinned(), 2 * BUFFER);

    budget.set_pinnable(0);
    b.stream.copy_out();
    assert!(!b.stream.holds_chunks() && b.stream.mid_fpdu());
    assert_eq!(budget.pinned(), 0);
    assert!(b.offer(&large[2800..4200]));
    assert_eq!(budget.pinned(), 0);
    assert!(a.offer(&large[2800..]) && b.offer(&large[4200..]));
    assert!(a.holds(9000) && b.holds(9000));
    assert_eq!(budget.reserved(), 0);
}

/// Room is freed when a stream ends in the middle of an FPDU: by a fault, by its owner, or by being dropped.
#[test]
fn the_end_of_a_stream_frees_its_room() {
    let large = written(9000);
    let mut wrong = large.clone();
    wrong[5000] ^= 1;
    let budget = Budget::new(usize::MAX, usize::MAX);
    let mut end = End::new(&budget);
    assert!(end.offer(&wrong[..8000]));
    assert!(end.stream.receive(Part(wrong[8000..].to_vec()), &mut end.memory).is_err());
    assert_eq!((budget.reserved(), budget.pinned()), (0, 0));

    let mut end = End::new(&budget);
    assert!(end.offer(&large[..8000]));
    assert!(budget.reserved() > 0 && budget.pinned() > 0);
    end.stream.stop_listening();
    assert_eq!((budget.reserved(), budget.pinned()), (0, 0));
    assert!(end.offer(&large[8000..]) && !end.stream.mid_fpdu());

    let mut end = End::new(&budget);
    assert!(end.offer(&large[..8000]));
    drop(end);
    assert_eq!((budget.reserved(), budget.pinned()), (0, 0));
}

/// Many streams, little room, any split: the limits are kept, every octet arrives once, and in the end no stream waits.
#[test]
fn streams_share_little_room() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let limit = rng.usize(70_000..200_000);
        let budget = Budget::new(limit, rng.usize(..40_000));
        let streams = rng.usize(2..12);
        let mut ends: Vec<_> = (0..streams).map(|_| End::new(&budget)).collect();
        let mut to_come = vec![Vec::new(); streams];
        // The sum and the maximum of the lengths of each stream's Writes.
        let mut lengths = vec![(0, 0); streams];
        for (stream, (sum, most)) in to_come.iter_mut().zip(&mut lengths) {
            for _ in 0..rng.usize(1..6) {
                let len = rng.usize(..65_000);
                stream.extend(written(len));
                (*sum, *most) = (*sum + len, len.max(*most));
            }
        }
        for _ in 0..100_000 {
            let i = rng.usize(..streams);
            let most = 1 + rng.usize(..6000);
            let n = rng.usize(..most).min(to_come[i].len());
            let part: Vec<u8> = to_come[i].drain(..n).collect();
            ends[i].offer(&part);
            assert!(budget.reserved() <= limit && budget.pinned() <= 40_000, "seed {seed}");
            if to_come.iter().all(Vec::is_empty) && ends.iter().all(|e| e.left.is_empty()) {
                break;
            }
        }
        for (end, (sum, most)) in ends.iter().zip(lengths) {
            assert!(end.left.is_empty() && !end.stream.mid_fpdu(), "seed {seed}: something is left");
            assert!(end.memory.placements == sum && end.holds(most), "seed {seed}");
            assert!(end.memory.region(STAG).data()[most..].iter().all(|octet| *octet == 0), "seed {seed}");
        }
        assert_eq!((budget.reserved(), budget.pinned()), (0, 0), "seed {seed}");
    }
}
