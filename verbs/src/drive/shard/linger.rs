//! The fate of connections at the end of a process (`exit`, `_exit`, `quick_exit`), and in a forked child.
//!
//! The exiting thread requests the goodbye, that is, the graceful end of all connections. An engine's thread
//! carries out the goodbye, and the exiting thread waits for a limited time. The exiting thread does not carry
//! it out itself, because it may run a signal handler, which may have interrupted any code, even a pass.
//!
//! If no engine has a thread, [`before_exit`] does nothing, and `exit` and `quick_exit` start a thread for the goodbye.
//! Only if no thread can be started, the exiting thread carries out the goodbye. A forked child leaves the
//! connections to its parent.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::{Occasion, Shard, driver};
use crate::shared::error::Result;
use crate::shared::quiet::{self, forked};
use crate::shared::sync::this_thread;

/// Time limit of a graceful end (exit, drop of the device).
const LINGER: Duration = Duration::from_secs(5);
/// How long a thread may hold an engine while the process ends. After that, the thread is presumed to have been
/// stopped for good.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// How long an engine's thread may take to begin the goodbye.
const BEGIN: Duration = Duration::from_secs(2);
/// How long the program receives no events or completions after the goodbye. If the process still exists after this
/// time, it may be waiting for them.
const HUSH: Duration = Duration::from_secs(1);

static SHARDS: Mutex<Vec<Weak<Shard>>> = Mutex::new(Vec::new());
/// The request of the exiting thread to the engines' threads, and its progress.
static WISH: AtomicU8 = AtomicU8::new(wish::NONE);
/// Id of the process that has the devices. A child that shares this process's memory (`vfork`) has no devices.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Id of the thread that waits for the goodbye, or 0. If this thread holds an engine, no other thread can get the
/// engine, because a signal handler has interrupted the thread in a pass.
static EXITING: AtomicUsize = AtomicUsize::new(0);
/// Whether the goodbye could not get all engines, because a thread holds an engine or the list of the shards.
static LOST: AtomicBool = AtomicBool::new(false);
/// When the goodbye ended, in nanoseconds since [`epoch`].
static OVER: AtomicU64 = AtomicU64::new(0);

mod wish {
    pub(super) const NONE: u8 = 0;
    pub(super) const WANTED: u8 = 1;
    /// A thread is carrying out the request.
    pub(super) const TAKEN: u8 = 2;
    /// That thread has found out which engines are available.
    pub(super) const BEGUN: u8 = 3;
    pub(super) const DONE: u8 = 4;
    /// The program receives events and completions again.
    pub(super) const PAST: u8 = 5;
}

unsafe extern "C" {
    /// Registers a function for `quick_exit`. Crate `libc` does not declare this function of the C library.
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

/// Registers the shard for the exit of the process. At the exit, its engine is driven until the peers have
/// acknowledged all data and FINs, for at most [`LINGER`], so that the data of completed Sends arrives.
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

/// Ends the connections of all DPDK ports as at a normal exit, and closes the ports, because the program is about to
/// clean up DPDK's EAL.
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

/// Ends all connections of this process gracefully, as a normal exit does, and waits until their data is
/// acknowledged, for at most about 12 s. A program that ends by `_exit` should call this before. Does nothing
/// if no engine of the process has a thread.
///
/// Async-signal-safe: it allocates nothing and takes no lock.
pub fn before_exit() {
    goodbye(false);
}

/// Requests a goodbye and waits for it. If no engine has a thread, starts a thread for the goodbye if
/// `may_start_thread` is true, and does nothing if it is false.
fn goodbye(may_start_thread: bool) {
    if forked() || OWNER.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    let fulfilled = driver::has_threads();
    if !fulfilled && !may_start_thread {
        return;
    }
    // If another thread has made the request before, this thread only waits.
    if WISH.compare_exchange(wish::NONE, wish::WANTED, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
        EXITING.store(this_thread(), Ordering::SeqCst);
        quiet::hold_back();
        driver::wake_all();
        // A new thread is needed because logging uses thread-local variables, which the exiting thread may have lost
        // by now.
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
        // This thread must not wait longer at a time, because nothing wakes it.
        thread::sleep(driver::SHORTEST_NAP);
    };
    let _ = EXITING.compare_exchange(this_thread(), 0, Ordering::SeqCst, Ordering::SeqCst);
    if !done || LOST.swap(false, Ordering::SeqCst) {
        say(
            "urnic: the process ends while a thread is at work on the device (for example by exit() in a signal \
             handler): its connections end without notice, and their peers find out by timeout\n",
        );
    }
}

/// Writes `words` to standard error. Async-signal-safe.
fn say(words: &str) {
    // SAFETY: the buffer has the stated length.
    unsafe { libc::write(2, words.as_ptr().cast(), words.len()) };
}

/// Returns whether `owner`, which holds an engine, is the exiting thread and so will not release the engine.
pub(super) fn is_stuck(owner: usize) -> bool {
    owner != 0 && owner == EXITING.load(Ordering::SeqCst)
}

/// Returns whether the end of the process has begun.
pub(super) fn has_begun() -> bool {
    WISH.load(Ordering::SeqCst) != wish::NONE
}

/// Returns whether an engine's thread must call [`grant`].
#[inline]
pub(super) fn is_wanted() -> bool {
    matches!(WISH.load(Ordering::Relaxed), wish::WANTED | wish::DONE)
}

/// Carries out the goodbye, if one is requested. After the goodbye, ends the silence of events and completions when it
/// is time. The caller must be an engine's thread that does not hold its engine, a thread that was started for
/// the goodbye, or, if no thread can be started, the exiting thread.
#[cold]
pub(super) fn grant() {
    if WISH.load(Ordering::SeqCst) == wish::DONE {
        return break_silence();
    }
    if WISH.compare_exchange(wish::WANTED, wish::TAKEN, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        return;
    }
    // This does not wait for the lock, because the exiting thread may hold it.
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
    // The shards are kept, because dropping the last handle of a device would wait for this thread to end. They are
    // kept in a static, so that leak checkers find them.
    static LAST: OnceLock<Vec<Arc<Shard>>> = OnceLock::new();
    if let Err(shards) = LAST.set(shards) {
        std::mem::forget(shards);
    }
    OVER.store(epoch().elapsed().as_nanos() as u64, Ordering::SeqCst);
    WISH.store(wish::DONE, Ordering::SeqCst);
}

/// Lets the program receive events and completions again if the process still exists [`HUSH`] after the goodbye,
/// because an exit handler may be waiting for them.
fn break_silence() {
    let over = Duration::from_nanos(OVER.load(Ordering::SeqCst));
    if epoch().elapsed() >= over + HUSH
        && WISH.compare_exchange(wish::DONE, wish::PAST, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    {
        quiet::deliver_held();
    }
}

/// Returns whether events and completions are still held back from the program. A poller calls this when it finds that
/// they are held back, because the time for that may be over.
#[cold]
pub(crate) fn still_quiet() -> bool {
    if WISH.load(Ordering::SeqCst) == wish::DONE {
        break_silence();
    }
    quiet::is_quiet()
}

/// Ends all connections of `shards` gracefully, and drives their engines until all data is acknowledged or [`LINGER`]
/// has passed. Treats all shards together, because a connection may lead from one of them to another.
pub(super) fn linger(shards: &[&Shard]) {
    if forked() {
        return;
    }
    // An engine is unavailable only while the process ends, and then nothing can be done about it.
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
            worked |= engine.pass(Occasion::Other);
            drained &= engine.drained();
        }
        if drained {
            // This pass acknowledges what the last pass received, for example a peer's FIN.
            for shard in shards {
                shard.lock()?.pass(Occasion::Other);
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
    quiet::mark_as_child();
}

/// Logs the counters of the engines.
fn report(shards: &[&Shard]) {
    if tracing::enabled!(tracing::Level::DEBUG) {
        for shard in shards {
            let Ok(attributes) = shard.lock().map(|engine| engine.attributes()) else { continue };
            let counted = attributes.counters.iter().filter(|(_, n)| *n > 0);
            let counted: Vec<_> = counted.map(|(name, n)| format!("{name} {n}")).collect();
            tracing::debug!("the counters of {}: {}", attributes.main(), counted.join(", "));
        }
    }
}

#[cfg(test)]
mod tests;
