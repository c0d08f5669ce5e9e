//! Addresses of identifiers, in C programs on ports and on the kernel's sockets.

mod ways;

use ways::{On, Watched, Way, succeeds_on};

/// Runs the program on a port of both families, and on the kernel's loopback.
fn everywhere(what: &str) {
    let port = On::Port("10.4.9.1/24,fd04:9::1/64");
    succeeds_on(port, "addresses", &[what, "10.4.9.1", "fd04:9::1"], Way::DropIn, Watched::Asan);
    succeeds_on(On::Kernel, "addresses", &[what, "127.0.0.1", "::1"], Way::Preload, Watched::No);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_each_family_has_its_listener() {
    everywhere("families");
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_loopback_addresses_are_any_and_lead_to_ourselves() {
    everywhere("loopback");
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_names_of_both_families_are_found() {
    everywhere("names");
    let (v4, v6) = ("10.4.9.1", "fd04:9::1");
    succeeds_on(On::Port("10.4.9.1/24"), "addresses", &["names", v4, v6], Way::Both, Watched::No);
    succeeds_on(On::Port("fd04:9::1/64"), "addresses", &["names", v4, v6], Way::Both, Watched::No);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_a_lack_of_memory_leaves_no_copies_behind() {
    let arguments = ["scarce", "127.0.0.1", "::1"];
    succeeds_on(On::Kernel, "addresses", &arguments, Way::Preload, Watched::No);
}
