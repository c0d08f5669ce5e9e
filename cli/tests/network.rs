//! `urnic` on network interfaces: measurements between two network namespaces, and the messages of refusals.

#[path = "../../verbs/tests/network/netns.rs"]
mod netns;
#[path = "../../dataplane/tests/ends/program.rs"]
mod program;

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use netns::{Namespace, Veth};
use program::Program;

const SERVER: &str = "10.9.0.1";
const CLIENT: &str = "10.9.0.2";
/// Time limit of a command, generous because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Allows one pair of polling processes at a time, because the machine may have only two cores.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running command; killed on drop if it still runs.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(mut command: Command) -> Self {
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("URNIC_"))
        {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().expect("the command starts"))
    }

    /// Waits for the end of the command, and returns its output.
    fn output(mut self) -> Output {
        let start = Instant::now();
        let status = loop {
            match self.0.try_wait().expect("a child of ours") {
                Some(status) => break status,
                None => assert!(start.elapsed() < PATIENCE, "it does not end"),
            }
            thread::sleep(Duration::from_millis(2));
        };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.0.stdout.take().expect("piped").read_to_end(&mut stdout).expect("a pipe");
        self.0.stderr.take().expect("piped").read_to_end(&mut stderr).expect("a pipe");
        Output { status, stdout, stderr }
    }
}

/// Returns a `urnic` command in a namespace.
fn urnic(ns: &Namespace, args: &str) -> Command {
    let mut command = ns.program(env!("CARGO_BIN_EXE_urnic"));
    command.args(args.split_whitespace());
    command
}

fn node(command: &str, port: &str, ip: &str, more: &str) -> String {
    format!("{command} --port {port} --ip {ip}/24 {more}")
}

/// Measures Writes, Sends and Reads between the ends of a cable, and verifies all data.
fn measure(kind: &str, mtu: u16) {
    let all = [
        ("write", "lat", 8, 2000),
        ("send", "lat", 20_000, 300),
        ("write", "bw", 65536, 600),
        ("read", "bw", 65536, 600),
    ];
    measure_at(kind, mtu, SERVER, (&format!("{SERVER}/24"), &format!("{CLIENT}/24")), &all);
}

/// Measures operations, and verifies all data. `ips` are the addresses of the server and the client; the client
/// connects to `target`.
fn measure_at(kind: &str, mtu: u16, target: &str, ips: (&str, &str), which: &[(&str, &str, u32, u32)]) {
    let _alone = alone();
    let veth = Veth::new(mtu);
    for (op, mode, size, iters) in which {
        let settings = format!("--mtu {mtu} --json");
        let server = format!("perf server --port {kind}:va --ip {} {settings}", ips.0);
        let server = Running::start(urnic(&veth.a, &server));
        let what = format!("--op {op} --mode {mode} --size {size} --iters {iters} --verify {settings}");
        let client = format!("perf client {target} --port {kind}:vb --ip {} {what}", ips.1);
        let client = Running::start(urnic(&veth.b, &client)).output();
        let (said, result) =
            (String::from_utf8_lossy(&client.stderr), String::from_utf8_lossy(&client.stdout));
        assert!(client.status.success(), "{kind} {mtu} {op} {mode}: {said}");
        assert!(
            result.contains("\"verified\":true") && result.contains(&format!("\"mtu\":{mtu}")),
            "{result}"
        );
        let server = server.output();
        assert!(server.status.success(), "{kind} {mtu}: {}", String::from_utf8_lossy(&server.stderr));
    }
}

#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_perf_over_af_packet() {
    measure("af_packet", 1500);
    measure("af_packet", 9000);
}

/// Runs every operation between a node on the kernel's sockets, without settings, and a node on a port. Each node is
/// the server once.
#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_perf_between_the_kernel_and_af_packet() {
    let _alone = alone();
    let veth = Veth::new(1500);
    // The kernel has the address `SERVER` at one end; the port has `CLIENT` at the other. Each is the server
    // once.
    veth.a.ip(&["addr", "add", &format!("{SERVER}/24"), "dev", "va"]);
    let port = format!("--port af_packet:vb --ip {CLIENT}/24 --mtu 1500");
    for (op, mode, size, iters) in [
        ("write", "lat", 8, 500),
        ("write", "bw", 65536, 200),
        ("read", "lat", 8, 500),
        ("read", "bw", 65536, 200),
        ("send", "lat", 20_000, 200),
        ("send", "bw", 65536, 200),
        ("atomic", "lat", 8, 500),
    ] {
        let what = format!("--op {op} --mode {mode} --size {size} --iters {iters} --verify --json");
        for (at_server, at_client, target, ends) in
            [("", port.as_str(), SERVER, (&veth.a, &veth.b)), (port.as_str(), "", CLIENT, (&veth.b, &veth.a))]
        {
            let server = Running::start(urnic(ends.0, &format!("perf server --json {at_server}")));
            let client = Running::start(urnic(ends.1, &format!("perf client {target} {what} {at_client}")));
            let client = client.output();
            let (said, result) =
                (String::from_utf8_lossy(&client.stderr), String::from_utf8_lossy(&client.stdout));
            assert!(client.status.success(), "{op} {mode} to {target}: {said}");
            assert!(result.contains("\"verified\":true"), "{op} {mode} to {target}: {result}");
            let server = server.output();
            assert!(server.status.success(), "{target}: {}", String::from_utf8_lossy(&server.stderr));
        }
    }
}

/// Clients connect to link-local addresses: to a configured one with the interface's name, and to one that is
/// derived from the Ethernet address, without the name.
#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_perf_over_ipv6_on_the_link() {
    let which = [("write", "lat", 8, 500), ("read", "bw", 65536, 200)];
    measure_at("af_packet", 1500, "fe80::9:1%vb", ("fe80::9:1/64", "fe80::9:2/64"), &which);
    measure_at("af_packet", 1500, "fe80::76:fdff:fe09:1", ("fd09::1/64", "fd09::2/64"), &which);
}

#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_perf_over_af_xdp() {
    measure("af_xdp", 1500);
    measure("af_xdp", 3436);
}

/// Runs one engine for each queue of an interface. A port of kind `tap`, with as many queues and engines, makes the
/// interface: no other interface without hardware has several queues and is accepted by the driver.
#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_perf_over_af_xdp_with_several_queues() {
    let _alone = alone();
    let ns = Namespace::new("xdp");
    let server = format!("perf server --port tap:vt --ip {SERVER}/24 --engines 4 --json");
    let server = Running::start(urnic(&ns, &server));
    let start = Instant::now();
    let is_up = || {
        let shown = ns.program("ip").args(["link", "show", "dev", "vt", "up"]).output().expect("ip runs");
        String::from_utf8_lossy(&shown.stdout).contains("vt:")
    };
    while !is_up() {
        assert!(start.elapsed() < PATIENCE, "the interface does not come");
        thread::sleep(Duration::from_millis(10));
    }
    let what = "--op write --mode bw --size 65536 --iters 600 --qps 16 --engines 4 --verify --json";
    let client = format!("perf client {SERVER} --port af_xdp:vt --ip {CLIENT}/24 {what}");
    let client = Running::start(urnic(&ns, &client)).output();
    let (said, result) = (String::from_utf8_lossy(&client.stderr), String::from_utf8_lossy(&client.stdout));
    assert!(client.status.success(), "{said}");
    assert!(result.contains("\"verified\":true") && result.contains("\"engines\":4"), "{result}");
    let server = server.output();
    assert!(server.status.success(), "{}", String::from_utf8_lossy(&server.stderr));
}

/// Checks for exit code 1, nothing on stdout, and a message with all the parts.
#[track_caller]
fn fails(command: Command, parts: &[&str]) {
    let words = format!("{command:?}");
    let output = Running::start(command).output();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}: {message}");
    assert!(output.stdout.is_empty(), "{words}: {}", String::from_utf8_lossy(&output.stdout));
    for part in parts {
        assert!(message.contains(part), "{words}: {part:?} is not in {message:?}");
    }
}

#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_what_an_interface_cannot_do_is_said() {
    let _alone = alone();
    let veth = Veth::new(1500);
    let info = |port: &str, more: &str| urnic(&veth.b, &node("info", port, SERVER, more));
    for kind in ["af_packet", "af_xdp"] {
        fails(info(&format!("{kind}:nope"), ""), &["no such network interface; here are lo, vb"]);
        fails(info(&format!("{kind}:lo"), ""), &["not an Ethernet interface"]);
    }
    fails(
        info("af_packet:vb", "--mtu 9000"),
        &["carries packets of at most 1500 bytes, but the MTU is 9000", "`ip link set vb mtu 9000`"],
    );
    fails(info("tap:t0", "--mtu 1501"), &["a port of this kind carries packets of at most 1500 bytes"]);
    fails(info("af_xdp:vb", "--mtu 9000"), &["a port of this kind carries packets of at most 3436 bytes"]);
    fails(info("af_xdp:vb,queue=63", ""), &["none has the number 63"]);
    fails(info("pci:ffff:ff:1f.7", ""), &["no such PCI device"]);
    fails(info("vdev:net_nosuch0", ""), &["vdev:net_nosuch0", "plugging the device in failed"]);
    veth.b.ip(&["link", "set", "vb", "mtu", "9000"]);
    fails(
        info("af_xdp:vb", ""),
        &["XDP takes packets of at most 3498 bytes, but the MTU of the interface is 9000"],
    );
    veth.b.ip(&["link", "set", "vb", "mtu", "1500", "down"]);
    for kind in ["af_packet", "af_xdp"] {
        fails(info(&format!("{kind}:vb"), ""), &["the interface is down", "`ip link set vb up`"]);
    }
}

#[test]
#[ignore = "needs root, to become somebody else"]
fn needs_root_missing_rights_are_named() {
    let program = Program::copy(Path::new(env!("CARGO_BIN_EXE_urnic")));
    for (port, right) in
        [("af_packet:lo", "CAP_NET_RAW"), ("af_xdp:lo", "CAP_BPF"), ("tap:t0", "CAP_NET_ADMIN")]
    {
        let mut command = Command::new(&program.path);
        command.args(node("info", port, SERVER, "").split_whitespace()).uid(65534).gid(65534);
        fails(command, &["not permitted", right, "setcap"]);
    }
}

/// Waits until the node with the address [`SERVER`] exists. A node that exists refuses the connection, so that the wait
/// ends.
fn answers(from: &Namespace) {
    let there = from.run(|| {
        let (to, start) = (format!("{SERVER}:9").parse().expect("an address"), Instant::now());
        while start.elapsed() < PATIENCE {
            match TcpStream::connect_timeout(&to, Duration::from_secs(1)) {
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => return true,
                _ => thread::sleep(Duration::from_millis(10)),
            }
        }
        false
    });
    assert!(there.join().expect("a thread"), "the other node does not answer");
}

/// RFC 5227: urnic does not use an address that another host or our own kernel has.
#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_address_conflicts() {
    let _alone = alone();
    let veth = Veth::new(1500);
    let info = |port: &str| urnic(&veth.b, &node("info", port, SERVER, ""));
    let free = Running::start(info("af_packet:vb")).output();
    assert!(free.status.success(), "{}", String::from_utf8_lossy(&free.stderr));
    assert!(String::from_utf8_lossy(&free.stdout).contains("active"));
    // Another urnic has the address. It also has the same Ethernet address, which is derived from the IP address.
    let other = node("perf server", "af_packet:va", SERVER, "");
    let other = Running::start(urnic(&veth.a, &other));
    veth.b.ip(&["address", "add", "10.9.0.9/24", "dev", "vb"]);
    answers(&veth.b);
    fails(
        info("af_packet:vb"),
        &["address conflict: the host 02:75:0a:09:00:01 has the address 10.9.0.1 already"],
    );
    drop(other);
    // The kernel at the other end has the address.
    veth.a.ip(&["address", "add", &format!("{SERVER}/24"), "dev", "va"]);
    for kind in ["af_packet", "af_xdp"] {
        fails(
            info(&format!("{kind}:vb")),
            &["address conflict: the host ", &format!("has the address {SERVER} already")],
        );
    }
    // Our own kernel has the address.
    veth.b.ip(&["address", "add", &format!("{SERVER}/24"), "dev", "vb"]);
    fails(info("af_packet:vb"), &["address conflict: the kernel has 10.9.0.1 on its interface vb"]);
}

/// Processes on one interface do not receive each other's frames. So urnic refuses an address that another process
/// uses, and names that process. Another address is free, even with the same Ethernet address. The same address is free
/// in another VLAN, in another namespace, and after its process was killed.
#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_an_address_belongs_to_one_process_of_an_interface() {
    let _alone = alone();
    let veth = Veth::new(1500);
    let info = |port: &str, more: &str| urnic(&veth.b, &format!("info --port {port} {more}"));
    let opens = |command: Command| {
        let words = format!("{command:?}");
        let output = Running::start(command).output();
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let addresses = format!("--ip {SERVER}/24 --ip fd09::1/64 --mac interface");
    let first = format!("perf server --port af_packet:vb {addresses}");
    // `ip netns exec` executes the program, so the process id stays the same.
    let first = Running::start(urnic(&veth.b, &first));
    veth.a.ip(&["address", "add", "10.9.0.9/24", "dev", "va"]);
    answers(&veth.a);
    let pid = first.0.id();
    for kind in ["af_packet", "af_xdp"] {
        for own in [SERVER.to_owned() + "/24", "fd09::1/64".into(), "10.9.0.7/24 --ip fd09::1/64".into()] {
            let holder = format!("address conflict: process {pid} (urnic) of user 0 has the address ");
            fails(
                info(&format!("{kind}:vb"), &format!("--ip {own}")),
                &[&holder, "on this interface; stop that process"],
            );
        }
    }
    // The same Ethernet address leads to the same link-local address.
    let made = &["has the address fe80::", "is made of the Ethernet address: set another port.mac"];
    fails(info("af_packet:vb", "--ip fd09::7/64 --mac interface"), made);
    opens(info("af_packet:vb", "--ip fd09::7/64 --ip fe80::7/64 --mac interface"));
    opens(info("af_packet:vb", "--ip fd09::7/64"));
    opens(info("af_packet:vb", &format!("--ip {CLIENT}/24 --mac interface")));
    opens(info("af_packet:vb", &format!("--ip {SERVER}/24 --vlan 7")));
    let mut elsewhere = Veth::new(1500);
    std::mem::swap(&mut elsewhere.a, &mut elsewhere.b);
    opens(urnic(&elsewhere.b, &format!("info --port af_packet:va {addresses}")));
    drop(first);
    opens(info("af_packet:vb", &addresses));
}

#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_unreachable_peers() {
    let _alone = alone();
    let veth = Veth::new(1500);
    let client = |host: &str, more: &str| {
        urnic(&veth.b, &node(&format!("perf client {host}"), "af_packet:vb", CLIENT, more))
    };
    // The prefix length is wrong, and there is no gateway.
    fails(
        client("10.9.1.1", ""),
        &["no route to 10.9.1.1", "check the prefix length of ip.ip, or set ip.gateway"],
    );
    fails(
        client("10.9.1.1", "--gateway 10.9.0.254"),
        &["cannot connect to 10.9.1.1", "host unreachable: the host or the router to it does not answer"],
    );
    let wrong = Running::start(client("10.9.1.1", "--gateway 10.9.7.1")).output();
    let message = String::from_utf8_lossy(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(2), "{message}");
    assert!(message.contains("10.9.7.1 is not in the network of 10.9.0.2/24"), "{message}");
}
