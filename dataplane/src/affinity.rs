//! Finds the cores that this process may use, and pins threads to cores.

use std::collections::BTreeSet;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The calling thread could not be pinned to the core.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("cannot run on core {core}: this thread may use only the cores {allowed:?}; choose one of these")]
pub struct PinError {
    /// The core asked for.
    pub core: usize,
    /// The cores that the calling thread may run on.
    pub allowed: Vec<usize>,
}

/// Returns the cores that the calling thread may run on, in ascending order.
pub fn allowed_cores() -> Vec<usize> {
    cores_of(Pid::from_raw(0))
}

fn cores_of(thread: Pid) -> Vec<usize> {
    let Ok(set) = sched_getaffinity(thread) else { return Vec::new() };
    (0..CpuSet::count()).filter(|&c| set.is_set(c).unwrap_or(false)).collect()
}

/// Returns the cores, in ascending order, that any thread of this process may run on and that no thread is pinned to,
/// because a pinned thread may poll without pause. If there is no such core, returns all cores except the one that the
/// calling thread is pinned to. If that leaves none either, returns that one core. If `/proc` is unreadable, looks only
/// at the calling thread.
pub fn free_cores() -> Vec<usize> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let threads = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    choose(&allowed_cores(), threads.map(|thread| cores_of(Pid::from_raw(thread))))
}

fn choose(own: &[usize], threads: impl Iterator<Item = Vec<usize>>) -> Vec<usize> {
    let pinned = |cores: &[usize]| if let [core] = cores { Some(*core) } else { None };
    let mut all = BTreeSet::from_iter(own.iter().copied());
    let mut taken = BTreeSet::from_iter(pinned(own));
    let left = taken.clone();
    for cores in threads {
        taken.extend(pinned(&cores));
        all.extend(cores);
    }
    let without = |some: &BTreeSet<usize>| Some(&all - some).filter(|cores| !cores.is_empty());
    without(&taken).or_else(|| without(&left)).unwrap_or(all).into_iter().collect()
}

/// Pins the calling thread to `core`.
pub fn pin_current_thread(core: usize) -> Result<(), PinError> {
    if core_affinity::set_for_current(core_affinity::CoreId { id: core }) && allowed_cores() == [core] {
        return Ok(());
    }
    Err(PinError { core, allowed: allowed_cores() })
}

/// Lets the calling thread run on those of `cores` that the kernel allows. Changes nothing if `cores` is empty or the
/// kernel allows none of them.
pub fn set_current_thread(cores: &[usize]) {
    let mut set = CpuSet::new();
    if !cores.is_empty() && cores.iter().all(|&c| set.set(c).is_ok()) {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_are_the_cores_that_nobody_is_pinned_to() {
        let free =
            |own: &[usize], threads: &[&[usize]]| choose(own, threads.iter().map(|cores| cores.to_vec()));
        // SPDK: a pinned reactor opens the device; EAL's other threads run on the cores that the reactors leave.
        assert_eq!(free(&[0], &[&[0], &[1], &[2, 3], &[2, 3]]), [2, 3]);
        assert_eq!(free(&[0, 1, 2, 3], &[&[0, 1, 2, 3], &[1]]), [0, 2, 3]);
        // A thread is pinned to each core, so the caller gets the core to which it is not pinned itself.
        assert_eq!(free(&[0], &[&[0], &[1]]), [1]);
        // Under `taskset -c 2`, there is no other core.
        assert_eq!(free(&[2], &[&[2], &[2]]), [2]);
        // A thread that has just ended has no cores.
        assert_eq!(free(&[0, 1], &[&[], &[0, 1]]), [0, 1]);
        assert_eq!(free(&[], &[]), []);
    }
}
