//! The simulations notice when a rule of the protocol is broken.

use crate::broken::Rule;
use crate::random;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn fails(test: impl Fn()) -> bool {
    catch_unwind(AssertUnwindSafe(test)).is_err()
}

/// Returns the first of 500 seeds that shows that `rule` is broken.
fn caught(rule: Option<Rule>) -> Option<u64> {
    (0..500).find(|&seed| fails(|| random::one_with(seed, rule)))
}

#[test]
fn every_broken_rule_is_caught() {
    let mut missed: Vec<Rule> = Vec::new();
    for rule in Rule::ALL {
        let by = caught(Some(rule));
        println!("{rule:?}: seed {by:?}");
        missed.extend(by.is_none().then_some(rule));
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
    assert_eq!(caught(None), None, "with all rules in force nothing fails");
}

/// Only an attacker shows that segments outside of the window are taken.
#[cfg(feature = "sabotage")]
#[test]
fn a_window_that_is_not_checked_is_caught() {
    use crate::attacks::an_ack_from_outside_of_the_window_acknowledges_nothing as forged_ack;
    use urnic_tcp::sabotage::{Rule, set};
    set(Some(Rule::SequenceWindow));
    let caught = fails(forged_ack);
    set(None);
    assert!(caught, "an ACK from outside of the window acknowledges");
    assert!(!fails(forged_ack), "with the rule in force nothing fails");
}
