//! Random operations between two RNICs over a network that loses, repeats, reorders and changes frames. For every seed,
//! each operation completes once and in order, with the right data or with an error that names the cause. Octets change
//! only where an operation may write.
//!
//! `URNIC_SEEDS=n` runs n seeds, `URNIC_SEED=n` runs seed n alone.

mod workload;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use workload::{Checked, Parameters, Seen};

const SEEDS: u64 = 500;

/// Further seeds that once found faults. In 708, the first FPDU that a Responder receives is damaged while the
/// Initiator has work left.
const MORE: [u64; 1] = [708];

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

fn run(p: &Parameters) -> Checked<Seen> {
    let outcome = catch_unwind(AssertUnwindSafe(|| workload::run(p)));
    outcome.unwrap_or_else(|_| Err("panicked".to_owned())).map_err(|e| format!("{e}\n{p}"))
}

/// DDP-3, 5, 10; RDMAP-56.
/// MPA-1, 32, 84.
#[test]
fn every_operation_completes_rightly_or_names_the_cause() {
    let seen = run_all(Parameters::random, &MORE);
    if let Some(seen) = seen {
        let extensions = [seen.atomics, seen.immediates];
        let all = [seen.lost, seen.corrupted, seen.swapped, seen.crc_errors, seen.refused];
        assert!(extensions.iter().all(|n| *n > 1000), "{seen:?}");
        assert!(all.iter().all(|n| *n > 20), "the workload sees too little: {seen:?}");
    }
}

/// Operations between devices of several engines complete rightly or name the cause, whichever engine a frame reaches.
#[test]
fn every_operation_completes_rightly_whichever_engine_its_frames_reach() {
    if let Some(seen) = run_all(Parameters::between_engines, &[]) {
        assert!(seen.operations > 10_000 && seen.lost > 1000 && seen.refused > 20, "{seen:?}");
    }
}

/// Runs the workloads of all seeds. Returns the events that they have seen; `None` if there are too few seeds to see
/// every event.
fn run_all(parameters: impl Fn(u64) -> Parameters + Sync, more: &[u64]) -> Option<Seen> {
    let run = |seed| run(&parameters(seed));
    if let Some(seed) = number("URNIC_SEED") {
        println!("{:?}", run(seed).unwrap_or_else(|e| panic!("{e}")));
        return None;
    }
    let seeds = number("URNIC_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let work = || {
        let (mut seen, mut failures) = (Seen::default(), Vec::new());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds || failures.len() > 3 {
                return (seen, failures);
            }
            match run(seed) {
                Ok(of_run) => seen += of_run,
                Err(failure) => failures.push(failure),
            }
        }
    };
    let (seen, mut failures) = work_on_two_threads(work);
    failures.extend(more.iter().filter_map(|seed| run(*seed).err()));
    failures.sort();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    println!("{seeds} seeds: {seen:?}");
    (seeds >= SEEDS).then_some(seen)
}

fn work_on_two_threads(work: impl Fn() -> (Seen, Vec<String>) + Sync) -> (Seen, Vec<String>) {
    thread::scope(|scope| {
        let other = scope.spawn(&work);
        let (mut seen, mut failures) = work();
        let (others, more) = other.join().expect("failures are collected, not raised");
        seen += others;
        failures.extend(more);
        (seen, failures)
    })
}
