//! The ends of a process: exit, and fork.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use super::Shard;

static SHARDS: Mutex<Vec<Weak<Shard>>> = Mutex::new(Vec::new());
/// This process is a forked child of one that opened a device.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Whether the devices of this process image belong to the parent process.
#[inline]
pub(crate) fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Makes forked children leave all devices alone from now on.
pub(super) fn watch_forks() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        // SAFETY: the function is there as long as the program, takes nothing and stores one word.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Drives the shard's engine at a normal exit of the process until all is acknowledged and closed, so that
/// a completed Send arrives.
pub(crate) fn linger_at_exit(shard: &Arc<Shard>) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        // SAFETY: the function is there as long as the program, and takes nothing.
        unsafe { libc::atexit(at_exit) };
    });
    let mut shards = SHARDS.lock().unwrap_or_else(PoisonError::into_inner);
    shards.retain(|shard| shard.strong_count() > 0);
    shards.push(Arc::downgrade(shard));
}

extern "C" fn at_exit() {
    if forked() {
        return;
    }
    let shards = std::mem::take(&mut *SHARDS.lock().unwrap_or_else(PoisonError::into_inner));
    for shard in shards.iter().filter_map(Weak::upgrade) {
        shard.stop();
        shard.linger();
    }
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}
