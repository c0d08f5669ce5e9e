//! Stock programs run for a while, over virtio/vhost: a server with clients that come and go, each of which registers
//! and transfers other sizes; a pair that runs all the time; and now and then pairs of other programs. The resources of
//! the processes that run all the time must not grow, and all data must arrive unchanged.

mod stock;

use std::path::Path;
use std::time::{Duration, Instant};

use stock::holdings::Holdings;
use stock::{Node, alone, text};

/// Returns server and client of a link.
fn link(folder: &Path, name: &str, network: u8, lasts: Duration, engines: usize) -> (Node, Node) {
    let node = |host, kind| Node {
        ip: format!("10.4.{network}.{host}"),
        port: format!("{kind}:{}/{name}.sock", folder.display()),
        hugepages: true,
        log: Some("warn,urnic_verbs=debug,urnic::drive::shard::linger=debug"),
        lasts,
        engines: Some(engines),
        ..Node::default()
    };
    (node(1, "vhost"), node(2, "virtio_user"))
}

/// Returns a counter that a program has printed at its end; counters that are 0 are left out.
fn counter(printed: &str, name: &str) -> Option<u64> {
    let (_, rest) = printed.split_once(&format!("{name} "))?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Other programs, one pair in each stage: endpoints, a shared receive queue, rsockets.
const OTHERS: [(&str, &str); 3] = [
    ("rdma_server", "rdma_client"),
    ("rdma_xserver", "rdma_xclient"),
    ("rstream -T v -S 65536 -C 50", "rstream -T v -S 65536 -C 50"),
];

/// Checks by its printed counters that a program received segments, and no wrong frames.
fn is_sound(printed: &str) {
    assert!(counter(printed, "tcp_segments_in").is_some_and(|n| n > 0), "{printed}");
    for bad in ["malformed", "tcp_bad_checksum", "arp_conflicts", "tcp_unfilled_checksum"] {
        assert_eq!(counter(printed, bad), None, "{printed}");
    }
}

fn soak(seconds: u64, engines: usize) {
    const STAGES: u32 = 6;
    const PEERS_PAGES_KB: u64 = 4 * 2048;
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let seed = std::env::var("URNIC_SEED").map_or(1, |n| n.parse().expect("URNIC_SEED: a number"));
    println!("URNIC_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let lasts = Duration::from_secs(2 * seconds);
    let (left, mut right) = link(folder.path(), "turns", 6, lasts, engines);
    right.hugepages = false; // clients start sooner without
    let other = link(folder.path(), "others", 8, lasts, engines);
    let (steady_left, steady_right) = link(folder.path(), "steady", 7, lasts, engines);

    let server = left.serve("rping -s -P -S 60000");
    let steady_server = steady_left.serve("rping -s");
    let steady_client = steady_right.talk(&format!("rping -c -v -V -a {}", steady_left.ip));
    let pids = [server.running(), steady_server.running(), steady_client.running()]
        .map(|running| running.program().expect("it runs"));
    let idle = Holdings::of(pids[0]);
    let limit = idle.with_a_peer(engines);

    let start = Instant::now();
    let mut clients = 0;
    let mut stages = Vec::new();
    for stage in 1..=STAGES {
        while start.elapsed() < Duration::from_secs(seconds) * stage / STAGES || clients < stage {
            let (size, pings) = (random.u32(64..60_000), random.u32(1..200));
            let printed = right.succeeds(&format!("rping -c -V -S {size} -C {pings} -a {}", left.ip));
            is_sound(&printed);
            assert!(steady_client.goes_on(1), "{}", text(&steady_client.output()));
            clients += 1;
        }
        let (server, client) = OTHERS[stage as usize % OTHERS.len()];
        let (served, printed) =
            stock::pair(&other.0, &other.1, server, &format!("{client} -s {}", other.0.ip));
        is_sound(&served);
        is_sound(&printed);
        let now = [Holdings::at_rest(pids[0], limit), Holdings::of(pids[1]), Holdings::of(pids[2])];
        println!(
            "{:>6} s {clients:>6} clients, resident KB of the server, and of the pair: {:?}",
            start.elapsed().as_secs(),
            now.map(|holdings| holdings.resident_kb)
        );
        stages.push(now);
    }
    // Tables and pools reach their sizes within a third of the time.
    for (early, late) in stages[1].iter().zip(stages[STAGES as usize - 1]) {
        assert!(late.descriptors <= early.descriptors && late.threads <= early.threads, "{early:?} {late:?}");
        assert!(late.mappings <= early.mappings + 8, "{early:?} {late:?}");
        // A process at the `vhost` end has its peer's memory mapped, and counts each page of it from the first use on.
        // A burst may reach a buffer of the peer that no burst has reached before.
        assert!(late.hugepages_kb <= early.hugepages_kb + PEERS_PAGES_KB, "{early:?} {late:?}");
        assert!(late.resident_kb <= early.resident_kb + 512, "{early:?} {late:?}");
    }
    // The client of the pair ends; its server gets an event, and ends.
    steady_client.stop();
    let (status, printed) = steady_server.output();
    stock::rping_was_told(status, &printed);
    is_sound(&printed);
    server.stop();
}

#[test]
#[ignore = "needs the package rdmacm-utils"]
fn needs_rping_soak() {
    soak(15, 1);
}

/// Returns the length of the long test in seconds: half an hour, or `URNIC_SOAK`.
fn long() -> u64 {
    std::env::var("URNIC_SOAK").ok().and_then(|s| s.parse().ok()).unwrap_or(1800)
}

#[test]
#[ignore = "long"]
fn long_soak_of_stock_programs() {
    soak(long(), 1);
}

#[test]
#[ignore = "long"]
fn long_soak_of_stock_programs_on_four_engines() {
    soak(long(), 4);
}
