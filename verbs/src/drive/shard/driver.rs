//! The engine's own thread.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use urnic_config::Progress;
use urnic_dataplane::{Machine, free_cores, pin_current_thread, set_current_thread};

use super::last::Watch;
use super::{Shard, linger};
use crate::drive::wakeup::Wakeup;
use crate::shared::doorbell::Doorbells;
use crate::shared::error::{Error, Result};
use crate::shared::eventfd::EventFd;

/// A nap while there was work a moment ago.
pub(super) const SHORTEST_NAP: Duration = Duration::from_micros(50);
/// A nap when nothing has happened for long, where the port does not tell of frames: the delay that the peer of a sleeping
/// application sees at most, against the processor time of an idle process (15 to 30 us for each nap).
pub(super) const LONGEST_NAP: Duration = Duration::from_micros(1500);
/// A nap while the port tells of frames: the delay if it does not, as when a peer has just come back.
const ARMED_NAP: Duration = Duration::from_millis(if cfg!(test) { 3_600_000 } else { 10 });
/// A nap while the transport is sure to tell: how soon it is noticed that the program's threads have all ended.
const CERTAIN_NAP: Duration = Duration::from_secs(if cfg!(test) { 3600 } else { 1 });
/// A nap while somebody polls: how soon it is noticed that he stopped.
const WATCHING_NAP: Duration = LONGEST_NAP;
/// How long the thread keeps passing after the last work before it naps.
const SPIN: Duration = Duration::from_micros(50);

/// Engines' threads that run, in the whole process.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Ends all naps when the process is about to end.
static GOODBYE: OnceLock<EventFd> = OnceLock::new();

/// Wakes the threads whose transports are sure to tell: the process is about to end. May be called in a signal handler.
pub(super) fn wake_all() {
    if let Some(goodbye) = GOODBYE.get() {
        goodbye.signal();
    }
}

/// Whether some engine has a thread.
pub(super) fn has_threads() -> bool {
    THREADS.load(Ordering::SeqCst) > 0
}

/// Whether and why the thread sleeps.
mod sleep {
    pub(super) const NO: u8 = 0;
    /// Somebody polls.
    pub(super) const WATCHING: u8 = 1;
    /// Nothing happens.
    pub(super) const IDLE: u8 = 2;
    /// Nothing happens, and the port tells of frames.
    pub(super) const ARMED: u8 = 3;
    /// Nothing happens, and the transport is sure to tell of what arrives.
    pub(super) const CERTAIN: u8 = 4;
}

/// Hand-over between callers and the thread.
pub(super) struct Driver {
    progress: Progress,
    /// Counts wake-ups; the thread sleeps on it (futex).
    wakes: AtomicU32,
    sleeping: AtomicU8,
    /// Ends naps that the port may end, too.
    bell: EventFd,
    /// A caller is about to sleep: take over whether or not somebody polled a moment ago.
    handed_over: AtomicBool,
    stopping: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Driver {
    pub(super) fn new(progress: Progress) -> Result<Self> {
        if GOODBYE.get().is_none() {
            // Of two at once, one is dropped.
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

    /// Starts the thread, with all signals blocked: they are the application's. It runs on `core`, or on any, at NUMA node
    /// `node` where it may.
    pub(super) fn start(shard: &Arc<Shard>, core: Option<usize>, node: Option<u32>) -> Result<()> {
        let driver = &shard.driver;
        let run = match driver.progress {
            Progress::Inline => return Ok(()),
            Progress::Dedicated => dedicated,
            Progress::Adaptive => adaptive,
        };
        let own = shard.clone();
        THREADS.fetch_add(1, Ordering::SeqCst);
        let thread = with_signals_blocked(|| {
            thread::Builder::new().name("urnic-engine".into()).spawn(move || {
                settle(core, node);
                run(&own);
                THREADS.fetch_sub(1, Ordering::SeqCst);
            })
        });
        let thread = thread.map_err(|source| {
            THREADS.fetch_sub(1, Ordering::SeqCst);
            Error::Os { what: "the engine's thread", source }
        })?;
        *driver.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// There is work: wakes the thread if it sleeps and nobody polls.
    #[inline]
    pub(super) fn nudge(&self) {
        if self.sleeping.load(Ordering::Relaxed) >= sleep::IDLE {
            self.wake();
        }
    }

    /// There is something that no doorbell tells of. It is counted first: a thread that is about to sleep, and has looked
    /// before that, does not.
    pub(super) fn alert(&self) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) >= sleep::IDLE {
            self.wake();
        }
    }

    /// Something was sent, and what comes back wants somebody who receives it: wakes the thread, unless the transport does.
    /// Whoever has sent is about to poll, as a rule, and two that want the engine wait for each other.
    #[inline]
    pub(super) fn expect(&self) {
        if matches!(self.sleeping.load(Ordering::Relaxed), sleep::IDLE | sleep::ARMED) {
            self.wake();
        }
    }

    /// The caller is about to sleep.
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
            // SAFETY: the word lives as long as `self`.
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

    /// The thread: sleeps until the time is over or a wake-up after the one counted as `seen`.
    fn nap(&self, seen: u32, why: u8, time: Duration, doorbells: &Doorbells) {
        let limit = libc::timespec { tv_sec: 0, tv_nsec: time.min(LONGEST_NAP).subsec_nanos().into() };
        self.sleeping.store(why, Ordering::SeqCst);
        if why >= sleep::IDLE && !doorbells.is_empty() {
            self.sleeping.store(sleep::NO, Ordering::SeqCst);
            return;
        }
        // SAFETY: the word lives as long as `self`, the time through the call.
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

    /// The same, and a frame that arrives ends it, too.
    fn nap_armed(&self, seen: u32, event: &dyn Wakeup, time: Duration, doorbells: &Doorbells) {
        let why = if event.is_certain() { sleep::CERTAIN } else { sleep::ARMED };
        self.sleeping.store(why, Ordering::SeqCst);
        // A caller that wakes the thread counts first, and one that rings enters its number first; either looks then whether
        // the thread sleeps.
        if self.wakes.load(Ordering::SeqCst) == seen && doorbells.is_empty() {
            // Once it rings, it does for good: naps are short then.
            let goodbye = GOODBYE.get().filter(|_| !linger::has_begun()).unwrap_or(&self.bell).as_fd();
            let ends =
                |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            let mut ends = [ends(self.bell.as_fd()), ends(event.as_fd()), ends(goodbye)];
            let limit = libc::timespec {
                tv_sec: time.as_secs() as libc::time_t,
                tv_nsec: time.subsec_nanos().into(),
            };
            // SAFETY: descriptors that are open, and a time, that live through the call.
            unsafe { libc::ppoll(ends.as_mut_ptr(), ends.len() as _, &raw const limit, std::ptr::null()) };
        }
        self.sleeping.store(sleep::NO, Ordering::SeqCst);
        self.bell.take();
        event.clear();
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

/// Passes without pause.
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
            freed = !engine.pass() && engine.has_freed_much();
        }
        if freed {
            give_memory_back();
        }
    }
}

/// Watches while others poll, drives when they do not.
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
        let Drive { worked, freed, deadline, event } = drive(shard, polls, &mut watch);
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

/// What came of driving an engine.
#[derive(Default)]
struct Drive {
    /// There was work.
    worked: bool,
    /// Much memory has become free.
    freed: bool,
    /// When the engine wants the next pass.
    deadline: Option<Duration>,
    /// What tells of the next frame.
    event: Option<Arc<dyn Wakeup>>,
}

/// Passes until there was no work for a while or somebody polls.
fn drive(shard: &Shard, polls: u32, watch: &mut Watch) -> Drive {
    let mut done = Drive::default();
    let mut end = None;
    loop {
        watch.count();
        step_aside(shard);
        let Some(mut engine) = shard.try_lock() else {
            return Drive { deadline: None, event: None, ..done };
        };
        let found = engine.pass();
        done.worked |= found;
        if found {
            (end, done.event) = (None, None);
        }
        // Only a thread that has just worked spins: an idle one would burn its core.
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
            // What came before that is not told of.
            if done.event.is_some() {
                continue;
            }
        }
        done.deadline = if found { None } else { engine.next_deadline() };
        done.freed |= !found && engine.has_freed_much();
        drop(engine);
        if stops || !spins {
            return done;
        }
        if !found {
            thread::yield_now();
        }
    }
}

/// Has the C library give free memory back to the system, also what lies between memory in use.
#[cold]
fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it concerns free memory only, and may be called at any time.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Lets control verbs have the lock first.
fn step_aside(shard: &Shard) {
    // A verb may have been interrupted for good as it waited.
    while shard.is_wanted() && !shard.driver.stopping.load(Ordering::Relaxed) && !linger::is_wanted() {
        thread::yield_now();
    }
}

/// Pins the thread, if asked to; else it leaves the core of whoever has opened the device, if that thread is pinned: a
/// polling thread would leave it half of its time. Makes its naps as short as they say.
fn settle(core: Option<usize>, node: Option<u32>) {
    match core {
        Some(core) => {
            if let Err(error) = pin_current_thread(core) {
                tracing::warn!("the engine's thread: {error}");
            }
        }
        None if node.is_none() => set_current_thread(&free_cores()),
        None => set_current_thread(&Machine::this().near(node, &free_cores())),
    }
    // SAFETY: concerns this thread's timers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000u64) };
    ask_for_short_slices();
}

/// Linux's attributes of a thread's scheduling, as of version 0.
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

/// A turn of the thread on a core that others want.
const SLICE: Duration = Duration::from_micros(100);

/// Asks for shorter turns than others take, which Linux (6.12 and later) rewards by letting the thread have them sooner:
/// a program that spins on memory does not keep it away for milliseconds when they share a core. It gets no more of the
/// core by that.
fn ask_for_short_slices() {
    let mut attr = SchedAttr::default();
    let size = size_of::<SchedAttr>() as u32;
    // SAFETY: an attribute structure of our own, as long as we say; 0 is this thread.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) == 0
            && attr.policy == libc::SCHED_OTHER as u32
        {
            attr.runtime = SLICE.as_nanos() as u64;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
        }
    }
}

/// Starts a thread that inherits this: signals are the application's.
pub(crate) fn with_signals_blocked<R>(start: impl FnOnce() -> R) -> R {
    let before = block_signals();
    let started = start();
    restore_signals(&before);
    started
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: sets of our own, valid through the calls.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    }
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: a set that pthread_sigmask gave.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}
