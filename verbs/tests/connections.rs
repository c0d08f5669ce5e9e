//! How connections are established, and how they fail.

#[path = "common/allocated.rs"]
mod allocated;
mod common;

use common::raw::{closed, finished, raw_connection, until, with_raw};
use common::*;
use std::collections::HashMap;
use std::time::Duration;
use urnic::simulation::{Impairment, Simulation};
use urnic::*;
use urnic_iwarp::startup::{Initiator, Limits, Offer, Responder};
use urnic_tcp::{CloseReason, TcpConfig};

fn mpa_request(private_data: &[u8]) -> Vec<u8> {
    Initiator::new(&Offer { rev: 2, crc: true, ird: 4, ord: 4, private_data, ..Offer::default() }).unwrap().1
}

/// Waits for the event that reports a failed connect. Returns its reason, and the text of the reason.
fn failure(simulation: &mut Simulation, end: &End) -> (ConnectFailure, String) {
    match end.event(simulation) {
        CmEvent::ConnectError { qpn, reason } if qpn == end.qp.qpn() => (reason, reason.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_port_where_nobody_listens_refuses() {
    let mut simulation = Simulation::new(&options()).unwrap();
    let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    client.events.connect(&client.qp, address(0), &ConnParam::default()).unwrap();
    let (reason, words) = failure(&mut simulation, &client);
    assert_eq!(reason, ConnectFailure::Refused);
    assert!(words.contains("refused") && words.contains("no program listens"), "{words}");
    // The queue pair can be connected again.
    assert_eq!(client.qp.state(), QpState::Idle);
    connect(&mut simulation, &mut server, &mut client);
    works(&mut simulation, &server, &client);
}

#[test]
fn an_absent_host_is_unreachable() {
    let mut simulation = Simulation::new(&options()).unwrap();
    let client = End::new(&simulation.device(1));
    let started = client.events.connect(&client.qp, address(77), &ConnParam::default());
    let (reason, words) = match started {
        Ok(_) => failure(&mut simulation, &client),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(reason, ConnectFailure::Unreachable, "{words}");
    assert!(words.contains("unreachable"), "{words}");
    assert!(simulation.now() < Duration::from_secs(11));
}

/// If the device has a port, not the kernel's sockets, the error blames urnic's settings, which lack a route.
#[test]
fn an_address_of_another_network_has_no_route() {
    let simulation = Simulation::new(&options()).unwrap();
    let client = End::new(&simulation.device(1));
    let far: std::net::SocketAddr = "203.0.113.1:7471".parse().unwrap();
    assert_eq!(simulation.device(1).source_for(far).unwrap(), None);
    let error = client.events.connect(&client.qp, far, &ConnParam::default()).err();
    assert!(matches!(error, Some(Error::NoRoute { to, .. }) if to == far.ip()), "{error:?}");
    let words = error.unwrap().to_string();
    assert!(words.contains("203.0.113.1") && words.contains("gateway"), "{words}");
}

#[test]
fn a_host_that_falls_silent_times_out() {
    let (mut simulation, server, client) = connected(&options());
    let _listener = server.events.listen(PORT, 4).unwrap();
    let silence = Impairment { loss: 1.0, ..Impairment::default() };
    simulation.network().link_mut(0, 1).unwrap().set_impairment(&silence);
    let other = End::new(&simulation.device(1));
    let before = simulation.now();
    other.events.connect(&other.qp, address(0), &ConnParam::default()).unwrap();
    assert_eq!(failure(&mut simulation, &other).0, ConnectFailure::TimedOut);
    let took = simulation.now() - before;
    assert!(took >= Duration::from_secs(10) && took < Duration::from_secs(11), "{took:?}");
    drop(client);
}

/// MPA-76: the start-up has a time limit.
#[test]
fn a_peer_that_accepts_and_says_nothing_times_out() {
    let (mut simulation, end, raw) = with_raw(&options());
    raw.borrow_mut().stack.listen_on(PORT, 4).unwrap();
    end.events.connect(&end.qp, address(1), &ConnParam::default()).unwrap();
    assert_eq!(failure(&mut simulation, &end).0, ConnectFailure::TimedOut);
    let conn = raw.borrow().seen.accepted[0];
    assert!(raw.borrow().heard(conn).starts_with(b"MPA ID Req Frame"));
    until(&mut simulation, "closed", || closed(&raw, conn) == Some(CloseReason::Reset));
}

/// ERR-4: the failure names a peer that does not speak iWARP.
#[test]
fn a_peer_that_is_no_iwarp_node_is_named_as_such() {
    for answer in [
        &b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"[..],
        &[0; 20],
        b"MPA ID Rep Framf\0\x01\0\0",
    ] {
        let (mut simulation, end, raw) = with_raw(&options());
        raw.borrow_mut().stack.listen_on(PORT, 4).unwrap();
        end.events.connect(&end.qp, address(1), &ConnParam::default()).unwrap();
        until(&mut simulation, "request", || {
            let raw = raw.borrow();
            raw.seen.accepted.first().is_some_and(|conn| !raw.heard(*conn).is_empty())
        });
        let conn = raw.borrow().seen.accepted[0];
        raw.borrow_mut().send(conn, answer);
        let (reason, words) = failure(&mut simulation, &end);
        assert_eq!(reason, ConnectFailure::NotIwarp);
        assert!(words.contains("no iWARP node"), "{words}");
        assert_eq!(end.qp.state(), QpState::Idle);
        until(&mut simulation, "closed", || finished(&raw, conn) || closed(&raw, conn).is_some());
    }
}

#[test]
fn a_peer_that_closes_during_the_start_up_is_named_as_such() {
    let (mut simulation, end, raw) = with_raw(&options());
    raw.borrow_mut().stack.listen_on(PORT, 4).unwrap();
    end.events.connect(&end.qp, address(1), &ConnParam::default()).unwrap();
    // The device connects twice, because the peer might know only MPA revision 1.
    for i in 0..2 {
        until(&mut simulation, "accepted", || raw.borrow().seen.accepted.len() > i);
        let conn = raw.borrow().seen.accepted[i];
        raw.borrow_mut().close(conn);
    }
    assert_eq!(failure(&mut simulation, &end).0, ConnectFailure::Reset);
}

/// Whatever strangers send to a listening port, the application gets no event, and the port still accepts others
/// (SEC-31). ERR-4; MPA-52, 60, 64, 81.
#[test]
fn strangers_do_not_disturb_a_listener() {
    let (mut simulation, end, raw) = with_raw(&options());
    let _listener = end.events.listen(PORT, 2).unwrap();
    let mut too_long = mpa_request(b"");
    too_long[18..20].copy_from_slice(&513u16.to_be_bytes());
    let surplus = [mpa_request(b""), vec![0]].concat();
    let reply = [&b"MPA ID Rep Frame"[..], &mpa_request(b"")[16..]].concat();
    let strange =
        [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], &[0xFF; 64], &too_long, &surplus, &reply];
    // There are more rounds than places in the backlog, so no stranger may keep a place.
    for (i, octets) in strange.into_iter().cycle().take(4 * strange.len()).enumerate() {
        let conn = raw_connection(&mut simulation, &raw);
        raw.borrow_mut().send(conn, octets);
        until(&mut simulation, "closed", || finished(&raw, conn) || closed(&raw, conn).is_some());
        assert!(raw.borrow().heard(conn).is_empty(), "{i}");
        raw.borrow_mut().close(conn);
        assert!(end.events.poll().is_none(), "{i}");
    }
    // One stranger closes its connection in the middle of its frame, and one resets it.
    for reset in [false, true] {
        let conn = raw_connection(&mut simulation, &raw);
        raw.borrow_mut().send(conn, &mpa_request(b"")[..10]);
        until(&mut simulation, "heard", || raw.borrow().stack.unacked(conn) == 0);
        if reset {
            raw.borrow_mut().abort(conn)
        } else {
            raw.borrow_mut().close(conn)
        }
        until(&mut simulation, "closed", || closed(&raw, conn).is_some() || finished(&raw, conn));
        assert_eq!(raw.borrow().heard(conn), [], "said something");
    }
    let conn = raw_connection(&mut simulation, &raw);
    raw.borrow_mut().send(conn, &mpa_request(b"at last"));
    let event = end.event(&mut simulation);
    assert!(matches!(&event, CmEvent::ConnectRequest(r) if r.private_data() == b"at last"), "{event:?}");
}

/// Until a stranger is accepted, its window is two link MTUs. If it continues to send after its start-up has
/// failed, the device resets it instead of spending work on its data (RFC 1122 §4.2.2.13; MPA-64 allows it).
#[test]
fn strangers_cannot_say_much() {
    let (mut simulation, end, raw) = with_raw(&options());
    let _listener = end.events.listen(PORT, 2).unwrap();
    let window = |conn| raw.borrow().stack.info(conn).unwrap().snd_wnd;
    let conn = raw_connection(&mut simulation, &raw);
    let narrow = window(conn);
    assert!((3000..3100).contains(&narrow), "{narrow}");
    raw.borrow_mut().send(conn, &mpa_request(b""));
    let CmEvent::ConnectRequest(request) = end.event(&mut simulation) else { panic!("no request") };
    assert_eq!(window(conn), narrow);
    request.accept(&end.qp, &ConnParam::default()).unwrap();
    until(&mut simulation, "accepted", || !raw.borrow().heard(conn).is_empty());
    assert_eq!(window(conn), TcpConfig::default().recv_window);

    let conn = raw_connection(&mut simulation, &raw);
    raw.borrow_mut().send(conn, b"GET / HTTP/1.1\r\n\r\n");
    until(&mut simulation, "closed", || finished(&raw, conn));
    assert!(closed(&raw, conn).is_none(), "one that stops is not reset");
    raw.borrow_mut().send(conn, b"more");
    until(&mut simulation, "reset", || closed(&raw, conn) == Some(CloseReason::Reset));

    // A rejecting Reply reaches even a peer that has broken the rules (MPA-66).
    let conn = raw_connection(&mut simulation, &raw);
    raw.borrow_mut().send(conn, &mpa_request(b""));
    loop {
        if let CmEvent::ConnectRequest(request) = end.event(&mut simulation) {
            request.reject(b"no").unwrap();
            break;
        }
    }
    raw.borrow_mut().send(conn, b"more");
    until(&mut simulation, "closed", || finished(&raw, conn));
    assert!(raw.borrow().heard(conn).ends_with(b"no") && closed(&raw, conn).is_none());
}

/// A peer whose Request takes too long is reset (MPA-75). Until then it counts among the peers in start-up, and takes
/// no place in the backlog (SEC-31).
#[test]
fn a_silent_stranger_is_shown_out() {
    let (mut simulation, end, raw) = with_raw(&options());
    let _listener = end.events.listen(PORT, 1).unwrap();
    let strangers = [0, 1, 2].map(|_| raw_connection(&mut simulation, &raw));
    let asking = raw_connection(&mut simulation, &raw);
    raw.borrow_mut().send(asking, &mpa_request(b""));
    let CmEvent::ConnectRequest(request) = end.event(&mut simulation) else { panic!("no request") };
    drop(request);
    assert!(simulation.now() < Duration::from_secs(1));
    assert!(strangers.iter().all(|conn| closed(&raw, *conn).is_none()));
    until(&mut simulation, "shown out", || {
        strangers.iter().all(|conn| closed(&raw, *conn) == Some(CloseReason::Reset))
    });
    let after = simulation.now();
    assert!(after >= Duration::from_secs(60) && after < Duration::from_secs(61), "{after:?}");
    let conn = raw_connection(&mut simulation, &raw);
    raw.borrow_mut().send(conn, &mpa_request(b""));
    assert!(matches!(end.event(&mut simulation), CmEvent::ConnectRequest(_)));
}

/// MPA-63: the pieces in which a start-up frame arrives do not matter.
#[test]
fn a_start_up_frame_may_come_octet_by_octet() {
    let (mut simulation, end, raw) = with_raw(&options());
    let _listener = end.events.listen(PORT, 2).unwrap();
    let conn = raw_connection(&mut simulation, &raw);
    for octet in mpa_request(b"slowly") {
        assert!(end.events.poll().is_none());
        raw.borrow_mut().send(conn, &[octet]);
        until(&mut simulation, "acknowledged", || raw.borrow().stack.unacked(conn) == 0);
    }
    let CmEvent::ConnectRequest(request) = end.event(&mut simulation) else { panic!("no request") };
    assert_eq!(
        (request.private_data(), request.peer().ip()),
        (&b"slowly"[..], std::net::IpAddr::from(Simulation::address(1)))
    );
    let param = ConnParam { private_data: b"yes".to_vec(), ..ConnParam::default() };
    request.accept(&end.qp, &param).unwrap();
    until(&mut simulation, "reply", || raw.borrow().heard(conn).len() == 20 + 4 + 3);
    assert!(raw.borrow().heard(conn).ends_with(b"yes"));
}

/// MPA-65, 66: a rejection.
#[test]
fn a_rejection_carries_private_data() {
    for drops in [false, true] {
        let mut simulation = Simulation::new(&options()).unwrap();
        let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
        {
            let _listener = server.events.listen(PORT, 1).unwrap();
            let param = ConnParam { private_data: b"please".to_vec(), ..ConnParam::default() };
            client.events.connect(&client.qp, address(0), &param).unwrap();
            let CmEvent::ConnectRequest(request) = server.event(&mut simulation) else {
                panic!("no request")
            };
            assert_eq!(request.private_data(), b"please");
            if drops {
                drop(request)
            } else {
                request.reject(b"not today").unwrap()
            }
            let expected: &[u8] = if drops { b"" } else { b"not today" };
            match client.event(&mut simulation) {
                CmEvent::Rejected { qpn, private_data, .. } => {
                    assert_eq!((qpn, &private_data[..]), (client.qp.qpn(), expected));
                }
                other => panic!("{other:?}"),
            }
        }
        connect(&mut simulation, &mut server, &mut client);
        works(&mut simulation, &server, &client);
    }
}

/// A connection request that has no answer ends with its listener or its peer. A later answer to the request fails.
#[test]
fn a_request_does_not_outlive_listener_or_peer() {
    for listener_goes in [true, false] {
        let mut simulation = Simulation::new(&options()).unwrap();
        let (server, client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
        let mut listener = Some(server.events.listen(PORT, 1).unwrap());
        let param = ConnParam { timeout: Duration::from_secs(3), ..ConnParam::default() };
        client.events.connect(&client.qp, address(0), &param).unwrap();
        let CmEvent::ConnectRequest(request) = server.event(&mut simulation) else { panic!("no request") };
        if listener_goes {
            listener = None;
        }
        let expected = if listener_goes { ConnectFailure::Reset } else { ConnectFailure::TimedOut };
        assert_eq!(failure(&mut simulation, &client).0, expected);
        let limit = simulation.now() + Duration::from_secs(1);
        simulation.run(limit, || false);
        let answer = request.accept(&server.qp, &ConnParam::default());
        assert!(matches!(answer, Err(Error::RequestGone)), "{:?}", answer.err());
        assert_eq!(server.qp.state(), QpState::Idle);
        drop(listener);
    }
}

#[test]
fn a_port_is_listened_on_once() {
    let simulation = Simulation::new(&options()).unwrap();
    let end = End::new(&simulation.device(0));
    let listener = end.events.listen(PORT, 1).unwrap();
    let again = end.events.listen(PORT, 1).err().map(|e| e.to_string());
    assert_eq!(
        again.as_deref(),
        Some(
            "port 7000 is in use; iWARP runs on TCP ports: a program that serves RDMA and TCP at one address needs a \
             port for each"
        )
    );
    drop(listener);
    end.events.listen(PORT, 1).unwrap();
}

#[test]
fn a_queue_pair_connects_once() {
    let (_simulation, _server, client) = connected(&options());
    let again = client.events.connect(&client.qp, address(0), &ConnParam::default());
    assert!(matches!(again, Err(Error::QpState { state: QpState::Rts, .. })), "{:?}", again.err());
}

/// At both sides, a call with more private data than the frame can carry fails at once.
#[test]
fn too_much_private_data_is_refused() {
    let mut simulation = Simulation::new(&options()).unwrap();
    let (server, client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    let _listener = server.events.listen(PORT, 1).unwrap();
    let param = |n| ConnParam { private_data: vec![1; n], ..ConnParam::default() };
    // Revision 2 uses four of the 512 octets itself.
    for n in [509, 512, 513, 100_000] {
        let refused = client.events.connect(&client.qp, address(0), &param(n));
        assert!(matches!(refused, Err(Error::Invalid(_))), "{n}");
    }
    client.events.connect(&client.qp, address(0), &param(508)).unwrap();
    let CmEvent::ConnectRequest(request) = server.event(&mut simulation) else { panic!("no request") };
    assert_eq!(request.private_data().len(), 508);
    assert!(matches!(request.accept(&server.qp, &param(509)), Err(Error::Invalid(_))));
    assert!(matches!(client.event(&mut simulation), CmEvent::Rejected { .. }));
}

/// One device can be both ends of a connection.
#[test]
fn a_device_connects_to_itself() {
    let mut simulation = Simulation::new(&options()).unwrap();
    let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(0)));
    connect(&mut simulation, &mut server, &mut client);
    works(&mut simulation, &server, &client);
    client.disconnect();
    assert_eq!(client.end(&mut simulation), DisconnectReason::Local);
    assert_eq!(server.end(&mut simulation), DisconnectReason::Peer);
}

#[test]
fn a_thousand_connections_at_once() {
    const MANY: usize = 1000;
    let mut simulation = Simulation::new(&options()).unwrap();
    let devices = [simulation.device(0), simulation.device(1)];
    let events = [0, 1].map(|d: usize| devices[d].create_event_channel().unwrap());
    let pds = [0, 1].map(|d: usize| devices[d].alloc_pd());
    let cqs = [0, 1].map(|d: usize| devices[d].create_cq(4096, None).unwrap());
    let qps: [Vec<Qp>; 2] = [0, 1].map(|d: usize| (0..MANY).map(|_| create_qp(&pds[d], &cqs[d])).collect());
    let inbox = pds[0].alloc_mr(8 * MANY, Access::LOCAL_WRITE).unwrap();
    let source = pds[1].alloc_mr(8 * MANY, Access::empty()).unwrap();
    let numbers: Vec<u8> = (0..MANY as u64).flat_map(u64::to_be_bytes).collect();
    source.write_at(0, &numbers).unwrap();
    let _listener = events[0].listen(PORT, MANY as u32).unwrap();
    let mut number_of = HashMap::new();
    for (i, qp) in qps[1].iter().enumerate() {
        let param = ConnParam {
            private_data: (i as u32).to_be_bytes().to_vec(),
            timeout: Duration::from_secs(100),
            ..ConnParam::default()
        };
        events[1].connect(qp, address(0), &param).unwrap();
        number_of.insert(qp.qpn(), i);
    }
    let mut established = [0, 0];
    until(&mut simulation, "all established", || {
        while let Some(event) = events[0].poll() {
            match event {
                CmEvent::ConnectRequest(request) => {
                    let i = u32::from_be_bytes(request.private_data().try_into().unwrap()) as usize;
                    let sge = [Sge::of(&inbox, 8 * i as u64, 8)];
                    qps[0][i].post_recv(&RecvWr { wr_id: i as u64, sges: &sge }).unwrap();
                    request.accept(&qps[0][i], &ConnParam::default()).unwrap();
                }
                CmEvent::Established { .. } => established[0] += 1,
                other => panic!("{other:?}"),
            }
        }
        while let Some(event) = events[1].poll() {
            let CmEvent::Established { qpn, .. } = event else { panic!("{event:?}") };
            established[1] += 1;
            let i = number_of[&qpn];
            let sges = [Sge::of(&source, 8 * i as u64, 8)];
            let flags = SendFlags::SIGNALED;
            qps[1][i].post_send(&SendWr { wr_id: i as u64, op: SendOp::Send, sges: &sges, flags }).unwrap();
        }
        established == [MANY; 2]
    });
    for cq in &cqs {
        let mut got = Vec::new();
        until(&mut simulation, "all completed", || {
            let mut wc = [Wc::default(); 64];
            let n = cq.poll(&mut wc);
            got.extend(wc[..n].iter().map(|wc| (wc.wr_id, wc.status)));
            got.len() == MANY
        });
        got.sort_by_key(|(wr_id, _)| *wr_id);
        assert_eq!(got, (0..MANY as u64).map(|i| (i, WcStatus::Success)).collect::<Vec<_>>());
    }
    assert!(content(&inbox) == numbers);
}

#[test]
fn connections_that_come_and_go_leave_nothing_behind() {
    let mut simulation = Simulation::new(&options()).unwrap();
    let mut cycles = |n: usize| {
        for i in 0..n {
            let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
            connect(&mut simulation, &mut server, &mut client);
            match i % 4 {
                0 => client.disconnect(),
                1 => server.disconnect(),
                2 => client.qp.to_error(),
                _ => {
                    drop(client);
                    server.end(&mut simulation);
                    continue;
                }
            }
            for end in [&server, &client] {
                end.end(&mut simulation);
            }
        }
        // TIME-WAIT and all time-outs expire.
        let limit = simulation.now() + LIMIT;
        assert!(!simulation.run(limit, || false));
        allocated::live()
    };
    // The first connections make tables grow, which do not shrink again. Both counts end with a row of allocations
    // (`urnic_tcp::rows`): rows of 1, 2, 4, and so on up to 32, and rows of 64. A row's rest is not used, but live.
    let before = cycles(63 + 15 * 64);
    let after = cycles(16 * 64);
    assert!(after - before < 32 << 10, "{before} octets live after 1023 connections, {after} after 2047");
}

/// On a busy machine, the Linux kernel's iWARP (siw) may leave the first FPDU of an initiator unread until more octets
/// arrive. So the initiator sends zero-length Writes, at growing intervals, until the peer has answered or a second has
/// passed.
#[test]
fn a_silent_responder_is_nudged() {
    for speaks in [false, true] {
        let (mut simulation, end, raw) = with_raw(&options());
        raw.borrow_mut().stack.listen_on(PORT, 1).unwrap();
        let param = ConnParam::default();
        end.events.connect(&end.qp, address(1), &param).unwrap();
        until(&mut simulation, "TCP handshake", || !raw.borrow().seen.accepted.is_empty());
        let conn = raw.borrow().seen.accepted[0];
        let request = mpa_request(&[]).len();
        until(&mut simulation, "MPA Request", || raw.borrow().heard(conn).len() == request);
        let mut responder = Responder::new(Limits::default());
        let octets = raw.borrow().heard(conn);
        responder.receive(&octets).unwrap();
        let (reply, _) = responder.accept(&Offer { ird: 4, ord: 4, ..Offer::default() }).unwrap();
        raw.borrow_mut().send(conn, &reply);
        assert!(matches!(end.event(&mut simulation), CmEvent::Established { .. }));

        end.post(1, SendOp::Send, &[]);
        // Octets of a zero-length Send (length, DDP and RDMAP header, CRC), and of a zero-length Write (with a tagged
        // header).
        let (send, write) = (2 + 18 + 4, 2 + 14 + 4);
        let first = request + send;
        until(&mut simulation, "the first FPDU", || raw.borrow().heard(conn).len() == first);
        if speaks {
            until(&mut simulation, "two nudges", || raw.borrow().heard(conn).len() == first + 2 * write);
            raw.borrow_mut().send(conn, &[0]);
        }
        let later = simulation.now() + Duration::from_secs(3);
        simulation.run(later, || false);
        let nudges = (raw.borrow().heard(conn).len() - first) / write;
        assert_eq!(nudges, if speaks { 2 } else { 9 }, "speaks: {speaks}");
        let second = &raw.borrow().heard(conn)[first..][..write];
        assert_eq!(second[..8], [0, 14, 0xC1, 0x40, 0, 0, 0, 1], "a tagged, last segment of an RDMA Write");
    }
}

/// Programs may post inline bytes, but most of them never do. The space for inline bytes takes memory only after the
/// first inline request.
#[test]
fn inline_bytes_that_nobody_uses_take_no_memory() {
    const REQUESTS: u32 = 64;
    const INLINE: u32 = 4096;
    let simulation = Simulation::new(&options()).unwrap();
    let end = End::new(&simulation.device(0));
    let before = allocated::live();
    let init = QpInit {
        send_cq: &end.cq,
        recv_cq: &end.cq,
        max_send_wr: REQUESTS,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: INLINE,
        signal_all: false,
    };
    let qp = end.pd.create_qp(&init).unwrap();
    let wr = SendWr { wr_id: 1, op: SendOp::Send, sges: &[], flags: SendFlags::empty() };
    qp.post_send(&wr).unwrap();
    let unused = allocated::live() - before;
    assert!(unused < 32 << 10, "{unused} octets");
    qp.post_send_inline(&wr, &[7; INLINE as usize]).unwrap();
    let used = allocated::live() - before;
    assert!(used >= unused + (REQUESTS * INLINE) as isize, "{used} octets");
}
