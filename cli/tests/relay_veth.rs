//! `urnic relay` between two network interfaces, in network namespaces of the test's own: in front of it and behind it
//! the kernel's TCP, or engines.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);
const HOSTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 11, 0, 1), Ipv4Addr::new(10, 11, 0, 2)];
const PORT: u16 = 5001;

#[track_caller]
fn ip(args: &str) {
    let output = Command::new("ip").args(args.split(' ')).output().expect("ip runs");
    assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Three namespaces: `a` and `b` with an interface `eth` each, whose other ends `a` and `b` are in the third.
struct Lab(String);

impl Lab {
    /// `name` tells the labs of one process apart, the process id those of several.
    fn new(name: &str, mtu: u16) -> Self {
        let lab = Self(format!("urnic{}{name}", std::process::id()));
        for part in ["a", "b", "r"] {
            ip(&format!("netns add {}", lab.namespace(part)));
        }
        for part in ["a", "b"] {
            let (host, relay) = (lab.namespace(part), lab.namespace("r"));
            ip(&format!(
                "link add eth netns {host} mtu {mtu} type veth peer name {part} netns {relay} mtu {mtu}"
            ));
            // IPv6 would only add frames of its own.
            for (namespace, interface) in [(&host, "eth"), (&relay, part)] {
                ip(&format!("-n {namespace} link set dev {interface} addrgenmode none"));
                ip(&format!("-n {namespace} link set dev {interface} up"));
            }
        }
        lab
    }

    fn namespace(&self, part: &str) -> String {
        format!("{}{part}", self.0)
    }

    /// Gives the kernel in `a` and `b` an address each, and makes it compute checksums: what a packet socket hands on
    /// does not say that they are missing.
    fn address(&self) {
        for (part, host) in ["a", "b"].into_iter().zip(HOSTS) {
            let namespace = self.namespace(part);
            ip(&format!("-n {namespace} addr add {host}/24 dev eth"));
            ip(&format!("netns exec {namespace} ethtool -K eth tx off"));
        }
    }

    /// A process in a namespace.
    fn start(&self, part: &str, args: &[&str]) -> Process {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(part), env!("CARGO_BIN_EXE_urnic")]).args(args);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("URNIC_"))
        {
            command.env_remove(name);
        }
        command.env("URNIC_MEMORY_MB", "64");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Process(command.spawn().expect("a process"))
    }

    /// The relay, as soon as it forwards.
    fn relay(&self, fault: &[&str]) -> Process {
        let relay = self.start("r", &[&["relay", "af_packet:a", "af_packet:b", "--json"], fault].concat());
        // A relay that listens has made its interfaces promiscuous.
        let start = Instant::now();
        for part in ["a", "b"] {
            let namespace = self.namespace("r");
            loop {
                let shown =
                    Command::new("ip").args(["-d", "-n", &namespace, "link", "show", "dev", part]).output();
                if String::from_utf8_lossy(&shown.expect("ip runs").stdout).contains("promiscuity 1") {
                    break;
                }
                assert!(start.elapsed() < PATIENCE, "the relay opens {part}");
                thread::sleep(Duration::from_millis(10));
            }
        }
        relay
    }

    /// Runs `what` in a thread of its own in a namespace.
    fn inside<T: Send + 'static>(
        &self,
        part: &str,
        what: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let path = Path::new("/run/netns").join(self.namespace(part));
        thread::spawn(move || {
            let namespace = File::open(&path).expect("the namespace");
            setns(namespace, CloneFlags::CLONE_NEWNET).expect("inside");
            what()
        })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for part in ["a", "b", "r"] {
            let _ = Command::new("ip").args(["netns", "del", &self.namespace(part)]).output();
        }
    }
}

/// A process that does not outlive the test.
struct Process(Child);

impl Process {
    /// What it printed, once it has ended, which must be soon and well.
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

    /// Ends it in good order.
    fn stop(self, what: &str) -> Value {
        // `ip netns exec` has become the program.
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

/// Both directions dropped, duplicated and held back some.
fn is_impaired(report: &Value) {
    for direction in ["a_to_b", "b_to_a"] {
        for name in ["lost", "duplicated", "reordered"] {
            assert!(count(report, direction, name) > 0, "{direction}.{name}: {report}");
        }
    }
}

/// The octets that a side sends; a step that is odd visits every state.
struct Pattern(u64);

impl Pattern {
    fn fill(&mut self, out: &mut [u8]) {
        for word in out.chunks_mut(8) {
            self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            word.copy_from_slice(&(self.0 ^ (self.0 >> 29)).to_le_bytes()[..word.len()]);
        }
    }
}

/// Sends `total` octets and receives as many, both at once; all that arrive are the other side's.
fn exchange(stream: TcpStream, seed: u64, other: u64, total: usize) {
    for limit in [TcpStream::set_read_timeout, TcpStream::set_write_timeout] {
        limit(&stream, Some(PATIENCE)).expect("a limit");
    }
    let mut out = stream.try_clone().expect("a descriptor");
    let sender = thread::spawn(move || {
        let (mut pattern, mut block) = (Pattern(seed), vec![0; 1 << 16]);
        for _ in 0..total >> 16 {
            pattern.fill(&mut block);
            out.write_all(&block).expect("sent");
        }
        out.shutdown(Shutdown::Write).expect("a FIN");
    });
    let (mut stream, mut pattern) = (stream, Pattern(other));
    let (mut expected, mut found) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    for at in 0..total >> 16 {
        pattern.fill(&mut expected);
        stream.read_exact(&mut found).unwrap_or_else(|e| panic!("block {at}: {e}"));
        assert!(found == expected, "block {at} differs");
    }
    assert_eq!(stream.read(&mut found).expect("the end"), 0);
    sender.join().expect("the sender");
}

/// The kernel's TCP at both ends, both directions at once.
#[test]
#[ignore = "needs root (network namespaces)"]
fn needs_root_kernel_tcp_through_the_relay() {
    const TOTAL: usize = 16 << 20;
    let lab = Lab::new("k", 1500);
    lab.address();
    let relay = lab.relay(&["--fault", "loss=1%,dup=1%,reorder=1%,seed=11"]);
    let listener = lab.inside("a", || TcpListener::bind((HOSTS[0], PORT)).expect("a listener"));
    let listener = listener.join().expect("a listener");
    let server = thread::spawn(move || exchange(listener.accept().expect("a client").0, 1, 2, TOTAL));
    let client =
        lab.inside("b", || exchange(TcpStream::connect((HOSTS[0], PORT)).expect("connected"), 2, 1, TOTAL));
    client.join().expect("the client");
    server.join().expect("the server");
    let report = relay.stop("the relay");
    is_impaired(&report);
    assert!(count(&report, "a_to_b", "received_bytes") as usize > TOTAL, "{report}");
}

/// Engines at both ends, on packet sockets.
#[test]
#[ignore = "needs root (network namespaces)"]
fn needs_root_engines_through_the_relay() {
    for (mtu, op, size) in [(1500, "write", "64KiB"), (9000, "read", "256KiB")] {
        let lab = Lab::new(op, mtu);
        let number = mtu.to_string();
        let relay = lab.relay(&["--fault", "loss=1%,dup=1%,reorder=1%,corrupt=1%,seed=12", "--mtu", &number]);
        let common = ["--port", "af_packet:eth", "--mtu", &number, "--json"];
        let server = lab.start("a", &[&["perf", "server", "--ip", "10.11.0.1/24"], &common[..]].concat());
        let client = ["perf", "client", "10.11.0.1", "--ip", "10.11.0.2/24", "--verify", "--op", op];
        let amount = ["--mode", "bw", "--size", size, "--iters", "200"];
        let result = lab.start("b", &[&client, &common[..], &amount].concat()).result("the client");
        assert_eq!((&result["verified"], &result["crc"]), (&true.into(), &true.into()), "{result}");
        server.result("the server");
        is_impaired(&relay.stop("the relay"));
    }
}
