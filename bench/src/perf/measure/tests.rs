use super::*;

fn run(amount: Amount) -> (u64, u64) {
    let mut extent = Extent::new(amount, false);
    let mut counted = Counted::new();
    let mut done = 0;
    while extent.goes_on(done) {
        counted.after(done, &extent);
        done += 1;
    }
    (done, counted.outcome(done, None).messages)
}

#[test]
fn a_count_is_kept_beside_the_warmup() {
    assert_eq!(run(Amount::Iters(100)), (110, 100));
    assert_eq!(run(Amount::Iters(1)), (1, 1));
    assert_eq!(run(Amount::Iters(7)), (7, 7));
    assert_eq!(run(Amount::Iters(1_000_000)), (1_001_000, 1_000_000));
}

#[test]
fn a_time_ends_with_at_least_one_message() {
    let (done, counted) = run(Amount::Seconds(0.0));
    assert!(counted >= 1 && counted <= done, "{counted} of {done}");
}

#[test]
fn cpu_time_goes_on() {
    let before = cpu_time();
    let mut x = 0u64;
    while cpu_time() == before {
        x = std::hint::black_box(x + 1);
    }
    assert!(cpu_time() > before);
}

#[test]
fn what_threads_found_is_added_and_their_times_overlap() {
    let outcome = |from: u64, to: u64, messages: u64, ns: u64| {
        let base = Instant::now();
        let mut histogram = histogram();
        histogram.record_n(ns, messages).unwrap();
        let start = Stopwatch { wall: base, cpu: Duration::from_millis(2 * from) };
        let time = Duration::from_millis(to - from);
        let lap = Lap { wall: time, cpu: 2 * time, start };
        (base, Outcome { messages, lap, histogram: Some(histogram), beside_gbit_s: 1.5 }, from)
    };
    let (base, mut one, _) = outcome(10, 50, 3, 1000);
    let (_, mut other, _) = outcome(20, 100, 1, 9000);
    one.lap.start.wall = base + Duration::from_millis(10);
    other.lap.start.wall = base + Duration::from_millis(20);
    let all = one.join(other);
    assert_eq!(all.messages, 4);
    assert_eq!((all.lap.wall, all.lap.cpu), (Duration::from_millis(90), Duration::from_millis(180)));
    let histogram = all.histogram.unwrap();
    assert_eq!((histogram.len(), histogram.min()), (4, 1000));
    assert!(histogram.max() >= 9000);
    assert_eq!(all.beside_gbit_s, 3.0);
}
