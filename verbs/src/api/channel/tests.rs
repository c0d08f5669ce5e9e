use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use urnic_config::Progress;

use crate::api::fake;
use crate::shared::engines::EngineNumber;
use crate::shared::wc::Wc;

const NOW: Option<Duration> = Some(Duration::ZERO);

fn readable(fd: impl AsFd) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

#[test]
fn the_descriptor_is_readable_while_events_wait() {
    let (device, _) = fake::device(Progress::Inline);
    let channel = device.create_comp_channel().unwrap();
    let cqs: Vec<_> = (0..2).map(|_| device.create_cq(4, Some(&channel)).unwrap()).collect();
    cqs[0].shared.push(EngineNumber::FIRST, Wc::default()).unwrap();
    assert!(!readable(&channel), "nobody asked");
    for cq in &cqs {
        cq.arm(false);
        cq.shared.push(EngineNumber::FIRST, Wc::default()).unwrap();
    }
    assert!(readable(&channel));
    assert!(channel.get_event(NOW).unwrap().is(&cqs[0]));
    assert!(readable(&channel));
    assert!(channel.get_event(NOW).unwrap().is(&cqs[1]));
    assert!(!readable(&channel));
    assert!(channel.get_event(NOW).is_none());
}

#[test]
fn a_queue_waits_at_most_once() {
    let (device, _) = fake::device(Progress::Inline);
    let channel = device.create_comp_channel().unwrap();
    let cq = device.create_cq(4, Some(&channel)).unwrap();
    for _ in 0..3 {
        cq.arm(false);
        cq.shared.push(EngineNumber::FIRST, Wc::default()).unwrap();
    }
    assert!(channel.get_event(NOW).is_some());
    assert!(channel.get_event(NOW).is_none());
}

#[test]
fn events_of_queues_that_are_gone_are_dropped() {
    let (device, _) = fake::device(Progress::Inline);
    let channel = device.create_comp_channel().unwrap();
    let gone = device.create_cq(4, Some(&channel)).unwrap();
    let there = device.create_cq(4, Some(&channel)).unwrap();
    for cq in [&gone, &there] {
        cq.arm(false);
        cq.shared.push(EngineNumber::FIRST, Wc::default()).unwrap();
    }
    drop(gone);
    assert!(channel.get_event(NOW).unwrap().is(&there));
    assert!(channel.get_event(NOW).is_none());
}

/// Arms, polls and sleeps, while another thread completes one request at a time and waits until the completion was
/// seen. A missed event would stop both threads for good; then `get_event` reaches its time limit, and the test
/// fails.
#[test]
fn arm_then_poll_never_misses() {
    const ROUNDS: u64 = 20_000;
    let (device, _) = fake::device(Progress::Adaptive);
    let channel = device.create_comp_channel().unwrap();
    let cq = device.create_cq(4, Some(&channel)).unwrap();
    let seen = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 1..=ROUNDS {
                cq.shared.push(EngineNumber::FIRST, Wc { wr_id: i, ..Wc::default() }).unwrap();
                while seen.load(Ordering::Acquire) < i {
                    std::thread::yield_now();
                }
            }
        });
        let mut out = [Wc::default(); 4];
        let take = |out: &mut [Wc]| {
            let n = cq.poll(out);
            if n > 0 {
                seen.fetch_add(n as u64, Ordering::Release);
            }
        };
        while seen.load(Ordering::Relaxed) < ROUNDS {
            cq.arm(false);
            take(&mut out);
            if seen.load(Ordering::Relaxed) < ROUNDS {
                assert!(channel.get_event(Some(Duration::from_secs(60))).is_some(), "an event was missed");
                take(&mut out);
            }
        }
    });
}
