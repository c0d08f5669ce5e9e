//! Calls that a program makes while its own thread holds one of the device's engines, for example in a signal handler
//! that has interrupted a pass. At other engines everything works, and at the held engine no call waits. The tests make
//! these calls in a sink, which the engine calls within a pass. (A sink must not use the device, but a signal handler
//! might.)

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use super::memory::pairs;
use super::*;

/// Calls `deed` in the middle of a pass of each engine of `device`, and returns the results.
///
/// For each engine, a queue pair of this engine connects to a port without a listener. The engine reports the failure
/// in a pass.
fn within_passes<R: Send + 'static>(
    device: &Device,
    deed: impl Fn(usize) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let pd = device.alloc_pd();
    let (outcomes, outcome) = channel();
    let outcomes: Mutex<Sender<R>> = Mutex::new(outcomes);
    let engine = Arc::new(Mutex::new(0));
    let own = engine.clone();
    let sink = Box::new(move |event| {
        assert!(matches!(event, CmEvent::ConnectError { .. }), "{event:?}");
        outcomes.lock().unwrap().send(deed(*own.lock().unwrap())).unwrap();
    });
    let events = device.create_event_sink(sink).unwrap();
    let refused = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let limit = Limit::new();
    (0..device.attributes().unwrap().engines as usize)
        .map(|vector| {
            let cq = queue(device, vector);
            let qp = pd.create_qp(&init(&cq)).unwrap();
            *engine.lock().unwrap() = vector;
            events.connect(&qp, refused, &ConnParam::default()).unwrap();
            loop {
                limit.check("the refusal");
                let mut wc = [Wc::default()];
                assert_eq!(cq.poll(&mut wc), 0);
                if let Ok(outcome) = outcome.try_recv() {
                    return outcome;
                }
                thread::yield_now();
            }
        })
        .collect()
}

/// The program posts requests to all engines, including the engine whose pass is under way, and registers memory.
#[test]
fn posts_and_registrations_in_the_middle_of_a_pass_take_effect() {
    for progress in [Progress::Inline, Progress::Adaptive] {
        let (there, here) = (device(2, Progress::Adaptive), device(3, progress));
        let (far, near) = (there.alloc_pd(), here.alloc_pd());
        let pairs = Arc::new(pairs(&there, &here, &far, &near, 3, None));
        for (qp, _) in &pairs.far {
            (0..3).for_each(|wr_id| qp.post_recv(&RecvWr { wr_id, sges: &[] }).unwrap());
        }
        let own = pairs.clone();
        let kept = within_passes(&here, move |number| {
            for (qp, cq) in &own.near {
                let flags = SendFlags::INLINE;
                let wr = SendWr { wr_id: number as u64, op: SendOp::Send, sges: &[], flags };
                qp.post_send_inline(&wr, &[]).unwrap();
                // A poll within the pass takes completions if there are any.
                let mut wc = [Wc::default()];
                let taken = cq.poll(&mut wc);
                wc[..taken].iter().for_each(|wc| assert_eq!(wc.status, WcStatus::Success));
            }
            near.alloc_mr(4096, Access::LOCAL_WRITE).unwrap()
        });
        let limit = Limit::new();
        for (_, cq) in &pairs.far {
            for wr_id in 0..3 {
                let mut wc = [Wc::default()];
                while cq.poll(&mut wc) == 0 {
                    limit.check("a Send");
                    for (_, cq) in &pairs.near {
                        cq.poll(&mut [Wc::default(); 8]);
                    }
                }
                assert_eq!((wc[0].status, wc[0].wr_id), (WcStatus::Success, wr_id));
            }
        }
        assert_eq!(kept.len(), 3);
    }
}

/// A call that would have to wait for the pass under way is refused at once.
#[test]
fn what_would_wait_for_the_pass_that_goes_on_is_refused() {
    let here = device(3, Progress::Adaptive);
    let pd = here.alloc_pd();
    let regions = [0; 3].map(|_| pd.alloc_mr(4096, Access::LOCAL_WRITE).unwrap());
    let queues = [0, 1, 2].map(|vector| queue(&here, vector));
    let qps = queues.each_ref().map(|cq| pd.create_qp(&init(cq)).unwrap());
    let all = Arc::new((regions, queues, qps));
    let own = all.clone();
    let begun = Instant::now();
    let outcomes = within_passes(&here, move |number| {
        let (regions, queues, qps) = &*own;
        let revoked = regions[number].revoke();
        let resized: Vec<_> = queues.iter().map(|cq| cq.resize(64).is_ok()).collect();
        let idle: Vec<_> = qps.iter().map(|qp| qp.to_idle().is_ok()).collect();
        (number, revoked, resized, idle)
    });
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    for (number, revoked, resized, idle) in outcomes {
        assert!(matches!(revoked, Err(Error::Interrupted)), "{revoked:?}");
        let others = Vec::from_iter((0..3).map(|other| other != number));
        assert_eq!((resized, idle), (others.clone(), others));
    }
    // Afterwards everything works as usual.
    let (regions, queues, qps) = &*all;
    regions.iter().for_each(|region| region.revoke().unwrap());
    queues.iter().for_each(|cq| cq.resize(100).unwrap());
    qps.iter().for_each(|qp| qp.to_idle().unwrap());
}

/// A connection that cannot move to the queue pair's engine goes back to its own engine, and its peer is rejected.
/// The queue pair serves the next connection.
#[test]
fn a_request_is_rejected_if_its_connection_cannot_move() {
    let (there, here) = (device(3, Progress::Adaptive), device(2, Progress::Adaptive));
    let (events, own) = (there.create_event_channel().unwrap(), here.create_event_channel().unwrap());
    let listener = events.listen(0, 16).unwrap();
    let (pd, own_pd) = (there.alloc_pd(), here.alloc_pd());
    let own_cq = queue(&here, 0);
    let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listener.port());
    let ask = || {
        let qp = own_pd.create_qp(&init(&own_cq)).unwrap();
        own.connect(&qp, to, &ConnParam::default()).unwrap();
        match event(&events, "the request") {
            CmEvent::ConnectRequest(request) => (qp, request),
            other => panic!("{other:?}"),
        }
    };
    let qps: Arc<OnceLock<Vec<(Cq, Qp)>>> = Arc::default();
    let created = (0..3).map(|vector| {
        let cq = queue(&there, vector);
        let qp = pd.create_qp(&init(&cq)).unwrap();
        (cq, qp)
    });
    assert!(qps.set(created.collect()).is_ok());
    let (mut rejected, mut accepted) = (0, 0);
    for _ in 0..3 {
        let requests = [0; 3].map(|_| ask());
        let (theirs, requests): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
        let requests = Mutex::new(Vec::from_iter(requests.into_iter().map(Some)));
        let used = qps.clone();
        let outcomes = within_passes(&there, move |number| {
            let request = requests.lock().unwrap()[number].take().unwrap();
            let (_, qp) = &used.get().unwrap()[number];
            request.accept(qp, &ConnParam::default()).map(drop)
        });
        for outcome in outcomes {
            assert!(matches!(outcome, Err(Error::Interrupted)), "{outcome:?}");
        }
        for _ in &theirs {
            // Rejecting a request also waits for the engine. If the engine is still in its pass, the peer is told when
            // the listener ends.
            match own.wait(Duration::from_secs(2)) {
                Some(CmEvent::Rejected { .. }) => rejected += 1,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        drop(theirs);
        while own.poll().is_some() {}
        // The queue pairs are unchanged.
        for (_, qp) in qps.get().unwrap() {
            let (theirs, request) = ask();
            request.accept(qp, &ConnParam::default()).unwrap();
            assert!(matches!(event(&events, "the connection"), CmEvent::Established { .. }));
            assert!(matches!(event(&own, "the connection"), CmEvent::Established { .. }));
            accepted += 1;
            drop(theirs);
            assert!(matches!(event(&own, "the end"), CmEvent::Disconnected { .. }));
            assert!(matches!(event(&events, "the end there"), CmEvent::Disconnected { .. }));
            let limit = Limit::new();
            while qp.to_idle().is_err() {
                limit.check("the error state");
            }
        }
    }
    assert_eq!(accepted, 9);
    assert!(rejected > 0, "no request came to another engine than that of its queue pair");
}
