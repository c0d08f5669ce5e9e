use std::os::fd::{AsFd, AsRawFd};

use urnic_config::Progress;

use super::{AsyncEvent, AsyncQueue, Object};
use crate::api::fake;
use crate::api::qp::tests::{connect, init};
use crate::shared::engines::EngineNumber;
use crate::shared::wc::Wc;

fn readable(fd: impl AsFd) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

#[test]
fn events_come_in_order_and_the_descriptor_tells_of_them() {
    let queue = AsyncQueue::new().unwrap();
    let all = [
        AsyncEvent::CqError { cqn: 1 },
        AsyncEvent::PortError,
        AsyncEvent::LastWqeReached { qpn: 1 },
        AsyncEvent::SendQueueDrained { qpn: 1 },
        AsyncEvent::SrqLimitReached { srqn: 1 },
    ];
    assert!(!readable(&queue.fd));
    for event in &all {
        queue.raise(event.clone());
    }
    for event in &all {
        assert!(readable(&queue.fd));
        assert_eq!(queue.take().as_ref(), Some(event));
    }
    assert!(!readable(&queue.fd));
    assert_eq!(queue.take(), None);
}

/// However often something happens, the stored events are bounded. The latest event comes last.
#[test]
fn the_newer_event_takes_the_place_of_the_older() {
    let queue = AsyncQueue::new().unwrap();
    for _ in 0..1000 {
        queue.raise(AsyncEvent::PortActive);
        queue.raise(AsyncEvent::LastWqeReached { qpn: 7 });
        queue.raise(AsyncEvent::PortError);
    }
    queue.raise(AsyncEvent::PortActive);
    let left: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
    assert_eq!(left, [AsyncEvent::LastWqeReached { qpn: 7 }, AsyncEvent::PortError, AsyncEvent::PortActive]);
    assert!(!readable(&queue.fd));
    assert!(queue.unread().by_object.is_empty());
}

#[test]
fn an_object_that_is_gone_leaves_no_event() {
    let queue = AsyncQueue::new().unwrap();
    queue.raise(AsyncEvent::LastWqeReached { qpn: 7 });
    queue.raise(AsyncEvent::CqError { cqn: 7 });
    queue.raise(AsyncEvent::SendQueueDrained { qpn: 7 });
    queue.forget(Object::Qp(7));
    queue.forget(Object::Srq(7));
    assert_eq!(queue.take(), Some(AsyncEvent::CqError { cqn: 7 }));
    assert_eq!(queue.take(), None);
    assert!(!readable(&queue.fd));
}

/// Threads raise, read and destroy at the same time. In the end, the descriptor's count is right.
#[test]
fn threads_may_meet() {
    let queue = AsyncQueue::new().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let queue = &queue;
            scope.spawn(move || {
                for i in 0..5000 {
                    queue.raise(AsyncEvent::LastWqeReached { qpn: i % 5 });
                    queue.raise(AsyncEvent::CqError { cqn: i % 3 });
                    if thread == 0 {
                        queue.forget(Object::Qp(i % 7));
                    } else {
                        queue.take();
                    }
                }
            });
        }
    });
    while queue.take().is_some() {
        assert!(!readable(&queue.fd) || !queue.unread().in_order.is_empty());
    }
    assert!(!readable(&queue.fd));
}

/// A completion queue reports its overflow once, by its number, and not after its end.
#[test]
fn overflow_is_an_event() {
    let (device, _) = fake::device(Progress::Inline);
    let (cq, other) = (device.create_cq(2, None).unwrap(), device.create_cq(2, None).unwrap());
    assert_ne!(cq.cqn(), other.cqn());
    for _ in 0..5 {
        let _ = cq.shared.push(EngineNumber::FIRST, Wc::default());
    }
    let events = device.async_events();
    assert_eq!(events.poll(), Some(AsyncEvent::CqError { cqn: cq.cqn() }));
    assert_eq!(events.wait(Some(std::time::Duration::ZERO)), None);
    for _ in 0..5 {
        let _ = other.shared.push(EngineNumber::FIRST, Wc::default());
    }
    drop(other);
    assert_eq!(events.poll(), None);
}

/// A queue pair's unread events are discarded with it, because its number will be used again.
#[test]
fn a_queue_pair_takes_its_events_along() {
    let (device, _) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(4, None).unwrap());
    let [a, b] = [(); 2].map(|()| pd.create_qp(&init(&cq)).unwrap());
    connect(&device, &a, &b);
    for qp in [&a, &b] {
        qp.shared.events.raise(AsyncEvent::SendQueueDrained { qpn: qp.qpn() });
    }
    drop(a);
    let events = device.async_events();
    assert_eq!(events.poll(), Some(AsyncEvent::SendQueueDrained { qpn: b.qpn() }));
    assert_eq!(events.poll(), None);
}
