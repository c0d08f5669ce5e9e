//! When ACKs are sent, and what they carry.

use crate::harness::Script;
use crate::peer::{Bench, Conversation, Seg};
use std::time::Duration;

fn syn() -> Seg {
    Seg { seq: 77, mss: Some(1000), sack_permitted: true, ..Seg::default() }
}

fn established(script: Script) -> (Bench, Conversation) {
    let mut b = Bench::listening(|_| {}, script);
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
    // The one that fills the gap, too.
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
    // Nor do segments with data shrink for SACK blocks.
    let sent = b.burst(&[c.data(500, 100), Seg { ack: Some(c.una + 3000), ..c.seg() }]);
    assert!(sent.iter().any(|s| s.sacks.len() == 1 && s.data.is_empty()));
    assert!(sent.iter().filter(|s| !s.data.is_empty()).all(|s| s.sacks.is_empty()));
}
