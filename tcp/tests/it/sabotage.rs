//! The simulations notice when a rule of the protocol is broken.

use crate::{attacks, random};
use std::panic::{AssertUnwindSafe, catch_unwind};
use urnic_tcp::sabotage::{RULES, Rule, set};

/// What the other tests do, until one of them fails; says which.
fn caught() -> Option<String> {
    let fails = |test: &dyn Fn()| catch_unwind(AssertUnwindSafe(test)).is_err();
    if fails(&attacks::an_ack_from_outside_of_the_window_acknowledges_nothing) {
        return Some("a forged ACK".into());
    }
    if fails(&attacks::octets_that_come_again_are_delivered_once) {
        return Some("an overlapping segment".into());
    }
    (0..500).find(|&seed| fails(&|| random::one(seed))).map(|seed| format!("seed {seed}"))
}

#[test]
fn every_broken_rule_is_caught() {
    let mut missed: Vec<Rule> = Vec::new();
    for rule in RULES {
        set(Some(rule));
        let by = caught();
        set(None);
        println!("{rule:?}: {by:?}");
        missed.extend(by.is_none().then_some(rule));
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
    assert_eq!(caught(), None, "with all rules in force nothing fails");
}
