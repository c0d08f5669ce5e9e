//! Queue pairs, listeners, devices and descriptors that end in the middle of work.

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::memory::pairs;
use super::*;

/// Returns all descriptors of this process, each with its link in `/proc/self/fd`, which names the kind of
/// file.
fn descriptors() -> Vec<(RawFd, String)> {
    let listed = fs::read_dir("/proc/self/fd").unwrap().map_while(Result::ok);
    let named = |entry: fs::DirEntry| {
        let fd = entry.file_name().to_str()?.parse().ok()?;
        Some((fd, fs::read_link(entry.path()).ok()?.to_str()?.to_owned()))
    };
    listed.filter_map(named).collect()
}

/// Environment variable that is set in the process of a single test.
const ALONE: &str = "URNIC_ALONE";

/// Runs a test in its own process, because other tests open descriptors too. `test` is the path of the test in this
/// binary: its module and its name.
fn in_a_process_of_its_own(test: &str) {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// While the queue pairs of all engines work, the test puts those of one device into the error state or
/// destroys them. In every fourth round, two threads do both at once, at different devices. Each posted request
/// still completes once and in order, and no connection and no queue pair is left.
#[test]
fn queue_pairs_end_in_the_middle_of_their_work() {
    let limit = Limit::new();
    for round in 0..24u64 {
        let (there, here) = (device(3, Progress::Adaptive), device(2, Progress::Adaptive));
        let (far, near) = (there.alloc_pd(), here.alloc_pd());
        let source = near.alloc_mr(100_000, Access::LOCAL_WRITE).unwrap();
        let target = far.alloc_mr(100_000, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let mut pairs = pairs(&there, &here, &far, &near, 4, None);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let (stop, limit, source, target) = (&stop, &limit, &source, &target);
            for (qp, cq) in &pairs.near {
                scope.spawn(move || {
                    let op = SendOp::Write { addr: target.addr(), rkey: target.rkey() };
                    let sges = [Sge::of(source, 0, 100_000)];
                    let (mut wc, mut posted, mut order) = ([Wc::default(); 8], 0u64, 0);
                    while !stop.load(Ordering::Relaxed) || posted > order {
                        limit.check("all completions");
                        let going = !stop.load(Ordering::Relaxed) && posted < order + 8;
                        let wr = SendWr { wr_id: posted, op, sges: &sges, flags: SendFlags::SIGNALED };
                        if going && qp.post_send(&wr).is_ok() {
                            posted += 1;
                        }
                        let taken = cq.poll(&mut wc);
                        for wc in &wc[..taken] {
                            assert_eq!(wc.wr_id, order, "once and in order");
                            order += 1;
                        }
                        if stop.load(Ordering::Relaxed) && qp.state() == QpState::Rts {
                            qp.to_error();
                        }
                    }
                });
            }
            thread::sleep(Duration::from_millis(2 + round % 5));
            match round % 4 {
                0 => pairs.far.iter().for_each(|(qp, _)| qp.to_error()),
                1 => pairs.far.clear(),
                2 => pairs.near.iter().for_each(|(qp, _)| qp.to_error()),
                _ => {
                    scope.spawn(|| pairs.near.iter().for_each(|(qp, _)| qp.to_error()));
                    pairs.far.clear();
                }
            }
            thread::sleep(Duration::from_millis(2));
            stop.store(true, Ordering::Relaxed);
        });
        drop(pairs);
        drop((source, target, far, near));
        for device in [&there, &here] {
            while !device.connections().unwrap().is_empty() {
                limit.check("the end of all connections");
                thread::yield_now();
            }
            let figures = device.attributes().unwrap().per_engine;
            assert!(
                figures.iter().all(|engine| engine.queue_pairs == 0 && engine.connections == 0),
                "{figures:?}"
            );
        }
    }
}

/// Listeners and channels are dropped while connection requests arrive and move to other engines. Each client gets an
/// event that ends its attempt.
#[test]
fn listeners_end_while_requests_come_in() {
    let (there, here) = (device(3, Progress::Adaptive), device(2, Progress::Adaptive));
    let (pd, own_pd) = (there.alloc_pd(), here.alloc_pd());
    let own = here.create_event_channel().unwrap();
    let own_cq = queue(&here, 1);
    let mut established = 0;
    for round in 0..40 {
        let events = there.create_event_channel().unwrap();
        let listener = events.listen(0, 64).unwrap();
        let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listener.port());
        let clients: Vec<_> = (0..6).map(|_| own_pd.create_qp(&init(&own_cq)).unwrap()).collect();
        let queues: Vec<_> = (0..6).map(|vector| queue(&there, vector)).collect();
        let servers: Vec<_> = queues.iter().map(|cq| pd.create_qp(&init(cq)).unwrap()).collect();
        thread::scope(|scope| {
            let accepts = scope.spawn(|| {
                let mut next = servers.iter();
                for _ in 0..round % 7 {
                    match events.wait(Duration::from_secs(1)) {
                        Some(CmEvent::ConnectRequest(request)) => {
                            // The listener may have been dropped.
                            let _ = request.accept(next.next().unwrap(), &ConnParam::default());
                        }
                        _ => break,
                    }
                }
            });
            for qp in &clients {
                own.connect(qp, to, &ConnParam::default()).unwrap();
            }
            thread::sleep(Duration::from_micros(round * 37 % 900));
            drop(listener);
            accepts.join().unwrap();
        });
        drop(events);
        for _ in &clients {
            match event(&own, "an answer") {
                CmEvent::Established { .. } => established += 1,
                CmEvent::ConnectError { .. } | CmEvent::Rejected { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        drop((clients, servers));
        // Takes the events that report the ends of established connections.
        while own.poll().is_some() {}
    }
    assert!(established > 10, "{established}");
    let limit = Limit::new();
    for device in [&there, &here] {
        while !device.connections().unwrap().is_empty() {
            limit.check("the end of all connections");
            thread::yield_now();
        }
    }
}

/// A dropped device leaves no descriptor and no thread.
#[test]
fn a_device_of_several_engines_leaves_nothing_behind() {
    if std::env::var_os(ALONE).is_none() {
        return in_a_process_of_its_own("endings::a_device_of_several_engines_leaves_nothing_behind");
    }
    let limit = Limit::new();
    let tasks = || fs::read_dir("/proc/self/task").unwrap().count();
    let round = || {
        let (there, here) = (device(3, Progress::Adaptive), device(4, Progress::Dedicated));
        let (far, near) = (there.alloc_pd(), here.alloc_pd());
        drop(pairs(&there, &here, &far, &near, 4, None));
    };
    round();
    let before = (descriptors().len(), tasks());
    for _ in 0..10 {
        round();
    }
    while (descriptors().len(), tasks()) != before {
        limit.check("the end of descriptors and threads");
        thread::yield_now();
    }
}

/// If an engine's epoll set refuses a socket that must move to this engine, the peer is told, and nothing is left of
/// the connection.
#[test]
fn a_socket_that_the_other_engine_cannot_watch_is_closed() {
    if std::env::var_os(ALONE).is_none() {
        return in_a_process_of_its_own("endings::a_socket_that_the_other_engine_cannot_watch_is_closed");
    }
    let there = device(2, Progress::Inline);
    let sets: Vec<RawFd> =
        descriptors().into_iter().filter(|(_, is)| is.contains("eventpoll")).map(|(fd, _)| fd).collect();
    assert_eq!(sets.len(), 2);
    let here = device(1, Progress::Adaptive);
    let (events, own) = (there.create_event_channel().unwrap(), here.create_event_channel().unwrap());
    let listener = events.listen(0, 16).unwrap();
    let (pd, own_pd) = (there.alloc_pd(), here.alloc_pd());
    let queues = [0, 1].map(|vector| queue(&there, vector));
    let own_cq = queue(&here, 0);
    let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listener.port());
    let mut refused = 0;
    for round in 0..6 {
        let own_qp = own_pd.create_qp(&init(&own_cq)).unwrap();
        own.connect(&own_qp, to, &ConnParam::default()).unwrap();
        let CmEvent::ConnectRequest(request) = event(&events, "the request") else { panic!() };
        let peer = request.peer();
        let moved = descriptors().into_iter().map(|(fd, _)| fd).find(|fd| {
            // SAFETY: the descriptor was just listed as open, and is not closed meanwhile.
            let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
            let there = socket2::SockRef::from(&fd).peer_addr().ok();
            there.and_then(|there| there.as_socket()).is_some_and(|there| there.port() == peer.port())
        });
        let moved = moved.expect("the accepted socket");
        // Adds the socket to each set that does not watch it yet, so that the set refuses the socket when the device
        // adds it.
        for set in &sets {
            let mut event = libc::epoll_event { events: 0, u64: u64::MAX };
            // SAFETY: the descriptors are open, and the event is copied.
            unsafe { libc::epoll_ctl(*set, libc::EPOLL_CTL_ADD, moved.as_raw_fd(), &raw mut event) };
        }
        let qp = pd.create_qp(&init(&queues[round % 2])).unwrap();
        match request.accept(&qp, &ConnParam::default()) {
            Ok(_) => {
                assert!(matches!(event(&events, "the connection"), CmEvent::Established { .. }));
                assert!(matches!(event(&own, "the connection"), CmEvent::Established { .. }));
                drop(own_qp);
                assert!(matches!(event(&events, "the end there"), CmEvent::Disconnected { .. }));
                assert!(matches!(event(&own, "the end"), CmEvent::Disconnected { .. }));
            }
            Err(Error::Os { .. }) => {
                refused += 1;
                let told = event(&own, "the end");
                let reset = matches!(told, CmEvent::ConnectError { reason: ConnectFailure::Reset, .. });
                assert!(reset, "{told:?}");
                assert_eq!(qp.state(), QpState::Idle);
            }
            Err(other) => panic!("{other:?}"),
        }
        drop(qp);
        let limit = Limit::new();
        while !there.connections().unwrap().is_empty() {
            limit.check("the end of the connection");
        }
        let figures = there.attributes().unwrap().per_engine;
        assert!(
            figures.iter().all(|engine| engine.connections == 0 && engine.queue_pairs == 0),
            "{figures:?}"
        );
    }
    assert!(refused > 0, "no connection had to move");
}
