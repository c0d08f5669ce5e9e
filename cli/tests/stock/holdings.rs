//! The kernel's resources that a process has.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::unistd::Pid;

use super::PATIENCE;

#[derive(Clone, Copy, Debug)]
pub struct Holdings {
    pub descriptors: usize,
    pub threads: usize,
    pub mappings: usize,
    pub resident_kb: u64,
    pub hugepages_kb: u64,
}

impl Holdings {
    pub fn of(pid: Pid) -> Self {
        let entries = |what| fs::read_dir(format!("/proc/{pid}/{what}")).expect("a process").count();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
        let field = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
            line.trim_matches(|c: char| !c.is_ascii_digit()).parse().expect("a number")
        };
        Self {
            descriptors: entries("fd"),
            threads: entries("task"),
            mappings: fs::read_to_string(format!("/proc/{pid}/maps")).expect("a process").lines().count(),
            resident_kb: field("VmRSS:"),
            hugepages_kb: field("HugetlbPages:"),
        }
    }

    /// Returns the limit of a process's resources at rest once it has had a peer, if it had these before. The link
    /// then has threads of DPDK's, and descriptors: for each of the eight queues of a vhost port, or for each engine
    /// of a virtio_user port. The descriptors of an rping are added.
    pub fn with_a_peer(self, engines: usize) -> Self {
        Self { threads: self.threads + 2, descriptors: self.descriptors + 16 + 5 * (engines - 1), ..self }
    }

    /// Waits until a process that is done with a peer has no more threads and descriptors than `before`; returns its
    /// resources.
    pub fn at_rest(pid: Pid, before: Self) -> Self {
        let start = Instant::now();
        loop {
            let now = Self::of(pid);
            if now.threads <= before.threads && now.descriptors <= before.descriptors {
                return now;
            }
            assert!(start.elapsed() < PATIENCE, "{before:?} has become {now:?}, and stays so");
            sleep(Duration::from_millis(5));
        }
    }
}
