//! Tests the lock of an engine, and a revocation that its passes must see, in the orders of events that the
//! memory model allows with few involuntary thread switches
//! (`cargo test -p urnic --no-default-features --features loom --lib models`).

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::PassLock;

/// Runs the model checker, with a bound on involuntary thread switches that keeps it within seconds.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A revocation, and two passes of another engine that may begin at the same time, on one thread or on two. When
/// the grace period is over, no pass uses what was revoked, and none finds it valid.
#[test]
fn no_pass_uses_what_was_revoked_when_its_grace_period_is_over() {
    struct Shared {
        lock: PassLock,
        valid: AtomicBool,
        /// Whether the memory exists.
        memory: AtomicBool,
    }
    fn pass(shared: &Shared) {
        if shared.lock.try_take(7) {
            if shared.valid.load(Ordering::SeqCst) {
                assert!(shared.memory.load(Ordering::Relaxed), "memory that was given up");
            }
            shared.lock.let_go();
        }
    }
    for threads in [1, 2] {
        explore(move || {
            let shared = Arc::new(Shared {
                lock: PassLock::default(),
                valid: AtomicBool::new(true),
                memory: AtomicBool::new(true),
            });
            let passes: Vec<_> = (0..threads)
                .map(|_| {
                    let shared = shared.clone();
                    thread::spawn(move || (0..2 / threads).for_each(|_| pass(&shared)))
                })
                .collect();
            shared.valid.store(false, Ordering::SeqCst);
            // Checks once instead of waiting: an outcome counts only if the grace period is over at this check.
            let over = shared.lock.under_way().is_none_or(|pass| shared.lock.has_ended(pass));
            if over {
                shared.memory.store(false, Ordering::Relaxed);
            }
            passes.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
