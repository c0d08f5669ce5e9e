use super::*;
use proptest::prelude::*;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn config(min: u64) -> RttConfig {
    RttConfig { min: ms(min), ..RttConfig::default() }
}

#[test]
fn one_second_before_any_measurement() {
    assert_eq!(RttEstimator::new(&RttConfig::default()).rto(), ms(1000)); // RFC 6298 (2.1)
}

#[test]
fn first_and_later_measurements() {
    let mut e = RttEstimator::new(&config(1));
    e.sample(ms(100)); // (2.2): SRTT = R, RTTVAR = R/2, RTO = SRTT + 4·RTTVAR
    assert_eq!((e.srtt(), e.rttvar(), e.rto()), (Some(ms(100)), ms(50), ms(300)));
    e.sample(ms(180)); // (2.3): RTTVAR = 3/4·50 + 1/4·80, SRTT = 7/8·100 + 1/8·180
    assert_eq!((e.srtt(), e.rttvar()), (Some(ms(110)), Duration::from_micros(57_500)));
    assert_eq!(e.rto(), ms(340));
}

#[test]
fn the_floor_and_the_clock_step() {
    let mut e = RttEstimator::new(&config(200));
    e.sample(Duration::from_micros(50));
    assert_eq!(e.rto(), ms(200)); // (2.4)
    let mut e = RttEstimator::new(&config(0));
    for _ in 0..200 {
        e.sample(Duration::from_micros(50));
    }
    // (2.3): at least the clock granularity above SRTT, however steady the path is.
    assert!(e.rto() >= Duration::from_nanos(50_000 + 16_384), "{:?}", e.rto());
}

#[test]
fn backs_off_to_the_maximum_until_measured_again() {
    let mut e = RttEstimator::new(&config(200));
    e.sample(ms(100));
    let rto = e.rto();
    e.back_off();
    assert_eq!(e.rto(), 2 * rto); // (5.5)
    for _ in 0..300 {
        e.back_off();
    }
    assert_eq!(e.rto(), Duration::from_secs(60)); // (2.5)
    e.sample(ms(100));
    assert!(e.rto() < 2 * rto);
    assert_eq!(e.backoff(), 0);
}

#[test]
fn a_lost_syn_means_three_seconds() {
    let mut e = RttEstimator::new(&RttConfig::default());
    e.back_off();
    e.syn_was_lost();
    assert_eq!(e.rto(), Duration::from_secs(3)); // (5.7)
    e.sample(ms(100));
    e.syn_was_lost();
    assert_eq!(e.rto(), ms(300));
}

#[test]
fn three_seconds_within_the_limits() {
    let limits = |initial: u64, max: u64| RttConfig { initial: ms(initial), max: ms(max), ..config(1) };
    for (initial, max, rto) in [(1000, 2000, 2000), (5000, 60_000, 5000), (1000, 3500, 3000)] {
        let mut e = RttEstimator::new(&limits(initial, max));
        e.back_off();
        e.syn_was_lost();
        assert_eq!((e.rto(), e.backoff()), (ms(rto), 0)); // RFC 6298 (5.7)
    }
}

#[test]
fn doubling_ends_at_the_maximum() {
    let mut e = RttEstimator::new(&RttConfig { max: ms(4000), ..config(1) });
    for (rto, backoff) in [(2000, 1), (4000, 2), (4000, 2)] {
        e.back_off();
        assert_eq!((e.rto(), e.backoff()), (ms(rto), backoff)); // RFC 6298 (5.5)
    }
    // If doubling the first RTO never gives exactly the maximum, the last doubling stops at the maximum.
    let mut e = RttEstimator::new(&RttConfig { max: ms(3000), ..config(1) });
    for backoff in [1, 2, 2] {
        e.back_off();
        assert_eq!((e.rto(), e.backoff()), (ms(3000).min(ms(1000 << backoff)), backoff));
    }
}

/// RFC 4015 §3.6: the variation becomes at least half of SRTT, and the RTO follows from it.
#[test]
fn a_timeout_that_was_a_mistake() {
    let steady = |min: Duration, max: Duration, rtt: Duration| {
        let mut e = RttEstimator::new(&RttConfig { initial: ms(1000), min, max });
        for _ in 0..200 {
            e.sample(rtt);
        }
        assert!(e.rttvar() < rtt / 100);
        e.after_spurious_timeout();
        (e.rttvar(), e.rto())
    };
    let us = Duration::from_micros;
    assert_eq!(steady(ms(1), ms(9000), ms(100)), (ms(50), ms(300)));
    assert_eq!(steady(ms(400), ms(9000), ms(100)), (ms(50), ms(400)));
    assert_eq!(steady(ms(1), ms(250), ms(100)), (ms(50), ms(250)));
    // The clock granularity counts here as well.
    assert_eq!(steady(us(1), ms(9000), us(4)), (us(2), us(4) + Duration::from_nanos(16_384)));
    // A larger variation stays.
    let mut e = RttEstimator::new(&config(1));
    e.sample(ms(100));
    e.sample(ms(1000));
    let (rttvar, rto) = (e.rttvar(), e.rto());
    e.after_spurious_timeout();
    assert_eq!((e.rttvar(), e.rto()), (rttvar, rto));
}

#[test]
fn the_least_round_trip_is_forgotten_after_one_to_two_periods() {
    let mut e = RttEstimator::new(&config(1));
    assert_eq!((e.min_rtt(), e.srtt_nanos()), (Duration::ZERO, None));
    e.sample(ms(10));
    assert_eq!((e.min_rtt(), e.srtt_nanos()), (ms(10), Some(10_000_000)));
    // The minimum of the last period counts until the present one ends.
    for n in 2..3 * u32::from(PERIOD) {
        e.sample(ms(20));
        assert_eq!(e.min_rtt(), ms(if n < 2 * u32::from(PERIOD) { 10 } else { 20 }), "{n}");
    }
    // A smaller round trip counts at once, and a longer one does not replace it.
    e.sample(ms(5));
    e.sample(ms(30));
    assert_eq!(e.min_rtt(), ms(5));
}

proptest! {
    #[test]
    fn bounded_whatever_is_measured(
        min in any::<u64>(), max in any::<u64>(), initial in any::<u64>(),
        samples in prop::collection::vec((any::<u64>(), any::<bool>()), 0..50),
    ) {
        let d = Duration::from_nanos;
        let mut e = RttEstimator::new(&RttConfig { initial: d(initial), min: d(min), max: d(max) });
        for (r, expired) in samples {
            if expired { e.back_off() } else { e.sample(d(r)) }
            prop_assert!(e.rto() > Duration::ZERO);
            prop_assert!(e.rto() <= d(max.max(min).clamp(1, LONGEST)));
        }
    }

    /// Equations (2.2) and (2.3) in floating point.
    #[test]
    fn follows_the_equations(samples in prop::collection::vec(1_000u64..10_000_000_000, 1..50)) {
        let mut e = RttEstimator::new(&config(0));
        let (mut srtt, mut rttvar) = (0.0, 0.0);
        for (i, &r) in samples.iter().enumerate() {
            let r_ = r as f64;
            if i == 0 {
                (srtt, rttvar) = (r_, r_ / 2.0);
            } else {
                rttvar = 0.75 * rttvar + 0.25 * f64::abs(srtt - r_);
                srtt = 0.875 * srtt + 0.125 * r_;
            }
            e.sample(Duration::from_nanos(r));
            prop_assert!((e.srtt as f64 - srtt).abs() < 20.0);
            prop_assert!((e.rttvar as f64 - rttvar).abs() < 20.0);
        }
    }
}
