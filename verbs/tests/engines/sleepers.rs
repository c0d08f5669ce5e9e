//! Programs that sleep until one of several engines completes something.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::memory::pairs;
use super::*;

/// Number of threads of the peer, each with a queue pair.
const SENDERS: usize = 3;
const MESSAGES: u64 = 400;
/// Time limit of the sleeper's wait for a completion that must come.
const WAKES_WITHIN: Duration = Duration::from_secs(30);

/// Runs queue pairs on all engines, whose receives complete to one queue with a channel. The size of this queue changes
/// meanwhile. A thread that armed the queue and found no completion must be woken by the next completion.
fn all_wake_ups_come(engines: usize, progress: Progress, seed: u64) {
    println!("{engines} engines, {progress:?}, seed {seed}");
    let limit = Limit::new();
    let (there, here) = (device(engines, progress), device(2, Progress::Adaptive));
    let (far, near) = (there.alloc_pd(), here.alloc_pd());
    let channel = there.create_comp_channel().unwrap();
    let shared = CqInit { depth: 4096, channel: Some(&channel), timestamps: false, vector: 0 };
    let shared = there.create_cq_with(&shared).unwrap();
    let pairs = pairs(&there, &here, &far, &near, SENDERS, Some(&shared));
    for (qp, _) in &pairs.far {
        (0..32).for_each(|wr_id| qp.post_recv(&RecvWr { wr_id, sges: &[] }).unwrap());
    }
    let (done, woken) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let (done, limit) = (&done, &limit);
        for (i, (qp, cq)) in pairs.near.iter().enumerate() {
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed * 100 + i as u64);
                for wr_id in 0..MESSAGES {
                    let wr = SendWr {
                        wr_id,
                        op: SendOp::Send,
                        sges: &[],
                        flags: SendFlags::SIGNALED | SendFlags::SOLICITED,
                    };
                    qp.post_send(&wr).unwrap();
                    next(cq, limit, "a Send");
                    match rng.u8(..4) {
                        0 => thread::sleep(Duration::from_micros(rng.u64(..800))),
                        1 => thread::yield_now(),
                        _ => {}
                    }
                }
            });
        }
        let resizes = scope.spawn(|| {
            let mut rng = fastrand::Rng::with_seed(seed);
            while !done.load(Ordering::Relaxed) {
                shared.resize(rng.u32(256..4096)).unwrap();
                thread::sleep(Duration::from_micros(rng.u64(..500)));
            }
        });
        let mut rng = fastrand::Rng::with_seed(seed ^ 7);
        let mut received = [0; SENDERS];
        let mut wc = [Wc::default(); 4];
        let mut take = |received: &mut [u64; SENDERS]| {
            let taken = shared.poll(&mut wc);
            for wc in &wc[..taken] {
                assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
                let sender = pairs.far.iter().position(|(qp, _)| qp.qpn() == wc.qpn).unwrap();
                assert_eq!(
                    wc.wr_id,
                    received[sender] % 32,
                    "the receives of one queue pair come in their order"
                );
                received[sender] += 1;
                pairs.far[sender].0.post_recv(&RecvWr { wr_id: wc.wr_id, sges: &[] }).unwrap();
            }
            taken > 0
        };
        while received.iter().sum::<u64>() < SENDERS as u64 * MESSAGES {
            limit.check("all messages");
            shared.arm(rng.bool());
            if !take(&mut received) {
                let told = channel.get_event(Some(WAKES_WITHIN));
                assert!(told.is_some_and(|cq| cq.is(&shared)), "a wake-up is lost: {received:?}");
                woken.fetch_add(1, Ordering::Relaxed);
            }
            while rng.u8(..8) > 0 && take(&mut received) {}
        }
        done.store(true, Ordering::Relaxed);
        resizes.join().unwrap();
    });
    let woken = woken.into_inner();
    assert!(woken > 10, "{woken} wake-ups");
}

#[test]
fn no_wake_up_is_lost_among_engines() {
    for (seed, (engines, progress)) in (0..).zip([
        (3, Progress::Adaptive),
        (2, Progress::Inline),
        (2, Progress::Dedicated),
        (4, Progress::Adaptive),
    ]) {
        all_wake_ups_come(engines, progress, seed);
    }
}

/// Whenever the number of receives in a shared queue falls below its limit, the device raises one event, whichever
/// engines took the receives.
#[test]
fn each_limit_of_a_shared_queue_is_told_of_once() {
    let limit = Limit::new();
    let (there, here) = (device(3, Progress::Adaptive), device(2, Progress::Adaptive));
    let (far, near) = (there.alloc_pd(), here.alloc_pd());
    let srq = far.create_srq(&SrqInit { max_wr: 64, max_sge: 1, limit: 0 }).unwrap();
    let asynchronous = there.async_events();
    let pairs = super::memory::pairs_with(&there, &here, &near, SENDERS, |cq| {
        far.create_qp_with_srq(&init(cq), &srq).unwrap()
    });
    for round in 0..60u64 {
        (0..32).for_each(|wr_id| srq.post_recv(&RecvWr { wr_id, sges: &[] }).unwrap());
        srq.set_limit(8).unwrap();
        let left = AtomicUsize::new(32);
        thread::scope(|scope| {
            let (left, limit) = (&left, &limit);
            for (qp, cq) in &pairs.near {
                scope.spawn(move || {
                    let one_less = |n: usize| n.checked_sub(1);
                    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
                        let wr =
                            SendWr { wr_id: round, op: SendOp::Send, sges: &[], flags: SendFlags::SIGNALED };
                        qp.post_send(&wr).unwrap();
                        next(cq, limit, "a Send");
                    }
                });
            }
            let mut received = 0;
            while received < 32 {
                limit.check("the messages");
                for (_, cq) in &pairs.far {
                    let mut wc = [Wc::default(); 8];
                    let taken = cq.poll(&mut wc);
                    wc[..taken].iter().for_each(|wc| assert_eq!(wc.status, WcStatus::Success));
                    received += taken;
                }
            }
        });
        let told: Vec<_> = std::iter::from_fn(|| asynchronous.poll()).collect();
        let right = matches!(&told[..], [AsyncEvent::SrqLimitReached { srqn }] if *srqn == srq.srqn());
        assert!(right, "round {round}: {told:?}");
    }
}
