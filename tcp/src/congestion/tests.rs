use super::cubic::Cubic;
use super::dctcp::Dctcp;
use super::hystart::HyStart;
use super::*;
use proptest::prelude::*;

mod exact;

const MSS: u32 = 1000;
const KINDS: [Congestion; 3] = [Congestion::Reno, Congestion::Cubic, Congestion::Dctcp];

/// The ACK of one segment, in a transfer that the window limits.
const PLAIN: Ack = Ack {
    now: Time::ZERO,
    acked: MSS,
    limited: true,
    srtt: None,
    marked: false,
    flight: 0,
    rtt: None,
    rate: None,
};

fn controller(c: Congestion) -> Controller {
    Controller::new(c, MSS, INITIAL_WINDOW)
}

/// Runs one round trip in which the whole window is sent and ACKed segment by segment.
fn round(c: &mut Controller, now: Time, rtt: Duration) {
    let segments = c.cwnd() / MSS;
    for i in 0..segments {
        c.on_ack(&Ack { now: now + rtt * i / segments, srtt: Some(rtt), flight: c.cwnd(), ..PLAIN });
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
        // Everything that an ACK acknowledges counts.
        c.on_ack(&Ack { acked: 9 * MSS, ..PLAIN });
        assert_eq!(c.cwnd(), 29 * MSS);
    }
}

#[test]
fn an_unused_window_does_not_grow() {
    for kind in [Congestion::Reno, Congestion::Cubic] {
        let mut c = controller(kind);
        for _ in 0..100 {
            c.on_ack(&Ack { limited: false, ..PLAIN });
        }
        assert_eq!(c.cwnd(), 10 * MSS);
        c.on_enter_recovery(10 * MSS);
        c.on_recovery_exit(10 * MSS, false);
        let before = c.cwnd();
        for i in 0..1000 {
            let ack = Ack { now: Time::from_millis(i * 100), limited: false, ..PLAIN };
            c.on_ack(&ack);
        }
        assert_eq!(c.cwnd(), before);
    }
}

#[test]
fn reno_halves_then_adds_one_segment_per_round() {
    let mut c = controller(Congestion::Reno);
    c.window.cwnd = 40 * MSS;
    // Octets that arrived beyond a gap stay outstanding, so more octets may be outstanding than the window
    // allows.
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
    c.window.cwnd = 20 * MSS;
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
        c.window.cwnd = 30 * MSS;
        c.on_rto(20 * MSS, true);
        assert_eq!((c.cwnd(), c.ssthresh()), (MSS, left)); // RFC 5681 §3.1, RFC 9438 §4.8
        c.on_rto(MSS, false);
        assert_eq!((c.cwnd(), c.ssthresh()), (MSS, left)); // the threshold stays
        // RFC 3465 §2.3: one segment per ACK in this slow start.
        c.on_ack(&Ack { acked: 5 * MSS, ..PLAIN });
        assert_eq!(c.cwnd(), 2 * MSS);
    }
}

#[test]
fn an_idle_window_decays() {
    let rto = Duration::from_millis(200);
    for kind in KINDS {
        let mut c = controller(kind);
        for i in 0..3 {
            round(&mut c, Time::from_millis(i), Duration::from_millis(1));
        }
        assert_eq!(c.cwnd(), 80 * MSS);
        // RFC 2861 §3.2: the window halves for each timeout, and three quarters are remembered.
        c.on_idle(Duration::from_millis(450), rto);
        assert_eq!((c.cwnd(), c.ssthresh()), (20 * MSS, MAX_WINDOW));
        c.on_enter_recovery(20 * MSS);
        c.on_recovery_exit(20 * MSS, false);
        let left = c.cwnd();
        c.on_idle(Duration::from_secs(10), rto);
        assert_eq!(c.cwnd(), left.min(10 * MSS));
        assert!(c.ssthresh() >= left / 4 * 3);
        c.on_rto(MSS, true);
        c.on_idle(Duration::from_secs(3600), Duration::ZERO);
        assert_eq!(c.cwnd(), MSS);
    }
}

#[test]
fn marks_reduce_like_a_loss_but_for_dctcp() {
    for (kind, left) in [(Congestion::Reno, 20), (Congestion::Cubic, 28), (Congestion::Dctcp, 20)] {
        let mut c = controller(kind);
        c.window.cwnd = 40 * MSS;
        c.on_marks(40 * MSS);
        assert_eq!((c.cwnd(), c.ssthresh()), (left * MSS, left * MSS), "{kind:?}");
        // RFC 3168 §6.1.2: an ACK that reports congestion lets nothing grow.
        let marked = Ack { acked: 40 * MSS, marked: true, ..PLAIN };
        c.on_ack(&marked);
        assert_eq!(c.cwnd(), left * MSS, "{kind:?}");
    }
}

/// RFC 8257 §3.3.
#[test]
fn dctcp_follows_the_fraction_of_marks() {
    let mut c = controller(Congestion::Dctcp);
    c.window.cwnd = 100 * MSS;
    c.window.ssthresh = 100 * MSS;
    let window = |c: &mut Controller, marked: u32| {
        for i in 0..100 {
            let flight = 100 * MSS;
            let limited = false;
            c.on_ack(&Ack { limited, marked: i < marked, flight, ..PLAIN });
        }
    };
    let alpha = |c: &Controller| match &c.algorithm {
        AnyAlgorithm::Dctcp(a) => a.alpha(),
        other => panic!("{other:?}"),
    };
    for _ in 0..200 {
        window(&mut c, 20);
    }
    assert!((180..=220).contains(&alpha(&c)), "{}", alpha(&c));
    c.on_marks(100 * MSS);
    assert!((88 * MSS..=92 * MSS).contains(&c.cwnd()), "{}", c.cwnd());
    for _ in 0..200 {
        window(&mut c, 0);
    }
    assert_eq!(alpha(&c), 0);
    // A loss still halves the window (§3.5).
    let before = c.cwnd();
    c.on_enter_recovery(before);
    assert_eq!(c.cwnd(), before / 2);
}

/// RFC 6937 §3: over a round trip, the window comes down in proportion to the arriving octets.
#[test]
fn recovery_is_proportional() {
    let mut c = controller(Congestion::Reno);
    c.window.cwnd = 20 * MSS;
    c.on_enter_recovery(20 * MSS);
    c.begin_proportional(20 * MSS);
    assert!(c.nothing_recovered());
    let (mut pipe, mut sent) = (18 * MSS, 0);
    for i in 1..=18u32 {
        c.on_recovery_ack(&Progress { delivered: MSS, pipe, safe: true });
        let may = (c.cwnd() - pipe) / MSS * MSS;
        c.on_recovery_sent(may);
        sent += may;
        pipe = pipe + may - MSS;
        assert!(sent <= (1 + i).div_ceil(2) * MSS, "{i}: {sent}");
    }
    assert!(pipe.abs_diff(10 * MSS) <= 2 * MSS, "{pipe}");
    // After a large loss there is no burst: while recovery makes progress, the window allows one segment more than
    // arrives (§3.1).
    c.begin_proportional(20 * MSS);
    c.on_recovery_ack(&Progress { delivered: MSS, pipe: 2 * MSS, safe: true });
    assert_eq!(c.cwnd(), 4 * MSS);
    c.on_recovery_sent(MSS);
    c.on_recovery_ack(&Progress { delivered: 0, pipe: 2 * MSS, safe: false });
    assert_eq!(c.cwnd(), 2 * MSS);
    c.on_recovery_exit(4 * MSS, false);
    assert_eq!(c.cwnd(), 10 * MSS);
}

#[test]
fn a_mistake_is_undone_without_a_burst() {
    for kind in KINDS {
        let mut c = controller(kind);
        c.window.cwnd = 40 * MSS;
        let before = c.clone();
        c.on_rto(40 * MSS, true);
        assert_eq!(c.cwnd(), MSS);
        // RFC 4015 §3.2 (5), (6).
        let mut again = c.clone();
        c.undo(before.clone(), 15 * MSS, 2 * MSS);
        assert_eq!((c.cwnd(), c.ssthresh()), (17 * MSS, MAX_WINDOW));
        again.undo(before, MSS, 2 * MSS);
        assert_eq!(again.cwnd(), 10 * MSS);
    }
}

/// Runs rounds of congestion avoidance after a loss at `segments`. Returns the window at the end of each round, in
/// segments.
fn cubic_after_loss(segments: u32, rtt: Duration, rounds: u32) -> Vec<f64> {
    let mut c = controller(Congestion::Cubic);
    c.window.cwnd = segments * MSS;
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
    // §4.3: with round trips of 1 ms the cubic function hardly grows, and the window grows like AIMD(0.53, 0.7).
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
        c.window.cwnd = 9 * MSS;
        c.on_enter_recovery(9 * MSS);
        c.on_recovery_exit(c.cwnd(), false);
        let mut now = Time::ZERO;
        for i in 0..20 {
            if i == 10 && idle > Duration::ZERO {
                c.on_idle(idle, Duration::from_millis(200));
                now += idle;
            }
            round(&mut c, now, rtt);
            now += rtt;
        }
        c.cwnd()
    };
    // §5.8. The window stays below the initial one until the pause, so only the time of the cubic function could make
    // a difference.
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
    Marks(u32),
    Progress(u32, u32, bool),
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
        1 => any::<u32>().prop_map(Event::Marks),
        1 => any::<(u32, u32, bool)>().prop_map(|(d, p, s)| Event::Progress(d, p, s)),
    ]
}

proptest! {
    #[test]
    fn no_event_breaks_the_bounds(
        kind in 0usize..3, mss in any::<u32>(), n in any::<u32>(),
        events in prop::collection::vec(event(), 0..100),
    ) {
        let mut c = Controller::new(KINDS[kind], mss, n);
        for e in events {
            match e {
                Event::Ack(acked, limited, t) => {
                    c.on_ack(&Ack { now: Time(t), acked, limited, srtt: Some(Duration::from_nanos(t / 2)), marked: t % 3 == 0, flight: acked / 2, rtt: None, rate: None })
                }
                Event::Recovery(f) => c.on_enter_recovery(f),
                Event::Inflate(o) => c.inflate(o),
                Event::Partial(a) => c.on_partial_ack(a),
                Event::Exit(f, b) => c.on_recovery_exit(f, b),
                Event::Timeout(f, b) => c.on_rto(f, b),
                Event::Idle(t) => c.on_idle(Duration::from_nanos(t), Duration::from_millis(1)),
                Event::Marks(f) => c.on_marks(f),
                Event::Progress(delivered, pipe, safe) => c.on_recovery_ack(&Progress { delivered, pipe, safe }),
            }
            prop_assert!(c.cwnd() >= c.window.mss && c.cwnd() <= MAX_WINDOW, "{e:?} {c:?}");
            prop_assert!(c.ssthresh() >= 2 * c.window.mss);
        }
    }
}

/// Runs rounds of `rtts` milliseconds, for RFC 9406. Each round has 20 ACKs, each for a twentieth of the
/// window.
fn rounds(c: &mut Controller, rtts: &[u64]) {
    for &rtt in rtts {
        let flight = c.cwnd();
        for i in 0..20 {
            let acked = flight / 20 + if i == 19 { flight % 20 } else { 0 };
            c.on_ack(&Ack { acked, flight, rtt: Some(Duration::from_millis(rtt)), ..PLAIN });
        }
    }
}

#[test]
fn slow_start_ends_before_the_queue_overflows() {
    let start = || Controller::new(Congestion::Cubic, MSS, 10);
    // Constant round trips, or growth by less than 4 ms, have no effect.
    let mut c = start();
    rounds(&mut c, &[20, 20, 21, 23, 22, 20]);
    assert!(c.in_first_slow_start() && c.cwnd() > 30 * 10 * MSS, "{}", c.cwnd() / MSS);
    // Growing round trips slow the growth down, and end slow start five rounds later.
    let mut c = start();
    rounds(&mut c, &[20, 20, 20]);
    let before = c.cwnd();
    rounds(&mut c, &[30, 40, 50]);
    assert!(c.in_first_slow_start() && c.cwnd() < 4 * before, "{} {}", before / MSS, c.cwnd() / MSS);
    rounds(&mut c, &[60, 70, 80]);
    assert!(!c.in_slow_start() && c.ssthresh() < 6 * before, "{} {}", before / MSS, c.ssthresh() / MSS);
    // If round trips become short again, no queue had made them longer, and slow start goes on.
    let mut c = start();
    rounds(&mut c, &[20, 20, 30, 30, 20, 20, 20, 20]);
    assert!(c.in_first_slow_start() && c.cwnd() > 30 * 10 * MSS, "{}", c.cwnd() / MSS);
}

/// Runs `rounds` round trips of `flows` over a link of 10 octets per nanosecond, behind a queue that only they use.
/// Returns the last round-trip time.
fn share_a_queue(flows: &mut [Controller], rounds: u32, delay: Duration) -> Duration {
    const BASE: u64 = 2000;
    let mut rtt = 0;
    for _ in 0..rounds {
        let flights: Vec<u32> = flows.iter().map(|c| c.allowed(0, 0)).collect();
        rtt = BASE + flights.iter().map(|&f| u64::from(f)).sum::<u64>() / 10;
        for (c, flight) in flows.iter_mut().zip(flights) {
            c.on_round_trip(Duration::from_nanos(rtt), flight, delay);
        }
    }
    Duration::from_nanos(rtt)
}

fn grown(mss: u32) -> Controller {
    let mut c = Controller::new(Congestion::Cubic, mss, INITIAL_WINDOW);
    // The handshake has measured the path.
    c.on_round_trip(Duration::from_micros(2), 0, Duration::from_micros(16));
    c.on_ack(&Ack { acked: 1 << 20, ..PLAIN });
    c
}

#[test]
fn what_waits_in_ones_own_queue_is_bounded() {
    let delay = Duration::from_micros(16);
    for (count, mss) in [(1, 1448), (2, 1448), (8, 1448), (1, 8948), (4, 8948)] {
        let mut flows = vec![grown(mss); count];
        let unbounded: u32 = flows.iter().map(Controller::cwnd).sum();
        let rtt = share_a_queue(&mut flows, 40, delay);
        // With many connections, each has the smallest bound, and the sum of the bounds makes the round trip longer.
        let aim = Duration::from_micros(18)
            .max(Duration::from_nanos(2000 + count as u64 * LEAST_BOUND as u64 / 10));
        assert!(rtt > aim * 9 / 10 && rtt < aim * 5 / 4, "{count} of {mss}: {rtt:?}, windows {unbounded}");
        // After a peer has lost its core for a while, the bounds recover in a few rounds.
        for c in &mut flows {
            c.on_round_trip(Duration::from_millis(8), c.allowed(0, 0), delay);
        }
        let back = share_a_queue(&mut flows, 8, delay);
        assert!(back > aim * 9 / 10 && back < aim * 5 / 4, "{count} of {mss}: {back:?}");
    }
}

#[test]
fn a_bound_lets_whole_trains_go_and_always_something() {
    let mut c = grown(1448);
    let delay = Duration::from_micros(16);
    for _ in 0..30 {
        c.on_round_trip(Duration::from_secs(1), c.allowed(0, 0), delay);
    }
    let least = c.allowed(0, 0);
    assert!((LEAST_BOUND..LEAST_BOUND + 2 * 1448).contains(&least), "{least}");
    assert_eq!(c.allowed(least, 18_000), least, "nothing above the bound");
    assert_eq!(c.allowed(least - 1, 18_000), least - 1 + 18_000, "below it a whole train");
    assert_eq!(c.allowed(0, 1 << 30), c.cwnd(), "never more than the congestion window");
    // The window does not grow while the bound limits sending.
    let before = c.cwnd();
    c.on_ack(&Ack { acked: 1 << 20, ..PLAIN });
    assert_eq!(c.cwnd(), before);
    // A fast round trip raises the bound, even if fewer octets were in flight than the smallest bound.
    c.on_round_trip(Duration::from_micros(3), 1448, delay);
    assert!(c.allowed(0, 0) >= 2 * LEAST_BOUND);
    assert_eq!(controller(Congestion::Cubic).allowed(0, 18_000), 10 * MSS);
}

proptest! {
    /// Whatever round trips are measured, `allowed` is neither below the smallest bound nor above the congestion
    /// window.
    #[test]
    fn bounds_stay_sound(rtts in proptest::collection::vec((any::<u64>(), any::<u32>()), 1..50), delay: u32, pipe: u32, train: u32) {
        let mut c = grown(1448);
        for (rtt, flight) in rtts {
            c.on_round_trip(Duration::from_nanos(rtt), flight, Duration::from_nanos(delay.into()));
            let allowed = c.allowed(pipe, train & 0xffff);
            prop_assert!(allowed <= c.cwnd());
            prop_assert!(pipe > 0 || allowed >= c.cwnd().min(LEAST_BOUND));
        }
    }
}
