//! Breaks one rule of the RNIC at a time: the random workload must notice each.
//!
//! The switches belong to a thread, and a simulation runs in the thread that steps it, so tests do not disturb
//! each other.

mod workload;

use std::panic::{AssertUnwindSafe, catch_unwind};
use workload::{Checked, Parameters};

/// Seeds within which a broken rule must be noticed.
const SEEDS: u64 = 1500;

fn run(seed: u64) -> Checked {
    let p = Parameters::random(seed);
    catch_unwind(AssertUnwindSafe(|| workload::run(&p)))
        .unwrap_or_else(|_| Err("panicked".to_owned()))
        .map(|_| ())
}

/// Breaks each of `rules` in turn by `set`.
fn each_is_noticed<R: Copy + std::fmt::Debug>(rules: &[R], set: fn(Option<R>)) {
    let mut unnoticed = Vec::new();
    for &rule in rules {
        set(Some(rule));
        let found = (0..SEEDS).find_map(|seed| run(seed).err().map(|why| (seed, why)));
        set(None);
        match found {
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
        run(seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

#[test]
fn broken_rules_of_the_engine_are_noticed() {
    each_is_noticed(&urnic::sabotage::Rule::ALL, urnic::sabotage::set);
}

/// Without the check of sequence numbers against the window, which only an attacker can show: the tests of
/// `urnic-tcp` are one.
#[test]
fn broken_rules_of_tcp_are_noticed() {
    use urnic_tcp::sabotage::{RULES, Rule};
    let rules: Vec<Rule> = RULES.into_iter().filter(|rule| *rule != Rule::SequenceWindow).collect();
    each_is_noticed(&rules, urnic_tcp::sabotage::set);
}

/// Without those that only a peer that errs can show; the tests of `urnic-iwarp` are that peer.
#[test]
fn broken_rules_of_iwarp_are_noticed() {
    use urnic_iwarp::sabotage::Rule;
    let rules = [
        Rule::SkipCrc,
        Rule::PlaceBeforeCrc,
        Rule::SkipBounds,
        Rule::IgnoreTaggedFault,
        Rule::DeliverEarly,
        Rule::ReadDoneEarly,
        Rule::IgnoreOrd,
        Rule::LastOnEverySegment,
    ];
    each_is_noticed(&rules, urnic_iwarp::sabotage::set);
}
