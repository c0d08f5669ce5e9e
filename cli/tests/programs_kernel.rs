//! Stock programs under `urnic run` without settings, over the kernel's sockets: as `nobody`, without capabilities,
//! in a network namespace of their own.

#[path = "../../verbs/tests/network/netns.rs"]
mod netns;
mod stock;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use netns::{Namespace, Veth};
use stock::{Node, alone, perftest, urnic};

const LOOPBACK: &str = "127.0.0.1";
/// Address of an interface other than the loopback, because libfabric's verbs provider accepts no address of
/// `lo` (`vrb_getifaddrs`).
const OTHER: &str = "10.9.0.1";

/// A host, with copies of the command and its libraries that every user may run.
struct Host {
    node: Node,
    namespace: Namespace,
    _folder: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        Self::of(Namespace::new("host"), LOOPBACK)
    }

    /// Makes a host in a namespace that has an interface with the address `ip`.
    fn of(namespace: Namespace, ip: &str) -> Self {
        namespace.ip(&["link", "set", "lo", "up"]);
        let folder = tempfile::tempdir().expect("a folder");
        let built = urnic().parent().expect("a folder");
        let everybody = |path: &Path| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("anybody may read it");
        };
        std::fs::create_dir(folder.path().join("drop-in")).expect("a folder");
        for file in
            ["urnic", "liburnic.so", "liburnic_verbs.so", "drop-in/libibverbs.so.1", "drop-in/librdmacm.so.1"]
        {
            let to = folder.path().join(file);
            // Hard links take no space. Copies are the fallback, because the folder for temporary files may be on
            // another disk.
            let from = built.join(file);
            std::fs::hard_link(&from, &to)
                .or_else(|_| std::fs::copy(&from, &to).map(drop))
                .unwrap_or_else(|e| panic!("{file}: {e}"));
            everybody(&to);
        }
        everybody(folder.path());
        everybody(&folder.path().join("drop-in"));
        let node = Node {
            ip: ip.into(),
            port: "kernel".into(),
            namespace: Some(namespace.name().into()),
            nobodys: Some(folder.path().into()),
            ..Node::default()
        };
        Self { node, namespace, _folder: folder }
    }

    fn pair(&self, server: &str, client: &str) -> (String, String) {
        stock::pair(&self.node, &self.node, server, client)
    }
}

/// Checks that the program printed `rounds` pings and no mismatch.
#[track_caller]
fn pinged(printed: &str, rounds: usize) {
    assert_eq!(printed.matches("rdma-ping-").count(), rounds, "{printed}");
    assert!(!printed.contains("mismatch"), "{printed}");
}

#[test]
#[ignore = "needs root, for network namespaces, and the package rdmacm-utils"]
fn needs_root_rping_as_nobody() {
    let _alone = alone();
    let host = Host::new();
    for address in [LOOPBACK, "::1"] {
        let (server, client) =
            host.pair("rping -s -v -V -C 20 -a ::", &format!("rping -c -v -V -C 20 -a {address}"));
        pinged(&server, 20);
        pinged(&client, 20);
    }
    host.pair("rping -s -V -C 5 -S 60000", &format!("rping -c -V -C 5 -S 60000 -a {LOOPBACK}"));
}

/// Checks that programs on this host have no capabilities.
#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_nobody_has_no_rights() {
    let _alone = alone();
    let host = Host::new();
    let status = host.node.succeeds("cat /proc/self/status");
    for expected in ["Uid:\t65534", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"] {
        assert!(status.contains(expected), "{expected}: {status}");
    }
}

/// Makes a thousand connections, each with an event for every step.
#[test]
#[ignore = "needs root, for network namespaces, and the package rdmacm-utils"]
fn needs_root_cmtime_as_nobody() {
    let _alone = alone();
    let host = Host::new();
    let server = host.node.serve(&format!("cmtime -b {LOOPBACK} -c 1000"));
    let printed = host.node.succeeds(&format!("cmtime -s {LOOPBACK} -c 1000"));
    for step in ["connect", "disconnect", "destroy"] {
        assert!(printed.lines().any(|line| line.starts_with(step)), "{printed}");
    }
    // The server never ends by itself.
    server.stop();
}

#[test]
#[ignore = "needs root, for network namespaces, and the package rdmacm-utils"]
fn needs_root_endpoints_as_nobody() {
    let _alone = alone();
    let host = Host::new();
    for (server, client) in [("rdma_server", "rdma_client"), ("rdma_xserver", "rdma_xclient")] {
        let (server, client) = host.pair(server, &format!("{client} -s {LOOPBACK}"));
        assert!(server.contains("end 0"), "{server}");
        assert!(client.contains("end 0"), "{client}");
    }
}

#[test]
#[ignore = "needs root, for network namespaces, and the package rdmacm-utils"]
fn needs_root_rsockets_as_nobody() {
    let _alone = alone();
    let host = Host::new();
    for program in ["rstream -T v -C 50 -S 10000", "riostream -T v -C 50 -S 65536"] {
        let (server, client) = host.pair(program, &format!("{program} -s {LOOPBACK}"));
        assert!(server.contains("custom") && client.contains("custom"), "{program}: {server} {client}");
    }
}

#[test]
#[ignore = "needs root, for network namespaces, and the package fio"]
fn needs_root_fio_as_nobody() {
    let _alone = alone();
    let host = Host::new();
    stock::fio_jobs(LOOPBACK, "--bs=64k --size=4m", |server, client| host.pair(server, client));
}

/// `-n 495 -Q 99`: see `perftest.rs`, `needs_ib_write_lat_sleepers`.
#[test]
#[ignore = "needs root, for network namespaces, and the package perftest"]
fn needs_root_perftest_as_nobody() {
    let _alone = alone();
    let host = Host::new();
    for arguments in [
        "ib_write_lat -R -n 50 -C",
        "ib_read_lat -R -n 100 -C -e",
        "ib_send_lat -R -n 100 -C -e",
        "ib_atomic_lat -R -n 100 -C",
        "ib_write_bw -R -n 100 -s 4096 -q 16",
        "ib_send_bw -R -n 495 -Q 99 -s 4096 -b -e",
        "ib_atomic_bw -R -n 100",
        "ib_write_bw -R -n 5 -a",
        "ib_read_bw -R -n 5 -a",
        "ib_send_bw -R -n 5 -a",
    ] {
        perftest(&host.node, &host.node, arguments);
    }
}

/// qperf negotiates over the kernel's TCP, on the same address, and uses RDMA on ports that the kernel picks.
///
/// Its server announces the port before it listens there (qperf 0.4.11, `cm_open_server`), so a client that is faster
/// is refused. A client may fail only for this reason.
#[test]
#[ignore = "needs root, for network namespaces, and the package qperf"]
fn needs_root_qperf_as_nobody() {
    const CHANCES: usize = 10;
    let _alone = alone();
    let host = Host::new();
    for test in ["rc_lat", "rc_bw", "rc_rdma_read_bw"] {
        let attempt = || {
            let server = host.node.serve_tcp("qperf", 19765);
            let output = host.node.run(&format!("qperf -cm 1 {LOOPBACK} -t 1 {test}"), false).output();
            // The server never ends by itself.
            let served = server.stop();
            let printed = stock::text(&output);
            let refused = printed.contains("Event rejected");
            assert!(output.status.success() || refused, "{test}: {printed}\nthe server: {served}");
            output.status.success().then_some(printed)
        };
        let printed = std::iter::repeat_with(attempt).take(CHANCES).flatten().next();
        let printed = printed.unwrap_or_else(|| panic!("{test}: refused {CHANCES} times"));
        assert!(printed.contains("latency  =") || printed.contains("bw  ="), "{printed}");
    }
}

/// fi_pingpong negotiates over the kernel's TCP as well.
#[test]
#[ignore = "needs root, for network namespaces, and the package libfabric-bin"]
fn needs_root_fi_pingpong_as_nobody() {
    let _alone = alone();
    let host = Host::new();
    host.namespace.ip(&["link", "add", "other", "type", "veth", "peer", "name", "rest"]);
    host.namespace.ip(&["addr", "add", &format!("{OTHER}/24"), "dev", "other"]);
    host.namespace.ip(&["link", "set", "other", "up"]);
    host.namespace.ip(&["link", "set", "rest", "up"]);
    let server = host.node.serve_tcp("fi_pingpong -p verbs -e msg -c", 47592);
    let printed = host.node.succeeds(&format!("fi_pingpong -p verbs -e msg -c {OTHER}"));
    assert!(printed.lines().any(|line| line.starts_with("1m ")), "{printed}");
    let (status, served) = server.output();
    assert!(status.success(), "{served}");
}

/// Each pair has its own TCP ports on one address. The test reads the programs' output one after the other, so the
/// output of each program must fit into its pipe.
#[test]
#[ignore = "needs root, for network namespaces, and the package rdmacm-utils"]
fn needs_root_sixteen_pairs_as_nobody() {
    const PAIRS: u16 = 16;
    let _alone = alone();
    let host = Host::new();
    let ports = || 7200..7200 + PAIRS;
    let servers: Vec<_> =
        ports().map(|port| host.node.serve(&format!("rping -s -v -V -C 50 -S 500 -p {port}"))).collect();
    let clients: Vec<_> = ports()
        .map(|port| host.node.run(&format!("rping -c -v -V -C 50 -S 500 -a {LOOPBACK} -p {port}"), false))
        .collect();
    for client in clients {
        let output = client.output();
        assert!(output.status.success(), "{}", stock::text(&output));
        pinged(&stock::text(&output), 50);
    }
    for server in servers {
        let (status, printed) = server.output();
        assert!(status.success(), "{printed}");
        pinged(&printed, 50);
    }
}

/// Runs programs against a node on a port. Each node is the server once.
#[test]
#[ignore = "needs root, for network namespaces, and the packages rdmacm-utils and perftest"]
fn needs_root_nobody_and_af_packet() {
    const PORT: &str = "10.9.0.2";
    let _alone = alone();
    let Veth { a, b } = Veth::new(1500);
    a.ip(&["addr", "add", &format!("{OTHER}/24"), "dev", "va"]);
    let host = Host::of(a, OTHER);
    let port = Node {
        ip: PORT.into(),
        port: "af_packet:vb".into(),
        namespace: Some(b.name().into()),
        ..Node::default()
    };
    for (server, client) in [(&host.node, &port), (&port, &host.node)] {
        let ping = format!("rping -c -v -V -C 20 -S 3000 -a {}", server.ip);
        let (served, printed) = stock::pair(server, client, "rping -s -v -V -C 20 -S 3000", &ping);
        pinged(&served, 20);
        pinged(&printed, 20);
        for arguments in
            ["ib_write_bw -R -n 5 -a", "ib_read_lat -R -n 100 -C -e", "ib_send_bw -R -n 100 -q 4"]
        {
            perftest(server, client, arguments);
        }
    }
}
