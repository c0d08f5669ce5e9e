//! Programs for libibverbs and librdmacm, as the distribution ships them, under `urnic run`: both ends are processes that
//! a virtio/vhost link joins.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long a program may take, in seconds. A bound, not a measurement: the machine may be busy.
const PATIENCE: &str = "120";

/// The right to run programs: two of them poll, and the machine may have two cores.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program, below the command `timeout`; ended if the test fails before it ends.
struct Running(Option<Child>);

impl Running {
    fn output(mut self) -> Output {
        self.0.take().expect("runs").wait_with_output().expect("its output")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // `timeout` hands this on; it could not hand on SIGKILL.
            let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
            let _ = child.wait();
        }
    }
}

/// `urnic`, with the libraries to preload beside it: those are no dependencies of this test, so they are built here.
fn urnic() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let urnic = PathBuf::from(env!("CARGO_BIN_EXE_urnic"));
        let profile = urnic.parent().expect("a folder");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "urnic-abi", "--package", "urnic-shim", "--target-dir"]);
        build.arg(profile.parent().expect("the target folder"));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo runs").success(), "the libraries are built");
        urnic
    })
}

/// One end of a link.
struct Node {
    ip: &'static str,
    port: String,
}

impl Node {
    fn run(&self, program: &str, logs: bool) -> Running {
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", PATIENCE]).arg(urnic());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("URNIC_"))
        {
            command.env_remove(name);
        }
        if logs {
            command.env("URNIC_LOG", "urnic_verbs=debug");
        }
        command.env("URNIC_HUGEPAGES", "off");
        command.args(["run", "--ip", self.ip, "--port", &self.port, "--"]).args(program.split_whitespace());
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Running(Some(child.expect("urnic runs")))
    }
}

/// The two ends of a link in a folder.
fn link(folder: &Path) -> (Node, Node) {
    let node = |ip, kind| Node { ip, port: format!("{kind}:{}/link.sock", folder.display()) };
    (node("10.4.0.1/24", "vhost"), node("10.4.0.2/24", "virtio_user"))
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Starts a server, and runs the client when it listens. Both have to succeed. Answers what both printed.
fn pair(server: &str, client: &str) -> (String, String) {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let (left, right) = link(folder.path());
    let mut running = left.run(server, true);
    // Debug logs tell when it listens; they go to standard error, which is read to the end lest the program waits.
    let errors = running.0.as_mut().and_then(|child| child.stderr.take()).expect("piped");
    let mut lines = BufReader::new(errors).lines().map_while(Result::ok);
    let mut log: Vec<String> = Vec::new();
    let listens =
        lines.by_ref().inspect(|line| log.push(line.clone())).any(|line| line.contains("listening"));
    assert!(listens, "{server} does not listen: {log:?}");
    let rest = std::thread::spawn(move || lines.collect::<Vec<_>>().join("\n"));
    let client_output = right.run(client, false).output();
    let client_text = text(&client_output);
    assert!(client_output.status.success(), "{client}: {client_text}");
    let output = running.output();
    let server_text = text(&output) + &rest.join().expect("its errors");
    assert!(output.status.success(), "{server}: {server_text}");
    (server_text, client_text)
}

/// The same arguments for both, and the address for the client.
fn perftest(arguments: &str) {
    let (_, text) = pair(arguments, &format!("{arguments} 10.4.0.1"));
    let is_number = |word: &str| word.parse::<f64>().is_ok_and(|n| n >= 0.0);
    let is_result =
        |line: &str| line.split_whitespace().count() >= 4 && line.split_whitespace().all(is_number);
    assert!(text.lines().any(is_result), "{arguments}: no result in {text}");
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

#[test]
#[ignore = "needs the package rdmacm-utils"]
fn needs_rping_large_pings() {
    pair("rping -s -V -C 5 -S 60000", "rping -c -V -C 5 -S 60000 -a 10.4.0.1");
}

/// Synchronous identifiers, endpoints and requests; with a shared receive queue.
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
#[ignore = "needs the package perftest"]
fn needs_ib_write_lat_latencies() {
    for program in ["ib_write_lat", "ib_read_lat", "ib_send_lat", "ib_atomic_lat"] {
        perftest(&format!("{program} -R -n 200"));
    }
}

#[test]
#[ignore = "needs the package perftest"]
fn needs_ib_write_lat_bandwidths() {
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_bw"] {
        perftest(&format!("{program} -R -n 200"));
    }
}

#[test]
#[ignore = "needs the package perftest"]
fn needs_ib_write_lat_ways_of_working() {
    for arguments in [
        "ib_send_lat -R -n 100 -e",
        "ib_read_lat -R -n 100 -e",
        "ib_send_bw -R -n 100 -q 16",
        "ib_write_bw -R -n 100 -q 16",
        "ib_send_bw -R -n 100 --use-srq",
        "ib_write_bw -R -n 200 -b",
        "ib_send_bw -R -n 200 -b",
    ] {
        perftest(arguments);
    }
}

#[test]
#[ignore = "needs the package perftest"]
fn needs_ib_write_lat_all_sizes() {
    perftest("ib_send_lat -R -n 10 -a");
    perftest("ib_write_bw -R -n 10 -a");
}

#[test]
#[ignore = "needs the package fio"]
fn needs_fio_jobs() {
    for verb in ["write", "read"] {
        let common = "--ioengine=rdma --port=7777 --bs=64k --size=4m";
        let (_, client) = pair(
            &format!("fio --name=r {common} --rw=read --iodepth=16"),
            &format!(
                "fio --name=s {common} --hostname=10.4.0.1 --verb={verb} --rw=write --iodepth=4 --iodepth_batch_complete=1"
            ),
        );
        assert!(client.contains("err= 0"), "{verb}: {client}");
    }
}

#[test]
fn what_is_missing_is_said() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let (node, _) = link(folder.path());
    let output = node.run("no-such-program", false).output();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("no-such-program: there is no such program"), "{}", text(&output));

    let output = Command::new(urnic()).args(["run", "--", "true"]).output().expect("urnic runs");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("no port is configured"), "{}", text(&output));
}

/// Programs that do not use RDMA, and children of those that do, pay nothing: no device is opened.
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

/// Settings reach the program whichever way they were given.
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
