//! Messages that find no receive: they wait for one (DDP-50), or end the stream (ERR-22).

mod support;

use support::refusal::{STAG, refused};
use support::*;
use urnic_iwarp::*;

const BASE: u64 = 0x1000;
/// At most `ROOM + FRAME` octets wait on one stream, so that any single segment fits.
const ROOM: usize = 64 * 1024;
/// Octets that the stream stores before each waiting segment.
const FRAME: usize = 6;

fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    untagged(0x41, 0x43, 0, msn, 0, payload)
}

fn immediate(msn: u32, data: u64) -> Vec<u8> {
    untagged(0x41, 0x48, 0, msn, 0, &data.to_be_bytes())
}

fn write(at: u64, payload: &[u8]) -> Vec<u8> {
    tagged(0xC1, 0x40, STAG, BASE + at, payload)
}

/// Returns a Responder without posted receives, on which arriving Sends may wait.
fn patient() -> Node {
    let mut node = Node::responder();
    node.memory.add(STAG, BASE, 256);
    let_wait(&mut node);
    node
}

fn let_wait(node: &mut Node) {
    node.stream.let_sends_wait();
    node.memory.messages_wait = true;
}

fn post(node: &mut Node, receives: usize) {
    for _ in 0..receives {
        node.memory.post_receive(ROOM);
    }
    node.stream.take_up_sends(&mut node.memory).unwrap();
}

fn take(node: &mut Node, ulpdus: &[Vec<u8>]) {
    for ulpdu in ulpdus {
        node.receive(&fpdu(ulpdu)).unwrap();
    }
}

/// Messages keep their order (DDP-37). Each Immediate Data reports the Write directly before it, whatever has
/// arrived since (DDP-50: a message that finds no buffer may be tried again).
#[test]
fn ddp_50_what_waits_keeps_its_order_and_the_rest_is_served() {
    let mut node = patient();
    let request = untagged(0x41, 0x41, 1, 1, 0, &read_header((5, 0), 16, (STAG, BASE)));
    take(
        &mut node,
        &[
            send(1, b"first"),
            write(0, &[7; 8]),
            immediate(2, 0xA),
            send(3, b""),
            write(16, &[9; 4]),
            request,
            immediate(4, 0xB),
        ],
    );
    assert!(node.stream.sends_wait());
    // Writes after the Send have been placed, and the Request has been accepted.
    assert_eq!(node.events(), [Delivery::ReadRequested]);
    let data = node.memory.region(STAG).data();
    assert_eq!((&data[..8], &data[16..20]), (&[7; 8][..], &[9; 4][..]));
    assert_eq!(node.stream.responses_pending(), 1);

    post(&mut node, 1);
    assert_eq!(node.memory.received, [b"first"]);
    assert!(node.stream.sends_wait());
    post(&mut node, 3);
    assert!(!node.stream.sends_wait() && node.stream.receive_missing().is_none());
    let immediate =
        |data: u64, written| Delivery::Immediate { data: data.to_be_bytes(), solicited: false, written };
    let received = |len| Delivery::Received { len, solicited: false, invalidated: None };
    assert_eq!(node.events()[1..], [received(5), immediate(0xA, 8), received(0), immediate(0xB, 4)]);
    // Later messages find a receive and do not wait.
    node.memory.post_receive(8);
    take(&mut node, &[send(5, b"later")]);
    assert_eq!(node.memory.received.last().unwrap(), b"later");
}

/// A message of several segments: some wait, and some arrive once it has its receive.
#[test]
fn a_message_is_taken_up_in_its_middle() {
    let mut node = patient();
    take(&mut node, &[untagged(0x01, 0x43, 0, 1, 0, &[1; 40]), untagged(0x01, 0x43, 0, 1, 40, &[2; 40])]);
    post(&mut node, 1);
    assert!(node.memory.received.is_empty() && !node.stream.sends_wait());
    take(&mut node, &[untagged(0x41, 0x43, 0, 1, 80, &[3; 5])]);
    assert_eq!(node.memory.received, [[&[1; 40][..], &[2; 40], &[3; 5]].concat()]);
}

/// Send with Invalidate invalidates when it is delivered.
#[test]
fn what_waits_invalidates_when_it_is_delivered() {
    let mut node = patient();
    let mut invalidating = untagged(0x41, 0x44, 0, 1, 0, b"done");
    invalidating[2..6].copy_from_slice(&STAG.to_be_bytes());
    take(&mut node, &[invalidating, write(0, &[1; 4])]);
    assert!(node.memory.region(STAG).valid);
    post(&mut node, 1);
    assert!(!node.memory.region(STAG).valid);
}

/// When no more octets may wait, the stream stops before the FPDU that does not fit, however the FPDUs are split into
/// chunks. If that FPDU arrives in several chunks, the stream stores its first octets, and stops before the chunk that
/// completes it.
#[test]
fn a_stream_stops_where_no_more_may_wait() {
    for split in [usize::MAX, 1000, 7] {
        let mut node = patient();
        let octets: Vec<u8> = (1..=5).flat_map(|msn| fpdu(&send(msn, &[msn as u8; 20_000]))).collect();
        let mut left = octets.chunks(split.min(octets.len()));
        let mut rest = Vec::new();
        for chunk in left.by_ref() {
            let chunk = Bytes::new(chunk, &node.live);
            if let Some(stopped) = node.stream.receive(chunk, &mut node.memory).unwrap() {
                assert_eq!(stopped.wants, Wants::Receive);
                rest.extend_from_slice(&stopped.chunk.bytes()[stopped.taken..]);
                break;
            }
        }
        rest.extend(left.flatten());
        // Three messages fit. The stream may keep all but the last octets of the fourth as an incomplete FPDU. The rest
        // is left.
        let one = fpdu(&send(5, &[0; 20_000])).len();
        assert!(rest.len() > one && rest.len() <= 2 * one);
        // There is still no room: the stream stops again at the same place.
        let again = Bytes::new(&rest, &node.live);
        let stopped = node.stream.receive(again, &mut node.memory).unwrap().unwrap();
        assert_eq!((stopped.taken, stopped.wants), (0, Wants::Receive));
        drop(stopped);
        post(&mut node, 1);
        let again = Bytes::new(&rest, &node.live);
        let stopped = node.stream.receive(again, &mut node.memory).unwrap().unwrap();
        let rest = stopped.chunk.bytes()[stopped.taken..].to_vec();
        drop(stopped);
        post(&mut node, 4);
        assert!(!node.stream.sends_wait());
        node.receive(&rest).unwrap();
        let expected: Vec<Vec<u8>> = (1..=5).map(|n| vec![n; 20_000]).collect();
        assert_eq!(node.memory.received, expected);
    }
}

/// Any single segment fits. An exhausted budget stops the stream in the same way as the stream's own limit. All
/// reservations return to the budget.
#[test]
fn what_waits_is_counted_and_given_back() {
    let budget = Budget::new(4 * (ROOM + FRAME), usize::MAX);
    let mut nodes: Vec<Node> = (0..3)
        .map(|_| {
            let mut node = Node::new(&negotiated(Role::Responder, 4, 4));
            node.stream = Stream::new(&negotiated(Role::Responder, 4, 4), budget.clone());
            let_wait(&mut node);
            node
        })
        .collect();
    let largest = fpdu(&send(1, &[3; 65535 - 18]));
    let offer = |node: &mut Node| {
        let chunk = Bytes::new(&largest, &node.live);
        node.stream.receive(chunk, &mut node.memory).unwrap().map(|rest| (rest.taken, rest.wants))
    };
    assert_eq!((offer(&mut nodes[0]), offer(&mut nodes[1])), (None, None));
    assert!(budget.aside() > 2 * 65535 && budget.aside() <= 2 * (ROOM + FRAME));
    // Half of the budget is for waiting messages, so it has no room for the third message. The third stream stops and
    // reports that it needs a receive.
    assert_eq!(offer(&mut nodes[2]), Some((0, Wants::Receive)));
    assert!(nodes[2].stream.sends_wait());
    let fault = nodes[2].stream.receive_missing().unwrap();
    assert_eq!(octets_of(&fault.terminate.unwrap()), [0x12, 0x02, 0xC0]);
    post(&mut nodes[0], 1);
    assert!(budget.aside() <= ROOM + FRAME);
    assert_eq!(offer(&mut nodes[2]), None);
    nodes[1].stream.stop_listening();
    drop(nodes);
    assert_eq!((budget.aside(), budget.reserved()), (0, 0));
}

/// ERR-22, DDP-49: a stream that ends after waiting blames the message that found no receive.
#[test]
fn err_22_after_waiting() {
    let mut node = patient();
    take(&mut node, &[send(1, b"one"), send(2, b"two")]);
    let blamed = |node: &Node| {
        node.stream.receive_missing().unwrap().terminate.unwrap().ddp.unwrap().octets().to_vec()
    };
    assert_eq!(blamed(&node), send(1, b"one")[..18]);
    post(&mut node, 1);
    assert_eq!(blamed(&node), send(2, b"two")[..18]);
    // Without waiting, the fault comes at once.
    let mut node = Node::responder();
    node.memory.add(STAG, BASE, 64);
    assert_eq!(refused(&mut node, &send(1, b"one"), [0x12, 0x02, 0xC0]), Cause::NoReceive);
}

/// Faults of a waiting message are found when it is taken up, and end the stream.
#[test]
fn what_waits_is_checked_when_it_is_taken_up() {
    // ERR-23: not the next message. ERR-25: too long.
    for (bad, octets) in [(send(3, b"x"), [0x12, 0x03, 0xC0]), (send(2, &[0; 9]), [0x12, 0x05, 0xC0])] {
        let mut node = patient();
        take(&mut node, &[send(1, b"one"), bad]);
        node.memory.post_receive(8);
        node.memory.post_receive(8);
        let fault = node.stream.take_up_sends(&mut node.memory).unwrap_err();
        assert_eq!(octets_of(&fault.terminate.unwrap()), octets);
        assert_eq!(node.memory.received, [b"one"]);
        assert!(node.stream.ended() && !node.stream.sends_wait());
    }
}

/// A user that takes no more messages still gets its Reads answered, and the peer's Writes are placed.
#[test]
fn discarded_messages_are_in_nobodys_way() {
    for waits in [true, false] {
        let mut node = patient();
        node.memory.add(0x77, 0, 8);
        // A Responder may send once it has received an FPDU.
        take(&mut node, &[write(0, b"")]);
        node.read(4, (0x77, 0), (1, 0)).unwrap();
        if waits {
            take(&mut node, &[send(1, b"one")]);
        }
        node.stream.discard_sends();
        assert!(!node.stream.sends_wait());
        take(
            &mut node,
            &[send(if waits { 2 } else { 1 }, b"x"), tagged(0xC1, 0x42, 0x77, 0, b"read"), write(8, b"w")],
        );
        node.memory.post_receive(8);
        take(&mut node, &[send(if waits { 3 } else { 2 }, b"y")]);
        assert_eq!(node.memory.region(0x77).data()[..4], *b"read");
        assert_eq!(node.memory.region(STAG).data()[8], b'w');
        // Once messages are discarded, all later ones are too, even if there is a receive for them.
        assert!(node.memory.received.is_empty());
    }
}

/// The peer's Terminate ends the stream, whatever messages wait.
#[test]
fn a_terminate_does_not_wait() {
    let mut node = patient();
    let terminate = untagged(0x41, 0x47, 2, 1, 0, &[0x00, 0x00, 0x00, 0x00]);
    take(&mut node, &[send(1, b"one"), terminate]);
    assert!(matches!(node.events()[..], [Delivery::Terminated(_)]));
    assert!(node.stream.ended() && !node.stream.sends_wait());
}

/// Any messages, in any split, with receives posted at any time: the same messages arrive, in the same order, as when
/// there is always a receive.
#[test]
fn receives_at_any_time_change_nothing() {
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let terms = negotiated(Role::Responder, 16, 16);
        let markers = random.bool();
        let mut node = Node::new(&Negotiated { rx_markers: markers, ..terms });
        let mut ready = Node::new(&Negotiated { rx_markers: markers, ..terms });
        let mut peer = Node::new(&Negotiated { tx_markers: markers, ..negotiated(Role::Initiator, 16, 16) });
        let_wait(&mut node);
        for node in [&mut node, &mut ready] {
            node.memory.add(STAG, BASE, 4096);
        }
        let count = random.usize(1..40);
        let mut messages = 0;
        for _ in 0..count {
            let len = random.choice([0, 3, 100, 4000]).unwrap();
            let payload: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
            let op = match random.u8(0..4) {
                0 => Op::Write { stag: STAG, to: BASE },
                1 => Op::Immediate { data: random.u64(..).to_be_bytes(), solicited: random.bool() },
                _ => Op::Send { solicited: random.bool(), invalidate: None },
            };
            messages += usize::from(!matches!(op, Op::Write { .. }));
            peer.send(op, &payload, random.usize(128..3000)).unwrap();
        }
        for _ in 0..messages {
            ready.memory.post_receive(4096);
        }
        let octets = peer.take_out();
        ready.receive(&octets).unwrap();

        let mut at = 0;
        let mut posted = 0;
        let mut turns = 0;
        while at < octets.len() || posted < messages {
            turns += 1;
            assert!(turns < 100_000, "seed {seed}: no progress");
            if posted < messages && random.u8(0..4) == 0 {
                posted += 1;
                post(&mut node, 1);
            }
            let end = (at + random.usize(1..5000)).min(octets.len());
            let chunk = Bytes::new(&octets[at..end], &node.live);
            let rest = node.stream.receive(chunk, &mut node.memory).unwrap();
            at = rest.map_or(end, |rest| {
                assert_eq!(rest.wants, Wants::Receive, "seed {seed}");
                at + rest.taken
            });
        }
        let messages_of = |node: &Node| {
            let is_message =
                |e: &Delivery| matches!(e, Delivery::Received { .. } | Delivery::Immediate { .. });
            node.events().into_iter().filter(is_message).collect::<Vec<_>>()
        };
        assert_eq!(messages_of(&node), messages_of(&ready), "seed {seed}");
        assert_eq!(node.memory.received, ready.memory.received, "seed {seed}");
        assert!(!node.stream.sends_wait() && node.live.get() == 0, "seed {seed}");
    }
}
