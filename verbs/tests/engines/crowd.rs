//! Crowds of queue pairs, and connections that come and go, between devices of several engines.

use std::thread;

use super::parties::{serve, visit};
use super::*;

/// Connects queue pairs of every engine at one end with queue pairs of every engine at the other. `servers` and
/// `clients` are the numbers of engines of the two ends.
fn all_to_all(servers: usize, clients: usize, progress: Progress) {
    let limit = Limit::new();
    let (there, here) = (device(servers, progress), device(clients, progress));
    let events = there.create_event_channel().unwrap();
    let listener = events.listen(0, 64).unwrap();
    let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listener.port());
    serve(&there, &events, &limit, || visit(&here, to, &limit));
}

#[test]
fn all_queue_pairs_of_two_engines_reach_one_region_one_queue_and_one_shared_queue() {
    all_to_all(2, 2, Progress::Adaptive);
}

#[test]
fn ends_may_have_other_numbers_of_engines() {
    for (servers, clients) in [(1, 3), (4, 1), (3, 4)] {
        all_to_all(servers, clients, Progress::Adaptive);
    }
}

#[test]
fn engines_are_driven_by_pollers_alone() {
    all_to_all(2, 3, Progress::Inline);
}

#[test]
fn engines_are_driven_by_their_own_threads_alone() {
    all_to_all(2, 2, Progress::Dedicated);
}

/// Each connection uses new queue pairs, and the engines change. At the end, no connection and no queue pair is left.
#[test]
fn connections_come_and_go() {
    let (there, here) = (device(3, Progress::Adaptive), device(2, Progress::Adaptive));
    let (events, own) = (there.create_event_channel().unwrap(), here.create_event_channel().unwrap());
    let listener = events.listen(0, 16).unwrap();
    let (far, near) = (there.alloc_pd(), here.alloc_pd());
    let queues = [0, 1, 2].map(|vector| (queue(&there, vector), queue(&here, vector)));
    for round in 0..90 {
        let (cq, own_cq) = &queues[round % 3];
        let (qp, own_qp) = (far.create_qp(&init(cq)).unwrap(), near.create_qp(&init(own_cq)).unwrap());
        let accepts = thread::scope(|scope| {
            let accepts = scope.spawn(|| match event(&events, "the request") {
                CmEvent::ConnectRequest(request) if round % 7 == 6 => {
                    request.reject(b"no").unwrap();
                    false
                }
                CmEvent::ConnectRequest(request) => {
                    request.accept(&qp, &ConnParam::default()).unwrap();
                    true
                }
                other => panic!("{other:?}"),
            });
            let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listener.port());
            own.connect(&own_qp, to, &ConnParam::default()).unwrap();
            match event(&own, "the answer") {
                CmEvent::Established { .. } => assert_ne!(round % 7, 6),
                CmEvent::Rejected { private_data, .. } => assert_eq!(private_data, b"no"),
                other => panic!("{other:?}"),
            }
            accepts.join().unwrap()
        });
        if accepts {
            assert!(matches!(event(&events, "the connection"), CmEvent::Established { .. }));
            drop(own_qp);
            assert!(matches!(event(&own, "the end"), CmEvent::Disconnected { .. }));
            assert!(matches!(event(&events, "the end there"), CmEvent::Disconnected { .. }));
        }
    }
    let limit = Limit::new();
    for device in [&there, &here] {
        while !device.connections().unwrap().is_empty() {
            limit.check("the end of all connections");
            thread::yield_now();
        }
    }
}
