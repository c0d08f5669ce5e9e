//! `urnic rping` between processes, over a virtio link or the kernel's sockets.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A command that is killed if the test fails before the command ends.
struct Running(Option<Child>);

impl Running {
    fn output(mut self) -> Output {
        self.0.take().expect("runs").wait_with_output().expect("its output")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn rping(args: &[&str]) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urnic"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("URNIC_")) {
        command.env_remove(name);
    }
    command.env("URNIC_MEMORY_HUGEPAGES", "off").arg("rping").args(args);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    Running(Some(child.expect("urnic runs")))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the options of the two ends of a link.
fn link(dir: &Path) -> ([String; 4], [String; 4]) {
    let path = dir.join("link.sock");
    let port = |kind: &str| format!("{kind}:{}", path.display());
    let node = |ip: &str, kind: &str| ["--ip".to_owned(), ip.to_owned(), "--port".to_owned(), port(kind)];
    (node("10.3.0.1/24", "vhost"), node("10.3.0.2/24", "virtio_user"))
}

fn with<'a>(args: &[&'a str], node: &'a [String; 4]) -> Vec<&'a str> {
    args.iter().copied().chain(node.iter().map(String::as_str)).collect()
}

/// Starts a server; returns when it listens.
fn serve(args: &[&str]) -> Running {
    let mut server = rping(&[args, &["-s", "-d"]].concat());
    // A line of the debug log on standard error reports that the server listens.
    let child = server.0.as_mut().expect("runs");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().expect("piped")));
    let listening = lines.by_ref().map_while(Result::ok).any(|line| line.contains("listening"));
    assert!(listening, "the server does not listen");
    // This thread reads the rest, because the server would block on a full pipe.
    std::thread::spawn(move || lines.count());
    server
}

/// Starts a server and waits until it listens, then runs the client.
fn pair(server: &[&str], client: &[&str]) -> (Running, Output) {
    pair_at("10.3.0.1", server, client)
}

/// As [`pair`], but the client connects to `address`.
fn pair_at(address: &str, server: &[&str], client: &[&str]) -> (Running, Output) {
    let dir = tempfile::tempdir().expect("a directory");
    let (left, right) = link(dir.path());
    let server = serve(&with(server, &left));
    let output = rping(&with(&[client, &["-c", "-a", address]].concat(), &right)).output();
    (server, output)
}

#[track_caller]
fn json(output: &Output) -> serde_json::Value {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn both_ends_verify_and_report() {
    let (server, client) = pair(&["-V", "--json"], &["-C", "500", "-S", "65535", "-V", "--json"]);
    let (client, server) = (json(&client), json(&server.output()));
    for (report, role) in [(&client, "client"), (&server, "server")] {
        assert_eq!((&report["op"], &report["role"]), (&"rping".into(), &role.into()));
        assert_eq!((&report["pings"], &report["size"]), (&500.into(), &65_535.into()));
        assert_eq!(report["verified"], true);
    }
    assert_eq!(client["peer"], "10.3.0.1:7174");
    assert!(client["ping_us"]["p50"].as_f64().is_some_and(|us| us > 0.0), "{client}");
    assert!(server["ping_us"].is_null());
}

/// Both ends print the text of every ping, as rping does: the last octet of a ping is the zero that ends the text. They
/// use another TCP port, and no CRCs.
#[test]
fn pings_are_shown() {
    let port = ["-p", "7000", "--no-crc"];
    let (server, client) =
        pair(&[&port[..], &["-v"]].concat(), &[&port[..], &["-v", "-C", "2", "-S", "26"]].concat());
    let (client, server) = (text(&client.stdout), text(&server.output().stdout));
    assert!(
        client.starts_with("ping data: rdma-ping-0: ABCDEFGHIJKL\nping data: rdma-ping-1: BCDEFGHIJKLM\n"),
        "{client}"
    );
    assert!(client.contains("2 pings of 26 bytes, not verified"), "{client}");
    assert!(server.starts_with("server ping data: rdma-ping-0: ABCDEFGHIJKL\n"), "{server}");
}

/// Two clients connect one after the other. The server still runs when the second client connects.
#[test]
fn a_persistent_server_stays() {
    let dir = tempfile::tempdir().expect("a directory");
    let (left, right) = link(dir.path());
    let mut server = serve(&with(&["-P", "-V"], &left));
    for count in ["3", "4"] {
        let client = ["-c", "-a", "10.3.0.1", "-C", count, "-V", "--json"];
        let report = json(&rping(&with(&client, &right)).output());
        assert_eq!(report["pings"].to_string(), count);
    }
    // The server serves until a signal ends it.
    let child = server.0.as_mut().expect("runs");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("it runs");
    let output = server.output();
    assert_eq!(output.status.signal(), Some(Signal::SIGTERM as i32), "{output:?}");
}

#[test]
fn nobody_there() {
    let dir = tempfile::tempdir().expect("a directory");
    let (left, right) = link(dir.path());
    // The server at the other end of the link does not listen on that port.
    let _server = serve(&with(&["-p", "9"], &left));
    let output = rping(&with(&["-c", "-a", "10.3.0.1", "-C", "1"], &right)).output();
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(message.contains("cannot connect to 10.3.0.1:7174"), "{message}");
    assert!(message.contains("does an rping server run there?"), "{message}");
}

/// Both ends have addresses of both families, and a VLAN; the client connects to the server's IPv6 address.
#[test]
fn ipv6_in_a_vlan() {
    let both = ["--ip", "fd03::1/64", "--vlan", "9", "-V", "--json"];
    let other = ["--ip", "fd03::2/64", "--vlan", "9", "-C", "50", "-S", "60000", "-V", "--json"];
    let (server, client) = pair_at("fd03::1", &both, &other);
    let (client, server) = (json(&client), json(&server.output()));
    assert_eq!((&client["pings"], &server["pings"]), (&50.into(), &50.into()));
    assert_eq!(client["peer"], "[fd03::1]:7174");
    assert!(server["peer"].as_str().is_some_and(|peer| peer.starts_with("[fd03::2]:")), "{server}");
}

/// The client connects to the server's link-local address. On a port, the name of the interface has no meaning.
#[test]
fn ipv6_on_the_link() {
    let both = ["--ip", "fd03::1/64", "-V", "--json"];
    let other = ["--ip", "fd03::2/64", "-C", "20", "-S", "5000", "-V", "--json"];
    let (server, client) = pair_at("fe80::76:fdff:fe03:1%eth7", &both, &other);
    let (server, client) = (json(&server.output()), json(&client));
    assert_eq!((&client["pings"], &client["verified"]), (&20.into(), &true.into()), "{client}");
    assert_eq!(client["peer"], "[fe80::76:fdff:fe03:1]:7174");
    assert!(server["peer"].as_str().is_some_and(|peer| peer.starts_with("[fe80::")), "{server}");
}

/// Returns a TCP port that was free a moment ago.
fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
    listener.local_addr().expect("its address").port().to_string()
}

/// On the kernel's sockets, a server listens at the address of `-a`, and at no other.
#[test]
fn a_server_on_the_kernels_sockets_listens_at_one_address() {
    let port = free_port();
    let server = serve(&["-a", "127.0.0.1", "-p", &port, "--json"]);
    let client = |address: &str| rping(&["-c", "-a", address, "-p", &port, "-C", "3", "--json"]).output();
    assert_eq!(client("127.0.0.2").status.code(), Some(1));
    assert_eq!((json(&client("127.0.0.1"))["pings"]).to_string(), "3");
    assert_eq!(json(&server.output())["pings"].to_string(), "3");
    // This address is reserved for documentation, so no host has it.
    let refused = rping(&["-s", "-a", "192.0.2.77", "-p", &port]).output();
    let message = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{message}");
    assert!(message.contains("-a 192.0.2.77: 192.0.2.77 is not an address of this device"), "{message}");
}

/// While its client is connected, a server rejects another client.
#[test]
fn a_server_serves_one_client() {
    let port = free_port();
    let _server = serve(&["-p", &port]);
    let mut first = rping(&["-c", "-a", "127.0.0.1", "-p", &port, "-v"]);
    let said = first.0.as_mut().expect("runs").stdout.take().expect("piped");
    let mut said = std::io::BufRead::lines(std::io::BufReader::new(said));
    assert!(said.next().expect("a line").expect("text").starts_with("ping data"));
    let second = rping(&["-c", "-a", "127.0.0.1", "-p", &port, "-C", "1"]).output();
    let message = text(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{}{message}", text(&second.stdout));
    assert!(message.contains("the server rejects the connection"), "{message}");
    // The first client goes on.
    assert!(said.take(100).all(|line| line.expect("text").starts_with("ping data")));
}
