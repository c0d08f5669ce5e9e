//! Times and contents of ACKs.

use crate::harness::Script;
use crate::peer::{Bench, Conversation, Seg};
use std::time::Duration;

fn syn() -> Seg {
    Seg { seq: 77, mss: Some(1000), sack_permitted: true, ..Seg::default() }
}

fn established(script: Script) -> (Bench, Conversation) {
    let mut b = Bench::listening(|c| c.tcp.ack_delay = Duration::ZERO, script);
    let c = b.established(syn());
    (b, c)
}

#[test]
fn one_for_a_burst_in_order() {
    let (mut b, c) = established(Script::silent());
    let burst: Vec<Seg> = (0..8).map(|i| c.data(100 * i, 100)).collect();
    let sent = b.burst(&burst);
    assert_eq!(sent.iter().map(|s| (s.ack, s.data.len())).collect::<Vec<_>>(), [(Some(c.nxt + 800), 0)]);
    assert!(b.wait(Duration::from_secs(5)).is_empty());
}

#[test]
pub fn little_data_is_acknowledged_soon() {
    // RFC 1122 §4.2.3.2 allows half a second.
    let mut b = Bench::listening(|c| c.tcp.ack_delay = Duration::from_micros(50), Script::silent());
    let c = b.established(syn());
    assert!(b.send(&c.data(0, 100)).is_empty(), "the ACK waits for company");
    let sent = b.wait(Duration::from_micros(100));
    assert_eq!(sent.iter().map(|(_, s)| s.ack).collect::<Vec<_>>(), [Some(c.nxt + 100)]);
}

#[test]
fn one_at_once_for_each_segment_out_of_order() {
    // RFC 5681 §4.2, RFC 2018 §4
    let (mut b, c) = established(Script::silent());
    let sent = b.burst(&[c.data(0, 100), c.data(200, 100), c.data(400, 100), c.data(300, 100)]);
    let first = c.nxt + 100;
    assert_eq!(sent.len(), 3, "{sent:?}");
    assert!(sent.iter().all(|s| s.ack == Some(first)));
    let block = |from: u32, to: u32| (c.nxt + from, c.nxt + to);
    assert_eq!(sent[0].sacks, [block(200, 300)]);
    assert_eq!(sent[1].sacks, [block(400, 500), block(200, 300)]);
    assert_eq!(sent[2].sacks, [block(200, 500)]);
    // The segment that fills the gap is acknowledged at once as well.
    let sent = b.burst(&[c.data(100, 100), c.data(500, 100)]);
    assert_eq!(sent[0].ack, Some(c.nxt + 500));
    assert_eq!(sent.last().and_then(|s| s.ack), Some(c.nxt + 600));
    assert!(sent.iter().all(|s| s.sacks.is_empty()));
}

#[test]
fn a_duplicate_is_reported() {
    // RFC 2883 §4.1.1
    let (mut b, c) = established(Script::silent());
    b.send(&c.data(0, 100));
    let sent = b.send(&c.data(0, 100));
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].ack, &sent[0].sacks[..]), (Some(c.nxt + 100), &[(c.nxt, c.nxt + 100)][..]));
}

#[test]
fn without_sack_there_are_no_blocks() {
    let mut b = Bench::listening(|_| {}, Script::silent());
    let c = b.established(Seg { sack_permitted: false, ..syn() });
    let sent = b.burst(&[c.data(200, 100), c.data(0, 10), c.data(0, 10)]);
    assert!(!sent.is_empty() && sent.iter().all(|s| s.sacks.is_empty()), "{sent:?}");
}

#[test]
fn data_carries_the_ack() {
    let mut b = Bench::listening(|_| {}, Script { close_first: false, ..Script::send(50_000) });
    let c = b.open(syn()).0;
    let sent = b.burst(&[c.seg(), c.data(0, 100), c.data(100, 100)]);
    assert!(sent.iter().all(|s| !s.data.is_empty()), "a bare ACK beside data: {sent:?}");
    assert_eq!(sent.last().and_then(|s| s.ack), Some(c.nxt + 200));
    // Segments with data do not shrink to make room for SACK blocks.
    let sent = b.burst(&[c.data(500, 100), Seg { ack: Some(c.una + 3000), ..c.seg() }]);
    assert!(sent.iter().any(|s| s.sacks.len() == 1 && s.data.is_empty()));
    assert!(sent.iter().filter(|s| !s.data.is_empty()).all(|s| s.sacks.is_empty()));
}

#[test]
fn those_of_a_burst_count_as_one() {
    // Returns what the stack sends at once, and its state afterwards.
    let after = |arrives: fn(&Conversation) -> Vec<Seg>| {
        let mut b = Bench::listening(|_| {}, Script { close_first: false, ..Script::send(50_000) });
        let c = b.open(syn()).0;
        let out: usize = b.send(&c.seg()).iter().map(|s| s.data.len()).sum();
        assert!(out > 6000);
        b.now += Duration::from_millis(10);
        let sent = b.burst(&arrives(&c));
        let session = &b.host.app.sessions[0];
        let (acked, received) = (session.acked, session.received);
        let info = b.host.stack.info(session.conn).expect("it is open");
        let duplicates = b.host.stack.counters().duplicate_acks;
        (sent, acked, received, (info.cwnd, info.srtt, info.state), duplicates)
    };
    let one = after(|c| vec![Seg { ack: Some(c.una + 6000), window: 9000, ..c.seg() }]);
    assert_eq!((one.1, one.2, one.4), (6000, 0, 0));
    let several = after(|c| {
        let ack = |n: u32, window| Seg { ack: Some(c.una + n), window, ..c.seg() };
        vec![ack(1000, 20_000), ack(3000, 8000), ack(3500, 7000), ack(6000, 9000)]
    });
    assert_eq!(several, one);
    // Data between the ACKs keeps its place in the order. If an ACK of the burst acknowledges less than an earlier ACK,
    // the stack handles it alone.
    let mixed = after(|c| {
        let ack = |n: u32| Seg { ack: Some(c.una + n), window: 9000, ..c.seg() };
        let data = |at: u32, n: u32| Seg { ack: Some(c.una + n), window: 9000, ..c.data(at, 100) };
        vec![
            ack(2000),
            data(0, 2000),
            data(100, 4000),
            Seg { seq: c.nxt + 200, ..ack(3000) },
            data(200, 6000),
        ]
    });
    assert_eq!((mixed.1, mixed.2, mixed.3, mixed.4), (6000, 300, one.3, 0));
    // An ACK of octets that were never sent is ignored; the other ACKs count.
    let wrong = after(|c| {
        let ack = |n: u32| Seg { ack: Some(c.una.wrapping_add(n)), window: 9000, ..c.seg() };
        vec![ack(2000), ack(2000 + (1 << 31)), ack(60_000), ack(6000)]
    });
    assert_eq!((wrong.1, wrong.3), (6000, one.3));
    // Duplicate ACKs are not combined.
    let lost = after(|c| {
        let sacked =
            |end: u32| Seg { ack: Some(c.una + 2000), sacks: vec![(c.una + 3000, c.una + end)], ..c.seg() };
        vec![Seg { ack: Some(c.una + 2000), ..c.seg() }, sacked(4000), sacked(5000), sacked(6000)]
    });
    assert_eq!((lost.1, lost.4), (2000, 3));
}
