//! The libraries in a program that is linked to rdma-core's, in each way of loading them.

mod ways;

use ways::{WAYS, Watched, succeeds};

/// Names and interfaces are found through whatever stands before the C library, each of ours shown once; then a connection.
#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_each_way_of_loading_works() {
    for way in WAYS {
        succeeds("loading", &[], way, Watched::No);
    }
}

/// The sanitizer stands before functions of the C library, too: in front of ours, or between them.
#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_each_way_of_loading_works_with_address_sanitizer() {
    for way in WAYS {
        for watched in [Watched::Asan, Watched::AsanBehind] {
            succeeds("loading", &[], way, watched);
        }
    }
}
