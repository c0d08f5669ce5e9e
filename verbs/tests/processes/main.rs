//! Whole RNICs, each in its own process, over the kinds of links that join two processes. Also two RNICs of one
//! process, over a ring.
//!
//! A process can start EAL only once, so the ends of a link run in child processes: this test binary, with its
//! role and its settings in the environment. Ends and the test exchange lines on stdin and stdout. One test
//! runs at a time, because its two ends may keep two cores busy.

mod child;
mod crowd;
mod exit;
mod kill;
mod modes;
mod node;
#[path = "../common/pages.rs"]
#[allow(dead_code)] // other tests use all of it
mod pages;
mod queues;
mod refusals;
mod sleeping;
mod traffic;
mod vanishing;

use child::Child;

/// The entry point of the child processes. Does nothing if it is run directly.
#[test]
#[ignore = "run by the other tests, as their child processes"]
fn child() {
    if let Some(role) = child::role() {
        match role.as_str() {
            "exit-server" => exit::server(),
            "exit-client" => exit::client(),
            "survivor" => kill::survivor(),
            "victim" => kill::victim(),
            "vanisher" => vanishing::end(),
            "target" => sleeping::target(),
            "reader" => sleeping::reader(),
            "answerer" => modes::answerer(),
            "asker" => modes::asker(),
            "crowd-server" => crowd::server(),
            "crowd-client" => crowd::client(),
            "crowd-ring" => crowd::both(),
            "ring" => modes::both_ends_of_a_ring(),
            "opener" => refusals::opener(),
            "listener" => refusals::listener(),
            "lonely" => refusals::lonely(),
            other => panic!("no role {other}"),
        }
    }
}

/// A link between two ends, with its own directory.
struct Link {
    dir: tempfile::TempDir,
    server: &'static str,
    client: &'static str,
}

impl Link {
    /// The kinds of the server's and the client's port. The server opens the link first.
    const VIRTIO: [&'static str; 2] = ["virtio_user", "vhost"];
    const VHOST: [&'static str; 2] = ["vhost", "virtio_user"];
    const MEMIF: [&'static str; 2] = ["memif", "memif"];
    /// The loopback of the host.
    const KERNEL: [&'static str; 2] = ["kernel", "kernel"];

    fn new([server, client]: [&'static str; 2]) -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory"), server, client }
    }

    fn spec(&self, kind: &str) -> String {
        if kind == "kernel" {
            return kind.to_owned();
        }
        format!("{kind}:{}", self.dir.path().join("link").display())
    }

    fn server_spec(&self) -> String {
        let role = if self.server == "memif" { ",role=server" } else { "" };
        self.spec(self.server) + role
    }

    /// Starts the end to which others connect. `settings` are lines of a configuration file.
    fn server(&self, role: &str, args: &str, settings: &str) -> Child {
        Child::start(role, args, &config(&self.server_spec(), node::SERVER, settings))
    }

    /// Starts the end that connects.
    fn client(&self, role: &str, args: &str, settings: &str) -> Child {
        Child::start(role, args, &config(&self.spec(self.client), node::CLIENT, settings))
    }
}

/// Makes a configuration file. `settings` may first add keys to the section `[port]`, and then open other sections.
fn config(spec: &str, ip: std::net::Ipv4Addr, settings: &str) -> String {
    let ip = if spec == "kernel" { String::new() } else { format!("[ip]\nip = \"{ip}/24\"\n") };
    format!("{ip}[port]\nport = \"{spec}\"\n{settings}")
}
