use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use urnic_config::Progress;

use super::{CqInit, CqShared, POLLS_AHEAD};
use crate::api::fake;
use crate::shared::cq::CqOverflow;
use crate::shared::engines::EngineNumber;
use crate::shared::wc::{Wc, WcFlags, WcStatus};

fn wc(wr_id: u64) -> Wc {
    Wc { wr_id, ..Wc::default() }
}

#[test]
fn completions_come_out_in_order_and_overflow_is_told() {
    let (device, _) = fake::device(Progress::Inline);
    let cq = device.create_cq(3, None).unwrap();
    assert_eq!(cq.depth(), 4);
    for i in 0..4 {
        cq.shared.push(EngineNumber::FIRST, wc(i)).unwrap();
    }
    assert!(!cq.overflowed());
    assert_eq!(cq.shared.push(EngineNumber::FIRST, wc(4)), Err(CqOverflow));
    assert!(cq.overflowed());
    let mut out = [Wc::default(); 3];
    assert_eq!(cq.poll(&mut out), 3);
    assert_eq!(out.map(|wc| wc.wr_id), [0, 1, 2]);
    cq.shared.push(EngineNumber::FIRST, wc(5)).unwrap();
    assert_eq!(cq.poll(&mut out), 2);
    assert_eq!([out[0].wr_id, out[1].wr_id], [3, 5]);
    assert_eq!(cq.poll(&mut []), 0);
}

/// A thread that drives the engine with each poll must not get completions faster than it takes them.
#[test]
fn polls_that_leave_completions_drive_the_engine_seldom() {
    let (device, knobs) = fake::device(Progress::Inline);
    let cq = device.create_cq(256, None).unwrap();
    let passes = || knobs.passes.load(Ordering::SeqCst);
    let mut out = [Wc::default(); 4];
    (0..10).for_each(|i| cq.shared.push(EngineNumber::FIRST, wc(i)).unwrap());
    let before = passes();
    assert_eq!(cq.poll(&mut out), 4);
    assert_eq!(passes(), before + 1);
    assert_eq!([cq.poll(&mut out), cq.poll(&mut out)], [4, 2]);
    assert_eq!(passes(), before + 1, "completions that were left are taken first");
    assert_eq!(cq.poll(&mut out), 0);
    assert_eq!(passes(), before + 2);
    // The engine makes progress, however many completions are left in the queue.
    (0..256).for_each(|i| cq.shared.push(EngineNumber::FIRST, wc(i)).unwrap());
    let before = passes();
    (0..64).for_each(|_| assert_eq!(cq.poll(&mut out), 4));
    let driven = passes() - before;
    assert_eq!(driven, 64_u64.div_ceil(u64::from(POLLS_AHEAD) + 1));
}

#[test]
fn depths_out_of_range_are_refused() {
    let (device, _) = fake::device(Progress::Inline);
    assert!(device.create_cq(0, None).is_err());
    assert!(device.create_cq(u32::MAX, None).is_err());
}

/// One thread pushes, two poll. Each completion is seen once.
#[test]
fn pollers_share_a_queue() {
    const COUNT: u64 = 50_000;
    let (device, _) = fake::device(Progress::Inline);
    let cq = device.create_cq(64, None).unwrap();
    let done = AtomicBool::new(false);
    let sums: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let pollers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (mut count, mut sum, mut last) = (0, 0, None);
                    let mut out = [Wc::default(); 5];
                    loop {
                        let over = done.load(Ordering::Acquire);
                        let n = cq.poll(&mut out);
                        for wc in &out[..n] {
                            assert!(last < Some(wc.wr_id), "out of order");
                            last = Some(wc.wr_id);
                            count += 1;
                            sum += wc.wr_id;
                        }
                        if n == 0 && over {
                            return (count, sum);
                        }
                    }
                })
            })
            .collect();
        for i in 0..COUNT {
            while cq.shared.push(EngineNumber::FIRST, wc(i)).is_err() {
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Release);
        pollers.into_iter().map(|poller| poller.join().unwrap()).collect()
    });
    assert_eq!(sums.iter().map(|s| s.0).sum::<u64>(), COUNT);
    assert_eq!(sums.iter().map(|s| s.1).sum::<u64>(), COUNT * (COUNT - 1) / 2);
}

/// RDMAP-43.
#[test]
fn solicited_arming_waits_for_solicited_or_error() {
    let (device, _) = fake::device(Progress::Inline);
    let channel = device.create_comp_channel().unwrap();
    let cq = device.create_cq(16, Some(&channel)).unwrap();
    let now = Some(std::time::Duration::ZERO);
    let solicited = Wc { flags: WcFlags::SOLICITED, ..wc(2) };
    let failed = Wc { status: WcStatus::Flushed, ..wc(3) };
    for raising in [solicited, failed] {
        cq.arm(true);
        cq.shared.push(EngineNumber::FIRST, wc(1)).unwrap();
        assert!(channel.get_event(now).is_none());
        cq.shared.push(EngineNumber::FIRST, raising).unwrap();
        assert!(channel.get_event(now).unwrap().is(&cq));
        // One-shot: no second event.
        cq.shared.push(EngineNumber::FIRST, raising).unwrap();
        assert!(channel.get_event(now).is_none());
    }
    // Arming for any completion is not weakened by later arming for solicited ones.
    cq.arm(false);
    cq.arm(true);
    cq.shared.push(EngineNumber::FIRST, wc(4)).unwrap();
    assert!(channel.get_event(now).is_some());
}

#[test]
fn small() {
    // Sizes of a queue without its entries, and of one completion (without the sequence of its slot).
    assert!(size_of::<CqShared>() <= 448, "{}", size_of::<CqShared>());
    assert_eq!(size_of::<Wc>(), 32);
}

/// Growing and shrinking keep the content, in order, at any position of the ring.
#[test]
fn resizing_keeps_what_is_there() {
    let (device, _) = fake::device(Progress::Inline);
    for before in [0, 1, 3, 6] {
        let cq = device.create_cq(8, None).unwrap();
        let mut out = [Wc::default(); 32];
        for i in 0..before {
            cq.shared.push(EngineNumber::FIRST, wc(100 + i)).unwrap();
        }
        assert_eq!(cq.poll(&mut out) as u64, before);
        for i in 0..6 {
            cq.shared.push(EngineNumber::FIRST, wc(i)).unwrap();
        }
        assert!(cq.resize(4).is_err(), "it holds six");
        assert_eq!(cq.depth(), 8);
        cq.resize(30).unwrap();
        assert_eq!(cq.depth(), 32);
        for i in 6..20 {
            cq.shared.push(EngineNumber::FIRST, wc(i)).unwrap();
        }
        assert_eq!(cq.poll(&mut out[..18]), 18);
        assert!((0..18).all(|i| out[i].wr_id == i as u64));
        cq.resize(2).unwrap();
        assert_eq!((cq.depth(), cq.shared.push(EngineNumber::FIRST, wc(20))), (2, Err(CqOverflow)));
        assert!(cq.overflowed());
        cq.resize(4).unwrap();
        assert!(!cq.overflowed());
        cq.shared.push(EngineNumber::FIRST, wc(20)).unwrap();
        assert_eq!(cq.poll(&mut out), 3);
        assert_eq!([0, 1, 2].map(|i| out[i].wr_id), [18, 19, 20]);
        assert!(cq.resize(0).is_err() && cq.resize(u32::MAX).is_err());
    }
}

/// The engine completes, two threads poll and a third resizes, all at once. Each completion is seen once, in order.
#[test]
fn resizing_while_in_use() {
    use crate::api::qp::tests::{connect, init};
    use crate::shared::wr::{SendFlags, SendOp, SendWr};
    const COUNT: u64 = 30_000;
    for progress in [Progress::Inline, Progress::Adaptive, Progress::Dedicated] {
        let (device, _) = fake::device(progress);
        let cq = device.create_cq(64, None).unwrap();
        let pd = device.alloc_pd();
        let [a, b] = [(); 2].map(|()| pd.create_qp(&init(&cq)).unwrap());
        connect(&device, &a, &b);
        let (seen, resized) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let op = SendOp::Write { addr: 0, rkey: 1 };
                for wr_id in 0..COUNT {
                    // On a busy machine, the third thread may not have run until now.
                    while wr_id == COUNT / 2 && resized.load(Ordering::Relaxed) == 0 {
                        std::thread::yield_now();
                    }
                    let wr = SendWr { wr_id, op, sges: &[], flags: SendFlags::SIGNALED };
                    while seen.load(Ordering::Relaxed) + 40 < wr_id || a.post_send(&wr).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
            scope.spawn(|| {
                for depth in [64, 100, 1000, 50, 4096, 70].into_iter().cycle() {
                    if seen.load(Ordering::Relaxed) >= COUNT {
                        break;
                    }
                    resized.fetch_add(cq.resize(depth).is_ok().into(), Ordering::Relaxed);
                    std::thread::yield_now();
                }
            });
            for in_place in [false, true] {
                let (cq, seen) = (&cq, &seen);
                scope.spawn(move || {
                    let mut last = None;
                    let mut take = |wr_id| {
                        assert!(last < Some(wr_id), "out of order");
                        last = Some(wr_id);
                        seen.fetch_add(1, Ordering::Relaxed);
                    };
                    while seen.load(Ordering::Relaxed) < COUNT {
                        if !in_place {
                            let mut out = [Wc::default(); 5];
                            let n = cq.poll(&mut out);
                            out[..n].iter().for_each(|wc| take(wc.wr_id));
                        } else if let Some(mut completions) = cq.start_poll() {
                            for _ in 0..3 {
                                let Some(completion) = completions.next() else { break };
                                take(completion.wr_id);
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(seen.load(Ordering::Relaxed), COUNT);
        assert!(resized.load(Ordering::Relaxed) > 0);
        assert!(!cq.overflowed());
    }
}

/// Completions read in place stay in the queue until the reading ends. Completions that were not read remain.
#[test]
fn reading_in_place() {
    let (device, _) = fake::device(Progress::Inline);
    let cq = device.create_cq(4, None).unwrap();
    assert!(cq.start_poll().is_none());
    for i in 0..4 {
        cq.shared.push(EngineNumber::FIRST, Wc { byte_len: 7, ..wc(i) }).unwrap();
    }
    let mut reading = cq.start_poll().unwrap();
    for i in 0..2 {
        let completion = reading.next().unwrap();
        assert_eq!((completion.wr_id, completion.byte_len, completion.status), (i, 7, WcStatus::Success));
        assert_eq!((completion.timestamp(), completion.wall_clock()), (None, None));
    }
    assert_eq!(cq.shared.push(EngineNumber::FIRST, wc(4)), Err(CqOverflow), "a reading keeps its places");
    drop(reading);
    cq.shared.push(EngineNumber::FIRST, wc(5)).unwrap();
    // A reading that reads nothing removes nothing.
    drop(cq.start_poll());
    let mut ids = Vec::new();
    let mut reading = cq.start_poll().unwrap();
    while let Some(completion) = reading.next() {
        ids.push(completion.wr_id);
    }
    drop(reading);
    assert_eq!(ids, [2, 3, 5]);
    assert!(cq.start_poll().is_none());
}

/// Time stamps are the device's clock at the completion of the work. They survive a resize.
#[test]
fn completions_have_time_stamps() {
    let (device, knobs) = fake::device(Progress::Inline);
    let cq = device.create_cq_with(&CqInit { depth: 4, channel: None, timestamps: true, vector: 0 }).unwrap();
    // The fake engine's clock is its number of passes.
    let mut expected = Vec::new();
    for i in 0..3 {
        knobs.passes.fetch_add(1000, Ordering::SeqCst);
        expected.push(device.raw_clock());
        cq.shared.push(EngineNumber::FIRST, wc(i)).unwrap();
    }
    knobs.passes.fetch_add(1_000_000_000, Ordering::SeqCst);
    cq.resize(16).unwrap();
    let before = std::time::SystemTime::now();
    let mut reading = cq.start_poll().unwrap();
    let mut stamps = Vec::new();
    let mut walls = Vec::new();
    while let Some(completion) = reading.next() {
        stamps.push(completion.timestamp().unwrap());
        walls.push(completion.wall_clock().unwrap());
    }
    assert_eq!(stamps, expected);
    assert!(walls[0] < before - std::time::Duration::from_millis(900), "a second ago");
}

/// A full queue keeps the time stamps of its completions.
#[test]
fn overflow_spares_time_stamps() {
    let (device, knobs) = fake::device(Progress::Inline);
    let cq = device.create_cq_with(&CqInit { depth: 2, channel: None, timestamps: true, vector: 0 }).unwrap();
    let time = device.raw_clock();
    for _ in 0..5 {
        let _ = cq.shared.push(EngineNumber::FIRST, wc(1));
        knobs.passes.fetch_add(1000, Ordering::SeqCst);
    }
    let mut reading = cq.start_poll().unwrap();
    assert_eq!(reading.next().unwrap().timestamp(), Some(time));
    assert_eq!(reading.next().unwrap().timestamp(), Some(time + 1000));
}

#[test]
fn as_many_as_there_may_be() {
    let (device, _) = fake::device(Progress::Inline);
    let limit = device.attributes().unwrap().max_cq;
    let all: Vec<_> = (0..limit).map(|_| device.create_cq(1, None).unwrap()).collect();
    assert!(matches!(device.create_cq(1, None), Err(crate::Error::Exhausted(_))));
    drop(all);
    device.create_cq(1, None).unwrap();
    let (other, _) = fake::device(Progress::Inline);
    let foreign = other.create_comp_channel().unwrap();
    assert!(matches!(device.create_cq(1, Some(&foreign)), Err(crate::Error::Invalid(_))));
}

mod lanes;
