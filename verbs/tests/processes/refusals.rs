//! Refusals by a machine, a configuration or a peer, and the time to open a device.

use std::fs;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use urnic::*;

use super::child::{Child, alone, arg, config, log_warnings, orders, say};
use super::node::{Node, SERVER, Wait, receive};
use super::{Link, modes};

/// An ordinary user.
const NOBODY: u32 = 65534;

/// Opens a device. Reports the outcome, and the warnings that were logged meanwhile.
pub fn opener() {
    log_warnings();
    let start = Instant::now();
    let device = Device::open(&config());
    match &device {
        Ok(_) => say(&format!("open {}", start.elapsed().as_micros())),
        Err(error) => say(&format!("refused {error}")),
    }
    let _ = orders().recv();
}

/// Opens a device on which no program listens; only its engine runs.
pub fn listener() {
    let _node = Node::open(Wait::Channel);
    say("open");
    let _ = orders().recv();
}

/// Tries to connect, and reports the outcome.
pub fn lonely() {
    let node = Node::open(Wait::Channel);
    let memory = node.pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let qp = node.qp();
    receive(&qp, 7, Sge::of(&memory, 0, 64));
    let to: SocketAddrV4 = arg(0);
    let param = ConnParam { timeout: Duration::from_secs(arg(1)), ..ConnParam::default() };
    let start = Instant::now();
    if let Err(error) = node.events.connect(&qp, to, &param) {
        say(&format!("error {error}"));
        return;
    }
    match node.event("the outcome") {
        CmEvent::ConnectError { qpn, reason } => {
            assert_eq!(qpn, qp.qpn());
            say(&format!("{reason:?} {}", start.elapsed().as_millis()));
        }
        other => panic!("{other:?}"),
    }
    // The queue pair can be connected again, with the receive that it has.
    assert_eq!(qp.state(), QpState::Idle);
    assert_eq!(node.cq.poll(&mut [Wc::default()]), 0);
}

/// Opens a device with `settings` on a new port. Returns the reason for the refusal.
fn refusal(settings: &str) -> String {
    let link = Link::new(Link::VIRTIO);
    let mut child = link.server("opener", "", settings);
    let said = child.expect_start("refused");
    child.finish();
    said
}

fn hugepages_mb() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
    let field = |name: &str| -> u64 {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    field("HugePages_Total:") * field("Hugepagesize:") / 1024
}

#[test]
fn hugepages_that_are_required_but_not_there() {
    let _alone = alone();
    let wanted = hugepages_mb() + 512;
    let said = refusal(&format!("[memory]\nhugepages = \"required\"\nmb = {wanted}\n"));
    assert!(said.contains(&format!("hugepages are required: {wanted} MiB wanted")), "{said}");
    assert!(said.contains("/proc/sys/vm/nr_hugepages"), "it says what to do: {said}");
}

/// If there are too few hugepages, the device takes the same amount of memory in ordinary pages.
#[test]
#[ignore = "needs less than 16 GiB of hugepages, because it takes as much ordinary memory"]
fn needs_few_hugepages_too_few_are_worth_one_warning() {
    let _alone = alone();
    let reserved = hugepages_mb();
    let link = Link::new(Link::VIRTIO);
    let mut child = link.server("opener", "", &format!("[memory]\nmb = {}\n", reserved + 512));
    child.expect_start("open");
    child.finish();
    let complaints = child.complaints();
    assert!(complaints.len() == 1 && complaints[0].contains("running on ordinary pages"), "{complaints:?}");
}

#[test]
fn works_without_hugepages() {
    let _alone = alone();
    for kinds in [Link::VIRTIO, Link::VHOST, Link::MEMIF] {
        modes::talk_with(kinds, None, "[memory]\nhugepages = \"off\"\n");
    }
}

#[test]
#[ignore = "needs root, to become somebody else"]
fn needs_root_works_as_an_ordinary_user() {
    let _alone = alone();
    for hugepages in ["auto", "off"] {
        let settings = format!("[memory]\nhugepages = \"{hugepages}\"\n");
        modes::talk_with(Link::VIRTIO, Some(NOBODY), &settings);
    }
}

#[test]
fn a_socket_in_use() {
    let _alone = alone();
    for kinds in [Link::VIRTIO, Link::MEMIF] {
        let link = Link::new(kinds);
        let mut first = link.server("opener", "", "");
        first.expect_start("open");
        let mut second = link.server("opener", "", "");
        let said = second.expect_start("refused");
        assert!(said.contains("is in use already"), "{said}");
        assert!(said.contains(&link.dir.path().display().to_string()), "it names the path: {said}");
        second.finish();
        first.finish();
    }
}

#[test]
fn bad_settings() {
    let _alone = alone();
    let said = refusal("fault = \"loss=often\"\n");
    assert!(said.contains("port.fault \"loss=often\": `loss=often`"), "{said}");
    let mut child = Child::start("opener", "", "[ip]\nip = \"10.9.0.1/24\"\n");
    let said = child.expect_start("refused");
    assert!(
        said.contains("an IP address of the device's own (ip.ip, ip.autoconf) needs a DPDK port"),
        "{said}"
    );
    child.finish();
    let link = Link::new(Link::VIRTIO);
    let spec = link.server_spec();
    let mut child = Child::start("opener", "", &format!("[port]\nport = \"{spec}\"\n"));
    let said = child.expect_start("refused");
    assert!(said.contains("the port has no IP address: set ip.ip, or use --ip ADDR/LEN"), "{said}");
    child.finish();
    let spec = format!("{}/nowhere/link", link.dir.path().display());
    let mut child = Child::start("opener", "", &super::config(&format!("virtio_user:{spec}"), SERVER, ""));
    let said = child.expect_start("refused");
    assert!(said.contains("nowhere does not exist"), "{said}");
    child.finish();
}

/// Returns how a connection to `to` fails with a time limit of `seconds`, and after how many milliseconds.
fn failure(link: &Link, to: &str, seconds: u64, progress: &str) -> String {
    let settings = format!("[engine]\nprogress = \"{progress}\"\n");
    let mut child = link.client("lonely", &format!("{to} {seconds}"), &settings);
    let said = child.line();
    child.finish();
    println!("{to} {progress}: {said} ms");
    said
}

#[test]
fn no_peer_on_the_link() {
    let _alone = alone();
    for (kinds, progress) in [(Link::VIRTIO, "adaptive"), (Link::VHOST, "adaptive"), (Link::MEMIF, "inline")]
    {
        // The process opens the server's kind of port, and no process opens the other end.
        let link = Link { client: kinds[0], ..Link::new(kinds) };
        let said = failure(&link, &format!("{SERVER}:7000"), 30, progress);
        assert!(said.starts_with("Unreachable "), "{said}");
    }
    let link = Link { client: "virtio_user", ..Link::new(Link::VIRTIO) };
    let said = failure(&link, &format!("{SERVER}:7000"), 1, "adaptive");
    assert!(said.starts_with("TimedOut "), "{said}");
}

#[test]
fn a_peer_that_refuses() {
    let _alone = alone();
    let link = Link::new(Link::VIRTIO);
    let mut listener = link.server("listener", "", "");
    listener.expect("open");
    for progress in ["adaptive", "inline"] {
        let said = failure(&link, &format!("{SERVER}:7000"), 30, progress);
        assert!(said.starts_with("Refused "), "{said}");
    }
    // The first host is absent, and no route leads to the second.
    let said = failure(&link, "10.9.0.77:7000", 30, "adaptive");
    assert!(said.starts_with("Unreachable "), "{said}");
    let said = failure(&link, "192.0.2.1:7000", 30, "adaptive");
    assert!(said.starts_with("error no route to 192.0.2.1: "), "{said}");
    listener.finish();
}

/// Only prints the times, without limits, because the machine may be busy.
#[test]
fn how_long_a_device_takes_to_open() {
    let _alone = alone();
    for settings in ["", "[memory]\nhugepages = \"off\"\n"] {
        for kinds in [Link::VIRTIO, Link::MEMIF] {
            let link = Link::new(kinds);
            let mut times: Vec<u64> = (0..3)
                .map(|_| {
                    let mut child = link.server("opener", "", settings);
                    let time = child.expect_start("open").parse().expect("a number");
                    child.finish();
                    time
                })
                .collect();
            times.sort_unstable();
            println!("{} {settings:?}: {} us, at most {} us", kinds[0], times[1], times[2]);
        }
    }
}
