//! Endless registrations beside traffic, and requests of several engines that concern the same STags.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::memory::pairs;
use super::*;

const LEN: usize = 8 << 10;
const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);

/// Posts a request, and waits for its success.
fn done(qp: &Qp, cq: &Cq, op: SendOp, limit: &Limit) {
    qp.post_send(&SendWr { wr_id: 7, op, sges: &[], flags: SendFlags::SIGNALED }).unwrap();
    assert_eq!(next(cq, limit, "a request about memory").wr_id, 7);
}

/// Threads register, change and give up memory and windows as fast as they can, while peers write to and read from
/// other regions through all engines.
#[test]
fn registrations_and_traffic_do_not_hinder_each_other() {
    let limit = Limit::new();
    let (there, here) = (device(3, Progress::Adaptive), device(2, Progress::Adaptive));
    let (far, near) = (there.alloc_pd(), here.alloc_pd());
    let pairs = pairs(&there, &here, &far, &near, 3, None);
    let (stop, registered, rounds) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let storms: Vec<_> = [&there, &here]
            .into_iter()
            .map(|device| {
                let (stop, registered) = (&stop, &registered);
                scope.spawn(move || {
                    let pds = [device.alloc_pd(), device.alloc_pd()];
                    let mut kept = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let n = registered.fetch_add(1, Ordering::Relaxed);
                        let mut mr = pds[n % 2].alloc_mr(4096, Access::LOCAL_WRITE | REMOTE).unwrap();
                        let kind = if n.is_multiple_of(3) { MwKind::One } else { MwKind::Two };
                        let mw = pds[n % 2].alloc_mw(kind).unwrap();
                        match n % 4 {
                            0 => mr.revoke().unwrap(),
                            1 => {
                                let change = Rereg {
                                    pd: Some(&pds[0]),
                                    access: Some(REMOTE | Access::LOCAL_WRITE),
                                    ..Rereg::default()
                                };
                                // SAFETY: the memory is the device's own, and there are no references to it.
                                unsafe { mr.rereg(&change) }.unwrap();
                            }
                            _ => {}
                        }
                        kept.push((mr, mw));
                        if kept.len() > 40 {
                            kept.swap_remove(n % 40);
                        }
                    }
                })
            })
            .collect();
        let traffic: Vec<_> = pairs
            .near
            .iter()
            .enumerate()
            .map(|(i, (qp, cq))| {
                let (near, far, limit, rounds) = (&near, &far, &limit, &rounds);
                scope.spawn(move || {
                    let begun = Instant::now();
                    let mut round = 0;
                    while begun.elapsed() < Duration::from_secs(3) || round < 20 {
                        let source = near.alloc_mr(2 * LEN, Access::LOCAL_WRITE).unwrap();
                        let target = far.alloc_mr(LEN, Access::LOCAL_WRITE | REMOTE).unwrap();
                        let octets = bytes(i * 1000 + round, LEN);
                        source.write_at(0, &octets).unwrap();
                        let (addr, rkey) = (target.addr(), target.rkey());
                        for (at, op) in
                            [(0, SendOp::Write { addr, rkey }), (LEN, SendOp::Read { addr, rkey })]
                        {
                            let sges = [Sge::of(&source, at as u64, LEN as u32)];
                            let wr = SendWr { wr_id: at as u64, op, sges: &sges, flags: SendFlags::SIGNALED };
                            qp.post_send(&wr).unwrap();
                        }
                        for at in [0, LEN] {
                            assert_eq!(next(cq, limit, "the traffic").wr_id, at as u64);
                        }
                        let mut back = vec![0; LEN];
                        source.read_at(LEN as u64, &mut back).unwrap();
                        assert!(back == octets, "round {round} of {i}");
                        round += 1;
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        traffic.into_iter().for_each(|thread| thread.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        storms.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let (registered, rounds) = (registered.into_inner(), rounds.into_inner());
    println!("{registered} registrations beside {rounds} rounds of traffic");
    assert!(registered > 500 && rounds >= 60);
}

/// In each round, queue pairs of all engines bind the same windows and invalidate the same region at once. In
/// every third round, a Send of one peer invalidates the region instead. Between rounds, one queue pair
/// registers the region anew, and peers read it.
#[test]
fn engines_change_the_same_stags_at_once() {
    const ENGINES: usize = 3;
    let limit = Limit::new();
    let (there, here) = (device(ENGINES, Progress::Adaptive), device(2, Progress::Adaptive));
    let (far, near) = (there.alloc_pd(), here.alloc_pd());
    let pairs = pairs(&there, &here, &far, &near, ENGINES, None);
    let access = Access::LOCAL_WRITE | REMOTE | Access::REMOTE_INVALIDATE;
    let (region, below) =
        (far.alloc_mr(LEN, access).unwrap(), far.alloc_mr(LEN, Access::LOCAL_WRITE).unwrap());
    let windows = [(); 2].map(|()| far.alloc_mw(MwKind::One).unwrap());
    let source = near.alloc_mr(LEN, Access::LOCAL_WRITE).unwrap();
    let barrier = Barrier::new(ENGINES);
    let key = |round: usize| region.rkey() & !0xff | (region.rkey() as usize + round) as u32 & 0xff;
    thread::scope(|scope| {
        for (i, (qp, cq)) in pairs.far.iter().enumerate() {
            let (barrier, limit, windows, below, source, region) =
                (&barrier, &limit, &windows, &below, &source, &region);
            let (near_qp, near_cq) = &pairs.near[i];
            scope.spawn(move || {
                for round in 0..150 {
                    // From now on, the region is valid under the key of this round.
                    barrier.wait();
                    let read = SendOp::Read { addr: region.as_ptr() as u64, rkey: key(round) };
                    let sges = [Sge::of(source, 0, 64)];
                    near_qp
                        .post_send(&SendWr { wr_id: 1, op: read, sges: &sges, flags: SendFlags::SIGNALED })
                        .unwrap();
                    next(near_cq, limit, "a Read");
                    barrier.wait();
                    for window in windows.iter() {
                        let addr = below.as_ptr() as u64 + (64 * i) as u64;
                        let (rkey, lkey) = (window.fresh_rkey(), below.lkey());
                        let bind = SendOp::BindMw { rkey, lkey, addr, len: 64, access: REMOTE };
                        qp.post_send(&SendWr { wr_id: 5, op: bind, sges: &[], flags: SendFlags::SIGNALED })
                            .unwrap();
                    }
                    if round % 3 > 0 {
                        // All queue pairs invalidate the region at once. Invalidating an invalid region is no error.
                        done_behind(qp, cq, SendOp::LocalInv(key(round)), windows.len(), limit);
                    } else {
                        for _ in windows.iter() {
                            assert_eq!(next(cq, limit, "a binding").wr_id, 5);
                        }
                        if i == 0 {
                            qp.post_recv(&RecvWr { wr_id: 9, sges: &[] }).unwrap();
                            let op = SendOp::SendInv(key(round));
                            near_qp
                                .post_send(&SendWr { wr_id: 2, op, sges: &[], flags: SendFlags::SIGNALED })
                                .unwrap();
                            next(near_cq, limit, "the Send");
                            let wc = next(cq, limit, "its arrival");
                            assert_eq!((wc.wr_id, wc.invalidated_rkey), (9, key(round)));
                        }
                    }
                    barrier.wait();
                    if i == round % ENGINES {
                        let (addr, key) = (region.as_ptr() as u64, key(round + 1));
                        done(qp, cq, SendOp::RegMr { key, addr, len: LEN as u64, access }, limit);
                    }
                }
            });
        }
    });
    for engine in there.attributes().unwrap().per_engine {
        assert!(engine.queue_pairs > 0, "engine {} has no part in this", engine.number);
    }
}

/// Posts a request behind `bindings` bindings, and waits for the success of all of them.
fn done_behind(qp: &Qp, cq: &Cq, op: SendOp, bindings: usize, limit: &Limit) {
    qp.post_send(&SendWr { wr_id: 7, op, sges: &[], flags: SendFlags::SIGNALED }).unwrap();
    for _ in 0..bindings {
        assert_eq!(next(cq, limit, "a binding").wr_id, 5);
    }
    assert_eq!(next(cq, limit, "an invalidation").wr_id, 7);
}
