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
    // (2.3): at least the clock's step above SRTT, however steady the path.
    assert!(e.rto() >= Duration::from_nanos(50_000 + GRANULARITY), "{:?}", e.rto());
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
