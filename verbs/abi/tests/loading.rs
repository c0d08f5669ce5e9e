//! A program that is linked to rdma-core's libraries runs with ours, in each way of loading them.

mod ways;

use ways::{On, WAYS, Watched, Way, succeeds, succeeds_on};

/// Names and interfaces are found although several libraries override the C library; our interface is shown
/// once. Afterwards, a connection works.
#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_each_way_of_loading_works() {
    for way in WAYS {
        succeeds("loading", &[], way, Watched::No);
    }
}

/// The sanitizer also overrides functions of the C library. Its definitions come before ours, or between ours.
#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_each_way_of_loading_works_with_address_sanitizer() {
    for way in WAYS {
        for watched in [Watched::Asan, Watched::AsanBehind] {
            succeeds("loading", &[], way, watched);
        }
    }
}

/// Programs that ask for interfaces in other ways find the interface that `getifaddrs` shows. It is the interface of
/// the device's GIDs.
#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_the_interface_is_there_however_programs_ask() {
    let port = On::Port("10.4.9.1/20");
    let has = ["10.4.9.1", "255.255.240.0", "10.4.15.255", "1500"];
    for way in WAYS {
        for watched in [Watched::No, Watched::Asan, Watched::AsanBehind] {
            succeeds_on(port, "netdevice", &has, way, watched);
        }
    }
    succeeds_on(On::Port("fd04:9::1/64"), "netdevice", &["-"], Way::DropIn, Watched::Asan);
    succeeds_on(On::Kernel, "netdevice", &["none"], Way::Preload, Watched::No);
    succeeds_on(On::Kernel, "netdevice", &["none"], Way::DropIn, Watched::Asan);
}
