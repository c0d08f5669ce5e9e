//! Network namespaces for tests.

use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use nix::sched::{CloneFlags, setns};

/// A network namespace. Dropping it deletes it, with all interfaces inside.
pub struct Namespace {
    name: String,
    pub file: File,
}

fn command(program: &str, args: &[&str]) {
    let done = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {args:?}: {said}");
}

impl Namespace {
    pub fn new(name: &str) -> Self {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let name = format!("urnic-{name}-{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        command("ip", &["netns", "add", &name]);
        let file = File::open(format!("/var/run/netns/{name}")).expect("the namespace's file");
        Self { name, file }
    }

    /// Runs `ip` for this namespace.
    pub fn ip(&self, args: &[&str]) {
        command("ip", &[&["-n", &self.name][..], args].concat());
    }

    /// Returns the name of the namespace for `ip netns`.
    #[allow(dead_code)] // every test binary uses a part
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a command that runs a program in this namespace.
    #[allow(dead_code)] // every test binary uses a part
    pub fn program(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Runs `body` on a thread in this namespace.
    #[allow(dead_code)] // every test binary uses a part
    pub fn run<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let file = self.file.try_clone().expect("a descriptor");
        thread::spawn(move || {
            setns(&file, CloneFlags::CLONE_NEWNET).expect("entering the namespace");
            body()
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).status();
    }
}

/// Two namespaces with a cable between `va` and `vb`.
pub struct Veth {
    pub a: Namespace,
    pub b: Namespace,
}

impl Veth {
    pub fn new(mtu: u16) -> Self {
        let (a, b) = (Namespace::new("a"), Namespace::new("b"));
        a.ip(&["link", "add", "va", "type", "veth", "peer", "name", "vb", "netns", &b.name]);
        for (ns, link) in [(&a, "va"), (&b, "vb")] {
            ns.ip(&["link", "set", link, "mtu", &mtu.to_string(), "up"]);
            // With these offloads enabled, a cable in memory would carry segments without checksums, and data that is
            // not cut into segments.
            command("ip", &["netns", "exec", &ns.name, "ethtool", "-K", link, "tx", "off"]);
        }
        Self { a, b }
    }
}
