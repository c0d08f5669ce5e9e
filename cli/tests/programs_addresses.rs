//! Stock programs that bind addresses of all kinds, on a port: the unspecified address of each family, and loopback
//! addresses. They run in a network namespace, because some of them also use the kernel's TCP.

#[path = "../../verbs/tests/network/netns.rs"]
#[allow(dead_code)] // no cables here
mod netns;
mod stock;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use netns::Namespace;
use stock::{Node, PATIENCE, alone, text};

/// Returns the two ends of a link whose socket is in `folder`. The namespace's kernel has the addresses of both ends
/// too.
fn link(namespace: &Namespace, folder: &Path) -> (Node, Node) {
    namespace.ip(&["link", "set", "lo", "up"]);
    let node = |ip: &str, kind| {
        namespace.ip(&["addr", "add", &format!("{ip}/32"), "dev", "lo"]);
        let port = format!("{kind}:{}/link.sock", folder.display());
        Node { ip: ip.into(), port, namespace: Some(namespace.name().into()), ..Node::default() }
    };
    (node("10.4.0.1", "vhost"), node("10.4.0.2", "virtio_user"))
}

/// libfabric looks for devices by the loopback address, unless its user gives another address.
#[test]
#[ignore = "needs root, for a network namespace, and the package libfabric-bin"]
fn needs_fi_pingpong_libfabric_finds_the_device() {
    let _alone = alone();
    for options in ["-p verbs -e msg", "-p verbs;ofi_rxm -e rdm"] {
        let folder = tempfile::tempdir().expect("a folder");
        let namespace = Namespace::new("fabric");
        let (left, right) = link(&namespace, folder.path());
        // The port of fi_pingpong's control connection.
        let server = left.serve_tcp(&format!("fi_pingpong {options} -c"), 47592);
        let printed = right.succeeds(&format!("fi_pingpong {options} -c {}", left.ip));
        assert!(printed.lines().any(|line| line.starts_with("1m ")), "{options}: {printed}");
        let (status, served) = server.output();
        assert!(status.success(), "{options}: {served}");
    }
}

/// tgtd listens on 0.0.0.0, and on [::] with `AFONLY`.
#[test]
#[ignore = "needs root, for a network namespace, and the packages tgt and libiscsi-bin"]
fn needs_tgtd_iser_targets_are_reached() {
    const TARGET: &str = "iqn.2026-01.test:disk";
    const INITIATOR: &str = "iqn.2026-01.test:me";
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("disk");
    std::fs::File::create(&disk).and_then(|file| file.set_len(8 << 20)).expect("a file");
    std::fs::create_dir_all("/var/run/tgtd").expect("where its sockets are");
    let namespace = Namespace::new("target");
    let (left, right) = link(&namespace, folder.path());
    // The number of tgtd's control socket, which no other tgtd may use.
    let control = (1000 + std::process::id() % 30_000).to_string();
    let server = left.serve(&format!("tgtd -f -C {control} --iser pool_sz_mb=64"));
    let tgtadm = |arguments: &str| {
        let mut command = namespace.program("tgtadm");
        let output = command.args(["-C", &control]).args(arguments.split_whitespace()).output();
        let output = output.expect("tgtadm runs");
        let said = text(&output);
        if output.status.success() { Ok(said) } else { Err(said) }
    };
    let start = Instant::now();
    let system = loop {
        match tgtadm("--op show --mode sys") {
            Ok(system) => break system,
            Err(said) => assert!(start.elapsed() < PATIENCE, "{said}"),
        }
        thread::sleep(Duration::from_millis(20));
    };
    assert!(system.contains("iser: ready"), "{system}");
    for command in [
        format!("--op new --mode target --tid 1 -T {TARGET}"),
        format!("--op new --mode logicalunit --tid 1 --lun 1 -b {}", disk.display()),
        "--op bind --mode target --tid 1 -I ALL".to_owned(),
        format!("--op bind --mode target --tid 1 -Q {INITIATOR}"),
    ] {
        tgtadm(&format!("--lld iser {command}")).unwrap_or_else(|said| panic!("{command}: {said}"));
    }
    for round in 0..2 {
        let shown = right.succeeds(&format!("iscsi-inq -i {INITIATOR} iser://{}/{TARGET}/1", left.ip));
        assert!(shown.contains("Product:VIRTUAL-DISK"), "{round}: {shown}");
    }
    // tgtd forgets a connection at `TIMEWAIT_EXIT`, and crashes if its target is deleted earlier.
    let start = Instant::now();
    loop {
        let shown = tgtadm("--lld iser --op show --mode target").expect("it is there");
        if !shown.contains("I_T nexus: ") {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{shown}");
        thread::sleep(Duration::from_millis(50));
    }
    tgtadm("--lld iser --op delete --mode target --tid 1").expect("nobody is there");
    tgtadm("--op delete --mode system").expect("it ends");
    let (status, said) = server.output();
    assert!(status.success(), "{status}: {said}");
}
