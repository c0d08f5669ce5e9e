//! Stock programs under `urnic run` on network interfaces (af_packet): between two network namespaces, and through a
//! Linux bridge.

#[path = "../../verbs/tests/network/netns.rs"]
mod netns;
mod stock;

use std::process::Command;

use netns::{Namespace, Veth};
use stock::{Node, alone, pair, perftest};

const SERVER: &str = "10.4.1.1";
const CLIENT: &str = "10.4.1.2";

/// Returns the settings of a program at one end of a cable.
fn node(namespace: &Namespace, ip: &str, interface: &str) -> Node {
    let port = format!("af_packet:{interface}");
    Node { ip: ip.into(), port, namespace: Some(namespace.name().into()), ..Node::default() }
}

/// Both ends of a cable, with the cable itself.
struct Cable {
    left: Node,
    right: Node,
    _veth: Veth,
}

impl Cable {
    fn new() -> Self {
        let veth = Veth::new(1500);
        Self { left: node(&veth.a, SERVER, "va"), right: node(&veth.b, CLIENT, "vb"), _veth: veth }
    }

    fn pair(&self, server: &str, client: &str) -> (String, String) {
        pair(&self.left, &self.right, server, client)
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
fn needs_root_rping_over_af_packet() {
    let _alone = alone();
    let cable = Cable::new();
    let (server, client) = cable.pair("rping -s -v -V -C 20", &format!("rping -c -v -V -C 20 -a {SERVER}"));
    pinged(&server, 20);
    pinged(&client, 20);
    cable.pair("rping -s -V -C 5 -S 60000", &format!("rping -c -V -C 5 -S 60000 -a {SERVER}"));
}

#[test]
#[ignore = "needs root, for network namespaces, and the package ibverbs-utils"]
fn needs_root_the_device_shows_itself_on_af_packet() {
    let _alone = alone();
    let cable = Cable::new();
    assert!(cable.left.succeeds("ibv_devices").contains("urnic0"));
    let shown = cable.left.succeeds("ibv_devinfo -v");
    assert!(shown.contains("PORT_ACTIVE") && shown.contains("ffff:0a04:0101"), "{shown}");
}

/// Runs a server that stays, and clients that connect to it one after the other.
#[test]
#[ignore = "needs root, for network namespaces, and the package rdmacm-utils"]
fn needs_root_rping_clients_in_turn_over_af_packet() {
    let _alone = alone();
    let cable = Cable::new();
    let server = cable.left.serve("rping -s -P -v -V");
    for _ in 0..50 {
        pinged(&cable.right.succeeds(&format!("rping -c -v -V -C 3 -a {SERVER}")), 3);
    }
    // The server may lose output that it has buffered when it is ended, so only the clients' output is counted.
    let printed = server.stop();
    assert!(printed.contains("rdma-ping-") && !printed.contains("mismatch"), "{printed}");
}

/// cmtime disconnects and destroys each queue pair at once, and waits for the events of all its connections.
#[test]
#[ignore = "needs root, for network namespaces, and the package rdmacm-utils"]
fn needs_root_cmtime_over_af_packet() {
    let _alone = alone();
    let cable = Cable::new();
    let server = cable.left.serve(&format!("cmtime -b {SERVER}"));
    let printed = cable.right.succeeds(&format!("cmtime -s {SERVER} -c 50"));
    for step in ["connect", "disconnect", "destroy"] {
        assert!(printed.lines().any(|line| line.starts_with(step)), "{printed}");
    }
    // The server serves until a signal ends it.
    server.stop();
}

#[test]
#[ignore = "needs root, for network namespaces, and the package rdmacm-utils"]
fn needs_root_endpoints_over_af_packet() {
    let _alone = alone();
    let cable = Cable::new();
    for (server, client) in [("rdma_server", "rdma_client"), ("rdma_xserver", "rdma_xclient")] {
        let (server, client) = cable.pair(server, &format!("{client} -s {SERVER}"));
        assert!(server.contains("end 0"), "{server}");
        assert!(client.contains("end 0"), "{client}");
    }
}

#[test]
#[ignore = "needs root, for network namespaces, and the package perftest"]
fn needs_root_perftest_over_af_packet() {
    let _alone = alone();
    let cable = Cable::new();
    for arguments in [
        "ib_write_lat -R -n 50",
        "ib_read_lat -R -n 100",
        "ib_send_lat -R -n 100 -C -e",
        "ib_atomic_lat -R -n 100 -C",
        "ib_write_bw -R -n 100 -s 4096 -q 16",
        "ib_read_bw -R -n 100 -s 4096 -b",
        "ib_send_bw -R -n 100 -s 4096 --use-srq",
        "ib_atomic_bw -R -n 100",
        "ib_send_bw -R -n 5 -a",
    ] {
        perftest(&cable.left, &cable.right, arguments);
    }
}

/// Runs messages of 2 bytes to 8 MiB.
#[test]
#[ignore = "takes a minute, and needs root, for network namespaces, and the package perftest"]
fn long_perftest_all_sizes_over_af_packet() {
    let _alone = alone();
    let cable = Cable::new();
    for arguments in [
        "ib_write_lat -R -n 5 -a",
        "ib_read_lat -R -n 5 -a",
        "ib_send_lat -R -n 5 -a",
        "ib_write_bw -R -n 5 -a",
        "ib_read_bw -R -n 5 -a",
    ] {
        perftest(&cable.left, &cable.right, arguments);
    }
}

#[test]
#[ignore = "needs root, for network namespaces, and the package fio"]
fn needs_root_fio_over_af_packet() {
    let _alone = alone();
    let cable = Cable::new();
    stock::fio_jobs(SERVER, "--bs=16k --size=1m", |server, client| cable.pair(server, client));
}

#[test]
#[ignore = "needs root, for network namespaces, and the package rdmacm-utils"]
fn needs_root_rsockets_over_af_packet() {
    let _alone = alone();
    let cable = Cable::new();
    for program in ["rstream -T v -C 50 -S 10000", "riostream -T v -C 50 -S 65536"] {
        let (server, client) = cable.pair(program, &format!("{program} -s {SERVER}"));
        assert!(server.contains("custom") && client.contains("custom"), "{program}: {server} {client}");
    }
}

/// librspreload.so turns the sockets of a program into rsockets. DPDK's driver asks the kernel about the interface by
/// sockets of its own. urnic keeps these from becoming rsockets.
#[test]
#[ignore = "needs root, for network namespaces, and the packages iperf and librdmacm1"]
fn needs_root_sockets_become_rsockets_over_af_packet() {
    let _alone = alone();
    let cable = Cable::new();
    for way in ["--rsockets --", "--libraries drop-in --rsockets --"] {
        let (server, client) = cable
            .pair(&format!("{way} iperf -s -P 1 -B {SERVER}"), &format!("{way} iperf -c {SERVER} -n 4M"));
        assert!(server.contains("4.00 MBytes") && client.contains("4.00 MBytes"), "{way}: {server} {client}");
    }
}

/// fio's job ends by `_exit`, without exit handlers, right after its last completion. Because of the injected delay,
/// the job's last message is not yet on the cable at this moment. The receiving side waits for that message.
#[test]
#[ignore = "needs root, for network namespaces, and the package fio"]
fn needs_root_fio_leaves_at_once_over_af_packet() {
    let _alone = alone();
    let cable = Cable::new();
    let common = "--ioengine=rdma --port=7777 --bs=16k --size=64k";
    for way in ["preload", "drop-in"] {
        let (server, client) = cable.pair(
            &format!("fio --name=r {common} --rw=read --iodepth=16"),
            &format!(
                "--libraries {way} --fault delay=150ms -- fio --name=s {common} --hostname={SERVER} --verb=write --rw=write"
            ),
        );
        assert!(server.contains("err= 0") && client.contains("err= 0"), "{way}: {server} {client}");
    }
}

/// Runs one server and eight clients, each of which is a process with its own network interface and engine.
#[test]
#[ignore = "needs root, for network namespaces, and the package rdmacm-utils"]
fn needs_root_rping_through_a_bridge() {
    const CLIENTS: usize = 8;
    let _alone = alone();
    let bridge = Namespace::new("bridge");
    bridge.ip(&["link", "add", "br0", "type", "bridge"]);
    bridge.ip(&["link", "set", "br0", "up"]);
    let namespaces: Vec<_> = (0..=CLIENTS)
        .map(|i| {
            let (end, plug) = (Namespace::new("end"), format!("p{i}"));
            bridge.ip(&["link", "add", &plug, "type", "veth", "peer", "name", "v", "netns", end.name()]);
            bridge.ip(&["link", "set", &plug, "master", "br0", "up"]);
            end.ip(&["link", "set", "v", "up"]);
            for (namespace, link) in [(&bridge, plug.as_str()), (&end, "v")] {
                let mut tool: Command = namespace.program("ethtool");
                assert!(
                    tool.args(["-K", link, "tx", "off"]).output().expect("ethtool runs").status.success()
                );
            }
            end
        })
        .collect();
    let nodes: Vec<_> =
        namespaces.iter().enumerate().map(|(i, end)| node(end, &format!("10.4.2.{}", i + 1), "v")).collect();
    let (server, clients) = nodes.split_first().expect("nine nodes");
    let serving = server.serve("rping -s -P -S 1000");
    // The clients start one after the other, because rping serves one of two requests twice if both arrive at the same
    // instant.
    let running: Vec<_> = clients
        .iter()
        .map(|client| client.talk(&format!("rping -c -v -V -S 1000 -a {}", server.ip)))
        .collect();
    // All clients are running now, and each makes progress.
    let all = running.iter().all(|client| client.goes_on(100));
    let said: Vec<_> = running.into_iter().map(stock::Talking::stop).collect();
    let served = serving.stop();
    assert!(all && said.iter().all(String::is_empty), "{said:?}\nthe server: {served}");
}
