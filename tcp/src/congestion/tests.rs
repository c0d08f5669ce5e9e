use super::*;
use proptest::prelude::*;

const MSS: u32 = 1000;

fn controller(c: Congestion) -> Controller {
    Controller::new(c, MSS, INITIAL_WINDOW)
}

/// One round trip in which the whole window is sent and ACKed segment by segment.
fn round(c: &mut Controller, now: Time, rtt: Duration) {
    let segments = c.cwnd() / MSS;
    for i in 0..segments {
        c.on_ack(&Ack { now: now + rtt * i / segments, acked: MSS, limited: true, srtt: Some(rtt) });
    }
}

#[test]
fn initial_windows_of_rfc_6928() {
    for (mss, window) in [(1460, 14600), (536, 5360), (8960, 17920), (1000, 10000), (2000, 14600)] {
        assert_eq!(Controller::new(Congestion::Reno, mss, INITIAL_WINDOW).cwnd(), window, "MSS {mss}");
    }
    let mut c = controller(Congestion::Reno);
    c.on_syn_lost();
    assert_eq!(c.cwnd(), MSS); // RFC 5681 §3.1
}

#[test]
fn slow_start_doubles_and_counts_octets() {
    for kind in [Congestion::Reno, Congestion::Cubic] {
        let mut c = controller(kind);
        round(&mut c, Time::ZERO, Duration::from_millis(1));
        assert_eq!(c.cwnd(), 20 * MSS);
        // All that an ACK acknowledges counts.
        c.on_ack(&Ack { now: Time::ZERO, acked: 9 * MSS, limited: true, srtt: None });
        assert_eq!(c.cwnd(), 29 * MSS);
    }
}

#[test]
fn an_unused_window_does_not_grow() {
    for kind in [Congestion::Reno, Congestion::Cubic] {
        let mut c = controller(kind);
        for _ in 0..100 {
            c.on_ack(&Ack { now: Time::ZERO, acked: MSS, limited: false, srtt: None });
        }
        assert_eq!(c.cwnd(), 10 * MSS);
        c.on_enter_recovery(10 * MSS);
        c.on_recovery_exit(10 * MSS, false);
        let before = c.cwnd();
        for i in 0..1000 {
            let ack = Ack { now: Time::from_millis(i * 100), acked: MSS, limited: false, srtt: None };
            c.on_ack(&ack);
        }
        assert_eq!(c.cwnd(), before);
    }
}

#[test]
fn reno_halves_then_adds_one_segment_per_round() {
    let mut c = controller(Congestion::Reno);
    c.cwnd = 40 * MSS;
    // More may be outstanding behind a hole than the window ever let into the network.
    c.on_enter_recovery(100 * MSS);
    assert_eq!((c.cwnd(), c.ssthresh()), (20 * MSS, 20 * MSS)); // RFC 5681 equation 4
    c.on_recovery_exit(20 * MSS, false);
    for n in 1..=5 {
        round(&mut c, Time::ZERO, Duration::from_millis(1));
        assert_eq!(c.cwnd(), (20 + n) * MSS);
    }
}

#[test]
fn never_below_two_segments_after_loss() {
    for kind in [Congestion::Reno, Congestion::Cubic] {
        let mut c = controller(kind);
        c.on_enter_recovery(MSS);
        assert_eq!((c.cwnd(), c.ssthresh()), (2 * MSS, 2 * MSS));
    }
}

#[test]
fn newreno_inflates_and_deflates() {
    let mut c = controller(Congestion::Reno);
    c.cwnd = 20 * MSS;
    c.on_enter_recovery(20 * MSS);
    c.inflate(3 * MSS);
    assert_eq!(c.cwnd(), 13 * MSS);
    c.inflate(MSS);
    c.on_partial_ack(5 * MSS); // RFC 6582 §3.2 step 3
    assert_eq!(c.cwnd(), 10 * MSS);
    c.on_partial_ack(MSS / 2);
    assert_eq!(c.cwnd(), 10 * MSS - MSS / 2);
    c.on_recovery_exit(3 * MSS, true);
    assert_eq!(c.cwnd(), 4 * MSS);
    c.on_recovery_exit(0, true);
    assert_eq!(c.cwnd(), 2 * MSS);
}

#[test]
fn timeout_restarts_with_one_segment() {
    for (kind, left) in [(Congestion::Reno, 10 * MSS), (Congestion::Cubic, 14 * MSS)] {
        let mut c = controller(kind);
        c.cwnd = 30 * MSS;
        c.on_rto(20 * MSS, true);
        assert_eq!((c.cwnd(), c.ssthresh()), (MSS, left)); // RFC 5681 §3.1, RFC 9438 §4.8
        c.on_rto(MSS, false);
        assert_eq!((c.cwnd(), c.ssthresh()), (MSS, left)); // the threshold is held
        // RFC 3465 §2.3: one segment per ACK in this slow start.
        c.on_ack(&Ack { now: Time::ZERO, acked: 5 * MSS, limited: true, srtt: None });
        assert_eq!(c.cwnd(), 2 * MSS);
    }
}

#[test]
fn idle_restarts_from_the_initial_window() {
    let mut c = controller(Congestion::Cubic);
    round(&mut c, Time::ZERO, Duration::from_millis(1));
    c.on_idle(Duration::from_secs(1));
    assert_eq!(c.cwnd(), 10 * MSS); // RFC 5681 §4.1
    c.on_enter_recovery(4 * MSS);
    let small = c.cwnd();
    c.on_idle(Duration::from_secs(1));
    assert_eq!(c.cwnd(), small);
}

/// Rounds of congestion avoidance after a loss at `segments`; the window in segments at the end of each.
fn cubic_after_loss(segments: u32, rtt: Duration, rounds: u32) -> Vec<f64> {
    let mut c = controller(Congestion::Cubic);
    c.cwnd = segments * MSS;
    c.on_enter_recovery(segments * MSS);
    c.on_recovery_exit(c.cwnd(), false);
    (0..rounds)
        .map(|i| {
            round(&mut c, Time::ZERO + rtt * i, rtt);
            f64::from(c.cwnd()) / f64::from(MSS)
        })
        .collect()
}

#[test]
fn cubic_follows_its_function() {
    // RFC 9438 §4.2: 1000 segments, K = cbrt(300 / 0.4) = 9.086 s; RTT 100 ms, long enough to be outside the
    // Reno-friendly region.
    let rtt = Duration::from_millis(100);
    let windows = cubic_after_loss(1000, rtt, 150);
    let k = (1000.0 * 0.3 / 0.4f64).cbrt();
    for (i, w) in windows.iter().enumerate() {
        let t = (i + 1) as f64 * 0.1;
        let expected = 1000.0 + 0.4 * (t - k).powi(3);
        assert!((w - expected).abs() < 0.03 * expected, "at {t:.1} s: {w:.1} instead of {expected:.1}");
    }
}

#[test]
fn cubic_is_friendly_to_reno_on_short_paths() {
    // §4.3: at 1 ms the cubic function hardly moves, and the window grows like AIMD(0.53, 0.7).
    let windows = cubic_after_loss(100, Duration::from_millis(1), 20);
    let growth = (windows[19] - windows[0]) / 19.0;
    assert!((0.45..0.6).contains(&growth), "{growth} segments per round");
}

#[test]
fn cubic_fast_convergence() {
    let mut c = Cubic::default();
    assert_eq!(c.reduce(100 * MSS, MSS, 100 * MSS), 70 * MSS);
    assert_eq!(c.w_max, 100.0);
    c.reduce(80 * MSS, MSS, 80 * MSS); // §4.7
    assert!((c.w_max - 68.0).abs() < 1e-9);
}

#[test]
fn cubic_leaves_idle_time_out() {
    let rtt = Duration::from_millis(100);
    let run = |idle: Duration| {
        let mut c = controller(Congestion::Cubic);
        c.cwnd = 9 * MSS;
        c.on_enter_recovery(9 * MSS);
        c.on_recovery_exit(c.cwnd(), false);
        let mut now = Time::ZERO;
        for i in 0..20 {
            if i == 10 && idle > Duration::ZERO {
                c.on_idle(idle);
                now += idle;
            }
            round(&mut c, now, rtt);
            now += rtt;
        }
        c.cwnd()
    };
    // §5.8; the window stays below the initial one until the pause, so only the clock could tell.
    let (without, with) = (run(Duration::ZERO), run(Duration::from_secs(3600)));
    assert!(without.abs_diff(with) <= MSS, "{without} {with}");
}

#[derive(Clone, Debug)]
enum Event {
    Ack(u32, bool, u64),
    Recovery(u32),
    Inflate(u32),
    Partial(u32),
    Exit(u32, bool),
    Timeout(u32, bool),
    Idle(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => any::<(u32, bool, u64)>().prop_map(|(a, b, c)| Event::Ack(a, b, c)),
        1 => any::<u32>().prop_map(Event::Recovery),
        1 => any::<u32>().prop_map(Event::Inflate),
        1 => any::<u32>().prop_map(Event::Partial),
        1 => any::<(u32, bool)>().prop_map(|(f, b)| Event::Exit(f, b)),
        1 => any::<(u32, bool)>().prop_map(|(f, b)| Event::Timeout(f, b)),
        1 => any::<u64>().prop_map(Event::Idle),
    ]
}

proptest! {
    #[test]
    fn no_event_breaks_the_bounds(
        cubic in any::<bool>(), mss in any::<u32>(), n in any::<u32>(),
        events in prop::collection::vec(event(), 0..100),
    ) {
        let kind = if cubic { Congestion::Cubic } else { Congestion::Reno };
        let mut c = Controller::new(kind, mss, n);
        for e in events {
            match e {
                Event::Ack(acked, limited, t) => {
                    c.on_ack(&Ack { now: Time(t), acked, limited, srtt: Some(Duration::from_nanos(t / 2)) })
                }
                Event::Recovery(f) => c.on_enter_recovery(f),
                Event::Inflate(o) => c.inflate(o),
                Event::Partial(a) => c.on_partial_ack(a),
                Event::Exit(f, b) => c.on_recovery_exit(f, b),
                Event::Timeout(f, b) => c.on_rto(f, b),
                Event::Idle(t) => c.on_idle(Duration::from_nanos(t)),
            }
            prop_assert!(c.cwnd() >= c.mss && c.cwnd() <= MAX_WINDOW, "{e:?} {c:?}");
            prop_assert!(c.ssthresh() >= 2 * c.mss);
        }
    }
}
