//! The engine's own thread: when it drives the engine, and when it sleeps.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use urnic_config::Progress;
use urnic_dataplane::{Machine, free_cores, pin_current_thread, set_current_thread};

use super::last::Watch;
use super::{Occasion, Shard, linger};
use crate::drive::wakeup::Wakeup;
use crate::shared::doorbell::Doorbells;
use crate::shared::error::{Error, Result};
use crate::shared::eventfd::EventFd;

/// Length of a nap shortly after there was work.
pub(super) const SHORTEST_NAP: Duration = Duration::from_micros(50);
/// Length of a nap when nothing has happened for long, on a port that does not signal frames. Longer naps would save
/// processor time of an idle process (15 to 30 us for each nap), but would delay the answers to peers of a sleeping
/// application.
pub(super) const LONGEST_NAP: Duration = Duration::from_micros(1500);
/// Maximum nap while the port signals frames. It limits the delay if the port misses a signal, for example when a
/// peer has just restarted.
const ARMED_NAP: Duration = Duration::from_millis(if cfg!(test) { 3_600_000 } else { 10 });
/// Maximum nap while the transport signals everything that arrives. It limits the time until the engine's thread
/// notices that all threads of the program have ended.
const CERTAIN_NAP: Duration = Duration::from_secs(if cfg!(test) { 3600 } else { 1 });
/// Maximum nap while another thread polls. It limits the time until the engine's thread notices that the polling has
/// ended.
const WATCHING_NAP: Duration = LONGEST_NAP;
/// How long the thread continues to run passes after the last work before it naps.
const SPIN: Duration = Duration::from_micros(50);
/// Number of passes with work after which the thread of an adaptive engine offers its core to other threads. One of
/// them may be a poller that only waits for this core.
const PASSES_BETWEEN_YIELDS: u32 = 16;

/// Number of engines' threads that run in this process.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Event that ends all naps of [`Driver::nap_armed`] when the process is about to end. Other naps are short.
static GOODBYE: OnceLock<EventFd> = OnceLock::new();

/// Wakes the engines' threads that wait for events of their transports, because the process is about to end.
/// Async-signal-safe.
pub(super) fn wake_all() {
    if let Some(goodbye) = GOODBYE.get() {
        goodbye.signal();
    }
}

/// Returns whether any engine has a thread.
pub(super) fn has_threads() -> bool {
    THREADS.load(Ordering::SeqCst) > 0
}

/// Whether the engine's thread sleeps, and why.
mod sleep {
    pub(super) const NO: u8 = 0;
    /// It sleeps while another thread polls.
    pub(super) const WATCHING: u8 = 1;
    /// It sleeps because nothing happens.
    pub(super) const IDLE: u8 = 2;
    /// It sleeps because nothing happens, and the port signals most frames.
    pub(super) const ARMED: u8 = 3;
    /// It sleeps because nothing happens, and the transport signals everything that arrives.
    pub(super) const CERTAIN: u8 = 4;
}

/// Hand-over between callers and the engine's thread.
pub(super) struct Driver {
    progress: Progress,
    /// Number of wake-ups. The thread sleeps on this word (futex).
    wakes: AtomicU32,
    sleeping: AtomicU8,
    /// Event by which callers end a nap of [`nap_armed`](Self::nap_armed).
    bell: EventFd,
    /// Whether the thread must take over although another thread polled a moment ago, because a caller is about to
    /// sleep.
    handed_over: AtomicBool,
    stopping: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Driver {
    pub(super) fn new(progress: Progress) -> Result<Self> {
        if GOODBYE.get().is_none() {
            // If two threads do this at the same time, one of the two events is dropped unused.
            let _ = GOODBYE.set(EventFd::new()?);
        }
        Ok(Self {
            progress,
            wakes: AtomicU32::new(0),
            sleeping: AtomicU8::new(sleep::NO),
            bell: EventFd::new()?,
            handed_over: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            thread: Mutex::new(None),
        })
    }

    #[inline]
    pub(super) fn is_dedicated(&self) -> bool {
        self.progress == Progress::Dedicated && !self.stopping.load(Ordering::Relaxed)
    }

    pub(super) fn has_thread(&self) -> bool {
        self.progress != Progress::Inline && !self.stopping.load(Ordering::Relaxed)
    }

    /// Starts the thread. All signals are blocked in it, because they belong to the application. The thread runs on
    /// `core`. If `core` is `None`, it prefers cores of NUMA node `node`, and keeps off cores to which threads of this
    /// process are pinned ([`free_cores`]), because it would take half of the time of a thread that polls there.
    pub(super) fn start(shard: &Arc<Shard>, core: Option<usize>, node: Option<u32>) -> Result<()> {
        let driver = &shard.driver;
        let run = match driver.progress {
            Progress::Inline => return Ok(()),
            Progress::Dedicated => dedicated,
            Progress::Adaptive => adaptive,
        };
        let own = shard.clone();
        // Chosen here, so that the new thread opens no files: the caller may be about to count or limit descriptors.
        let cores = match core {
            Some(_) => Vec::new(),
            None if node.is_none() => free_cores(),
            None => Machine::this().near(node, &free_cores()),
        };
        THREADS.fetch_add(1, Ordering::SeqCst);
        let thread = with_signals_blocked(|| {
            thread::Builder::new().name("urnic-engine".into()).spawn(move || {
                settle(core, &cores);
                run(&own);
                THREADS.fetch_sub(1, Ordering::SeqCst);
            })
        });
        let thread = thread.map_err(|source| {
            THREADS.fetch_sub(1, Ordering::SeqCst);
            Error::Os { what: "starting the engine's thread", source }
        })?;
        *driver.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// Wakes the thread for new work, if it sleeps and no other thread polls. The caller has entered its doorbell, and
    /// the thread looks for doorbells after it has said that it sleeps. These four are sequentially consistent, so one
    /// of the two sees the other.
    #[inline]
    pub(super) fn nudge(&self) {
        if self.sleeping.load(Ordering::SeqCst) >= sleep::IDLE {
            self.wake();
        }
    }

    /// Wakes the thread, as [`nudge`](Self::nudge) does, for work that no doorbell announces. The wake-up is counted
    /// first, so that a thread that has already looked for work, and is about to sleep, stays awake.
    pub(super) fn alert(&self) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) >= sleep::IDLE {
            self.wake();
        }
    }

    /// Wakes the engine's thread to receive the answer to something that was sent, unless the transport wakes the
    /// thread anyway. The thread is woken only if necessary, because the sender usually polls next, and then both
    /// threads would compete for the engine.
    #[inline]
    pub(super) fn expect(&self) {
        if matches!(self.sleeping.load(Ordering::Relaxed), sleep::IDLE | sleep::ARMED) {
            self.wake();
        }
    }

    /// Makes the thread take over, because the caller is about to sleep.
    pub(super) fn hand_over(&self) {
        if self.progress == Progress::Adaptive {
            self.handed_over.store(true, Ordering::Release);
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        match self.sleeping.swap(sleep::NO, Ordering::SeqCst) {
            sleep::NO => {}
            sleep::ARMED | sleep::CERTAIN => self.bell.signal(),
            // SAFETY: the word exists as long as `self`.
            _ => unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.wakes.as_ptr(),
                    libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                    1,
                );
            },
        }
    }

    /// Sleeps until `time` or [`LONGEST_NAP`] has passed, or until the number of wake-ups is no longer `seen`. Only the
    /// engine's thread calls this.
    fn nap(&self, seen: u32, why: u8, time: Duration, doorbells: &Doorbells) {
        let limit = libc::timespec { tv_sec: 0, tv_nsec: time.min(LONGEST_NAP).subsec_nanos().into() };
        self.sleeping.store(why, Ordering::SeqCst);
        if why >= sleep::IDLE && !doorbells.is_empty() {
            self.sleeping.store(sleep::NO, Ordering::SeqCst);
            return;
        }
        // SAFETY: the word exists as long as `self`, and the time until the call returns.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.wakes.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                seen,
                &limit,
            );
        }
        self.sleeping.store(sleep::NO, Ordering::SeqCst);
    }

    /// Sleeps as [`nap`](Self::nap) does, but an arriving frame, which `event` signals, also ends the nap.
    fn nap_armed(&self, seen: u32, event: &dyn Wakeup, time: Duration, doorbells: &Doorbells) {
        let why = if event.is_certain() { sleep::CERTAIN } else { sleep::ARMED };
        self.sleeping.store(why, Ordering::SeqCst);
        // No wake-up is lost: a caller first counts its wake-up or enters its doorbell, and only then checks whether
        // the thread sleeps.
        if self.wakes.load(Ordering::SeqCst) == seen && doorbells.is_empty() {
            // Once the end of the process has begun, `GOODBYE` stays readable. From then on it is not polled, and
            // naps are short.
            let goodbye = GOODBYE.get().filter(|_| !linger::has_begun()).unwrap_or(&self.bell).as_fd();
            let ends =
                |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            let mut ends = [ends(self.bell.as_fd()), ends(event.as_fd()), ends(goodbye)];
            let limit = libc::timespec {
                tv_sec: time.as_secs() as libc::time_t,
                tv_nsec: time.subsec_nanos().into(),
            };
            // SAFETY: the descriptors are open, and the array and the time exist until the call returns.
            unsafe { libc::ppoll(ends.as_mut_ptr(), ends.len() as _, &raw const limit, std::ptr::null()) };
        }
        self.sleeping.store(sleep::NO, Ordering::SeqCst);
        self.bell.take();
        event.clear();
    }

    #[cfg(test)]
    pub(super) fn is_watching(&self) -> bool {
        self.sleeping.load(Ordering::SeqCst) == sleep::WATCHING
    }

    /// Returns the number of wake-ups so far.
    #[cfg(test)]
    pub(super) fn wake_ups(&self) -> u32 {
        self.wakes.load(Ordering::SeqCst)
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// Runs passes without naps, until the thread must stop.
fn dedicated(shard: &Shard) {
    let mut watch = Watch::new();
    while !shard.driver.stopping.load(Ordering::Relaxed) {
        watch.count();
        if linger::is_wanted() {
            linger::grant();
        }
        step_aside(shard);
        let mut freed = false;
        if let Some(mut engine) = shard.try_lock() {
            freed = !engine.pass(Occasion::Other) && engine.has_freed_much();
        }
        if freed {
            give_memory_back();
        }
    }
}

/// Drives the engine while no other thread polls, and naps otherwise.
fn adaptive(shard: &Shard) {
    let driver = &shard.driver;
    let mut polls = shard.hot.polls.load(Ordering::Relaxed);
    let mut nap = SHORTEST_NAP;
    let mut watch = Watch::new();
    while !driver.stopping.load(Ordering::Relaxed) {
        if linger::is_wanted() {
            linger::grant();
        }
        watch.look();
        let seen = driver.wakes.load(Ordering::SeqCst);
        let polled = std::mem::replace(&mut polls, shard.hot.polls.load(Ordering::Relaxed)) != polls;
        if driver.handed_over.swap(false, Ordering::AcqRel) {
            nap = SHORTEST_NAP;
        } else if polled {
            driver.nap(seen, sleep::WATCHING, nap, &shard.doorbells);
            nap = (nap * 2).min(WATCHING_NAP);
            continue;
        }
        shard.give_up();
        let Some(Drive { worked, freed, deadline, event }) = drive(shard, polls, &mut watch) else {
            // This thread may have woken up on the core of the lock's holder, in the middle of the holder's
            // pass. The pass then continues only while this thread sleeps. So, unlike an idle nap, this nap
            // takes place even if a doorbell has rung.
            driver.nap(seen, sleep::WATCHING, SHORTEST_NAP, &shard.doorbells);
            continue;
        };
        if freed {
            give_memory_back();
        }
        if worked {
            nap = SHORTEST_NAP;
        }
        let until = |most: Duration| deadline.map_or(most, |d| d.min(most));
        match event {
            Some(event) => {
                let most = if event.is_certain() && !linger::has_begun() { CERTAIN_NAP } else { ARMED_NAP };
                driver.nap_armed(seen, &*event, until(most), &shard.doorbells);
            }
            None => driver.nap(seen, sleep::IDLE, until(nap), &shard.doorbells),
        }
        nap = (nap * 2).min(LONGEST_NAP);
    }
}

/// Outcome of driving an engine.
#[derive(Default)]
struct Drive {
    /// Whether there was work.
    worked: bool,
    /// Whether much memory has become free.
    freed: bool,
    /// Time until the engine wants the next pass; `None`: the engine wants a pass only if something happens, or
    /// the time is not known, because the last pass found work or another thread has taken the lock.
    deadline: Option<Duration>,
    /// The event that signals the next frame; `None` if the port does not signal frames or is not armed.
    event: Option<Arc<dyn Wakeup>>,
}

/// Runs passes until there was no work for a while, or another thread polls or takes the lock. Returns `None`
/// if another thread holds the lock and no pass has found work.
fn drive(shard: &Shard, polls: u32, watch: &mut Watch) -> Option<Drive> {
    let mut done = Drive::default();
    let mut end = None;
    let mut passes = 0_u32;
    loop {
        watch.count();
        step_aside(shard);
        let Some(mut engine) = shard.try_lock() else {
            return (passes > 0).then_some(Drive { deadline: None, event: None, ..done });
        };
        let found = engine.pass(Occasion::Other);
        done.worked |= found;
        if found {
            (end, done.event) = (None, None);
        }
        // Only a thread that has just found work spins, because an idle thread would waste its core.
        let spins = found
            || done.worked && {
                let now = Instant::now();
                now < *end.get_or_insert(now + SPIN)
            };
        let stops = shard.driver.stopping.load(Ordering::Relaxed)
            || linger::is_wanted()
            || shard.hot.polls.load(Ordering::Relaxed) != polls;
        if !spins && !stops && done.event.is_none() {
            done.event = engine.arm();
            // The port does not signal frames that arrived before `arm`, so one more pass receives them.
            if done.event.is_some() {
                continue;
            }
        }
        done.deadline = if found { None } else { engine.next_deadline() };
        done.freed |= !found && engine.has_freed_much();
        drop(engine);
        if stops || !spins {
            return Some(done);
        }
        passes = passes.wrapping_add(1);
        if !found || passes.is_multiple_of(PASSES_BETWEEN_YIELDS) {
            thread::yield_now();
        }
    }
}

/// Makes the C library return free memory to the system, including memory between blocks in use.
#[cold]
fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call concerns only free memory, and is allowed at any time.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Lets waiting control verbs have the lock first.
fn step_aside(shard: &Shard) {
    // The other conditions end the wait if a signal handler has interrupted the waiting verb and never returns.
    while shard.is_wanted() && !shard.driver.stopping.load(Ordering::Relaxed) && !linger::is_wanted() {
        thread::yield_now();
    }
}

/// Pins the thread to `core`. If `core` is `None`, lets it run on `cores`. Also makes the naps of this thread precise,
/// and asks for short time slices.
fn settle(core: Option<usize>, cores: &[usize]) {
    match core.map(pin_current_thread) {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::warn!("the engine's thread is not pinned: {error}"),
        None => set_current_thread(cores),
    }
    // SAFETY: the call concerns only this thread's timers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000u64) };
    ask_for_short_slices();
}

/// Linux's `sched_attr`, version 0.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Time slice that the thread asks for on a core that it shares with other threads.
const SLICE: Duration = Duration::from_micros(100);

/// Asks for shorter time slices than other threads have. Linux 6.12 and later then runs this thread sooner, so that a
/// program that spins on memory does not keep the thread off a shared core for milliseconds. The thread's share of
/// the core stays the same.
fn ask_for_short_slices() {
    let mut attr = SchedAttr::default();
    let size = size_of::<SchedAttr>() as u32;
    // SAFETY: the structure is ours and has the stated size; 0 names this thread.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) == 0
            && attr.policy == libc::SCHED_OTHER as u32
        {
            attr.runtime = SLICE.as_nanos() as u64;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
        }
    }
}

/// Calls `start` with all signals blocked. Threads that `start` makes inherit this, so that only threads of the
/// application handle signals.
pub(crate) fn with_signals_blocked<R>(start: impl FnOnce() -> R) -> R {
    let before = block_signals();
    let started = start();
    restore_signals(&before);
    started
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets are ours, and valid until the calls return.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    }
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: the set comes from pthread_sigmask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}
