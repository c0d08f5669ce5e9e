//! Which cores this process may use, and pinning a thread to one.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The core could not be taken.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("cannot run on core {core}: this process may use cores {allowed:?}")]
pub struct PinError {
    /// The core asked for.
    pub core: usize,
    /// The cores that are allowed.
    pub allowed: Vec<usize>,
}

/// The cores that the calling thread may run on, ascending.
pub fn allowed_cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count()).filter(|&c| set.is_set(c).unwrap_or(false)).collect()
}

/// Pins the calling thread to `core`.
pub fn pin_current_thread(core: usize) -> Result<(), PinError> {
    if core_affinity::set_for_current(core_affinity::CoreId { id: core }) && allowed_cores() == [core] {
        return Ok(());
    }
    Err(PinError { core, allowed: allowed_cores() })
}

/// Lets the calling thread run on all of `cores`; nothing changes if that is refused.
pub(crate) fn set_current_thread(cores: &[usize]) {
    let mut set = CpuSet::new();
    if !cores.is_empty() && cores.iter().all(|&c| set.set(c).is_ok()) {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}
