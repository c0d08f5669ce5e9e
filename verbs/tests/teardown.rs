//! The end of connections: a connection that ends without an error loses no data.

mod common;

use common::*;
use std::time::Duration;
use urnic::simulation::{Impairment, Options, Simulation, TcpConfig};
use urnic::*;

const LEN: usize = 5000;
const SENDS: u64 = 60;

/// Returns the options of a simulation whose network loses a few frames.
fn lossy(seed: u64) -> Options {
    Options { network: format!("delay=50us,loss=0.01,seed={seed}").parse().unwrap(), ..Options::default() }
}

/// Posts receives at `to` for `SENDS` messages, and the Sends at `from`.
fn post_sends(from: &End, to: &End) -> (Mr, Mr) {
    let inbox = to.pd.alloc_mr(LEN * SENDS as usize, Access::LOCAL_WRITE).unwrap();
    let source = from.pd.alloc_mr(LEN * SENDS as usize, Access::empty()).unwrap();
    source.write_at(0, &pattern(LEN * SENDS as usize, 9)).unwrap();
    for i in 0..SENDS {
        to.post_recv(i, &[Sge::of(&inbox, i * LEN as u64, LEN as u32)]);
        from.post(i, SendOp::Send, &[Sge::of(&source, i * LEN as u64, LEN as u32)]);
    }
    (inbox, source)
}

fn brief(all: &[Wc]) -> Vec<(u64, WcStatus)> {
    all.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

fn all(status: WcStatus) -> Vec<(u64, WcStatus)> {
    (0..SENDS).map(|i| (i, status)).collect()
}

/// DDP-43: data is sent before the FIN. MPA-78.
#[test]
fn disconnect_delivers_what_was_posted_before() {
    for seed in 0..20 {
        let (mut simulation, server, client) = connected(&lossy(seed));
        let (inbox, source) = post_sends(&client, &server);
        client.disconnect();
        assert_eq!(client.qp.state(), QpState::Closing);
        assert_eq!(server.end(&mut simulation), DisconnectReason::Peer, "seed {seed}");
        assert_eq!(client.end(&mut simulation), DisconnectReason::Local, "seed {seed}");
        assert_eq!(brief(&client.completions()), all(WcStatus::Success), "seed {seed}");
        assert_eq!(brief(&server.completions()), all(WcStatus::Success), "seed {seed}");
        assert!(content(&inbox) == content(&source), "seed {seed}");
        assert_eq!((server.qp.state(), client.qp.state()), (QpState::Error, QpState::Error));
        assert_eq!((server.qp.terminate(), client.qp.terminate()), (None, None));
    }
}

/// A completed Send arrives even if the program drops the queue pair and all its objects right afterwards.
#[test]
fn a_completed_send_arrives_although_the_queue_pair_is_dropped() {
    for seed in 0..20 {
        let (mut simulation, server, client) = connected(&lossy(seed));
        let (inbox, source) = post_sends(&client, &server);
        let sent = content(&source);
        for i in 0..SENDS {
            let wc = client.next(&mut simulation);
            assert_eq!((wc.wr_id, wc.status), (i, WcStatus::Success));
        }
        drop((client, source));
        assert_eq!(server.end(&mut simulation), DisconnectReason::Peer, "seed {seed}");
        assert_eq!(brief(&server.completions()), all(WcStatus::Success), "seed {seed}");
        assert!(content(&inbox) == sent, "seed {seed}");
    }
}

/// The outstanding work of a queue pair that is destroyed no longer completes; the channel reports only the end of the
/// connection. Afterwards, the program can drop its memory, and create and connect another queue pair.
#[test]
fn the_work_of_a_dropped_queue_pair_no_longer_completes() {
    let (mut simulation, server, client) = connected(&options());
    let (_inbox, source) = post_sends(&client, &server);
    for i in 0..10 {
        client.post_recv(i, &[]);
    }
    let End { pd, cq, qp, events, .. } = client;
    drop(qp);
    let early = cq.poll(&mut [Wc::default(); 256]);
    assert!(early < SENDS as usize, "nothing is outstanding that could be reported");
    let reason = server.end(&mut simulation);
    assert_eq!(reason, DisconnectReason::Peer);
    let limit = simulation.now() + LIMIT;
    assert!(!simulation.run(limit, || cq.poll(&mut [Wc::default()]) > 0), "{early} before");
    let told: Vec<_> = std::iter::from_fn(|| events.poll()).collect();
    assert!(matches!(told[..], [CmEvent::Disconnected { reason: DisconnectReason::Local, .. }]), "{told:?}");
    drop(source);
    let mut again = End { qp: create_qp(&pd, &cq), pd, cq, events, connection: None };
    let mut server = server.sibling(&simulation.device(0));
    connect(&mut simulation, &mut server, &mut again);
    works(&mut simulation, &server, &again);
}

/// If both sides disconnect at once, each gets one event, and no error.
#[test]
fn both_sides_may_disconnect_at_once() {
    let (mut simulation, server, client) = connected(&options());
    works(&mut simulation, &server, &client);
    server.disconnect();
    client.disconnect();
    for end in [&server, &client] {
        assert_eq!(end.end(&mut simulation), DisconnectReason::Local);
    }
    let limit = simulation.now() + LIMIT;
    assert!(!simulation.run(limit, || server.events.poll().is_some() || client.events.poll().is_some()));
    assert!(matches!(client.connection.as_ref().unwrap().disconnect(), Err(Error::NotConnected)));
}

/// The passive side may close, although it must not send before the active side has (MPA-70).
#[test]
fn the_passive_side_may_disconnect_before_anything_was_sent() {
    let (mut simulation, server, client) = connected(&options());
    let before = simulation.now();
    server.disconnect();
    assert_eq!(client.end(&mut simulation), DisconnectReason::Peer);
    assert_eq!(server.end(&mut simulation), DisconnectReason::Local);
    assert!(simulation.now() - before < Duration::from_secs(1));
}

/// A FIN in the middle of a message or FPDU is reported as an error. MPA-10, 78, 79.
#[test]
fn a_message_that_is_cut_short_is_told() {
    use common::raw;
    use urnic_iwarp::startup::{Initiator, Offer};
    // A Send of 8 octets, or the first FPDU of a longer Send.
    let header = [0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let fpdu = |last: bool| {
        let mut fpdu = vec![0, 26];
        fpdu.extend(header);
        fpdu[2] = if last { 0x41 } else { 0x01 };
        fpdu.extend([7; 8]);
        let crc = urnic_crc::finish(urnic_crc::crc32c(urnic_crc::INIT, &fpdu));
        fpdu.extend(crc.to_le_bytes());
        fpdu
    };
    let whole = fpdu(true);
    for (stream, reason, status) in [
        (&whole[..], DisconnectReason::Peer, WcStatus::Success),
        (&whole[..5], DisconnectReason::Truncated, WcStatus::Flushed),
        (&whole[..whole.len() - 1], DisconnectReason::Truncated, WcStatus::Flushed),
        (&fpdu(false), DisconnectReason::Truncated, WcStatus::Flushed),
    ] {
        let (raw, host) = raw::node(1);
        let mut simulation =
            Simulation::with_hosts(&Options { devices: 1, ..options() }, vec![host]).unwrap();
        let end = End::new(&simulation.device(0));
        let _listener = end.events.listen(PORT, 1).unwrap();
        let inbox = end.pd.alloc_mr(100, Access::LOCAL_WRITE).unwrap();
        end.post_recv(1, &[Sge::of(&inbox, 0, 100)]);
        let conn = raw.borrow_mut().connect(address(0));
        assert!(simulation.run(LIMIT, || raw.borrow().seen.connected.contains(&conn)));
        let offer = Offer { rev: 1, crc: true, ird: 4, ord: 4, ..Offer::default() };
        raw.borrow_mut().send(conn, &Initiator::new(&offer).unwrap().1);
        let CmEvent::ConnectRequest(request) = end.event(&mut simulation) else { panic!("no request") };
        request.accept(&end.qp, &ConnParam::default()).unwrap();
        assert!(simulation.run(LIMIT, || raw.borrow().heard(conn).len() == 20));
        assert!(matches!(end.event(&mut simulation), CmEvent::Established { .. }));
        raw.borrow_mut().send(conn, stream);
        raw.borrow_mut().close(conn);
        assert_eq!(end.end(&mut simulation), reason, "{} octets", stream.len());
        assert_eq!(brief(&end.completions()), [(1, status)]);
    }
}

/// A Read that was posted before the disconnect completes before the connection ends.
#[test]
fn a_read_outlives_the_wish_to_disconnect() {
    let (mut simulation, server, client) = connected(&lossy(3));
    let remote = server.pd.alloc_mr(1 << 20, Access::REMOTE_READ).unwrap();
    let local = client.pd.alloc_mr(1 << 20, Access::LOCAL_WRITE).unwrap();
    remote.write_at(0, &pattern(1 << 20, 4)).unwrap();
    let op = SendOp::Read { addr: remote.addr(), rkey: remote.rkey() };
    client.post(1, op, &[Sge::of(&local, 0, 1 << 20)]);
    client.disconnect();
    let wc = client.next(&mut simulation);
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (1, WcStatus::Success, 1 << 20));
    assert!(content(&local) == content(&remote));
    assert_eq!(client.end(&mut simulation), DisconnectReason::Local);
}

/// When the connection ends, the receives of both sides are flushed, once and in order.
#[test]
fn the_receives_of_both_sides_are_flushed() {
    let (mut simulation, server, client) = connected(&options());
    works(&mut simulation, &server, &client);
    for i in 0..10 {
        server.post_recv(100 + i, &[]);
        client.post_recv(200 + i, &[]);
    }
    client.disconnect();
    for (end, first) in [(&server, 100), (&client, 200)] {
        end.end(&mut simulation);
        let expected: Vec<_> = (first..first + 10).map(|i| (i, WcStatus::Flushed)).collect();
        assert_eq!(brief(&end.completions()), expected);
    }
    let limit = simulation.now() + LIMIT;
    assert!(
        !simulation.run(limit, || [&server, &client].iter().any(|end| !end.completions().is_empty())),
        "twice"
    );
}

/// Keep-alive detects that the peer's machine has vanished, and all work is flushed.
#[test]
fn keep_alive_finds_a_peer_that_is_gone() {
    let keepalive =
        urnic_tcp::Keepalive { idle: Duration::from_secs(2), interval: Duration::from_secs(1), count: 3 };
    let tcp = TcpConfig { keepalive: Some(keepalive), ..TcpConfig::default() };
    let (mut simulation, server, client) = connected(&Options { tcp, ..options() });
    works(&mut simulation, &server, &client);
    for i in 0..3 {
        server.post_recv(i, &[]);
    }
    // Runs until all data is acknowledged.
    let quiet = simulation.now() + Duration::from_secs(1);
    assert!(!simulation.run(quiet, || false));
    let silence = Impairment { loss: 1.0, ..Impairment::default() };
    simulation.network().link_mut(1, 0).unwrap().set_impairment(&silence);
    let before = simulation.now();
    assert_eq!(server.end(&mut simulation), DisconnectReason::TimedOut);
    let took = simulation.now() - before;
    assert!(took > Duration::from_secs(3) && took < Duration::from_secs(8), "{took:?}");
    assert_eq!(brief(&server.completions()), (0..3).map(|i| (i, WcStatus::Flushed)).collect::<Vec<_>>());
    drop(client);
}

/// If the peer does not acknowledge data, the user timeout ends the connection, and outstanding Reads are flushed.
#[test]
fn the_user_timeout_finds_a_peer_that_is_gone() {
    let tcp = TcpConfig { user_timeout: Some(Duration::from_secs(20)), ..TcpConfig::default() };
    let (mut simulation, server, client) = connected(&Options { tcp, ..options() });
    works(&mut simulation, &server, &client);
    let silence = Impairment { loss: 1.0, ..Impairment::default() };
    simulation.network().link_mut(0, 1).unwrap().set_impairment(&silence);
    let mr = client.pd.alloc_mr(100, Access::LOCAL_WRITE).unwrap();
    let before = simulation.now();
    client.post(1, SendOp::Read { addr: 0, rkey: 0 }, &[Sge::of(&mr, 0, 0)]);
    client.post(2, SendOp::Send, &[]);
    assert_eq!(client.end(&mut simulation), DisconnectReason::TimedOut);
    let took = simulation.now() - before;
    assert!(took >= Duration::from_secs(20) && took < Duration::from_secs(60), "{took:?}");
    let got = brief(&client.completions());
    assert_eq!(got, [(1, WcStatus::Flushed), (2, WcStatus::Flushed)]);
    drop(server);
}

/// A peer that never answers our FIN does not keep a connection open forever.
#[test]
fn a_disconnect_that_is_not_answered_is_broken_off() {
    let (mut simulation, server, client) = connected(&options());
    works(&mut simulation, &server, &client);
    let silence = Impairment { loss: 1.0, ..Impairment::default() };
    simulation.network().link_mut(0, 1).unwrap().set_impairment(&silence);
    let before = simulation.now();
    client.disconnect();
    assert_eq!(client.end(&mut simulation), DisconnectReason::Aborted);
    assert!(simulation.now() - before < Duration::from_secs(6));
    drop(server);
}

/// Devices may be dropped in any order, with connections in any state.
#[test]
fn a_simulation_may_be_dropped_at_any_time() {
    for steps in [0, 1, 2, 3, 5, 8, 13, 21, 34] {
        let mut simulation = Simulation::new(&options()).unwrap();
        let (server, client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
        let _listener = server.events.listen(PORT, 1).unwrap();
        client.events.connect(&client.qp, address(0), &ConnParam::default()).unwrap();
        for _ in 0..steps {
            simulation.step(LIMIT);
            if let Some(CmEvent::ConnectRequest(request)) = server.events.poll() {
                request.accept(&server.qp, &ConnParam::default()).unwrap();
            }
        }
        if steps % 2 == 0 {
            drop(simulation);
            drop((server, client));
        } else {
            drop((client, server));
            drop(simulation);
        }
    }
}

/// If an application drops a queue pair, it still gets the event for the end of the connection, because it may
/// wait for this event. The event comes at once, and only once.
#[test]
fn a_destroyed_queue_pair_takes_no_event_with_it() {
    for (seed, disconnects) in [(1, true), (2, false), (3, true), (4, false)] {
        let (mut simulation, server, client) = connected(&lossy(seed));
        let (_inbox, _source) = post_sends(&client, &server);
        if disconnects {
            client.disconnect();
        }
        let End { qp, events, .. } = client;
        let qpn = qp.qpn();
        drop(qp);
        match events.poll() {
            Some(CmEvent::Disconnected { qpn: told, reason: DisconnectReason::Local }) => {
                assert_eq!(told, qpn)
            }
            other => panic!("{other:?}, seed {seed}"),
        }
        server.end(&mut simulation);
        let limit = simulation.now() + LIMIT;
        assert!(!simulation.run(limit, || events.poll().is_some()), "seed {seed}");
    }
}

/// If the end of a connection has been reported, dropping the queue pair raises no second event.
#[test]
fn the_end_of_a_connection_is_told_once() {
    let (mut simulation, server, client) = connected(&options());
    server.disconnect();
    assert_eq!(client.end(&mut simulation), DisconnectReason::Peer);
    assert_eq!(server.end(&mut simulation), DisconnectReason::Local);
    for End { qp, events, .. } in [server, client] {
        drop(qp);
        let limit = simulation.now() + LIMIT;
        assert!(!simulation.run(limit, || events.poll().is_some()));
    }
}

/// If the application drops or reuses the queue pair, or disconnects, before the peer has answered, it gets a
/// [`CmEvent::ConnectError`].
#[test]
fn an_attempt_that_is_given_up_is_told() {
    // The attempt is given up before TCP's handshake is done, or while the Request waits for its answer.
    for asked in [false, true] {
        for way in ["drop", "idle", "disconnect"] {
            let mut simulation = Simulation::new(&options()).unwrap();
            let [server, client] = [0, 1].map(|index| End::new(&simulation.device(index)));
            let _listener = server.events.listen(PORT, 4).unwrap();
            let connection = client.events.connect(&client.qp, address(0), &ConnParam::default()).unwrap();
            let mut request = None;
            if asked {
                let limit = simulation.now() + LIMIT;
                assert!(simulation.run(limit, || {
                    request = server.events.poll();
                    request.is_some()
                }));
            }
            let End { qp, events, cq, pd, .. } = client;
            let qpn = qp.qpn();
            let kept = match way {
                "drop" => {
                    drop(qp);
                    None
                }
                "idle" => {
                    qp.to_error();
                    qp.to_idle().unwrap();
                    Some(qp)
                }
                _ => {
                    connection.disconnect().unwrap();
                    Some(qp)
                }
            };
            let mut told = Vec::new();
            let limit = simulation.now() + LIMIT;
            simulation.run(limit, || {
                told.extend(events.poll());
                false
            });
            let [CmEvent::ConnectError { qpn: of, .. }] = &told[..] else {
                panic!("{way}, {asked}: {told:?}")
            };
            assert_eq!(*of, qpn, "{way}, {asked}");
            drop(request);
            // Nothing is left of the attempt, so that this queue pair, or another one, can connect.
            let qp = kept.unwrap_or_else(|| create_qp(&pd, &cq));
            drop(_listener);
            let mut client = End { qp, events, cq, pd, connection: None };
            let mut server = End::with_events(&simulation.device(0), server.events);
            connect(&mut simulation, &mut server, &mut client);
            works(&mut simulation, &server, &client);
        }
    }
}

/// Deeds (functions that the program hands to the device for a later time) run by the device's clock, in order, and not
/// after the device's end.
#[test]
fn deeds_are_done_in_their_time() {
    use std::sync::{Arc, Mutex};
    let mut simulation = Simulation::new(&options()).unwrap();
    let device = simulation.device(0);
    let done = Arc::new(Mutex::new(Vec::new()));
    for (number, millis) in [(3, 2000), (1, 1000), (4, 2000), (2, 1500), (5, 3_600_000)] {
        let done = done.clone();
        device.after(Duration::from_millis(millis), move || done.lock().unwrap().push(number)).unwrap();
    }
    let start = simulation.now();
    for (until, expected) in [(999, &[][..]), (1001, &[1]), (1600, &[1, 2]), (2001, &[1, 2, 3, 4])] {
        let limit = start + Duration::from_millis(until);
        simulation.wait(limit - simulation.now());
        assert_eq!(*done.lock().unwrap(), expected, "after {until} ms");
    }
    drop((device, simulation));
    assert_eq!(Arc::strong_count(&done), 1, "the device drops its remaining deeds when it ends");
}
