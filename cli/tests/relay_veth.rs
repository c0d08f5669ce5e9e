//! `urnic relay` between two network interfaces, in network namespaces of the test's own. On each side of the relay is
//! the kernel's TCP or an engine.

#[path = "../../verbs/tests/processes/child.rs"]
#[allow(dead_code)] // every test binary uses a part
mod child;
#[path = "../../verbs/tests/network/kernel.rs"]
#[allow(dead_code)]
mod kernel;
#[path = "../../verbs/tests/network/netns.rs"]
#[allow(dead_code)]
mod netns;
#[path = "../../verbs/tests/processes/node.rs"]
#[allow(dead_code)]
mod node;
#[path = "../../verbs/tests/network/stack.rs"]
mod stack;

use std::io::Read;
use std::os::fd::AsRawFd;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use child::Child;
use netns::Namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);
/// The IPv4 addresses of the kernel, and of the engine.
const KERNEL: &str = "10.9.0.2";
const OURS: &str = "10.9.0.1";
/// The IPv6 addresses of the kernel, and of the engine.
const KERNEL6: &str = "fd09::2";
const OURS6: &str = "fd09::1";

/// Three namespaces. `a` and `b` have an interface `eth` each. The other ends of these two cables are the interfaces
/// `a` and `b` in the third namespace.
struct Lab {
    a: Namespace,
    b: Namespace,
    relay: Namespace,
}

impl Lab {
    fn new(mtu: u16) -> Self {
        let lab = Self { a: Namespace::new("a"), b: Namespace::new("b"), relay: Namespace::new("r") };
        let mtu = mtu.to_string();
        for (host, other) in [(&lab.a, "a"), (&lab.b, "b")] {
            lab.relay
                .ip(&["link", "add", "dev", other, "mtu", &mtu, "type", "veth", "peer", "name", "cable"]);
            let file = format!("/proc/{}/fd/{}", std::process::id(), host.file.as_raw_fd());
            lab.relay.ip(&["link", "set", "dev", "cable", "name", "eth", "mtu", &mtu, "netns", &file]);
            for (namespace, interface) in [(host, "eth"), (&lab.relay, other)] {
                // Without this, the kernel would send IPv6 frames of its own.
                namespace.ip(&["link", "set", "dev", interface, "addrgenmode", "none"]);
                namespace.ip(&["link", "set", "dev", interface, "up"]);
            }
        }
        lab
    }

    /// Gives the kernel of a host an address, and makes the kernel compute checksums. (A packet socket does not report
    /// that the checksum of a frame is missing.)
    fn address(host: &Namespace, address: &str) {
        if address.contains(':') {
            host.ip(&["addr", "add", &format!("{address}/64"), "dev", "eth", "nodad"]);
        } else {
            host.ip(&["addr", "add", &format!("{address}/24"), "dev", "eth"]);
        }
        let status = host.program("ethtool").args(["-K", "eth", "tx", "off"]).stdout(Stdio::null()).status();
        assert!(status.expect("ethtool runs").success());
    }

    /// Sets the options that the kernel of a host offers in its SYNs, and accepts in the SYNs of its peers.
    fn options(host: &Namespace, sack: bool, timestamps: bool, window_scaling: bool) {
        for (name, on) in [("sack", sack), ("timestamps", timestamps), ("window_scaling", window_scaling)] {
            let setting = format!("net.ipv4.tcp_{name}={}", u8::from(on));
            let status = host.program("sysctl").args(["-q", "-w", &setting]).status();
            assert!(status.expect("sysctl runs").success(), "{setting}");
        }
    }

    /// Starts a process in a namespace.
    fn start(namespace: &Namespace, args: &[&str]) -> Process {
        let mut command = namespace.program(env!("CARGO_BIN_EXE_urnic"));
        command.args(args);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("URNIC_"))
        {
            command.env_remove(name);
        }
        command.env("URNIC_MEMORY_MB", "64");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Process(command.spawn().expect("a process"))
    }

    /// Starts an engine in `b` that exchanges `bytes` both ways on each connection. Waits until the engine has its
    /// address.
    fn engine(&self, (ours, kernels): (&str, &str), bytes: u64) -> Child {
        let args = format!("af_packet:eth {ours} {kernels} 1500 {bytes} 0 0");
        let mut engine = Child::start_in(&self.b.file, "stack", &args, "");
        engine.expect("open");
        engine
    }

    /// Lets the kernel in `a` and the engine exchange data both ways at once, on two connections in turn: first
    /// with the kernel as the client, then with the engine.
    fn exchange(&self, engine: &mut Child, (ours, kernels): (&str, &str), bytes: u64) {
        let (ours, kernels) = (ours.parse().expect("an address"), kernels.parse().expect("an address"));
        for engine_is_client in [false, true] {
            let kernel = if engine_is_client {
                let (ready, kernel) = kernel::serve(&self.a, kernels, bytes, 0);
                ready.recv().expect("a listener");
                engine.order("connect");
                kernel
            } else {
                kernel::connect(&self.a, ours, bytes, 0)
            };
            // The time limit grows with `bytes`, because loss limits the rate.
            let result = engine.line_within(PATIENCE + Duration::from_micros(bytes >> 1));
            let kernel = kernel.join().expect("the kernel's end");
            assert_eq!(result, kernel.seen_from_the_other_end(bytes), "engine is client: {engine_is_client}");
        }
    }

    /// Starts the relay, and waits until it forwards.
    fn relay(&self, fault: &[&str]) -> Process {
        let args = ["relay", "af_packet:a", "af_packet:b", "--json"];
        let relay = Self::start(&self.relay, &[&args, fault].concat());
        // A relay makes its interfaces promiscuous before it forwards.
        let start = Instant::now();
        for part in ["a", "b"] {
            let promiscuous = || {
                let shown = self.relay.program("ip").args(["-d", "link", "show", "dev", part]).output();
                String::from_utf8_lossy(&shown.expect("ip runs").stdout).contains("promiscuity 1")
            };
            while !promiscuous() {
                assert!(start.elapsed() < PATIENCE, "the relay opens {part}");
                thread::sleep(Duration::from_millis(10));
            }
        }
        relay
    }
}

/// A process that is killed when the test ends.
struct Process(std::process::Child);

impl Process {
    /// Returns the process's output; fails if the process does not end soon, or fails.
    #[track_caller]
    fn result(mut self, what: &str) -> Value {
        let start = Instant::now();
        let status = loop {
            match self.0.try_wait().expect("a child") {
                Some(status) => break status,
                None if start.elapsed() > PATIENCE => panic!("{what} does not end"),
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        let (mut out, mut err) = (String::new(), String::new());
        self.0.stdout.take().expect("a pipe").read_to_string(&mut out).expect("text");
        self.0.stderr.take().expect("a pipe").read_to_string(&mut err).expect("text");
        assert!(status.success(), "{what}: {status}: {err}");
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{what}: {e}: {out}"))
    }

    /// Ends the process by SIGTERM, and returns its output.
    fn stop(self, what: &str) -> Value {
        // `ip netns exec` has executed the program, so this is the program's process id.
        kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM).expect("it runs");
        self.result(what)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn count(report: &Value, direction: &str, name: &str) -> u64 {
    report[direction][name].as_u64().unwrap_or_else(|| panic!("{direction}.{name}: {report}"))
}

/// Checks that both directions dropped, duplicated and held back some frames.
fn is_impaired(report: &Value) {
    for direction in ["a_to_b", "b_to_a"] {
        for name in ["lost", "duplicated", "reordered"] {
            assert!(count(report, direction, name) > 0, "{direction}.{name}: {report}");
        }
    }
}

/// The entry point of the child processes. Does nothing if it is run directly.
#[test]
#[ignore = "run by the other tests, as their child processes"]
fn child() {
    if child::role().as_deref() == Some("stack") {
        stack::run();
    }
}

#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_kernel_tcp_and_an_engine_through_the_relay() {
    kernel_tcp_and_an_engine(16 << 20);
}

#[test]
#[ignore = "slow; and it needs root, for network namespaces"]
fn long_kernel_tcp_and_an_engine_exchange_a_gibibyte_through_the_relay() {
    kernel_tcp_and_an_engine(1 << 30);
}

/// The kernel does without some of TCP's options, over IPv4 and over IPv6.
#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_kernel_tcp_without_options_and_an_engine_through_the_relay() {
    let _alone = child::alone();
    let lab = Lab::new(1500);
    Lab::address(&lab.a, KERNEL);
    Lab::address(&lab.a, KERNEL6);
    let relay = lab.relay(&["--fault", "loss=1%,dup=1%,reorder=1%,seed=13"]);
    let bytes = 1 << 20;
    for ends in [(OURS, KERNEL), (OURS6, KERNEL6)] {
        let mut engine = lab.engine(ends, bytes);
        for (sack, timestamps, window_scaling) in [
            (true, true, true),
            (false, true, true),
            (true, false, true),
            (true, true, false),
            (false, false, false),
        ] {
            Lab::options(&lab.a, sack, timestamps, window_scaling);
            lab.exchange(&mut engine, ends, bytes);
        }
        engine.finish();
    }
    is_impaired(&relay.stop("the relay"));
}

/// Joins the kernel's TCP on one side of the relay with an engine's on the other.
fn kernel_tcp_and_an_engine(bytes: u64) {
    let _alone = child::alone();
    let lab = Lab::new(1500);
    Lab::address(&lab.a, KERNEL);
    let relay = lab.relay(&["--fault", "loss=1%,dup=1%,reorder=1%,seed=11"]);
    let mut engine = lab.engine((OURS, KERNEL), bytes);
    lab.exchange(&mut engine, (OURS, KERNEL), bytes);
    engine.finish();
    let report = relay.stop("the relay");
    is_impaired(&report);
    for direction in ["a_to_b", "b_to_a"] {
        assert!(count(&report, direction, "received_bytes") > 2 * bytes, "{report}");
    }
}

/// Engines at both ends, on packet sockets.
#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_engines_through_the_relay() {
    let _alone = child::alone();
    for (mtu, op, size) in [(1500, "write", "64KiB"), (9000, "read", "256KiB")] {
        let lab = Lab::new(mtu);
        let number = mtu.to_string();
        let relay = lab.relay(&["--fault", "loss=1%,dup=1%,reorder=1%,corrupt=1%,seed=12", "--mtu", &number]);
        let common = ["--port", "af_packet:eth", "--mtu", &number, "--json"];
        let server = Lab::start(&lab.a, &[&["perf", "server", "--ip", "10.11.0.1/24"], &common[..]].concat());
        let client = ["perf", "client", "10.11.0.1", "--ip", "10.11.0.2/24", "--verify", "--op", op];
        let amount = ["--mode", "bw", "--size", size, "--iters", "200"];
        let result = Lab::start(&lab.b, &[&client, &common[..], &amount].concat()).result("the client");
        assert_eq!((&result["verified"], &result["crc"]), (&true.into(), &true.into()), "{result}");
        server.result("the server");
        is_impaired(&relay.stop("the relay"));
    }
}
