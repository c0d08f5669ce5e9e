use super::*;
use core::time::Duration;
use proptest::prelude::*;
use std::collections::HashMap;

const TICK: u64 = 1 << TICK_SHIFT;

fn drain(wheel: &mut TimerWheel, now: Time) -> Vec<u32> {
    std::iter::from_fn(|| wheel.poll(now)).collect()
}

#[test]
fn fires_once_and_not_early() {
    let mut w = TimerWheel::new(Time::ZERO);
    w.schedule(3, Time::from_millis(200));
    assert_eq!(w.deadline(3), Some(Time::from_millis(200)));
    assert_eq!(drain(&mut w, Time::from_millis(200) - Duration::from_nanos(TICK)), []);
    assert_eq!(drain(&mut w, Time::from_millis(200) + Duration::from_nanos(TICK)), [3]);
    assert_eq!(drain(&mut w, Time::from_secs(1000)), []);
    assert_eq!(w.deadline(3), None);
    assert_eq!(w.next_deadline(), None);
}

#[test]
fn moving_later_is_seen_when_the_old_place_comes_up() {
    let mut w = TimerWheel::new(Time::ZERO);
    w.schedule(0, Time::from_millis(1));
    w.schedule(0, Time::from_millis(50));
    assert_eq!(drain(&mut w, Time::from_millis(2)), []);
    assert_eq!(drain(&mut w, Time::from_millis(51)), [0]);
}

#[test]
fn moving_earlier_takes_effect_at_once() {
    let mut w = TimerWheel::new(Time::ZERO);
    w.schedule(0, Time::from_secs(100));
    w.schedule(0, Time::from_millis(1));
    assert!(w.next_deadline().is_some_and(|t| t <= Time::from_millis(2)));
    assert_eq!(drain(&mut w, Time::from_millis(2)), [0]);
    assert_eq!(drain(&mut w, Time::from_secs(200)), []);
}

#[test]
fn what_is_polled_can_be_scheduled_again() {
    let mut w = TimerWheel::new(Time::ZERO);
    w.schedule(7, Time(1));
    let now = Time::from_millis(1);
    assert_eq!(w.poll(now), Some(7));
    w.schedule(7, Time(1));
    // A past deadline is reported in a later tick, so a handler that always schedules one cannot spin.
    let mut again = 0;
    while w.poll(now).is_some() {
        again += 1;
        w.schedule(7, Time(1));
        assert!(again < 100);
    }
    assert_eq!(drain(&mut w, now + Duration::from_nanos(TICK)), [7]);
}

#[test]
fn the_ends_of_time() {
    let mut w = TimerWheel::new(Time(u64::MAX - 10 * TICK));
    w.schedule(0, Time(u64::MAX - 1));
    w.schedule(1, Time::MAX);
    w.schedule(2, Time::ZERO);
    assert_eq!(w.deadline(1), None);
    assert_eq!(drain(&mut w, Time(u64::MAX - 8 * TICK)), [2]);
    assert!(w.next_deadline().is_some());
    let mut w = TimerWheel::new(Time::ZERO);
    w.schedule(0, Time(u64::MAX - 3 * TICK));
    assert_eq!(drain(&mut w, Time::MAX), [0]);
}

#[derive(Clone, Debug)]
enum Step {
    Schedule(u32, u64),
    Cancel(u32),
    Advance(u64),
    ToDeadline,
}

/// Returns spans of all magnitudes below 2^49 ns, so that the lowest seven levels are used.
fn span() -> impl Strategy<Value = u64> {
    (0u32..50, any::<u64>()).prop_map(|(bits, r)| r & ((1u64 << bits) - 1))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u32..20, span()).prop_map(|(k, d)| Step::Schedule(k, d)),
        1 => (0u32..20).prop_map(Step::Cancel),
        2 => span().prop_map(Step::Advance),
        2 => Just(Step::ToDeadline),
    ]
}

proptest! {
    /// Compared with a map that is scanned, the wheel is never early and never more than two ticks late. It loses no
    /// deadline and reports none twice.
    #[test]
    fn behaves_like_a_map(origin in span(), steps in prop::collection::vec(step(), 1..200)) {
        let mut now = Time(origin);
        let mut wheel = TimerWheel::new(now);
        let mut model: HashMap<u32, u64> = HashMap::new();
        for step in steps {
            match step {
                Step::Schedule(k, d) => {
                    wheel.schedule(k, Time(now.0 + d));
                    model.insert(k, now.0 + d);
                    continue;
                }
                Step::Cancel(k) => {
                    wheel.cancel(k);
                    model.remove(&k);
                    continue;
                }
                Step::Advance(d) => now = Time(now.0 + d),
                Step::ToDeadline => {
                    let next = wheel.next_deadline();
                    if let Some(earliest) = model.values().min() {
                        let next = next.expect("something is scheduled");
                        prop_assert!(next.0 < earliest.max(&now.0) + 2 * TICK, "sleeps past a deadline");
                    }
                    now = now.max(next.unwrap_or(now));
                }
            }
            let mut last = 0;
            while let Some(key) = wheel.poll(now) {
                let deadline = model.remove(&key);
                prop_assert!(deadline.is_some_and(|d| d <= now.0), "early, or fired twice: {key}");
                let tick = tick_of(deadline.unwrap_or(0));
                prop_assert!(tick + 1 >= last, "out of order");
                last = last.max(tick);
            }
            for (k, d) in &model {
                prop_assert!(d + 2 * TICK > now.0, "{k} is late");
                prop_assert_eq!(wheel.deadline(*k), Some(Time(*d)));
            }
        }
    }
}
