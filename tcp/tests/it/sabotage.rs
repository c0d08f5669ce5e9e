//! The simulations notice a broken rule of the protocol.

use crate::broken::Rule;
use crate::random;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn fails(test: impl Fn()) -> bool {
    catch_unwind(AssertUnwindSafe(test)).is_err()
}

/// Returns the first of 500 seeds that reveals that `rule` is broken; `None` if none does.
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

/// Only an attacker can reveal that segments outside of the window are accepted.
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

/// A late ACK and a long queue lose no data, so only tests that look at times reveal them.
#[cfg(feature = "sabotage")]
#[test]
fn a_broken_rule_about_time_is_caught() {
    use urnic_tcp::sabotage::{Rule, set};
    let rules: [(Rule, fn()); 2] = [
        (Rule::AcksComeDue, crate::acks::little_data_is_acknowledged_soon),
        (Rule::QueueStaysShort, crate::throughput::a_queue_of_ones_own_stays_short),
    ];
    for (rule, test) in rules {
        set(Some(rule));
        let caught = fails(test);
        set(None);
        assert!(caught, "{rule:?} is not caught");
        assert!(!fails(test), "with the rule in force nothing fails");
    }
}

/// Rules on which the stacks of a device agree, each with a test that fails if the rule is broken.
#[cfg(feature = "sabotage")]
#[test]
fn a_rule_among_stacks_that_is_broken_is_caught() {
    use crate::devices;
    use urnic_tcp::sabotage::{Rule, set};
    let rules: [(Rule, fn(u64)); 6] = [
        (Rule::OwnersAgree, devices::one),
        (Rule::OwnerRefuses, devices::refused),
        (Rule::OneSpeaks, devices::asked),
        (Rule::ErrorsReachOwners, devices::narrow),
        (Rule::NeighboursReachAll, devices::asked),
        (Rule::PortsLeadHome, devices::steered),
    ];
    for (rule, test) in rules {
        set(Some(rule));
        let by = (0..20).find(|&seed| fails(|| test(seed)));
        set(None);
        println!("{rule:?}: seed {by:?}");
        assert!(by.is_some(), "{rule:?} is not caught");
        assert!(!fails(|| test(0)), "with the rule in force nothing fails");
    }
}
