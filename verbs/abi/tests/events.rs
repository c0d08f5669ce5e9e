//! Events of connections, in C programs.

mod ways;

use ways::{Watched, Way, succeeds};

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_timewait_exit_comes_a_second_later() {
    succeeds("events", &["timewait"], Way::DropIn, Watched::Asan);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_timewait_exit_follows_its_identifier() {
    succeeds("events", &["migrate"], Way::DropIn, Watched::Asan);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_no_event_comes_for_an_identifier_that_is_gone() {
    // The sanitizer keeps freed memory for a while; without it an address is soon another identifier's.
    let printed = succeeds("events", &["gone"], Way::Preload, Watched::No);
    assert!(printed.contains("addresses used again: 1"), "nothing was tried: {printed}");
    succeeds("events", &["gone"], Way::DropIn, Watched::Asan);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_no_event_goes_with_a_queue_pair() {
    succeeds("events", &["queue-pair-first"], Way::DropIn, Watched::Asan);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_an_identifier_may_go_before_its_queue_pair() {
    succeeds("events", &["identifier-first"], Way::DropIn, Watched::Asan);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_synchronous_identifiers_wait_once() {
    succeeds("events", &["synchronous"], Way::DropIn, Watched::Asan);
}
