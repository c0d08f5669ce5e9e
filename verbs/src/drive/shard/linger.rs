//! The ends of a process: exit, `_exit`, `quick_exit`, and fork.
//!
//! All ends work the same way. The exiting thread requests the goodbye and waits for a bounded time, and an engine's
//! thread carries it out. The exiting thread leaves this to another, because it may run a signal handler, which may
//! have interrupted anything.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::{Shard, driver};
use crate::shared::error::Result;
use crate::shared::quiet::{self, forked};
use crate::shared::sync::this_thread;

/// Time limit of a graceful end (exit, drop of the device).
const LINGER: Duration = Duration::from_secs(5);
/// How long a thread may hold an engine while the process ends. Such a thread may have been stopped for good.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// How long an engine's thread may take to begin the goodbye.
const BEGIN: Duration = Duration::from_secs(2);
/// How long the program receives no events or completions after the goodbye. If the process still exists then, it is
/// waiting for something.
const HUSH: Duration = Duration::from_secs(1);

static SHARDS: Mutex<Vec<Weak<Shard>>> = Mutex::new(Vec::new());
/// The request of the exiting thread to the engines' threads, and its progress.
static WISH: AtomicU8 = AtomicU8::new(wish::NONE);
/// The process that has the devices. A child that shares the memory of that process (vfork) does not have them.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The thread that waits for the goodbye, or 0. An engine that this thread holds cannot be had, because the thread was
/// interrupted.
static EXITING: AtomicUsize = AtomicUsize::new(0);
/// Whether some engine could not be had.
static LOST: AtomicBool = AtomicBool::new(false);
/// When the goodbye ended, in nanoseconds since [`epoch`].
static OVER: AtomicU64 = AtomicU64::new(0);

mod wish {
    pub(super) const NONE: u8 = 0;
    pub(super) const WANTED: u8 = 1;
    /// A thread is carrying it out.
    pub(super) const TAKEN: u8 = 2;
    /// The engines that can be had are known.
    pub(super) const BEGUN: u8 = 3;
    pub(super) const DONE: u8 = 4;
    /// The program receives events and completions again.
    pub(super) const PAST: u8 = 5;
}

unsafe extern "C" {
    /// A function of the C library that crate `libc` does not declare.
    fn at_quick_exit(function: extern "C" fn()) -> libc::c_int;
}

fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

/// Makes forked children leave all devices alone from now on.
pub(super) fn watch_forks() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        // SAFETY: the function exists as long as the program, takes nothing and stores one word.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Registers the shard for the exit of the process: its engine is then driven until all is acknowledged and closed,
/// so that a completed Send arrives.
pub(crate) fn linger_at_exit(shard: &Arc<Shard>) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        epoch();
        // SAFETY: the functions exist as long as the program, and take nothing.
        unsafe {
            libc::atexit(at_exit);
            at_quick_exit(at_exit);
        }
    });
    OWNER.store(std::process::id(), Ordering::Relaxed);
    let mut shards = SHARDS.lock().unwrap_or_else(PoisonError::into_inner);
    shards.retain(|shard| shard.strong_count() > 0);
    shards.push(Arc::downgrade(shard));
}

/// Ends the connections of all ports as at a normal exit, and closes the ports, because the program is about to
/// clean up their EAL.
#[cfg(feature = "dpdk")]
pub(crate) fn close_ports() {
    let mut shards = SHARDS.lock().unwrap_or_else(PoisonError::into_inner);
    let known: Vec<_> = shards.iter().filter_map(Weak::upgrade).collect();
    let is_port =
        |shard: &Arc<Shard>| shard.lock().is_ok_and(|engine| engine.attributes().capabilities.is_some());
    let (ports, others): (Vec<_>, Vec<_>) = known.into_iter().partition(is_port);
    *shards = others.iter().map(Arc::downgrade).collect();
    drop(shards);
    ports.iter().for_each(|shard| shard.stop());
    let ports: Vec<_> = ports.iter().map(Arc::as_ref).collect();
    linger(&ports);
    ports.iter().for_each(|shard| shard.close());
}

extern "C" fn at_exit() {
    goodbye(true);
}

/// Ends all connections of this process gracefully, as a normal exit does, and waits a few seconds at most until their
/// data is acknowledged. Call this in a program that ends otherwise, by `_exit`. It does nothing if no engine of the
/// process has a thread.
///
/// Async-signal-safe: it allocates nothing and takes no lock.
pub fn before_exit() {
    goodbye(false);
}

/// Requests a goodbye and waits for it. If no engine has a thread, starts one if `may_start_thread`, and otherwise does
/// nothing.
fn goodbye(may_start_thread: bool) {
    if forked() || OWNER.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    let fulfilled = driver::has_threads();
    if !fulfilled && !may_start_thread {
        return;
    }
    // Another thread may have made the request first.
    if WISH.compare_exchange(wish::NONE, wish::WANTED, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
        EXITING.store(this_thread(), Ordering::SeqCst);
        quiet::hush();
        driver::wake_all();
        // A new thread, because this one has lost its thread-local variables by now, and logging uses some.
        if !fulfilled && thread::Builder::new().spawn(grant).is_err() {
            grant();
        }
    }
    let start = Instant::now();
    let done = loop {
        let patience = match WISH.load(Ordering::SeqCst) {
            wish::DONE | wish::PAST => break true,
            wish::BEGUN => BEGIN + 2 * LINGER,
            _ => BEGIN,
        };
        if start.elapsed() >= patience || fulfilled && !driver::has_threads() {
            break false;
        }
        // The engines' threads take only short naps now.
        thread::sleep(driver::SHORTEST_NAP);
    };
    let _ = EXITING.compare_exchange(this_thread(), 0, Ordering::SeqCst, Ordering::SeqCst);
    if !done || LOST.swap(false, Ordering::SeqCst) {
        say(
            "urnic: the process ends while a thread is at work on the device (for example by exit() in a signal handler): \
             its connections end without notice, and their peers find out by timeout\n",
        );
    }
}

/// Writes to standard error. Async-signal-safe.
fn say(words: &str) {
    // SAFETY: the buffer has the stated length.
    unsafe { libc::write(2, words.as_ptr().cast(), words.len()) };
}

/// Returns whether the holder of an engine will not release it, because the process ends and the holder is the
/// exiting thread.
pub(super) fn is_stuck(owner: usize) -> bool {
    owner != 0 && owner == EXITING.load(Ordering::SeqCst)
}

/// Returns whether the end of the process has begun.
pub(super) fn has_begun() -> bool {
    WISH.load(Ordering::SeqCst) != wish::NONE
}

/// Returns whether an engine's thread must [`grant`].
#[inline]
pub(super) fn is_wanted() -> bool {
    matches!(WISH.load(Ordering::Relaxed), wish::WANTED | wish::DONE)
}

/// Carries out what [`goodbye`] waits for. The caller is an engine's thread that does not hold its engine, or a
/// thread that was started for this.
#[cold]
pub(super) fn grant() {
    if WISH.load(Ordering::SeqCst) == wish::DONE {
        return break_silence();
    }
    if WISH.compare_exchange(wish::WANTED, wish::TAKEN, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        return;
    }
    // The exiting thread may hold this lock.
    let listed = SHARDS.try_lock().map(|shards| shards.iter().filter_map(Weak::upgrade).collect::<Vec<_>>());
    let unknown = listed.is_err();
    let shards = listed.unwrap_or_default();
    let free: Vec<_> = shards.iter().map(Arc::as_ref).filter(|shard| shard.lock().is_ok()).collect();
    LOST.store(unknown || free.len() < shards.len(), Ordering::SeqCst);
    WISH.store(wish::BEGUN, Ordering::SeqCst);
    linger(&free);
    for shard in free {
        if let Ok(mut engine) = shard.lock() {
            engine.finish();
        }
    }
    // Dropping a device here would wait for this very thread, and the process ends anyway. Leak checkers find it in
    // a static.
    static LAST: OnceLock<Vec<Arc<Shard>>> = OnceLock::new();
    if let Err(shards) = LAST.set(shards) {
        std::mem::forget(shards);
    }
    OVER.store(epoch().elapsed().as_nanos() as u64, Ordering::SeqCst);
    WISH.store(wish::DONE, Ordering::SeqCst);
}

/// Passes to the program what was held back, if the process still exists long after the goodbye, because an exit
/// handler may be waiting for it.
fn break_silence() {
    let over = Duration::from_nanos(OVER.load(Ordering::SeqCst));
    if epoch().elapsed() >= over + HUSH
        && WISH.compare_exchange(wish::DONE, wish::PAST, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    {
        quiet::speak();
    }
}

/// Called by a poller that found that the program must not be told anything new. Returns whether that is still so.
#[cold]
pub(crate) fn still_quiet() -> bool {
    if WISH.load(Ordering::SeqCst) == wish::DONE {
        break_silence();
    }
    quiet::is_quiet()
}

/// Ends all connections of `shards` gracefully, and drives their engines until all data is acknowledged or
/// [`LINGER`] has passed. Does so for all shards at once, because they may be each other's peers.
pub(super) fn linger(shards: &[&Shard]) {
    if forked() {
        return;
    }
    // An engine can be unavailable only while the process ends, and then nothing more can be done.
    if let Err(error) = see_out(shards) {
        tracing::debug!("delivery at the end of the process stops early: {error}");
    }
    report(shards);
}

fn see_out(shards: &[&Shard]) -> Result<()> {
    let end = Instant::now() + LINGER;
    for shard in shards {
        shard.lock()?.shutdown();
    }
    loop {
        let (mut worked, mut drained) = (false, true);
        for shard in shards {
            let mut engine = shard.lock()?;
            worked |= engine.pass();
            drained &= engine.drained();
        }
        if drained {
            // This pass acknowledges what the last one received, for example the peer's FIN.
            for shard in shards {
                shard.lock()?.pass();
            }
            return Ok(());
        }
        if Instant::now() >= end {
            tracing::warn!("the peers did not acknowledge all data within {LINGER:?}: the rest may be lost");
            return Ok(());
        }
        if !worked {
            thread::sleep(driver::SHORTEST_NAP);
        }
    }
}

extern "C" fn in_child() {
    quiet::is_child();
}

/// Logs the counters of the devices.
fn report(shards: &[&Shard]) {
    if tracing::enabled!(tracing::Level::DEBUG) {
        for shard in shards {
            let Ok(attributes) = shard.lock().map(|engine| engine.attributes()) else { continue };
            let counted = attributes.counters.iter().filter(|(_, n)| *n > 0);
            let counted: Vec<_> = counted.map(|(name, n)| format!("{name} {n}")).collect();
            tracing::debug!("{}: {}", attributes.main(), counted.join(", "));
        }
    }
}

#[cfg(test)]
mod tests;
