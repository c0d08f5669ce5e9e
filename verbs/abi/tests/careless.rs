//! Careless use of the interface, in C programs: no call crashes, hangs, or uses memory that was freed.

mod ways;

use ways::{WAYS, Watched, Way, libraries, succeeds};

/// Runs the program in each way of loading, and under AddressSanitizer in the way that suits the sanitizer best.
fn everywhere(arguments: &[&str], watched: Watched) {
    for way in WAYS {
        succeeds("careless", arguments, way, Watched::No);
    }
    succeeds("careless", arguments, Way::DropIn, watched);
}

fn seed() -> String {
    std::env::var("URNIC_SEED").unwrap_or_else(|_| std::process::id().to_string())
}

/// Destroys domain, region, window, completion channel and queue, shared receive queue, queue pair, identifier and
/// event channel of one end, while the other end uses them. Objects that others need are busy; all others are
/// destroyed.
#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_objects_go_in_every_order() {
    let seed = seed();
    println!("seed {seed}");
    everywhere(&["order", &seed], Watched::Asan);
    let printed = succeeds("careless", &["order", &seed], Way::DropIn, Watched::No);
    // The number of situations that are possible if needed objects are never destroyed.
    assert!(printed.contains("situations 432"), "not all was tried: {printed}");
}

#[test]
#[ignore = "long"]
fn long_objects_go_in_every_order() {
    let seed = seed();
    println!("seed {seed}");
    succeeds("careless", &["order", &seed, "20000"], Way::DropIn, Watched::No);
    succeeds("careless", &["order", &seed, "5000"], Way::DropIn, Watched::Asan);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_nothing_is_destroyed_twice() {
    everywhere(&["twice"], Watched::Asan);
    everywhere(&["race"], Watched::Asan);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_threads_are_cancelled_wherever_they_wait() {
    everywhere(&["cancel"], Watched::AsanNoLeaks);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_forked_children_call_everything() {
    everywhere(&["fork"], Watched::AsanNoLeaks);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_libraries_are_unloaded_while_they_are_in_use() {
    let path = |name: &str| libraries().join(name).display().to_string();
    let drop_in = [path("drop-in/libibverbs.so.1"), path("drop-in/librdmacm.so.1")];
    for watched in [Watched::No, Watched::AsanNoLeaks] {
        succeeds("unload", &[&path("liburnic.so")], Way::Itself, watched);
        succeeds("unload", &[&path("liburnic_verbs.so")], Way::Itself, watched);
        succeeds("unload", &[&drop_in[0], &drop_in[1]], Way::Itself, watched);
        for way in [Way::DropIn, Way::Both] {
            succeeds("unload", &["libibverbs.so.1", "librdmacm.so.1"], way, watched);
        }
    }
}
