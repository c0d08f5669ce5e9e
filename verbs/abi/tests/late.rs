//! The moment at which the device opens, in C programs.

mod ways;

use ways::{On, Watched, Way, succeeds, succeeds_on};

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_channels_and_identifiers_open_no_device() {
    succeeds("late", &["nothing"], Way::Preload, Watched::No);
    succeeds("late", &["nothing"], Way::DropIn, Watched::No);
    succeeds_on(On::Kernel, "late", &["nothing"], Way::Preload, Watched::No);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_what_was_made_before_a_fork_is_good_in_both() {
    succeeds("late", &["fork"], Way::Preload, Watched::No);
    succeeds("late", &["fork"], Way::DropIn, Watched::AsanNoLeaks);
    succeeds_on(On::Kernel, "late", &["fork"], Way::Preload, Watched::No);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_programs_become_daemons_before_they_use_the_device() {
    succeeds("late", &["daemon"], Way::Preload, Watched::No);
    succeeds("late", &["daemon"], Way::DropIn, Watched::AsanNoLeaks);
    succeeds_on(On::Kernel, "late", &["daemon"], Way::Preload, Watched::No);
}
