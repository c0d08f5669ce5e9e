//! Connection events, in C programs.

mod ways;

use ways::{On, Watched, Way, succeeds, succeeds_on};

/// Runs the program on a port and on the kernel's sockets, where different code learns of a connection's end.
fn everywhere(what: &str) {
    succeeds("events", &[what], Way::DropIn, Watched::Asan);
    succeeds_on(On::Kernel, "events", &[what], Way::DropIn, Watched::Asan);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_timewait_exit_comes_a_second_later() {
    everywhere("timewait");
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_timewait_exit_follows_its_identifier() {
    everywhere("migrate");
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_no_event_comes_for_an_identifier_that_is_gone() {
    // The sanitizer keeps freed memory for a while; without it, an address is soon reused for another identifier.
    let printed = succeeds("events", &["gone"], Way::Preload, Watched::No);
    assert!(printed.contains("addresses used again: 1"), "nothing was tried: {printed}");
    succeeds("events", &["gone"], Way::DropIn, Watched::Asan);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_no_event_goes_with_a_queue_pair() {
    everywhere("queue-pair-first");
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_an_identifier_may_go_before_its_queue_pair() {
    everywhere("identifier-first");
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_synchronous_identifiers_wait_once() {
    everywhere("synchronous");
}
