use std::sync::atomic::{AtomicBool, Ordering};

use urnic_config::Progress;

use super::{CqOverflow, CqShared};
use crate::fake;
use crate::wc::{Wc, WcFlags, WcStatus};

fn wc(wr_id: u64) -> Wc {
    Wc { wr_id, ..Wc::default() }
}

#[test]
fn completions_come_out_in_order_and_overflow_is_told() {
    let (device, _) = fake::device(Progress::Inline);
    let cq = device.create_cq(3, None).unwrap();
    assert_eq!(cq.depth(), 4);
    for i in 0..4 {
        cq.shared.push(wc(i)).unwrap();
    }
    assert!(!cq.overflowed());
    assert_eq!(cq.shared.push(wc(4)), Err(CqOverflow));
    assert!(cq.overflowed());
    let mut out = [Wc::default(); 3];
    assert_eq!(cq.poll(&mut out), 3);
    assert_eq!(out.map(|wc| wc.wr_id), [0, 1, 2]);
    cq.shared.push(wc(5)).unwrap();
    assert_eq!(cq.poll(&mut out), 2);
    assert_eq!([out[0].wr_id, out[1].wr_id], [3, 5]);
    assert_eq!(cq.poll(&mut []), 0);
}

#[test]
fn depths_out_of_range_are_refused() {
    let (device, _) = fake::device(Progress::Inline);
    assert!(device.create_cq(0, None).is_err());
    assert!(device.create_cq(u32::MAX, None).is_err());
}

/// One thread pushes, two poll: each completion is seen once.
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
            while cq.shared.push(wc(i)).is_err() {
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Release);
        pollers.into_iter().map(|poller| poller.join().unwrap()).collect()
    });
    assert_eq!(sums.iter().map(|s| s.0).sum::<u64>(), COUNT);
    assert_eq!(sums.iter().map(|s| s.1).sum::<u64>(), COUNT * (COUNT - 1) / 2);
}

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
        cq.shared.push(wc(1)).unwrap();
        assert!(channel.get_event(now).is_none());
        cq.shared.push(raising).unwrap();
        assert!(channel.get_event(now).unwrap().is(&cq));
        // One-shot.
        cq.shared.push(raising).unwrap();
        assert!(channel.get_event(now).is_none());
    }
    // Arming for any is not weakened by arming for solicited afterwards.
    cq.arm(false);
    cq.arm(true);
    cq.shared.push(wc(4)).unwrap();
    assert!(channel.get_event(now).is_some());
}

#[test]
fn small() {
    // What a queue costs beside its entries, and an entry (with its sequence) itself.
    assert!(size_of::<CqShared>() <= 256, "{}", size_of::<CqShared>());
    assert_eq!(size_of::<Wc>(), 32);
}
