use super::*;
use proptest::prelude::*;

type Bytes = Vec<u8>;

fn blocks(q: &mut Reassembly<Bytes>, max: usize) -> Vec<(u32, u32)> {
    q.sack_blocks(max).iter().map(|b| (b.start.0, b.end.0)).collect()
}

fn put(q: &mut Reassembly<Bytes>, start: u32, end: u32) -> Inserted {
    let len = end.wrapping_sub(start) as usize;
    // Some octets in front, as headers would be.
    q.insert(Seq(start), vec![0; 54 + len], 54..54 + len)
}

#[test]
fn nothing_held_is_small() {
    assert!(size_of::<Reassembly<Bytes>>() <= 40);
}

#[test]
fn a_hole_is_filled() {
    let mut q = Reassembly::new(16);
    assert_eq!(put(&mut q, 200, 300), Inserted::Held);
    assert_eq!(put(&mut q, 400, 500), Inserted::Held);
    assert!(q.pop(Seq(100)).is_none());
    // 100..250 arrived in order, overlapping a held segment.
    assert_eq!(q.pop(Seq(250)).map(|(_, at)| at), Some(54 + 50..154));
    assert!(q.pop(Seq(300)).is_none());
    assert_eq!(blocks(&mut q, 4), [(400, 500)]);
    assert_eq!(q.pop(Seq(400)).map(|(_, at)| at), Some(54..154));
    assert!(q.is_empty() && q.octets() == 0);
    assert!(!q.has_sack());
}

#[test]
fn rfc_2018_section_5_case_2() {
    // The first of eight segments of 500 octets is lost.
    let mut q = Reassembly::new(16);
    for i in 1..8 {
        put(&mut q, 5000 + 500 * i, 5500 + 500 * i);
        assert_eq!(blocks(&mut q, 3), [(5500, 5500 + 500 * i)]);
    }
}

#[test]
fn rfc_2018_section_5_case_3() {
    // The 2nd, 4th, 6th and 8th of eight are lost; then the 4th arrives, then the 2nd.
    let mut q = Reassembly::new(16);
    put(&mut q, 6000, 6500);
    assert_eq!(blocks(&mut q, 3), [(6000, 6500)]);
    put(&mut q, 7000, 7500);
    assert_eq!(blocks(&mut q, 3), [(7000, 7500), (6000, 6500)]);
    put(&mut q, 8000, 8500);
    assert_eq!(blocks(&mut q, 3), [(8000, 8500), (7000, 7500), (6000, 6500)]);
    put(&mut q, 6500, 7000);
    assert_eq!(blocks(&mut q, 3), [(6000, 7500), (8000, 8500)]);
    assert!(q.pop(Seq(6000)).is_some());
    assert!(q.pop(Seq(6500)).is_some());
    assert!(q.pop(Seq(7000)).is_some());
    assert_eq!(blocks(&mut q, 3), [(8000, 8500)]);
}

#[test]
fn rfc_2883_duplicates_come_first_and_once() {
    let mut q = Reassembly::new(16);
    // §4.1.1: a segment below RCV.NXT.
    q.note_duplicate(Block::new(Seq(3000), Seq(3500)));
    assert_eq!(blocks(&mut q, 4), [(3000, 3500)]);
    assert_eq!(blocks(&mut q, 4), []);
    // §4.1.3: a duplicate of a segment that is held out of order.
    put(&mut q, 4500, 5000);
    put(&mut q, 5000, 5500);
    assert_eq!(put(&mut q, 5000, 5500), Inserted::Duplicate);
    assert_eq!(blocks(&mut q, 4), [(5000, 5500), (4500, 5500)]);
    assert_eq!(blocks(&mut q, 4), [(4500, 5500)]);
    // §4.2.1: a part of a segment is a duplicate.
    put(&mut q, 5250, 6000);
    assert_eq!(blocks(&mut q, 4), [(5250, 5500), (4500, 6000)]);
}

/// A duplicate that waits is forgotten once it no longer names octets that were received (RFC 2883 §4).
#[test]
fn a_duplicate_is_not_reported_later_than_it_is_true() {
    let waits = |q: &mut Reassembly<Bytes>, rcv_nxt: u32| {
        q.forget_old_duplicate(Seq(rcv_nxt));
        q.has_duplicate()
    };
    for (rcv_nxt, is_true) in
        [(3500, true), (4000, true), (3500 + (1 << 31), true), (3501 + (1 << 31), false)]
    {
        let mut q = Reassembly::new(16);
        q.note_duplicate(Block::new(Seq(3000), Seq(3500)));
        assert_eq!(waits(&mut q, rcv_nxt), is_true, "{rcv_nxt}");
    }
    let mut q = Reassembly::new(16);
    put(&mut q, 4500, 5000);
    put(&mut q, 6000, 6500);
    assert_eq!(put(&mut q, 6000, 6500), Inserted::Duplicate);
    assert!(waits(&mut q, 4000), "it is held");
    assert!(q.drop_newest());
    assert!(!waits(&mut q, 4000), "it is held no longer");
}

#[test]
fn a_duplicate_moves_its_run_to_the_front() {
    let mut q = Reassembly::new(16);
    put(&mut q, 100, 200);
    put(&mut q, 300, 400);
    put(&mut q, 500, 600);
    put(&mut q, 150, 180);
    assert_eq!(blocks(&mut q, 4), [(150, 180), (100, 200), (500, 600), (300, 400)]);
}

#[test]
fn a_larger_segment_supersedes_smaller_ones() {
    let mut q = Reassembly::new(3);
    put(&mut q, 200, 210);
    put(&mut q, 220, 230);
    put(&mut q, 190, 240);
    assert_eq!((q.len(), q.octets()), (1, 50));
    assert_eq!(q.pop(Seq(190)).map(|(_, at)| at), Some(54..104));
}

/// Two adjacent segments are held. A new one begins inside the first and ends after the second, but has different
/// octets in the place of the second.
#[test]
fn others_octets_between_neighbours_are_not_held() {
    let mut q: Reassembly<Bytes> = Reassembly::new(10);
    let frame = |octet: u8, len: usize| vec![octet; len];
    assert_eq!(q.insert(Seq(100), frame(1, 10), 0..10), Inserted::Held);
    assert_eq!(q.insert(Seq(110), frame(2, 10), 0..10), Inserted::Held);
    for start in [100, 105] {
        assert_eq!(q.insert(Seq(start), frame(1, 30), 0..30), Inserted::Duplicate);
        assert_eq!((q.len(), q.octets(), q.audit(Seq(1), Seq(1000)).is_ok()), (2, 20, true));
    }
    assert_eq!(q.pop(Seq(100)).map(|(_, at)| at), Some(0..10));
    assert_eq!(q.pop(Seq(110)).map(|(_, at)| at), Some(0..10));
    assert!(q.is_empty());
}

#[test]
fn full_keeps_what_is_nearest_to_the_hole() {
    let mut q = Reassembly::new(2);
    put(&mut q, 300, 400);
    put(&mut q, 500, 600);
    assert_eq!(put(&mut q, 700, 800), Inserted::Full);
    assert_eq!(put(&mut q, 100, 200), Inserted::Held);
    assert_eq!(blocks(&mut q, 4), [(100, 200), (300, 400)]);
    assert_eq!(put(&mut Reassembly::new(0), 1, 2), Inserted::Full);
}

/// A new segment that takes the place of held frames needs no other place, and one that is not held drops nothing.
#[test]
fn full_drops_nothing_without_need() {
    let mut q = Reassembly::new(2);
    put(&mut q, 300, 400);
    put(&mut q, 500, 600);
    assert_eq!(put(&mut q, 290, 410), Inserted::Held);
    assert_eq!((q.len(), blocks(&mut q, 4)), (2, vec![(300, 400), (290, 410), (500, 600)]));
    assert_eq!(put(&mut q, 490, 610), Inserted::Held);
    assert_eq!((q.len(), q.octets()), (2, 240));
    // Neighbours, of which the second has other octets than the new segment.
    let mut q: Reassembly<Bytes> = Reassembly::new(3);
    put(&mut q, 100, 110);
    put(&mut q, 110, 120);
    put(&mut q, 500, 600);
    assert_eq!(q.insert(Seq(105), vec![1; 30], 0..30), Inserted::Duplicate);
    assert_eq!((q.len(), q.audit(Seq(1), Seq(1000)).is_ok()), (3, true));
}

/// The highest frame gives its place to a new one that overlaps it, and the new one keeps all its octets.
#[test]
fn full_drops_the_highest_before_the_new_one_is_cut() {
    let mut q = Reassembly::new(1);
    put(&mut q, 300, 400);
    assert_eq!(put(&mut q, 200, 350), Inserted::Held);
    assert_eq!((q.len(), q.octets(), q.audit(Seq(1), Seq(1000)).is_ok()), (1, 150, true));
    assert_eq!(put(&mut q, 340, 500), Inserted::Full);
    assert_eq!((q.octets(), q.audit(Seq(1), Seq(1000)).is_ok()), (150, true));
}

#[test]
fn pressure_drops_the_highest_first() {
    let mut q = Reassembly::new(8);
    put(&mut q, 100, 200);
    put(&mut q, 300, 400);
    put(&mut q, 400, 500);
    assert!(q.drop_newest());
    assert_eq!(blocks(&mut q, 4), [(300, 400), (100, 200)]);
    assert!(q.drop_newest() && q.drop_newest() && !q.drop_newest());
    assert!(q.is_empty());
}

/// One step of the test.
#[derive(Clone, Debug)]
enum Step {
    Arrive { at: u32, len: u32 },
    Pressure,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0u32..400, 0u32..60).prop_map(|(at, len)| Step::Arrive { at, len }),
        1 => Just(Step::Pressure),
    ]
}

proptest! {
    /// The queue agrees with a model that has one flag per octet, also across the wrap of sequence numbers.
    #[test]
    fn agrees_with_a_map_of_octets(base in prop_oneof![any::<u32>(), Just(u32::MAX - 200)], steps in prop::collection::vec(step(), 1..120)) {
        const N: usize = 512;
        let byte = |i: usize| (i * 7 + i / 256) as u8;
        let mut q: Reassembly<Bytes> = Reassembly::new(1000);
        let mut held = [false; N];
        let mut nxt = 0usize;
        for step in steps {
            match step {
                Step::Pressure => {
                    let before = q.octets();
                    if q.drop_newest() {
                        // The highest held octets are gone, as one contiguous piece.
                        let mut gone = before - q.octets();
                        for h in held.iter_mut().rev().skip_while(|h| !**h).collect::<Vec<_>>() {
                            if gone > 0 {
                                prop_assert!(*h);
                                *h = false;
                                gone -= 1;
                            }
                        }
                        prop_assert_eq!(gone, 0);
                    }
                }
                Step::Arrive { at, len } => {
                    let (from, to) = (at as usize, (at + len) as usize);
                    let frame: Bytes = (from..to).map(byte).collect();
                    if from > nxt {
                        let new = (from..to).any(|i| !held[i]);
                        let before: Vec<_> = held.to_vec();
                        let outcome = q.insert(Seq(base.wrapping_add(at)), frame, 0..len as usize);
                        prop_assert_eq!(outcome == Inserted::Held, new);
                        held[from..to].fill(true);
                        // RFC 2018 §4: the run with this segment comes first, after a duplicate.
                        let dup = (from..to).any(|i| before[i]);
                        let sack = q.sack_blocks(4);
                        if len > 0 {
                            let run = sack[usize::from(dup)];
                            prop_assert!(run.start.le(Seq(base.wrapping_add(at))));
                            prop_assert!(run.end.ge(Seq(base.wrapping_add(at + len))));
                        }
                        if dup {
                            let d = sack[0];
                            let (a, b) = ((d.start.0.wrapping_sub(base)) as usize, (d.end.0.wrapping_sub(base)) as usize);
                            prop_assert!(a < b && a >= from && b <= to && before[a..b].iter().all(|h| *h));
                        }
                        for run in &sack[usize::from(dup)..] {
                            let (a, b) = ((run.start.0.wrapping_sub(base)) as usize, (run.end.0.wrapping_sub(base)) as usize);
                            prop_assert!(a < b && held[a..b].iter().all(|h| *h));
                            prop_assert!(!held[a - 1] && !held[b], "blocks are whole runs");
                        }
                    } else if to > nxt {
                        // In-order data goes to the user directly, followed by held data that it reaches.
                        held[nxt..to].fill(false);
                        nxt = to;
                        while let Some((frame, at)) = q.pop(Seq(base.wrapping_add(nxt as u32))) {
                            prop_assert!(!at.is_empty());
                            for &b in &frame[at] {
                                prop_assert!(held[nxt]);
                                prop_assert_eq!(b, byte(nxt));
                                held[nxt] = false;
                                nxt += 1;
                            }
                        }
                    }
                }
            }
            prop_assert!(!held[nxt]);
            prop_assert_eq!(q.octets(), held.iter().filter(|h| **h).count());
            prop_assert_eq!(q.is_empty(), !held.iter().any(|h| *h));
            let mut runs = 0;
            for i in 1..N {
                runs += usize::from(held[i] && !held[i - 1]);
            }
            q.duplicate = None;
            prop_assert_eq!(q.sack_blocks(4).len(), runs.min(4));
        }
    }
}

proptest! {
    /// Overlapping segments with different contents never change octets that are held or delivered.
    #[test]
    fn what_came_first_stays(base in any::<u32>(), arrivals in prop::collection::vec((1u32..300, 1u32..60), 1..80), fill in 0u32..120) {
        let mut q: Reassembly<Bytes> = Reassembly::new(1000);
        let held = |q: &Reassembly<Bytes>| -> std::collections::BTreeMap<u32, u8> {
            let frames = q.holes.iter().flat_map(|h| &h.frames);
            frames.flat_map(|f| f.octets().iter().enumerate().map(|(i, b)| (f.start.0.wrapping_sub(base) + i as u32, *b))).collect()
        };
        for (version, (at, len)) in arrivals.into_iter().enumerate() {
            let before = held(&q);
            q.insert(Seq(base.wrapping_add(at)), vec![version as u8; 54 + len as usize], 54..54 + len as usize);
            let after = held(&q);
            prop_assert!(q.audit(Seq(base), Seq(base.wrapping_add(400))).is_ok());
            for (seq, octet) in &before {
                prop_assert_eq!(after.get(seq), Some(octet));
            }
        }
        // In-order data that differs everywhere is taken only up to the first held octet.
        let known = held(&q);
        let data = vec![0xff; fill as usize];
        let taken = q.agreeing(Seq(base), &data);
        let first = known.keys().next().copied().unwrap_or(u32::MAX);
        prop_assert_eq!(taken as u32, fill.min(first));
    }
}
