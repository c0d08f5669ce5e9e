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
