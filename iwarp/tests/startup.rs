//! MPA start-up between our two ends, and against hand-made frames (RFC 5044 §7.1, RFC 6581).

mod support;

use support::hex;
use urnic_iwarp::startup::*;
use urnic_iwarp::*;

const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const REPLY: &[u8; 16] = b"MPA ID Rep Frame";

fn frame(key: &[u8; 16], flags: u8, rev: u8, private_data: &[u8]) -> Vec<u8> {
    [&key[..], &[flags, rev], &(private_data.len() as u16).to_be_bytes(), private_data].concat()
}

/// Returns an enhanced frame with the given word.
fn enhanced(key: &[u8; 16], flags: u8, word: u32, private_data: &[u8]) -> Vec<u8> {
    frame(key, flags | 0x10, 2, &[&word.to_be_bytes()[..], private_data].concat())
}

fn initiator(offer: &Offer<'_>) -> (Initiator, Vec<u8>) {
    Initiator::new(offer).unwrap()
}

/// Returns a Responder that has read `request`.
fn asked(request: &[u8]) -> (Responder, PeerParams, Vec<u8>) {
    let mut responder = Responder::new(Limits::default());
    match responder.receive(request).unwrap() {
        Request::Arrived(peer, data) => (responder, peer, data),
        Request::NeedMore => panic!("a Request that is not whole"),
    }
}

fn refused(request: &[u8]) -> StartupError {
    Responder::new(Limits::default()).receive(request).unwrap_err()
}

/// Returns an Initiator's result for a Reply.
fn answered(offer: &Offer<'_>, reply: &[u8]) -> Result<Outcome, StartupError> {
    match initiator(offer).0.receive(reply)? {
        Progress::Done { consumed, outcome } => {
            assert_eq!(consumed, reply.len());
            Ok(outcome)
        }
        other => panic!("{other:?}"),
    }
}

/// Runs both ends of a start-up.
fn connect(a: &Offer<'_>, b: &Offer<'_>) -> (Negotiated, PeerParams, Negotiated, PeerParams) {
    let (mut i, request) = initiator(a);
    let (mut r, seen_by_b, data) = asked(&request);
    assert_eq!(data, a.private_data);
    let (reply, nb) = r.accept(b).unwrap();
    match i.receive(&reply).unwrap() {
        Progress::Done { outcome: Outcome::Accepted(na, seen_by_a, data), .. } => {
            assert_eq!(data, b.private_data);
            (na, seen_by_a, nb, seen_by_b)
        }
        other => panic!("{other:?}"),
    }
}

fn word_of(reply: &[u8]) -> u32 {
    assert_eq!(reply[16] & 0x10, 0x10);
    u32::from_be_bytes(reply[20..24].try_into().unwrap())
}

const V1: Offer<'_> =
    Offer { rev: 1, crc: true, markers: false, ird: 16, ord: 16, private_data: &[], peer_to_peer: None };
const V2: Offer<'_> = Offer { rev: 2, ..V1 };

/// MPA-55, MPA-30, MPA-2: CRCs are used if either end asks for them; by default both do.
/// MPA-29.
#[test]
fn crc_if_either_end_wants_it() {
    assert!(Offer::default().crc);
    for rev in [1, 2] {
        for (a, b) in [(true, true), (true, false), (false, true), (false, false)] {
            let (na, _, nb, seen) = connect(&Offer { rev, crc: a, ..V2 }, &Offer { crc: b, ..V2 });
            assert_eq!((na.crc, nb.crc, seen.crc), (a || b, a || b, a));
            assert_eq!((na.role, nb.role), (Role::Initiator, Role::Responder));
            assert_eq!((na.rev, nb.rev), (rev, rev)); // MPAE-2
            assert!(!na.tx_markers && !na.rx_markers && !nb.tx_markers && !nb.rx_markers);
        }
    }
}

/// MPA-61, MPAE-4: private data of every size passes unchanged. More than fits is refused by the API.
#[test]
fn private_data_passes_unaltered() {
    let data: Vec<u8> = (0..513).map(|i| i as u8).collect();
    for (rev, max) in [(1, 512), (2, 508)] {
        for len in [0, 1, 2, 3, 4, 5, 251, max - 1, max] {
            let offer = Offer { rev, private_data: &data[..len], ..V2 };
            connect(&offer, &offer); // compares the private data
            let (i, request) = initiator(&offer);
            let reply = asked(&request).0.reject(&data[..len]).unwrap();
            let mut i = i;
            match i.receive(&reply).unwrap() {
                Progress::Done { outcome: Outcome::Rejected(_, told), .. } => assert_eq!(told, data[..len]),
                other => panic!("{other:?}"),
            }
        }
        let offer = Offer { rev, private_data: &data[..max + 1], ..V2 };
        let error = StartupError::OwnPrivateData { len: max + 1, max };
        assert_eq!(Initiator::new(&offer).unwrap_err(), error);
        let (_, request) = initiator(&Offer { rev, ..V2 });
        assert_eq!(asked(&request).0.accept(&offer).unwrap_err(), error);
        assert_eq!(asked(&request).0.reject(&data[..max + 1]).unwrap_err(), error);
        // After a refused answer, the user may give another answer.
        let mut responder = asked(&request).0;
        responder.accept(&offer).unwrap_err();
        responder.accept(&V2).unwrap();
        assert_eq!(responder.reject(&[]).unwrap_err(), StartupError::OutOfTurn);
    }
}

/// MPA-63: a frame that arrives octet by octet has no effect before its last octet.
#[test]
fn frames_arrive_octet_by_octet() {
    for (offer, data) in [(V1, &b""[..]), (V1, b"abc"), (V2, b""), (V2, b"abcdefgh")] {
        let offer = Offer { private_data: data, ..offer };
        let (mut i, request) = initiator(&offer);
        let mut r = Responder::new(Limits::default());
        for octet in &request[..request.len() - 1] {
            assert_eq!(r.receive(&[*octet]).unwrap(), Request::NeedMore);
            assert_eq!(r.accept(&V2).unwrap_err(), StartupError::OutOfTurn);
        }
        assert!(matches!(r.receive(&request[request.len() - 1..]).unwrap(), Request::Arrived(..)));
        assert_eq!(r.receive(&[]).unwrap(), Request::NeedMore);
        let reply = r.accept(&offer).unwrap().0;
        for octet in &reply[..reply.len() - 1] {
            assert!(matches!(i.receive(&[*octet]).unwrap(), Progress::NeedMore { consumed: 1 }));
        }
        assert!(matches!(i.receive(&reply[reply.len() - 1..]).unwrap(), Progress::Done { consumed: 1, .. }));
    }
}

/// MPA-52, MPA-53, MPA-71: each octet of the key counts, and is checked as soon as it arrives.
/// MPA-79.
#[test]
fn wrong_keys() {
    for at in 0..16 {
        let mut request = frame(REQUEST, 0x40, 1, &[]);
        request[at] ^= 0x20;
        assert_eq!(refused(&request), StartupError::NotMpa);
        assert_eq!(refused(&request[..at + 1]), StartupError::NotMpa);
        let mut reply = frame(REPLY, 0x40, 1, &[]);
        reply[at] ^= 0x20;
        assert_eq!(answered(&V1, &reply).unwrap_err(), StartupError::NotMpa);
    }
    assert_eq!(refused(b"GET / HTTP/1.1\r\n"), StartupError::NotMpa);
    assert_eq!(refused(&frame(REPLY, 0x40, 1, &[])), StartupError::NotMpa);
}

/// MPA-74: two Initiators detect each other.
#[test]
fn both_initiators() {
    let (mut a, _) = initiator(&V2);
    assert_eq!(a.receive(&initiator(&V2).1).unwrap_err(), StartupError::BothInitiators);
}

/// MPA-56, MPA-57, MPAE-40: R of a Request and reserved bits are ignored. S is reserved in revision 1.
#[test]
fn reserved_bits() {
    for flags in [0x60, 0x41, 0x5F, 0x7F] {
        let (mut r, peer, data) = asked(&frame(REQUEST, flags, 1, b"data"));
        assert_eq!((peer.enhanced, peer.crc, &data[..]), (false, true, &b"data"[..]));
        let reply = r.accept(&V2).unwrap().0;
        assert_eq!(reply[16..18], [0x40, 1]);
    }
    let (_, peer, _) = asked(&enhanced(REQUEST, 0x4F, 0x0004_0004, &[]));
    assert!(peer.enhanced);
    let reply = enhanced(REPLY, 0x4F, 0x0004_0004, &[]);
    assert!(matches!(answered(&V2, &reply).unwrap(), Outcome::Accepted(..)));
}

/// MPA-58: revisions 1 and 2 only.
#[test]
fn revisions() {
    for rev in [0, 3, 4, 255] {
        assert_eq!(refused(&frame(REQUEST, 0x40, rev, &[])), StartupError::Revision(rev));
        assert_eq!(answered(&V1, &frame(REPLY, 0x40, rev, &[])).unwrap_err(), StartupError::Revision(rev));
        assert_eq!(Initiator::new(&Offer { rev, ..V2 }).unwrap_err(), StartupError::Offer);
    }
    // A Responder with revision 1 only (MPAE-8).
    let old = Limits { max_rev: 1, ..Limits::default() };
    for flags in [0x40, 0x50] {
        let request = frame(REQUEST, flags, 2, &[0; 4]);
        assert_eq!(Responder::new(old).receive(&request).unwrap_err(), StartupError::Revision(2));
    }
    assert!(matches!(Responder::new(old).receive(&initiator(&V1).1).unwrap(), Request::Arrived(..)));
    // Revision 2 without S: the Request and the answer are unenhanced frames (MPAE-6).
    let (mut r, peer, data) = asked(&frame(REQUEST, 0x40, 2, b"data"));
    assert!(!peer.enhanced && peer.ird.is_none());
    assert_eq!(data, b"data");
    let (reply, n) = r.accept(&V2).unwrap();
    assert_eq!(reply, frame(REPLY, 0x40, 2, &[]));
    assert_eq!((n.ird, n.ord), (16, 16));
}

/// MPA-60, MPA-90, MPAE-3: private data lengths.
/// MPA-68.
#[test]
fn private_data_lengths() {
    for len in [513u16, 514, 0x8000, 0xFFFF] {
        let mut request = frame(REQUEST, 0x40, 1, &[]);
        request[18..20].copy_from_slice(&len.to_be_bytes());
        assert_eq!(refused(&request), StartupError::PrivateDataLength(len));
        request[..16].copy_from_slice(REPLY);
        assert_eq!(answered(&V1, &request).unwrap_err(), StartupError::PrivateDataLength(len));
    }
    for len in 0..4u16 {
        let request = frame(REQUEST, 0x50, 2, &vec![0; len.into()]);
        assert_eq!(refused(&request), StartupError::PrivateDataLength(len));
    }
    let mut small = Responder::new(Limits { max_private_data: 3, ..Limits::default() });
    let error = StartupError::PrivateDataLimit { len: 4, max: 3 };
    assert_eq!(small.receive(&frame(REQUEST, 0x40, 1, b"four")).unwrap_err(), error);
    let mut small = Responder::new(Limits { max_private_data: 3, ..Limits::default() });
    let request = enhanced(REQUEST, 0x40, 0, b"two");
    assert!(matches!(small.receive(&request).unwrap(), Request::Arrived(..)));
}

/// MPA-91: octets after a Request are an error until it is answered. Octets after a Reply are left for the stream.
/// MPA-77.
#[test]
fn surplus_octets() {
    let request = frame(REQUEST, 0x40, 1, b"abc");
    assert_eq!(refused(&[&request[..], &[0]].concat()), StartupError::Surplus);
    let mut r = asked(&request).0;
    assert_eq!(r.receive(&[0]).unwrap_err(), StartupError::Surplus);

    let reply = frame(REPLY, 0x40, 1, b"abc");
    let behind = [&reply[..], &[0, 14]].concat();
    match initiator(&V1).0.receive(&behind).unwrap() {
        Progress::Done { consumed, outcome: Outcome::Accepted(_, _, data) } => {
            assert_eq!((consumed, &data[..]), (reply.len(), &b"abc"[..]));
        }
        other => panic!("{other:?}"),
    }
}

/// MPA-19, 27, 54: each end's M bit says what it wants to receive, and alone decides on that direction, in either
/// revision. A Request or Reply with M is never refused because of it.
#[test]
fn markers_in_each_direction_on_their_own() {
    for rev in [1, 2] {
        for (a, b) in [(true, true), (true, false), (false, true), (false, false)] {
            let (ours, theirs) = (Offer { rev, markers: a, ..V2 }, Offer { markers: b, ..V2 });
            assert_eq!(initiator(&ours).1[16] & 0x80 != 0, a);
            let (na, seen_by_a, nb, seen_by_b) = connect(&ours, &theirs);
            assert_eq!((na.rx_markers, na.tx_markers), (a, b));
            assert_eq!((nb.rx_markers, nb.tx_markers), (b, a));
            assert_eq!((seen_by_b.markers, seen_by_a.markers), (a, b));
        }
    }
    let (_, peer, data) = asked(&hex("4d504120494420526571204672616d65 c001 0003 616263"));
    assert!(peer.markers && data == b"abc"); // MPA-51: 23 octets
    let rejected = answered(&V1, &frame(REPLY, 0xE0, 1, b"no")).unwrap();
    assert!(matches!(rejected, Outcome::Rejected(peer, data) if peer.markers && data == b"no"));
}

/// MPAE-10..13, MPAE-16, MPAE-11, MPAE-18: ORD of each end is at most IRD of the other, and both users learn the
/// values.
#[test]
fn ird_and_ord() {
    for (ai, ao, bi, bo) in [
        (4, 4, 16, 16),
        (16, 16, 4, 4),
        (0, 0, 16, 16),
        (16, 16, 0, 0),
        (1, 7, 3, 5),
        (16382, 16382, 16382, 16382),
    ] {
        let (na, peer_of_a, nb, peer_of_b) =
            connect(&Offer { ird: ai, ord: ao, ..V2 }, &Offer { ird: bi, ord: bo, ..V2 });
        assert_eq!((na.ird, na.ord, nb.ird, nb.ord), (ai, ao.min(bi), bi, bo.min(ai)));
        assert_eq!((peer_of_b.ird, peer_of_b.ord), (Some(ai), Some(ao)));
        assert_eq!((peer_of_a.ird, peer_of_a.ord), (Some(bi), Some(bo.min(ai))));
    }
    // Revision 1 negotiates nothing.
    let (na, seen, nb, _) = connect(&Offer { ird: 1, ord: 2, ..V1 }, &Offer { ird: 3, ord: 4, ..V1 });
    assert_eq!((na.ird, na.ord, nb.ird, nb.ord, seen.ird), (1, 2, 3, 4, None));
    for offer in [Offer { ird: 0x3FFF, ..V2 }, Offer { ord: 0x3FFF, ..V2 }] {
        assert_eq!(Initiator::new(&offer).unwrap_err(), StartupError::Offer);
    }
}

/// MPAE-19..22: an end that sends IRD 0x3FFF leaves the other end's ORD as it is, and an end that sends ORD 0x3FFF
/// leaves the other end's IRD as it is.
#[test]
fn no_automatic_negotiation() {
    let answer = |word| {
        let (mut r, ..) = asked(&enhanced(REQUEST, 0x40, word, &[]));
        let (reply, n) = r.accept(&Offer { ird: 5, ord: 6, ..V2 }).unwrap();
        (word_of(&reply), n.ird, n.ord)
    };
    assert_eq!(answer(0x3FFF_3FFF), (0x3FFF_3FFF, 5, 6));
    assert_eq!(answer(0x0002_3FFF), (0x3FFF_0002, 5, 2));
    assert_eq!(answer(0x3FFF_0002), (0x0005_3FFF, 5, 6));
    let take = |word| match answered(&Offer { ird: 5, ord: 6, ..V2 }, &enhanced(REPLY, 0x40, word, &[])) {
        Ok(Outcome::Accepted(n, ..)) => (n.ird, n.ord),
        other => panic!("{other:?}"),
    };
    assert_eq!(take(0x3FFF_3FFF), (5, 6));
    assert_eq!(take(0x0002_3FFF), (5, 2));
    assert_eq!(take(0x3FFF_0005), (5, 6));
}

/// A Request is answered once, and its parameters are known until then (MPA-66).
#[test]
fn a_request_is_answered_once() {
    let request = initiator(&V1).1;
    assert_eq!(Responder::new(Limits::default()).peer(), None);
    for accepts in [true, false] {
        let (mut responder, peer, _) = asked(&request);
        assert_eq!(responder.peer(), Some(peer));
        if accepts {
            responder.accept(&V1).unwrap();
        } else {
            responder.reject(b"no").unwrap();
        }
        assert_eq!(responder.peer(), None);
        assert_eq!(responder.reject(&[]).unwrap_err(), StartupError::OutOfTurn);
        assert_eq!(responder.accept(&V1).unwrap_err(), StartupError::OutOfTurn);
    }
}

/// ERR-5, MPAE-17: a Responder whose ORD exceeds the IRD that we offered gets a Terminate.
#[test]
fn insufficient_ird() {
    let outcome = answered(&Offer { ird: 4, ..V2 }, &enhanced(REPLY, 0x40, 0x0010_0005, &[])).unwrap();
    let Outcome::Unacceptable(n, peer, t) = outcome else { panic!("{outcome:?}") };
    assert_eq!((peer.ord, t.to_string()), (Some(5), "MPA insufficient IRD resources (20 06)".into()));
    // The Terminate may be sent, because the stream is in Full Operation.
    let mut node = support::Node::new(&n);
    node.send(Op::Terminate(t), &[], 1454).unwrap();
    assert_eq!(node.out[20..24], [0x20, 0x06, 0, 0]);
}

/// MPAE-6, MPAE-38: a Reply whose format differs from that of the Request.
/// MPA-66; MPAE-15.
#[test]
fn reply_format() {
    for (offer, reply) in [
        (V2, frame(REPLY, 0x40, 1, &[])),
        (V2, frame(REPLY, 0x40, 2, &[])),
        (V1, enhanced(REPLY, 0x40, 0, &[])),
    ] {
        assert_eq!(answered(&offer, &reply).unwrap_err(), StartupError::ReplyFormat);
    }
    // A rejection may have any format.
    let rejected = answered(&V2, &frame(REPLY, 0x60, 1, b"no")).unwrap();
    assert!(matches!(rejected, Outcome::Rejected(_, data) if data == b"no"));
    let rejected = answered(&V2, &enhanced(REPLY, 0x60, 0x0003_0007, b"no")).unwrap();
    let Outcome::Rejected(peer, data) = rejected else { panic!() };
    assert_eq!((peer.ird, peer.ord, &data[..]), (Some(3), Some(7), &b"no"[..]));
}

const A: u32 = 0x8000_0000;
const B: u32 = 0x4000_0000;
const C: u32 = 0x8000;
const D: u32 = 0x4000;

fn flag(set: bool, bit: u32) -> u32 {
    if set { bit } else { 0 }
}

/// MPAE-24..26, MPAE-35: the Reply to a peer-to-peer Request lists the RTR kinds of the Request, or Write and Read if
/// the Request names none.
#[test]
fn peer_to_peer_replies() {
    for (asked_for, listed) in [
        (A | C, A | C),
        (A | D, A | D),
        (A | C | D, A | C | D),
        (A | B | C | D, A | B | C | D),
        (A | B, A | B),
        (A, A | C | D),
        // MPAE-30: without A, the other bits have no meaning.
        (B | C | D, 0),
    ] {
        let (mut r, peer, _) = asked(&enhanced(REQUEST, 0x40, asked_for | 0x0001_0000, &[]));
        assert_eq!(peer.peer_to_peer.is_some(), asked_for & A != 0);
        let (reply, n) = r.accept(&Offer { ird: 0, ord: 0, ..V2 }).unwrap();
        assert_eq!(word_of(&reply) & (A | B | C | D), listed);
        // MPAE-14: IRD has room for an RTR Read if the Reply lists it.
        let ird = u16::from(listed & D != 0);
        assert_eq!((n.ird, n.rtr), (ird, None));
        let kinds = n.peer_to_peer.map_or(0, |k| A | flag(k.send, B) | flag(k.write, C) | flag(k.read, D));
        assert_eq!(kinds, listed);
        assert_eq!(word_of(&reply) >> 16 & 0x3FFF, ird.into());
    }
}

/// MPAE-23, MPAE-27, MPAE-29, MPAE-39: the Initiator sends one kind that both know, or a Terminate.
#[test]
fn peer_to_peer_initiator() {
    let kinds = |send, write, read| Some(RtrKinds { send, write, read });
    let all = kinds(true, true, true);
    for (ours, reply, rtr) in [
        (all, A | B | C | D, Some(Rtr::Write)),
        (all, A | B | D, Some(Rtr::Read)),
        (all, A | B, Some(Rtr::Send)),
        (kinds(false, false, true), A | C | D, Some(Rtr::Read)),
        (kinds(false, true, false), A | D, None),
        (all, A, None),
        (all, B | C | D, None), // A is missing in the answer
        (None, A | C, None),    // A is missing in the Request
    ] {
        let offer = Offer { ird: 4, ord: 0, peer_to_peer: ours, ..V2 };
        let (_, request) = initiator(&offer);
        let asked = ours.map_or(0, |k| A | flag(k.send, B) | flag(k.write, C) | flag(k.read, D));
        assert_eq!(word_of(&request) & (A | B | C | D), asked);
        match (answered(&offer, &enhanced(REPLY, 0x40, reply | 0x0004_0000, &[])).unwrap(), rtr) {
            (Outcome::Accepted(n, ..), Some(rtr)) => {
                assert_eq!((n.rtr, n.ord), (Some(rtr), u16::from(rtr == Rtr::Read)));
            }
            (Outcome::Unacceptable(_, _, t), None) => assert_eq!(t, Terminate::NO_MATCHING_RTR),
            other => panic!("{other:?}"),
        }
    }
    for offer in [Offer { peer_to_peer: all, ..V1 }, Offer { peer_to_peer: kinds(false, false, false), ..V2 }]
    {
        assert_eq!(Initiator::new(&offer).unwrap_err(), StartupError::Offer);
    }
}

/// Both of our ends in the peer-to-peer model: Write is chosen, and the Responder may send after it.
#[test]
fn peer_to_peer_both_ends() {
    let kinds = RtrKinds { send: false, write: true, read: true };
    let (na, _, nb, _) = connect(&Offer { peer_to_peer: Some(kinds), ..V2 }, &V2);
    let (mut a, mut b) = (support::Node::new(&na), support::Node::new(&nb));
    assert!(!b.stream.may_send());
    a.send(na.rtr.unwrap().op(), &[], 1454).unwrap();
    b.receive(&a.take_out()).unwrap();
    assert!(b.stream.may_send());
    assert_eq!(b.memory.events, [Delivery::FirstFpdu]);
}

/// MPAE-32: a message that differs from an RTR Send in any field is no RTR: the stream refuses it, or handles it as an
/// ordinary message.
#[test]
fn what_is_nearly_a_send_that_says_ready_is_none() {
    use support::{fpdu, octets_of, tagged, untagged};
    let kinds = RtrKinds { send: true, write: true, read: false };
    for (name, ulpdu, terminate) in [
        ("DDP version", untagged(0x42, 0x43, 0, 1, 0, &[]), Some([0x12, 0x06, 0xC0])),
        ("RDMAP version", untagged(0x41, 0x83, 0, 1, 0, &[]), Some([0x02, 0x05, 0xC0])),
        ("opcode", untagged(0x41, 0x47, 0, 1, 0, &[]), Some([0x02, 0x06, 0xC0])),
        ("queue", untagged(0x41, 0x43, 1, 1, 0, &[]), Some([0x02, 0x06, 0xC0])),
        ("MSN", untagged(0x41, 0x43, 0, 2, 0, &[]), Some([0x12, 0x03, 0xC0])),
        ("MO", untagged(0x41, 0x43, 0, 1, 1, &[]), Some([0x12, 0x04, 0xC0])),
        ("T", tagged(0xC1, 0x43, 0, 1 << 32, &[0; 4]), Some([0x02, 0x06, 0xC0])),
        ("L", untagged(0x01, 0x43, 0, 1, 0, &[]), None),
        ("length", untagged(0x41, 0x43, 0, 1, 0, &[7]), None),
    ] {
        let n = support::negotiated(Role::Responder, 4, 4);
        let mut b = support::Node::new(&Negotiated { peer_to_peer: Some(kinds), ..n });
        b.memory.post_receive(8);
        let refused = b.receive(&fpdu(&ulpdu)).err().map(|f| octets_of(&f.terminate.unwrap()));
        assert_eq!(refused, terminate, "{name}");
        if terminate.is_none() {
            assert_eq!(b.memory.receives.len(), 0, "{name}: it takes a receive request");
        }
    }
}

/// MPAE-32, MPAE-34: a zero-length Send that comes first, on a connection whose Reply lists the Send kind, is no
/// message for the user. It uses an MSN but no receive request. Any other Send is a message: a later Send, a Send with
/// octets, or a Send in the client-server model.
#[test]
fn a_send_that_says_ready_is_no_message() {
    let send = Op::Send { solicited: false, invalidate: None };
    let kinds = |send, write| Some(RtrKinds { send, write, read: false });
    let received = |len| Delivery::Received { len, solicited: false, invalidated: None };
    for (listed, first, messages, msn) in [
        (kinds(true, true), &[(send, 0)][..], vec![], 2),
        (kinds(true, true), &[(send, 0), (send, 0)], vec![received(0)], 3),
        (kinds(true, true), &[(send, 5)], vec![received(5)], 2),
        (kinds(true, true), &[(Rtr::Write.op(), 0), (send, 0)], vec![received(0)], 2),
        (
            kinds(true, true),
            &[(Op::Send { solicited: true, invalidate: None }, 0)],
            vec![Delivery::Received { len: 0, solicited: true, invalidated: None }],
            2,
        ),
        (kinds(false, true), &[(send, 0)], vec![received(0)], 2),
        (None, &[(send, 0)], vec![received(0)], 2),
    ] {
        for size in [1, 100] {
            let n = support::negotiated(Role::Responder, 4, 4);
            let mut b = support::Node::new(&Negotiated { peer_to_peer: listed, ..n });
            let mut a = support::Node::initiator();
            (0..3).for_each(|_| b.memory.post_receive(8));
            for (op, len) in first {
                a.send(*op, &vec![7; *len], 1454).unwrap();
            }
            for chunk in a.take_out().chunks(size) {
                b.receive(chunk).unwrap();
            }
            assert!(b.stream.may_send());
            assert_eq!(b.events(), messages);
            assert_eq!(b.memory.receives.len(), 3 - messages.len());
            // The queue goes on with the next MSN.
            a.send(send, &[1], 1454).unwrap();
            assert_eq!(a.out[12..16], u32::to_be_bytes(msn));
            b.receive(&a.take_out()).unwrap();
            assert_eq!(b.events().last(), Some(&received(1)));
        }
    }
}

/// MPA-11: after a start-up of either revision, DDP and RDMAP headers carry version 1, and no other version is
/// accepted.
#[test]
fn versions_follow_from_the_start_up() {
    for rev in [1, 2] {
        let (na, _, nb, _) = connect(&Offer { rev, ..V2 }, &V2);
        let (mut a, mut b) = (support::Node::new(&na), support::Node::new(&nb));
        a.send(Op::Write { stag: 1, to: 0 }, &[], 1454).unwrap();
        assert_eq!((a.out[2] & 3, a.out[3] >> 6), (1, 1));
        b.receive(&a.take_out()).unwrap();
        for ulpdu in [support::tagged(0xC2, 0x40, 1, 0, &[]), support::tagged(0xC1, 0x80, 1, 0, &[])] {
            let mut b = support::Node::new(&nb);
            let cause = b.receive(&support::fpdu(&ulpdu)).unwrap_err().cause;
            assert!(matches!(cause, Cause::DdpVersion(2) | Cause::RdmapVersion(2)));
        }
    }
}

/// A Request as the initiator of Linux siw sends it: enhanced, with a 4-octet word, and with the reserved bit
/// that siw uses for itself.
#[test]
fn a_request_of_siw() {
    let request = hex("4d504120494420526571204672616d65 5802 0004 00800080");
    let (mut r, peer, data) = asked(&request);
    assert_eq!((peer.ird, peer.ord, data.len()), (Some(128), Some(128), 0));
    let reply = r.accept(&V2).unwrap().0;
    assert_eq!(reply[16..20], [0x50, 2, 0, 4]); // reserved bits are zero, and none is echoed
}
