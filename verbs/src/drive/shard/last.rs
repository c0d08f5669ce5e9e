//! Ends the process of a program whose threads, including `main`, have all ended by `pthread_exit`. The C library
//! ends a process with its last thread, but the device's own threads would keep this process alive.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How often an engine's thread checks whether threads of the program remain.
const EVERY: Duration = Duration::from_secs(1);
/// Number of passes between two readings of the clock.
const PASSES: u32 = 1 << 16;

/// The state of an engine's thread that checks whether threads of the program remain.
pub(super) struct Watch {
    next: Instant,
    passes: u32,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { next: Instant::now() + EVERY, passes: 0 }
    }

    /// Counts a pass, and calls [`look`](Self::look) once in [`PASSES`] calls. Must be called before each pass.
    #[inline]
    pub(super) fn count(&mut self) {
        self.passes = self.passes.wrapping_add(1);
        if self.passes.is_multiple_of(PASSES) {
            self.look();
        }
    }

    /// Ends the process, as the C library would, if the program has no threads left. Checks this at most once in
    /// [`EVERY`].
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

/// Returns whether the first thread of the process has ended, and all other threads belong to the device.
#[cold]
fn is_abandoned() -> bool {
    let first = std::process::id();
    // In most processes, the first thread lives, so nothing else need be read.
    if !Task::read(first).is_some_and(|task| task.ended) {
        return false;
    }
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return false };
    tasks.map_while(Result::ok).filter_map(|task| task.file_name().to_str()?.parse().ok()).all(|id: u32| {
        // A thread that no longer exists does not belong to the program either.
        id == first || Task::read(id).is_none_or(|task| task.ended || task.is_ours())
    })
}

/// The state of a thread, as the kernel reports it.
#[derive(Debug, Default)]
struct Task {
    name: String,
    ended: bool,
    /// The signals that the thread blocks, one bit for each.
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

    /// Returns whether this is a thread of the device, or a thread that DPDK has started from a thread of the device.
    /// All these threads block every signal that can be blocked. Each has a name of its own, or the name of the
    /// thread that has started it.
    fn is_ours(&self) -> bool {
        /// SIGKILL and SIGSTOP, and the two signals that the C library reserves for itself.
        const UNBLOCKABLE: u64 = 1 << 8 | 1 << 18 | 1 << 31 | 1 << 32;
        const NAMES: [&str; 7] =
            ["urnic-", "dpdk-", "eal-intr-thread", "rte_mp_", "vhost-events", "vhost_reconn", "telemetry-"];
        self.blocked | UNBLOCKABLE == u64::MAX && NAMES.iter().any(|name| self.name.starts_with(name))
    }
}

/// Ends the process by `exit`, which runs the exit handlers. A new thread without blocked signals calls `exit`, so that
/// the handlers run as on a thread of the program.
#[cold]
fn end() {
    static ENDING: AtomicBool = AtomicBool::new(false);
    if ENDING.swap(true, Ordering::SeqCst) {
        return;
    }
    let exit = || {
        // SAFETY: the set is ours. The status is the one with which the C library exits after the last thread.
        unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
            libc::exit(0)
        }
    };
    // If no thread can be started, the next check, in a second, tries again.
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

    /// The process of this test is not abandoned: its first thread lives, and the test's own thread belongs to the
    /// program.
    #[test]
    fn a_program_that_runs_is_not_abandoned() {
        assert!(!is_abandoned());
        let own = Task::read(nix::unistd::gettid().as_raw() as u32).unwrap();
        assert!(!own.ended && !own.is_ours());
    }
}
