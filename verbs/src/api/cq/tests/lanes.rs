//! A queue to which several engines complete.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use urnic_config::Progress;

use super::{CqInit, CqShared, wc};
use crate::api::fake;
use crate::shared::cq::CqOverflow;
use crate::shared::engines::EngineNumber;
use crate::shared::wc::Wc;
use urnic_config::MAX_ENGINES;

/// Time limit that only a stopped machine exceeds.
const PATIENCE: Duration = Duration::from_secs(120);

fn engine(index: usize) -> EngineNumber {
    EngineNumber::new(index).unwrap()
}

fn ids(wcs: &[Wc]) -> Vec<u64> {
    wcs.iter().map(|wc| wc.wr_id).collect()
}

#[test]
fn lanes_are_taken_from_in_turn() {
    let (device, _) = fake::device(Progress::Inline);
    let cq = device.create_cq(4, None).unwrap();
    for i in [0, 1, 2, 3] {
        cq.shared.push(engine(0), wc(i)).unwrap();
        cq.shared.push(engine(MAX_ENGINES - 1), wc(10 + i)).unwrap();
        cq.shared.push(engine(5), wc(20 + i)).unwrap();
    }
    let mut out = [Wc::default(); 3];
    let mut polled = Vec::new();
    while let n @ 1.. = cq.poll(&mut out) {
        polled.extend(ids(&out[..n]));
    }
    assert_eq!(polled, [0, 1, 2, 20, 21, 22, 10, 11, 12, 3, 23, 13]);
    assert_eq!(cq.poll(&mut out), 0);
    // A poller that takes one completion at a time does not stay with one engine either.
    for i in 0..2 {
        cq.shared.push(engine(0), wc(i)).unwrap();
        cq.shared.push(engine(5), wc(20 + i)).unwrap();
    }
    let one_by_one = std::iter::from_fn(|| (cq.poll(&mut out[..1]) == 1).then(|| out[0].wr_id));
    assert_eq!(one_by_one.collect::<Vec<_>>(), [0, 20, 1, 21]);
}

#[test]
fn reading_in_place_goes_through_all_lanes() {
    let (device, knobs) = fake::device(Progress::Inline);
    let cq =
        device.create_cq_with(&CqInit { depth: 256, channel: None, timestamps: true, vector: 0 }).unwrap();
    for i in 0..100 {
        for e in 0..2 {
            knobs.passes.store(1000 * i + e, Ordering::SeqCst);
            cq.shared.push(engine(e as usize), wc(100 * e + i)).unwrap();
        }
    }
    let mut read = Vec::new();
    for n in [1, 50, 200] {
        let mut reading = cq.start_poll().unwrap();
        for _ in 0..n {
            let Some(completion) = reading.next() else { break };
            let (e, i) = (completion.wr_id / 100, completion.wr_id % 100);
            assert_eq!(completion.timestamp(), Some(1000 * i + e));
            read.push(completion.wr_id);
        }
    }
    assert!(cq.start_poll().is_none());
    assert!(read[..51].iter().any(|id| *id >= 100), "the second lane has had its turn");
    let (second, first): (Vec<_>, Vec<_>) = read.into_iter().partition(|id| *id >= 100);
    assert!(first.into_iter().eq(0..100) && second.into_iter().eq(100..200));
}

#[test]
fn each_lane_has_the_depth_of_the_queue() {
    let (device, _) = fake::device(Progress::Inline);
    let cq = device.create_cq(4, None).unwrap();
    for e in 0..2 {
        (0..4).for_each(|i| cq.shared.push(engine(e), wc(i)).unwrap());
    }
    assert!(!cq.overflowed());
    assert_eq!(cq.shared.push(engine(1), wc(4)), Err(CqOverflow));
    assert!(cq.overflowed());
    // A refused resize changes nothing, whichever lane is the reason.
    let mut out = [Wc::default(); 16];
    assert_eq!(cq.poll(&mut out[..3]), 3);
    assert!(cq.resize(2).is_err() && cq.depth() == 4);
    assert_eq!(cq.shared.push(engine(1), wc(4)), Err(CqOverflow));
    cq.resize(8).unwrap();
    assert!(!cq.overflowed());
    (4..8).for_each(|i| cq.shared.push(engine(1), wc(i)).unwrap());
    // A lane that is opened later has the new depth.
    (0..8).for_each(|i| cq.shared.push(engine(2), wc(i)).unwrap());
    assert_eq!(cq.shared.push(engine(2), wc(8)), Err(CqOverflow));
    assert_eq!([cq.poll(&mut out), cq.poll(&mut out)], [16, 1]);
    cq.resize(2).unwrap();
    for e in 0..4 {
        (0..2).for_each(|i| cq.shared.push(engine(e), wc(i)).unwrap());
        assert_eq!(cq.shared.push(engine(e), wc(2)), Err(CqOverflow));
    }
}

#[test]
fn the_completions_of_a_queue_pair_are_found_in_its_lane() {
    let (device, _) = fake::device(Progress::Inline);
    let cq = device.create_cq(4, None).unwrap();
    for (e, qpn) in [(0, 7), (1, 8), (1, 9)] {
        cq.shared.push(engine(e), Wc { qpn, ..wc(0) }).unwrap();
    }
    let holds = |e, qpn| cq.shared.holds_of(engine(e), qpn);
    assert_eq!(
        [holds(0, 7), holds(1, 7), holds(1, 8), holds(1, 9), holds(2, 7)],
        [true, false, true, true, false]
    );
    let reading = cq.start_poll();
    assert!(holds(1, 7), "nobody else can tell while somebody polls");
    drop(reading);
    let mut out = [Wc::default(); 2];
    assert_eq!(cq.poll(&mut out), 2);
    assert_eq!([holds(0, 7), holds(1, 8), holds(1, 9)], [false, false, true]);
}

/// Engines complete, each under its lock, while threads poll, sleep and resize. No completion is lost or doubled, the
/// completions of a queue pair come in order, and every sleeper is woken.
#[test]
fn engines_feed_one_queue_at_once() {
    const ENGINES: usize = 3;
    const EACH: u64 = 15_000;
    const TOTAL: u64 = ENGINES as u64 * EACH;
    let (device, _) = fake::device(Progress::Inline);
    let channel = device.create_comp_channel().unwrap();
    let cq = device.create_cq(64, Some(&channel)).unwrap();
    // Stand-ins for the engines' locks.
    let locks: Arc<[Mutex<()>; ENGINES]> = Arc::default();
    let (seen, resized) = (AtomicU64::new(0), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for e in 0..ENGINES {
            let (cq, locks, resized) = (&cq, &locks, &resized);
            scope.spawn(move || {
                for i in 0..EACH {
                    // On a busy machine, the other threads may not have run until now.
                    while i == EACH / 2 && resized.load(Ordering::Relaxed) == 0 {
                        std::thread::yield_now();
                    }
                    let wc = Wc { qpn: e as u32, ..wc(i) };
                    while push(&cq.shared, &locks[e], e, wc).is_err() {
                        assert!(start.elapsed() < PATIENCE, "nobody polls");
                        std::thread::yield_now();
                    }
                }
            });
        }
        scope.spawn(|| {
            for depth in [64, 100, 1000, 50, 4096, 70].into_iter().cycle() {
                if seen.load(Ordering::Relaxed) >= TOTAL {
                    break;
                }
                resized.fetch_add(resize(&cq.shared, &locks[..], depth).into(), Ordering::Relaxed);
                std::thread::yield_now();
            }
        });
        scope.spawn(|| {
            let mut next = [0; ENGINES];
            let mut take = |wc: &Wc| {
                assert_eq!(wc.wr_id, next[wc.qpn as usize], "lost, doubled, or out of order");
                next[wc.qpn as usize] += 1;
                seen.fetch_add(1, Ordering::Relaxed);
            };
            let mut out = [Wc::default(); 7];
            for turn in 0_u64.. {
                if turn.is_multiple_of(2) {
                    let n = cq.poll(&mut out);
                    out[..n].iter().for_each(&mut take);
                } else if let Some(mut completions) = cq.start_poll() {
                    for _ in 0..turn % 150 {
                        let Some(completion) = completions.next() else { break };
                        take(&completion);
                    }
                }
                if seen.load(Ordering::Relaxed) == TOTAL {
                    break;
                }
                // Sleep only if a poll after arming finds nothing.
                cq.arm(false);
                let n = cq.poll(&mut out);
                out[..n].iter().for_each(&mut take);
                if n == 0 {
                    channel.get_event(Some(PATIENCE)).expect("a wake-up is lost");
                }
                if seen.load(Ordering::Relaxed) == TOTAL {
                    break;
                }
            }
        });
    });
    assert_eq!(seen.load(Ordering::Relaxed), TOTAL);
    assert!(resized.load(Ordering::Relaxed) > 0);
}

fn push(cq: &CqShared, lock: &Mutex<()>, e: usize, wc: Wc) -> Result<(), CqOverflow> {
    let _engine = lock.lock().unwrap();
    cq.push(engine(e), wc)
}

/// Resizes as [`Cq::resize`](crate::Cq::resize) does, with the locks of these engines.
fn resize(cq: &CqShared, locks: &[Mutex<()>], depth: u32) -> bool {
    let mut poller = cq.polls.poller.lock();
    let Ok(engines) = cq.begin_resize(&poller, depth) else { return false };
    for e in engines {
        let _engine = locks[e.index()].lock().unwrap();
        cq.replace(&mut poller, e, cq.entries(depth));
    }
    cq.end_resize(&poller, depth);
    true
}
