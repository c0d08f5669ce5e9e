//! The MPA start-up of whole RNICs: what the ends agree on, which end sends first, and what happens if they do not
//! agree. An RTR (ready to receive) is the FPDU by which the Initiator lets the Responder send first.

#[path = "common/allocated.rs"]
mod allocated;
mod common;

use common::raw::{Raw, Seen, closed, finished, raw_connection, until, with_raw};
use common::*;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use urnic::simulation::{MpaChange, Options, Simulation, TcpConfig};
use urnic::*;
use urnic_iwarp::startup::{Initiator, Limits, Offer, Responder, RtrKinds};
use urnic_tcp::{CloseReason, ConnId};

const REV_1: MpaChange = |mpa| mpa.rev = 1;
/// Octets of zero-length FPDUs: a Write, a Send and a Read Request; and of a Terminate without headers.
const WRITE: usize = 2 + 14 + 4;
const SEND: usize = 2 + 18 + 4;
const READ: usize = 2 + 18 + 28 + 4;
const TERMINATE: usize = 2 + 18 + 4 + 4;

/// Connects node 1 to node 0. Returns the content of both events.
fn connect_with(
    simulation: &mut Simulation,
    (server, accept): (&mut End, &ConnParam),
    (client, ask): (&mut End, &ConnParam),
) -> [(u16, u16, Terms); 2] {
    let _listener = server.events.listen(PORT, 4).unwrap();
    client.connection = Some(client.events.connect(&client.qp, address(0), ask).unwrap());
    let CmEvent::ConnectRequest(request) = server.event(simulation) else { panic!("no request") };
    assert_eq!(request.private_data(), ask.private_data);
    server.connection = Some(request.accept(&server.qp, accept).unwrap());
    [server, client].map(|end| match end.event(simulation) {
        CmEvent::Established { ird, ord, terms, private_data, .. } => {
            assert!(private_data.is_empty() || private_data == accept.private_data);
            (ird, ord, terms)
        }
        other => panic!("{other:?}"),
    })
}

fn ends(options: &Options) -> (Simulation, End, End) {
    let simulation = Simulation::new(options).unwrap();
    let (server, client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    (simulation, server, client)
}

/// Lets the device connect to the raw node, until the raw node has the Request. Returns the connection and the octets
/// of the Request.
fn asked(
    simulation: &mut Simulation,
    end: &End,
    raw: &Rc<RefCell<Raw>>,
    param: &ConnParam,
) -> (ConnId, Vec<u8>) {
    raw.borrow_mut().listen(PORT, 4);
    end.events.connect(&end.qp, address(1), param).unwrap();
    until(simulation, "an MPA Request", || {
        let raw = raw.borrow();
        let heard = raw.seen.accepted.first().map(|conn| raw.heard(*conn)).unwrap_or_default();
        heard.len() >= 20 && heard.len() == 20 + usize::from(u16::from_be_bytes([heard[18], heard[19]]))
    });
    let conn = raw.borrow().seen.accepted[0];
    let octets = raw.borrow().heard(conn);
    (conn, octets)
}

/// Makes an enhanced Reply with these further flags. `word` contains IRD and ORD, and the flags of peer-to-peer
/// terms.
fn reply(flags: u8, word: u32) -> Vec<u8> {
    [&b"MPA ID Rep Frame"[..], &[0x50 | flags, 2, 0, 4], &word.to_be_bytes()].concat()
}

/// Returns the octets that have arrived after the first `skip` octets.
fn behind(raw: &Rc<RefCell<Raw>>, conn: ConnId, skip: usize) -> Vec<u8> {
    raw.borrow().heard(conn)[skip..].to_vec()
}

fn failure(simulation: &mut Simulation, end: &End) -> ConnectFailure {
    match end.event(simulation) {
        CmEvent::ConnectError { qpn, reason } if qpn == end.qp.qpn() => reason,
        other => panic!("{other:?}"),
    }
}

fn pass(simulation: &mut Simulation, time: Duration) {
    let limit = simulation.now() + time;
    simulation.run(limit, || false);
}

/// MPAE-10..13, MPAE-16: the result follows from the numbers of both ends. MPAE-11, MPAE-18: both ends are told the
/// other's numbers.
#[test]
fn ird_and_ord_are_negotiated() {
    for ((si, so), (ci, co)) in [((2, 16), (4, 9)), ((8, 1), (1, 3)), ((0, 0), (5, 5)), ((7, 7), (0, 0))] {
        let (mut simulation, mut server, mut client) = ends(&options());
        let param = |ird, ord| ConnParam { ird, ord, ..ConnParam::default() };
        let [s, c] =
            connect_with(&mut simulation, (&mut server, &param(si, so)), (&mut client, &param(ci, co)));
        assert_eq!((s.0, s.1), (si, so.min(ci)));
        assert_eq!((c.0, c.1), (ci, co.min(si)));
        assert_eq!((s.2.peer_ird, s.2.peer_ord), (Some(ci), Some(co)));
        assert_eq!((c.2.peer_ird, c.2.peer_ord), (Some(si), Some(so.min(ci))));
        assert_eq!((s.2.rev, s.2.crc, s.2.peer_to_peer), (2, true, false));
    }
    // A rejection also carries these numbers, but they promise nothing.
    let (mut simulation, server, client) = ends(&options());
    let _listener = server.events.listen(PORT, 4).unwrap();
    client
        .events
        .connect(&client.qp, address(0), &ConnParam { ird: 3, ord: 4, ..ConnParam::default() })
        .unwrap();
    let CmEvent::ConnectRequest(request) = server.event(&mut simulation) else { panic!("no request") };
    assert_eq!((request.ird(), request.ord(), request.peer_to_peer()), (Some(3), Some(4), false));
    request.reject(b"no").unwrap();
    match client.event(&mut simulation) {
        CmEvent::Rejected { private_data, peer_ird, peer_ord, .. } => {
            assert_eq!((&private_data[..], peer_ird, peer_ord), (&b"no"[..], Some(0), Some(0)));
        }
        other => panic!("{other:?}"),
    }
}

/// MPA-61, MPAE-4: private data up to the limit of the revision arrives unchanged in both directions, also with a
/// rejection. A call with one octet more fails; a rejection then has no private data.
#[test]
fn private_data_to_the_limit() {
    for (mpa_rev, max) in [(1, 512), (2, 508)] {
        for rejection in [None, Some(max), Some(max + 1)] {
            let (mut simulation, mut server, mut client) = ends(&Options { mpa_rev, ..options() });
            let param = |n| ConnParam { private_data: pattern(n, 5), ..ConnParam::default() };
            let too_much = client.events.connect(&client.qp, address(0), &param(max + 1));
            assert!(matches!(too_much, Err(Error::Invalid(_))));
            let Some(octets) = rejection else {
                let (a, b) = (param(max), param(max - 1));
                connect_with(&mut simulation, (&mut server, &a), (&mut client, &b));
                works(&mut simulation, &server, &client);
                continue;
            };
            let _listener = server.events.listen(PORT, 4).unwrap();
            client.events.connect(&client.qp, address(0), &param(max)).unwrap();
            let CmEvent::ConnectRequest(request) = server.event(&mut simulation) else { panic!() };
            assert_eq!(request.private_data(), pattern(max, 5));
            let fits = octets <= max;
            let outcome = request.reject(&pattern(octets, 6));
            assert!(if fits { outcome.is_ok() } else { matches!(outcome, Err(Error::Invalid(_))) });
            let said = if fits { pattern(max, 6) } else { Vec::new() };
            match client.event(&mut simulation) {
                CmEvent::Rejected { private_data, .. } => assert_eq!(private_data, said),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// MPAE-23, 27, 28, 34, 37, MPA-70: with each kind of RTR, the accepting side may send although the connecting
/// application has sent nothing. The RTR completes no request and uses no receive.
#[test]
fn the_side_that_accepts_speaks_first() {
    for (choice, kind) in [
        (RtrChoice::Write, Rtr::Write),
        (RtrChoice::Read, Rtr::Read),
        (RtrChoice::Send, Rtr::Send),
        (RtrChoice::Any, Rtr::Write),
    ] {
        for per_connection in [false, true] {
            // MPAE-14: a Read RTR needs no IRD or ORD of the user.
            for reads in [0, 4] {
                let rtr = if per_connection { RtrChoice::Off } else { choice };
                let (mut simulation, mut server, mut client) = ends(&Options { rtr, ..options() });
                let param = ConnParam { ird: reads, ord: reads, ..ConnParam::default() };
                let ask = ConnParam { rtr: per_connection.then_some(choice), ..param.clone() };
                let sink = client.pd.alloc_mr(100, Access::LOCAL_WRITE).unwrap();
                let source = server.pd.alloc_mr(100, Access::empty()).unwrap();
                let inbox = server.pd.alloc_mr(100, Access::LOCAL_WRITE).unwrap();
                client.post_recv(1, &[Sge::of(&sink, 0, 100)]);
                server.post_recv(2, &[Sge::of(&inbox, 0, 100)]);
                let [s, c] = connect_with(&mut simulation, (&mut server, &param), (&mut client, &ask));
                assert!(s.2.peer_to_peer && c.2.peer_to_peer);
                assert_eq!((s.2.rtr, c.2.rtr), (None, Some(kind)));
                source.write_at(0, &pattern(100, 9)).unwrap();
                server.post(3, SendOp::Send, &[Sge::of(&source, 0, 100)]);
                let wc = client.next(&mut simulation);
                assert_eq!((wc.wr_id, wc.status, wc.byte_len), (1, WcStatus::Success, 100));
                assert_eq!(content(&sink), pattern(100, 9));
                assert_eq!(server.next(&mut simulation).wr_id, 3);
                pass(&mut simulation, Duration::from_secs(2));
                assert!(client.completions().is_empty() && server.completions().is_empty());
                // The waiting receive takes the first message of the application.
                client.post(4, SendOp::Send, &[Sge::of(&sink, 0, 7)]);
                assert_eq!(client.next(&mut simulation).wr_id, 4);
                let wc = server.next(&mut simulation);
                assert_eq!((wc.wr_id, wc.status, wc.byte_len), (2, WcStatus::Success, 7));
                works(&mut simulation, &server, &client);
                client.disconnect();
                assert_eq!(client.end(&mut simulation), DisconnectReason::Local);
            }
        }
    }
}

/// MPA-70: without an RTR, the messages of the accepting side wait for the first message of the other application.
#[test]
fn without_rtr_the_side_that_connects_speaks_first() {
    let (mut simulation, server, client) = connected(&options());
    let sink = client.pd.alloc_mr(8, Access::LOCAL_WRITE).unwrap();
    client.post_recv(1, &[Sge::of(&sink, 0, 8)]);
    server.post(2, SendOp::Send, &[]);
    pass(&mut simulation, Duration::from_secs(5));
    assert!(client.completions().is_empty() && server.completions().is_empty());
    client.post(3, SendOp::Send, &[]);
    server.post_recv(4, &[]);
    assert_eq!(client.next(&mut simulation).status, WcStatus::Success);
    let wc = [client.next(&mut simulation), server.next(&mut simulation), server.next(&mut simulation)];
    assert!(wc.iter().all(|wc| wc.status == WcStatus::Success), "{wc:?}");
}

/// MPAE-23, 27, 28, 32, MPA-49, 62: checks the octets on the wire: the flags of the Request, and the RTR as the first
/// FPDU. MPAE-37.
#[test]
fn the_octets_of_each_rtr() {
    const A: u32 = 0x8000_0000;
    for (choice, flags, answer, first) in [
        (RtrChoice::Write, 0x8000, 0x8000, [0, 14, 0xC1, 0x40, 0, 0, 0, 1].to_vec()),
        (RtrChoice::Read, 0x4000, 0x4000, [0, 46, 0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1].to_vec()),
        (
            RtrChoice::Send,
            0x4000_0000,
            0x4000_0000,
            [0, 18, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1].to_vec(),
        ),
        (RtrChoice::Any, 0x4000_C000, 0x4000_4000, [0, 46, 0x41, 0x41].to_vec()),
    ] {
        let (mut simulation, end, raw) = with_raw(&options());
        let param = ConnParam { rtr: Some(choice), ird: 4, ord: 4, ..ConnParam::default() };
        // A Send that is posted before the connection exists follows the RTR.
        end.post(1, SendOp::Send, &[]);
        let (conn, request) = asked(&mut simulation, &end, &raw, &param);
        assert_eq!(request[16..20], [0x50, 2, 0, 4]);
        assert_eq!(request[20..24], (A | flags | 0x0004_0004).to_be_bytes());
        raw.borrow_mut().send(conn, &reply(0, A | answer | 0x0004_0004));
        assert!(matches!(end.event(&mut simulation), CmEvent::Established { .. }));
        let size = [WRITE, SEND, READ][[14, 18, 46].iter().position(|n| *n == first[1]).unwrap()];
        until(&mut simulation, "RTR and Send", || raw.borrow().heard(conn).len() >= 24 + size + SEND);
        let said = behind(&raw, conn, 24);
        assert_eq!(said[..first.len()], first);
        let msn = if choice == RtrChoice::Send { 2 } else { 1 };
        assert_eq!(said[size..size + 4], [0, 18, 0x41, 0x43], "the Send");
        assert_eq!(said[size + 12..size + 16], u32::to_be_bytes(msn));
        assert_eq!(end.next(&mut simulation).wr_id, 1);
        assert!(end.completions().is_empty());
    }
    // An RTR needs revision 2.
    let simulation = Simulation::new(&Options { mpa_rev: 1, ..options() }).unwrap();
    let end = End::new(&simulation.device(1));
    let param = ConnParam { rtr: Some(RtrChoice::Any), ..ConnParam::default() };
    let refused = end.events.connect(&end.qp, address(0), &param).err().map(|e| e.to_string());
    assert!(refused.is_some_and(|words| words.contains("revision 2")));
}

/// MPAE-24..26, 33, 36: a peer requests the peer-to-peer model. The Reply lists the peer's kinds of RTR, and the device
/// accepts any of them. The device holds back posted messages until the RTR arrives. A Send RTR takes no receive.
/// MPAE-32.
#[test]
fn any_rtr_of_a_peer_is_taken() {
    for (sent, rtr) in [(WRITE, Rtr::Write), (READ, Rtr::Read), (SEND, Rtr::Send)] {
        let (mut simulation, end, raw) = with_raw(&options());
        let _listener = end.events.listen(PORT, 2).unwrap();
        let conn = raw_connection(&mut simulation, &raw);
        let kinds = RtrKinds { send: true, write: true, read: true };
        let offer = Offer { ird: 4, ord: 0, peer_to_peer: Some(kinds), ..Offer::default() };
        let (mut initiator, request) = Initiator::new(&offer).unwrap();
        raw.borrow_mut().send(conn, &request);
        let CmEvent::ConnectRequest(request) = end.event(&mut simulation) else { panic!("no request") };
        assert!(request.peer_to_peer());
        end.post(1, SendOp::Send, &[]);
        request.accept(&end.qp, &ConnParam { ird: 0, ..ConnParam::default() }).unwrap();
        until(&mut simulation, "the Reply", || raw.borrow().heard(conn).len() >= 24);
        pass(&mut simulation, Duration::from_secs(1));
        let answer = raw.borrow().heard(conn);
        assert_eq!(answer.len(), 24, "nothing but the Reply");
        assert_eq!(answer[20] & 0xC0, 0xC0);
        assert_eq!(answer[22] & 0xC0, 0xC0);
        assert_eq!(answer[20..22], [0xC0, 1], "room for an RTR Read");
        initiator.receive(&answer).unwrap();
        let fpdu = first_fpdu(rtr.op());
        assert_eq!(fpdu.len(), sent);
        raw.borrow_mut().send(conn, &fpdu);
        let more = if rtr == Rtr::Read { WRITE } else { 0 }; // its Response
        until(&mut simulation, "our Send", || raw.borrow().heard(conn).len() >= 24 + SEND + more);
        assert!(matches!(end.event(&mut simulation), CmEvent::Established { .. }));
        assert_eq!(end.next(&mut simulation).wr_id, 1);
        assert_eq!(end.qp.state(), QpState::Rts);
        assert!(end.completions().is_empty());
    }
}

/// Returns the first FPDU of an Initiator, with length 0.
fn first_fpdu(op: urnic_iwarp::Op) -> Vec<u8> {
    let mut responder = Responder::new(Limits::default());
    let (mut initiator, request) = Initiator::new(&Offer::default()).unwrap();
    responder.receive(&request).unwrap();
    let reply = responder.accept(&Offer::default()).unwrap().0;
    let Ok(urnic_iwarp::startup::Progress::Done { outcome, .. }) = initiator.receive(&reply) else {
        panic!()
    };
    let urnic_iwarp::startup::Outcome::Accepted(negotiated, ..) = outcome else { panic!() };
    let mut stream =
        urnic_iwarp::Stream::<NoChunk>::new(&negotiated, urnic_iwarp::Budget::new(usize::MAX, usize::MAX));
    let mut outgoing = stream.begin(op, 0).unwrap();
    let fpdu = outgoing.next(1454).unwrap();
    let mut octets = fpdu.header().to_vec();
    octets.resize(fpdu.size() - 4, 0);
    with_crc(&[&octets])
}

/// Joins the parts of an FPDU and appends its CRC.
fn with_crc(parts: &[&[u8]]) -> Vec<u8> {
    let mut octets = parts.concat();
    let crc = urnic_crc::finish(urnic_crc::crc32c(urnic_crc::INIT, &octets));
    octets.extend(crc.to_le_bytes());
    octets
}

struct NoChunk;

impl urnic_iwarp::Chunk for NoChunk {
    fn bytes(&self) -> &[u8] {
        &[]
    }
}

/// MPA-76: the device gives up a peer that announces an RTR and sends none, and tells the application.
#[test]
fn an_rtr_that_does_not_come_ends_the_connection() {
    let (mut simulation, end, raw) = with_raw(&options());
    let _listener = end.events.listen(PORT, 2).unwrap();
    let conn = raw_connection(&mut simulation, &raw);
    let kinds = RtrKinds { write: true, ..RtrKinds::default() };
    let offer = Offer { peer_to_peer: Some(kinds), ..Offer::default() };
    raw.borrow_mut().send(conn, &Initiator::new(&offer).unwrap().1);
    let CmEvent::ConnectRequest(request) = end.event(&mut simulation) else { panic!("no request") };
    let before = simulation.now();
    request.accept(&end.qp, &ConnParam::default()).unwrap();
    end.post(1, SendOp::Send, &[]);
    assert!(matches!(end.event(&mut simulation), CmEvent::Established { .. }));
    assert_eq!(end.end(&mut simulation), DisconnectReason::TimedOut);
    let took = simulation.now() - before;
    assert!(took >= Duration::from_secs(60) && took < Duration::from_secs(62), "{took:?}");
    assert_eq!(end.next(&mut simulation).status, WcStatus::Flushed);
    until(&mut simulation, "reset", || closed(&raw, conn) == Some(CloseReason::Reset));
}

/// ERR-5, MPAE-17, 29, 39: if the device cannot meet the terms of an accepting Reply, it sends one Terminate and a FIN.
/// It sends no posted message, and tells the application that the terms were the reason. MPAE-35.
#[test]
fn terms_that_cannot_be_met() {
    const A: u32 = 0x8000_0000;
    for (rtr, word, code) in [
        (RtrChoice::Off, 0x0004_0005, 6),       // more Reads than we serve
        (RtrChoice::Write, A | 0x0004_4004, 7), // another kind
        (RtrChoice::Write, A | 0x0004_0004, 7), // none
        (RtrChoice::Write, 0x0004_8004, 7),     // the client-server model
        (RtrChoice::Off, A | 0x0004_8004, 7),   // the peer-to-peer model
    ] {
        let (mut simulation, end, raw) = with_raw(&options());
        end.post(1, SendOp::Send, &[]);
        let param = ConnParam { ird: 4, ord: 4, rtr: Some(rtr), ..ConnParam::default() };
        let (conn, request) = asked(&mut simulation, &end, &raw, &param);
        raw.borrow_mut().send(conn, &reply(0, word));
        assert_eq!(failure(&mut simulation, &end), ConnectFailure::Terms);
        until(&mut simulation, "FIN", || finished(&raw, conn));
        let said = behind(&raw, conn, request.len());
        assert_eq!(
            (said.len(), &said[..4], &said[20..24]),
            (TERMINATE, &[0, 22, 0x41, 0x47][..], &[0x20, code, 0, 0][..])
        );
        assert_eq!(end.next(&mut simulation).status, WcStatus::Flushed);
        let told = end.qp.terminate().expect("the reason");
        assert_eq!((told.sent, told.layer, told.etype, u32::from(told.code)), (true, 2, 0, code.into()));
        raw.borrow_mut().close(conn);
    }
}

/// If the program moves its queue pair to the error state before the TCP connection exists, the device reports that the
/// program has given up.
#[test]
fn a_queue_pair_that_fails_before_the_start_up() {
    let (mut simulation, end, raw) = with_raw(&options());
    raw.borrow_mut().listen(PORT, 4);
    end.events.connect(&end.qp, address(1), &ConnParam::default()).unwrap();
    end.qp.to_error();
    assert_eq!(failure(&mut simulation, &end), ConnectFailure::Aborted);
    assert_eq!(end.qp.state(), QpState::Error);
    pass(&mut simulation, Duration::from_secs(1));
    assert!(raw.borrow().seen.accepted.iter().all(|conn| raw.borrow().heard(*conn).is_empty()));
}

/// ERR-5, MPAE-31: if the queue pair is in the error state when the peer accepts, the device sends a Terminate 20 05,
/// then a FIN.
#[test]
fn a_queue_pair_that_fails_during_the_start_up() {
    let (mut simulation, end, raw) = with_raw(&options());
    end.post(1, SendOp::Send, &[]);
    let (conn, request) = asked(&mut simulation, &end, &raw, &ConnParam::default());
    end.qp.to_error();
    assert_eq!(end.next(&mut simulation).status, WcStatus::Flushed);
    raw.borrow_mut().send(conn, &reply(0, 0x0004_0004));
    assert_eq!(failure(&mut simulation, &end), ConnectFailure::Aborted);
    until(&mut simulation, "FIN", || finished(&raw, conn));
    let said = behind(&raw, conn, request.len());
    assert_eq!((said.len(), &said[20..24]), (TERMINATE, &[0x20, 5, 0, 0][..]));
}

/// MPAE-2, 6, 8, 9: a device that knows only revision 1 closes the connection when it gets an enhanced Request. The
/// other device tries again with revision 1, and both report revision 1. In the other direction, the device accepts
/// revision 1 at once.
#[test]
fn a_peer_of_revision_1_is_met_with_revision_1() {
    for old in [0, 1] {
        let exceptions = vec![(old, REV_1)];
        let (mut simulation, mut server, mut client) = ends(&Options { exceptions, ..options() });
        let param =
            ConnParam { private_data: b"who are you?".to_vec(), ird: 4, ord: 4, ..ConnParam::default() };
        let [s, c] = connect_with(&mut simulation, (&mut server, &param), (&mut client, &param));
        for (ird, ord, terms) in [s, c] {
            assert_eq!((ird, ord, terms.rev, terms.peer_ird, terms.peer_ord), (4, 4, 1, None, None));
        }
        works(&mut simulation, &server, &client);
        client.disconnect();
        assert_eq!(client.end(&mut simulation), DisconnectReason::Local);
    }
}

/// MPAE-1, 7, 8: checks the octets of the two tries on the wire. The device does not try again if it needs revision 2,
/// if the peer has answered, or if the peer resets. The time limit covers both tries. MPAE-9.
#[test]
fn when_to_fall_back() {
    let (mut simulation, end, raw) = with_raw(&options());
    let param = ConnParam { timeout: Duration::from_secs(9), ..ConnParam::default() };
    let started = simulation.now();
    let (first, request) = asked(&mut simulation, &end, &raw, &param);
    assert_eq!(request[16..20], [0x50, 2, 0, 4]);
    pass(&mut simulation, Duration::from_secs(3));
    raw.borrow_mut().close(first);
    until(&mut simulation, "second try", || raw.borrow().seen.accepted.len() == 2);
    let second = raw.borrow().seen.accepted[1];
    until(&mut simulation, "second Request", || raw.borrow().heard(second).len() >= 20);
    assert_eq!(raw.borrow().heard(second)[16..], [0x40, 1, 0, 0]);
    assert_eq!(failure(&mut simulation, &end), ConnectFailure::TimedOut);
    assert!(simulation.now() - started < Duration::from_secs(10));
    assert_eq!(end.qp.state(), QpState::Idle);

    for (rtr, answer, reset, tries) in [
        (RtrChoice::Off, &b""[..], false, 2), // for comparison
        (RtrChoice::Any, b"", false, 1),
        (RtrChoice::Off, b"MPA ID", false, 1),
        (RtrChoice::Off, b"", true, 1),
    ] {
        let (mut simulation, end, raw) = with_raw(&options());
        let param = ConnParam { rtr: Some(rtr), ..ConnParam::default() };
        let (conn, _) = asked(&mut simulation, &end, &raw, &param);
        if !answer.is_empty() {
            raw.borrow_mut().send(conn, answer);
        }
        if reset {
            raw.borrow_mut().abort(conn)
        } else {
            raw.borrow_mut().close(conn)
        }
        if tries == 1 {
            assert_eq!(failure(&mut simulation, &end), ConnectFailure::Reset);
        }
        pass(&mut simulation, Duration::from_secs(5));
        assert_eq!(raw.borrow().seen.accepted.len(), tries, "{rtr:?}, {answer:?}, {reset}");
    }
    // The listener has ended between the two tries, so the device reports the reason why the first try failed.
    let (mut simulation, end, raw) = with_raw(&options());
    let (conn, _) = asked(&mut simulation, &end, &raw, &ConnParam::default());
    raw.borrow_mut().unlisten();
    raw.borrow_mut().close(conn);
    assert_eq!(failure(&mut simulation, &end), ConnectFailure::Reset);
    // A queue pair may be dropped while the device is about to make its second connection.
    let (mut simulation, end, raw) = with_raw(&options());
    let (conn, _) = asked(&mut simulation, &end, &raw, &ConnParam::default());
    raw.borrow_mut().close(conn);
    until(&mut simulation, "FIN", || raw.borrow().stack.unacked(conn) == 0);
    drop(end.qp);
    pass(&mut simulation, Duration::from_secs(20));
}

/// ERR-4, MPAE-38, MPA-53, 68, 71, 74, 81: if the peer sends a Request, or a Reply that breaks the rules, the
/// device closes the connection, sends no FPDU, and tells the application.
#[test]
fn replies_that_are_none() {
    let request = Initiator::new(&Offer::default()).unwrap().1;
    let v1 = [&b"MPA ID Rep Frame"[..], &[0x40, 1, 0, 0]].concat();
    let unenhanced = [&b"MPA ID Rep Frame"[..], &[0x40, 2, 0, 0]].concat();
    let mut rev_3 = reply(0, 0x0004_0004);
    rev_3[17] = 3;
    let mut too_long = reply(0, 0x0004_0004);
    too_long[18..20].copy_from_slice(&513u16.to_be_bytes());
    for answer in [&request, &v1, &unenhanced, &rev_3, &too_long] {
        let (mut simulation, end, raw) = with_raw(&options());
        end.post(1, SendOp::Send, &[]);
        let (conn, request) = asked(&mut simulation, &end, &raw, &ConnParam::default());
        raw.borrow_mut().send(conn, answer);
        assert_eq!(failure(&mut simulation, &end), ConnectFailure::NotIwarp);
        until(&mut simulation, "closed", || finished(&raw, conn) || closed(&raw, conn).is_some());
        assert_eq!(behind(&raw, conn, request.len()), [0; 0], "no FPDU");
        assert!(end.completions().is_empty());
        assert_eq!(end.qp.state(), QpState::Idle);
    }
}

/// MPA-50, 67, 69, 91: the device receives an FPDU in the first segment after the accepting Reply. It also receives an
/// FPDU in the segment of the Reply, although a Responder must not send one there.
#[test]
fn the_first_fpdu_comes_at_once() {
    let (mut simulation, end, raw) = with_raw(&options());
    let sink = end.pd.alloc_mr(8, Access::LOCAL_WRITE).unwrap();
    end.post_recv(1, &[Sge::of(&sink, 0, 8)]);
    let send = first_fpdu(urnic_iwarp::Op::Send { solicited: false, invalidate: None });
    let (conn, _) = asked(&mut simulation, &end, &raw, &ConnParam::default());
    raw.borrow_mut().send(conn, &[reply(0, 0x0004_0004), send.clone()].concat());
    assert!(matches!(end.event(&mut simulation), CmEvent::Established { .. }));
    assert_eq!(end.next(&mut simulation).wr_id, 1);

    let (mut simulation, end, raw) = with_raw(&options());
    let _listener = end.events.listen(PORT, 2).unwrap();
    let conn = raw_connection(&mut simulation, &raw);
    raw.borrow_mut().send(conn, &Initiator::new(&Offer::default()).unwrap().1);
    let CmEvent::ConnectRequest(request) = end.event(&mut simulation) else { panic!("no request") };
    end.post_recv(1, &[]);
    request.accept(&end.qp, &ConnParam::default()).unwrap();
    until(&mut simulation, "the Reply", || raw.borrow().heard(conn).len() >= 24);
    raw.borrow_mut().send(conn, &send);
    assert_eq!(end.next(&mut simulation).wr_id, 1);
}

/// MPA-70, 83, 92, ERR-1: a first FPDU with a bad CRC does not allow the Responder to send, not even a Terminate. Later
/// in the connection, it answers a bad CRC by a Terminate before the FIN.
#[test]
fn a_bad_first_fpdu_is_answered_by_closing_alone() {
    for good in [false, true] {
        let (mut simulation, end, raw) = with_raw(&options());
        let _listener = end.events.listen(PORT, 2).unwrap();
        let conn = raw_connection(&mut simulation, &raw);
        raw.borrow_mut().send(conn, &Initiator::new(&Offer::default()).unwrap().1);
        let CmEvent::ConnectRequest(request) = end.event(&mut simulation) else { panic!("no request") };
        end.post(1, SendOp::Send, &[]);
        request.accept(&end.qp, &ConnParam::default()).unwrap();
        assert!(matches!(end.event(&mut simulation), CmEvent::Established { .. }));
        let write = first_fpdu(Rtr::Write.op());
        let mut bad = write.clone();
        bad[19] ^= 1;
        if good {
            raw.borrow_mut().send(conn, &write);
            until(&mut simulation, "our Send", || raw.borrow().heard(conn).len() == 24 + SEND);
        }
        raw.borrow_mut().send(conn, &bad);
        let expected = if good { DisconnectReason::TerminateSent } else { DisconnectReason::Aborted };
        assert_eq!(end.end(&mut simulation), expected);
        until(&mut simulation, "FIN", || finished(&raw, conn));
        let said = behind(&raw, conn, 24);
        if good {
            assert_eq!((said.len(), &said[SEND + 20..SEND + 24]), (SEND + TERMINATE, &[0x20, 2, 0, 0][..]));
        } else {
            assert!(said.is_empty());
        }
    }
}

/// Only an Initiator reports errors of the enhanced start-up, and only in its first FPDU (RFC 6581 §8). In a later
/// FPDU, also one that arrives together with the first, the same code is an error of the peer's operations.
#[test]
fn only_the_first_fpdu_reports_errors_of_the_start_up() {
    let terminate = with_crc(&[
        &[0, 22, 0x41, 0x47, 0, 0, 0, 0][..],
        &[0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0x20, 6, 0, 0],
    ]);
    let write = first_fpdu(Rtr::Write.op());
    for (octets, meaning) in
        [(terminate.clone(), (2, 0, 6)), ([write, terminate.clone()].concat(), (0, 2, 6))]
    {
        let (mut simulation, end, raw) = with_raw(&options());
        let _listener = end.events.listen(PORT, 2).unwrap();
        let conn = raw_connection(&mut simulation, &raw);
        raw.borrow_mut().send(conn, &Initiator::new(&Offer::default()).unwrap().1);
        let CmEvent::ConnectRequest(request) = end.event(&mut simulation) else { panic!("no request") };
        request.accept(&end.qp, &ConnParam::default()).unwrap();
        assert!(matches!(end.event(&mut simulation), CmEvent::Established { .. }));
        raw.borrow_mut().send(conn, &octets);
        assert_eq!(end.end(&mut simulation), DisconnectReason::TerminateReceived);
        let told = end.qp.terminate().expect("the reason");
        assert_eq!((told.sent, (told.layer, told.etype, told.code)), (false, meaning));
    }
    // The same from the side that has accepted, in its first FPDU.
    let (mut simulation, end, raw) = with_raw(&options());
    let (conn, _) = asked(&mut simulation, &end, &raw, &ConnParam::default());
    raw.borrow_mut().send(conn, &[reply(0, 0x0004_0004), terminate].concat());
    assert!(matches!(end.event(&mut simulation), CmEvent::Established { .. }));
    assert_eq!(end.end(&mut simulation), DisconnectReason::TerminateReceived);
    let told = end.qp.terminate().expect("the reason");
    assert_eq!((told.sent, (told.layer, told.etype, told.code)), (false, (0, 2, 6)));
}

/// MPA-72: if a peer closes after the Reply, the connection ends without an error, and posted work is flushed.
#[test]
fn a_peer_that_closes_after_the_reply() {
    let (mut simulation, end, raw) = with_raw(&options());
    let _listener = end.events.listen(PORT, 2).unwrap();
    let conn = raw_connection(&mut simulation, &raw);
    raw.borrow_mut().send(conn, &Initiator::new(&Offer::default()).unwrap().1);
    let CmEvent::ConnectRequest(request) = end.event(&mut simulation) else { panic!("no request") };
    end.post(1, SendOp::Send, &[]);
    request.accept(&end.qp, &ConnParam::default()).unwrap();
    until(&mut simulation, "the Reply", || raw.borrow().heard(conn).len() >= 24);
    raw.borrow_mut().close(conn);
    assert!(matches!(end.event(&mut simulation), CmEvent::Established { .. }));
    assert_eq!(end.end(&mut simulation), DisconnectReason::Peer);
    assert_eq!(end.next(&mut simulation).status, WcStatus::Flushed);
    until(&mut simulation, "FIN", || finished(&raw, conn));
    assert_eq!(raw.borrow().heard(conn).len(), 24);
}

/// MPA-75, 76: a peer that sends its Request octet by octet is reset as soon as its time is over. MPA-60.
#[test]
fn a_request_that_dribbles_is_cut_off() {
    let (mut simulation, end, raw) = with_raw(&options());
    let _listener = end.events.listen(PORT, 1).unwrap();
    let conn = raw_connection(&mut simulation, &raw);
    let started = simulation.now();
    let request = Initiator::new(&Offer { private_data: &[0; 100], ..Offer::default() }).unwrap().1;
    for octet in request {
        if closed(&raw, conn).is_some() {
            break;
        }
        raw.borrow_mut().send(conn, &[octet]);
        raw.borrow_mut().wake = Some(simulation.now() + Duration::from_secs(1));
        pass(&mut simulation, Duration::from_secs(1));
    }
    assert_eq!(closed(&raw, conn), Some(CloseReason::Reset));
    let took = simulation.now() - started;
    assert!(took >= Duration::from_secs(60) && took < Duration::from_secs(63), "{took:?}");
    assert!(end.events.poll().is_none());
    // The listener still takes the Request of another peer.
    let conn = raw_connection(&mut simulation, &raw);
    raw.borrow_mut().send(conn, &Initiator::new(&Offer::default()).unwrap().1);
    assert!(matches!(end.event(&mut simulation), CmEvent::ConnectRequest(_)));
}

/// Peers that begin a start-up and do not continue cost little memory each. The device keeps at most as many of them as
/// its limit allows, and later frees all their memory.
#[test]
fn half_open_start_ups_are_bounded() {
    const ROOM: usize = 64;
    // The limit on start-ups is 1/128 of the limit on TCP connections.
    let tcp = TcpConfig { max_connections: 128 * ROOM as u32, ..TcpConfig::default() };
    let (mut simulation, end, raw) = with_raw(&Options { tcp, ..options() });
    let _listener = end.events.listen(PORT, 3).unwrap();
    let request = Initiator::new(&Offer { private_data: &[7; 508], ..Offer::default() }).unwrap().1;
    let mut round = |n: usize| {
        let before = allocated::live();
        let conns: Vec<ConnId> = (0..n).map(|_| raw.borrow_mut().connect(address(0))).collect();
        pass(&mut simulation, Duration::from_secs(1));
        for conn in &conns {
            if closed(&raw, *conn).is_none() {
                raw.borrow_mut().send(*conn, &request[..request.len() - 1]);
            }
        }
        pass(&mut simulation, Duration::from_secs(1));
        let left = conns.iter().filter(|conn| closed(&raw, **conn).is_none()).count();
        // The memory that the device and the raw node have allocated.
        let cost = allocated::live() - before;
        pass(&mut simulation, Duration::from_secs(3000));
        assert!(conns.iter().all(|conn| closed(&raw, *conn).is_some()));
        let mut node = raw.borrow_mut();
        node.seen = Seen::default();
        (left, cost, allocated::live())
    };
    let (left, cost, baseline) = round(2 * ROOM);
    assert_eq!(left, ROOM);
    assert!(cost < (2 * ROOM as isize) * (16 << 10), "{cost} octets");
    let (_, _, after) = round(2 * ROOM);
    assert!(after - baseline < 16 << 10, "{baseline} octets, then {after}");
    assert!(end.events.poll().is_none());
}

/// MPA-89: TCP repairs the segments of the start-up like all other segments. Whatever the network loses, repeats or
/// reorders, the connection is established, and the first messages arrive.
#[test]
fn a_start_up_over_a_bad_network() {
    for seed in 0..60 {
        let rtr = [RtrChoice::Off, RtrChoice::Write, RtrChoice::Read, RtrChoice::Send][seed as usize % 4];
        let markers = seed % 3 == 0;
        let (mut simulation, mut server, mut client) = ends(&Options { rtr, markers, ..options() });
        // This first connection makes the nodes resolve each other's address, because ARP would give up on the bad
        // network sooner than TCP.
        let (mut a, mut b) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
        connect(&mut simulation, &mut a, &mut b);
        for (from, to) in [(0, 1), (1, 0)] {
            let network = format!("delay=50us,jitter=200us,loss=0.15,dup=0.1,reorder=0.2,seed={seed}");
            simulation.network().link_mut(from, to).unwrap().set_impairment(&network.parse().unwrap());
        }
        let param = ConnParam {
            private_data: pattern(seed as usize * 8, 3),
            timeout: Duration::from_secs(600),
            ..ConnParam::default()
        };
        connect_with(&mut simulation, (&mut server, &param), (&mut client, &param));
        works(&mut simulation, &server, &client);
    }
}
