//! Tests data that threads share without locks of the operating system, in the orders of events that the memory
//! model allows with few involuntary thread switches (`cargo test -p urnic --features loom --lib models`).

mod engines;

use loom::sync::Arc;

use super::{SpinLock, thread};
use crate::shared::doorbell::{Awaited, Doorbells};
use crate::shared::memory::Regions;
use crate::shared::queue::{Entry, OrderedRing, Payload, Ring, SendQueue, WrNumber};
use crate::shared::wr::{SendFlags, SendOp, SendWr};

/// Runs the model checker, with a bound on involuntary thread switches that keeps it within seconds.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

impl Entry for (u32, u32) {
    type Align = Self;
}

#[test]
fn a_spin_lock_has_one_holder() {
    explore(|| {
        let lock = Arc::new(SpinLock::new(0));
        let other = {
            let lock = lock.clone();
            thread::spawn(move || *lock.lock() += 1)
        };
        *lock.lock() += 1;
        other.join().unwrap();
        assert_eq!(*lock.lock(), 2);
    });
}

/// The numbers may wrap meanwhile. Entries arrive whole and in order, and a full ring refuses.
#[test]
fn a_ring_hands_over_each_entry_once() {
    const FIRST: u32 = u32::MAX;
    /// Takes an entry if there is one. Returns how many were taken so far.
    fn take(ring: &Ring<(u32, u32)>, taken: u32) -> u32 {
        let number = FIRST.wrapping_add(taken);
        let Some(&entry) = ring.peek(number) else { return taken };
        assert_eq!(entry, (number, !number));
        ring.release(number);
        taken + 1
    }
    explore(|| {
        let ring = Arc::new(Ring::starting_at(2, FIRST));
        let producer = {
            let ring = ring.clone();
            thread::spawn(move || {
                // The third and the fourth entry find room only in some orders.
                (0..4).fold(0, |posted, _| {
                    let number = FIRST.wrapping_add(posted);
                    posted + u32::from(ring.push(number, (number, !number)))
                })
            })
        };
        let consumer = {
            let ring = ring.clone();
            thread::spawn(move || (0..2).fold(0, |taken, _| take(&ring, taken)))
        };
        let posted = producer.join().unwrap();
        assert!((2..=4).contains(&posted), "a ring of two takes two");
        let mut taken = consumer.join().unwrap();
        for _ in 0..=posted {
            taken = take(&ring, taken);
        }
        assert_eq!(taken, posted);
    });
}

/// The same for a ring whose entries are released in order.
#[test]
fn an_ordered_ring_hands_over_each_entry_once() {
    const FIRST: u32 = u32::MAX;
    /// Takes the entries that there are, and releases them together. Returns how many were taken so far.
    fn take(ring: &OrderedRing<(u32, u32)>, mut taken: u32) -> u32 {
        let number = |taken| FIRST.wrapping_add(taken);
        while let Some(&entry) = ring.peek(number(taken)) {
            assert_eq!(entry, (number(taken), !number(taken)));
            taken += 1;
        }
        ring.release_until(number(taken));
        taken
    }
    explore(|| {
        let ring = Arc::new(OrderedRing::starting_at(2, FIRST));
        let producer = {
            let ring = ring.clone();
            thread::spawn(move || {
                let room = ring.room();
                // The third and the fourth entry find room only in some orders.
                (0..4).fold(0, |posted, _| {
                    let number = FIRST.wrapping_add(posted);
                    posted + u32::from(ring.push(number, (number, !number), &room))
                })
            })
        };
        let consumer = {
            let ring = ring.clone();
            thread::spawn(move || (0..2).fold(0, |taken, _| take(&ring, taken)))
        };
        let posted = producer.join().unwrap();
        assert!((2..=4).contains(&posted), "a ring of two takes two");
        let taken = consumer.join().unwrap();
        assert_eq!(take(&ring, taken), posted);
    });
}

/// Two posters, one of which always rings, as batches do, and an engine: every post that the engine misses rings again,
/// or the engine looks again by itself. A queue pair is entered once at most.
#[test]
fn no_post_is_left_behind() {
    explore(|| {
        let doorbells = Arc::new(Doorbells::new(1));
        let queue = Arc::new(SendQueue::new(OrderedRing::new(4), 1, 0));
        let ring = |doorbells: &Doorbells, queue: &SendQueue| {
            if queue.bell.ring() {
                doorbells.ring(0);
            }
        };
        let wr = || SendWr { wr_id: 0, op: SendOp::Send, sges: &[], flags: SendFlags::empty() };
        let regions = Regions::default;
        let poster = {
            let (doorbells, queue) = (doorbells.clone(), queue.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    if !queue.post(&wr(), Payload::Listed(&regions()), false).unwrap() {
                        ring(&doorbells, &queue);
                    }
                }
            })
        };
        let mut done = WrNumber(0);
        let mut pass = || {
            for _ in 0..doorbells.entered() {
                if doorbells.pop().is_none() {
                    break;
                }
                let again = queue.answer();
                while queue.peek(done).is_some() {
                    queue.release(done);
                    done = done.next();
                }
                if again {
                    doorbells.ring(0);
                }
            }
            done.0
        };
        queue.poster().push(&wr(), Payload::Listed(&regions())).unwrap();
        ring(&doorbells, &queue);
        pass();
        poster.join().unwrap();
        assert_eq!(pass(), 3);
    });
}

/// A poster of receives, and an engine that finds none when a message comes: the engine finds one later, or is
/// told.
#[test]
fn no_message_waits_for_a_receive_that_is_there() {
    explore(|| {
        let doorbells = Arc::new(Doorbells::new(1));
        let queue = Arc::new((Ring::<u32>::new(2), Awaited::default()));
        let poster = {
            let (doorbells, queue) = (doorbells.clone(), queue.clone());
            thread::spawn(move || {
                assert!(queue.0.push(0, 7));
                if queue.1.seen_after_post() {
                    doorbells.ring_receives();
                }
            })
        };
        let mut found = queue.0.peek(0).is_some();
        if !found {
            queue.1.set();
            found = queue.0.peek(0).is_some();
        }
        poster.join().unwrap();
        found |= doorbells.take_receives() && queue.0.peek(0).is_some();
        assert!(found);
    });
}
