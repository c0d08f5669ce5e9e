//! Forged segments (RFC 5961), floods, and segments that overlap.

use crate::harness::Script;
use crate::peer::{Bench, Conversation, Seg};
use std::time::Duration;
use urnic_tcp::{CloseReason, StackConfig};

fn syn() -> Seg {
    Seg { seq: 1000, mss: Some(1460), ..Seg::default() }
}

fn established() -> (Bench, Conversation) {
    let mut b = Bench::listening(|_| {}, Script::silent());
    let c = b.established(syn());
    (b, c)
}

fn alive(b: &Bench) -> bool {
    b.host.app.sessions[0].closed.is_none()
}

/// Returns whether a segment is a challenge ACK: the stack's true position and nothing else.
fn is_challenge(s: &Seg, c: &Conversation) -> bool {
    !s.rst && !s.syn && s.data.is_empty() && s.ack == Some(c.nxt) && s.seq == c.una
}

#[test]
fn a_reset_must_hit_the_next_octet_exactly() {
    // RFC 5961 §3.2
    let (mut b, c) = established();
    let rst = |seq: u32| Seg { rst: true, seq, ack: None, ..Seg::default() };
    let reply = b.send(&rst(c.nxt.wrapping_add(1)));
    assert!(reply.len() == 1 && is_challenge(&reply[0], &c), "{reply:?}");
    assert_eq!(b.send(&rst(c.nxt.wrapping_sub(1))), []);
    assert_eq!(b.send(&rst(c.nxt.wrapping_add(1 << 30))), []);
    assert!(alive(&b));
    assert_eq!(b.send(&rst(c.nxt)), []);
    assert_eq!(b.host.app.sessions[0].closed, Some(CloseReason::Reset));
}

#[test]
fn a_syn_in_a_connection_is_challenged() {
    // RFC 5961 §4.2: a SYN is challenged whatever its sequence number is.
    let (mut b, c) = established();
    for seq in [c.nxt, c.nxt.wrapping_add(5), c.nxt.wrapping_sub(1), c.nxt.wrapping_add(1 << 31)] {
        let reply = b.send(&Seg { seq, syn: true, ..syn() });
        assert!(reply.len() == 1 && is_challenge(&reply[0], &c), "SYN {seq}: {reply:?}");
    }
    assert!(alive(&b));
    assert_eq!(b.host.app.sessions.len(), 1);
}

#[test]
fn data_with_an_impossible_ack_is_not_taken() {
    // RFC 5961 §5.2
    let (mut b, c) = established();
    for ack in [c.una.wrapping_add(1), c.una.wrapping_add(1 << 30), c.una.wrapping_sub(1 << 30)] {
        let reply = b.send(&Seg { ack: Some(ack), ..c.data(0, 100) });
        assert!(reply.len() == 1 && is_challenge(&reply[0], &c), "ACK {ack}: {reply:?}");
    }
    assert_eq!(b.host.app.sessions[0].received, 0);
    // A segment without an ACK is dropped.
    assert_eq!(b.send(&Seg { ack: None, ..c.data(0, 100) }), []);
    assert_eq!(b.host.app.sessions[0].received, 0);
}

#[test]
fn challenge_acks_are_limited() {
    // RFC 5961 §7
    let (mut b, c) = established();
    for second in 0..3 {
        let mut replies = Vec::new();
        for i in 1..5000 {
            let rst = Seg { rst: true, seq: c.nxt.wrapping_add(i), ack: None, ..Seg::default() };
            replies.extend(b.send(&rst));
        }
        assert!(replies.iter().all(|r| is_challenge(r, &c)), "{replies:?}");
        assert_eq!(replies.len(), 10, "challenge ACKs without any time passing, after {second} s");
        b.wait(Duration::from_millis(1001));
    }
    assert!(alive(&b));
}

#[test]
fn data_outside_of_the_window_is_refused_with_an_ack() {
    // RFC 9293 §3.10.7.4, first check
    let (mut b, c) = established();
    for offset in [1u32 << 21, 1 << 30, 0u32.wrapping_sub(1 << 29)] {
        let reply = b.send(&c.data(offset, 100));
        assert!(reply.len() == 1 && is_challenge(&reply[0], &c), "{offset}: {reply:?}");
    }
    assert_eq!(b.host.app.sessions[0].received, 0);
    b.send(&c.data(0, 100));
    assert_eq!(b.host.app.sessions[0].received, 100);
}

#[test]
pub fn an_ack_from_outside_of_the_window_acknowledges_nothing() {
    let mut b = Bench::listening(|_| {}, Script { close_first: false, ..Script::send(1000) });
    let (c, _) = b.open(syn());
    assert_eq!(b.send(&c.seg()).len(), 1);
    for offset in [1u32 << 21, 1 << 30, 0u32.wrapping_sub(5)] {
        b.send(&Seg { seq: c.nxt.wrapping_add(offset), ack: Some(c.una.wrapping_add(1000)), ..c.seg() });
        assert_eq!(b.host.app.sessions[0].acked, 0, "{offset}");
    }
    b.send(&Seg { ack: Some(c.una.wrapping_add(1000)), ..c.seg() });
    assert_eq!(b.host.app.sessions[0].acked, 1000);
}

#[test]
pub fn octets_that_come_again_are_delivered_once() {
    let (mut b, c) = established();
    b.send(&c.data(0, 100));
    // Segments that overlap the start or the end of the held data or of the delivered data.
    for (offset, len, total) in [(50, 100, 150), (200, 50, 150), (140, 80, 250), (0, 251, 251), (250, 1, 251)]
    {
        b.send(&c.data(offset, len));
        assert_eq!(b.host.app.sessions[0].received, total, "{offset} {len}");
    }
}

#[test]
fn resets_and_acks_in_syn_sent() {
    // RFC 9293 §3.10.7.3
    let mut b = Bench::new(|_| {});
    let out = b.connect(Script::silent());
    let good = out.seq.wrapping_add(1);
    let to_stack = |seg: Seg| Seg { from: 9, to: out.from, ..seg };
    // A RST without an ACK, or with a wrong one, has no effect.
    assert_eq!(b.send(&to_stack(Seg { rst: true, seq: 0, ..Seg::default() })), []);
    assert_eq!(b.send(&to_stack(Seg { rst: true, ack: Some(good.wrapping_add(1)), ..Seg::default() })), []);
    assert!(alive(&b));
    // An ACK of octets that were never sent is answered with a RST.
    let reply = b.send(&to_stack(Seg { syn: true, ack: Some(good.wrapping_add(1)), ..Seg::default() }));
    assert!(reply.len() == 1 && reply[0].rst && reply[0].seq == good.wrapping_add(1), "{reply:?}");
    assert!(alive(&b));
    b.send(&to_stack(Seg { rst: true, ack: Some(good), ..Seg::default() }));
    assert_eq!(b.host.app.sessions[0].closed, Some(CloseReason::Refused));
}

#[test]
fn old_timestamps_are_refused() {
    // RFC 7323 §5.3
    let mut b = Bench::listening(|_| {}, Script::silent());
    let c = b.established(Seg { timestamp: Some((50_000, 0)), ..syn() });
    let mut d = c.data(0, 100);
    d.timestamp = d.timestamp.map(|(v, e)| (v - 2000, e));
    let reply = b.send(&d);
    assert!(reply.len() == 1 && is_challenge(&reply[0], &c), "{reply:?}");
    assert_eq!(b.host.app.sessions[0].received, 0);
    b.send(&c.data(0, 100));
    assert_eq!(b.host.app.sessions[0].received, 100);
}

#[test]
fn a_syn_flood_is_bounded_and_passes() {
    let tune = |c: &mut StackConfig| c.tcp.max_syn_backlog = 50;
    let mut b = Bench::listening(tune, Script::silent());
    for i in 0..20_000u32 {
        b.send(&Seg { from: 1024 + (i % 60_000) as u16, syn: true, seq: i, ..syn() });
    }
    assert!(b.host.stack.counters().syn_backlog_full >= 19_000);
    // Honest peers still get in with their first SYN, because a cookie answers it (RFC 4987 §3.6).
    b.established(Seg { from: 63_000, ..syn() });
    // Half-open connections are few, and end after a few repetitions.
    let repeated = b.wait(Duration::from_secs(600)).len();
    assert!(repeated <= 50 * 10, "{repeated} repetitions");
    b.established(Seg { from: 64_000, ..syn() });
    assert_eq!(b.host.app.accepted, 2);
}

/// A forger sends a SYN in the name of a peer. The peer's own SYN still opens a connection, whether it comes
/// before or after the forged SYN.
#[test]
fn a_forged_syn_keeps_the_peers_own_out_neither_before_nor_behind_it() {
    for forged_first in [true, false] {
        let mut b = Bench::listening(|_| {}, Script::silent());
        let first = b.send(&Seg { syn: true, ..syn() });
        let second = b.send(&Seg { syn: true, seq: 70_000, ..syn() });
        assert!(second.len() == 1 && second[0].syn && second[0].ack == Some(70_001), "{second:?}");
        let (seq, reply) = if forged_first { (70_001, &second[0]) } else { (1001, &first[0]) };
        assert_eq!(reply.ack, Some(seq));
        b.send(&Seg { seq, ack: Some(reply.seq.wrapping_add(1)), ..Seg::default() });
        assert_eq!(b.host.app.accepted, 1, "forged first: {forged_first}");
    }
}

#[test]
fn what_is_for_nobody_is_answered_by_a_reset() {
    // RFC 9293 §3.10.7.1
    let mut b = Bench::new(|_| {});
    let reply = b.send(&Seg { syn: true, seq: 77, ..Seg::default() });
    assert!(reply.len() == 1 && reply[0].rst && reply[0].seq == 0 && reply[0].ack == Some(78), "{reply:?}");
    let reply = b.send(&Seg { seq: 77, ack: Some(500), data: vec![1; 10], ..Seg::default() });
    assert!(reply.len() == 1 && reply[0].rst && reply[0].seq == 500 && reply[0].ack.is_none(), "{reply:?}");
    assert_eq!(b.send(&Seg { rst: true, seq: 77, ..Seg::default() }), []);
    // A flood of SYNs must not make us a source of resets.
    let resets: usize = (0..5000).map(|i| b.send(&Seg { syn: true, seq: i, ..Seg::default() }).len()).sum();
    assert!(resets <= 1000, "{resets} resets without any time passing");
}

#[test]
fn dribbled_and_overlapping_octets_stay_bounded() {
    let (mut b, c) = established();
    // Single octets with gaps between them fill the window.
    for i in 0..50_000u32 {
        b.send(&c.data(1 + 2 * (i % 30_000), 1));
    }
    assert_eq!(b.host.app.sessions[0].received, 0);
    // The stream itself still gets through.
    let mut c = c;
    while c.nxt.wrapping_sub(1001) < 60_100 {
        b.send(&c.data(0, 100));
        c.nxt = c.nxt.wrapping_add(100);
    }
    assert_eq!(b.host.app.sessions[0].received, 60_100);
}
