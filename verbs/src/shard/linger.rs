//! The ends of a process: exit, `_exit`, and fork.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::{Shard, driver};

/// How long a graceful end may take (exit, drop of the device).
const LINGER: Duration = Duration::from_secs(5);

static SHARDS: Mutex<Vec<Weak<Shard>>> = Mutex::new(Vec::new());
/// This process is a forked child of one that opened a device.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Whether the devices of this process image belong to the parent process.
#[inline]
pub(crate) fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// What [`before_exit`] wants of the engines' threads, and how far that is.
static WISH: AtomicU8 = AtomicU8::new(wish::NONE);
/// The process that has the devices: a child that shares our memory (vfork) has not.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// How long an engine's thread may take to begin: who holds an engine may have been interrupted for good.
const BEGIN: Duration = Duration::from_secs(1);

mod wish {
    pub(super) const NONE: u8 = 0;
    pub(super) const WANTED: u8 = 1;
    /// Some engine's thread is at it.
    pub(super) const TAKEN: u8 = 2;
    /// All engines could be had.
    pub(super) const BEGUN: u8 = 3;
    pub(super) const DONE: u8 = 4;
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
    OWNER.store(std::process::id(), Ordering::Relaxed);
    let mut shards = SHARDS.lock().unwrap_or_else(PoisonError::into_inner);
    shards.retain(|shard| shard.strong_count() > 0);
    shards.push(Arc::downgrade(shard));
}

/// In a thread of its own: this one has lost its thread-local variables by now, and logging uses some.
extern "C" fn at_exit() {
    if forked() {
        return;
    }
    match thread::Builder::new().spawn(say_goodbye) {
        Ok(thread) => drop(thread.join()),
        Err(_) => say_goodbye(),
    }
}

fn say_goodbye() {
    let shards = std::mem::take(&mut *SHARDS.lock().unwrap_or_else(PoisonError::into_inner));
    let shards: Vec<_> = shards.iter().filter_map(Weak::upgrade).collect();
    shards.iter().for_each(|shard| shard.stop());
    linger(&shards.iter().map(Arc::as_ref).collect::<Vec<_>>());
    shards.iter().for_each(|shard| shard.lock().finish());
}

/// Ends all connections of this process gracefully and waits, some seconds at most, until their data is acknowledged, as
/// is done at a normal exit: for programs that end without that, by `_exit`. The devices need a thread of the engine.
///
/// May be called in a signal handler: it allocates nothing and takes no lock.
pub fn before_exit() {
    if forked() || OWNER.load(Ordering::Relaxed) != std::process::id() || !driver::has_threads() {
        return;
    }
    // Another thread may have come first.
    let _ = WISH.compare_exchange(wish::NONE, wish::WANTED, Ordering::SeqCst, Ordering::SeqCst);
    let start = Instant::now();
    loop {
        let patience = match WISH.load(Ordering::SeqCst) {
            wish::DONE => return,
            wish::BEGUN => BEGIN + 2 * LINGER,
            _ => BEGIN,
        };
        if start.elapsed() >= patience || !driver::has_threads() {
            return;
        }
        // Their naps are short.
        thread::sleep(driver::SHORTEST_NAP);
    }
}

/// Whether an engine's thread is to [`grant`].
#[inline]
pub(super) fn is_wanted() -> bool {
    WISH.load(Ordering::Relaxed) == wish::WANTED
}

/// An engine's thread, not holding its engine: does what [`before_exit`] waits for.
#[cold]
pub(super) fn grant() {
    if WISH.compare_exchange(wish::WANTED, wish::TAKEN, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        return;
    }
    // Who waits may hold this.
    let shards: Vec<_> = match SHARDS.try_lock() {
        Ok(shards) => shards.iter().filter_map(Weak::upgrade).collect(),
        Err(_) => Vec::new(),
    };
    shards.iter().for_each(|shard| drop(shard.lock()));
    WISH.store(wish::BEGUN, Ordering::SeqCst);
    linger(&shards.iter().map(Arc::as_ref).collect::<Vec<_>>());
    shards.iter().for_each(|shard| shard.lock().finish());
    // The process ends now: to drop a device here would wait for this very thread.
    std::mem::forget(shards);
    WISH.store(wish::DONE, Ordering::SeqCst);
}

/// Ends all connections of `shards` gracefully and drives their engines until all data is acknowledged;
/// bounded. All at once, because they may be each other's peers.
pub(super) fn linger(shards: &[&Shard]) {
    if forked() {
        return;
    }
    let end = Instant::now() + LINGER;
    shards.iter().for_each(|shard| shard.lock().shutdown());
    loop {
        let (mut worked, mut drained) = (false, true);
        for shard in shards {
            let mut engine = shard.lock();
            worked |= engine.pass();
            drained &= engine.drained();
        }
        if drained {
            // What the last pass received is acknowledged by this one: the peer's FIN, perhaps.
            for shard in shards {
                shard.lock().pass();
            }
            report(shards);
            return;
        }
        if Instant::now() >= end {
            tracing::warn!("not everything was acknowledged within {LINGER:?}");
            report(shards);
            return;
        }
        if !worked {
            thread::sleep(driver::SHORTEST_NAP);
        }
    }
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// What the devices have counted.
fn report(shards: &[&Shard]) {
    if tracing::enabled!(tracing::Level::DEBUG) {
        for shard in shards {
            let attributes = shard.lock().attributes();
            let counted = attributes.counters.iter().filter(|(_, n)| *n > 0);
            let counted: Vec<_> = counted.map(|(name, n)| format!("{name} {n}")).collect();
            tracing::debug!("{}: {}", attributes.main(), counted.join(", "));
        }
    }
}
