//! The end of a program whose threads have all ended (by `pthread_exit`, also of `main`). The C library ends the
//! process with its last thread, but the device's own threads would keep it alive.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How often an engine's thread looks for the program's threads.
const EVERY: Duration = Duration::from_secs(1);
/// Number of passes between two looks at the clock.
const PASSES: u32 = 1 << 16;

/// An engine's thread's watch on the program's threads.
pub(super) struct Watch {
    next: Instant,
    passes: u32,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { next: Instant::now() + EVERY, passes: 0 }
    }

    /// Called before each further pass.
    #[inline]
    pub(super) fn count(&mut self) {
        self.passes = self.passes.wrapping_add(1);
        if self.passes.is_multiple_of(PASSES) {
            self.look();
        }
    }

    /// Ends the process, as the C library would, if the program has no thread left.
    #[inline]
    pub(super) fn look(&mut self) {
        let now = Instant::now();
        if now >= self.next {
            self.next = now + EVERY;
            if is_abandoned() {
                end();
            }
        }
    }
}

/// Returns whether the first thread has ended, and all others are the device's.
#[cold]
fn is_abandoned() -> bool {
    let first = std::process::id();
    // For most processes, this is all that is read.
    if !Task::read(first).is_some_and(|task| task.ended) {
        return false;
    }
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return false };
    tasks.map_while(Result::ok).filter_map(|task| task.file_name().to_str()?.parse().ok()).all(|id: u32| {
        // A thread that no longer exists is not the program's either.
        id == first || Task::read(id).is_none_or(|task| task.ended || task.is_ours())
    })
}

/// A thread, as the kernel shows it.
#[derive(Debug, Default)]
struct Task {
    name: String,
    ended: bool,
    /// The signals that it blocks, one bit each.
    blocked: u64,
}

impl Task {
    fn read(id: u32) -> Option<Self> {
        Some(Self::parse(&fs::read_to_string(format!("/proc/self/task/{id}/status")).ok()?))
    }

    fn parse(status: &str) -> Self {
        let mut task = Self::default();
        for (key, value) in status.lines().filter_map(|line| line.split_once(":\t")) {
            match key {
                "Name" => task.name = value.to_owned(),
                "State" => task.ended = value.starts_with(['Z', 'X']),
                "SigBlk" => task.blocked = u64::from_str_radix(value, 16).unwrap_or(0),
                _ => {}
            }
        }
        task
    }

    /// Returns whether it is a thread of this device, or one that DPDK has started from such a thread. All of them
    /// block every signal that can be blocked. Their names are their own, or that of the thread that started them.
    fn is_ours(&self) -> bool {
        /// SIGKILL and SIGSTOP, and the two signals that the C library reserves for itself.
        const UNBLOCKABLE: u64 = 1 << 8 | 1 << 18 | 1 << 31 | 1 << 32;
        const NAMES: [&str; 7] =
            ["urnic-", "dpdk-", "eal-intr-thread", "rte_mp_", "vhost-events", "vhost_reconn", "telemetry-"];
        self.blocked | UNBLOCKABLE == u64::MAX && NAMES.iter().any(|name| self.name.starts_with(name))
    }
}

/// Runs the exit handlers, once, in a thread such as the program might have had.
#[cold]
fn end() {
    static ENDING: AtomicBool = AtomicBool::new(false);
    if ENDING.swap(true, Ordering::SeqCst) {
        return;
    }
    let exit = || {
        // SAFETY: the set is ours; the status is what the C library uses after the last thread.
        unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
            libc::exit(0)
        }
    };
    // If no thread can be started, the next look comes in a second.
    if thread::Builder::new().spawn(exit).is_err() {
        ENDING.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_told_apart() {
        let task = |name: &str, state: &str, blocked: &str| {
            Task::parse(&format!("Name:\t{name}\nState:\t{state}\nSigBlk:\t{blocked}\n"))
        };
        assert!(task("urnic-engine", "S (sleeping)", "fffffffe7ffbfeff").is_ours());
        assert!(task("eal-intr-thread", "S (sleeping)", "fffffffe3ffbfeff").blocked != 0);
        assert!(!task("worker", "R (running)", "fffffffe7ffbfeff").is_ours());
        assert!(!task("urnic-engine", "S (sleeping)", "0000000000000000").is_ours());
        assert!(task("main", "Z (zombie)", "0000000000000000").ended);
        assert!(!task("main", "S (sleeping)", "0000000000000000").ended);
    }

    /// The thread of this test is one of the program's, and its first thread lives.
    #[test]
    fn a_program_that_runs_is_not_abandoned() {
        assert!(!is_abandoned());
        let own = Task::read(nix::unistd::gettid().as_raw() as u32).unwrap();
        assert!(!own.ended && !own.is_ours());
    }
}
