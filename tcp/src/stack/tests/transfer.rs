use crate::testing::*;
use crate::*;
use std::time::Duration;

#[test]
fn one_record_each_way() {
    let mut p = Pair::new(|c| c.tcp.ack_delay = Duration::ZERO);
    let (c, s) = p.connect();
    p.a.stack.send(c, Shared::new(b"ping")).unwrap();
    p.a.stack.output(p.now, c, &mut p.a.out);
    p.settle();
    assert_eq!(p.b.data(s), b"ping");
    p.b.stack.send(s, Shared::new(b"pong")).unwrap();
    p.b.stack.output(p.now, s, &mut p.b.out);
    p.settle();
    assert_eq!(p.a.data(c), b"pong");
    assert_eq!(p.a.seen.acked[&c], 4);
    assert_eq!(p.b.seen.acked[&s], 4);
    assert_eq!(p.a.stack.unacked(c), 0);
}

/// Whole records share a segment, at most [`MAX_PIECES`] of them. A record is split only if it is longer than a
/// segment, and its parts share no segment with other records.
#[test]
fn segments_are_cut_at_records() {
    let mut p = Pair::new(|_| {});
    let (c, s) = p.connect();
    let sizes = [100, 200, 1200, 1448, 1, 1447, 1448, 3000, 5, 5, 5, 5, 5, 5, 5, 5, 5, 700];
    let mut all = Vec::new();
    for n in sizes {
        let r = pattern(n);
        all.extend_from_slice(&r);
        p.a.stack.send(c, Shared::new(&r)).unwrap();
    }
    p.a.stack.output(p.now, c, &mut p.a.out);
    let lens: Vec<usize> = p.a.out.frames.iter().map(|f| View::of(&f.bytes).unwrap().payload.len()).collect();
    // 100+200 | 1200 | 1448 | 1+1447 | 1448 | 3000 in three | eight records of 5 | 5+700
    assert_eq!(lens, [300, 1200, 1448, 1448, 1448, 1448, 1448, 104, 40, 705]);
    p.settle();
    assert_eq!(p.b.data(s), all);
}

#[test]
fn bulk_in_many_shapes() {
    for (mtu, record) in [(1500, 1448), (1500, 100), (1500, 5000), (9000, 8948), (576, 3), (65535, 60_000)] {
        let mut p = Pair::new(|c| c.mtu = mtu);
        let (c, s) = p.connect();
        p.transfer(c, s, &pattern(2_000_000), record, Duration::from_secs(20), |_, _| Act::Pass);
        assert_eq!(p.a.stack.counters().retransmitted_segments, 0);
        p.settle();
        assert_eq!(p.a.seen.acked[&c], 2_000_000);
    }
}

/// In-order data is acknowledged once per burst, not per segment.
#[test]
fn one_ack_per_burst() {
    let mut p = Pair::new(|_| {});
    let (c, s) = p.connect();
    for _ in 0..8 {
        p.a.stack.send(c, Shared::new(&pattern(1448))).unwrap();
    }
    p.a.stack.output(p.now, c, &mut p.a.out);
    assert_eq!(p.a.out.frames.len(), 8);
    let before = p.b.stack.counters().acks_out;
    p.settle();
    assert_eq!(p.b.stack.counters().acks_out - before, 1);
    assert_eq!(p.b.data(s).len(), 8 * 1448);
}

/// An owed ACK travels on data that is sent.
#[test]
fn acks_are_piggybacked() {
    let mut p = Pair::new(|_| {});
    let (c, s) = p.connect();
    p.a.stack.send(c, Shared::new(b"ping")).unwrap();
    p.a.stack.output(p.now, c, &mut p.a.out);
    let frame = p.a.out.frames.pop_front().unwrap();
    p.b.receive(p.now, frame.bytes);
    p.b.stack.send(s, Shared::new(b"pong")).unwrap();
    p.b.stack.output(p.now, s, &mut p.b.out);
    p.b.flush(p.now);
    assert_eq!(p.b.out.frames.len(), 1);
    p.settle();
    assert_eq!(p.a.stack.unacked(c), 0);
}

/// A port that takes few frames at a time causes delays but no losses.
#[test]
fn a_full_port_delays() {
    let mut p = Pair::new(|_| {});
    let (c, s) = p.connect();
    p.a.out.room = 2;
    p.b.out.room = 1;
    p.transfer(c, s, &pattern(500_000), 1000, Duration::from_secs(20), |_, _| Act::Pass);
    assert!(p.a.stack.counters().tx_full > 0);
}

#[test]
fn room_keeps_the_pipe_full_and_no_fuller() {
    let mut p = Pair::new(|_| {});
    let (c, _) = p.connect();
    let room = p.a.stack.room(c);
    let cwnd = p.a.stack.info(c).unwrap().cwnd as usize;
    assert!(room > cwnd && room <= cwnd + 4 * 1448, "{room} {cwnd}");
    while p.a.stack.room(c) > 0 {
        p.a.stack.send(c, Shared::new(&pattern(1448))).unwrap();
    }
    p.a.stack.output(p.now, c, &mut p.a.out);
    assert_eq!(p.a.stack.room(c), 0);
    let sent: usize = p.a.out.frames.iter().map(|f| View::of(&f.bytes).unwrap().payload.len()).sum();
    assert!(sent <= cwnd && sent + 1448 > cwnd);
    assert!(p.a.stack.unacked(c) as usize > sent, "something waits for the next ACK");
}

#[test]
fn the_queue_is_bounded() {
    let mut p = Pair::new(|_| {});
    let (c, _) = p.connect();
    let r = Shared::new(&pattern(60_000));
    let mut queued = 0u64;
    while p.a.stack.send(c, r.clone()).is_ok() {
        queued += 60_000;
        assert!(queued <= 4 << 20);
    }
    assert_eq!(p.a.stack.send(c, r), Err(SendError::Full));
    assert_eq!(p.a.stack.unacked(c), queued);
}

/// `info` and `nstat` agree with what happened.
#[test]
fn figures_of_a_connection() {
    let mut p = Pair::new(|c| c.tcp.ecn = Ecn::Offer);
    let (c, s) = p.connect();
    let mut n = 0;
    p.transfer(c, s, &pattern(100_000), 1448, Duration::from_secs(1), |side, f| {
        n += usize::from(side == Side::A && View::of(&f.bytes).is_some_and(|v| !v.payload.is_empty()));
        if n == 20 { Act::Drop } else { Act::Pass }
    });
    p.settle();
    let (a, b) = (p.a.stack.info(c).unwrap(), p.b.stack.info(s).unwrap());
    assert_eq!((a.delivered, a.received, b.delivered, b.received), (100_000, 0, 0, 100_000));
    assert_eq!((a.state, a.recovery, a.retries), (State::Established, RecoveryState::Open, 0));
    assert_eq!((a.sacked, a.lost, a.in_flight, a.not_sent), (0, 0, 0, 0));
    assert!(a.retransmits > 0 && a.ecn && b.ecn && a.sack && a.timestamps);
    assert!(a.srtt.is_some_and(|t| t >= a.min_rtt) && a.min_rtt > Duration::ZERO);
    assert_eq!((a.snd_mss, a.pacing_rate), (1448, None));
    assert_eq!(p.a.stack.connections().collect::<Vec<_>>(), [c]);
    let nstat = p.a.stack.counters().nstat();
    let value = |name| nstat.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
    assert_eq!(value("TcpRetransSegs"), Some(a.retransmits));
    assert_eq!(value("TcpActiveOpens"), Some(1));
    assert_eq!(value("TcpExtTCPSackRecovery"), Some(1));
    assert_eq!(value("TcpExtTCPFastRetrans"), Some(a.retransmits));
    let mut names: Vec<&str> = nstat.iter().map(|(n, _)| *n).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), nstat.len(), "a name twice");
}
