//! The states of queue pairs, and the transitions between them.

mod common;

use common::*;
use std::time::Duration;
use urnic::simulation::Simulation;
use urnic::*;

fn state_of(result: Result<()>) -> QpState {
    match result {
        Err(Error::QpState { state, .. }) => state,
        other => panic!("{other:?}"),
    }
}

/// At both ends, queue pairs go from the error state to idle, and through their whole life cycle again.
#[test]
fn queue_pairs_can_be_used_again() {
    let (mut simulation, mut server, mut client) = connected(&options());
    for round in 0..4 {
        works(&mut simulation, &server, &client);
        for end in [&server, &client] {
            assert_eq!(state_of(end.qp.to_idle()), QpState::Rts);
            end.post_recv(1, &[]);
            end.post_recv(2, &[]);
        }
        match round {
            0 => client.disconnect(),
            1 => server.disconnect(),
            2 => client.qp.to_error(),
            _ => server.qp.to_error(),
        }
        for end in [&server, &client] {
            end.end(&mut simulation);
            assert_eq!(end.qp.state(), QpState::Error);
            // This receive is posted late, and is flushed with the others.
            end.post_recv(3, &[]);
            end.qp.to_idle().unwrap();
            let ids: Vec<_> = end.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
            assert_eq!(ids, [1, 2, 3].map(|i| (i, WcStatus::Flushed)), "round {round}");
            assert_eq!(end.qp.state(), QpState::Idle);
            end.qp.to_idle().unwrap();
        }
        connect(&mut simulation, &mut server, &mut client);
    }
    works(&mut simulation, &server, &client);
    // The remains of the old connections did not affect the new one.
    simulation.wait(Duration::from_secs(30));
    works(&mut simulation, &server, &client);
}

/// A queue pair reports an error in the terminate state. It goes to the error state when the connection is gone, and to
/// idle when the program asks for it. In idle, it has forgotten the Terminate.
#[test]
fn an_error_leads_through_terminate_to_error_to_idle() {
    let (mut simulation, mut server, mut client) = connected(&options());
    works(&mut simulation, &server, &client);
    client.post(1, SendOp::Write { addr: 0, rkey: 99 }, &[]);
    let source = client.pd.alloc_mr(8, Access::empty()).unwrap();
    client.post(2, SendOp::Write { addr: 0, rkey: 99 }, &[Sge::of(&source, 0, 8)]);
    assert_eq!(server.end(&mut simulation), DisconnectReason::TerminateSent);
    assert_eq!(server.qp.state(), QpState::Terminate);
    assert_eq!(state_of(server.qp.to_idle()), QpState::Terminate);
    // Work is already flushed in this state.
    server.post_recv(3, &[]);
    server.post(4, SendOp::Send, &[]);
    let mut flushed: Vec<_> = server.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    flushed.sort_by_key(|f| f.0);
    assert_eq!(flushed, [3, 4].map(|i| (i, WcStatus::Flushed)));
    assert_eq!(client.end(&mut simulation), DisconnectReason::TerminateReceived);
    simulation.wait(Duration::from_secs(10));
    let terminate = server.qp.query().unwrap().terminate.unwrap();
    assert_eq!((terminate.sent, terminate.layer, terminate.etype), (true, 1, 1));
    for end in [&server, &client] {
        assert_eq!(end.qp.state(), QpState::Error);
        end.completions();
        end.qp.to_idle().unwrap();
        assert_eq!((end.qp.state(), end.qp.terminate()), (QpState::Idle, None));
    }
    connect(&mut simulation, &mut server, &mut client);
    works(&mut simulation, &server, &client);
}

/// An application need not wait until the peer has taken the Terminate.
#[test]
fn the_terminate_state_can_be_left_at_once() {
    let (mut simulation, server, client) = connected(&options());
    works(&mut simulation, &server, &client);
    let source = client.pd.alloc_mr(8, Access::empty()).unwrap();
    client.post(2, SendOp::Write { addr: 0, rkey: 99 }, &[Sge::of(&source, 0, 8)]);
    server.end(&mut simulation);
    assert_eq!(server.qp.state(), QpState::Terminate);
    server.qp.to_error();
    assert_eq!(server.qp.state(), QpState::Error);
    server.qp.to_idle().unwrap();
    client.end(&mut simulation);
}

/// A queue pair drains: first all earlier requests complete, then an event reports this, then the connection ends.
#[test]
fn draining_tells_when_all_is_done() {
    let (mut simulation, server, client) = connected(&options());
    works(&mut simulation, &server, &client);
    let remote = server.pd.alloc_mr(1 << 20, Access::REMOTE_READ).unwrap();
    let local = client.pd.alloc_mr(1 << 20, Access::LOCAL_WRITE).unwrap();
    server.post_recv(1, &[]);
    client.post(1, SendOp::Read { addr: remote.addr(), rkey: remote.rkey() }, &[Sge::of(&local, 0, 1 << 20)]);
    client.post(2, SendOp::Send, &[]);
    client.qp.drain().unwrap();
    assert_eq!(client.qp.state(), QpState::Closing);
    assert_eq!(state_of(client.qp.drain()), QpState::Closing);
    let events = simulation.device(1).async_events();
    let mut event = None;
    let limit = simulation.now() + LIMIT;
    assert!(simulation.run(limit, || {
        event = events.poll();
        event.is_some()
    }));
    assert_eq!(event, Some(AsyncEvent::SendQueueDrained { qpn: client.qp.qpn() }));
    let done: Vec<_> = client.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [1, 2].map(|i| (i, WcStatus::Success)));
    assert_eq!(client.end(&mut simulation), DisconnectReason::Local);
    assert_eq!(server.end(&mut simulation), DisconnectReason::Peer);
    assert_eq!(events.poll(), None);
    assert_eq!(state_of(client.qp.drain()), QpState::Error);
}

/// Queue pairs can go from idle to error, which flushes their work, and back to idle.
#[test]
fn idle_queue_pairs_flush_too() {
    let simulation = Simulation::new(&options()).unwrap();
    let end = End::new(&simulation.device(0));
    assert_eq!(state_of(end.qp.drain()), QpState::Idle);
    end.post(1, SendOp::Send, &[]);
    end.post_recv(2, &[]);
    assert!(end.completions().is_empty());
    end.qp.to_error();
    assert_eq!(end.qp.state(), QpState::Error);
    let flushed: Vec<_> = end.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(flushed, [1, 2].map(|i| (i, WcStatus::Flushed)));
    end.qp.to_idle().unwrap();
    end.post_recv(3, &[]);
    assert!(end.completions().is_empty());
}

#[test]
fn queries_tell_of_the_connection() {
    let mut simulation = Simulation::new(&options()).unwrap();
    let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    let attr = client.qp.query().unwrap();
    assert_eq!((attr.state, attr.connection, attr.srqn), (QpState::Idle, None, None));
    assert_eq!((attr.max_send_wr, attr.max_recv_wr, attr.max_send_sge), (64, 64, 4));
    connect(&mut simulation, &mut server, &mut client);
    let attr = client.qp.query().unwrap();
    let connection = attr.connection.unwrap();
    assert_eq!((attr.state, connection.peer), (QpState::Rts, address(0)));
    let limits = simulation.device(1).attributes().unwrap();
    assert!((1..=limits.max_ird).contains(&connection.ird) && (1..=limits.max_ord).contains(&connection.ord));
    client.disconnect();
    client.end(&mut simulation);
    simulation.wait(Duration::from_secs(10));
    assert_eq!(client.qp.query().unwrap().connection, None);
}

/// A program can make objects as large as the device's limits say, and as many shared queues and queue pairs. The
/// device refuses one more shared queue and one more queue pair.
#[test]
fn limits_are_true() {
    let simulation = Simulation::new(&options()).unwrap();
    let device = simulation.device(0);
    let limits = device.attributes().unwrap();
    let (pd, cq) = (device.alloc_pd(), device.create_cq(1, None).unwrap());
    let init = QpInit {
        send_cq: &cq,
        recv_cq: &cq,
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 0,
        max_recv_sge: 0,
        max_inline: 0,
        signal_all: false,
    };
    let most = QpInit {
        max_send_wr: limits.max_qp_wr,
        max_recv_wr: limits.max_qp_wr,
        max_send_sge: limits.max_sge,
        max_recv_sge: limits.max_sge,
        ..init
    };
    pd.create_qp(&most).unwrap();
    pd.create_qp(&QpInit { max_inline: limits.max_inline, ..init }).unwrap();
    device.create_cq(limits.max_cqe, None).unwrap();
    let srq = SrqInit { max_wr: limits.max_srq_wr, max_sge: limits.max_srq_sge, limit: 0 };
    pd.create_srq(&srq).unwrap();
    let small = SrqInit { max_wr: 1, max_sge: 0, limit: 0 };
    let srqs: Vec<_> = (0..limits.max_srq).map(|_| pd.create_srq(&small).unwrap()).collect();
    assert!(matches!(pd.create_srq(&small), Err(Error::Exhausted(_))));
    drop(srqs);
    let qps: Vec<_> = (0..limits.max_qp).map(|_| pd.create_qp(&init).unwrap()).collect();
    assert!(matches!(pd.create_qp(&init), Err(Error::Exhausted(_))));
    drop(qps);
    pd.create_qp(&init).unwrap();
}
