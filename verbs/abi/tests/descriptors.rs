//! C programs that run out of descriptors.

mod ways;

use ways::{On, Watched, Way, succeeds_on};

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_without_descriptors_calls_fail_and_say_what_to_raise() {
    for (way, watched) in
        [(Way::Preload, Watched::No), (Way::DropIn, Watched::Asan), (Way::Both, Watched::No)]
    {
        let printed = succeeds_on(On::Kernel, "descriptors", &[], way, watched);
        let told = printed.lines().filter(|line| line.contains("ulimit -n")).count();
        assert!((1..100).contains(&told), "{way:?}: {printed}");
    }
}
