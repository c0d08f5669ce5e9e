use super::*;
use crate::testing::{Shared, pattern};

fn bytes(q: &RecordQueue<Shared>, seq: Seq, len: u32) -> (Vec<u8>, u32) {
    let mut pieces = Pieces::new();
    let got = q.pieces(seq, len, &mut pieces);
    let all = pieces.iter().flat_map(|p| p.payload.0[p.range.clone()].to_vec()).collect();
    (all, got)
}

/// After any pushes, ACKs and cuts, a segment holds the stream's octets, at most `max` of them, and either a part of
/// one record or whole records.
#[test]
fn segments_are_the_stream() {
    let all = pattern(200 * 3000);
    for seed in 0..50 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let origin = Seq(rng.u32(..));
        let mut q = RecordQueue::new(origin);
        let (mut stream, mut ends, mut una) = (Vec::new(), vec![0usize], 0usize);
        for _ in 0..200 {
            let n = if rng.bool() { rng.usize(1..20) } else { rng.usize(1..3000) };
            let data = &all[stream.len()..stream.len() + n];
            stream.extend_from_slice(data);
            ends.push(stream.len());
            q.push(Shared::new(data), n as u32);
            assert_eq!(q.end() - origin, stream.len() as u32);
            for _ in 0..3 {
                let from = rng.usize(una..stream.len());
                let max = rng.u32(1..2000);
                let len = q.segment_len(origin + from as u32, max, 0) as usize;
                assert!(len > 0 && len <= max as usize);
                let (got, n) = bytes(&q, origin + from as u32, len as u32);
                assert_eq!((&got[..], n as usize), (&stream[from..from + len], len), "seed {seed}");
                let starts_record = ends.contains(&from);
                let crossed = ends.iter().filter(|&&e| from < e && e < from + len).count();
                assert!(crossed == 0 || (starts_record && ends.contains(&(from + len))));
                assert!(crossed < MAX_PIECES);

                // `cut` has shorter ways, with the same result.
                let limits = Limits { segment: max, train: rng.u32(0..6000), total: u32::MAX };
                let expected = q.segment_len(origin + from as u32, max, limits.train);
                let mut pieces = Pieces::new();
                let (len, _) = q.cut(origin + from as u32, limits, &mut pieces);
                let got: Vec<u8> =
                    pieces.iter().flat_map(|p| p.payload.0[p.range.clone()].to_vec()).collect();
                assert_eq!(len, expected, "seed {seed}");
                assert_eq!(got, &stream[from..from + len as usize], "seed {seed}");
            }
            if rng.u8(..) < 100 {
                una = rng.usize(una..=stream.len());
                q.acknowledge(origin + una as u32);
                let kept = ends.iter().filter(|&&e| e > una).count();
                assert_eq!(q.records(), kept);
                una = una.min(stream.len() - 1).max(una.saturating_sub(1));
                if q.records() == 0 {
                    break;
                }
            }
        }
    }
}

#[test]
fn an_empty_queue_has_no_segments() {
    let mut q = RecordQueue::<Shared>::new(Seq(5));
    assert_eq!(q.segment_len(Seq(5), 100, 0), 0);
    assert_eq!(bytes(&q, Seq(5), 100), (Vec::new(), 0));
    q.push(Shared::new(b"abc"), 3);
    assert_eq!(bytes(&q, Seq(6), 100), (b"bc".to_vec(), 2));
    q.acknowledge(Seq(8));
    assert_eq!(q.segment_len(Seq(8), 100, 0), 0);
}

#[test]
fn a_burst_gives_its_memory_back() {
    let mut q = RecordQueue::new(Seq(0));
    for _ in 0..1000 {
        q.push(Shared::new(b"x"), 1);
    }
    q.acknowledge(Seq(1000));
    q.shrink();
    assert!(q.records.capacity() <= IDLE_CAPACITY);
}

/// A train consists of whole units or ends its record, so the next segment begins at a unit again.
#[test]
fn trains_are_cut_between_units() {
    let mut q = RecordQueue::<Shared>::new(Seq(0));
    q.push(Shared::with_unit(&pattern(4500), 1000), 4500);
    // (from, max, train) -> length
    for (from, max, train, len) in [
        (0, 1200, 0, 1000),
        (0, 1200, 1100, 1000),
        (0, 1200, 2999, 2000),
        (0, 1200, 3000, 3000),
        (0, 1200, 4499, 4000),
        (0, 1200, 9000, 4500),
        (3000, 1200, 9000, 1500),
        (4000, 1200, 9000, 500),
        // A segment that begins inside a unit ends with the unit, or at its maximum length.
        (300, 1200, 9000, 700),
        (300, 200, 0, 200),
        // The largest segment has become smaller than the unit.
        (0, 600, 9000, 600),
        (600, 600, 9000, 400),
    ] {
        assert_eq!(q.segment_len(Seq(from), max, train), len, "{from} {max} {train}");
    }
    // A record without units may be cut anywhere and makes no train.
    q.acknowledge(Seq(4500));
    q.push(Shared::new(&pattern(4500)), 4500);
    assert_eq!(q.segment_len(Seq(4500), 1200, 9000), 1200);
    assert_eq!(q.segment_len(Seq(4800), 1200, 9000), 1200);
}

/// A record whose parts have different lengths is cut between parts, into trains and into segments.
#[test]
fn uneven_records_are_cut_between_parts() {
    let mut q = RecordQueue::<Shared>::new(Seq(0));
    // The parts end at 100, 150, 350, 380 and 500.
    q.push(Shared::uneven(&[100, 50, 200, 30, 120]), 500);
    // (from, max, train) -> length
    for (from, max, train, len) in [
        (0, 200, 0, 150),
        (0, 200, 349, 150),
        (0, 200, 350, 350),
        (0, 200, 499, 380),
        (0, 200, 500, 500),
        (150, 200, 0, 200),
        (150, 229, 0, 200),
        (150, 230, 0, 230),
        (150, 200, 9000, 350),
        (380, 200, 0, 120),
        // A segment that begins inside a part ends with the part, or at its maximum length.
        (10, 200, 0, 90),
        (10, 200, 9000, 90),
        (160, 150, 0, 150),
        // A part is longer than the largest segment.
        (150, 120, 0, 120),
        (270, 120, 0, 80),
    ] {
        assert_eq!(q.segment_len(Seq(from), max, train), len, "{from} {max} {train}");
    }
    assert_eq!(q.last_segment(Seq(500), 500, 200), 150);
    assert_eq!(q.last_segment(Seq(500), 350, 200), 150);
    assert_eq!(q.last_segment(Seq(500), 350, 140), 120);
    // Of a train that was cut, and of an even one.
    assert_eq!(q.last_segment(Seq(380), 380, 200), 30);
    q.acknowledge(Seq(500));
    q.push(Shared::with_unit(&pattern(4500), 1000), 4500);
    assert_eq!(q.last_segment(Seq(5000), 4500, 1200), 500);
    assert_eq!(q.last_segment(Seq(5000), 1500, 600), 300);
}
