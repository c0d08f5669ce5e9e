//! ACKs that came with data, and are handled after the data (`receive_data_first`).

use crate::testing::*;
use crate::*;
use std::time::Duration;

/// Returns two connected nodes, of which A has sent four octets, and B's answer to them, which acknowledges them and is
/// on its way.
fn answered() -> (Pair, ConnId, ConnId, Vec<u8>) {
    let mut p = Pair::new(|c| c.tcp.ack_delay = Duration::from_micros(50));
    let (c, s) = p.connect();
    p.a.stack.send(c, Shared::new(b"ping")).unwrap();
    p.a.stack.output(p.now, c, &mut p.a.out);
    for sent in std::mem::take(&mut p.a.out.frames) {
        p.b.receive(p.now, sent.bytes);
    }
    p.now += Duration::from_micros(5);
    p.b.stack.send(s, Shared::new(b"pong")).unwrap();
    p.b.stack.output(p.now, s, &mut p.b.out);
    let answer = p.b.out.frames.pop_front().expect("the answer").bytes;
    assert!(p.b.out.frames.is_empty());
    (p, c, s, answer)
}

fn receive_data_first(p: &mut Pair, frames: impl IntoIterator<Item = Vec<u8>>) {
    p.a.stack.receive_data_first(p.now, frames, &mut p.a.seen, &mut p.a.out);
}

#[test]
fn the_data_comes_first() {
    let (mut p, c, _, answer) = answered();
    receive_data_first(&mut p, [answer]);
    assert_eq!(p.a.data(c), b"pong");
    assert_eq!((p.a.stack.unacked(c), p.a.seen.acked.get(&c)), (4, None));
    assert_eq!(p.a.stack.next_deadline(), Some(Time::ZERO), "it must be settled soon");
    p.a.stack.settle(&mut p.a.seen, &mut p.a.out);
    assert_eq!((p.a.stack.unacked(c), p.a.seen.acked[&c]), (0, 4));
    assert_ne!(p.a.stack.next_deadline(), Some(Time::ZERO));
}

/// The program may answer before. Timers and the next burst find the ACK settled.
#[test]
fn an_answer_may_leave_before() {
    for settle in [
        |p: &mut Pair| p.a.advance(p.now),
        |p: &mut Pair| receive_data_first(p, []),
        |p: &mut Pair| assert!(p.a.stack.settle(&mut p.a.seen, &mut p.a.out)),
    ] {
        let (mut p, c, s, answer) = answered();
        receive_data_first(&mut p, [answer]);
        p.a.stack.send(c, Shared::new(b"once more")).unwrap();
        p.a.stack.output(p.now, c, &mut p.a.out);
        let sent = View::of(&p.a.out.frames.back().expect("leaves at once").bytes).unwrap();
        assert_eq!(sent.payload, b"once more");
        settle(&mut p);
        assert_eq!((p.a.stack.unacked(c), p.a.seen.acked[&c]), (9, 4));
        p.settle();
        p.run(Duration::from_secs(1));
        assert_eq!((p.b.data(s), p.a.stack.unacked(c)), (&b"pingonce more"[..], 0));
        assert_eq!(p.a.stack.counters().retransmitted_segments, 0);
    }
}

/// The round trip ended when the ACK arrived, not when it was handled (RFC 6298 §3).
#[test]
fn the_round_trip_ends_with_the_arrival() {
    let (mut p, c, _, answer) = answered();
    let before = p.a.stack.info(c).unwrap().srtt.expect("measured when the connection was made");
    receive_data_first(&mut p, [answer]);
    p.now += Duration::from_secs(20);
    p.a.advance(p.now);
    let after = p.a.stack.info(c).unwrap().srtt.unwrap();
    assert!(after <= before, "{before:?}, then {after:?}");
    let counters = p.a.stack.counters();
    assert_eq!((counters.retransmitted_segments, counters.loss_probes, counters.rto_recoveries), (0, 0, 0));
}

/// Each round trip of a ping-pong is measured, although the next message is under way when the ACK is handled.
#[test]
fn every_round_trip_is_measured() {
    let (mut p, c, s, answer) = answered();
    let mut answer = Some(answer);
    let first = p.a.stack.info(c).unwrap().srtt.unwrap();
    // Each round trip is much longer than the one before.
    for round in 1..=4 {
        p.now += Duration::from_millis(10) * round;
        receive_data_first(&mut p, answer.take());
        p.a.stack.send(c, Shared::new(b"ping")).unwrap();
        p.a.stack.output(p.now, c, &mut p.a.out);
        let before = p.a.stack.info(c).unwrap().srtt.unwrap();
        p.a.stack.settle(&mut p.a.seen, &mut p.a.out);
        let after = p.a.stack.info(c).unwrap().srtt.unwrap();
        assert!(after > before && after > first, "round {round}: {before:?}, then {after:?}");
        for sent in std::mem::take(&mut p.a.out.frames) {
            p.b.receive(p.now, sent.bytes);
        }
        p.b.stack.send(s, Shared::new(b"pong")).unwrap();
        p.b.stack.output(p.now, s, &mut p.b.out);
        answer = p.b.out.frames.pop_front().map(|sent| sent.bytes);
    }
}

/// An ACK without data, and one that is not the last, is handled at once.
#[test]
fn bare_acks_do_not_wait() {
    let mut p = Pair::new(|c| c.tcp.ack_delay = Duration::ZERO);
    let (c, _) = p.connect();
    p.a.stack.send(c, Shared::new(b"ping")).unwrap();
    p.a.stack.output(p.now, c, &mut p.a.out);
    for sent in std::mem::take(&mut p.a.out.frames) {
        p.b.receive(p.now, sent.bytes);
    }
    p.b.flush(p.now);
    let ack = p.b.out.frames.pop_front().expect("an ACK").bytes;
    receive_data_first(&mut p, [ack]);
    assert_eq!((p.a.stack.unacked(c), p.a.seen.acked[&c]), (0, 4));
}

/// The ACK of a connection that is gone does not reach the next connection at the same place.
#[test]
fn it_goes_with_its_connection() {
    let (mut p, c, _, answer) = answered();
    receive_data_first(&mut p, [answer]);
    p.a.stack.abort(p.now, c, &mut p.a.out);
    p.settle();
    let (next, _) = p.connect();
    assert_eq!(next.index(), c.index());
    p.a.stack.send(next, Shared::new(b"data")).unwrap();
    p.a.stack.settle(&mut p.a.seen, &mut p.a.out);
    p.a.advance(p.now);
    assert_eq!((p.a.stack.unacked(next), p.a.seen.acked.get(&next)), (4, None));
}
