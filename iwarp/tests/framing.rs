//! Received FPDUs that are split at any place, the memory that they hold if the peer is slow, and the FPDUs that we
//! send (RFC 5044 §4, §6).

mod support;

use support::*;
use urnic_iwarp::*;

const STAG: u32 = 7;

/// Returns a Responder with a region of 1 MiB.
fn node() -> Node {
    let mut node = Node::responder();
    node.memory.add(STAG, 0, 1 << 20);
    node
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

/// Returns a Write of `len` octets to offset 0, in FPDUs of at most `mulpdu`.
fn written(len: usize, mulpdu: usize) -> Vec<u8> {
    let mut sender = Node::initiator();
    sender.send(Op::Write { stag: STAG, to: 0 }, &pattern(len), mulpdu).unwrap();
    sender.out
}

/// MPA-38, MPA-5, MPA-41, DDP-1: the usual values of EMSS, and both limits.
#[test]
fn mulpdu_of_an_emss() {
    for (emss, without, with) in [
        (1460, 1454, 1442),
        (1448, 1442, 1430),
        (8960, 8954, 8882),
        (536, 530, 522),
        (1461, 1454, 1442),
        (100, 128, 128),
        (0, 128, 128),
        (65495, 64768, 64768),
    ] {
        assert_eq!(mulpdu(emss, false), without, "EMSS {emss}");
        assert_eq!(mulpdu(emss, true), with, "EMSS {emss} with markers");
    }
}

/// DDP-27, DDP-20, DDP-25: the RFC's own example of a cut message, with TO and MO of its parts.
#[test]
fn a_message_is_cut_at_the_mulpdu() {
    let mut node = Node::initiator();
    let message = pattern(2048);
    node.send(Op::Write { stag: STAG, to: 16384 }, &message, 1500).unwrap();
    let second = 2 + 1500 + 2 + 4;
    assert_eq!(node.sizes, [second, 2 + 14 + 562 + 2 + 4]);
    assert_eq!(node.out[0..2], 1500u16.to_be_bytes());
    assert_eq!(node.out[2..4], [0x81, 0x40]); // DDP-12: L on the last only
    assert_eq!(node.out[8..16], 16384u64.to_be_bytes());
    assert_eq!(node.out[second + 2..second + 4], [0xC1, 0x40]);
    assert_eq!(node.out[second + 8..second + 16], 17870u64.to_be_bytes());

    let mut node = Node::initiator();
    node.send(Op::Send { solicited: false, invalidate: None }, &message, 1500).unwrap();
    assert_eq!(node.out[2..4], [0x01, 0x43]);
    assert_eq!(node.out[16..20], 0u32.to_be_bytes());
    let second = node.sizes[0];
    assert_eq!(node.out[second + 2..second + 4], [0x41, 0x43]);
    assert_eq!(node.out[second + 16..second + 20], 1482u32.to_be_bytes());
}

/// DDP-29, DDP-31, MPA-6, MPA-41: sizes around the limits. An empty message takes one FPDU.
#[test]
fn sizes_around_the_limits() {
    for mulpdu in [0, 127, 128, 129, 1454, 64768, 64769, 1 << 20] {
        let bound = mulpdu.clamp(128, 64768);
        let payload = bound - 14;
        for (len, count) in [
            (0, 1),
            (1, 1),
            (payload - 1, 1),
            (payload, 1),
            (payload + 1, 2),
            (3 * payload, 3),
            (3 * payload + 1, 4),
        ] {
            let octets = written(len, mulpdu);
            let mut sender = Node::initiator();
            sender.send(Op::Write { stag: STAG, to: 0 }, &pattern(len), mulpdu).unwrap();
            assert_eq!(sender.sizes.len(), count, "{len} octets, MULPDU {mulpdu}");
            assert!(sender.sizes.iter().all(|&s| s % 4 == 0 && s <= (2 + bound).next_multiple_of(4) + 4));
            let mut receiver = node();
            receiver.receive(&octets).unwrap();
            assert_eq!(receiver.memory.region(STAG).data()[..len], pattern(len));
            assert_eq!(receiver.memory.placements, len);
        }
    }
}

/// The MULPDU (MPA-4) and the space in a segment (MPA-39) may change in the middle of a message.
/// DDP-1, 2.
#[test]
fn the_mulpdu_may_change_in_mid_message() {
    let message = pattern(5000);
    let mut outgoing = Node::initiator().stream.begin(Op::Write { stag: STAG, to: 0 }, 5000).unwrap();
    let mut receiver = node();
    for mulpdu in [1454, 128, 500, 64768] {
        let fpdu = outgoing.next(mulpdu).unwrap();
        assert_eq!(fpdu.last, mulpdu == 64768);
        receiver.receive(&wire(&fpdu, &message)).unwrap();
    }
    assert!(outgoing.done() && outgoing.next(1454).is_none());
    assert_eq!(receiver.memory.region(STAG).data()[..5000], message);
}

/// The longest possible message: lengths and offsets do not overflow (DDP-28). The TO of a Write wraps only if the
/// sum of the first TO and the length, which the user chooses, exceeds 64 bits.
#[test]
fn the_longest_message() {
    let mut a = Node::initiator();
    let op = Op::Send { solicited: false, invalidate: None };
    let mut outgoing = a.stream.begin(op, u32::MAX).unwrap();
    let (mut end, mut count) = (0, 0u32);
    while let Some(fpdu) = outgoing.next(64768) {
        assert_eq!(fpdu.payload.start, end);
        assert_eq!(fpdu.header()[16..20], end.to_be_bytes());
        end = fpdu.payload.end;
        assert_eq!(fpdu.last, end == u32::MAX);
        count += 1;
    }
    assert_eq!((end, count), (u32::MAX, u32::MAX.div_ceil(64750)));
}

/// An FPDU in one chunk is placed directly from it, with one call and without keeping the chunk, even if the chunk
/// contains several FPDUs.
#[test]
fn whole_fpdus_are_placed_straight_from_the_chunk() {
    let mut n = node();
    n.receive(&written(9000, 1454)).unwrap();
    assert_eq!(n.memory.place_calls, 7);
    assert_eq!((n.live.get(), n.stream.mid_fpdu()), (0, false));
}

/// MPA-44, MPA-87, MPA-9: every chunk size gives the same result, and no chunk outlives its FPDUs.
#[test]
fn any_chunk_size_gives_the_same_result() {
    let octets = written(20_000, 1454);
    for size in (1..64).chain([255, 256, 257, 1000, 1459, 1460, 1461, 5000]) {
        let mut n = node();
        for chunk in octets.chunks(size) {
            n.receive(chunk).unwrap();
        }
        assert_eq!(n.memory.region(STAG).data()[..20_000], pattern(20_000), "chunks of {size}");
        assert_eq!((n.memory.placements, n.live.get()), (20_000, 0));
        assert!(!n.stream.mid_fpdu());
    }
}

/// MPA-8, 9, 12..14: ULPDUs of every small length. The shortest, of 18 octets, is an empty Send. ULPDU_Length counts
/// only the ULPDU; the pad is zero.
#[test]
fn ulpdus_of_every_small_length() {
    let mut receiver = node();
    let mut sender = Node::initiator();
    for len in 0..600 {
        receiver.memory.post_receive(600);
        sender.send(Op::Send { solicited: false, invalidate: None }, &pattern(len), 1454).unwrap();
        let octets = sender.take_out();
        let ulpdu = 18 + len;
        assert_eq!(octets[..2], (ulpdu as u16).to_be_bytes());
        assert_eq!(octets.len(), (2 + ulpdu).next_multiple_of(4) + 4);
        assert!(octets[2 + ulpdu..octets.len() - 4].iter().all(|pad| *pad == 0));
        receiver.receive(&octets).unwrap();
        assert_eq!(receiver.memory.received.last(), Some(&pattern(len)));
    }
}

/// MPA-48, RDMAP-64: an FPDU without its last octet has no effect.
/// MPA-10.
#[test]
fn the_last_octet_decides() {
    let octets = written(100, 1454);
    for split in 1..octets.len() {
        let mut n = node();
        n.receive(&octets[..split]).unwrap();
        assert!(n.stream.mid_fpdu() && !n.stream.may_send());
        n.receive(&octets[split..octets.len() - 1]).unwrap();
        assert_eq!((n.memory.placements, n.memory.events.len()), (0, 0));
        n.receive(&octets[octets.len() - 1..]).unwrap();
        assert_eq!(n.memory.placements, 100);
        assert_eq!(n.memory.events, [Delivery::FirstFpdu]);
    }
}

/// Empty chunks have no effect and are not kept.
#[test]
fn empty_chunks() {
    let octets = written(100, 1454);
    let mut n = node();
    n.receive(&[]).unwrap();
    n.receive(&octets[..50]).unwrap();
    let live = n.live.get();
    for _ in 0..100 {
        n.receive(&[]).unwrap();
    }
    assert_eq!(n.live.get(), live);
    n.receive(&octets[50..]).unwrap();
    assert_eq!(n.memory.placements, 100);
}

/// The largest possible ULPDU_Length, larger than any sender may use, in full segments: at most eight chunks are
/// held, then they are copied.
#[test]
fn the_largest_fpdu_holds_few_chunks() {
    let ulpdu = tagged(0xC1, 0x40, STAG, 0, &pattern(65535 - 14));
    let octets = fpdu(&ulpdu);
    let mut n = node();
    let mut most = 0;
    for chunk in octets.chunks(1448) {
        n.receive(chunk).unwrap();
        most = most.max(n.live.get());
    }
    assert_eq!(most, 8);
    assert_eq!(n.memory.region(STAG).data()[..65521], pattern(65521));
    assert_eq!(n.live.get(), 0);
}

/// A peer that sends octet by octet pins no frames, however long it goes on.
#[test]
fn a_dribbling_peer_pins_no_frames() {
    let octets = fpdu(&tagged(0xC1, 0x40, STAG, 0, &pattern(65535 - 14)));
    for size in [1, 100] {
        let mut n = node();
        for chunk in octets.chunks(size) {
            n.receive(chunk).unwrap();
            assert_eq!(n.live.get(), 0);
        }
        assert_eq!(n.memory.region(STAG).data()[..65521], pattern(65521));
    }
    // One large chunk does not allow many small ones to be held.
    let mut n = node();
    n.receive(&octets[..1448]).unwrap();
    assert_eq!(n.live.get(), 1);
    for octet in octets[1448..].chunks(1) {
        n.receive(octet).unwrap();
        assert!(n.live.get() <= 6);
    }
    assert_eq!(n.memory.placements, 65521);
}

/// A fault in the middle of held chunks releases them.
#[test]
fn a_fault_releases_what_is_held() {
    let mut octets = written(9000, 8954);
    octets[100] ^= 1;
    let mut n = node();
    let mut result = Ok(());
    for chunk in octets.chunks(1448) {
        if result.is_ok() {
            result = n.receive(chunk);
        }
    }
    assert_eq!(result.unwrap_err().cause, Cause::Crc);
    assert_eq!((n.live.get(), n.memory.placements), (0, 0));
}

/// MPA-15, MPA-16, MPA-34: without CRCs, the field is sent as zero and ignored on receipt.
#[test]
fn without_crc() {
    let n = |role| Node::new(&Negotiated { crc: false, ..negotiated(role, 4, 4) });
    let mut a = n(Role::Initiator);
    a.send(Op::Write { stag: STAG, to: 0 }, &pattern(10), 1454).unwrap();
    let end = a.out.len() - 4;
    assert_eq!(a.out[end..], [0; 4]);
    for field in [[0; 4], [0xFF; 4], crc(&a.out[..end]).to_le_bytes()] {
        let mut b = n(Role::Responder);
        b.memory.add(STAG, 0, 10);
        a.out[end..].copy_from_slice(&field);
        b.receive(&a.out).unwrap();
        for octet in a.out.chunks(1) {
            b.receive(octet).unwrap();
        }
        assert_eq!(b.memory.region(STAG).data(), pattern(10));
    }
}

/// MPA-70, MPAE-36: a Responder sends nothing before the first valid FPDU, which may be an RTR of any kind.
#[test]
fn a_responder_listens_first() {
    for rtr in [Rtr::Write, Rtr::Read, Rtr::Send] {
        let mut b = Node::responder();
        b.memory.post_receive(0);
        let op = Op::Write { stag: 1, to: 0 };
        assert!(!b.stream.may_send());
        assert_eq!(b.stream.begin(op, 0).unwrap_err(), BeginError::NotYet);
        let mut a = Node::initiator();
        assert!(a.stream.may_send());
        a.send(rtr.op(), &[], 1454).unwrap();
        b.receive(&a.take_out()).unwrap();
        assert!(b.stream.may_send());
        assert_eq!(b.memory.events[0], Delivery::FirstFpdu);
        b.send(op, &[], 1454).unwrap();
        b.respond(1454);
        a.receive(&b.take_out()).unwrap();
        let done = Delivery::ReadDone { msn: 1, len: 0 };
        assert_eq!(a.events(), if rtr == Rtr::Read { vec![done] } else { vec![] });
    }
}

/// RDMAP-69, MPAE-10: never more Reads than ORD. Each Response allows one more Read, and the order is kept (RDMAP-65).
#[test]
fn reads_wait_for_ord() {
    let mut a = Node::new(&negotiated(Role::Initiator, 0, 2));
    let mut b = Node::new(&negotiated(Role::Responder, 2, 0));
    a.memory.add(1, 0, 64);
    b.memory.add(2, 0, 64).data_mut().copy_from_slice(&pattern(64));
    for round in 0..10 {
        let at = round * 4;
        a.read(4, (1, at), (2, at)).unwrap();
        a.read(0, (0, 0), (0, 0)).unwrap();
        assert_eq!(a.read(4, (1, 0), (2, 0)), Err(BeginError::OrdReached));
        assert_eq!((a.stream.reads_outstanding(), a.stream.ord()), (2, 2));
        // Other messages are not delayed.
        a.send(Op::Write { stag: 2, to: 60 }, &[round as u8], 1454).unwrap();
        b.receive(&a.take_out()).unwrap();
        assert_eq!(b.stream.responses_pending(), 2);
        b.respond(1454);
        a.receive(&b.take_out()).unwrap();
        assert_eq!(a.stream.reads_outstanding(), 0);
        let msn = 2 * round as u32 + 1;
        let done = [Delivery::ReadDone { msn, len: 4 }, Delivery::ReadDone { msn: msn + 1, len: 0 }];
        assert_eq!(a.events()[2 * round as usize..], done);
    }
    assert_eq!(a.memory.region(1).data()[..40], pattern(40));
    assert_eq!(b.read(0, (0, 0), (0, 0)), Err(BeginError::NoReads));
}

/// Progress of an [`Outgoing`], and the end of a [`Stream`].
#[test]
fn progress_and_end_are_told() {
    let mut node = node();
    let mut sender = Node::initiator();
    let mut message = sender.stream.begin(Op::Write { stag: STAG, to: 0 }, 1000).unwrap();
    let mut told = vec![(message.remaining(), message.done())];
    while message.next(514).is_some() {
        told.push((message.remaining(), message.done()));
    }
    assert_eq!(told, [(1000, false), (500, false), (0, true)]);
    assert!(message.next(514).is_none());

    assert!(!node.stream.ended());
    let mut wrong = written(8, 1454);
    *wrong.last_mut().unwrap() ^= 1;
    node.receive(&wrong).unwrap_err();
    assert!(node.stream.ended());
}
