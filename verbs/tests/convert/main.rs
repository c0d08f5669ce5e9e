//! Sockets that a program converts to RDMA connections, after it has spoken its own protocol on them (RFC 5044 §7.1).
//! The tests run over the loopback, in real time. The peers are other converted sockets, and plain sockets that send
//! golden octets.

mod ends;
mod failures;
mod sockets;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use ends::*;
use proptest::prelude::*;
use urnic::*;

/// RFC 5044 §7.1: streaming data first, then MPA on the same connection. Either end may have opened the TCP
/// connection. MPA-61: both ends get the other's private data.
#[test]
fn sockets_become_connections_after_a_protocol_of_the_program() {
    let addresses: [SocketAddr; 2] = [(Ipv4Addr::LOCALHOST, 0).into(), (Ipv6Addr::LOCALHOST, 0).into()];
    let has_ipv6 = TcpListener::bind(addresses[1]).is_ok();
    for at in addresses.into_iter().take(1 + usize::from(has_ipv6)) {
        for connected_asks in [true, false] {
            let (asking, answering) = (Node::new(), Node::new());
            let (one, other) = wire_at(at);
            let (mut ask, mut answer) = if connected_asks { (one, other) } else { (other, one) };
            let (local, peer) = (ask.local_addr().unwrap(), ask.peer_addr().unwrap());
            ask.write_all(b"RDMA?\n").unwrap();
            assert_eq!(heard(&mut answer, 6), b"RDMA?\n");
            answer.write_all(b"yes\n").unwrap();
            let param = |words: &[u8]| ConnParam { private_data: words.to_vec(), ..ConnParam::default() };
            let answered = answering.convert(answer, Role::Responder, &[], &param(b"mine"));
            assert_eq!(heard(&mut ask, 4), b"yes\n");
            let asked = asking.convert(ask, Role::Initiator, &[], &param(b"yours"));
            assert_eq!((asked.qpn(), answered.qpn()), (asking.qp.qpn(), answering.qp.qpn()));
            assert_eq!(asking.established(), b"mine");
            assert_eq!(answering.established(), b"yours");
            works(&asking, &answering);
            works(&answering, &asking);
            let connections = asking.device.connections().unwrap();
            assert_eq!((connections.len(), connections[0].qpn), (1, Some(asking.qp.qpn())));
            assert_eq!((connections[0].local, connections[0].peer), (local, peer));
            assert!(connections[0].tcp.delivered > 300_000, "{connections:?}");
            answered.disconnect().unwrap();
            for (node, why) in [(&answering, DisconnectReason::Local), (&asking, DisconnectReason::Peer)] {
                let event = node.event();
                assert!(matches!(event, CmEvent::Disconnected { reason, .. } if reason == why), "{event:?}");
            }
        }
    }
}

/// Both ends of a connection can be converted sockets of one device.
#[test]
fn both_ends_may_be_one_device() {
    let node = Node::new();
    let other = Node::of(&node.device);
    let (one, two) = wire();
    other.convert(two, Role::Responder, &[], &plain());
    node.convert(one, Role::Initiator, &[], &plain());
    node.established();
    other.established();
    works(&node, &other);
}

/// The peer of a converted socket may be an ordinary device that listens or connects, because it does not notice the
/// conversion. The program may have connected the socket itself, or have accepted it from its own listener.
#[test]
fn the_peer_may_be_any() {
    for role in [Role::Initiator, Role::Responder] {
        let (converts, ordinary) = (Node::new(), Node::new());
        match role {
            Role::Initiator => {
                let listener = ordinary.events.listen(0, 1).unwrap();
                let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, listener.port())).unwrap();
                converts.convert(socket, role, &[], &plain());
                let CmEvent::ConnectRequest(request) = ordinary.event() else { panic!("no request") };
                request.accept(&ordinary.qp, &plain()).unwrap();
            }
            Role::Responder => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                ordinary.events.connect(&ordinary.qp, listener.local_addr().unwrap(), &plain()).unwrap();
                converts.convert(listener.accept().unwrap().0, role, &[], &plain());
            }
        }
        converts.established();
        ordinary.established();
        let initiator = if role == Role::Initiator { (&converts, &ordinary) } else { (&ordinary, &converts) };
        works(initiator.0, initiator.1);
    }
}

/// Many sockets are converted at once, and leave no resources behind, whichever thread drives the device.
#[test]
fn many_are_converted_at_once() {
    const PAIRS: usize = 50;
    for progress in [Progress::Inline, Progress::Adaptive, Progress::Dedicated] {
        let mut config = Config::default();
        config.engine.progress = progress;
        let [asking, answering] = [0; 2].map(|_| Node::of(&Device::open(&config).unwrap()));
        let mut pairs = Vec::new();
        for i in 0..PAIRS {
            let (one, other) = wire();
            let (asks, answers) = (qp(&asking.pd, &asking.cq), qp(&answering.pd, &answering.cq));
            let name = ConnParam { private_data: vec![i as u8], ..plain() };
            // The Request may come before the responder's conversion, or after it.
            let responder =
                || answering.events.convert(&answers, other, Role::Responder, &[], &name).unwrap();
            let initiator = || asking.events.convert(&asks, one, Role::Initiator, &[], &name).unwrap();
            let connections = if i % 2 == 0 {
                let first = responder();
                [initiator(), first]
            } else {
                [initiator(), responder()]
            };
            pairs.push((connections, asks, answers));
        }
        let wait = |what: &mut dyn FnMut(CmEvent)| {
            let start = Instant::now();
            for _ in 0..2 * PAIRS {
                loop {
                    assert!(start.elapsed() < PATIENCE, "{progress:?}");
                    if let Some(event) = asking.events.poll().or_else(|| answering.events.poll()) {
                        what(event);
                        break;
                    }
                }
            }
        };
        wait(&mut |event| match event {
            CmEvent::Established { qpn, private_data, .. } => {
                let i = usize::from(private_data[0]);
                assert!(pairs[i].0.iter().any(|connection| connection.qpn() == qpn));
            }
            other => panic!("{other:?}"),
        });
        for ([asked, _], ..) in &pairs {
            asked.disconnect().unwrap();
        }
        wait(&mut |event| assert!(matches!(event, CmEvent::Disconnected { .. }), "{event:?}"));
        drop(pairs);
        let start = Instant::now();
        for node in [&asking, &answering] {
            while !node.device.connections().unwrap().is_empty() {
                assert!(start.elapsed() < PATIENCE, "{progress:?}: a connection is left");
                asking.events.poll();
                answering.events.poll();
            }
        }
    }
}

/// The peer is a plain socket, which sends and expects the octets of the standard. MPA-62, MPAE-3: the Request; MPA-70:
/// the initiator sends the first FPDU.
#[test]
fn an_initiator_speaks_the_standard() {
    let node = Node::new();
    let (ours, mut peer) = wire();
    node.convert(ours, Role::Initiator, &[], &plain());
    assert_eq!(heard(&mut peer, REQUEST.len()), REQUEST);
    node.qp.post_recv(&RecvWr { wr_id: 2, sges: &[] }).unwrap();
    peer.write_all(REPLY).unwrap();
    assert_eq!(node.established(), b"");
    node.send_nothing();
    assert_eq!(heard(&mut peer, SEND.len()), SEND);
    assert_eq!(node.completion().wr_id, 1);
    peer.write_all(SEND).unwrap();
    let wc = node.completion();
    assert_eq!((wc.wr_id, wc.byte_len), (2, 0));
    // MPA-43: FPDUs are as large as segments, which are large on the loopback.
    let words = node.pd.alloc_mr(10_000, Access::empty()).unwrap();
    let op = SendOp::Write { addr: 0, rkey: 0 };
    let sges = [Sge::of(&words, 0, 10_000)];
    node.qp.post_send(&SendWr { wr_id: 3, op, sges: &sges, flags: SendFlags::empty() }).unwrap();
    // If the peer's Send was late, zero-length Writes come first: the initiator repeats them until data of the peer
    // arrives, because the Linux kernel's iWARP (siw) may need them as a responder.
    let mut length = heard(&mut peer, 2);
    while length == WRITE[..2] {
        assert!(heard(&mut peer, WRITE.len() - 2).starts_with(&WRITE[2..4]));
        length = heard(&mut peer, 2);
    }
    assert_eq!(length, (10_000 + 14_u16).to_be_bytes());
}

/// MPA-63, MPA-67, MPAE-11, MPAE-25: the Reply.
#[test]
fn a_responder_speaks_the_standard() {
    let node = Node::new();
    let (ours, mut peer) = wire();
    let param = ConnParam { private_data: b"ok".to_vec(), ird: 8, ord: 16, ..ConnParam::default() };
    node.convert(ours, Role::Responder, &[], &param);
    peer.write_all(REQUEST_P2P).unwrap();
    let reply = b"MPA ID Rep Frame\x50\x02\x00\x06\xc0\x08\xc0\x10ok";
    assert_eq!(heard(&mut peer, reply.len()), reply);
    match node.event() {
        CmEvent::Established { private_data, ird, ord, terms, .. } => {
            assert_eq!((&private_data[..], ird, ord), (&b"hi"[..], 8, 16));
            assert_eq!((terms.peer_ird, terms.peer_ord, terms.peer_to_peer), (Some(16), Some(8), true));
        }
        other => panic!("{other:?}"),
    }
    // MPA-70: the responder sends no FPDU before the peer's first FPDU.
    node.send_nothing();
    peer.set_nonblocking(true).unwrap();
    assert_eq!(peer.read(&mut [0]).map_err(|e| e.kind()), Err(ErrorKind::WouldBlock));
    peer.set_nonblocking(false).unwrap();
    peer.write_all(WRITE).unwrap();
    assert_eq!(heard(&mut peer, SEND.len()), SEND);
}

/// Checks a start-up frame that is read in two parts. The program has already read the first `read` octets. The device
/// reads the rest, which arrives in pieces of the sizes `pieces`. Octets beyond these pieces arrive at once.
fn split(role: Role, frame: &[u8], read: usize, pieces: &[usize]) {
    let node = Node::new();
    let (ours, mut peer) = wire();
    let (mut read, mut rest) = frame.split_at(read);
    peer.write_all(b"by RDMA\n").unwrap();
    peer.write_all(read).unwrap();
    let mut socket = ours;
    assert_eq!(heard(&mut socket, 8), b"by RDMA\n");
    let buffered = heard(&mut socket, read.len());
    // The first piece of the rest arrives before the conversion.
    let mut pieces = pieces.iter().copied();
    let mut piece = |rest: &mut &[u8], peer: &mut TcpStream| {
        let n = pieces.next().unwrap_or(usize::MAX).min(rest.len());
        peer.write_all(&rest[..n]).unwrap();
        *rest = &rest[n..];
    };
    piece(&mut rest, &mut peer);
    read = &buffered;
    let param = ConnParam { private_data: b"words".to_vec(), ..plain() };
    node.convert(socket, role, read, &param);
    while !rest.is_empty() {
        piece(&mut rest, &mut peer);
    }
    let (said, hears) = match role {
        Role::Initiator => (&b"MPA ID Req Frame\x50\x02\x00\x09\x00\x04\x00\x04words"[..], &b""[..]),
        Role::Responder => (&b"MPA ID Rep Frame\x50\x02\x00\x09\xc0\x04\xc0\x04words"[..], &b"hi"[..]),
    };
    assert_eq!(heard(&mut peer, said.len()), said);
    assert_eq!(node.established(), hears);
    peer.write_all(WRITE).unwrap();
    node.send_nothing();
    assert_eq!(heard(&mut peer, SEND.len()), SEND);
    assert_eq!(node.completion().wr_id, 1);
}

/// MPA-77: the device takes all octets after the program's own protocol, and no others.
#[test]
fn octets_that_were_read_already_count() {
    for (role, frame) in [(Role::Responder, REQUEST_P2P), (Role::Initiator, REPLY)] {
        for read in 0..=frame.len() {
            split(role, frame, read, &[]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_split_is_the_same(
        asks in any::<bool>(),
        read in 0..=REPLY.len(),
        pieces in prop::collection::vec(0..12_usize, 0..8),
    ) {
        let (role, frame) =
            if asks { (Role::Initiator, REPLY) } else { (Role::Responder, REQUEST_P2P) };
        split(role, frame, read, &pieces);
    }
}
