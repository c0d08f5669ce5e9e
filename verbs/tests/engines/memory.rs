//! Memory that one engine accesses while another thread or engine takes it back.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::*;

/// Octets of a region, and of each Write to it.
const LEN: usize = 64 << 10;

/// A memory mapping that a test can unmap.
struct Pages(*mut u8);

impl Pages {
    fn new() -> Self {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at any address.
        let at = unsafe { libc::mmap(ptr::null_mut(), LEN, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at.cast())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no longer used, as the tests check.
        unsafe { libc::munmap(self.0.cast(), LEN) };
    }
}

/// Connected queue pairs of two devices; every engine has some.
pub(super) struct Pairs {
    pub(super) _events: [EventChannel; 2],
    pub(super) far: Vec<(Qp, Cq)>,
    pub(super) near: Vec<(Qp, Cq)>,
}

/// Connects `count` pairs. The far queue pairs use `receives` as completion queue of their receives; `None`: each uses
/// its send completion queue.
pub(super) fn pairs(
    there: &Device,
    here: &Device,
    far: &Pd,
    near: &Pd,
    count: usize,
    receives: Option<&Cq>,
) -> Pairs {
    pairs_with(there, here, near, count, |cq| {
        far.create_qp(&QpInit { recv_cq: receives.unwrap_or(cq), ..init(cq) }).unwrap()
    })
}

/// Connects `count` pairs. Calls `create` to make each far queue pair.
pub(super) fn pairs_with(
    there: &Device,
    here: &Device,
    near: &Pd,
    count: usize,
    create: impl Fn(&Cq) -> Qp,
) -> Pairs {
    let (events, own) = (there.create_event_channel().unwrap(), here.create_event_channel().unwrap());
    let listener = events.listen(0, 16).unwrap();
    let mut pairs = Pairs { _events: [events, own], far: Vec::new(), near: Vec::new() };
    for vector in 0..count {
        let (cq, own_cq) = (queue(there, vector), queue(here, vector));
        let (qp, own_qp) = (create(&cq), near.create_qp(&init(&own_cq)).unwrap());
        let [events, own] = &pairs._events;
        thread::scope(|scope| {
            scope.spawn(|| {
                match event(events, "the request") {
                    CmEvent::ConnectRequest(request) => request.accept(&qp, &ConnParam::default()).unwrap(),
                    other => panic!("{other:?}"),
                };
                assert!(matches!(event(events, "the connection"), CmEvent::Established { .. }));
            });
            connect(own, &own_qp, listener.port());
        });
        pairs.far.push((qp, cq));
        pairs.near.push((own_qp, own_cq));
    }
    pairs
}

/// While peers write through all engines, the test deregisters the memory and unmaps it at once. A later write would
/// end the process.
#[test]
fn what_was_deregistered_is_not_touched_by_any_engine() {
    let limit = Limit::new();
    let (there, here) = (device(3, Progress::Adaptive), device(2, Progress::Adaptive));
    let (far, near) = (there.alloc_pd(), here.alloc_pd());
    let source = near.alloc_mr(LEN, Access::LOCAL_WRITE).unwrap();
    let mut written = 0;
    for round in 0..60 {
        let pairs = pairs(&there, &here, &far, &near, 3, None);
        let pages = Pages::new();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // SAFETY: mapped until after its deregistration.
        let region = unsafe { far.reg_mr(pages.0, LEN, access) }.unwrap();
        let (addr, rkey) = (region.addr(), region.rkey());
        let completed = AtomicUsize::new(0);
        thread::scope(|scope| {
            for (qp, cq) in &pairs.near {
                let (completed, source, limit) = (&completed, &source, &limit);
                scope.spawn(move || {
                    let wr = SendWr {
                        wr_id: 1,
                        op: SendOp::Write { addr, rkey },
                        sges: &[Sge::of(source, 0, LEN as u32)],
                        flags: SendFlags::SIGNALED,
                    };
                    let (mut posted, mut wc) = (0, [Wc::default(); 8]);
                    // Goes on until the peer refuses a request and all requests have completed.
                    while qp.state() == QpState::Rts || posted > 0 {
                        limit.check("the refusal");
                        if posted < 8 && qp.state() == QpState::Rts && qp.post_send(&wr).is_ok() {
                            posted += 1;
                        }
                        let taken = cq.poll(&mut wc);
                        posted -= taken;
                        let good = wc[..taken].iter().filter(|wc| wc.status == WcStatus::Success).count();
                        completed.fetch_add(good, Ordering::Relaxed);
                    }
                });
            }
            while completed.load(Ordering::Relaxed) < 20 + round {
                limit.check("Writes");
                thread::yield_now();
            }
            drop(region);
            drop(pages);
        });
        written += completed.load(Ordering::Relaxed);
    }
    assert!(written > 60 * 20);
}

/// The program invalidates a region by a work request of one engine, while peers write to the region through
/// another engine. After the completion of the invalidation, no engine writes to the region, so that the
/// program can use the memory for something else.
#[test]
fn what_a_request_has_invalidated_is_not_written_by_another_engine() {
    let limit = Limit::new();
    let (there, here) = (device(2, Progress::Adaptive), device(2, Progress::Adaptive));
    let (far, near) = (there.alloc_pd(), here.alloc_pd());
    let source = near.alloc_mr(LEN, Access::LOCAL_WRITE).unwrap();
    source.write_at(0, &[0xee; LEN]).unwrap();
    for _ in 0..40 {
        let pairs = pairs(&there, &here, &far, &near, 2, None);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = far.alloc_mr(LEN, access).unwrap();
        let (addr, rkey) = (region.addr(), region.rkey());
        let stop = AtomicBool::new(false);
        let completed = AtomicUsize::new(0);
        thread::scope(|scope| {
            let (qp, cq) = &pairs.near[1];
            let writer = scope.spawn(|| {
                let wr = SendWr {
                    wr_id: 1,
                    op: SendOp::Write { addr, rkey },
                    sges: &[Sge::of(&source, 0, LEN as u32)],
                    flags: SendFlags::SIGNALED,
                };
                let (mut wc, mut posted) = ([Wc::default(); 8], 0);
                while !stop.load(Ordering::Relaxed) && qp.state() == QpState::Rts {
                    limit.check("the invalidation");
                    if posted < 8 && qp.post_send(&wr).is_ok() {
                        posted += 1;
                    }
                    let taken = cq.poll(&mut wc);
                    posted -= taken;
                    completed.fetch_add(taken, Ordering::Relaxed);
                }
            });
            while completed.load(Ordering::Relaxed) < 10 {
                limit.check("Writes");
                thread::yield_now();
            }
            let (qp, cq) = &pairs.far[0];
            let op = SendOp::LocalInv(rkey);
            qp.post_send(&SendWr { wr_id: 5, op, sges: &[], flags: SendFlags::SIGNALED }).unwrap();
            let wc = next(cq, &limit, "the invalidation");
            assert_eq!(wc.wr_id, 5);
            // From now on, peers must not change the memory.
            region.write_at(0, &[0x11; LEN]).unwrap();
            for _ in 0..200 {
                let mut octets = vec![0; LEN];
                region.read_at(0, &mut octets).unwrap();
                assert!(octets.iter().all(|octet| *octet == 0x11), "written after its invalidation");
            }
            stop.store(true, Ordering::Relaxed);
            writer.join().unwrap();
        });
    }
}
