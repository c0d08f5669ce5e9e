//! Paths that carry smaller packets than our link and do not report it (RFC 4821).

use crate::testing::*;
use std::time::Duration;

/// Returns a wire that drops packets of more than `mtu` octets.
fn narrow(mtu: usize) -> impl FnMut(Side, &Sent) -> Act {
    move |_, f| if f.bytes.len() > 14 + mtu { Act::Drop } else { Act::Pass }
}

fn pairs() -> [(Pair, bool); 2] {
    [(Pair::new(|_| {}), false), (Pair::new(only_v6), true)]
}

#[test]
fn black_holes_are_found() {
    for (mut p, v6) in pairs() {
        for (mtu, usual) in [(1400, 1280), (1300, 1280)] {
            let (c, s) = p.connect();
            let headers = if v6 { 72 } else { 52 };
            p.transfer(c, s, &pattern(100_000), 1400, Duration::from_secs(60), narrow(mtu));
            assert_eq!(p.a.stack.mss(c), usual - headers);
            // A later connection to the same host begins with the known size.
            let (d, e) = p.connect();
            assert_eq!(p.a.stack.mss(d), usual - headers);
            let before = p.a.stack.counters().rto_recoveries;
            p.transfer(d, e, &pattern(10_000), 1000, Duration::from_secs(1), narrow(mtu));
            assert_eq!(p.a.stack.counters().rto_recoveries, before);
            p.run(Duration::from_secs(700));
        }
    }
}

/// A path of less than 1280 octets: over IPv4 the size falls further.
#[test]
fn narrow_paths_of_ipv4() {
    let mut p = Pair::new(|_| {});
    let (c, s) = p.connect();
    p.transfer(c, s, &pattern(20_000), 1448, Duration::from_secs(120), narrow(600));
    assert_eq!(p.a.stack.mss(c), 576 - 52);
}

/// Ten minutes after the last reduction, larger segments are tried. They stay if they pass; if not, one timeout
/// ends the trial.
#[test]
fn larger_segments_are_tried_again() {
    for (mut p, v6) in pairs() {
        let headers = if v6 { 72 } else { 52 };
        let (c, s) = p.connect();
        p.transfer(c, s, &pattern(20_000), 1400, Duration::from_secs(60), narrow(1300));
        p.run(Duration::from_secs(600));
        let before = p.a.stack.counters().rto_recoveries;
        p.transfer(c, s, &pattern(20_000), 1400, Duration::from_secs(60), narrow(1300));
        assert_eq!(p.a.stack.mss(c), 1280 - headers);
        assert_eq!(p.a.stack.counters().rto_recoveries, before + 1);
        p.run(Duration::from_secs(600));
        p.transfer(c, s, &pattern(20_000), 1400, Duration::from_secs(60), narrow(1500));
        assert_eq!(p.a.stack.mss(c), 1500 - headers);
    }
}

/// The loss of a small segment does not lower the MSS, because its size cannot be the cause.
#[test]
fn small_segments_stay() {
    let mut p = Pair::new(|_| {});
    let (c, s) = p.connect();
    p.a.stack.send(c, Shared::new(&[7; 400])).unwrap();
    p.a.stack.output(p.now, c, &mut p.a.out);
    p.run_with(Duration::from_secs(5), |_, _| Act::Drop);
    p.run(Duration::from_secs(60));
    assert_eq!((p.b.data(s).len(), p.a.stack.mss(c)), (400, 1448));
}
