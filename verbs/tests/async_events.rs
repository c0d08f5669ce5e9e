//! Which events devices report as asynchronous events, and which they do not.

mod common;

use common::*;
use std::time::Duration;
use urnic::simulation::Simulation;
use urnic::*;

/// Returns the events of a device after some time.
fn events(simulation: &mut Simulation, node: usize) -> Vec<AsyncEvent> {
    simulation.wait(Duration::from_secs(20));
    let events = simulation.device(node).async_events();
    std::iter::from_fn(|| events.poll()).collect()
}

fn codes(fault: &QpFault) -> (bool, u8, u8, u8) {
    let t = fault.terminate.unwrap();
    (t.sent, t.layer, t.etype, t.code)
}

/// The use of a connection raises no event, at either side. An event would do harm: SPDK's targets treat
/// `IBV_EVENT_COMM_EST` as the end of the queue pair.
#[test]
fn a_message_is_no_event() {
    let (mut simulation, server, client) = connected(&options());
    works(&mut simulation, &server, &client);
    assert_eq!(events(&mut simulation, 0), []);
    assert_eq!(events(&mut simulation, 1), []);
}

#[test]
fn an_access_that_is_not_allowed_is_told_at_the_target() {
    for write in [true, false] {
        let (mut simulation, server, client) = connected(&options());
        let mr = client.pd.alloc_mr(8, Access::LOCAL_WRITE).unwrap();
        let (addr, rkey) = (0x1000, 0x1234_5678);
        let op = if write { SendOp::Write { addr, rkey } } else { SendOp::Read { addr, rkey } };
        client.post(1, op, &[Sge::of(&mr, 0, 8)]);
        let told = events(&mut simulation, 0);
        let [.., AsyncEvent::QpAccessError(fault)] = &told[..] else { panic!("{told:?}") };
        assert_eq!((fault.qpn, fault.cause), (server.qp.qpn(), FaultCause::Peer));
        assert_eq!(codes(fault), if write { (true, 1, 1, 0) } else { (true, 0, 1, 0) });
        assert!(fault.detail.contains("0x12345678"), "{fault}");
        assert_eq!(fault.terminate, server.qp.terminate());
        // The client learns of the Terminate from the failed completion of its Read. A Write is already complete, so
        // that only an event can tell the client.
        let told = events(&mut simulation, 1);
        if write {
            let [AsyncEvent::QpFatal(fault)] = &told[..] else { panic!("{told:?}") };
            assert_eq!((fault.qpn, fault.cause), (client.qp.qpn(), FaultCause::Terminated));
            assert_eq!(codes(fault), (false, 1, 1, 0));
        } else {
            assert_eq!(told, []);
            assert_eq!(client.completions()[0].status, WcStatus::RemoteAccess);
        }
    }
}

#[test]
fn a_send_without_a_receive_is_a_request_error() {
    let (mut simulation, server, client) = connected(&options());
    client.post(1, SendOp::Send, &[]);
    let told = events(&mut simulation, 0);
    let [.., AsyncEvent::QpRequestError(fault)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((fault.qpn, fault.cause), (server.qp.qpn(), FaultCause::Peer));
    assert_eq!(codes(fault), (true, 1, 2, 2));
}

/// The device raises no event for an error that a completion reports.
#[test]
fn an_error_with_a_completion_is_no_event() {
    let (mut simulation, server, client) = connected(&options());
    // The message is too long for the receive, whose completion reports it.
    let source = client.pd.alloc_mr(100, Access::empty()).unwrap();
    let sink = server.pd.alloc_mr(10, Access::LOCAL_WRITE).unwrap();
    server.post_recv(1, &[Sge::of(&sink, 0, 10)]);
    client.post(2, SendOp::Send, &[Sge::of(&source, 0, 100)]);
    let told = events(&mut simulation, 0);
    assert_eq!(told, []);
    assert_eq!(server.completions()[0].status, WcStatus::LocalLength);

    // The source of this Send is not registered.
    let (mut simulation, _server, client) = connected(&options());
    client.post(3, SendOp::Send, &[Sge { addr: 1, len: 1, lkey: 77 }]);
    assert_eq!(events(&mut simulation, 1), []);
    assert_eq!(client.completions()[0].status, WcStatus::LocalProtection);
}

/// Actions that the application requests raise no event. The end of a connection raises no event either.
#[test]
fn wishes_and_ends_are_no_events() {
    for abort in [true, false] {
        let (mut simulation, server, client) = connected(&options());
        server.post_recv(1, &[]);
        if abort {
            client.qp.to_error();
        } else {
            client.disconnect();
        }
        assert_eq!(events(&mut simulation, 0), []);
        assert_eq!(events(&mut simulation, 1), []);
        assert_eq!(server.completions()[0].status, WcStatus::Flushed);
    }
}

/// A completion queue that overflows raises an event, and so does the queue pair that lost a completion. The
/// peer of this queue pair gets a Terminate.
#[test]
fn a_full_completion_queue_ends_the_queue_pair() {
    for receiving in [true, false] {
        let (mut simulation, mut server, mut client) = {
            let simulation = Simulation::new(&options()).unwrap();
            let (server, client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
            (simulation, server, client)
        };
        let (small, node) = if receiving { (&mut server, 0) } else { (&mut client, 1) };
        small.cq = simulation.device(node).create_cq(4, None).unwrap();
        small.qp = create_qp(&small.pd, &small.cq);
        let (cqn, qpn) = (small.cq.cqn(), small.qp.qpn());
        connect(&mut simulation, &mut server, &mut client);
        for i in 0..20 {
            server.post_recv(i, &[]);
            client.post(i, SendOp::Send, &[]);
        }
        let told = events(&mut simulation, node);
        let [AsyncEvent::CqError { cqn: of }, AsyncEvent::QpFatal(fault)] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!((*of, fault.qpn, fault.cause), (cqn, qpn, FaultCause::CqOverflow));
        assert_eq!(codes(fault), (true, 0, 2, 7));
        let (full, other) = if receiving { (&server, &client) } else { (&client, &server) };
        assert!(full.cq.overflowed() && !other.cq.overflowed());
        let kept: Vec<u64> = full.completions().iter().map(|wc| wc.wr_id).collect();
        assert_eq!(kept, [0, 1, 2, 3]);
        assert!(other.qp.terminate().is_some_and(|t| !t.sent && (t.layer, t.etype, t.code) == (0, 2, 7)));
    }
}
