//! urnic on network interfaces, with the kernel as the peer: its TCP, its ARP and ping, and programs on its sockets.
//!
//! Each test makes network namespaces of its own. As EAL can be started once per process, the urnic end is a child
//! process; the kernel's end is a thread of the test, inside the namespace.

#[path = "../processes/child.rs"]
#[allow(dead_code)] // the other test binary uses the rest
mod child;
mod kernel;
mod mpa;
mod netns;
#[path = "../processes/node.rs"]
#[allow(dead_code)] // the other test binary uses the rest
mod node;
mod rdma;
mod stack;
#[path = "../../../iwarp/tests/support/mod.rs"]
mod support;

use child::Child;
use netns::{Namespace, Veth};

/// The entry of the child processes; nothing by itself.
#[test]
#[ignore = "run by the other tests, as their child processes"]
fn child() {
    if let Some(role) = child::role() {
        match role.as_str() {
            "stack" => stack::run(),
            "rdma" => rdma::run(),
            other => panic!("no role {other}"),
        }
    }
}

/// The kernel's address, and ours.
const KERNEL: &str = "10.9.0.2";
const OURS: &str = "10.9.0.1";

/// Kernel TCP and the engine's exchange `bytes` in both directions at once, each side being the client once.
fn exchange(ns: &Namespace, engine: &mut Child, bytes: u64) {
    for engine_is_client in [false, true] {
        let kernel = match engine_is_client {
            true => {
                let (ready, kernel) = kernel::serve(ns, bytes);
                ready.recv().expect("a listener");
                engine.order("connect");
                kernel
            }
            false => kernel::connect(ns, bytes),
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
    let args = format!("af_packet:vb {OURS} {KERNEL} {mtu} {bytes}");
    let mut engine = Child::start_in(&veth.b.file, "stack", &args, "");
    engine.expect("open");
    kernel::ping(&veth.a, 200, usize::from(mtu) - 28);
    exchange(&veth.a, &mut engine, bytes);
    engine.finish();
}

fn over_tap(bytes: u64) {
    let _alone = child::alone();
    let ns = Namespace::new("t");
    let mut engine =
        Child::start_in(&ns.file, "stack", &format!("tap:utap0 {OURS} {KERNEL} 1500 {bytes}"), "");
    engine.expect("open");
    ns.ip(&["address", "add", &format!("{KERNEL}/24"), "dev", "utap0"]);
    kernel::ping(&ns, 200, 1472);
    exchange(&ns, &mut engine, bytes);
    engine.finish();
}

#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_kernel_tcp_over_af_packet() {
    over_af_packet(1500, 64 << 20);
    over_af_packet(9000, 64 << 20);
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
