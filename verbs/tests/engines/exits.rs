//! Processes that end or fork in the middle of work, and whose devices have several engines.

use std::env;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::memory::pairs_with;
use super::*;

const SENDS: u64 = 40;
const QPS: usize = 5;
const LEN: usize = 3000;

/// The entry point of the child processes. Does nothing if it is run directly.
#[test]
#[ignore = "run by the other tests, as their child process"]
fn child() {
    let Ok(port) = env::var("URNIC_CHILD_PORT") else { return };
    let progress = match env::var("URNIC_CHILD_PROGRESS").as_deref() {
        Ok("inline") => Progress::Inline,
        Ok("dedicated") => Progress::Dedicated,
        _ => Progress::Adaptive,
    };
    let device = device(3, progress);
    let events = device.create_event_channel().unwrap();
    let pd = device.alloc_pd();
    let memory = pd.alloc_mr(QPS * SENDS as usize * LEN, Access::LOCAL_WRITE).unwrap();
    let ends = (0..QPS).map(|vector| {
        let cq = queue(&device, vector);
        let qp = pd.create_qp(&init(&cq)).unwrap();
        connect(&events, &qp, port.parse().unwrap());
        (qp, cq)
    });
    let ends: Vec<_> = ends.collect();
    let limit = Limit::new();
    for wr_id in 0..SENDS {
        for (i, (qp, _)) in ends.iter().enumerate() {
            let at = ((wr_id as usize * QPS + i) * LEN) as u64;
            memory.write_at(at, &bytes(wr_id as usize * QPS + i, LEN)).unwrap();
            let sges = [Sge::of(&memory, at, LEN as u32)];
            qp.post_send(&SendWr { wr_id, op: SendOp::Send, sges: &sges, flags: SendFlags::SIGNALED })
                .unwrap();
        }
    }
    for (_, cq) in &ends {
        for wr_id in 0..SENDS {
            assert_eq!(next(cq, &limit, "a Send").wr_id, wr_id);
        }
    }
    if env::var_os("URNIC_CHILD_FORKS").is_some() {
        // SAFETY: the child calls only the device's verbs, which refuse, drops a region, and calls `alarm` and `_exit`.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: no signal handler is set. A child that hangs is killed, which the parent sees.
                unsafe { libc::alarm(30) };
                let refused = matches!(ends[0].0.to_idle(), Err(Error::Forked))
                    && matches!(device.attributes(), Err(Error::Forked))
                    && matches!(pd.alloc_mr(LEN, Access::LOCAL_WRITE), Err(Error::Forked))
                    && ends.iter().all(|(_, cq)| cq.poll(&mut [Wc::default()]) == 0);
                drop(memory);
                // SAFETY: ends the process.
                unsafe { libc::_exit(if refused { 0 } else { 1 }) };
            }
            forked => {
                let mut status = 0;
                // SAFETY: the status is a local variable.
                assert_eq!(unsafe { libc::waitpid(forked, &raw mut status, 0) }, forked);
                assert_eq!(status, 0, "the forked child");
            }
        }
    }
    // The last messages may still be on their way. They must arrive although the process ends.
    std::process::exit(0);
}

fn all_arrive(progress: &str, forks: bool) {
    let there = device(2, Progress::Adaptive);
    let (events, pd) = (there.create_event_channel().unwrap(), there.alloc_pd());
    let listener = events.listen(0, 16).unwrap();
    let memory = pd.alloc_mr(QPS * SENDS as usize * LEN, Access::LOCAL_WRITE).unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "exits::child", "--ignored", "--nocapture"]);
    command.env("URNIC_CHILD_PORT", listener.port().to_string()).env("URNIC_CHILD_PROGRESS", progress);
    if forks {
        command.env("URNIC_CHILD_FORKS", "1");
    }
    let mut process = command.spawn().unwrap();
    let ends: Vec<_> = (0..QPS)
        .map(|i| {
            let cq = queue(&there, i);
            let qp = pd.create_qp(&init(&cq)).unwrap();
            for wr_id in 0..SENDS {
                let at = ((wr_id as usize * QPS + i) * LEN) as u64;
                qp.post_recv(&RecvWr { wr_id, sges: &[Sge::of(&memory, at, LEN as u32)] }).unwrap();
            }
            match event(&events, "the request") {
                CmEvent::ConnectRequest(request) => request.accept(&qp, &ConnParam::default()).unwrap(),
                other => panic!("{other:?}"),
            };
            assert!(matches!(event(&events, "the connection"), CmEvent::Established { .. }));
            (qp, cq)
        })
        .collect();
    let limit = Limit::new();
    for (i, (_, cq)) in ends.iter().enumerate() {
        for wr_id in 0..SENDS {
            assert_eq!(next(cq, &limit, "a message").wr_id, wr_id);
            let mut octets = vec![0; LEN];
            let number = wr_id as usize * QPS + i;
            memory.read_at((number * LEN) as u64, &mut octets).unwrap();
            assert!(octets == bytes(number, LEN), "message {wr_id} of queue pair {i}");
        }
    }
    for _ in &ends {
        match event(&events, "the end of the process") {
            CmEvent::Disconnected { reason, .. } => assert_eq!(reason, DisconnectReason::Peer),
            other => panic!("{other:?}"),
        }
    }
    let status = process.wait().unwrap();
    assert!(status.success(), "{progress}: {status}");
}

#[test]
fn what_completed_before_exit_arrives_from_all_engines() {
    for progress in ["inline", "adaptive", "dedicated"] {
        all_arrive(progress, false);
    }
}

#[test]
fn a_forked_child_leaves_all_engines_alone() {
    all_arrive("adaptive", true);
}

/// One thread drives all engines of both ends; no engine has a thread.
#[test]
fn one_thread_drives_all_engines() {
    let limit = Limit::new();
    let (there, here) = (device(4, Progress::Inline), device(3, Progress::Inline));
    let (far, near) = (there.alloc_pd(), here.alloc_pd());
    let pairs = pairs_with(&there, &here, &near, 6, |cq| far.create_qp(&init(cq)).unwrap());
    for round in 0..50u64 {
        for (qp, _) in &pairs.far {
            qp.post_recv(&RecvWr { wr_id: round, sges: &[] }).unwrap();
        }
        for (qp, _) in &pairs.near {
            let wr = SendWr { wr_id: round, op: SendOp::Send, sges: &[], flags: SendFlags::SIGNALED };
            qp.post_send(&wr).unwrap();
        }
        let mut wc = [Wc::default()];
        for (_, cq) in pairs.near.iter().chain(&pairs.far) {
            while cq.poll(&mut wc) == 0 {
                limit.check("a message");
                pairs.near.iter().for_each(|(qp, _)| assert_eq!(qp.state(), QpState::Rts));
            }
            assert_eq!((wc[0].status, wc[0].wr_id), (WcStatus::Success, round));
        }
    }
    drop(pairs);
    while [&there, &here].iter().any(|device| !device.connections().unwrap().is_empty()) {
        limit.check("the end");
        thread::yield_now();
    }
}

/// The only polling thread also drives an engine that completes to none of this thread's queues, because the engine
/// still has work.
#[test]
fn a_poller_looks_after_engines_that_have_no_part_in_its_queue() {
    let limit = Limit::new();
    let device = device(4, Progress::Inline);
    let cq = queue(&device, 3);
    let done = Arc::new(AtomicBool::new(false));
    let own = done.clone();
    // The first engine must run this task.
    device.after(Duration::from_millis(1), move || own.store(true, Ordering::SeqCst)).unwrap();
    while !done.load(Ordering::SeqCst) {
        limit.check("what was to be done later");
        assert_eq!(cq.poll(&mut [Wc::default()]), 0);
    }
}
