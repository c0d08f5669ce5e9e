//! Bad segments: each causes a Terminate with the right octets, and no other effect (RFC 5040 §7, RFC 5041 §7).

mod support;

use support::refusal::*;
use support::*;
use urnic_iwarp::*;

/// ERR-1, MPA-37: any flipped bit of an FPDU in the middle of a stream is detected (length, ULPDU, PAD or CRC), however
/// the stream is cut into chunks. Earlier FPDUs keep their effect. Nothing of the damaged FPDU or of a later one is
/// placed or delivered.
/// DDP-6.
/// MPA-46, 79, 82.
#[test]
fn err_1_crc() {
    let write = |at: u64| fpdu(&write(STAG, BASE + at, 21));
    let (before, good) = (write(0), write(21));
    assert_eq!((good.len(), good[37..40].to_vec()), (44, vec![0; 3]), "with a PAD of 3 octets");
    // At least as many octets as the largest length that a flipped bit can produce.
    let after: Vec<u8> = [write(42), fpdu(&send(1, 0, 9))].into_iter().cycle().take(1700).flatten().collect();
    assert!(after.len() > 0x10000);
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 0x80 >> (bit % 8);
        let needed = if bit < 16 { after.len() } else { 200 };
        let stream = [&before[..], &bad, &after[..needed]].concat();
        for size in [stream.len(), before.len() + 20, 7] {
            let mut node = node();
            let faults: Vec<_> = stream.chunks(size).filter_map(|chunk| node.receive(chunk).err()).collect();
            let fault = Fault { terminate: Some(Terminate::CRC), cause: Cause::Crc };
            assert_eq!(faults, [fault], "bit {bit}, chunks of {size}");
            let placed = node.memory.region(STAG).data();
            assert_eq!((&placed[..21], &placed[21..]), (&[7; 21][..], &[0; LEN - 21][..]), "bit {bit}");
            assert_eq!((node.memory.placements, node.events()), (21, vec![]), "bit {bit}");
        }
    }
    assert_eq!(octets_of(&Terminate::CRC), [0x20, 0x02, 0x00]);
}

/// ERR-1 in the length field: each flipped bit is detected when all octets that the wrong length announces have
/// arrived.
#[test]
fn err_1_crc_of_the_length() {
    for bit in 0..16 {
        let mut bad = fpdu(&write(STAG, BASE, 24));
        bad[bit / 8] ^= 0x80 >> (bit % 8);
        bad.resize(bad.len() + 0x10000, 0);
        let fault = Node::initiator().receive(&bad).unwrap_err();
        assert_eq!(fault.cause, Cause::Crc, "bit {bit}");
    }
}

/// MPA-92: a Responder whose first FPDU is bad closes without a Terminate; an Initiator sends one. MPA-70: such an
/// FPDU does not allow the Responder to send.
#[test]
fn err_1_crc_of_the_first_fpdu() {
    let mut bad = fpdu(&write(STAG, BASE, 24));
    bad[9] ^= 1;
    let mut responder = node();
    assert_eq!(responder.receive(&bad).unwrap_err(), Fault { terminate: None, cause: Cause::Crc });
    assert!(!responder.stream.may_send());
    let t = Op::Terminate(Terminate::CRC);
    assert_eq!(responder.stream.begin(t, 0).unwrap_err(), BeginError::NotYet);
    assert_eq!(Node::initiator().receive(&bad).unwrap_err().terminate, Some(Terminate::CRC));
}

/// A first FPDU with a good CRC allows a Responder to send, even if only to refuse that FPDU with a Terminate.
#[test]
fn first_fpdu_may_be_refused_with_a_terminate() {
    let mut node = node();
    refused(&mut node, &write(1, 0, 1), [0x11, 0x00, 0xC0]);
    assert_eq!(node.memory.events, [Delivery::FirstFpdu]);
}

/// DDP-16; RDMAP-80; ERR-10.
#[test]
fn err_10_tagged_version() {
    for dv in [0, 2, 3] {
        let mut ulpdu = write(STAG, BASE, 4);
        ulpdu[0] = 0xC0 | dv;
        assert_eq!(fresh(&ulpdu, [0x11, 0x04, 0xC0]), Cause::DdpVersion(dv));
        // DDP-64: the control octets of an empty segment still count.
        let mut ulpdu = write(STAG, BASE, 0);
        ulpdu[0] = 0xC0 | dv;
        fresh(&ulpdu, [0x11, 0x04, 0xC0]);
    }
}

/// ERR-11..15 and DDP-51: STag, stream, bounds, wrap, right.
#[test]
fn err_11_to_15_tagged_access() {
    fresh(&write(0x999, BASE, 4), [0x11, 0x00, 0xC0]);
    let mut n = node();
    n.memory.region_mut(STAG).valid = false;
    refused(&mut n, &write(STAG, BASE, 4), [0x11, 0x00, 0xC0]);
    let mut n = node();
    n.memory.region_mut(STAG).ours = false;
    refused(&mut n, &write(STAG, BASE, 4), [0x11, 0x02, 0xC0]);
    let mut n = node();
    n.memory.region_mut(STAG).write = false;
    let cause = refused(&mut n, &write(STAG, BASE, 4), [0x11, 0x00, 0xC0]);
    let (op, fault) = (TaggedOp::Write, AccessFault::NoRight);
    assert_eq!(cause, Cause::Tagged { op, fault, stag: STAG, to: BASE, len: 4 });
    // Access to one octet below the region, to one octet above it, and across an end (SEC-4).
    for (to, len) in [(BASE - 1, 1), (BASE + 64, 1), (BASE - 1, 66), (BASE + 60, 5), (0, 4), (1 << 63, 4)] {
        fresh(&write(STAG, to, len), [0x11, 0x01, 0xC0]);
    }
    for (to, len) in [(u64::MAX, 1), (u64::MAX - 3, 8), (u64::MAX - 7, 8)] {
        fresh(&write(STAG, to, len), [0x11, 0x03, 0xC0]);
    }
    // The whole region and its last octet are accessible.
    accepted(&mut node(), &write(STAG, BASE, 64));
    accepted(&mut node(), &write(STAG, BASE + 63, 1));
}

/// ERR-16, DDP-32: STag and TO of an empty Write mean nothing.
#[test]
fn err_16_empty_write() {
    let mut n = node();
    accepted(&mut n, &write(0xDEAD, u64::MAX, 0));
    accepted(&mut n, &write(0, 0, 0));
    assert_eq!(n.events(), []);
}

/// DDP-16; RDMAP-80; ERR-20.
#[test]
fn err_20_untagged_version() {
    for dv in [0, 2, 3] {
        for (rdmap, qn, payload) in [(0x43, 0, 0), (0x41, 1, 28), (0x47, 2, 4)] {
            let ulpdu = untagged(0x40 | dv, rdmap, qn, 1, 0, &vec![0; payload]);
            fresh(&ulpdu, [0x12, 0x06, 0xC0]);
        }
    }
}

/// DDP-49; ERR-21.
#[test]
fn err_21_queue_number() {
    for qn in [4, 5, 0x100, u32::MAX] {
        assert_eq!(fresh(&untagged(0x41, 0x43, qn, 1, 0, &[]), [0x12, 0x01, 0xC0]), Cause::QueueNumber(qn));
    }
}

/// ERR-22, RDMAP-84: a Send that finds no receive request is refused, even if the message is empty.
/// DDP-49; RDMAP-40.
#[test]
fn err_22_no_receive() {
    for len in [0, 1, 32] {
        let mut n = node();
        n.memory.receives.clear();
        assert_eq!(refused(&mut n, &send(1, 0, len), [0x12, 0x02, 0xC0]), Cause::NoReceive);
    }
}

/// DDP-49; ERR-23.
#[test]
fn err_23_msn() {
    for msn in [0, 2, 3, 1000, u32::MAX] {
        let cause = Cause::Msn { qn: 0, expected: 1, got: msn };
        assert_eq!(fresh(&send(msn, 0, 4), [0x12, 0x03, 0xC0]), cause);
        let cause = Cause::Msn { qn: 1, expected: 1, got: msn };
        assert_eq!(fresh(&read(msn, 4, STAG, BASE), [0x12, 0x03, 0xC0]), cause);
    }
    // A message repeated after its delivery.
    let mut n = node();
    accepted(&mut n, &send(1, 0, 4));
    refused(&mut n, &send(1, 0, 4), [0x12, 0x03, 0xC0]);
}

/// DDP-49; ERR-24.
#[test]
fn err_24_message_offset() {
    let cause = Cause::MessageOffset { mo: 33, capacity: 32 };
    assert_eq!(fresh(&send(1, 33, 4), [0x12, 0x04, 0xC0]), cause);
    fresh(&send(1, u32::MAX, 4), [0x12, 0x04, 0xC0]);
    fresh(&send(1, 33, 0), [0x12, 0x04, 0xC0]);
}

/// DDP-49; RDMAP-41; ERR-25.
#[test]
fn err_25_message_too_long() {
    let cause = Cause::MessageTooLong { needed: 33, capacity: 32 };
    assert_eq!(fresh(&send(1, 0, 33), [0x12, 0x05, 0xC0]), cause);
    accepted(&mut node(), &send(1, 0, 32));
    // The excess is in a later segment.
    let mut n = node();
    accepted(&mut n, &untagged(0x01, 0x43, 0, 1, 0, &[1; 32]));
    let placed = n.memory.placements;
    assert_eq!(placed, 32);
    refused(&mut n, &send(1, 32, 1), [0x12, 0x05, 0xC0]);
    let mut n = node();
    accepted(&mut n, &untagged(0x01, 0x43, 0, 1, 0, &[1; 32]));
    accepted(&mut n, &send(1, 32, 0));
    assert_eq!(n.events(), [Delivery::Received { len: 32, solicited: false, invalidated: None }]);
}

/// ERR-26, RDMAP-70, RDMAP-36: Requests are accepted up to IRD, but not one more. With IRD 0, none is accepted.
#[test]
fn err_26_reads_beyond_ird() {
    for ird in [0, 1, 4] {
        let mut n = Node::new(&negotiated(Role::Responder, ird, 0));
        n.memory.add(STAG, BASE, LEN);
        n.memory.post_receive(32);
        for i in 0..ird {
            accepted(&mut n, &read(u32::from(i) + 1, 4, STAG, BASE));
        }
        let cause = refused(&mut n, &read(u32::from(ird) + 1, 4, STAG, BASE), [0x12, 0x02, 0xC0]);
        assert_eq!(cause, Cause::ReadLimit { ird });
        assert_eq!(n.stream.responses_pending(), ird.into());
    }
}

/// ERR-27: the segment is shorter than its header. The Terminate can carry no header.
/// MPA-88.
#[test]
fn err_27_short_segments() {
    let (t, u) = (write(STAG, BASE, 0), send(1, 0, 0));
    for ulpdu in (0..14).map(|n| &t[..n]).chain((1..18).map(|n| &u[..n])) {
        let len = ulpdu.len() as u16;
        assert_eq!(fresh(ulpdu, [0x10, 0x00, 0x00]), Cause::ShortSegment(len));
    }
}

/// DDP-64; RDMAP-80; ERR-30.
#[test]
fn err_30_rdmap_version() {
    for rv in [0x00, 0x80, 0xC0] {
        let segments = [
            tagged(0xC1, rv, STAG, BASE, &[1; 4]),
            tagged(0xC1, rv, STAG, BASE, &[]),
            untagged(0x41, rv | 3, 0, 1, 0, &[1; 4]),
            untagged(0x41, rv | 1, 1, 1, 0, &read_header((1, 0), 0, (1, 0))),
            untagged(0x41, rv | 7, 2, 1, 0, &[0; 4]),
        ];
        for ulpdu in segments {
            assert_eq!(fresh(&ulpdu, [0x02, 0x05, 0xC0]), Cause::RdmapVersion(rv >> 6));
        }
    }
}

/// ERR-31: every opcode in every place where it does not belong. None of the user's resources is touched.
/// RDMAP-8, 80.
#[test]
fn err_31_opcode() {
    for opcode in 0..16 {
        if !matches!(opcode, 0 | 2) {
            fresh(&tagged(0xC1, 0x40 | opcode, STAG, BASE, &[1; 4]), [0x02, 0x06, 0xC0]);
        }
        for qn in 0..4 {
            let fits = matches!((qn, opcode), (0, 3..=6 | 8 | 9) | (1, 1 | 10) | (2, 7) | (3, 11));
            if !fits {
                let mut n = node();
                let cause =
                    refused(&mut n, &untagged(0x41, 0x40 | opcode, qn, 1, 0, &[0; 28]), [0x02, 0x06, 0xC0]);
                assert_eq!(cause, Cause::Opcode(opcode));
                assert_eq!(n.memory.receives.len(), 2, "the posted one and refused()'s own");
            }
        }
    }
    // Another opcode inside a message.
    let mut n = node();
    accepted(&mut n, &untagged(0x01, 0x43, 0, 1, 0, &[1; 4]));
    refused(&mut n, &untagged(0x41, 0x45, 0, 1, 4, &[1; 4]), [0x02, 0x06, 0xC0]);
}

/// ERR-32..36, RDMAP-82: faults of the source of a Read Request.
/// RDMAP-33, 83.
#[test]
fn err_32_to_36_read_source() {
    fresh(&read(1, 4, 0x999, BASE), [0x01, 0x00, 0xE0]);
    for (to, len) in [(BASE - 1, 1), (BASE + 64, 1), (BASE + 60, 5), (BASE, 65), (BASE, u32::MAX)] {
        fresh(&read(1, len, STAG, to), [0x01, 0x01, 0xE0]);
    }
    let mut n = node();
    n.memory.region_mut(STAG).read = false;
    let cause = refused(&mut n, &read(1, 4, STAG, BASE), [0x01, 0x02, 0xE0]);
    let fault = AccessFault::NoRight;
    assert_eq!(cause, Cause::ReadSource { fault, stag: STAG, to: BASE, len: 4 });
    let mut n = node();
    n.memory.region_mut(STAG).ours = false;
    refused(&mut n, &read(1, 4, STAG, BASE), [0x01, 0x03, 0xE0]);
    fresh(&read(1, 8, STAG, u64::MAX - 7), [0x01, 0x04, 0xE0]);

    // RDMAP-34, SEC-25: an empty Read is served, whatever source it names.
    let mut n = node();
    accepted(&mut n, &read(1, 0, 0x999, u64::MAX));
    n.respond(1454);
    assert_eq!(n.out, fpdu(&tagged(0xC1, 0x42, 9, 0, &[])));
    accepted(&mut n, &read(2, 64, STAG, BASE));
}

/// ERR-37, RDMAP-46: STags that must stay valid are not invalidated, and nothing is delivered.
/// RDMAP-81.
#[test]
fn err_37_cannot_invalidate() {
    for (opcode, stag) in [(0x44, STAG), (0x46, STAG), (0x44, 0x999)] {
        let mut n = node();
        n.memory.pinned_stags.push(STAG);
        let mut ulpdu = untagged(0x41, opcode, 0, 1, 0, &[]);
        ulpdu[2..6].copy_from_slice(&stag.to_be_bytes());
        assert_eq!(refused(&mut n, &ulpdu, [0x01, 0x09, 0xC0]), Cause::CannotInvalidate(stag));
        assert_eq!(n.events(), []);
        assert!(n.memory.region(STAG).valid);
    }
}

/// Returns an Initiator with one Read of 8 octets outstanding, to offset 16 of the region.
fn reader() -> Node {
    let mut n = Node::initiator();
    n.memory.add(STAG, BASE, LEN);
    n.memory.post_receive(32);
    n.read(8, (STAG, BASE + 16), (5, 0)).unwrap();
    n
}

fn response(last: bool, stag: u32, to: u64, len: usize) -> Vec<u8> {
    tagged(if last { 0xC1 } else { 0x81 }, 0x42, stag, to, &vec![3; len])
}

/// ERR-38: Responses without a Read, and Responses that do not match the oldest Request.
/// RDMAP-39.
#[test]
fn err_38_read_response() {
    for len in [0, 4] {
        let cause = fresh(&response(true, STAG, BASE, len), [0x02, 0x06, 0xC0]);
        assert_eq!(cause, Cause::UnexpectedReadResponse);
    }
    for (ulpdu, code) in [
        (response(true, STAG + 1, BASE + 16, 8), 0x00),
        (response(true, STAG, BASE + 15, 8), 0x01),
        (response(true, STAG, BASE + 17, 8), 0x01),
        (response(true, STAG, BASE + 16, 9), 0x01),
        (response(false, STAG, BASE + 16, 9), 0x01),
        (response(true, STAG, BASE + 16, 7), 0x01),
        (response(true, STAG, BASE + 16, 0), 0x01),
    ] {
        let mut n = reader();
        assert_eq!(refused(&mut n, &ulpdu, [0x11, code, 0xC0]), Cause::ReadResponseMismatch);
        assert_eq!(n.events(), []);
    }
    // In two segments. The second one must directly follow the first.
    let mut n = reader();
    accepted(&mut n, &response(false, STAG, BASE + 16, 5));
    assert_eq!((n.events(), n.stream.reads_outstanding()), (vec![], 1)); // RDMAP-64
    accepted(&mut n, &response(true, STAG, BASE + 21, 3));
    assert_eq!(n.events(), [Delivery::ReadDone { msn: 1, len: 8 }]);
    let mut n = reader();
    accepted(&mut n, &response(false, STAG, BASE + 16, 5));
    let placed = n.memory.placements;
    assert_eq!(placed, 5);
    refused(&mut n, &response(true, STAG, BASE + 20, 3), [0x11, 0x01, 0xC0]);
}

/// STag and TO of an empty segment mean nothing, even in the response to an empty Read (DDP-32).
#[test]
fn an_empty_response_may_name_anything() {
    let mut n = Node::initiator();
    n.read(0, (STAG, BASE), (5, 0)).unwrap();
    accepted(&mut n, &response(true, STAG + 1, BASE + 99, 0));
    assert_eq!(n.events(), [Delivery::ReadDone { msn: 1, len: 0 }]);
    // An empty segment before the data may also name anything.
    let mut n = reader();
    accepted(&mut n, &response(false, STAG + 1, BASE + 99, 0));
    accepted(&mut n, &response(true, STAG, BASE + 16, 8));
    assert_eq!(n.events(), [Delivery::ReadDone { msn: 1, len: 8 }]);
}

/// The sink becomes invalid while its Read is outstanding (SEC-7).
#[test]
fn read_response_to_a_revoked_sink() {
    let mut n = reader();
    n.memory.region_mut(STAG).valid = false;
    refused(&mut n, &response(true, STAG, BASE + 16, 8), [0x11, 0x00, 0xC0]);
}

/// ERR-39.
#[test]
fn err_39_read_request_form() {
    let header = read_header((9, 0), 4, (STAG, BASE));
    let longer = [&header[..], &[0]].concat();
    for ulpdu in [
        untagged(0x41, 0x41, 1, 1, 0, &header[..27]),
        untagged(0x41, 0x41, 1, 1, 0, &longer),
        untagged(0x41, 0x41, 1, 1, 0, &[]),
        untagged(0x41, 0x41, 1, 1, 4, &header),
        untagged(0x01, 0x41, 1, 1, 0, &header),
    ] {
        assert_eq!(fresh(&ulpdu, [0x02, 0xFF, 0xC0]), Cause::ReadRequestForm);
    }
}

/// ERR-45: the user's own scatter list is faulty.
#[test]
fn err_45_receive_memory() {
    let mut n = node();
    n.memory.scatter_broken = true;
    assert_eq!(refused(&mut n, &send(1, 0, 4), [0x02, 0x07, 0x00]), Cause::ReceiveMemory);
}

/// ERR-47, RDMAP-86: a malformed Terminate ends the stream, without an answer.
#[test]
fn err_47_malformed_terminate() {
    let with_headers = [0x11, 0, 0xC0, 0];
    for ulpdu in [
        untagged(0x41, 0x47, 2, 1, 0, &[0; 3]),
        untagged(0x41, 0x47, 2, 1, 0, &with_headers),
        untagged(0x41, 0x47, 2, 2, 0, &[0; 4]),
        untagged(0x41, 0x47, 2, 1, 4, &[0; 4]),
        untagged(0x01, 0x47, 2, 1, 0, &[0; 4]),
    ] {
        let mut n = node();
        let fault = n.receive(&fpdu(&ulpdu)).unwrap_err();
        assert_eq!(fault, Fault { terminate: None, cause: Cause::MalformedTerminate });
        assert_eq!(n.events(), []);
        assert!(n.stream.ended());
    }
}

/// After a Terminate, no octet is taken, not even the rest of its chunk, however the stream is split (DDP-54,
/// RDMAP-52).
#[test]
fn err_47_terminate_is_the_last_message() {
    let mut octets = fpdu(&untagged(0x41, 0x47, 2, 1, 0, &[0x20, 0x02, 0, 0]));
    octets.extend(fpdu(&write(STAG, BASE, 8)));
    octets.extend([0, 30, 0xC1]);
    for split in 0..octets.len() {
        let mut n = node();
        n.receive(&octets[..split]).unwrap();
        n.receive(&octets[split..]).unwrap();
        n.receive(&fpdu(&write(STAG, BASE, 8))).unwrap();
        assert_eq!(n.events(), [Delivery::Terminated(Terminate::CRC)], "split at {split}");
        assert_eq!((n.memory.placements, n.live.get()), (0, 0), "split at {split}");
        let op = Op::Write { stag: 1, to: 0 };
        assert_eq!(n.stream.begin(op, 0).unwrap_err(), BeginError::Ended);
    }
}

fn part(ddp: u8, mo: u32, octets: &[u8]) -> Vec<u8> {
    untagged(ddp, 0x43, 0, 1, mo, octets)
}

/// ERR-48, DDP-65: steps back and overlaps are allowed. The message ends with the highest octet placed. This is the end
/// of the L segment, unless the L segment steps back (DDP-40).
#[test]
fn err_48_steps_back() {
    type Parts = [(u8, u32, &'static [u8])];
    let cases: [(&Parts, &[u8]); 5] = [
        (&[(0x01, 0, b"abcdef"), (0x01, 4, b"EFGH"), (0x41, 8, b"ij")], b"abcdEFGHij"),
        (&[(0x01, 0, b"abcdef"), (0x41, 2, b"CD")], b"abCDef"),
        (&[(0x01, 0, b"abcdef"), (0x41, 0, b"")], b"abcdef"),
        (&[(0x01, 0, b"abcdef"), (0x01, 0, b"A"), (0x41, 6, b"g")], b"Abcdefg"),
        (&[(0x01, 0, b""), (0x01, 0, b"ab"), (0x01, 2, b""), (0x41, 2, b"c")], b"abc"),
    ];
    for (parts, message) in cases {
        let mut n = node();
        for &(ddp, mo, octets) in parts {
            assert_eq!(n.events(), []);
            accepted(&mut n, &part(ddp, mo, octets));
        }
        let len = message.len() as u32;
        assert_eq!(n.events(), [Delivery::Received { len, solicited: false, invalidated: None }]);
        assert_eq!(n.memory.received, [message]);
    }
}

/// ERR-48b, DDP-65: a gap is a fault, because the skipped octets would be reported as received although they never
/// arrived. The octets placed before the gap are not reported. A gap may also be at the start of a message.
#[test]
fn err_48b_gaps() {
    for (before, mo, octets) in [
        (&b""[..], 1, &b"x"[..]),
        (b"", 31, b"x"),
        (b"", 32, b""),
        (b"", 1, b""),
        (b"abcd", 5, b"x"),
        (b"abcd", 5, b""),
        (b"abcd", 32, b""),
    ] {
        for ddp in [0x01, 0x41] {
            let mut n = node();
            if !before.is_empty() {
                accepted(&mut n, &part(0x01, 0, before));
                accepted(&mut n, &part(0x01, 1, b"B"));
            }
            let cause = refused(&mut n, &part(ddp, mo, octets), [0x12, 0x04, 0xC0]);
            assert_eq!(cause, Cause::MessageGap { mo, placed: before.len() as u32 });
            assert_eq!((n.events(), n.memory.received.len()), (vec![], 0));
        }
    }
    // Octets placed for one message do not count for the next.
    let mut n = node();
    accepted(&mut n, &send(1, 0, 8));
    n.memory.post_receive(32);
    let cause = refused(&mut n, &send(2, 8, 1), [0x12, 0x04, 0xC0]);
    assert_eq!(cause, Cause::MessageGap { mo: 8, placed: 0 });
}

/// DDP-15, RDMAP-10, RDMAP-11, MPA-14: reserved fields are ignored.
#[test]
fn reserved_fields_are_ignored() {
    let mut n = node();
    let mut ulpdu = untagged(0x41 | 0x3C, 0x73, 0, 1, 0, b"data");
    ulpdu[2..6].copy_from_slice(&STAG.to_be_bytes());
    let mut octets = (ulpdu.len() as u16).to_be_bytes().to_vec();
    octets.extend(ulpdu);
    octets.resize(octets.len().next_multiple_of(4), 0xEE); // PAD
    octets.extend(crc(&octets).to_le_bytes());
    n.receive(&octets).unwrap();
    let received = Delivery::Received { len: 4, solicited: false, invalidated: None };
    assert_eq!(n.events(), [received]);
    assert!(n.memory.region(STAG).valid);
}

/// Untagged and tagged messages may interleave at segment boundaries.
#[test]
fn tagged_segments_inside_an_untagged_message() {
    let mut n = node();
    accepted(&mut n, &untagged(0x01, 0x43, 0, 1, 0, b"ab"));
    accepted(&mut n, &write(STAG, BASE, 4));
    accepted(&mut n, &read(1, 4, STAG, BASE));
    accepted(&mut n, &untagged(0x41, 0x43, 0, 1, 2, b"cd"));
    assert_eq!(n.memory.received, [b"abcd"]);
}

/// RDMAP-21: a source is revoked in the middle of a Response. The Terminate blames the Request without the part
/// already sent.
#[test]
fn read_source_revoked_in_mid_response() {
    let mut n = node();
    let ulpdu = read(1, 60, STAG, BASE);
    accepted(&mut n, &ulpdu);
    let Some(Pending::Read(request)) = n.stream.next_response() else { panic!("no Read") };
    let t = request.terminate(AccessFault::InvalidStag, 40);
    assert_eq!(octets_of(&t), [0x01, 0x00, 0xE0]);
    assert_eq!((t.segment_len, t.ddp.unwrap().octets()), (Some(46), &ulpdu[..18]));
    assert_eq!(t.rdma.unwrap()[..], read_header((9, 40), 20, (STAG, BASE + 40)));
    assert_eq!(request.terminate(AccessFault::NoRight, 0).rdma.unwrap()[..], ulpdu[18..]);
}
