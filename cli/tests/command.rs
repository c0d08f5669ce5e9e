//! The command as scripts see it: exit codes, messages, JSON.

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn urnic(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urnic"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("URNIC_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    urnic(args).output().expect("urnic runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks a case of bad usage or configuration: exit code 2, nothing on stdout, and a message with all the parts.
#[track_caller]
fn refuses(command: &mut Command, parts: &[&str]) {
    let output = command.output().expect("urnic runs");
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{command:?}: {message}");
    assert!(output.stdout.is_empty(), "{command:?}: {}", text(&output.stdout));
    for part in parts {
        assert!(message.contains(part), "{command:?}: {part:?} is not in {message:?}");
    }
}

#[test]
fn bad_usage() {
    refuses(&mut urnic(&[]), &["Usage: urnic"]);
    refuses(&mut urnic(&["inof"]), &["inof", "similar", "info"]);
    refuses(&mut urnic(&["perf"]), &["Usage: urnic perf"]);
    refuses(&mut urnic(&["perf", "client"]), &["<HOST>"]);
    refuses(&mut urnic(&["perf", "pair", "--op", "swap"]), &["'swap'", "write, read, send, atomic"]);
    refuses(&mut urnic(&["perf", "pair", "--op", "atomic", "--size", "4"]), &["an atomic has 8 bytes"]);
    refuses(&mut urnic(&["perf", "pair", "--mode", "fast"]), &["'fast'", "lat, bw, rate"]);
    refuses(&mut urnic(&["perf", "pair", "--port", "pci"]), &["'pci'", "virtio_user, memif, ring"]);
    refuses(&mut urnic(&["perf", "pair", "--size", "big"]), &["'big'", "4096 or 64KiB"]);
    refuses(&mut urnic(&["perf", "pair", "--size", "2GiB"]), &["--size", "1 GiB"]);
    refuses(&mut urnic(&["perf", "pair", "--iters", "1", "--seconds", "1"]), &["cannot be used with"]);
    refuses(&mut urnic(&["perf", "pair", "--iters", "0"]), &["--iters", "at least 1"]);
    refuses(&mut urnic(&["perf", "pair", "--seconds", "-1"]), &["'-1'"]);
    refuses(&mut urnic(&["perf", "pair", "--seconds", "0"]), &["--seconds", "more than 0"]);
    refuses(&mut urnic(&["perf", "pair", "--qps", "0"]), &["--qps", "1 to 16384"]);
    for threads in ["0", "65"] {
        refuses(&mut urnic(&["perf", "pair", "--threads", threads]), &["--threads", "1 to 64"]);
    }
    refuses(&mut urnic(&["perf", "server", "--threads", "2"]), &["unexpected argument", "--threads"]);
    refuses(&mut urnic(&["perf", "client", "127.0.0.1:65535", "--threads", "2"]), &["--threads", "65535"]);
    refuses(&mut urnic(&["perf", "pair", "--vrify"]), &["--vrify", "--verify"]);
    refuses(&mut urnic(&["perf", "floor", "--mode", "rate"]), &["'rate'", "lat, bw"]);
    refuses(&mut urnic(&["perf", "floor", "--size", "59"]), &["--size", "60 to 9014"]);
    refuses(&mut urnic(&["rping"]), &["<--server|--client>"]);
    refuses(&mut urnic(&["rping", "-s", "-c"]), &["cannot be used with"]);
    refuses(&mut urnic(&["rping", "-c"]), &["--address <HOST>"]);
    refuses(&mut urnic(&["rping", "-c", "-a", "10.0.0.1", "-P"]), &["cannot be used with"]);
    refuses(&mut urnic(&["rping", "-c", "-a", "10.0.0.1", "-S", "25"]), &["'25'", "26..=65535"]);
    refuses(&mut urnic(&["rping", "-s", "-v", "--json"]), &["cannot be used with"]);
    refuses(
        &mut urnic(&["rping", "-s", "-a", "10.0.0.9", "--port", "ring:x", "--ip", "10.0.0.1/24"]),
        &["-a 10.0.0.9 is not an address of this device (ip.ip: 10.0.0.1)"],
    );
}

#[test]
fn bad_settings() {
    refuses(&mut urnic(&["info", "--mtu", "100"]), &["option --mtu: port.mtu: 100 is outside 576 to 9000"]);
    refuses(
        &mut urnic(&["info", "--port", "pcie:0"]),
        &["option --port", "no kind of port \"pcie\"", "ring:NAME", "af_packet:INTERFACE"],
    );
    refuses(&mut urnic(&["info", "--ip", "10.0.0.1"]), &["option --ip", "no prefix length", "10.0.0.1/24"]);
    refuses(
        &mut urnic(&["info", "--ip", "10.0.0.1/24", "--ip", "10.0.0.2/24"]),
        &["2 IPv4 addresses are given, and one is supported"],
    );
    refuses(&mut urnic(&["info", "--mac", "1:2"]), &["option --mac", "not an Ethernet address"]);
    refuses(
        &mut urnic(&["info", "--progress", "fast"]),
        &["option --progress", "inline, dedicated, adaptive"],
    );
    refuses(&mut urnic(&["info", "--cores", "a"]), &["option --cores", "not a whole number"]);
    refuses(&mut urnic(&["info", "--engines", "65"]), &["option --engines", "from 1 to 64", "\"auto\""]);
    refuses(urnic(&["info"]).env("URNIC_ENGINES", "0"), &["URNIC_ENGINES: engine.engines", "1 to 64"]);
    refuses(
        &mut urnic(&["info", "--ip", "10.0.0.1/24", "--gateway", "10.1.0.1"]),
        &["option --gateway", "not in the network of 10.0.0.1/24"],
    );
    refuses(
        &mut urnic(&["perf", "pair", "--fault", "los=1"]),
        &["port.fault", "unknown key `los`", "loss=0.01"],
    );
    refuses(
        urnic(&["info"]).env("URNIC_MTU", "x"),
        &["environment variable URNIC_MTU: port.mtu", "576 to 9000"],
    );
    refuses(urnic(&["info"]).env("URNIC_MTUU", "1500"), &["URNIC_MTUU", "did you mean URNIC_MTU?"]);
    refuses(
        &mut urnic(&["perf", "server", "--port", "ring:x"]),
        &["the port has no IP address", "--ip ADDR/LEN"],
    );
    refuses(
        &mut urnic(&["perf", "client", "fd00::g", "--port", "ring:x", "--ip", "10.0.0.1/24"]),
        &["the server \"fd00::g\"", "write the server's address"],
    );
}

/// A mistake in the file: the message has the file, the line, the key, what is wrong, and what to write.
#[test]
fn bad_file() {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().expect("a file");
    file.write_all(b"# mine\n[port]\nmtuu = 9000\n").expect("written");
    let path = file.path().to_str().expect("a name");
    let message = format!("urnic: {path}:3: port.mtuu: there is no such key; did you mean mtu?");
    refuses(&mut urnic(&["info", "--config", path]), &[&message]);
    refuses(urnic(&["info"]).env("URNIC_CONFIG", path), &[&message]);
    refuses(&mut urnic(&["perf", "floor", "--config", path]), &[&message]);
    refuses(
        &mut urnic(&["info", "--config", "/nowhere/x.toml"]),
        &["/nowhere/x.toml: cannot be read", "--config"],
    );
}

#[test]
fn help_and_version() {
    for args in [
        &["--help"][..],
        &["info", "--help"],
        &["perf", "--help"],
        &["perf", "pair", "--help"],
        &["rping", "--help"],
        &["--version"],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(output.stderr.is_empty() && text(&output.stdout).contains("urnic"), "{args:?}");
    }
}

fn json(output: &Output) -> serde_json::Value {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 1, "one object on one line");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Without a port, the device uses the kernel's sockets and has the host's addresses.
#[test]
fn info_of_the_machine() {
    let info = json(&run(&["info", "--json", "--mtu", "9000"]));
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!((&info["mtu"], &info["memory_mb"]), (&9000.into(), &256.into()));
    assert!(info["port"] == "kernel" && info["offloads"].is_null(), "{info}");
    assert!(info["device"]["ip"].to_string().contains("127.0.0.1"), "{info}");
    let engine = &info["device"]["engines"][0];
    assert!(engine["number"] == 0 && engine["core"].is_null() && engine["passes"].is_u64(), "{info}");
    assert!(info["device"]["engines"][1].is_null(), "one engine: {info}");
    assert!(info["dpdk"].as_str().is_some_and(|v| v.starts_with(|c: char| c.is_ascii_digit())), "{info}");
    let output = run(&["info"]);
    assert!(
        text(&output.stdout).contains("the kernel's TCP; any host that reaches these addresses may connect")
    );
    refuses(&mut urnic(&["perf", "server", "--port", "kernel:a/b"]), &["port.port", "neither an address"]);
}

/// The device has the number of engines that `--engines` sets; `auto` means one for each core of `--cores`.
#[test]
fn info_of_several_engines() {
    let engines = |args: &[&str]| {
        let info = json(&run(&[&["info", "--json"], args].concat()));
        let engines = info["device"]["engines"].as_array().expect("engines").clone();
        engines.into_iter().map(|engine| engine["core"].as_u64()).collect::<Vec<_>>()
    };
    assert_eq!(engines(&["--engines", "3"]), [None; 3]);
    assert_eq!(engines(&["--engines", "2", "--cores", "0"]), [Some(0), None]);
    assert_eq!(engines(&["--engines", "auto", "--cores", "0"]), [Some(0)]);
    let shown = text(&run(&["info", "--engines", "2"]).stdout);
    assert!(shown.contains("engine 1:") && shown.contains("any core"), "{shown}");
    let environment = json(&run(&["info", "--json", "--engines", "2"]))["run"]["environment"].clone();
    assert_eq!(environment["URNIC_ENGINES"], "2");
}

/// With a port, `urnic info` describes the device on it; here the port is one end of a ring.
#[test]
fn info_of_a_device() {
    let settings = ["--port", "ring:info", "--ip", "10.9.0.1/24", "--mac", "02:00:00:00:00:09"];
    let settings: Vec<&str> = settings.into_iter().chain(["--cores", "0"]).collect();
    let info = json(&run(&[&["info", "--json"], settings.as_slice()].concat()));
    let device = &info["device"];
    assert_eq!(device["mac"], "02:00:00:00:00:09");
    assert_eq!(device["ip"], "10.9.0.1/24");
    assert_eq!(device["node_guid"], "0000:00ff:fe00:0009");
    assert_eq!(device["transport"], "iWARP");
    assert!(device["max_qp"].as_u64().is_some_and(|n| n >= 1000), "{info}");
    assert_eq!((&info["port"], &info["engine_cores"]), (&"ring:info".into(), &serde_json::json!([0])));
    let offloads = &info["offloads"];
    assert_eq!((&offloads["tso"], &offloads["checksum"]), (&false.into(), &true.into()));
    assert_eq!((&offloads["tx_checksum"], &offloads["rx_checksum"]), (&"spared".into(), &"link".into()));
    assert_eq!(offloads["zero_copy"], "none", "frames are copied where they arrive");
    let faulty = [&["info", "--json", "--fault", "loss=0.1"], settings.as_slice()].concat();
    assert_eq!(json(&run(&faulty))["offloads"]["tx_checksum"], "software", "damage is to be noticed");
    let output = run(&[&["info"], settings.as_slice()].concat());
    let shown = text(&output.stdout);
    assert!(
        shown.contains("hca_id: urnic0") && shown.contains("iWARP") && shown.contains("10.9.0.1/24"),
        "{shown}"
    );
}

/// If DPDK cannot create its runtime directory, there is no warning, because nothing needs the directory. The test uses
/// ordinary pages, because the number of free hugepages may cause a warning.
#[test]
fn no_runtime_directory() {
    let mut info = urnic(&["info", "--port", "ring:dir", "--ip", "10.9.0.1/24"]);
    info.env("RUNTIME_DIRECTORY", "/dev/null").env("URNIC_MEMORY_HUGEPAGES", "off").env("URNIC_LOG", "warn");
    let output = info.output().expect("urnic runs");
    assert!(output.status.success());
    assert_eq!(text(&output.stderr), "");
}

/// The order of sources: the command line overrides the environment, which overrides the file.
#[test]
fn layers() {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(b"[port]\nmtu = 1000\n[engine]\nprogress = \"inline\"\n[memory]\nmb = 64\n")
        .expect("written");
    let path = file.path().to_str().expect("a name");
    let mut command = urnic(&["info", "--json", "--config", path, "--mtu", "1200"]);
    let info =
        json(&command.env("URNIC_MTU", "1100").env("URNIC_PROGRESS", "dedicated").output().expect("runs"));
    assert_eq!((&info["mtu"], &info["memory_mb"]), (&1200.into(), &64.into()));
    assert_eq!(info["progress"], "dedicated");
}

/// Results can be piped into `urnic perf table` unchanged.
#[test]
fn results_and_their_table() {
    let output = run(&["perf", "pair", "--port", "ring", "--iters", "500", "--verify", "--no-crc", "--json"]);
    let result = json(&output);
    assert_eq!(
        (&result["op"], &result["mode"], &result["size"]),
        (&"write".into(), &"lat".into(), &8.into())
    );
    assert_eq!((&result["verified"], &result["crc"]), (&true.into(), &false.into()));
    assert!(result["rtt_us"]["p50"].as_f64().is_some_and(|us| us > 0.0), "{result}");
    assert!(result["gbit_s"].is_null());

    let table = |input: &[u8]| {
        let mut child = urnic(&["perf", "table"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("urnic runs");
        child.stdin.take().expect("a pipe").write_all(input).expect("written");
        child.wait_with_output().expect("urnic ends")
    };
    let twice = [output.stdout.as_slice(), b"\n", output.stdout.as_slice()].concat();
    let shown = table(&twice);
    assert_eq!(shown.status.code(), Some(0));
    assert_eq!(text(&shown.stdout).matches("write").count(), 2);
    let wrong = table(b"\nhello\n");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("line 2 of standard input is no result"), "{}", text(&wrong.stderr));
}

#[test]
fn the_window_is_as_asked() {
    let asked = ["perf", "pair", "--port", "ring", "--qps", "3", "--iters", "300", "--json", "--window", "7"];
    let result = json(&run(&[asked.as_slice(), &["--mode", "rate", "--verify"]].concat()));
    assert_eq!((&result["window"], &result["verified"]), (&7.into(), &true.into()), "{result}");
    let output = run(&[asked.as_slice(), &["--mode", "lat"]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("--window: only with --mode bw or rate"),
        "{}",
        text(&output.stderr)
    );
}

/// Threads have completion queues of their own, on two engines at each end; every byte is checked.
#[test]
fn several_threads_on_several_engines() {
    for (op, mode) in [("write", "lat"), ("read", "lat"), ("send", "bw"), ("write", "rate"), ("atomic", "bw")]
    {
        let args =
            ["perf", "pair", "--port", "kernel", "--op", op, "--mode", mode, "--iters", "300", "--json"];
        let crew = ["--threads", "2", "--engines", "2", "--qps", "3", "--verify"];
        let result = json(&run(&[args.as_slice(), crew.as_slice()].concat()));
        assert_eq!((&result["threads"], &result["engines"]), (&2.into(), &2.into()), "{result}");
        assert_eq!((&result["qps"], &result["iters"]), (&6.into(), &600.into()), "of both threads: {result}");
        assert_eq!(result["verified"], true);
        assert_eq!(result["rtt_us"]["p99"].is_number(), mode == "lat", "{result}");
        assert_eq!(result["gbit_s"].is_number(), mode != "lat", "{result}");
        assert!(result["cpu_ns_per_msg"].as_f64().is_some_and(|ns| ns > 0.0), "{result}");
    }
}

/// A capture is complete when the command ends, whichever of its processes wrote it.
#[test]
fn a_capture_of_a_pair() {
    let dir = tempfile::tempdir().expect("a folder");
    for port in ["ring", "virtio_user"] {
        let file = dir.path().join(format!("{port}.pcapng"));
        let path = file.to_str().expect("a name");
        let result =
            json(&run(&["perf", "pair", "--port", port, "--iters", "50", "--capture", path, "--json"]));
        assert_eq!(result["iters"], 50);
        let bytes = std::fs::read(&file).expect("the capture");
        assert_eq!(bytes[..4], 0x0a0d_0d0a_u32.to_le_bytes(), "{port}: a section header");
        // Each block ends with its length; the last block has the statistics, in which no frame is missing.
        let len = u32::from_le_bytes(*bytes.last_chunk().expect("a block")) as usize;
        let last = &bytes[bytes.len() - len..];
        assert_eq!(last[..4], 5u32.to_le_bytes(), "{port}: interface statistics");
        assert_eq!(last[len - 16..len - 8], 0u64.to_le_bytes(), "{port}: dropped");
    }
    let args = ["info", "--port", "ring:c", "--ip", "10.9.0.1/24", "--capture", "/nonexistent/x.pcapng"];
    let output = run(&args);
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(message.contains("cannot write the capture /nonexistent/x.pcapng"), "{message}");
}

/// A failure that is not bad usage: exit code 1, and a message on what to do.
#[test]
fn failures() {
    let args = ["info", "--port", "vhost:/nonexistent/dir/x.sock,server=yes", "--ip", "10.9.0.1/24"];
    let output = run(&args);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("urnic: ") && message.contains("/nonexistent/dir"), "{message}");
}

/// The connections of running programs are one JSON array, even if no program runs on this machine.
#[test]
fn connections_of_running_programs() {
    let output = run(&["info", "--connections", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for program in told.as_array().expect("an array") {
        assert!(program["pid"].is_u64() && program["connections"].is_array(), "{program}");
        assert!(program["engines"].is_array(), "{program}");
    }
}
