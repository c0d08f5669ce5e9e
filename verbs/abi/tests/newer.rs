//! Functions that rdma-core has added since release 44, in a C program that finds them by name or by the
//! versions of their symbols.

mod ways;

use ways::{On, Watched, Way, succeeds, succeeds_on};

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_functions_of_newer_releases_are_there() {
    succeeds("newer", &["preload"], Way::Preload, Watched::No);
    succeeds("newer", &["drop-in"], Way::DropIn, Watched::Asan);
    succeeds("newer", &["drop-in"], Way::Both, Watched::No);
    succeeds_on(On::Kernel, "newer", &["drop-in"], Way::DropIn, Watched::Asan);
}
