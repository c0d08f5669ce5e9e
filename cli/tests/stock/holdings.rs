//! The kernel's resources that a process holds.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::unistd::Pid;

use super::PATIENCE;

#[derive(Clone, Copy, Debug)]
pub struct Holdings {
    pub descriptors: usize,
    pub threads: usize,
    /// Number of memory mappings, without the mappings of the allocator's heaps.
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
            mappings: mappings(&fs::read_to_string(format!("/proc/{pid}/maps")).expect("a process")),
            resident_kb: field("VmRSS:"),
            hugepages_kb: field("HugetlbPages:"),
        }
    }

    /// Returns upper bounds of the resources that a process holds at rest after its first peer has gone. `self` are its
    /// resources before that peer. The bounds add DPDK's threads for the link, the descriptors of an rping, and those
    /// of the link: a vhost port has some for each queue, and at least eight queues; a virtio_user port has some for
    /// each engine.
    pub fn with_a_peer(self, engines: usize) -> Self {
        Self { threads: self.threads + 2, descriptors: self.descriptors + 16 + 5 * (engines - 1), ..self }
    }

    /// Waits until a process that is done with a peer has at most as many threads and descriptors as `before`. Returns
    /// its resources.
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

/// Counts the lines of a `/proc/PID/maps`, without the two lines of each heap that glibc makes for threads. glibc makes
/// a heap when two threads happen to allocate at the same time, up to eight heaps for each core. A heap has 64 MiB of
/// addresses, and starts at a multiple of 64 MiB.
fn mappings(maps: &str) -> usize {
    const HEAP: usize = 64 << 20;
    let range = |line: &str| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
    };
    let lines: Vec<&str> = maps.lines().collect();
    let heaps = lines.windows(2).filter(|pair| {
        let [Some((start, middle)), Some((next, end))] = [range(pair[0]), range(pair[1])] else {
            return false;
        };
        start % HEAP == 0 && middle == next && end - start == HEAP && pair[1].contains("---p")
    });
    lines.len() - 2 * heaps.count()
}
