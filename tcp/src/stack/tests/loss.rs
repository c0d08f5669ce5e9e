use crate::testing::*;
use crate::*;
use std::time::Duration;

fn data_of(s: &Sent) -> bool {
    View::of(&s.bytes).is_some_and(|v| !v.payload.is_empty())
}

/// One segment in the middle of a window is lost. It is sent again without waiting for a timeout.
#[test]
fn fast_retransmit() {
    for sack in [true, false] {
        let mut p = Pair::new(|c| c.tcp.sack = sack);
        let (c, s) = p.connect();
        let mut n = 0;
        p.transfer(c, s, &pattern(200_000), 1448, Duration::from_secs(1), |side, f| {
            if side == Side::A && data_of(f) {
                n += 1;
                if n == 30 {
                    return Act::Drop;
                }
            }
            Act::Pass
        });
        let k = p.a.stack.counters();
        assert_eq!((k.fast_recoveries, k.rto_recoveries), (1, 0), "sack {sack}");
        assert_eq!(k.retransmitted_segments, 1, "sack {sack}");
    }
}

/// Several segments of one window are lost.
#[test]
fn several_losses_in_a_window() {
    for sack in [true, false] {
        let mut p = Pair::new(|c| c.tcp.sack = sack);
        let (c, s) = p.connect();
        let mut n = 0;
        p.transfer(c, s, &pattern(400_000), 1448, Duration::from_secs(1), |side, f| {
            if side == Side::A && data_of(f) {
                n += 1;
                if [40, 42, 45, 46, 50].contains(&n) {
                    return Act::Drop;
                }
            }
            Act::Pass
        });
        let k = p.a.stack.counters();
        assert_eq!((k.fast_recoveries, k.rto_recoveries), (1, 0), "sack {sack}");
        assert_eq!(k.retransmitted_segments, 5, "sack {sack}");
    }
}

/// The last segment is lost, and no later one can reveal it. With SACK, a probe asks for an ACK (RFC 8985 §7) before
/// the timer expires.
#[test]
fn tail_loss() {
    for sack in [true, false] {
        let mut p = Pair::new(|c| c.tcp.sack = sack);
        let (c, s) = p.connect();
        let mut n = 0;
        let from = p.now;
        p.transfer(c, s, &pattern(1448 * 5), 1448, Duration::from_secs(2), |side, f| {
            n += usize::from(side == Side::A && data_of(f));
            if n == 5 && data_of(f) && !f.retransmit { Act::Drop } else { Act::Pass }
        });
        assert_eq!(p.now - from >= Duration::from_millis(200), !sack);
        assert!(sack || p.now - from < Duration::from_millis(300));
        p.settle();
        let k = p.a.stack.counters();
        assert_eq!(k.retransmitted_segments, 1);
        assert_eq!((k.loss_probes, k.rto_recoveries), if sack { (1, 0) } else { (0, 1) });
        // The sender reduces its window for the repaired loss when an ACK goes beyond the probe (RFC 8985 §7.4).
        p.transfer(c, s, &pattern(1448), 1448, Duration::from_secs(2), |_, _| Act::Pass);
        p.settle();
        assert!(p.a.stack.info(c).unwrap().ssthresh < 1 << 20);
    }
}

/// The only ACK of a burst is lost. A probe brings another ACK, and no segment counts as lost.
#[test]
fn a_lost_ack_costs_a_probe() {
    let mut p = Pair::new(|_| {});
    let (c, s) = p.connect();
    p.transfer(c, s, &pattern(1448 * 5), 1448, Duration::from_secs(2), |side, _| {
        if side == Side::B { Act::Drop } else { Act::Pass }
    });
    p.settle_with(|side, _| if side == Side::B { Act::Drop } else { Act::Pass });
    p.run(Duration::from_millis(50));
    assert_eq!(p.a.stack.unacked(c), 0);
    let k = p.a.stack.counters();
    assert_eq!((k.loss_probes, k.rto_recoveries, k.fast_recoveries), (1, 0, 0));
    assert!(p.a.stack.info(c).unwrap().ssthresh > 1 << 20, "no congestion");
}

/// A whole window is lost, and nothing else.
#[test]
fn a_lost_window_is_sent_again() {
    for sack in [true, false] {
        let mut p = Pair::new(|c| c.tcp.sack = sack);
        let (c, s) = p.connect();
        let mut n = 0;
        p.transfer(c, s, &pattern(1448 * 60), 1448, Duration::from_secs(9), |side, f| {
            let data = side == Side::A && data_of(f);
            n += usize::from(data);
            if data && (20..40).contains(&n) && !f.retransmit { Act::Drop } else { Act::Pass }
        });
    }
}

#[test]
fn random_trouble() {
    for sack in [true, false] {
        for round in 0..20 {
            let seed = fastrand::u64(..);
            println!("seed {seed}, sack {sack}, round {round}");
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut p = Pair::new(|c| {
                c.tcp.sack = sack;
                c.tcp.timestamps = round % 2 == 0;
                c.tcp.congestion = if round % 4 < 2 { Congestion::Cubic } else { Congestion::Reno };
            });
            let (c, s) = p.connect();
            let record = [1448, 100, 4000, 1][round % 4];
            let len = if record == 1 { 3000 } else { 300_000 };
            p.transfer(c, s, &pattern(len), record, Duration::from_secs(600), |_, _| match rng.u8(0..40) {
                0 | 1 => Act::Drop,
                2 => Act::Twice,
                3 => Act::Delay,
                _ => Act::Pass,
            });
        }
    }
}
