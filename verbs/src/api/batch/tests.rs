use std::thread;

use urnic_config::Progress;

use crate::api::cq::Cq;
use crate::api::fake;
use crate::api::qp::tests::init;
use crate::api::srq::SrqInit;
use crate::shared::error::PostError;
use crate::shared::wc::{Wc, WcStatus};
use crate::shared::wr::{RecvWr, SendFlags, SendOp, SendWr};

/// Entries of each queue of a queue pair that `init` describes.
const ENTRIES: u64 = 16;

fn send(wr_id: u64) -> SendWr<'static> {
    SendWr { wr_id, op: SendOp::Write { addr: 0, rkey: 1 }, sges: &[], flags: SendFlags::SIGNALED }
}

fn receive(wr_id: u64) -> RecvWr<'static> {
    RecvWr { wr_id, sges: &[] }
}

/// Returns the ids of all completions, which must be flushed.
fn flushed(cq: &Cq) -> Vec<u64> {
    let mut wcs = [Wc::default(); 64];
    let n = cq.poll(&mut wcs);
    assert!(wcs[..n].iter().all(|wc| wc.status == WcStatus::Flushed));
    wcs[..n].iter().map(|wc| wc.wr_id).collect()
}

#[test]
fn a_batch_is_posted_whole_or_not_at_all() {
    let (device, _) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None).unwrap());
    let qp = pd.create_qp(&init(&cq)).unwrap();
    qp.post_send(&send(0)).unwrap();
    let mut dropped = qp.send_batch();
    (100..103).for_each(|n| dropped.push(&send(n)).unwrap());
    drop(dropped);
    let mut refused = qp.send_batch();
    (200..200 + ENTRIES - 1).for_each(|n| refused.push(&send(n)).unwrap());
    assert_eq!(refused.push(&send(300)), Err(PostError::QueueFull));
    assert_eq!(refused.push_inline(&send(300), b"too long"), Err(PostError::InlineTooLong));
    drop(refused);
    let mut batch = qp.send_batch();
    (1..ENTRIES).for_each(|n| batch.push(&send(n)).unwrap());
    batch.post();
    qp.send_batch().post();
    qp.to_error();
    assert_eq!(flushed(&cq), (0..ENTRIES).collect::<Vec<_>>());
}

#[test]
fn batches_of_receives_likewise() {
    let (device, _) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None).unwrap());
    let qp = pd.create_qp(&init(&cq)).unwrap();
    let mut dropped = qp.recv_batch().unwrap();
    dropped.push(&receive(100)).unwrap();
    drop(dropped);
    let mut batch = qp.recv_batch().unwrap();
    (0..ENTRIES).for_each(|n| batch.push(&receive(n)).unwrap());
    assert_eq!(batch.push(&receive(200)), Err(PostError::QueueFull));
    batch.post();
    qp.to_error();
    assert_eq!(flushed(&cq), (0..ENTRIES).collect::<Vec<_>>());
    // In the error state, the requests of a batch are flushed too.
    let mut late = qp.recv_batch().unwrap();
    (0..3).for_each(|n| late.push(&receive(n)).unwrap());
    late.post();
    assert_eq!(flushed(&cq), [0, 1, 2]);
}

#[test]
fn batches_of_a_shared_queue_likewise() {
    let (device, _) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None).unwrap());
    let srq = pd.create_srq(&SrqInit { max_wr: 4, max_sge: 1, limit: 0 }).unwrap();
    let qp = pd.create_qp_with_srq(&init(&cq), &srq).unwrap();
    assert!(matches!(qp.recv_batch(), Err(PostError::SharedReceives)));
    let mut dropped = srq.recv_batch();
    dropped.push(&receive(100)).unwrap();
    drop(dropped);
    assert!(!srq.shared.has_some());
    let mut batch = srq.recv_batch();
    (0..4).for_each(|n| batch.push(&receive(n)).unwrap());
    assert_eq!(batch.push(&receive(200)), Err(PostError::QueueFull));
    assert!(!srq.shared.has_some(), "nothing is there before it is posted");
    batch.post();
    let mut held = srq.shared.held();
    assert!((0..4).all(|_| srq.shared.take(&mut held).is_some()));
    assert!(srq.shared.take(&mut held).is_none());
}

#[test]
fn batches_of_several_threads_do_not_mix() {
    let (device, _) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None).unwrap());
    let qp = pd.create_qp(&init(&cq)).unwrap();
    thread::scope(|scope| {
        for thread in 0..4 {
            let qp = &qp;
            scope.spawn(move || {
                let mut batch = qp.send_batch();
                for n in 0..4 {
                    thread::yield_now();
                    batch.push(&send(4 * thread + n)).unwrap();
                }
                batch.post();
            });
        }
    });
    qp.to_error();
    for batch in flushed(&cq).chunks(4) {
        assert!(batch[0] % 4 == 0 && batch.windows(2).all(|w| w[1] == w[0] + 1), "{batch:?}");
    }
}
