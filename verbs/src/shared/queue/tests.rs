use proptest::prelude::*;

use super::{Entry, OrderedRing, Payload, RecvQueue, Ring, SendQueue, WrNumber};
use crate::shared::error::PostError;
use crate::shared::memory::Regions;
use crate::shared::wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};

const WRITE: SendOp = SendOp::Write { addr: 0x1000, rkey: 7 };

fn sge(len: u32) -> Sge {
    Sge { addr: 0x1000, len, lkey: 5 }
}

fn send(queue: &SendQueue, op: SendOp, sges: &[Sge], flags: SendFlags) -> Result<(), PostError> {
    queue.poster().push(&SendWr { wr_id: 9, op, sges, flags }, Payload::Listed(&Regions::default()))
}

impl Entry for u8 {
    type Align = Self;
}

impl Entry for u32 {
    type Align = Self;
}

impl Entry for [u64; 3] {
    type Align = Self;
}

#[test]
fn capacity_is_a_power_of_two_of_at_least_two() {
    for (asked, got) in [(0, 2), (1, 2), (2, 2), (3, 4), (16, 16), (17, 32)] {
        assert_eq!(Ring::<u8>::new(asked).capacity(), got);
        assert_eq!(OrderedRing::<u8>::new(asked).capacity(), got);
    }
}

/// One thread produces, one consumes in batches. Every entry arrives once, in order, and whole.
#[test]
fn ring_hands_over_everything_in_order() {
    const ENTRIES: u32 = 300_000;
    let ring = Ring::<[u64; 3]>::new(16);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..ENTRIES {
                while !ring.push(i, [i.into(); 3]) {
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < ENTRIES {
            let before = next;
            while let Some(entry) = ring.peek(next) {
                assert_eq!(*entry, [next.into(); 3]);
                next += 1;
            }
            if next == before {
                std::thread::yield_now();
            } else {
                (before..next).for_each(|index| ring.release(index));
            }
        }
    });
}

/// The same for a ring whose entries are released in order.
#[test]
fn ordered_ring_hands_over_everything_in_order() {
    const ENTRIES: u32 = 300_000;
    let ring = OrderedRing::<[u64; 3]>::new(16);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let room = ring.room();
            for i in 0..ENTRIES {
                while !ring.push(i, [i.into(); 3], &room) {
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < ENTRIES {
            let before = next;
            while let Some(entry) = ring.peek(next) {
                assert_eq!(*entry, [next.into(); 3]);
                next += 1;
            }
            if next == before {
                std::thread::yield_now();
            } else {
                ring.release_until(next);
            }
        }
    });
}

#[derive(Clone, Debug)]
enum Step {
    Push,
    Release,
}

proptest! {
    /// The ring behaves like a plain counter model, also across the wrap of the numbers.
    #[test]
    fn ring_behaves_like_its_model(
        entries in 1u32..10,
        first in prop_oneof![Just(0u32), (u32::MAX - 40)..=u32::MAX, any::<u32>()],
        steps in prop::collection::vec(
            prop_oneof![Just(Step::Push), Just(Step::Release)], 0..200),
    ) {
        let ring = Ring::<u32>::starting_at(entries, first);
        let number = |i: u32| first.wrapping_add(i);
        // Both numbers count from `first`.
        let (mut head, mut tail) = (0u32, 0u32);
        for step in steps {
            match step {
                Step::Push => {
                    let room = head - tail < ring.capacity();
                    prop_assert_eq!(ring.is_free(number(head)), room);
                    prop_assert_eq!(ring.push(number(head), head ^ 0xabcd), room);
                    head += u32::from(room);
                }
                Step::Release if tail == head => {}
                Step::Release => {
                    ring.release(number(tail));
                    tail += 1;
                }
            }
            for i in tail..head {
                prop_assert_eq!(ring.peek(number(i)), Some(&(i ^ 0xabcd)));
            }
            prop_assert_eq!(ring.peek(number(head)), None);
            for i in tail..tail + ring.capacity() {
                prop_assert_eq!(ring.is_published(number(i)), i < head);
                prop_assert_eq!(ring.was_published(number(i)), i < head);
            }
            prop_assert!(tail == 0 || ring.was_published(number(tail - 1)));
        }
    }

    /// The same for a ring whose entries are released in order, up to three at once.
    #[test]
    fn ordered_ring_behaves_like_its_model(
        entries in 1u32..10,
        first in prop_oneof![Just(0u32), (u32::MAX - 40)..=u32::MAX, any::<u32>()],
        steps in prop::collection::vec(
            prop_oneof![Just((Step::Push, 1)), (1u32..4).prop_map(|n| (Step::Release, n))], 0..200),
    ) {
        let ring = OrderedRing::<u32>::starting_at(entries, first);
        let room = ring.room();
        let number = |i: u32| first.wrapping_add(i);
        // Both numbers count from `first`.
        let (mut head, mut tail) = (0u32, 0u32);
        for (step, count) in steps {
            match step {
                Step::Push => {
                    let free = head - tail < ring.capacity();
                    prop_assert_eq!(ring.is_free(number(head), &room), free);
                    prop_assert_eq!(ring.push(number(head), head ^ 0xabcd, &room), free);
                    head += u32::from(free);
                }
                Step::Release => {
                    tail = head.min(tail + count);
                    ring.release_until(number(tail));
                }
            }
            for i in tail..head {
                prop_assert_eq!(ring.peek(number(i)), Some(&(i ^ 0xabcd)));
            }
            prop_assert_eq!(ring.peek(number(head)), None);
            prop_assert_eq!(ring.released(), number(tail));
        }
    }
}

#[test]
fn send_queue_keeps_list_and_inline_bytes() {
    let queue = SendQueue::new(OrderedRing::new(4), 2, 8);
    send(&queue, WRITE, &[sge(3), sge(4)], SendFlags::SIGNALED).unwrap();
    let wr = SendWr { wr_id: 10, op: SendOp::Send, sges: &[], flags: SendFlags::SOLICITED };
    queue.poster().push(&wr, Payload::Bytes(b"abcde")).unwrap();
    let view = queue.peek(WrNumber(0)).unwrap();
    assert_eq!((view.entry.wr_id, view.op(), view.entry.length), (9, WRITE, 7));
    assert_eq!((view.sges, view.inline), (&[sge(3), sge(4)][..], None));
    let view = queue.peek(WrNumber(1)).unwrap();
    assert_eq!((view.entry.wr_id, view.entry.length), (10, 5));
    assert_eq!((view.sges, view.inline), (&[][..], Some(&b"abcde"[..])));
    assert_eq!(view.entry.flags, SendFlags::SOLICITED | SendFlags::INLINE);
    assert!(queue.peek(WrNumber(2)).is_none());
}

/// DDP-28.
#[test]
fn send_queue_refuses_at_once_what_cannot_be_posted() {
    let queue = SendQueue::new(OrderedRing::new(2), 2, 8);
    let read = SendOp::Read { addr: 0, rkey: 1 };
    let none = SendFlags::empty();
    assert_eq!(send(&queue, WRITE, &[sge(1); 3], none), Err(PostError::TooManySges));
    assert_eq!(send(&queue, read, &[sge(1); 3], none), Err(PostError::TooManySges));
    let add = SendOp::FetchAdd { addr: 0, rkey: 1, add: 1 };
    assert_eq!(send(&queue, add, &[sge(4); 2], none), Err(PostError::TooManySges));
    assert_eq!(send(&queue, WRITE, &[sge(u32::MAX), sge(1)], none), Err(PostError::TooLong));
    assert_eq!(send(&queue, WRITE, &[sge(9)], SendFlags::INLINE), Err(PostError::InlineTooLong));
    assert_eq!(send(&queue, WRITE, &[sge(8)], SendFlags::INLINE), Err(PostError::InlineAccess));
    assert_eq!(send(&queue, read, &[sge(8)], SendFlags::INLINE), Err(PostError::InlineRead));
    assert!(queue.peek(WrNumber(0)).is_none());
    assert_eq!(send(&queue, WRITE, &[sge(u32::MAX), sge(0)], none), Ok(()));
    assert_eq!(send(&queue, read, &[sge(u32::MAX), sge(1)], none), Err(PostError::TooLong));
    assert_eq!(send(&queue, read, &[sge(1); 2], none), Ok(()));
    assert_eq!(send(&queue, WRITE, &[], none), Err(PostError::QueueFull));
    queue.release(WrNumber(0));
    assert_eq!(send(&queue, WRITE, &[], none), Ok(()));
    assert_eq!(send(&queue, WRITE, &[], none), Err(PostError::QueueFull));
}

#[test]
fn recv_queue_refuses_at_once_what_cannot_be_posted() {
    let queue = RecvQueue::new(2, 1);
    let post = |sges: &[Sge]| queue.poster().push(&RecvWr { wr_id: 3, sges });
    assert_eq!(post(&[sge(1); 2]), Err(PostError::TooManySges));
    assert_eq!(post(&[]), Ok(()));
    assert_eq!(post(&[sge(6)]), Ok(()));
    assert_eq!(post(&[]), Err(PostError::QueueFull));
    let view = queue.peek(WrNumber(1)).unwrap();
    assert_eq!((view.wr_id, view.length, view.sges), (3, 6, &[sge(6)][..]));
    queue.release(WrNumber(0));
    assert_eq!(post(&[]), Ok(()));
}

/// Several threads post at once. The engine sees each request once, and never a torn one.
#[test]
fn posting_threads_do_not_mix() {
    const EACH: u64 = 20_000;
    let queue = SendQueue::new(OrderedRing::new(8), 1, 8);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let queue = &queue;
            scope.spawn(move || {
                for i in 0..EACH {
                    let value = thread << 32 | i;
                    let wr = SendWr { wr_id: value, op: WRITE, sges: &[], flags: SendFlags::empty() };
                    while queue.poster().push(&wr, Payload::Bytes(&value.to_le_bytes())).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut next = [0u64; 2];
        let mut index = 0;
        while next.iter().sum::<u64>() < 2 * EACH {
            let Some(view) = queue.peek(WrNumber(index)) else {
                std::thread::yield_now();
                continue;
            };
            assert_eq!(view.inline, Some(&view.entry.wr_id.to_le_bytes()[..]));
            let thread = (view.entry.wr_id >> 32) as usize;
            assert_eq!(view.entry.wr_id as u32 as u64, next[thread]);
            next[thread] += 1;
            queue.release(WrNumber(index));
            index += 1;
        }
    });
}
