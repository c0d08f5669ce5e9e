//! Atomics and Immediate Data (RFC 7306): results, order and faults.

mod support;

use support::refusal::*;
use support::*;
use urnic_iwarp::*;

const ALL: u64 = u64::MAX;
const ADD_1: AtomicOp = AtomicOp::FetchAdd { add: 1, mask: 0 };

/// Returns an Atomic Request header.
fn atomic_header(code: u8, id: u32, target: (u32, u64), words: [u64; 4]) -> Vec<u8> {
    let mut header = [&[0, 0, 0, code][..], &id.to_be_bytes(), &target.0.to_be_bytes()].concat();
    header.extend(target.1.to_be_bytes());
    header.extend(words.iter().flat_map(|w| w.to_be_bytes()));
    header
}

/// Returns the Request of a FetchAdd of 1.
fn fetch_add(msn: u32, stag: u32, to: u64) -> Vec<u8> {
    untagged(0x41, 0x4A, 1, msn, 0, &atomic_header(0, 77, (stag, to), [1, 0, 0, ALL]))
}

fn atomic_response(msn: u32, id: u32, value: u64) -> Vec<u8> {
    untagged(0x41, 0x4B, 3, msn, 0, &[&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
}

fn immediate(msn: u32, octets: &[u8]) -> Vec<u8> {
    untagged(0x41, 0x48, 0, msn, 0, octets)
}

fn word(node: &Node, at: usize) -> u64 {
    u64::from_le_bytes(node.memory.region(STAG).data()[at..at + 8].try_into().unwrap())
}

/// RDMAPX-5: fields of any width, with no carry between them. Compared with a sum that is computed bit by bit.
#[test]
fn fields_are_added() {
    let add = |old, add, mask| AtomicOp::FetchAdd { add, mask }.apply(old).unwrap();
    assert_eq!(add(0x1_FFFF_FFFF, 1, 0), 0x2_0000_0000);
    assert_eq!(add(0x1_FFFF_FFFF, 1, 0x8000_0000), 0x1_0000_0000);
    assert_eq!(add(ALL, 1, 0), 0);
    assert_eq!(add(ALL, 1, 1 << 63), 0);
    assert_eq!(add(0x0F, 0x01, 0x08), 0x00);
    assert_eq!(add(0b1010, 0b0110, ALL), 0b1100, "fields of one bit");
    // As the RFC describes it, bit by bit.
    let by_bits = |a: u64, b: u64, mask: u64| {
        let (mut carry, mut sum) = (false, 0);
        for bit in (0..64).map(|i| 1u64 << i) {
            let (x, y) = (a & bit != 0, b & bit != 0);
            if x ^ y ^ carry {
                sum |= bit;
            }
            carry = u8::from(x) + u8::from(y) + u8::from(carry) > 1 && mask & bit == 0;
        }
        sum
    };
    let mut seed = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..2000 {
        let (a, b, mask) = (random(), random(), random() & random());
        assert_eq!(add(a, b, mask), by_bits(a, b, mask), "{a:x} {b:x} {mask:x}");
    }
}

/// RDMAPX-6: match, mismatch, parts of the word; and Swap, which compares nothing.
#[test]
fn compare_and_swap() {
    let op =
        |compare, compare_mask, swap, swap_mask| AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask };
    for (old, op, new) in [
        (5, op(5, ALL, 7, ALL), Some(7)),
        (5, op(4, ALL, 7, ALL), None),
        (0xAB05, op(0x05, 0xFF, 0x1107, 0xFF), Some(0xAB07)),
        (0xAB05, op(0xCD05, 0xFF, 0x1107, 0xFF00), Some(0x1105)),
        (0xAB05, op(0xAC00, 0xFF00, 1, ALL), None),
        (ALL, op(0, 0, 0x1234, ALL), Some(0x1234)),
        (9, op(9, ALL, 1, 0), Some(9)),
        (1 << 63, op(0, ALL, 1, ALL), None),
    ] {
        assert_eq!(op.apply(old), new, "{op:?} on {old:x}");
    }
}

/// RDMAPX-2, 12, ERR-41: both operations are known, and no others.
#[test]
fn err_41_operations() {
    for code in 0..16 {
        let request = |reserved: u8| {
            let mut header = atomic_header(code, 1, (STAG, BASE), [1, ALL, 0, 0]);
            header[0] = reserved;
            header[3] |= reserved & 0xF0;
            untagged(0x41, 0x4A, 1, 1, 0, &header)
        };
        for reserved in [0, 0xFF] {
            if matches!(code, 0 | 2) {
                accepted(&mut node(), &request(reserved)); // RDMAPX-10: reserved bits are ignored
            } else {
                let cause = fresh(&request(reserved), [0x02, 0x06, 0xC0]);
                assert_eq!(cause, Cause::AtomicCode(code));
            }
        }
    }
}

/// RDMAPX-8, ERR-40: the address in memory must be aligned; the TO need not be.
#[test]
fn err_40_alignment() {
    for off in 0..8 {
        let mut n = node();
        n.memory.region_mut(STAG).skew = 3;
        let ulpdu = fetch_add(1, STAG, BASE + off);
        if (off + 3) % 8 == 0 {
            accepted(&mut n, &ulpdu);
            continue;
        }
        let cause = refused(&mut n, &ulpdu, [0x02, 0x07, 0xC0]);
        assert_eq!(cause, Cause::AtomicTarget { fault: AtomicFault::Misaligned, stag: STAG, to: BASE + off });
        assert_eq!(n.memory.region(STAG).data(), [0; LEN]);
        assert_eq!((n.events(), n.stream.responses_pending()), (vec![], 0));
    }
}

/// ERR-42, RDMAPX-26: faults of the memory of an Atomic. The Terminate has no RDMA header.
/// RDMAP-20.
#[test]
fn err_42_atomic_access() {
    fresh(&fetch_add(1, 0x999, BASE), [0x01, 0x00, 0xC0]);
    for to in [BASE - 8, BASE + 64, BASE + 57, 0, BASE - 1] {
        fresh(&fetch_add(1, STAG, to), [0x01, 0x01, 0xC0]);
    }
    let mut n = node();
    n.memory.region_mut(STAG).atomic = false;
    refused(&mut n, &fetch_add(1, STAG, BASE), [0x01, 0x02, 0xC0]);
    let mut n = node();
    n.memory.region_mut(STAG).ours = false;
    refused(&mut n, &fetch_add(1, STAG, BASE), [0x01, 0x03, 0xC0]);
    for to in [ALL, ALL - 7] {
        fresh(&fetch_add(1, STAG, to), [0x01, 0x04, 0xC0]);
    }
    accepted(&mut node(), &fetch_add(1, STAG, BASE + 56));
    // If the memory is gone when the response is due, the Terminate is the same.
    let mut n = node();
    let ulpdu = fetch_add(1, STAG, BASE);
    accepted(&mut n, &ulpdu);
    let Some(Pending::Atomic(request)) = n.stream.next_response() else { panic!("no Atomic") };
    for (fault, octets) in [
        (AtomicFault::Access(AccessFault::InvalidStag), [0x01, 0x00, 0xC0]),
        (AtomicFault::Misaligned, [0x02, 0x07, 0xC0]),
    ] {
        let t = request.terminate(fault);
        assert_eq!((octets_of(&t), t.segment_len, t.rdma), (octets, Some(70), None));
        assert_eq!(t.ddp.unwrap().octets(), &ulpdu[..18]);
    }
}

/// ERR-39 for Atomics: one segment of 52 octets.
#[test]
fn atomic_request_form() {
    let header = atomic_header(0, 1, (STAG, BASE), [1, 0, 0, ALL]);
    for ulpdu in [
        untagged(0x41, 0x4A, 1, 1, 0, &header[..51]),
        untagged(0x41, 0x4A, 1, 1, 0, &[&header[..], &[0]].concat()),
        untagged(0x41, 0x4A, 1, 1, 0, &[]),
        untagged(0x41, 0x4A, 1, 1, 8, &header),
        untagged(0x01, 0x4A, 1, 1, 0, &header),
    ] {
        assert_eq!(fresh(&ulpdu, [0x02, 0xFF, 0xC0]), Cause::AtomicRequestForm);
    }
}

/// RDMAPX-27: versions and queue of every message of RFC 7306, and the sequence of those on queues 0 and 1.
/// RDMAPX-1: T=0, queues 0, 0, 1, 3.
#[test]
fn headers_are_validated() {
    let atomic = atomic_header(0, 1, (STAG, BASE), [1, 0, 0, ALL]);
    for (opcode, qn, payload) in
        [(8, 0, vec![0; 8]), (9, 0, vec![0; 8]), (10, 1, atomic), (11, 3, vec![0; 12])]
    {
        let ulpdu = |ddp, rv, qn, msn| untagged(ddp, rv | opcode, qn, msn, 0, &payload);
        for dv in [0, 2, 3] {
            fresh(&ulpdu(0x40 | dv, 0x40, qn, 1), [0x12, 0x06, 0xC0]);
        }
        for rv in [0, 0x80, 0xC0] {
            fresh(&ulpdu(0x41, rv, qn, 1), [0x02, 0x05, 0xC0]);
        }
        for wrong in (0..4).filter(|&q| q != qn) {
            fresh(&ulpdu(0x41, 0x40, wrong, 1), [0x02, 0x06, 0xC0]);
        }
        fresh(&tagged(0xC1, 0x40 | opcode, STAG, BASE, &payload), [0x02, 0x06, 0xC0]);
        if qn == 3 {
            continue;
        }
        for msn in [0, 2, ALL as u32] {
            let cause = Cause::Msn { qn, expected: 1, got: msn };
            assert_eq!(fresh(&ulpdu(0x41, 0x40, qn, msn), [0x12, 0x03, 0xC0]), cause);
        }
        // An Invalidate STag and reserved bits mean nothing.
        let mut n = node();
        let mut ulpdu = ulpdu(0x41 | 0x3C, 0x70, qn, 1);
        ulpdu[2..6].copy_from_slice(&STAG.to_be_bytes());
        accepted(&mut n, &ulpdu);
        assert!(n.memory.region(STAG).valid);
    }
}

/// RDMAPX-23, ERR-43: exactly 8 octets in one segment. Any other form takes none of the user's resources.
#[test]
fn err_43_immediate_data() {
    for opcode in [0x48, 0x49] {
        for ulpdu in [
            untagged(0x41, opcode, 0, 1, 0, &[]),
            untagged(0x41, opcode, 0, 1, 0, &[1; 7]),
            untagged(0x41, opcode, 0, 1, 0, &[1; 9]),
            untagged(0x41, opcode, 0, 1, 0, &[1; 12]),
            untagged(0x41, opcode, 0, 1, 8, &[1; 8]),
            untagged(0x01, opcode, 0, 1, 0, &[1; 8]),
        ] {
            let mut n = node();
            assert_eq!(refused(&mut n, &ulpdu, [0x02, 0xFF, 0xC0]), Cause::ImmediateForm);
            assert_eq!((n.memory.receives.len(), n.events()), (2, vec![]));
        }
    }
}

/// RDMAPX-21: Immediate Data takes a receive request of any size and leaves its memory as it is. ERR-22: without a
/// receive request, it is refused.
#[test]
fn immediate_data_takes_a_receive() {
    let mut n = Node::responder();
    n.memory.post_receive(0);
    n.memory.post_receive(100);
    accepted(&mut n, &immediate(1, b"firstone"));
    accepted(&mut n, &immediate(2, b"secondso"));
    let event = |data: &[u8; 8]| Delivery::Immediate { data: *data, solicited: false, written: 0 };
    assert_eq!(n.events(), [event(b"firstone"), event(b"secondso")]);
    assert_eq!(n.memory.placements, 0);
    assert_eq!(refused(&mut n, &immediate(3, &[0; 8]), [0x12, 0x02, 0xC0]), Cause::NoReceive);
}

/// RDMAPX-22, RDMAPX-25: Sends and Immediate Data are one sequence. Immediate Data reports the Write before it, which
/// is placed.
#[test]
fn immediate_data_follows_what_came_before() {
    let mut n = node();
    n.memory.post_receive(8);
    n.memory.post_receive(8);
    n.memory.post_receive(8);
    accepted(&mut n, &tagged(0x81, 0x40, STAG, BASE, &[7; 10])); // two segments of one Write
    accepted(&mut n, &tagged(0xC1, 0x40, STAG, BASE + 10, &[7; 5]));
    accepted(&mut n, &immediate(1, &[1; 8]));
    assert_eq!(n.memory.region(STAG).data()[..16], [[7; 15].to_vec(), vec![0]].concat());
    accepted(&mut n, &send(2, 0, 3));
    accepted(&mut n, &tagged(0xC1, 0x40, STAG, BASE, &[8; 64]));
    accepted(&mut n, &tagged(0xC1, 0x40, 0, 0, &[]));
    accepted(&mut n, &immediate(3, &[2; 8]));
    accepted(&mut n, &immediate(4, &[3; 8]));
    let event = |octet, written| Delivery::Immediate { data: [octet; 8], solicited: false, written };
    let sent = Delivery::Received { len: 3, solicited: false, invalidated: None };
    assert_eq!(n.events(), [event(1, 15), sent, event(2, 0), event(3, 0)]);
    // Immediate Data inside a Send is refused.
    let mut n = node();
    accepted(&mut n, &untagged(0x01, 0x43, 0, 1, 0, &[1; 4]));
    refused(&mut n, &immediate(1, &[0; 8]), [0x02, 0x06, 0xC0]);
}

/// The reported length of a Write counts only octets placed without a gap (DDP-65 requires this of Sends), because the
/// program relies on all of these octets. RDMAPX-22.
#[test]
fn immediate_data_tells_of_no_more_than_was_written() {
    const OTHER: u32 = STAG + 1;
    // Segments: L, STag, offset in the region, octets.
    type Segments = [(bool, u32, u64, usize)];
    let cases: [(&str, &Segments, u32); 11] = [
        ("a gap", &[(false, STAG, 0, 8), (true, STAG, 32, 8)], 8),
        (
            "a gap that is filled too late",
            &[(false, STAG, 0, 8), (false, STAG, 16, 8), (true, STAG, 8, 8)],
            16,
        ),
        ("an overlap", &[(false, STAG, 0, 8), (false, STAG, 0, 8), (true, STAG, 4, 8)], 12),
        ("a step back", &[(false, STAG, 0, 20), (true, STAG, 3, 8)], 20),
        ("before its start", &[(false, STAG, 16, 8), (true, STAG, 8, 8)], 8),
        ("another region", &[(false, STAG, 0, 8), (true, OTHER, 8, 8)], 8),
        (
            "empty segments",
            &[(false, 9, 77, 0), (false, STAG, 4, 8), (false, 9, 0, 0), (true, STAG, 12, 8)],
            16,
        ),
        ("not whole", &[(false, STAG, 0, 8), (false, STAG, 8, 8)], 0),
        ("two Writes", &[(true, STAG, 0, 8), (true, STAG, 8, 4)], 4),
        ("a Write and one of nothing", &[(true, STAG, 0, 8), (true, STAG, 8, 0)], 0),
        ("none", &[], 0),
    ];
    for (name, segments, written) in cases {
        let mut n = node();
        n.memory.add(OTHER, BASE, LEN);
        for &(last, stag, at, len) in segments {
            accepted(&mut n, &tagged(if last { 0xC1 } else { 0x81 }, 0x40, stag, BASE + at, &vec![7; len]));
        }
        accepted(&mut n, &immediate(1, &[1; 8]));
        let event = Delivery::Immediate { data: [1; 8], solicited: false, written };
        assert_eq!(n.events(), [event], "{name}");
    }
    // A Write that another message of queue 0 interrupts is not reported, because it began before that message.
    for between in [immediate(1, &[1; 8]), send(1, 0, 3)] {
        let mut n = node();
        (0..3).for_each(|_| n.memory.post_receive(8));
        accepted(&mut n, &tagged(0x81, 0x40, STAG, BASE, &[7; 8]));
        accepted(&mut n, &between);
        accepted(&mut n, &tagged(0xC1, 0x40, STAG, BASE + 8, &[7; 8]));
        accepted(&mut n, &immediate(2, &[2; 8]));
        accepted(&mut n, &tagged(0xC1, 0x40, STAG, BASE, &[7; 5]));
        accepted(&mut n, &immediate(3, &[3; 8]));
        let event = |octet, written| Delivery::Immediate { data: [octet; 8], solicited: false, written };
        assert_eq!(n.events()[1..], [event(2, 0), event(3, 5)]);
    }
}

/// RDMAPX-9, 13, 15, 25: Reads and Atomics are one sequence with one limit, answered in order. Each Atomic sees the
/// effect of the Atomic before it, and a Read between them sees the effects so far.
#[test]
fn atomics_and_reads_in_order() {
    let (mut a, mut b) = (Node::initiator(), Node::new(&negotiated(Role::Responder, 6, 6)));
    a.memory.add(1, 0, 64);
    b.memory.add(STAG, BASE, LEN);
    a.atomic((1, 0), (STAG, BASE), ADD_1).unwrap();
    a.read(8, (1, 8), (STAG, BASE)).unwrap();
    a.atomic((1, 16), (STAG, BASE), ADD_1).unwrap();
    let swap = AtomicOp::CmpSwap { compare: 2, compare_mask: ALL, swap: 100, swap_mask: ALL };
    a.atomic((1, 24), (STAG, BASE), swap).unwrap();
    a.read(8, (1, 32), (STAG, BASE)).unwrap();
    a.atomic((1, 40), (STAG, BASE), swap).unwrap();
    let requests = a.take_out();
    let heads: Vec<(u8, u32, u32)> = pieces(&requests).iter().map(|u| (u[1] & 0xF, qn(u), msn(u))).collect();
    let expected = [10, 1, 10, 10, 1, 10].iter().zip(1..).map(|(&o, m)| (o, 1, m));
    assert_eq!(heads, expected.collect::<Vec<_>>());

    b.receive(&requests).unwrap();
    assert_eq!(b.stream.responses_pending(), 6);
    assert_eq!(word(&b, 0), 0, "performed when its turn comes");
    b.respond(1454);
    let responses = b.take_out();
    let heads: Vec<(u8, u32)> = pieces(&responses).iter().map(|u| (u[1] & 0xF, msn(u))).collect();
    let atomics: Vec<u32> = heads.iter().filter(|h| h.0 == 11).map(|h| h.1).collect();
    assert_eq!(heads.iter().map(|h| h.0).collect::<Vec<_>>(), [11, 2, 11, 11, 2, 11]);
    assert_eq!(atomics, [1, 2, 3, 4], "a sequence of their own on queue 3");
    a.receive(&responses).unwrap();
    let results: Vec<u64> = a.memory.region(1).data()[..48]
        .chunks(8)
        .map(|w| u64::from_le_bytes(w.try_into().unwrap()))
        .collect();
    assert_eq!(results, [0, 1, 1, 2, 100, 100]);
    assert_eq!((word(&b, 0), a.stream.reads_outstanding()), (100, 0));
    let done = [
        Delivery::AtomicDone { msn: 1 },
        Delivery::ReadDone { msn: 2, len: 8 },
        Delivery::AtomicDone { msn: 3 },
        Delivery::AtomicDone { msn: 4 },
        Delivery::ReadDone { msn: 5, len: 8 },
        Delivery::AtomicDone { msn: 6 },
    ];
    assert_eq!(a.events(), done);
}

/// Returns the ULPDUs of a stream.
fn pieces(octets: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = octets;
    let mut all = Vec::new();
    while let &[a, b, ..] = rest {
        let len = usize::from(u16::from_be_bytes([a, b]));
        all.push(rest[2..2 + len].to_vec());
        rest = &rest[(2 + len).next_multiple_of(4) + 4..];
    }
    all
}

fn qn(ulpdu: &[u8]) -> u32 {
    u32::from_be_bytes(ulpdu[6..10].try_into().unwrap())
}

fn msn(ulpdu: &[u8]) -> u32 {
    u32::from_be_bytes(ulpdu[10..14].try_into().unwrap())
}

/// RDMAPX-9, 15, ERR-26: ORD and IRD count Reads and Atomics together.
#[test]
fn err_26_atomics_count() {
    let mut a = Node::new(&negotiated(Role::Initiator, 0, 2));
    a.memory.add(1, 0, 64);
    a.read(0, (1, 0), (STAG, BASE)).unwrap();
    a.atomic((1, 0), (STAG, BASE), ADD_1).unwrap();
    assert_eq!(a.atomic((1, 0), (STAG, BASE), ADD_1), Err(BeginError::OrdReached));
    assert_eq!(a.read(0, (1, 0), (STAG, BASE)), Err(BeginError::OrdReached));
    let mut none = Node::new(&negotiated(Role::Initiator, 0, 0));
    assert_eq!(none.atomic((1, 0), (STAG, BASE), ADD_1), Err(BeginError::NoReads));

    let mut n = Node::new(&negotiated(Role::Responder, 2, 0));
    n.memory.add(STAG, BASE, LEN);
    accepted(&mut n, &fetch_add(1, STAG, BASE));
    accepted(&mut n, &read(2, 4, STAG, BASE));
    let cause = refused(&mut n, &fetch_add(3, STAG, BASE), [0x12, 0x02, 0xC0]);
    assert_eq!(cause, Cause::ReadLimit { ird: 2 });
}

/// Returns an Initiator with one Atomic outstanding.
fn asking() -> Node {
    let mut n = node_of(Role::Initiator);
    n.atomic((STAG, BASE + 8), (5, 0), ADD_1).unwrap();
    n.take_out();
    n
}

fn node_of(role: Role) -> Node {
    let mut n = Node::new(&negotiated(role, 4, 4));
    n.memory.add(STAG, BASE, LEN);
    n.memory.post_receive(32);
    n
}

/// RDMAPX-16, 17, 18: a Response must answer the oldest request, in one segment of 12 octets. Before that, the Atomic
/// is not complete.
#[test]
fn atomic_responses_match() {
    let mut n = asking();
    let whole = fpdu(&atomic_response(1, 1, 0x0102_0304_0506_0708));
    n.receive(&whole[..whole.len() - 1]).unwrap();
    assert_eq!((n.events(), n.stream.reads_outstanding()), (vec![], 1));
    n.receive(&whole[whole.len() - 1..]).unwrap();
    assert_eq!((n.events(), n.stream.reads_outstanding()), (vec![Delivery::AtomicDone { msn: 1 }], 0));
    assert_eq!(word(&n, 8), 0x0102_0304_0506_0708);
    // No request is outstanding any longer.
    let cause = refused(&mut n, &atomic_response(2, 2, 0), [0x02, 0x06, 0xC0]);
    assert_eq!(cause, Cause::UnexpectedAtomicResponse);

    for msn in [0, 2, ALL as u32] {
        let cause = Cause::Msn { qn: 3, expected: 1, got: msn };
        assert_eq!(refused(&mut asking(), &atomic_response(msn, 1, 0), [0x12, 0x03, 0xC0]), cause);
    }
    let good = atomic_response(1, 1, 0);
    let with = |at: usize, octet: u8| {
        let mut ulpdu = good.clone();
        ulpdu[at] = octet;
        ulpdu
    };
    for ulpdu in [
        atomic_response(1, 2, 0),
        good[..good.len() - 1].to_vec(),
        [&good[..], &[0]].concat(),
        good[..18].to_vec(),
        with(0, 0x01),
        with(17, 4),
    ] {
        let mut n = asking();
        assert_eq!(refused(&mut n, &ulpdu, [0x02, 0xFF, 0xC0]), Cause::AtomicResponseMismatch);
        assert_eq!((n.events(), word(&n, 8)), (vec![], 0));
    }
    // The kind of response differs from the kind of the oldest request.
    let other = tagged(0xC1, 0x42, STAG, BASE + 8, &[0; 8]);
    assert_eq!(refused(&mut asking(), &other, [0x02, 0x06, 0xC0]), Cause::UnexpectedReadResponse);
    let mut n = node_of(Role::Initiator);
    n.read(12, (STAG, BASE), (5, 0)).unwrap();
    assert_eq!(
        refused(&mut n, &atomic_response(1, 1, 0), [0x02, 0x06, 0xC0]),
        Cause::UnexpectedAtomicResponse
    );
    // Our own memory for the result is gone.
    let mut n = asking();
    n.memory.region_mut(STAG).valid = false;
    let cause = refused(&mut n, &good, [0x02, 0x07, 0x00]);
    assert_eq!(cause, Cause::AtomicSink(AccessFault::InvalidStag));
}

/// RDMAPX-19, RDMAPX-11: a Request is accepted once it is complete, after all that was sent before it. It takes no
/// receive request. RDMAPX-20: later messages may be complete before the Request is answered.
#[test]
fn requests_are_delivered_in_order() {
    let mut n = node();
    accepted(&mut n, &tagged(0xC1, 0x40, STAG, BASE, &41u64.to_le_bytes()));
    let request = fpdu(&fetch_add(1, STAG, BASE));
    n.receive(&request[..request.len() - 1]).unwrap();
    assert_eq!((n.events(), n.stream.responses_pending()), (vec![], 0));
    n.receive(&request[request.len() - 1..]).unwrap();
    assert_eq!(n.events(), [Delivery::AtomicRequested]);
    accepted(&mut n, &send(1, 0, 4));
    assert_eq!(n.memory.received.len(), 1, "the Atomic took no receive request");
    n.respond(1454);
    assert_eq!(n.out, fpdu(&atomic_response(1, 77, 41)));
    assert_eq!(word(&n, 0), 42);
}

/// RDMAPX-28: the answer of a peer without the extensions, and its meaning for us. RDMAPX-30: any TO may be
/// requested.
#[test]
fn a_peer_without_extensions() {
    let mut n = asking();
    n.atomic((STAG, BASE), (5, 3), ADD_1).unwrap();
    let request = n.take_out();
    assert_eq!(request[2 + 18 + 12..2 + 18 + 20], 3u64.to_be_bytes());
    let blamed = [&[0x02, 0x06, 0xC0, 0, 0, 70][..], &request[2..20]].concat();
    n.receive(&fpdu(&untagged(0x41, 0x47, 2, 1, 0, &blamed))).unwrap();
    let &[Delivery::Terminated(t)] = &n.events()[..] else { panic!("{:?}", n.events()) };
    assert_eq!(t.to_string(), "RDMAP remote operation error: unexpected opcode (02 06)");
    assert_eq!(t.ddp.unwrap().octets(), &request[2..20]);
    // We refuse opcodes beyond the extensions with the same error.
    for opcode in 12..16 {
        fresh(&untagged(0x41, 0x40 | opcode, 0, 1, 0, &[0; 8]), [0x02, 0x06, 0xC0]);
    }
}
