use urnic_config::Progress;

use super::{Srq, SrqInit};
use crate::api::cq::Cq;
use crate::api::device::Device;
use crate::api::fake;
use crate::api::pd::Pd;
use crate::api::qp::tests::init;
use crate::shared::error::{Error, PostError, PostListError};
use crate::shared::events::AsyncEvent;
use crate::shared::wr::{RecvWr, Sge};

const INIT: SrqInit = SrqInit { max_wr: 8, max_sge: 2, limit: 0 };

fn setting() -> (Device, Pd, Cq) {
    let (device, _) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None).unwrap());
    (device, pd, cq)
}

fn take(srq: &Srq) -> Option<u64> {
    let mut held = srq.shared.held();
    srq.shared.take(&mut held).map(|_| held.view().wr_id)
}

fn wr(wr_id: u64) -> RecvWr<'static> {
    RecvWr { wr_id, sges: &[] }
}

#[test]
fn receives_are_taken_in_order_with_their_lists() {
    let (_device, pd, _) = setting();
    let srq = pd.create_srq(&INIT).unwrap();
    let lists = [vec![], vec![Sge { addr: 1, len: 2, lkey: 3 }], vec![Sge { addr: 4, len: 5, lkey: 6 }; 2]];
    for (i, sges) in lists.iter().enumerate() {
        srq.post_recv(&RecvWr { wr_id: i as u64, sges }).unwrap();
    }
    let mut held = srq.shared.held();
    for (i, sges) in lists.iter().enumerate() {
        let length = srq.shared.take(&mut held);
        let view = held.view();
        assert_eq!((view.wr_id, view.sges, length), (i as u64, &sges[..], Some([0, 2, 10][i])));
    }
    assert_eq!(srq.shared.take(&mut held), None);
}

#[test]
fn what_cannot_be_posted_is_refused() {
    let (_device, pd, cq) = setting();
    let srq = pd.create_srq(&INIT).unwrap();
    let long = [Sge::default(); 3];
    assert_eq!(srq.post_recv(&RecvWr { wr_id: 1, sges: &long }), Err(PostError::TooManySges));
    let list: Vec<_> = (0..10).map(wr).collect();
    assert_eq!(srq.post_recv_list(&list), Err(PostListError { posted: 8, error: PostError::QueueFull }));
    // A message that takes a receive frees the slot at once, before the receive completes.
    assert_eq!(take(&srq), Some(0));
    srq.post_recv(&wr(8)).unwrap();
    // The queue pair has no receives of its own.
    let qp = pd.create_qp_with_srq(&init(&cq), &srq).unwrap();
    assert_eq!(qp.post_recv(&wr(1)), Err(PostError::SharedReceives));
    let refused = Err(PostListError { posted: 0, error: PostError::SharedReceives });
    assert_eq!(qp.post_recv_list(&list), refused);
    assert_eq!((qp.max_recv_wr(), qp.max_recv_sge()), (0, 0));
    assert_eq!(qp.query().unwrap().srqn, Some(srq.srqn()));
}

#[test]
fn what_cannot_be_created_is_refused() {
    let (_device, pd, cq) = setting();
    for bad in [
        SrqInit { max_wr: 0, ..INIT },
        SrqInit { max_wr: u32::MAX, ..INIT },
        SrqInit { max_sge: u8::MAX, ..INIT },
        SrqInit { limit: 9, ..INIT },
    ] {
        assert!(matches!(pd.create_srq(&bad), Err(Error::Invalid(_))), "{bad:?}");
    }
    let srq = pd.create_srq(&INIT).unwrap();
    assert!(matches!(srq.set_limit(9), Err(Error::Invalid(_))));
    let (other, _) = fake::device(Progress::Inline);
    assert!(matches!(other.alloc_pd().create_qp_with_srq(&init(&cq), &srq), Err(Error::Invalid(_))));
}

#[test]
fn the_limit_raises_one_event() {
    let (device, pd, _) = setting();
    let srq = pd.create_srq(&SrqInit { limit: 2, ..INIT }).unwrap();
    let events = device.async_events();
    let reached = Some(AsyncEvent::SrqLimitReached { srqn: srq.srqn() });
    let list: Vec<_> = (0..4).map(wr).collect();
    srq.post_recv_list(&list).unwrap();
    for left in [3, 2] {
        take(&srq).unwrap();
        assert_eq!(events.poll(), None, "{left} left");
    }
    take(&srq).unwrap();
    assert_eq!(srq.attributes().limit, 0, "it is off");
    assert_eq!(events.poll(), reached);
    take(&srq).unwrap();
    assert_eq!(events.poll(), None, "once");
    // A limit that is already reached when it is set raises its event at once.
    srq.post_recv(&wr(4)).unwrap();
    srq.set_limit(1).unwrap();
    assert_eq!((events.poll(), srq.attributes().limit), (None, 1));
    srq.set_limit(2).unwrap();
    assert_eq!(events.poll(), reached);
    // The limit is cancelled; and set to the size of the queue, across the wrap of the ring.
    srq.set_limit(1).unwrap();
    srq.set_limit(0).unwrap();
    take(&srq).unwrap();
    assert_eq!(events.poll(), None);
    srq.post_recv_list(&(0..8).map(wr).collect::<Vec<_>>()).unwrap();
    srq.set_limit(8).unwrap();
    assert_eq!(events.poll(), None);
    take(&srq).unwrap();
    assert_eq!(events.poll(), reached);
    // An unread event is discarded with its queue.
    srq.set_limit(8).unwrap();
    drop(srq);
    assert_eq!(events.poll(), None);
}

/// Threads post, singly and in lists, while the engine takes. Nothing is lost or doubled, the receives of a thread
/// stay in order, and lists stay together.
#[test]
fn threads_may_post_at_once() {
    const EACH: u64 = 8_000;
    let (_device, pd, _) = setting();
    let srq = pd.create_srq(&INIT).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let srq = &srq;
            scope.spawn(move || {
                let mut next = 0;
                while next < EACH {
                    let list: Vec<_> = (next..(next + 4).min(EACH)).map(|i| wr(thread << 32 | i)).collect();
                    next += match srq.post_recv_list(&list) {
                        Ok(()) => list.len() as u64,
                        Err(refused) => {
                            assert_eq!(refused.error, PostError::QueueFull);
                            std::thread::yield_now();
                            refused.posted as u64
                        }
                    };
                }
            });
        }
        let mut next = [0u64; 3];
        while next.iter().sum::<u64>() < 3 * EACH {
            match take(&srq) {
                Some(wr_id) => {
                    let thread = (wr_id >> 32) as usize;
                    assert_eq!(wr_id & u64::from(u32::MAX), next[thread]);
                    next[thread] += 1;
                }
                None => std::thread::yield_now(),
            }
        }
    });
}

/// A queue pair with a shared queue has no ring of its own.
#[test]
fn no_ring_is_needed() {
    use crate::shared::qp::Receives;
    let (_device, pd, cq) = setting();
    let srq = pd.create_srq(&INIT).unwrap();
    let qp = pd.create_qp_with_srq(&init(&cq), &srq).unwrap();
    assert!(
        matches!(&qp.shared.recv, Receives::Shared(shared) if std::sync::Arc::ptr_eq(shared, &srq.shared))
    );
}

mod several;
mod threads;
