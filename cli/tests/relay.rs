//! `urnic relay` between two nodes. The relay and both nodes are processes.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);

fn urnic(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urnic"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("URNIC_")) {
        command.env_remove(name);
    }
    command.args(args).env("URNIC_MEMORY_MB", "64");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A process that is killed when the test ends.
struct Process(Child);

impl Process {
    fn start(args: &[&str]) -> Self {
        Self(urnic(args).spawn().expect("urnic starts"))
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("it runs");
    }

    /// Returns the process's output; fails if the process does not end soon, or fails.
    #[track_caller]
    fn result(mut self, what: &str) -> String {
        let start = Instant::now();
        let status = loop {
            match self.0.try_wait().expect("a child") {
                Some(status) => break status,
                None if start.elapsed() > PATIENCE => panic!("{what} does not end"),
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        let read = |from: Option<&mut dyn Read>| {
            let mut text = String::new();
            from.expect("a pipe").read_to_string(&mut text).expect("text");
            text
        };
        let out = read(self.0.stdout.as_mut().map(|o| o as &mut dyn Read));
        let err = read(self.0.stderr.as_mut().map(|e| e as &mut dyn Read));
        assert!(status.success(), "{what}: {status}: {err}");
        out
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Measures between two nodes through a relay; returns the client's result and the relay's report.
fn through_relay(
    ports: [&str; 2],
    relay_ports: [&str; 2],
    fault: &[&str],
    measure: &[&str],
) -> (Value, Value) {
    let relay_args = [&["relay", relay_ports[0], relay_ports[1], "--json"], fault].concat();
    let relay = Process::start(&relay_args);
    let server = Process::start(&["perf", "server", "--ip", "10.0.0.1/24", "--port", ports[0], "--json"]);
    let client =
        ["perf", "client", "10.0.0.1", "--ip", "10.0.0.2/24", "--port", ports[1], "--json", "--verify"];
    let client = Process::start(&[&client, measure].concat());
    let result = json(&client.result("the client"));
    server.result("the server");
    relay.signal(Signal::SIGTERM);
    (result, json(&relay.result("the relay")))
}

fn place(dir: &Path, kind: &str, name: &str) -> String {
    format!("{kind}:{}", dir.join(name).display())
}

/// Every transfer verifies all its data, while the relay impairs one frame in a hundred in each of the ways that the
/// test's name lists.
#[test]
fn verified_through_loss_duplicates_reordering_and_corruption() {
    for (op, mode, size, iters) in
        [("write", "bw", "64KiB", "200"), ("read", "bw", "64KiB", "100"), ("send", "lat", "3000", "300")]
    {
        let dir = tempfile::tempdir().expect("a folder");
        let (a, b) = (place(dir.path(), "virtio_user", "a"), place(dir.path(), "virtio_user", "b"));
        let (relay_a, relay_b) = (place(dir.path(), "vhost", "a"), place(dir.path(), "vhost", "b"));
        let fault = ["--fault", "loss=1%,dup=1%,reorder=1%,corrupt=1%,seed=5"];
        let measure = ["--op", op, "--mode", mode, "--size", size, "--iters", iters];
        let (result, relay) = through_relay([&a, &b], [&relay_a, &relay_b], &fault, &measure);
        assert_eq!(result["verified"], true, "{result}");
        assert_eq!(result["crc"], true, "{result}");
        assert_eq!(result["iters"].as_u64().map(|n| n.to_string()).as_deref(), Some(iters));
        let count = |direction: &str, name: &str| relay[direction][name].as_u64().expect("a counter");
        for name in ["lost", "duplicated", "reordered", "corrupted"] {
            assert!(count("a_to_b", name) + count("b_to_a", name) > 0, "{op}: {name}: {relay}");
        }
        for direction in ["a_to_b", "b_to_a"] {
            assert_eq!(
                count(direction, "received") + count(direction, "duplicated"),
                ["sent", "lost", "overflowed", "over_limit", "undeliverable", "held"]
                    .iter()
                    .map(|name| count(direction, name))
                    .sum::<u64>(),
                "{relay}"
            );
        }
        assert_eq!(relay["b_to_a"]["fault"], "loss=0.01,dup=0.01,reorder=0.01,corrupt=0.01,seed=6");
    }
}

/// Each direction has its own faults. The measured round trip includes the delay.
#[test]
fn each_direction_by_itself() {
    let dir = tempfile::tempdir().expect("a folder");
    let (a, b) = (place(dir.path(), "vhost", "a"), place(dir.path(), "vhost", "b"));
    let (relay_a, relay_b) = (place(dir.path(), "virtio_user", "a"), place(dir.path(), "virtio_user", "b"));
    let fault = ["--fault-ab", "delay=2ms", "--fault-ba", "delay=3ms,seed=9"];
    let measure = ["--op", "read", "--mode", "lat", "--size", "8", "--iters", "50"];
    let (result, relay) = through_relay([&a, &b], [&relay_a, &relay_b], &fault, &measure);
    assert!(result["rtt_us"]["min"].as_f64().is_some_and(|us| us >= 5000.0), "{result}");
    assert_eq!(relay["a_to_b"]["fault"], "delay=2000000ns,seed=0");
    assert_eq!(relay["b_to_a"]["fault"], "delay=3000000ns,seed=9");
    for direction in ["a_to_b", "b_to_a"] {
        assert_eq!(relay[direction]["lost"], 0);
        assert!(relay[direction]["sent"].as_u64().is_some_and(|n| n > 50), "{relay}");
    }
}

fn run(args: &[&str]) -> Output {
    urnic(args).output().expect("urnic runs")
}

#[test]
fn ends_after_the_time_given_and_prints_a_table() {
    let dir = tempfile::tempdir().expect("a folder");
    let ports = [place(dir.path(), "virtio_user", "a"), place(dir.path(), "virtio_user", "b")];
    let output = run(&["relay", &ports[0], &ports[1], "--for", "0.1"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text.contains("A to B") && text.contains("reordered") && text.contains(&ports[1]), "{text}");
    assert!(output.stderr.is_empty(), "{output:?}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 0, "no socket is left behind");
}

#[test]
fn a_signal_ends_it_in_good_order() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let dir = tempfile::tempdir().expect("a folder");
        let ports = [place(dir.path(), "virtio_user", "a"), place(dir.path(), "virtio_user", "b")];
        let relay = Process::start(&["relay", &ports[0], &ports[1], "--json"]);
        let start = Instant::now();
        while !dir.path().join("b").exists() {
            assert!(start.elapsed() < PATIENCE, "the ports open");
            thread::sleep(Duration::from_millis(1));
        }
        relay.signal(signal);
        let report = json(&relay.result("the relay"));
        assert_eq!(report["a_to_b"]["received"], 0);
        assert_eq!(report["a_to_b"]["from"], ports[0].as_str());
    }
}

#[test]
fn bad_usage_and_failures() {
    let refuses = |args: &[&str], code: i32, parts: &[&str]| {
        let output = run(args);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {message}");
        assert!(output.stdout.is_empty(), "{args:?}");
        for part in parts {
            assert!(message.contains(part), "{args:?}: {part:?} is not in {message:?}");
        }
    };
    refuses(&["relay"], 2, &["<PORT_A> <PORT_B>"]);
    refuses(&["relay", "vhost:/tmp/a"], 2, &["<PORT_B>"]);
    refuses(&["relay", "nic:/tmp/a", "vhost:/tmp/b"], 2, &["no kind of port \"nic\""]);
    refuses(&["relay", "ring:a", "vhost:/tmp/b"], 2, &["ring:a", "one process", "another kind"]);
    refuses(
        &["relay", "vhost:/tmp/a", "vhost:/tmp/b", "--fault", "los=1"],
        2,
        &["unknown key `los`", "loss"],
    );
    refuses(&["relay", "vhost:/tmp/a", "vhost:/tmp/b", "--for", "0"], 2, &["--for", "more than 0"]);
    refuses(&["relay", "vhost:/tmp/a", "vhost:/tmp/b", "--mtu", "1"], 2, &["--mtu", "576 to 9000"]);
    refuses(
        &["relay", "virtio_user:/nonexistent/a", "vhost:/nonexistent/b", "--for", "1"],
        1,
        &["/nonexistent", "does not exist"],
    );
}
