//! Models of what several engines of a device share.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};

use super::{OrderedRing, Ring, explore, thread};
use crate::shared::arming::Arming;
use crate::shared::doorbell::{AwaitedBy, Doorbells};
use crate::shared::engines::EngineNumber;
use crate::shared::queue::WrNumber;
use crate::shared::srq::claim;

/// Two engines, each with its lane, and a poller that arms, polls once more and would then sleep. Either the poll
/// finds a completion, or one is announced. One arming gets at most one announcement.
#[test]
fn no_completion_of_two_engines_is_slept_over() {
    for solicited_only in [false, true] {
        explore(move || {
            let lane = || {
                let ring = OrderedRing::<u32>::new(2);
                let room = ring.room();
                (ring, room)
            };
            let lanes = Arc::new([lane(), lane()]);
            let (arming, announced) = (Arc::new(Arming::default()), Arc::new(AtomicU64::new(0)));
            let engines: Vec<_> = (0..2)
                .map(|engine| {
                    let (lanes, arming, announced) = (lanes.clone(), arming.clone(), announced.clone());
                    thread::spawn(move || {
                        let (lane, room) = &lanes[engine];
                        assert!(lane.push(0, engine as u32, room));
                        if arming.fires(|| true) {
                            announced.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            arming.arm(solicited_only);
            let found = lanes.iter().filter(|(lane, _)| lane.peek(0).is_some()).count();
            engines.into_iter().for_each(|engine| engine.join().unwrap());
            let announced = announced.load(Ordering::Relaxed);
            assert!(announced <= 1, "one arming, one event");
            assert!(found == 2 || announced == 1, "the sleeper is woken for what the poll missed");
            assert_eq!(arming.is_armed(), announced == 0);
        });
    }
}

/// Two engines take from one queue while receives are posted: each receive is taken once, in the order of posting.
#[test]
fn two_engines_take_each_receive_once() {
    const FIRST: u32 = u32::MAX;
    fn take(ring: &Ring<u32>, head: &AtomicU64) -> Option<u32> {
        let WrNumber(number) = claim(head, |number| ring.is_published(number.0))?;
        let entry = *ring.peek(number).expect("claimed");
        assert_eq!(entry, number);
        ring.release(number);
        Some(number.wrapping_sub(FIRST))
    }
    explore(|| {
        let queue = Arc::new((Ring::<u32>::starting_at(2, FIRST), AtomicU64::new(FIRST.into())));
        assert!(queue.0.push(FIRST, FIRST));
        let engines: Vec<_> = (0..2)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || [take(&queue.0, &queue.1), take(&queue.0, &queue.1)])
            })
            .collect();
        // The third receive finds room only in some orders.
        let posted = (1..3u32).fold(1, |posted, _| {
            let number = FIRST.wrapping_add(posted);
            posted + u32::from(queue.0.push(number, number))
        });
        let mut taken = Vec::new();
        for engine in engines {
            let [first, second] = engine.join().unwrap();
            assert!(first.is_none() || second.is_none() || first < second, "in order");
            taken.extend([first, second].into_iter().flatten());
        }
        taken.extend(std::iter::from_fn(|| take(&queue.0, &queue.1)));
        taken.sort_unstable();
        assert_eq!(taken, Vec::from_iter(0..posted));
    });
}

/// Messages wait at two engines for receives that are posted: each engine finds one by looking once more, or is
/// told.
#[test]
fn no_engine_waits_for_a_receive_that_is_there() {
    explore(|| {
        let bells = Arc::new([0, 1].map(|_| Doorbells::new(1)));
        let queue = Arc::new((Ring::<u32>::new(2), AtomicU64::new(0), AwaitedBy::default()));
        let engines: Vec<_> = (0..2)
            .map(|engine| {
                let queue = queue.clone();
                thread::spawn(move || {
                    let take = || claim(&queue.1, |number| queue.0.is_published(number.0));
                    take().or_else(|| {
                        queue.2.set(EngineNumber::new(engine).unwrap());
                        take()
                    })
                })
            })
            .collect();
        for number in 0..2 {
            assert!(queue.0.push(number, number));
            EngineNumber::of_set(queue.2.seen_after_post()).for_each(|e| bells[e.index()].ring_receives());
        }
        for (engine, bells) in engines.into_iter().zip(bells.iter()) {
            let mut found = engine.join().unwrap();
            if found.is_none() && bells.take_receives() {
                found = claim(&queue.1, |number| queue.0.is_published(number.0));
            }
            assert!(found.is_some(), "a receive is there, and the engine was not told");
        }
    });
}

/// A limit is set while two engines take all receives: the event is raised, and only once.
#[test]
fn a_limit_is_noticed_once() {
    explore(|| {
        let queue = Arc::new((Ring::<u32>::new(2), AtomicU64::new(0)));
        let (limit, raised) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        assert!(queue.0.push(0, 0u32) && queue.0.push(1, 1));
        let check = {
            let (queue, limit, raised) = (queue.clone(), limit.clone(), raised.clone());
            Arc::new(move || {
                let wanted = limit.load(Ordering::Relaxed);
                let last = queue.1.load(Ordering::Acquire) as u32 + wanted as u32;
                let reached = wanted > 0 && !queue.0.was_published(last.wrapping_sub(1));
                if reached && limit.compare_exchange(wanted, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
                {
                    raised.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let engines: Vec<_> = (0..2)
            .map(|_| {
                let (queue, check) = (queue.clone(), check.clone());
                thread::spawn(move || {
                    let WrNumber(number) = claim(&queue.1, |number| queue.0.is_published(number.0)).unwrap();
                    queue.0.release(number);
                    check();
                })
            })
            .collect();
        limit.store(1, Ordering::Relaxed);
        queue.1.fetch_add(0, Ordering::AcqRel);
        check();
        engines.into_iter().for_each(|engine| engine.join().unwrap());
        assert_eq!(raised.load(Ordering::Relaxed), 1);
    });
}
