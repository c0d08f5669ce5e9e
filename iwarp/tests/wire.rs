//! The form of every message on the wire, segment by segment, and the fields that a receiver must check or ignore.

mod support;

use support::refusal::*;
use support::*;
use urnic_iwarp::*;

/// Returns the ULPDUs of a stream.
fn ulpdus(octets: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = octets;
    let mut all = Vec::new();
    while let &[a, b, ..] = rest {
        let len = usize::from(u16::from_be_bytes([a, b]));
        let size = (2 + len).next_multiple_of(4) + 4;
        assert_eq!(rest[..size], fpdu(&rest[2..2 + len]));
        all.push(rest[2..2 + len].to_vec());
        rest = &rest[size..];
    }
    all
}

fn u32_at(ulpdu: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(ulpdu[at..at + 4].try_into().unwrap())
}

/// A message, and the expected form of its segments.
struct Kind {
    op: Op,
    opcode: u8,
    /// Octets of payload.
    len: usize,
    /// Queue and Invalidate STag; `None` for a tagged message.
    queue: Option<(u32, u32)>,
    /// Octets of the RDMAP header.
    rdma: usize,
}

fn kinds() -> Vec<Kind> {
    let write = Kind {
        op: Op::Write { stag: 0xAABB_CCDD, to: u64::MAX - 100 },
        opcode: 0,
        len: 300,
        queue: None,
        rdma: 0,
    };
    let send = |solicited, invalidate: Option<u32>, opcode| Kind {
        op: Op::Send { solicited, invalidate },
        opcode,
        len: 300,
        queue: Some((0, invalidate.unwrap_or(0))),
        rdma: 0,
    };
    let control = |op, opcode, queue, rdma| Kind { op, opcode, len: 0, queue: Some((queue, 0)), rdma };
    let read = Op::Read { sink_stag: 1, sink_to: 3, src_stag: 2, src_to: 5 };
    let add = AtomicOp::FetchAdd { add: 1, mask: 0 };
    let atomic = Op::Atomic { sink_stag: 1, sink_to: 0, stag: 2, to: 8, op: add };
    let blaming = Terminate { segment_len: Some(46), ..Terminate::LOCAL_CATASTROPHIC };
    vec![
        send(false, None, 3),
        send(false, Some(0x1234), 4),
        send(true, None, 5),
        send(true, Some(0x1234), 6),
        write,
        control(read, 1, 1, 28),
        control(Op::Immediate { data: [7; 8], solicited: false }, 8, 0, 8),
        control(Op::Immediate { data: [7; 8], solicited: true }, 9, 0, 8),
        control(atomic, 10, 1, 52),
        control(Op::AtomicResponse { id: 9, original: 1 }, 11, 3, 12),
        control(Op::Terminate(Terminate::CRC), 7, 2, 4),
        control(Op::Terminate(blaming), 7, 2, 6),
    ]
}

/// DDP-11..13, DDP-15, 16, 18..20, 23, 25, 26, 30, 35; RDMAP-1, 2, 6..13, 22, 27, 28, 35, 40, 45, 47; RDMAPX-1, 9: T,
/// L, DV, RV, reserved bits, opcode, STag and TO (or Invalidate STag, queue, MSN and MO) of every segment of every
/// message, and the number and content of the octets after these fields.
#[test]
fn every_segment_of_every_message() {
    for mulpdu in [128, 200, 1454] {
        for kind in kinds() {
            let mut node = Node::initiator();
            node.memory.add(1, 0, 64);
            let message: Vec<u8> = (0..kind.len).map(|i| i as u8).collect();
            node.send(kind.op, &message, mulpdu).unwrap();
            let all = ulpdus(&node.out);
            let header = if kind.queue.is_some() { 18 } else { 14 };
            let room = mulpdu - header - kind.rdma;
            assert_eq!(all.len(), kind.len.div_ceil(room).max(1));
            let mut payload = Vec::<u8>::new();
            for (i, u) in all.iter().enumerate() {
                let (tagged, last) = (kind.queue.is_none(), i + 1 == all.len());
                assert_eq!(u[0], 1 | u8::from(tagged) << 7 | u8::from(last) << 6, "{:?}", kind.op);
                assert_eq!(u[1], 0x40 | kind.opcode);
                let offset = payload.len();
                match kind.queue {
                    None => {
                        assert_eq!(u32_at(u, 2), 0xAABB_CCDD);
                        let to = u64::from_be_bytes(u[6..14].try_into().unwrap());
                        assert_eq!(to, (u64::MAX - 100).wrapping_add(offset as u64));
                    }
                    Some((queue, invalidate)) => {
                        let fields = [2, 6, 10, 14].map(|at| u32_at(u, at));
                        assert_eq!(fields, [invalidate, queue, 1, offset as u32], "{:?}", kind.op);
                    }
                }
                assert!(u.len() <= mulpdu);
                assert!(kind.rdma == 0 || u.len() == 18 + kind.rdma, "{:?} has no payload", kind.op);
                payload.extend(&u[header + kind.rdma..]);
            }
            assert_eq!(payload, message);
        }
    }
}

/// DDP-11..16, 20, 23..26, RDMAP-6..13, MPA-15: a message of one FPDU has the same octets before its payload, whichever
/// way it is begun, and uses up the same numbers. What cannot be begun changes nothing.
#[test]
fn a_message_of_one_fpdu_begins_alike_in_both_ways() {
    let mut server = Node::initiator();
    server.memory.add(STAG, BASE, LEN);
    accepted(&mut server, &untagged(0x41, 0x41, 1, 1, 0, &read_header((7, 1 << 40), 30, (STAG, BASE))));
    let Some(Pending::Read(request)) = server.stream.next_response() else { panic!("no request") };
    let mut all: Vec<(Op, usize)> = kinds().iter().map(|kind| (kind.op, kind.len)).collect();
    all.push((Op::ReadResponse(request), 30));
    for crc in [true, false] {
        let parameters = Negotiated { crc, ..negotiated(Role::Initiator, 2, 2) };
        let (mut cut, mut whole) = (Node::new(&parameters), Node::new(&parameters));
        for (op, len) in [all.as_slice(); 3].concat() {
            let Some(front) = op.front() else {
                assert_eq!(
                    whole.stream.begin_whole(op, 0, &mut [0; 200]),
                    Err(BeginError::NotWhole),
                    "{op:?}"
                );
                continue;
            };
            for len in [0, 1, len] {
                let payload = match op {
                    Op::Read { .. } => 0,
                    Op::ReadResponse(request) => request.len as usize,
                    _ => len,
                };
                let mut octets = vec![0xEE; fpdu_size((front - 2 + payload) as u16)];
                let untouched = octets.clone();
                for wrong in [octets.len() - 4, octets.len() + 4] {
                    let mut wrong = vec![0; wrong];
                    let begun = whole.stream.begin_whole(op, len as u32, &mut wrong);
                    assert_eq!(begun, Err(BeginError::NotWhole), "{op:?}");
                }
                let begun = whole.stream.begin_whole(op, len as u32, &mut octets);
                let mut outgoing = match cut.stream.begin(op, len as u32) {
                    Ok(outgoing) => outgoing,
                    Err(error) => {
                        assert_eq!((begun, octets), (Err(error), untouched));
                        continue;
                    }
                };
                let fpdu = outgoing.next(1454).unwrap();
                assert_eq!((begun, fpdu.last, fpdu.size()), (Ok(crc), true, octets.len()), "{op:?}");
                assert_eq!((&octets[..front], fpdu.crc), (fpdu.header(), crc), "{op:?}");
                assert_eq!(octets[front..], untouched[front..], "{op:?}");
            }
            assert_eq!(whole.stream.reads_outstanding(), cut.stream.reads_outstanding());
        }
        let send = Op::Send { solicited: false, invalidate: None };
        assert_eq!(whole.stream.begin_whole(send, u32::MAX, &mut [0; 24]), Err(BeginError::NotWhole));
        whole.send(Op::Terminate(Terminate::CRC), &[], 1454).unwrap();
        assert_eq!(whole.stream.begin_whole(send, 0, &mut [0; 24]), Err(BeginError::Ended));
        cut.stream.stop_listening();
        assert_eq!(cut.stream.begin_whole(send, 0, &mut [0; 24]), Err(BeginError::Ended));
        let mut silent = Node::responder();
        assert_eq!(silent.stream.begin_whole(send, 0, &mut [0; 24]), Err(BeginError::NotYet));
    }
}

/// DDP-24, 34, RDMAP-24, 30, 42, 60, RDMAPX-13, 22: messages leave in the order in which they were begun, and each
/// queue counts its own messages from 1.
/// RDMAP-51.
#[test]
fn messages_keep_their_order_and_count() {
    let mut node = Node::initiator();
    node.memory.add(1, 0, 64);
    let all: Vec<Op> = kinds().iter().map(|k| k.op).filter(|op| !matches!(op, Op::Terminate(_))).collect();
    let order = [4, 0, 5, 8, 6, 4, 1, 8, 5, 9, 2, 7, 4, 9, 3];
    for i in order {
        node.send(all[i], if i < 5 { &[1; 10] } else { &[] }, 1454).unwrap();
    }
    node.send(Op::Terminate(Terminate::CRC), &[], 1454).unwrap();
    let seen: Vec<(u8, Option<(u32, u32)>)> = ulpdus(&node.out)
        .iter()
        .map(|u| (u[1] & 0xF, (u[0] & 0x80 == 0).then(|| (u32_at(u, 6), u32_at(u, 10)))))
        .collect();
    let untagged = |opcode, queue, msn| (opcode, Some((queue, msn)));
    assert_eq!(
        seen,
        [
            (0, None),
            untagged(3, 0, 1),
            untagged(1, 1, 1),
            untagged(10, 1, 2),
            untagged(8, 0, 2),
            (0, None),
            untagged(4, 0, 3),
            untagged(10, 1, 3),
            untagged(1, 1, 4),
            untagged(11, 3, 1),
            untagged(5, 0, 4),
            untagged(9, 0, 5),
            (0, None),
            untagged(11, 3, 2),
            untagged(6, 0, 6),
            untagged(7, 2, 1),
        ]
    );
}

/// DDP-22: the Invalidate STag of later segments is not compared, and that of the first segment is delivered
/// (DDP-18, 41, RDMAP-4).
#[test]
fn reserved_for_the_ulp_need_not_be_equal() {
    let mut n = node();
    n.memory.add(0x77, 0, 8);
    let part = |ddp, mo, stag: u32| {
        let mut ulpdu = untagged(ddp, 0x44, 0, 1, mo, b"abcd");
        ulpdu[2..6].copy_from_slice(&stag.to_be_bytes());
        ulpdu
    };
    accepted(&mut n, &part(0x01, 0, 0x77));
    assert!(n.memory.region(0x77).valid, "not before it is delivered (RDMAP-46)");
    accepted(&mut n, &part(0x41, 4, 0x78));
    let received = Delivery::Received { len: 8, solicited: false, invalidated: Some(0x77) };
    assert_eq!(n.events(), [received]);
    assert!(!n.memory.region(0x77).valid);
}

/// DDP-33, 36, RDMAP-23, 25: a Write may have gaps, overlap, start anywhere and end early. This is no fault, and
/// nothing is delivered.
#[test]
fn writes_are_placed_as_they_come() {
    let mut n = node();
    for (ddp, at, octets) in [
        (0x81, 20, &[1; 4][..]),
        (0x81, 0, &[2; 8]),
        (0xC1, 4, &[3; 8]),
        (0xC1, 63, &[4; 1]),
        (0x81, 30, &[5; 3]),
    ] {
        accepted(&mut n, &tagged(ddp, 0x40, STAG, BASE + at, octets));
    }
    let data = n.memory.region(STAG).data();
    assert_eq!(data[..12], [2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]);
    assert_eq!((&data[20..24], data[63], &data[30..33]), (&[1; 4][..], 4, &[5; 3][..]));
    assert_eq!(n.events(), []);
}

/// DDP-14, 37, 39, RDMAP-56, 57: a message is delivered once, when its L segment is placed and all messages before it
/// are delivered. Sends and Read Responses are delivered in the order of their arrival.
/// RDMAP-42.
#[test]
fn delivery_is_in_order_and_once() {
    let mut n = Node::initiator();
    n.memory.add(STAG, BASE, LEN);
    for _ in 0..3 {
        n.memory.post_receive(8);
    }
    n.read(4, (STAG, BASE), (9, 0)).unwrap();
    n.read(4, (STAG, BASE + 4), (9, 0)).unwrap();
    accepted(&mut n, &untagged(0x01, 0x43, 0, 1, 0, b"ab"));
    accepted(&mut n, &tagged(0xC1, 0x42, STAG, BASE, &[1; 4]));
    assert_eq!(n.events(), [Delivery::ReadDone { msn: 1, len: 4 }]);
    accepted(&mut n, &untagged(0x41, 0x43, 0, 1, 2, b"cd"));
    accepted(&mut n, &send(2, 0, 3));
    accepted(&mut n, &tagged(0xC1, 0x42, STAG, BASE + 4, &[2; 4]));
    let received = |len| Delivery::Received { len, solicited: false, invalidated: None };
    let done = |msn| Delivery::ReadDone { msn, len: 4 };
    assert_eq!(n.events(), [done(1), received(4), received(3), done(2)]);
    // A repeated message is not delivered again.
    refused(&mut n, &send(2, 0, 3), [0x12, 0x03, 0xC0]);
}
