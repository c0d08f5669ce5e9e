//! rsockets: the code of the system's librdmacm runs on our `rdma_*` and `ibv_*`. Some tests run librdmacm's own
//! programs, which call rsockets. Others run ordinary socket programs, and librspreload.so turns their sockets into
//! rsockets.

mod stock;

use std::path::Path;
use std::time::Duration;

use stock::{Node, alone, pair};

/// Time that 100,000 messages back and forth may take on a busy machine, in addition to the time limit of other
/// programs.
const BUSY: Duration = Duration::from_secs(1800);

/// Returns the two ends of a link in a folder.
fn link(folder: &Path) -> (Node, Node) {
    let node = |ip: &str, kind| {
        let port = format!("{kind}:{}/link.sock", folder.display());
        Node { ip: ip.into(), port, ..Node::default() }
    };
    (node("10.4.3.1", "virtio_user"), node("10.4.3.2", "vhost"))
}

/// Runs the same program at both ends; the client also gets the server's address.
fn between(arguments: &str, to: &str) -> (String, String) {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let (left, right) = link(folder.path());
    pair(&left, &right, arguments, &format!("{arguments} {to} {}", left.ip))
}

/// Sends messages of one byte, and of sizes up to more than the buffers hold, and checks every byte.
#[test]
#[ignore = "needs the package rdmacm-utils"]
fn needs_rstream_sizes() {
    for size in ["-S 1 -I 50 -C 1", "-S 4096 -C 50", "-S 65536 -C 50", "-S 1048576 -C 5"] {
        let (_, client) = between(&format!("rstream -T v {size}"), "-s");
        assert!(client.contains("custom"), "{size}: {client}");
    }
}

/// Runs all tests that rstream runs by default: messages back and forth, and streams, each over its own connection. The
/// smallest messages go back and forth 100,000 times, and both ends sleep each time. This takes half a minute on an
/// idle machine, and many minutes if its cores are busy.
#[test]
#[ignore = "takes half a minute and more, and needs the package rdmacm-utils"]
fn long_rstream_all() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let (mut left, mut right) = link(folder.path());
    (left.lasts, right.lasts) = (BUSY, BUSY);
    let (_, client) = pair(&left, &right, "rstream -T v", &format!("rstream -T v -s {}", left.ip));
    for size in ["64_lat", "4k_lat", "64k_lat", "1m_lat", "4k_bw", "64k_bw", "1m_bw"] {
        assert!(client.contains(size), "{size}: {client}");
    }
}

/// Runs rstream with blocking calls, with non-blocking calls, with addresses from rdma_getaddrinfo, with small buffers,
/// and without inline data. Then runs it with `--libraries drop-in` and with `--libraries preload`: either way the code
/// of rsockets comes from the system's librdmacm.
#[test]
#[ignore = "needs the package rdmacm-utils"]
fn needs_rstream_ways_of_working() {
    for arguments in [
        "rstream -T b -T v -C 50 -S 10000",
        "rstream -T n -T v -C 50 -S 10000",
        "rstream -T r -T v -C 50 -S 10000",
        "rstream -T v -C 20 -S 100000 -B 8192",
        "rstream -T v -C 50 -S 10000 -i 0",
        "--libraries drop-in -- rstream -T v -C 50 -S 10000",
        "--libraries preload -- rstream -T v -C 50 -S 10000",
    ] {
        let (server, client) = between(arguments, "-s");
        assert!(server.contains("custom") && client.contains("custom"), "{arguments}: {server} {client}");
    }
}

/// Writes directly into the peer's memory (riomap, riowrite).
#[test]
#[ignore = "needs the package rdmacm-utils"]
fn needs_rstream_direct_writes() {
    for arguments in ["riostream -T v -C 50 -S 65536", "riostream -T b -T v -C 50 -S 65536"] {
        let (server, client) = between(arguments, "-s");
        assert!(server.contains("custom") && client.contains("custom"), "{arguments}: {server} {client}");
    }
}

/// Copies a file, by rsockets' own program.
#[test]
#[ignore = "needs the package rdmacm-utils"]
fn needs_rstream_a_file_arrives() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let (left, right) = link(folder.path());
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let bytes: Vec<u8> = (0..3_000_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&from, &bytes).expect("a file");
    // The server does not end: it waits for the next file.
    let serving = left.serve("rcopy");
    right.succeeds(&format!("rcopy {} {}:{}", from.display(), left.ip, to.display()));
    let printed = serving.stop();
    assert!(std::fs::read(&to).expect("a file") == bytes, "{printed}");
}

/// NetPIPE, a program for sockets, checks every byte that it gets back. The kernel has no route to these addresses, so
/// the bytes went over rsockets.
#[test]
#[ignore = "needs the package netpipe-tcp"]
fn needs_nptcp_sockets_become_rsockets() {
    for way in ["--rsockets --", "--libraries drop-in --rsockets --"] {
        let (_, client) = between(&format!("{way} NPtcp -i -u 5000 -o /dev/null"), "-h");
        assert!(client.matches("Integrity check passed").count() > 5, "{client}");
        assert!(!client.contains("failed"), "{client}");
    }
}

#[test]
#[ignore = "needs the package iperf"]
fn needs_iperf_a_stream_of_bytes() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let (left, right) = link(folder.path());
    let server = format!("--rsockets -- iperf -s -P 1 -B {}", left.ip);
    let client = format!("--rsockets -- iperf -c {} -n 4M", left.ip);
    let (server, client) = pair(&left, &right, &server, &client);
    for (who, printed) in [("server", server), ("client", client)] {
        assert!(printed.contains("4.00 MBytes"), "{who}: {printed}");
    }
}
