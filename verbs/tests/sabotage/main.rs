//! Breaks one rule of the RNIC at a time. The random workload must notice each broken rule.
//!
//! Rules are broken around the RNIC: between it and its application (`workload/broken.rs`), or on the streams below it
//! (`streams.rs`). Switches inside the RNIC break the few rules that cannot be broken from outside. A switch acts only
//! on the thread that steps a simulation, so tests do not disturb each other.

#[path = "../common/mod.rs"]
mod common;
mod streams;
#[path = "../workload/mod.rs"]
mod workload;

use std::panic::{AssertUnwindSafe, catch_unwind};
use workload::{Checked, Parameters};

/// Maximum number of seeds that the workload may need to notice a broken rule.
const SEEDS: u64 = 1500;

fn run(p: &Parameters) -> Checked {
    catch_unwind(AssertUnwindSafe(|| workload::run(p)))
        .unwrap_or_else(|_| Err("panicked".to_owned()))
        .map(|_| ())
}

/// Returns the workload of `seed` over streams in memory, which have no IPv6.
fn over_streams(seed: u64) -> Parameters {
    let mut p = Parameters::random(seed);
    p.options.carrier = Some(streams::device);
    p.options.ipv6 = false;
    p
}

/// Checks that the workload notices each of `rules`. `broken` runs the workload of a seed with a rule broken.
fn each_is_noticed<R: Copy + std::fmt::Debug>(rules: &[R], broken: impl Fn(R, u64) -> Checked) {
    let mut unnoticed = Vec::new();
    for &rule in rules {
        match (0..SEEDS).find_map(|seed| broken(rule, seed).err().map(|why| (seed, why))) {
            Some((seed, why)) => {
                println!("{rule:?}: seed {seed}: {}", why.lines().next().unwrap_or_default())
            }
            None => unnoticed.push(rule),
        }
    }
    assert!(unnoticed.is_empty(), "broken, but not noticed within {SEEDS} seeds: {unnoticed:?}");
}

#[test]
fn nothing_is_noticed_when_nothing_is_broken() {
    for seed in 0..20 {
        for p in [Parameters::random(seed), over_streams(seed)] {
            run(&p).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
    }
}

#[test]
fn rules_broken_towards_the_application_are_noticed() {
    each_is_noticed(&workload::Rule::ALL, |rule, seed| run(&Parameters::breaking(rule, seed)));
}

#[test]
fn rules_broken_on_streams_are_noticed() {
    each_is_noticed(&streams::Rule::ALL, |rule, seed| {
        streams::set(Some(rule));
        let outcome = run(&over_streams(seed));
        streams::set(None);
        outcome
    });
}

#[cfg(feature = "sabotage")]
mod switches {
    use super::*;
    use urnic::sabotage::Rule;

    fn each_is_noticed_by<R: Copy + std::fmt::Debug>(rules: &[R], set: fn(Option<R>)) {
        each_is_noticed(rules, |rule, seed| {
            set(Some(rule));
            let outcome = run(&Parameters::random(seed));
            set(None);
            outcome
        });
    }

    #[test]
    fn rules_broken_inside_of_the_engine_are_noticed() {
        each_is_noticed_by(&[Rule::LentUntilAcked, Rule::Doorbell], urnic::sabotage::set);
    }

    #[test]
    fn rules_broken_inside_of_iwarp_are_noticed() {
        each_is_noticed_by(&[urnic_iwarp::sabotage::Rule::PlaceBeforeCrc], urnic_iwarp::sabotage::set);
    }
}
