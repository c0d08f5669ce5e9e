//! C programs that contain DPDK themselves, linked to it in several ways.

mod ways;

use std::process::Command;
use ways::{On, Watched, Way, run_with, text};

/// How a program is linked to DPDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Linked {
    /// To its shared libraries, as urnic is: there is one EAL in the process.
    Shared,
    /// To its archives: there are two EALs in the process.
    Archives,
    /// To its archives, with their functions exported, so that the loader binds urnic's calls to these
    /// functions as well.
    Exported,
}

fn options(linked: Linked) -> Vec<String> {
    let wanted: &[&str] = if linked == Linked::Shared { &["--cflags", "--libs"] } else { &["--cflags"] };
    let answer = Command::new("pkg-config").args(wanted).arg("libdpdk").output().expect("pkg-config runs");
    assert!(answer.status.success(), "{}", text(&answer));
    let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
    let more = match linked {
        Linked::Shared => "",
        Linked::Archives => ARCHIVES,
        // The flags that pkg-config names for static linking.
        Linked::Exported => &format!("{ARCHIVES} -Wl,--export-dynamic"),
    };
    answer.split_whitespace().chain(more.split_whitespace()).map(String::from).collect()
}

const ARCHIVES: &str = "-Wl,--whole-archive -l:librte_eal.a -l:librte_kvargs.a -l:librte_telemetry.a \
                        -Wl,--no-whole-archive -lnuma -lbsd -lm";

const WITHOUT_HUGEPAGES: [&str; 6] =
    ["--no-huge", "-m64", "--no-pci", "--no-shconf", "--no-telemetry", "-l0"];
const WITH_HUGEPAGES: [&str; 5] = ["-m32", "--no-pci", "--in-memory", "--no-telemetry", "-l0"];

/// A port that needs neither another end nor privileges.
const RING: On = On::Dpdk("ring:another", "10.4.9.1/24");

fn run(on: On, linked: Linked, arguments: &[&str]) -> (bool, String) {
    let output = run_with(on, "another_eal", &options(linked), arguments, Way::Preload, Watched::No);
    let printed = text(&output);
    (output.status.success() && printed.lines().any(|line| line == "done"), printed)
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_an_eal_that_runs_is_joined() {
    let (done, printed) = run(RING, Linked::Shared, &WITHOUT_HUGEPAGES);
    assert!(done && printed.contains("engine gone"), "{printed}");
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_two_eals_run_beside_each_other_unless_one_hides_the_other() {
    let (done, printed) = run(RING, Linked::Archives, &WITHOUT_HUGEPAGES);
    assert!(done && printed.contains("engine there"), "{printed}");
    let (done, printed) = run(RING, Linked::Exported, &WITHOUT_HUGEPAGES);
    assert!(!done && printed.contains("brings DPDK's functions itself"), "{printed}");
    // The kernel's sockets do not need DPDK.
    let (done, printed) = run(On::Kernel, Linked::Exported, &WITHOUT_HUGEPAGES);
    assert!(done, "{printed}");
}

#[test]
#[ignore = "needs hugepages, and the headers of rdma-core"]
fn needs_hugepages_memory_that_a_peer_cannot_map_is_refused() {
    let port = On::Dpdk("virtio_user:{}/nobody.sock", "10.4.9.1/24");
    let (done, printed) = run(port, Linked::Shared, &WITH_HUGEPAGES);
    assert!(!done && printed.contains("--single-file-segments (SPDK's programs: option -g)"), "{printed}");
    // The port works with virtual and physical addresses, and while the heap grows.
    for mode in ["--iova-mode=va", "--iova-mode=pa"] {
        let (done, printed) =
            run(port, Linked::Shared, &[&WITH_HUGEPAGES[..], &["--single-file-segments", mode]].concat());
        assert!(done, "{printed}");
    }
    let (done, printed) = run(RING, Linked::Archives, &WITH_HUGEPAGES);
    assert!(done, "{printed}");
}
