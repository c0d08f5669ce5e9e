//! Every kind of message against golden octets, in both directions (MPA-12, MPA-35, DDP-17, DDP-21, RDMAP-8).

mod support;

use support::*;
use urnic_iwarp::*;

/// Returns golden octets by name. Golden octets with markers are in `markers.rs`.
fn vector(name: &str) -> Vec<u8> {
    vectors()
        .find(|(n, _)| *n == name)
        .map(|(_, octets)| hex(octets))
        .unwrap_or_else(|| panic!("no vector {name}"))
}

/// Returns the octets that an Initiator sends for one message after `before` empty Sends.
fn sent(before: usize, op: Op, message: &[u8]) -> Vec<u8> {
    let mut node = Node::initiator();
    for _ in 0..before {
        node.send(Op::Send { solicited: false, invalidate: None }, &[], 1454).unwrap();
    }
    node.take_out();
    node.send(op, message, 1454).unwrap();
    node.take_out()
}

fn sent_terminate(t: Terminate) -> Vec<u8> {
    sent(0, Op::Terminate(t), &[])
}

fn send(solicited: bool, invalidate: Option<u32>) -> Op {
    Op::Send { solicited, invalidate }
}

/// DDP-17, 21; RDMAP-7, 13.
/// MPA-12, 13, 35.
#[test]
fn every_message_is_sent_as_the_golden_octets() {
    let sixteen: Vec<u8> = (0..16).collect();
    assert_eq!(sent(0, Op::Write { stag: 0, to: 0 }, &[]), vector("RTR-WRITE"));
    assert_eq!(sent(0, send(false, None), &[]), vector("RTR-SEND"));
    assert_eq!(sent(1, send(false, None), b"hello"), vector("SEND-5"));
    assert_eq!(sent(0, send(true, None), &[0xFF]), vector("SEND-SE"));
    assert_eq!(sent(0, send(false, Some(0x1234)), &[]), vector("SEND-INV"));
    assert_eq!(sent(0, send(true, Some(0x1234)), &[]), vector("SEND-SE-INV"));
    assert_eq!(sent(0, Op::Write { stag: 0x1234_5678, to: 0x1000 }, &sixteen), vector("WRITE-16"));

    let mut node = Node::initiator();
    node.read(0, (0, 0), (0, 0)).unwrap();
    assert_eq!(node.take_out(), vector("RTR-READ"));
    let mut node = Node::initiator();
    node.read(4096, (0xAABB_CCDD, 0x2000), (0x1234_5678, 0x1000)).unwrap();
    assert_eq!(node.take_out(), vector("READ-REQ"));
}

/// READ-RESP and READ-RESP-0 answer Requests that arrived over the wire (RDMAP-14, RDMAP-34).
#[test]
fn read_responses_are_the_golden_octets() {
    let mut node = Node::responder();
    node.receive(&vector("RTR-READ")).unwrap();
    assert_eq!(node.events(), [Delivery::ReadRequested]);
    node.respond(1454);
    assert_eq!(node.take_out(), vector("READ-RESP-0"));

    let request = read_header((0xAABB_CCDD, 0x2000), 4, (7, 0x10));
    node.memory.add(7, 0x10, 4).data_mut().copy_from_slice(&[0xDE, 0xAD, 0xBE, 0xEF]);
    node.receive(&fpdu(&untagged(0x41, 0x41, 1, 2, 0, &request))).unwrap();
    node.respond(1454);
    assert_eq!(node.take_out(), vector("READ-RESP"));
}

/// Two golden segments, whose DDP headers differ only in L and MO, are received as one Send (DDP-12, DDP-18,
/// DDP-25).
#[test]
fn two_segments_are_the_golden_octets() {
    let mut node = Node::responder();
    node.memory.post_receive(16);
    node.receive(&vector("SEG-1of2")).unwrap();
    assert_eq!(node.events(), []);
    node.receive(&vector("SEG-2of2")).unwrap();
    let received = Delivery::Received { len: 6, solicited: false, invalidated: None };
    assert_eq!(node.events(), [received]);
    assert_eq!(node.memory.received, [b"abcdef"]);
}

/// RDMAP-16.
#[test]
fn terminates_are_sent_as_the_golden_octets() {
    assert_eq!(sent_terminate(Terminate::LOCAL_CATASTROPHIC), vector("TERM-LOCAL"));
    assert_eq!(sent_terminate(Terminate::CRC), vector("TERM-CRC"));
    assert_eq!(sent_terminate(Terminate::NO_MATCHING_RTR), vector("TERM-RTR"));
}

/// The Terminate that a golden message causes is golden itself (RDMAP-17..20, RDMAP-77, RDMAP-78).
#[test]
fn faults_answer_with_the_golden_terminate() {
    let answer = |node: &mut Node, octets: &[u8]| {
        let t = node.receive(octets).unwrap_err().terminate.unwrap();
        node.send(Op::Terminate(t), &[], 1454).unwrap();
        node.take_out()
    };
    assert_eq!(answer(&mut Node::initiator(), &vector("WRITE-16")), vector("TERM-DDP-STAG"));

    let mut node = Node::initiator();
    node.memory.post_receive(0);
    node.receive(&vector("RTR-SEND")).unwrap(); // takes MSN 1
    assert_eq!(answer(&mut node, &vector("SEND-5")), vector("TERM-DDP-NOBUF"));

    let mut node = Node::initiator();
    node.memory.add(0x1234_5678, 0x1000, 4095);
    assert_eq!(answer(&mut node, &vector("READ-REQ")), vector("TERM-RDMAP-BOUNDS"));

    let reserved = fpdu(&untagged(0x41, 0x4C, 0, 1, 0, &[]));
    assert_eq!(answer(&mut Node::initiator(), &reserved), vector("TERM-OPCODE"));
}

#[test]
fn every_message_is_received_from_the_golden_octets() {
    let received = |len, solicited, invalidated| Delivery::Received { len, solicited, invalidated };
    let take = |name: &str| {
        let mut node = Node::responder();
        node.memory.post_receive(64);
        node.memory.add(0x1234, 0, 8);
        node.memory.add(0x1234_5678, 0x1000, 4096);
        node.receive(&vector(name)).unwrap_or_else(|f| panic!("{name}: {f}"));
        node
    };
    assert_eq!(take("RTR-WRITE").memory.events, [Delivery::FirstFpdu]); // RDMAP-23
    assert_eq!(take("RTR-SEND").events(), [received(0, false, None)]); // RDMAP-84
    assert_eq!(take("SEND-SE").events(), [received(1, true, None)]);
    assert_eq!(take("SEND-INV").events(), [received(0, false, Some(0x1234))]);
    assert!(!take("SEND-SE-INV").memory.region(0x1234).valid); // RDMAP-46
    assert_eq!(take("SEND-SE-INV").events(), [received(0, true, Some(0x1234))]);
    assert_eq!(take("WRITE-16").memory.region(0x1234_5678).data()[..16], (0..16).collect::<Vec<u8>>());

    let mut node = take("READ-REQ");
    let Some(Pending::Read(request)) = node.stream.next_response() else { panic!("no Read") };
    assert_eq!((request.sink_stag, request.sink_to, request.len), (0xAABB_CCDD, 0x2000, 4096));
    assert_eq!((request.src_stag, request.src_to), (0x1234_5678, 0x1000));

    let mut node = Node::initiator();
    node.memory.add(0xAABB_CCDD, 0x2000, 4);
    node.read(0, (0, 0), (0, 0)).unwrap();
    node.read(4, (0xAABB_CCDD, 0x2000), (1, 0)).unwrap();
    node.receive(&vector("READ-RESP-0")).unwrap();
    assert_eq!(node.events(), [Delivery::ReadDone { msn: 1, len: 0 }]);
    node.receive(&vector("READ-RESP")).unwrap();
    assert_eq!(node.events()[1], Delivery::ReadDone { msn: 2, len: 4 });
    assert_eq!(node.memory.region(0xAABB_CCDD).data(), [0xDE, 0xAD, 0xBE, 0xEF]);
    assert_eq!(node.stream.reads_outstanding(), 0);
}

/// Golden Terminates are decoded to the fields that were sent, and displayed as text (RDMAP-16, RDMAP-49).
#[test]
fn golden_terminates_are_understood() {
    for (name, octets, words) in [
        ("TERM-LOCAL", [0x00, 0x00, 0x00], "RDMAP local catastrophic error (00 00)"),
        ("TERM-CRC", [0x20, 0x02, 0x00], "MPA CRC error (20 02)"),
        ("TERM-RTR", [0x20, 0x07, 0x00], "MPA no matching RTR option (20 07)"),
        ("TERM-DDP-STAG", [0x11, 0x00, 0xC0], "DDP tagged buffer error: invalid STag (11 00)"),
        ("TERM-DDP-NOBUF", [0x12, 0x02, 0xC0], "DDP untagged buffer error: no buffer available (12 02)"),
        (
            "TERM-RDMAP-BOUNDS",
            [0x01, 0x01, 0xE0],
            "RDMAP remote protection error: base or bounds violation (01 01)",
        ),
        ("TERM-OPCODE", [0x02, 0x06, 0xC0], "RDMAP remote operation error: unexpected opcode (02 06)"),
    ] {
        // No receive request is posted (RDMAP-48). Errors of the start-up come in an initiator's first FPDU.
        let mut node = Node::responder();
        node.receive(&vector(name)).unwrap();
        let &[Delivery::Terminated(t)] = &node.events()[..] else { panic!("{name}: {:?}", node.events()) };
        assert_eq!(octets_of(&t), octets, "{name}");
        assert_eq!(t.to_string(), words);
        assert!(node.stream.ended());
        // Encoded again, the Terminates have the same octets.
        assert_eq!(sent_terminate(t), vector(name));
    }
}

/// RDMAPX-1, 7, 10, 14, 21: the messages of RFC 7306, sent and received.
#[test]
fn extensions_are_the_golden_octets() {
    let immediate = |solicited| Op::Immediate { data: [1, 2, 3, 4, 5, 6, 7, 8], solicited };
    assert_eq!(sent(0, immediate(false), &[]), vector("IMM"));
    assert_eq!(sent(0, immediate(true), &[]), vector("IMM-SE"));
    for (name, solicited) in [("IMM", false), ("IMM-SE", true)] {
        let mut node = Node::initiator();
        node.memory.post_receive(0);
        node.receive(&vector(name)).unwrap();
        let data = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(node.events(), [Delivery::Immediate { data, solicited, written: 0 }], "{name}");
        assert!(node.memory.receives.is_empty(), "{name} takes a receive request");
    }

    // The vectors choose the request identifiers of Atomics freely; ours is the MSN of the request. All other octets
    // before the CRC are the same.
    let named = |name: &str, id: u32| {
        let mut ulpdu = vector(name)[2..].to_vec();
        ulpdu.truncate(ulpdu.len() - 4);
        let at = 18 + if name == "ATOMIC-RESP" { 0 } else { 4 };
        ulpdu[at..at + 4].copy_from_slice(&id.to_be_bytes());
        fpdu(&ulpdu)
    };
    let all = u64::MAX;
    let add = AtomicOp::FetchAdd { add: 5, mask: 0 };
    let swap = AtomicOp::CmpSwap { compare: 5, compare_mask: all, swap: 7, swap_mask: all };
    let mut node = Node::initiator();
    node.memory.add(3, 0, 16);
    for (i, (op, name)) in [(add, "ATOMIC-FADD"), (swap, "ATOMIC-CSWAP")].into_iter().enumerate() {
        node.atomic((3, 8 * i as u64), (0x1234_5678, 0x1000), op).unwrap();
        assert_eq!(node.take_out(), named(name, i as u32 + 1), "{name}");
    }
    node.receive(&named("ATOMIC-RESP", 1)).unwrap();
    assert_eq!(node.events(), [Delivery::AtomicDone { msn: 1 }]);
    assert_eq!(node.memory.region(3).data()[..9], [37, 0, 0, 0, 0, 0, 0, 0, 0]);

    let mut node = Node::responder();
    let word = node.memory.add(0x1234_5678, 0x1000, 8);
    word.data_mut()[0] = 37;
    node.receive(&vector("ATOMIC-FADD")).unwrap();
    node.respond(1454);
    assert_eq!(node.take_out(), vector("ATOMIC-RESP"), "echoes the peer's request identifier");
    assert_eq!(node.memory.region(0x1234_5678).data()[0], 42);
    node.memory.region_mut(0x1234_5678).data_mut()[0] = 5;
    node.receive(&vector("ATOMIC-CSWAP")).unwrap();
    node.respond(1454);
    assert_eq!(node.memory.region(0x1234_5678).data()[0], 7);
}

/// Start-up frames as sent (MPA-51, MPA-59, MPAE-5).
/// MPA-62; MPAE-1, 7.
#[test]
fn startup_frames_are_the_golden_octets() {
    use startup::*;
    let offer = Offer { rev: 1, ird: 4, ord: 4, ..Offer::default() };
    let request = |o: &Offer<'_>| Initiator::new(o).unwrap().1;
    assert_eq!(request(&offer), vector("REQ-V1"));
    assert_eq!(request(&Offer { rev: 2, ..offer }), vector("REQ-V2-CS"));
    let all = RtrKinds { send: true, write: true, read: true };
    let p2p = Offer { rev: 2, ird: 16, ord: 8, private_data: b"hi", peer_to_peer: Some(all), ..offer };
    assert_eq!(request(&p2p), vector("REQ-V2-P2P"));

    let asked = |name: &str| {
        let mut responder = Responder::new(Limits::default());
        match responder.receive(&vector(name)) {
            Ok(Request::Arrived(peer, data)) => (responder, peer, data),
            other => panic!("{name}: {other:?}"),
        }
    };
    let (mut responder, peer, data) = asked("REQ-V1");
    assert!(peer.rev == 1 && peer.crc && !peer.enhanced && data.is_empty());
    assert_eq!(responder.accept(&Offer::default()).unwrap().0, vector("REP-V1"));
    let (mut responder, ..) = asked("REQ-V1");
    assert_eq!(responder.reject(b"no").unwrap(), vector("REP-V1-REJ"));
    let (_, peer, data) = asked("REQ-V2-P2P");
    assert_eq!((peer.ird, peer.ord, peer.peer_to_peer), (Some(16), Some(8), Some(all)));
    assert_eq!(data, b"hi");
    let (_, peer, _) = asked("REQ-V2-NONEG");
    assert_eq!((peer.enhanced, peer.ird, peer.ord, peer.peer_to_peer), (true, None, None, None));

    // A Request that offers only the Write RTR gets a Reply that lists it.
    let write = RtrKinds { write: true, ..RtrKinds::default() };
    let request = request(&Offer { rev: 2, ird: 16, ord: 8, peer_to_peer: Some(write), ..offer });
    let mut responder = Responder::new(Limits::default());
    responder.receive(&request).unwrap();
    let reply = responder.accept(&Offer { ird: 8, ord: 20, ..Offer::default() }).unwrap().0;
    assert_eq!(reply, vector("REP-V2-P2P"));

    let (mut responder, peer, data) = asked("REQ-V1-M");
    assert!(peer.markers && data.len() == 3);
    let negotiated = responder.accept(&Offer::default()).unwrap().1;
    assert!(negotiated.tx_markers && !negotiated.rx_markers);
}
