//! A shared receive queue from which several engines take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::wr;
use crate::api::fake;
use crate::shared::engines::EngineNumber;
use crate::shared::error::PostError;
use crate::shared::events::AsyncEvent;
use crate::shared::numbers::Number;
use crate::shared::queue::RecvQueue;
use crate::shared::srq::SrqShared;
use crate::shared::wr::RecvWr;
use urnic_config::Progress;

const ENGINES: usize = 3;
/// Time limit that only a stopped machine exceeds.
const PATIENCE: Duration = Duration::from_secs(120);

fn queue(max_wr: u32) -> (crate::Device, Arc<SrqShared>) {
    let (device, _) = fake::device(Progress::Inline);
    let scope = device.alloc_pd().shared.scope;
    let number = Number::take(&device.shared.srqns).unwrap();
    let ring = RecvQueue::new(max_wr, 1);
    let events = device.shared.events.clone();
    (device, Arc::new(SrqShared::new(number, scope, ring, 0, events, ENGINES)))
}

fn engine(index: usize) -> EngineNumber {
    EngineNumber::new(index).unwrap()
}

fn take(srq: &SrqShared) -> Option<u64> {
    let mut held = srq.held();
    srq.take(&mut held).map(|_| held.view().wr_id)
}

/// Engines take receives while a thread keeps the queue full. The thread posts a receive as soon as the number of taken
/// receives shows that there is room for it, and the post is never refused. Each receive is taken once, and each engine
/// takes receives in the order of posting.
#[test]
fn engines_take_at_once() {
    const COUNT: u64 = 60_000;
    let (_device, srq) = queue(4);
    let (taken, sum) = (AtomicU64::new(0), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..ENGINES {
            scope.spawn(|| {
                let mut last = None;
                while taken.load(Ordering::Relaxed) < COUNT {
                    let Some(wr_id) = take(&srq) else {
                        assert!(start.elapsed() < PATIENCE, "a receive is lost");
                        std::thread::yield_now();
                        continue;
                    };
                    assert!(last < Some(wr_id), "out of order");
                    last = Some(wr_id);
                    sum.fetch_add(wr_id, Ordering::Relaxed);
                    taken.fetch_add(1, Ordering::Release);
                }
            });
        }
        for wr_id in 0..COUNT {
            while taken.load(Ordering::Acquire) + 4 <= wr_id {
                std::thread::yield_now();
            }
            srq.post(&[wr(wr_id)]).expect("there is room");
        }
    });
    assert_eq!((taken.into_inner(), sum.into_inner()), (COUNT, COUNT * (COUNT - 1) / 2));
}

#[test]
fn a_full_queue_is_full() {
    let (_device, srq) = queue(4);
    let list: Vec<RecvWr<'_>> = (0..5).map(wr).collect();
    let refused = srq.post(&list).unwrap_err();
    assert_eq!((refused.posted, refused.error), (4, PostError::QueueFull));
    assert_eq!(take(&srq), Some(0));
    srq.post(&list[4..]).unwrap();
    assert_eq!(std::iter::from_fn(|| take(&srq)).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

/// The event of a limit is raised once, when the engines together have taken enough, however they overlap.
#[test]
fn engines_reach_a_limit_together() {
    let (device, srq) = queue(64);
    let events = device.async_events();
    for round in 0..300 {
        srq.post(&(0..64).map(wr).collect::<Vec<_>>()).unwrap();
        let limit = 1 + round % 60;
        let early = round % 2 == 0;
        if early {
            srq.set_limit(limit);
        }
        std::thread::scope(|scope| {
            for _ in 0..ENGINES {
                scope.spawn(|| while take(&srq).is_some() {});
            }
            if !early {
                srq.set_limit(limit);
            }
        });
        let reached = AsyncEvent::SrqLimitReached { srqn: srq.number() };
        assert_eq!((events.poll(), events.poll()), (Some(reached), None), "round {round}");
        assert_eq!(srq.limit(), 0);
    }
}

/// The engines at which messages wait for receives take turns. An engine that has got a receive leaves the next one to
/// the engines that have got none in this round.
#[test]
fn waiting_engines_take_turns() {
    let (_device, srq) = queue(8);
    let turns = || [0, 1, 2].map(|e| !srq.is_others_turn(engine(e)));
    srq.awaited.set(engine(0));
    srq.awaited.set(engine(1));
    srq.has_served(engine(0));
    assert_eq!(turns(), [true, true, true], "there is nothing to leave to others");
    srq.post(&[wr(0)]).unwrap();
    assert_eq!(turns(), [false, true, true]);
    assert!(srq.is_awaited_elsewhere(engine(0)) && srq.is_awaited_elsewhere(engine(1)));
    srq.has_served(engine(1));
    assert_eq!(turns(), [true, true, true], "a new round");
    // No engine leaves receives to an engine at which no message waits.
    srq.has_served(engine(0));
    srq.awaited.clear(engine(1));
    assert_eq!(turns(), [true, true, true]);
    assert!(!srq.is_awaited_elsewhere(engine(0)));
}
