//! urnic on network interfaces, with the kernel as the peer: the kernel's TCP, ARP and ping, and programs on kernel
//! sockets.
//!
//! Each test makes its own network namespaces. The urnic end is a child process, because a process can start EAL only
//! once. The kernel's end is a thread of the test, inside a namespace.

#[path = "../processes/child.rs"]
#[allow(dead_code)] // the other test binary uses the rest
mod child;
#[path = "../processes/crowd.rs"]
#[allow(dead_code)] // the other test binary uses the rest
mod crowd;
mod cut;
mod ipv6;
mod kernel;
mod mpa;
mod netns;
#[path = "../processes/node.rs"]
#[allow(dead_code)] // the other test binary uses the rest
mod node;
mod queues;
mod rdma;
mod stack;
#[path = "../../../iwarp/tests/support/mod.rs"]
mod support;

use child::Child;
use netns::{Namespace, Veth};

/// The entry point of the child processes. Does nothing if it is run directly.
#[test]
#[ignore = "run by the other tests, as their child processes"]
fn child() {
    if let Some(role) = child::role() {
        match role.as_str() {
            "stack" => stack::run(),
            "rdma" => rdma::run(),
            "crowd-server" => crowd::server(),
            "crowd-client" => crowd::client(),
            "cut" => cut::run(),
            other => panic!("no role {other}"),
        }
    }
}

/// The IPv4 addresses of the kernel and of the engine.
const KERNEL: &str = "10.9.0.2";
const OURS: &str = "10.9.0.1";
/// The IPv6 addresses of the kernel and of the engine.
const KERNEL6: &str = "fd09::2";
const OURS6: &str = "fd09::1";
/// Our link-local address, which belongs to the Ethernet address of [`OURS6`], 02:76:fd:09:00:01.
const LINK_LOCAL: &str = "fe80::76:fdff:fe09:1";

/// Exchanges `bytes` octets between the kernel's TCP and the engine's, on each of two connections, one after the other.
/// On each connection, both directions are busy at once. Each side is the client once.
fn exchange(ns: &Namespace, engine: &mut Child, addresses: (&str, &str), bytes: u64) {
    exchange_with_stops(ns, engine, addresses, bytes, 0);
}

/// Does the same as [`exchange`], with readers that stop for a while after every `stops_every` octets (0:
/// never).
fn exchange_with_stops(
    ns: &Namespace,
    engine: &mut Child,
    (ours, kernels): (&str, &str),
    bytes: u64,
    stops_every: u64,
) {
    let (ours, kernels) = (ours.parse().expect("an address"), kernels.parse().expect("an address"));
    for engine_is_client in [false, true] {
        let kernel = match engine_is_client {
            true => {
                let (ready, kernel) = kernel::serve(ns, kernels, bytes, stops_every);
                ready.recv().expect("a listener");
                engine.order("connect");
                kernel
            }
            false => kernel::connect(ns, ours, bytes, stops_every),
        };
        let result = engine.line();
        let kernel = kernel.join().expect("the kernel's end");
        assert_eq!(result, kernel.seen_from_the_other_end(bytes), "engine is client: {engine_is_client}");
    }
}

fn over_af_packet(mtu: u16, bytes: u64) {
    let _alone = child::alone();
    let veth = Veth::new(mtu);
    veth.a.ip(&["address", "add", &format!("{KERNEL}/24"), "dev", "va"]);
    let args = format!("af_packet:vb {OURS} {KERNEL} {mtu} {bytes} 0 0");
    let mut engine = Child::start_in(&veth.b.file, "stack", &args, "");
    engine.expect("open");
    kernel::ping(&veth.a, 200, usize::from(mtu) - 28);
    exchange(&veth.a, &mut engine, (OURS, KERNEL), bytes);
    engine.finish();
}

/// Lets the kernel find our address by neighbour discovery, ping it, and exchange data, over IPv6 with or
/// without a VLAN.
fn ipv6_over_af_packet(vlan: u16, bytes: u64) {
    let _alone = child::alone();
    let veth = Veth::new(1500);
    let link = if vlan > 0 { "tagged" } else { "va" };
    if vlan > 0 {
        let id = vlan.to_string();
        veth.a.ip(&["link", "add", "link", "va", "name", link, "type", "vlan", "id", &id]);
        veth.a.ip(&["link", "set", link, "up"]);
    }
    veth.a.ip(&["address", "add", &format!("{KERNEL6}/64"), "dev", link, "nodad"]);
    let args = format!("af_packet:vb {OURS6} {KERNEL6} 1500 {bytes} {vlan} 0");
    let mut engine = Child::start_in(&veth.b.file, "stack", &args, "");
    engine.expect("open");
    for target in [OURS6, LINK_LOCAL] {
        kernel::ping6(&veth.a, target.parse().expect("an address"), link, 100, 1452);
    }
    exchange(&veth.a, &mut engine, (OURS6, KERNEL6), bytes);
    engine.finish();
}

fn over_tap(bytes: u64) {
    let _alone = child::alone();
    let ns = Namespace::new("t");
    let mut engine =
        Child::start_in(&ns.file, "stack", &format!("tap:utap0 {OURS} {KERNEL} 1500 {bytes} 0 0"), "");
    engine.expect("open");
    ns.ip(&["address", "add", &format!("{KERNEL}/24"), "dev", "utap0"]);
    kernel::ping(&ns, 200, 1472);
    exchange(&ns, &mut engine, (OURS, KERNEL), bytes);
    engine.finish();
}

#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_kernel_tcp_over_af_packet() {
    over_af_packet(1500, 64 << 20);
    over_af_packet(9000, 64 << 20);
}

/// RFC 9293 §3.8.6.1: readers stop at both ends, so that the kernel's window and ours shut, are probed, and reopen.
/// Nothing is lost.
#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_kernel_tcp_with_readers_that_stop() {
    let _alone = child::alone();
    let veth = Veth::new(1500);
    veth.a.ip(&["address", "add", &format!("{KERNEL}/24"), "dev", "va"]);
    let (bytes, stops_every) = (40 << 20, 14 << 20);
    let args = format!("af_packet:vb {OURS} {KERNEL} 1500 {bytes} 0 {stops_every}");
    let mut engine = Child::start_in(&veth.b.file, "stack", &args, "");
    engine.expect("open");
    exchange_with_stops(&veth.a, &mut engine, (OURS, KERNEL), bytes, stops_every);
    engine.finish();
}

#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_kernel_tcp_over_ipv6() {
    ipv6_over_af_packet(0, 32 << 20);
}

#[test]
#[ignore = "needs root, for network namespaces, and a kernel with VLANs"]
fn needs_8021q_kernel_tcp_over_a_vlan() {
    ipv6_over_af_packet(7, 8 << 20);
}

#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_kernel_tcp_over_tap() {
    over_tap(64 << 20);
}

#[test]
#[ignore = "slow; and it needs root, for network namespaces"]
fn long_kernel_tcp_exchanges_a_gibibyte() {
    over_af_packet(1500, 1 << 30);
    over_tap(1 << 30);
}

/// A program on ordinary sockets speaks MPA, DDP and RDMAP to urnic, as initiator and as responder.
#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_iwarp_on_ordinary_sockets() {
    let _alone = child::alone();
    let veth = Veth::new(1500);
    veth.a.ip(&["address", "add", &format!("{}/24", node::CLIENT), "dev", "va"]);
    let config = |ip| format!("[port]\nport = \"af_packet:vb\"\n[ip]\nip = \"{ip}/24\"");
    for (rev, crc) in [(1, true), (2, true), (2, false)] {
        let config = format!("{}\n[mpa]\ncrc = {crc}", config(node::SERVER));
        let mut urnic = Child::start_in(&veth.b.file, "rdma", "server", &config);
        urnic.expect("listening");
        veth.a.run(move || mpa::initiate(rev, crc)).join().expect("the peer");
        urnic.expect("done");
        urnic.finish();
    }
    veth.a.ip(&["address", "flush", "dev", "va"]);
    veth.a.ip(&["address", "add", &format!("{}/24", node::SERVER), "dev", "va"]);
    let (ready, listening) = std::sync::mpsc::channel();
    let peer = veth.a.run(move || mpa::respond(&ready));
    listening.recv().expect("a listener");
    let mut urnic = Child::start_in(&veth.b.file, "rdma", "client", &config(node::CLIENT));
    urnic.expect("done");
    peer.join().expect("the peer");
    urnic.finish();
}
