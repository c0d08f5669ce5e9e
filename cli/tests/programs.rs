//! Programs for libibverbs and librdmacm, as the distribution ships them, under `urnic run`. The two ends are processes
//! joined by a virtio/vhost link.

mod stock;

use std::path::Path;
use std::process::Command;

use stock::{Node, alone, text, urnic};

/// Returns the two ends of a link in a folder.
fn link(folder: &Path) -> (Node, Node) {
    let node = |ip: &str, kind| {
        let port = format!("{kind}:{}/link.sock", folder.display());
        Node { ip: ip.into(), port, ..Node::default() }
    };
    (node("10.4.0.1", "vhost"), node("10.4.0.2", "virtio_user"))
}

/// Starts a server, and runs the client when the server listens. Both must succeed. Returns the output of both.
fn pair(server: &str, client: &str) -> (String, String) {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let (left, right) = link(folder.path());
    stock::pair(&left, &right, server, client)
}

#[test]
#[ignore = "needs the package ibverbs-utils"]
fn needs_ibv_devinfo_the_device_shows_itself() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let (node, _) = link(folder.path());
    let output = node.run("ibv_devices", false).output();
    assert!(output.status.success() && text(&output).contains("urnic0"), "{}", text(&output));
    let output = node.run("ibv_devinfo -v", false).output();
    let shown = text(&output);
    assert!(output.status.success(), "{shown}");
    for expected in ["urnic0", "iWARP (1)", "PORT_ACTIVE", "Ethernet", "ffff:0a04:0001"] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
}

#[test]
#[ignore = "needs the package rdmacm-utils"]
fn needs_rping_pings_are_verified() {
    let (server, client) = pair("rping -s -v -V -C 20", "rping -c -v -V -C 20 -a 10.4.0.1");
    for (who, text) in [("server", server), ("client", client)] {
        assert_eq!(text.matches("rdma-ping-").count(), 20, "{who}: {text}");
        assert!(!text.contains("mismatch"), "{who}: {text}");
    }
}

/// Revision 1 of MPA transmits no limits of Reads. rping's server accepts with the limits that its event of the
/// connection request shows, and then it must be able to read.
#[test]
#[ignore = "needs the package rdmacm-utils"]
fn needs_rping_over_revision_1() {
    let rev1 = |rping: &str| format!("env URNIC_MPA_REV=1 {rping}");
    let (server, client) = pair(&rev1("rping -s -v -V -C 5"), &rev1("rping -c -v -V -C 5 -a 10.4.0.1"));
    for (end, text) in [("server", server), ("client", client)] {
        assert_eq!(text.matches("rdma-ping-").count(), 5, "{end}: {text}");
    }
}

/// cmtime disconnects and destroys each queue pair at once, and waits for the events of all its connections.
#[test]
#[ignore = "needs the package rdmacm-utils"]
fn needs_rping_cmtime_hears_of_every_end() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let (left, right) = link(folder.path());
    let server = left.serve(&format!("cmtime -b {}", left.ip));
    let printed = right.succeeds(&format!("cmtime -s {} -c 50", left.ip));
    for step in ["connect", "disconnect", "destroy"] {
        assert!(printed.lines().any(|line| line.starts_with(step)), "{printed}");
    }
    // The server never ends by itself.
    server.stop();
}

#[test]
#[ignore = "needs the package rdmacm-utils"]
fn needs_rping_large_pings() {
    pair("rping -s -V -C 5 -S 60000", "rping -c -V -C 5 -S 60000 -a 10.4.0.1");
}

/// The client connects to an address of the network, and to a link-local address with its interface, whose index
/// `rping` asks the system for.
#[test]
#[ignore = "needs the package rdmacm-utils"]
fn needs_rping_ipv6() {
    let _alone = alone();
    for address in ["fd04::1", "fe80::76:fdff:fe04:1%lo"] {
        let folder = tempfile::tempdir().expect("a folder");
        let (left, right) = link(folder.path());
        let (left, right) = (Node { ip: "fd04::1".into(), ..left }, Node { ip: "fd04::2".into(), ..right });
        let client = format!("rping -c -v -V -C 10 -a {address}");
        let (_, client) = stock::pair(&left, &right, "rping -s -v -V -C 10 -a ::", &client);
        assert_eq!(client.matches("rdma-ping-").count(), 10, "{address}: {client}");
    }
}

/// Runs programs with synchronous identifiers, endpoints and requests, and with a shared receive queue.
#[test]
#[ignore = "needs the package rdmacm-utils"]
fn needs_rping_endpoints() {
    for (server, client) in [("rdma_server", "rdma_client"), ("rdma_xserver", "rdma_xclient")] {
        let (server, client) = pair(server, &format!("{client} -s 10.4.0.1"));
        assert!(server.contains("end 0"), "{server}");
        assert!(client.contains("end 0"), "{client}");
    }
}

#[test]
#[ignore = "needs the package fio"]
fn needs_fio_jobs() {
    stock::fio_jobs("10.4.0.1", "--bs=64k --size=4m", pair);
}

#[test]
fn what_is_missing_is_said() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let (node, _) = link(folder.path());
    let output = node.run("no-such-program", false).output();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("no-such-program: there is no such program"), "{}", text(&output));

    let output =
        Command::new(urnic()).args(["run", "--port", "ring:x", "--", "true"]).output().expect("urnic runs");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("the port has no IP address"), "{}", text(&output));

    let mut run = Command::new(urnic());
    run.args(["run", "--ip", "10.4.0.1/24", "--port", "vhost:/no/such/folder/link", "--", "true"]);
    let output = run.output().expect("urnic runs");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(
        text(&output).contains("the folder /no/such/folder for the socket of the link does not exist"),
        "{}",
        text(&output)
    );

    // The copy of the command has no libraries beside it.
    let lonely = folder.path().join("urnic");
    // By another process, because children that other tests start would inherit our file, and keep it busy.
    let copied = Command::new("cp").arg(urnic()).arg(&lonely).status();
    assert!(copied.expect("cp runs").success());
    let mut run = Command::new(&lonely);
    run.args(["run", "--ip", "10.4.0.1/24", "--port", &node.port, "--", "true"]);
    let output = run.output().expect("urnic runs");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("there is no liburnic.so"), "{}", text(&output));
    let output = Command::new(&lonely).args(["info", "--json"]).output().expect("urnic runs");
    let shown = text(&output);
    assert!(shown.contains("\"missing\":\"there is no liburnic.so"), "{shown}");
}

/// A program that does not use RDMA gets the preloaded library only, and no device is opened for it.
#[test]
fn other_programs_run_as_ever() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let (node, _) = link(folder.path());
    let maps = node.run("cat /proc/self/maps", false).output();
    assert!(maps.status.success());
    let maps = text(&maps);
    assert!(maps.contains("liburnic.so"), "{maps}");
    assert!(!maps.contains("liburnic_verbs.so") && !maps.contains("librte"), "{maps}");
    assert!(!folder.path().join("link.sock").exists());
}

/// Settings from options and from the configuration file reach the program.
#[test]
fn settings_become_the_programs_environment() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("urnic.toml");
    std::fs::write(&file, "[port]\nport = \"vhost:/tmp/nobody\"\n[ip]\nip = \"10.4.0.7/24\"\n")
        .expect("a file");
    let mut run = Command::new(urnic());
    run.args(["run", "--mtu", "1400", "--config"]).arg(&file).args(["--", "env"]);
    let shown = text(&run.output().expect("urnic runs"));
    assert!(shown.contains("URNIC_MTU=1400"), "{shown}");
    assert!(shown.contains("URNIC_IP=10.4.0.7/24"), "{shown}");
    assert!(shown.contains(&format!("URNIC_CONFIG={}", file.display())), "{shown}");
}

/// `urnic info` shows the variables that `urnic run` sets.
#[test]
fn info_shows_the_environment_of_a_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let (node, _) = link(folder.path());
    let settings = ["--ip", "10.4.0.1/24", "--port", &node.port];
    let shown = |command: &[&str]| {
        let mut urnic = Command::new(urnic());
        urnic.env("URNIC_MEMORY_HUGEPAGES", "off").env("LD_LIBRARY_PATH", "/there").env_remove("LD_PRELOAD");
        let output = urnic.args(command).output().expect("urnic runs");
        assert!(output.status.success(), "{}", text(&output));
        text(&output)
    };
    let _alone = alone();
    let info = shown(&[&["info"], &settings[..]].concat());
    let environment = shown(&[&["run"], &settings[..], &["--", "env"]].concat());
    let told: Vec<&str> = info.lines().filter(|line| line.starts_with("  ") && line.contains('=')).collect();
    assert!(told.len() >= 4, "{info}");
    for line in told {
        assert!(environment.lines().any(|set| set == line.trim()), "{line}: {environment}");
    }
    let path = environment.lines().find(|line| line.starts_with("LD_LIBRARY_PATH=")).expect("it is set");
    assert!(path.ends_with("/drop-in:/there"), "{path}");
}
