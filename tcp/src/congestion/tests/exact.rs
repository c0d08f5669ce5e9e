//! Windows to the octet, and growth where one of several rules decides.

use super::*;

/// Returns a controller after a loss at `cwnd`, in congestion avoidance.
fn after_loss(kind: Congestion, mss: u32, cwnd: u32) -> Controller {
    let mut c = Controller::new(kind, mss, INITIAL_WINDOW);
    c.window.cwnd = cwnd;
    c.on_enter_recovery(cwnd);
    c.on_recovery_exit(cwnd, false);
    c
}

/// Runs one round trip. Each ACK is for one segment of `mss` octets.
fn acks(c: &mut Controller, mss: u32, now: Time, rtt: Duration) {
    let segments = c.cwnd() / mss;
    for i in 0..segments {
        c.on_ack(&Ack { now: now + rtt * i / segments, acked: mss, srtt: Some(rtt), ..PLAIN });
    }
}

#[test]
fn the_segment_size_sets_the_initial_window() {
    for (mss, window) in [(1460, 14_600), (8960, 17_920), (1 << 20, 1 << 17), (0, 10)] {
        let mut c = controller(Congestion::Reno);
        c.set_mss(mss);
        assert_eq!(c.cwnd(), window, "MSS {mss}"); // RFC 6928 §2
    }
    assert_eq!(Controller::new(Congestion::Reno, 1 << 20, 1).cwnd(), 1 << 16);
    assert_eq!(Controller::new(Congestion::Reno, 9000, 1).cwnd(), 9000);
    assert_eq!(Controller::new(Congestion::Reno, 1000, u32::MAX).cwnd(), MAX_WINDOW);
}

#[test]
fn which_slow_start_it_is() {
    for kind in KINDS {
        let mut c = controller(kind);
        assert!(c.in_slow_start() && c.in_first_slow_start());
        c.on_rto(10 * MSS, true);
        assert!(c.in_slow_start() && !c.in_first_slow_start());
        c.window.cwnd = c.window.ssthresh;
        assert!(!c.in_slow_start() && !c.in_first_slow_start());
        let mut c = controller(kind);
        c.window.cwnd = MAX_WINDOW;
        assert!(!c.in_slow_start() && !c.in_first_slow_start());
    }
}

/// RFC 5681 §3.1: slow start ends at the threshold. Octets ACKed beyond it count for congestion avoidance.
#[test]
fn slow_start_stops_at_the_threshold() {
    let mut c = controller(Congestion::Reno);
    c.window.cwnd = 4 * MSS;
    c.window.ssthresh = 6 * MSS;
    c.on_ack(&Ack { acked: 0, ..PLAIN });
    c.on_ack(&Ack { acked: 5 * MSS, ..PLAIN });
    assert_eq!(c.cwnd(), 6 * MSS);
    // Three segments already count for congestion avoidance. With six, a whole window, the window grows.
    c.on_ack(&Ack { acked: 3 * MSS - 1, ..PLAIN });
    assert_eq!(c.cwnd(), 6 * MSS);
    c.on_ack(&Ack { acked: 1, ..PLAIN });
    assert_eq!(c.cwnd(), 7 * MSS);
    // No ACK counts for more than a window (RFC 3465 §2.1).
    c.on_ack(&Ack { acked: 30 * MSS, ..PLAIN });
    assert_eq!(c.cwnd(), 8 * MSS);
    c.on_ack(&Ack { acked: 8 * MSS - 1, ..PLAIN });
    assert_eq!(c.cwnd(), 8 * MSS);
    // Octets that raised the window to the threshold do not count again.
    for kind in KINDS {
        let mut c = controller(kind);
        (c.window.cwnd, c.window.ssthresh) = (4 * MSS, 6 * MSS);
        c.on_ack(&Ack { acked: 2 * MSS, ..PLAIN });
        assert_eq!(c.cwnd(), 6 * MSS, "{kind:?}");
    }
}

/// RFC 6937 §3.
#[test]
fn proportional_rate_reduction_to_the_octet() {
    let start = || {
        let mut c = controller(Congestion::Reno);
        c.window.cwnd = 20 * MSS;
        c.on_enter_recovery(20 * MSS);
        c.begin_proportional(20 * MSS);
        c
    };
    let told = |c: &mut Controller, delivered: u32, pipe: u32, safe: bool| {
        c.on_recovery_ack(&Progress { delivered: delivered * MSS, pipe: pipe * MSS, safe });
        c.cwnd()
    };
    // The window allows octets in proportion to those that arrived, less those that were sent.
    let mut c = start();
    assert_eq!(told(&mut c, 3, 16, true), 17 * MSS + MSS / 2);
    c.on_recovery_sent(MSS);
    assert!(!c.nothing_recovered());
    assert_eq!(told(&mut c, 1, 16, true), 17 * MSS);
    c.on_recovery_sent(9 * MSS);
    assert_eq!(told(&mut c, 1, 16, true), 16 * MSS);
    // If as many octets as the threshold are in flight, the window is the threshold. If fewer are, the window
    // grows at most to the threshold.
    assert_eq!(told(&mut start(), 5, 10, true), 10 * MSS);
    assert_eq!(told(&mut start(), 5, 9, true), 10 * MSS);
    // If recovery makes no progress, the window allows as much as arrived. If it does, the window allows one segment
    // more.
    assert_eq!(told(&mut start(), 2, 5, false), 7 * MSS);
    assert_eq!(told(&mut start(), 2, 5, true), 8 * MSS);
    // The window always allows one segment.
    assert_eq!(told(&mut start(), 0, 0, false), MSS);
}

/// RFC 6582 §3.2 step 3: one segment is added back if at least one was acknowledged.
#[test]
fn a_partial_ack_of_one_segment_changes_nothing() {
    let mut c = controller(Congestion::Reno);
    c.on_partial_ack(MSS);
    assert_eq!(c.cwnd(), 10 * MSS);
    c.on_partial_ack(MSS - 1);
    assert_eq!(c.cwnd(), 9 * MSS + 1);
}

/// RFC 5682 §2.1 (3a).
#[test]
fn a_genuine_timeout_leaves_three_segments() {
    let mut c = controller(Congestion::Reno);
    c.on_rto(10 * MSS, true);
    c.after_genuine_timeout();
    assert_eq!(c.cwnd(), 3 * MSS);
    c.window.cwnd = 5 * MSS;
    c.after_genuine_timeout();
    assert_eq!(c.cwnd(), 5 * MSS);
}

/// RFC 2861 §3.2: three quarters of the window are remembered as the threshold.
#[test]
fn what_an_idle_window_leaves_behind() {
    for kind in KINDS {
        let mut c = controller(kind);
        (c.window.cwnd, c.window.ssthresh) = (40 * MSS, 20 * MSS);
        c.on_idle(Duration::from_millis(250), Duration::from_millis(200));
        assert_eq!((c.cwnd(), c.ssthresh()), (20 * MSS, 30 * MSS));
        c.on_idle(Duration::from_millis(150), Duration::from_millis(200));
        assert_eq!((c.cwnd(), c.ssthresh()), (20 * MSS, 30 * MSS));
    }
}

/// RFC 8257 §3.3, step by step: g = 1/16, once for each window of octets.
#[test]
fn dctcp_counts_windows_of_octets() {
    let mut d = Dctcp::default();
    assert_eq!(d.alpha, 1024); // §4.2
    // The first window ends at once. Nothing is marked: alpha × 15/16.
    d.count(MSS, false, 10 * MSS);
    assert_eq!((d.alpha, d.left), (960, 10 * MSS));
    for _ in 0..9 {
        d.count(MSS, false, 77 * MSS);
        assert_eq!(d.alpha, 960);
    }
    // The tenth segment ends the window. One of ten is marked: 960 × 15/16 + 102.4/16.
    d.count(MSS, true, 4 * MSS);
    assert_eq!((d.alpha, d.left), (906, 4 * MSS));
    // All are marked. Octets ACKed beyond the window still belong to it.
    d.count(6 * MSS, true, 0);
    assert_eq!((d.alpha, d.left), (906 - 57 + 64, 1));
    // cwnd × (1 - alpha / 2): 913 / 2048 of 100,000.
    assert_eq!(d.reduce_by_marks(100 * MSS), 100_000 - 44_580);
    // A reduction restarts the count for growth.
    assert_eq!(d.reno.growth(4 * MSS, MSS, 4 * MSS - 1), 0);
    assert_eq!(d.reno.growth(4 * MSS, MSS, 1), MSS);
    d.reno.growth(4 * MSS, MSS, 3 * MSS);
    d.reduce_by_marks(4 * MSS);
    assert_eq!(d.reno.growth(4 * MSS, MSS, 3 * MSS), 0);
}

/// RFC 8257 §3.3, and RFC 5681 equation 4 for the minimum threshold.
#[test]
fn dctcp_keeps_two_segments() {
    let mut c = controller(Congestion::Dctcp);
    c.window.cwnd = 3 * MSS;
    c.on_marks(3 * MSS);
    assert_eq!((c.cwnd(), c.ssthresh()), (2 * MSS, 2 * MSS));
}

/// RFC 8257 §3.4: growth is as in RFC 5681.
#[test]
fn dctcp_grows_by_one_segment_per_round() {
    let mut c = after_loss(Congestion::Dctcp, MSS, 40 * MSS);
    for n in 1..=5 {
        acks(&mut c, MSS, Time::ZERO, Duration::from_millis(1));
        assert_eq!(c.cwnd(), (20 + n) * MSS);
    }
}

/// Runs rounds of 100 ms. After each round, `check` gets the number of the round, from 0, and the window in
/// segments.
fn cubic_rounds(c: &mut Controller, mss: u32, rounds: u32, mut check: impl FnMut(u32, f64)) {
    let rtt = Duration::from_millis(100);
    for i in 0..rounds {
        acks(c, mss, Time::ZERO + rtt * i, rtt);
        check(i, f64::from(c.cwnd()) / f64::from(mss));
    }
}

/// RFC 9438 §4.2 with segments of ten octets, so that most ACKs are worth less than one octet.
#[test]
fn cubic_carries_fractions_over() {
    let mut c = after_loss(Congestion::Cubic, 10, 10_000);
    let k = (300.0 / 0.4f64).cbrt();
    cubic_rounds(&mut c, 10, 150, |i, window| {
        let expected = 1000.0 + 0.4 * (f64::from(i + 1) * 0.1 - k).powi(3);
        assert!((window - expected).abs() < 0.03 * expected, "{i}: {window:.1} instead of {expected:.1}");
    });
}

/// RFC 9438 §4.8: after a timeout K is 0, so the window grows from where slow start ended. After the next loss K is
/// not 0.
#[test]
fn cubic_after_a_timeout() {
    let timed_out = || {
        let mut c = controller(Congestion::Cubic);
        c.window.cwnd = 1000 * MSS;
        c.on_rto(1000 * MSS, true);
        assert_eq!(c.ssthresh(), 700 * MSS);
        c
    };
    let mut c = timed_out();
    c.window.cwnd = 700 * MSS;
    cubic_rounds(&mut c, MSS, 100, |i, window| {
        let expected = 700.0 + 0.4 * (f64::from(i + 1) * 0.1).powi(3);
        assert!((window - expected).abs() < 0.06 * expected, "{i}: {window:.1} instead of {expected:.1}");
    });
    let mut c = timed_out();
    c.window.cwnd = 1000 * MSS;
    c.on_enter_recovery(1000 * MSS);
    c.on_recovery_exit(0, false);
    cubic_rounds(&mut c, MSS, 91, |_, _| ());
    assert!(c.cwnd() > 970 * MSS, "{}", c.cwnd());
}

/// RFC 9438 §5.8: the cubic function leaves out time during which the window does not limit sending.
#[test]
fn cubic_leaves_unused_time_out() {
    let rtt = Duration::from_millis(100);
    let run = |unused: u32| {
        let mut c = after_loss(Congestion::Cubic, MSS, 1000 * MSS);
        let mut now = Time::ZERO;
        for i in 0..40 {
            acks(&mut c, MSS, now, rtt);
            now += rtt;
            for _ in 0..if i == 20 { unused } else { 0 } {
                c.on_ack(&Ack { now, limited: false, srtt: Some(rtt), ..PLAIN });
                now += rtt;
            }
        }
        c.cwnd()
    };
    let (without, with) = (run(0), run(1000));
    // The round trip that follows the last ACK of the unused time counts.
    assert!(without.abs_diff(with) <= 6 * MSS, "{without} {with}");
    assert!(without > 900 * MSS && without < 960 * MSS, "{without}");
}

/// RFC 9438 §4.3: alpha is 0.53 until the window of Reno reaches the window before the loss, and then one.
#[test]
fn cubic_is_reno_again_beyond_the_last_window() {
    let mut c = after_loss(Congestion::Cubic, MSS, 100 * MSS);
    let rtt = Duration::from_millis(1);
    let mut windows = vec![f64::from(c.cwnd()) / f64::from(MSS)];
    for i in 0..100 {
        acks(&mut c, MSS, Time::ZERO + rtt * i, rtt);
        windows.push(f64::from(c.cwnd()) / f64::from(MSS));
    }
    let rate = |from: usize, to: usize| (windows[to] - windows[from]) / (to - from) as f64;
    assert!((0.5..0.55).contains(&rate(10, 50)), "{}", rate(10, 50));
    assert!((0.95..1.02).contains(&rate(70, 100)), "{}", rate(70, 100));
    let before = windows.iter().position(|&w| w >= 100.0).expect("it gets there");
    assert!((54..=60).contains(&before), "{before}");
}

/// RFC 9438 §4.3: alpha is one as soon as the two windows are equal, not only beyond. The unit of alpha is a segment.
#[test]
fn cubic_is_reno_again_at_the_last_window() {
    // No window is reduced below two segments, so this one is as large as before the loss.
    let mut c = after_loss(Congestion::Cubic, MSS, 2 * MSS);
    c.on_ack(&Ack { acked: MSS, ..PLAIN });
    assert_eq!(c.cwnd(), 2 * MSS + MSS / 2);
    let mut c = after_loss(Congestion::Cubic, MSS, 2 * MSS);
    c.on_ack(&Ack { acked: 2 * MSS, ..PLAIN });
    assert_eq!(c.cwnd(), 3 * MSS);
}

/// RFC 9438 §4.2: the window grows by at most half in a round trip, however long ago the loss was.
#[test]
fn cubic_at_most_half_a_window_per_round() {
    let mut c = after_loss(Congestion::Cubic, MSS, 100 * MSS);
    c.on_ack(&Ack { srtt: Some(Duration::from_millis(1)), ..PLAIN });
    let before = c.cwnd();
    let late = Ack { now: Time::from_millis(60_000), srtt: Some(Duration::from_millis(1)), ..PLAIN };
    c.on_ack(&Ack { acked: before, ..late });
    assert!((before + before / 2).abs_diff(c.cwnd()) <= 1, "{before} {}", c.cwnd());
}

/// RFC 9438 §4.2: the target is the value of the function one round trip later.
#[test]
fn cubic_looks_one_round_trip_ahead() {
    // K = cbrt(300 / 0.4). At t = 1 s, with a round trip of K - 1 s, the target is the plateau.
    let second = Duration::from_secs(1);
    let k = Duration::from_secs_f64((300.0 / 0.4f64).cbrt());
    let mut c = after_loss(Congestion::Cubic, MSS, 1000 * MSS);
    c.on_ack(&Ack { acked: 1, ..PLAIN });
    c.on_ack(&Ack { now: Time::ZERO + second, acked: 700 * MSS, srtt: Some(k - second), ..PLAIN });
    assert!(c.cwnd().abs_diff(1000 * MSS) < MSS, "{}", c.cwnd());
}

/// RFC 9438 §4.7: only a window that is smaller than the last one makes room for others.
#[test]
fn cubic_converges_only_when_it_shrinks() {
    let mut c = Cubic::default();
    c.reduce(100 * MSS, MSS, 100 * MSS);
    c.reduce(100 * MSS, MSS, 100 * MSS);
    assert_eq!(c.w_max, 100.0);
    c.reduce(120 * MSS, MSS, 60 * MSS);
    assert_eq!(c.w_max, 120.0);
}

/// Handles an ACK of `acked` octets with a round trip of `rtt` milliseconds, where slow start would grow by 1600
/// octets.
fn hystart(h: &mut HyStart, acked: u32, flight: u32, rtt: u64) -> (u32, bool) {
    let ack = Ack { acked, flight, rtt: Some(Duration::from_millis(rtt)), ..PLAIN };
    h.on_ack(&ack, 1600)
}

/// Runs a round of ten ACKs with a round trip of `rtt` milliseconds. Returns the growth of the last ACK, and whether
/// any ACK ended slow start.
fn hystart_round(h: &mut HyStart, rtt: u64) -> (u32, bool) {
    (0..10).fold((0, false), |(_, over), _| {
        let (growth, now) = hystart(h, MSS, 10 * MSS, rtt);
        (growth, over || now)
    })
}

/// RFC 9406 §4.2, §4.3: an eighth of the round trip, but at least 4 ms and at most 16 ms.
#[test]
fn hystart_thresholds() {
    for (base, below, above) in [(8, 11, 12), (80, 89, 90), (400, 415, 416)] {
        for (rtt, slowed) in [(below, false), (above, true)] {
            let mut h = HyStart::new();
            hystart_round(&mut h, base);
            assert_eq!(hystart_round(&mut h, base), (1600, false));
            hystart_round(&mut h, rtt);
            assert_eq!(h.baseline != u32::MAX, slowed, "{base} {rtt}");
        }
    }
}

/// RFC 9406 §4.2: eight samples are enough, fewer are not.
#[test]
fn hystart_needs_eight_samples() {
    let mut h = HyStart::new();
    hystart_round(&mut h, 20);
    for n in 1..=8 {
        hystart(&mut h, MSS, 10 * MSS, 40);
        assert_eq!(h.baseline == 40_000, n == 8, "{n}");
    }
}

/// Five rounds of conservative slow start, with a sixteenth of the growth, end slow start. A round ends when the
/// octets that were outstanding at its beginning are ACKed.
#[test]
fn hystart_ends_after_five_rounds() {
    let mut h = HyStart::new();
    hystart_round(&mut h, 20);
    hystart_round(&mut h, 20);
    // After eight samples of this round, the round trip counts as longer. The next ACK grows the window by less.
    assert_eq!(hystart_round(&mut h, 40), (100, false));
    for n in 1..=5 {
        for i in 0..10 {
            assert_eq!(hystart(&mut h, MSS, 10 * MSS, 50), (100, n == 5 && i == 0), "{n} {i}");
            if n == 5 {
                return;
            }
        }
    }
}

/// RFC 9406 §4.2: a round trip shorter than the baseline ends the conservative phase; an equal one does not.
#[test]
fn hystart_goes_on_where_there_is_no_queue() {
    // The baseline is the round trip of the round that started the phase, however long round trips become.
    for (rtt, goes_on) in [(40, false), (39, true), (60, false)] {
        let mut h = HyStart::new();
        hystart_round(&mut h, 20);
        hystart_round(&mut h, 40);
        hystart_round(&mut h, 41);
        assert_eq!(h.rounds, 1);
        hystart_round(&mut h, rtt);
        assert_eq!((h.baseline == u32::MAX, h.rounds), (goes_on, if goes_on { 0 } else { 2 }), "{rtt}");
        hystart_round(&mut h, 50);
        assert_eq!(h.baseline == 40_000, !goes_on, "{rtt}");
    }
}
