use std::sync::atomic::{AtomicU64, Ordering};

use urnic_config::Progress;

use super::{Qp, QpInit, QpShared, QpState};
use crate::api::cq::Cq;
use crate::api::device::Device;
use crate::api::fake;
use crate::api::pd::Pd;
use crate::shared::cm::ConnParam;
use crate::shared::error::{Error, PostError, PostListError};
use crate::shared::wc::{Wc, WcOpcode, WcStatus};
use crate::shared::wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};
use crate::{Access, CmEvent};

pub(crate) fn init<'a>(cq: &'a Cq) -> QpInit<'a> {
    QpInit {
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
        signal_all: false,
    }
}

/// Connects two queue pairs of one device with each other.
pub(crate) fn connect(device: &Device, a: &Qp, b: &Qp) {
    let events = device.create_event_channel().unwrap();
    let listener = events.listen(7471, 1).unwrap();
    let to = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, listener.port());
    events.connect(a, to, &ConnParam::default()).unwrap();
    let next = || events.wait(std::time::Duration::from_secs(60));
    let Some(CmEvent::ConnectRequest(request)) = next() else { panic!("no request") };
    request.accept(b, &ConnParam::default()).unwrap();
    assert!(matches!(next(), Some(CmEvent::Established { qpn, .. }) if qpn == a.qpn()));
}

fn pair(device: &Device, pd: &Pd, cq: &Cq) -> [Qp; 2] {
    let pair = [(); 2].map(|()| pd.create_qp(&init(cq)).unwrap());
    connect(device, &pair[0], &pair[1]);
    pair
}

const WRITE: SendOp = SendOp::Write { addr: 0, rkey: 1 };

fn wr(wr_id: u64, flags: SendFlags) -> SendWr<'static> {
    SendWr { wr_id, op: WRITE, sges: &[], flags }
}

fn drain(cq: &Cq) -> Vec<Wc> {
    let mut all = Vec::new();
    let mut out = [Wc::default(); 8];
    loop {
        match cq.poll(&mut out) {
            0 => return all,
            n => all.extend_from_slice(&out[..n]),
        }
    }
}

#[test]
fn work_waits_while_idle_and_runs_when_connected() {
    let (device, _) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None).unwrap());
    let [a, b] = [(); 2].map(|()| pd.create_qp(&init(&cq)).unwrap());
    a.post_send(&wr(1, SendFlags::SIGNALED)).unwrap();
    assert_eq!(a.state(), QpState::Idle);
    assert!(drain(&cq).is_empty());
    connect(&device, &a, &b);
    assert_eq!(a.state(), QpState::Rts);
    a.post_send(&wr(2, SendFlags::empty())).unwrap();
    a.post_send(&wr(3, SendFlags::SIGNALED)).unwrap();
    let ids: Vec<_> = drain(&cq).iter().map(|wc| (wc.wr_id, wc.status, wc.qpn)).collect();
    assert_eq!(ids, [(1, WcStatus::Success, a.qpn()), (3, WcStatus::Success, a.qpn())]);
}

#[test]
fn every_request_is_reported_if_asked_at_creation() {
    let (device, _) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None).unwrap());
    let [a, b] = [(); 2].map(|()| pd.create_qp(&QpInit { signal_all: true, ..init(&cq) }).unwrap());
    connect(&device, &a, &b);
    a.post_send(&wr(1, SendFlags::empty())).unwrap();
    assert_eq!(drain(&cq).len(), 1);
}

#[test]
fn lists_are_posted_up_to_the_first_refusal() {
    let (device, _) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None).unwrap());
    let [a, _b] = pair(&device, &pd, &cq);
    let many = [Sge::default(); 2];
    let wrs = [
        wr(1, SendFlags::SIGNALED),
        wr(2, SendFlags::SIGNALED),
        SendWr { sges: &many, ..wr(3, SendFlags::SIGNALED) },
        wr(4, SendFlags::SIGNALED),
    ];
    let refused = a.post_send_list(&wrs);
    assert_eq!(refused, Err(PostListError { posted: 2, error: PostError::TooManySges }));
    assert_eq!(drain(&cq).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(a.post_send_list(&[]), Ok(()));
    let receives = [RecvWr { wr_id: 0, sges: &[] }; 20];
    assert_eq!(a.post_recv_list(&receives), Err(PostListError { posted: 16, error: PostError::QueueFull }));
}

/// Work is flushed on both queues, whether it was posted before the error state or in it.
#[test]
fn the_error_state_flushes_what_was_and_what_is_posted() {
    let (device, _) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None).unwrap());
    let [a, b] = pair(&device, &pd, &cq);
    b.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
    b.to_error();
    assert_eq!(b.state(), QpState::Error);
    b.post_send(&wr(2, SendFlags::empty())).unwrap();
    b.post_recv(&RecvWr { wr_id: 3, sges: &[] }).unwrap();
    let flushed: Vec<_> = drain(&cq).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(flushed, [1, 2, 3].map(|id| (id, WcStatus::Flushed)));
    drop((a, b));
}

/// One thread posts receives while another moves the queue pair to the error state. All receives are flushed, in
/// whatever order the two threads meet.
#[test]
fn no_receive_is_forgotten_when_the_error_state_comes() {
    let (device, _) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None).unwrap());
    for _ in 0..300 {
        let qp = pd.create_qp(&init(&cq)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for wr_id in 0..16 {
                    qp.post_recv(&RecvWr { wr_id, sges: &[] }).unwrap();
                }
            });
            qp.to_error();
        });
        let ids: Vec<_> = drain(&cq).iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, (0..16).collect::<Vec<_>>());
    }
}

/// A thread posts as fast as the queue takes requests, while another drives the engine. No doorbell is lost.
#[test]
fn no_post_is_forgotten() {
    const COUNT: u64 = 50_000;
    const DEPTH: u32 = 64;
    let (device, _) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(DEPTH, None).unwrap());
    let [a, _b] = pair(&device, &pd, &cq);
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..COUNT {
                // Keeps at most DEPTH completions in the completion queue. The send queue does not limit their number,
                // because a request's slot becomes free before the program polls its completion.
                while i - taken.load(Ordering::Acquire) >= DEPTH.into()
                    || a.post_send(&wr(i, SendFlags::SIGNALED)).is_err()
                {
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0;
        let mut out = [Wc::default(); 8];
        while next < COUNT {
            let n = cq.poll(&mut out);
            for wc in &out[..n] {
                assert_eq!(wc.wr_id, next);
                next += 1;
            }
            taken.store(next, Ordering::Release);
        }
    });
}

#[test]
fn sends_arrive_with_their_data_in_the_ring() {
    let (device, _) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None).unwrap());
    let [a, b] = [(); 2].map(|()| pd.create_qp(&QpInit { max_inline: 16, ..init(&cq) }).unwrap());
    connect(&device, &a, &b);
    let mr = pd.alloc_mr(16, Access::LOCAL_WRITE).unwrap();
    b.post_recv(&RecvWr { wr_id: 5, sges: &[Sge::of(&mr, 0, 16)] }).unwrap();
    let send = SendWr { wr_id: 6, op: SendOp::Send, sges: &[], flags: SendFlags::empty() };
    a.post_send_inline(&send, b"hello").unwrap();
    let all = drain(&cq);
    assert_eq!((all.len(), all[0].wr_id, all[0].opcode, all[0].byte_len), (1, 5, WcOpcode::Recv, 5));
    let sges = [Sge::of(&mr, 8, 8)];
    let send = SendWr { sges: &sges, flags: SendFlags::INLINE | SendFlags::SIGNALED, ..send };
    a.post_send(&send).unwrap();
    assert_eq!(drain(&cq)[0].byte_len, 8);
}

#[test]
fn sizes_beyond_the_limits_are_refused() {
    let (device, _) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None).unwrap());
    for bad in [
        QpInit { max_send_wr: u32::MAX, ..init(&cq) },
        QpInit { max_recv_wr: u32::MAX, ..init(&cq) },
        QpInit { max_send_sge: u8::MAX, ..init(&cq) },
        QpInit { max_recv_sge: u8::MAX, ..init(&cq) },
        QpInit { max_inline: u32::MAX, ..init(&cq) },
    ] {
        assert!(matches!(pd.create_qp(&bad), Err(Error::Invalid(_))));
    }
    let (other, _) = fake::device(Progress::Inline);
    let foreign = other.create_cq(4, None).unwrap();
    assert!(matches!(pd.create_qp(&init(&foreign)), Err(Error::Invalid(_))));
}

/// When the doorbell of a queue pair is forgotten, as at the end of the queue pair, other doorbells remain.
#[test]
fn doorbells_end_with_their_queue_pair() {
    let (device, _) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None).unwrap());
    let doorbells = &device.shared.shards.first().doorbells;
    let (gone, there) = (pd.create_qp(&init(&cq)).unwrap(), pd.create_qp(&init(&cq)).unwrap());
    gone.post_send(&wr(1, SendFlags::empty())).unwrap();
    there.post_send(&wr(1, SendFlags::empty())).unwrap();
    let number = gone.qpn();
    doorbells.forget(number);
    assert_eq!(doorbells.pop(), Some(there.qpn()));
    assert_eq!(doorbells.pop(), None);
}

/// Limits the memory of an idle queue pair in the API and the rings. The queue pair has room for 16 sends and 16
/// receives, each with one element.
#[test]
fn idle_queue_pairs_are_small() {
    // A send queue has one slot more than requests, and each slot has a cache line.
    let entries = (16 + 1) * 64 + 16 * (24 + 16);
    assert!(size_of::<QpShared>() + entries <= 3072, "{} + {entries}", size_of::<QpShared>());
}

/// More pollers than cores, each waiting for its own completions: all make progress.
#[test]
fn more_pollers_than_cores_get_on() {
    const ROUNDS: u64 = 50;
    for progress in [Progress::Inline, Progress::Adaptive, Progress::Dedicated] {
        let (device, _) = fake::device(progress);
        let pd = device.alloc_pd();
        std::thread::scope(|scope| {
            for _ in 0..6 {
                let cq = device.create_cq(16, None).unwrap();
                let [a, b] = [(); 2].map(|()| pd.create_qp(&init(&cq)).unwrap());
                connect(&device, &a, &b);
                scope.spawn(move || {
                    let _peer = b;
                    for i in 0..ROUNDS {
                        a.post_send(&wr(i, SendFlags::SIGNALED)).unwrap();
                        let mut out = [Wc::default()];
                        while cq.poll(&mut out) == 0 {}
                        assert_eq!(out[0].wr_id, i);
                    }
                });
            }
        });
    }
}

/// A post to an engine that another thread drives does not touch the engine: it rings the doorbell, and that thread's
/// next pass sends the request.
#[test]
fn posts_leave_a_far_engine_to_the_thread_that_drives_it() {
    let (device, knobs) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None).unwrap());
    let [a, _b] = pair(&device, &pd, &cq);
    let shard = device.shared.shards.first();
    let kicks = || knobs.kicks.swap(0, Ordering::SeqCst);
    let post = |wr_id: u64, list: bool| {
        let wr = wr(wr_id, SendFlags::SIGNALED);
        if list { a.post_send_list(&[wr, wr]).unwrap() } else { a.post_send(&wr).unwrap() }
    };
    drain(&cq);
    shard.visit(false);
    assert!(shard.visit(false).is_some());
    kicks();
    post(1, false);
    assert_eq!(kicks(), 1, "nobody else drives the engine");
    assert_eq!(drain(&cq).len(), 1);
    for list in [false, true] {
        std::thread::scope(|scope| {
            let driven = scope.spawn(|| {
                shard.poll_pass();
                shard.adopt();
            });
            driven.join().unwrap();
        });
        assert_eq!(shard.visit(false), None);
        kicks();
        post(2, list);
        assert_eq!(kicks(), 0, "the other thread drives the engine");
        // This poll drives the engine as the other thread's would.
        assert_eq!(drain(&cq).len(), 1 + usize::from(list));
    }
}
