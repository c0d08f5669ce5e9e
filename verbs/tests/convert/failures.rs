//! Start-ups that fail.

use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use socket2::SockRef;
use urnic::*;

use crate::ends::*;

/// MPA-66: the peer rejects the request. The connection ends, and the queue pair may use another connection.
#[test]
fn a_rejection_is_told() {
    let node = Node::new();
    let (ours, mut peer) = wire();
    node.convert(ours, Role::Initiator, &[], &plain());
    assert_eq!(heard(&mut peer, REQUEST.len()), REQUEST);
    peer.write_all(REJECTION).unwrap();
    match node.event() {
        CmEvent::Rejected { private_data, .. } => assert_eq!(private_data, b"no"),
        other => panic!("{other:?}"),
    }
    assert_eq!(end(&mut peer), None);
    let (again, mut peer) = wire();
    node.convert(again, Role::Initiator, REPLY, &plain());
    node.established();
    assert_eq!(heard(&mut peer, REQUEST.len()), REQUEST);
}

/// MPA-52, MPA-53, MPA-64, MPA-74: the peer sends other octets than a start-up frame, or a frame of the wrong role. The
/// program may have read these octets before the conversion.
#[test]
fn strange_octets_end_the_startup() {
    for (role, words) in [
        (Role::Responder, &b"GET / HTTP/1.1\r\n\r\n    "[..]),
        (Role::Responder, REPLY),
        (Role::Initiator, b"HTTP/1.1 200 OK\r\n     "),
        (Role::Initiator, REQUEST),
    ] {
        for read in [0, words.len()] {
            let node = Node::new();
            let (mut ours, mut peer) = wire();
            peer.write_all(words).unwrap();
            let buffered = heard(&mut ours, read);
            node.convert(ours, role, &buffered, &plain());
            assert_eq!(node.failure(), ConnectFailure::NotIwarp);
            if role == Role::Initiator {
                assert_eq!(heard(&mut peer, REQUEST.len()), REQUEST);
            }
            assert_eq!(end(&mut peer), None);
        }
    }
}

/// MPA-74: two initiators. MPA-75: two responders.
#[test]
fn roles_that_do_not_fit_are_told() {
    let (one, other) = (Node::new(), Node::new());
    let (ours, theirs) = wire();
    one.convert(ours, Role::Initiator, &[], &plain());
    other.convert(theirs, Role::Initiator, &[], &plain());
    // The first side that receives the other's Request ends the connection. The other side may see only the end of the
    // connection.
    let failures = [one.failure(), other.failure()];
    assert!(failures.contains(&ConnectFailure::NotIwarp), "{failures:?}");
    let (ours, theirs) = wire();
    one.convert(ours, Role::Responder, &[], &impatient());
    other.convert(theirs, Role::Responder, &[], &plain());
    assert_eq!(one.failure(), ConnectFailure::TimedOut);
    assert_eq!(other.failure(), ConnectFailure::Reset);
}

/// MPA-76: the peer sends nothing, or only a part of its frame.
#[test]
fn a_startup_takes_no_longer_than_it_may() {
    for (role, frame) in [(Role::Responder, REQUEST), (Role::Initiator, REPLY)] {
        for said in [0, frame.len() - 1] {
            let node = Node::new();
            let (ours, mut peer) = wire();
            peer.write_all(&frame[..said]).unwrap();
            node.convert(ours, role, &[], &impatient());
            assert_eq!(node.failure(), ConnectFailure::TimedOut);
            if role == Role::Initiator {
                assert_eq!(heard(&mut peer, REQUEST.len()), REQUEST);
            }
            assert_eq!(end(&mut peer), Some(ErrorKind::ConnectionReset));
            // The queue pair is unchanged.
            let (again, mut peer) = wire();
            peer.write_all(frame).unwrap();
            node.convert(again, role, &[], &plain());
            node.established();
        }
    }
}

/// MPA-79 code 1: the peer ends the connection before the conversion or after it, by a FIN or a reset. The device does
/// not try an older revision (MPAE-9), because it has no second socket.
#[test]
fn a_peer_that_goes_is_told() {
    for (role, frame) in [(Role::Responder, REQUEST), (Role::Initiator, REPLY)] {
        for (said, resets, early) in
            [(0, false, true), (0, false, false), (7, false, true), (7, true, false), (0, true, false)]
        {
            let node = Node::new();
            let (ours, mut peer) = wire();
            peer.write_all(&frame[..said]).unwrap();
            let goes = |peer: TcpStream| {
                if resets {
                    SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
                } else {
                    peer.shutdown(Shutdown::Write).unwrap();
                }
                (!resets).then_some(peer)
            };
            let kept = if early {
                let kept = goes(peer);
                node.convert(ours, role, &[], &plain());
                kept
            } else {
                node.convert(ours, role, &[], &plain());
                goes(peer)
            };
            assert_eq!(node.failure(), ConnectFailure::Reset, "{role:?} {said} {resets} {early}");
            if let Some(mut peer) = kept {
                let asked = if role == Role::Initiator { REQUEST.len() } else { 0 };
                heard(&mut peer, asked);
                assert_eq!(end(&mut peer), None);
            }
        }
    }
}

/// MPAE-8, MPAE-9: a peer that knows only revision 1 closes the connection. The device does not try the older revision
/// on a new connection, because only the program could make one.
#[test]
fn there_is_no_second_connection() {
    let node = Node::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    node.convert(ours, Role::Initiator, &[], &plain());
    assert_eq!(heard(&mut peer, REQUEST.len()), REQUEST);
    drop(peer);
    assert_eq!(node.failure(), ConnectFailure::Reset);
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().map_err(|e| e.kind()).err(), Some(ErrorKind::WouldBlock));
}

/// A Reply to a Request of revision 1 has room for 512 octets of private data, a Reply to an enhanced Request only for
/// 508. An answer that does not fit becomes a rejection (MPA-65), which both ends report.
#[test]
fn an_answer_that_does_not_fit_rejects() {
    let words: Vec<u8> = pattern(512);
    let param = ConnParam { private_data: words.clone(), ..plain() };
    let node = Node::new();
    let (ours, mut peer) = wire();
    node.convert(ours, Role::Responder, &[], &param);
    peer.write_all(&[&b"MPA ID Req Frame\x40\x01\x02\x00"[..], &words].concat()).unwrap();
    assert_eq!(heard(&mut peer, 532), [&b"MPA ID Rep Frame\x40\x01\x02\x00"[..], &words].concat());
    assert_eq!(node.established(), words);
    let [one, other] = [(); 2].map(|()| Node::new());
    let (ours, theirs) = wire();
    one.convert(ours, Role::Responder, &[], &param);
    other.convert(theirs, Role::Initiator, &[], &plain());
    assert_eq!(one.failure(), ConnectFailure::Terms);
    let event = other.event();
    assert!(matches!(event, CmEvent::Rejected { .. }), "{event:?}");
}

/// The program gives up a conversion: it ends the connection, changes the queue pair's state, or drops the queue pair
/// or the device.
#[test]
fn a_conversion_can_be_given_up() {
    for role in [Role::Responder, Role::Initiator] {
        for way in 0..4 {
            let node = Node::new();
            let (ours, mut peer) = wire();
            let connection = node.convert(ours, role, &[], &plain());
            if role == Role::Initiator {
                assert_eq!(heard(&mut peer, REQUEST.len()), REQUEST);
            }
            let Node { device, pd, cq, qp, events } = node;
            let aborted = |events: &EventChannel, qpn| match events.wait(PATIENCE) {
                Some(CmEvent::ConnectError { qpn: told, reason }) => {
                    assert_eq!((told, reason), (qpn, ConnectFailure::Aborted));
                }
                other => panic!("{other:?}"),
            };
            let qpn = qp.qpn();
            match (way, role) {
                (0, _) => {
                    connection.disconnect().unwrap();
                    aborted(&events, qpn);
                    assert_eq!(qp.state(), QpState::Idle);
                }
                (1, Role::Responder) => {
                    qp.to_error();
                    aborted(&events, qpn);
                    assert_eq!(qp.state(), QpState::Error);
                    qp.to_idle().unwrap();
                }
                // The device waits for the Reply, because it must answer an acceptance with a Terminate (MPAE-31).
                // This peer sends no Reply, so the end of the connection is not checked.
                (1, Role::Initiator) => {
                    qp.to_error();
                    drop((peer, qp, events, cq, pd, device));
                    continue;
                }
                (2, _) => {
                    drop(qp);
                    aborted(&events, qpn);
                }
                _ => drop((connection, qp, events, cq, pd, device)),
            }
            assert_eq!(end(&mut peer), Some(ErrorKind::ConnectionReset), "{role:?} {way}");
        }
    }
}
