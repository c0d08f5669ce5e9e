use super::SpinLock;

#[test]
fn one_holder_at_a_time() {
    const ROUNDS: u64 = 50_000;
    let lock = SpinLock::new((0u64, 0u64));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let mut pair = lock.lock();
                    assert_eq!(pair.0, pair.1);
                    pair.0 += 1;
                    pair.1 += 1;
                }
            });
        }
    });
    assert_eq!(*lock.lock(), (3 * ROUNDS, 3 * ROUNDS));
}

#[test]
fn a_panicking_holder_lets_go() {
    let lock = SpinLock::new(0);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _held = lock.lock();
        panic!("on purpose");
    }));
    assert!(outcome.is_err());
    assert_eq!(*lock.lock(), 0);
}
