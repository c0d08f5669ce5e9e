//! Devices with several engines on a network interface. Each engine has its own queue of the interface.

use super::child::{Child, PATIENCE, alone};
use super::crowd::Report;
use super::netns::{Namespace, Veth};
use super::{mpa, node};

/// Runs all-to-all traffic between two urnics at the ends of a cable. `port` names the port on an interface.
fn meet(veth: &Veth, port: impl Fn(&str) -> String, there: usize, here: usize) {
    let config = |interface, ip, engines| {
        format!(
            "[port]\nport = \"{}\"\n[ip]\nip = \"{ip}/24\"\n[engine]\nengines = {engines}\n",
            port(interface)
        )
    };
    let mut server = Child::start_in(&veth.a.file, "crowd-server", "", &config("va", node::SERVER, there));
    server.expect("listening");
    let mut client = Child::start_in(&veth.b.file, "crowd-client", "", &config("vb", node::CLIENT, here));
    let client_says = Report::of(&client.line_within(2 * PATIENCE));
    server.order("enough");
    let server_says = Report::of(&server.line_within(2 * PATIENCE));
    client.finish();
    server.finish();
    println!("{}: {server_says:?} {client_says:?}", port("*"));
    assert_eq!((server_says.engines, client_says.engines), (there as u64, here as u64));
}

#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_engines_on_af_packet() {
    let _alone = alone();
    for (there, here) in [(2, 2), (2, 1), (1, 3)] {
        let veth = Veth::new(1500);
        meet(&veth, |interface| format!("af_packet:{interface}"), there, here);
    }
}

/// Runs devices of two engines, one after the other, each with one connection from the kernel. Either engine
/// may own the connection. Calls `begin` when a device is open.
fn meet_sockets(urnic: &Namespace, peer: &Namespace, port: &str, begin: impl Fn()) {
    for _ in 0..4 {
        let config =
            format!("[port]\nport = \"{port}\"\n[ip]\nip = \"{}/24\"\n[engine]\nengines = 2\n", node::SERVER);
        let mut urnic = Child::start_in(&urnic.file, "rdma", "server", &config);
        urnic.expect("listening");
        begin();
        peer.run(|| mpa::initiate(2, true)).join().expect("the peer");
        urnic.expect("done");
        urnic.finish();
    }
}

#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_the_kernel_meets_two_engines() {
    let _alone = alone();
    let veth = Veth::new(1500);
    veth.a.ip(&["address", "add", &format!("{}/24", node::CLIENT), "dev", "va"]);
    meet_sockets(&veth.b, &veth.a, "af_packet:vb", || {});
    let ns = Namespace::new("t");
    meet_sockets(&ns, &ns, "tap:utap0", || {
        ns.ip(&["address", "add", &format!("{}/24", node::CLIENT), "dev", "utap0"]);
    });
}
