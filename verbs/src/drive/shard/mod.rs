//! A shard: an engine with a lock that decides which thread drives the engine. A thread drives the engine when it
//! holds the lock and runs a pass. Threads that poll (pollers) try the lock, and the one that gets it runs a pass.
//! Control verbs wait for the lock. The engine's own thread, if there is one, drives the engine when no thread
//! polls. If the engine is dedicated to its thread, pollers never drive it.

mod driver;
mod last;
mod linger;
mod ops;
mod shards;

use std::cell::UnsafeCell;
use std::hint;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::shared::doorbell::Doorbells;
use crate::shared::engines::EngineNumber;
use crate::shared::error::{Error, Result};
use crate::shared::figures::EngineFigures;
use crate::shared::grace::{Fellow, PassLock, PassNumber};
use crate::shared::quiet::{self, forked, is_quiet};
use crate::shared::sync::{Line, this_thread};

pub(crate) use driver::with_signals_blocked;
pub use linger::before_exit;
#[cfg(feature = "dpdk")]
pub(crate) use linger::close_ports;
pub(crate) use linger::{linger_at_exit, still_quiet};
pub(crate) use ops::{Deed, EngineAttr, EngineOps, Occasion, Parcel, Population, Ties, Way};
pub(crate) use shards::{Shards, Undriven, WeakShards};

use urnic_config::Progress;

use driver::Driver;

/// How long after a visit another thread is taken to drive an engine, in [`cycles`]: some 1.5 ms, and at least half of
/// that. This is more than the time between two visits of a thread that posts much. Later, posts to a queue pair
/// without a waiting request are sent at once again.
const FAR_FOR: u64 = if cfg!(test) { 1 << 33 } else { 1 << 22 };
/// Spins before yielding to the lock holder.
const SPINS: u32 = 64;

/// Outcome of an attempt to run a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    /// The pass found work.
    Worked,
    /// The pass found no work.
    Idle,
    /// No pass was run, because another thread drives the engine, a control verb waits, or pollers must not drive it.
    Skipped,
}

/// The words that each poll uses, on one cache line.
#[derive(Default)]
struct Hot {
    /// The engine's lock, which contains the id ([`this_thread`]) of the thread that holds it.
    lock: PassLock,
    /// Number of passes of threads that will poll again soon ([`Shard::poll_pass`]); written under the lock. A
    /// change tells the engine's thread that another thread polls.
    polls: AtomicU32,
    /// Number of passes that found work; written under the lock.
    busy: AtomicU64,
    /// Number of passes; written under the lock.
    passes: AtomicU32,
    /// The thread ([`this_thread`]) that ran the last pass; written under the lock.
    driver: AtomicUsize,
}

/// What threads that mainly drive other engines know of this engine's driver. All of it is a hint.
#[derive(Default)]
struct Visits {
    /// Time until which another thread is taken to drive the engine, in [`cycles`]: a while after a visit found that
    /// another thread had run a pass. 0: the last visit found none.
    driven_until: AtomicU64,
    /// The thread ([`this_thread`]) that [adopted](Shard::adopt) the engine last, and has not [abandoned] it since; 0:
    /// none.
    ///
    /// [abandoned]: Shard::abandon
    adopter: AtomicUsize,
}

/// One engine with its lock and its driver.
pub(crate) struct Shard {
    hot: Line<Hot>,
    /// Number of control verbs that wait for the lock or for the end of a pass. Pollers and the engine's thread
    /// give way to them.
    want: Line<AtomicU32>,
    /// The number of passes at the end of the last [`visit`](Shard::visit).
    visited: Line<AtomicU32>,
    visits: Line<Visits>,
    engine: UnsafeCell<ManuallyDrop<Box<dyn EngineOps>>>,
    pub(crate) doorbells: Arc<Doorbells>,
    driver: Driver,
    /// The core to which the engine's thread is pinned; `None`: the thread is not pinned, or does not exist.
    core: Option<usize>,
}

// SAFETY: the engine is Send, and only the holder of the lock accesses it. Everything else is Sync.
unsafe impl Sync for Shard {}

impl Shard {
    /// Makes a shard of an engine. Starts the engine's thread if `progress` asks for one.
    pub(crate) fn new(engine: Undriven, progress: Progress, core: Option<usize>) -> Result<Arc<Self>> {
        let Undriven { engine, doorbells, node } = engine;
        if forked() {
            return Err(Error::Forked);
        }
        linger::watch_forks();
        let shard = Arc::new(Self {
            hot: Line::default(),
            want: Line::default(),
            visited: Line::default(),
            visits: Line::default(),
            engine: UnsafeCell::new(ManuallyDrop::new(engine)),
            doorbells,
            driver: Driver::new(progress)?,
            core: core.filter(|_| progress != Progress::Inline),
        });
        Driver::start(&shard, core, node)?;
        Ok(shard)
    }

    /// Runs a pass unless another thread drives the engine.
    #[inline]
    pub(crate) fn try_pass(&self) -> Polled {
        self.attempt(false)
    }

    /// Runs a pass as [`try_pass`](Self::try_pass) does, for a thread that will poll again soon, so that the engine's
    /// thread may sleep.
    #[inline]
    pub(crate) fn poll_pass(&self) -> Polled {
        self.attempt(true)
    }

    /// Visits the engine: runs a pass for a thread that mainly drives another engine. With `stays`, runs the pass as
    /// [`poll_pass`](Self::poll_pass) does, and without it as [`try_pass`](Self::try_pass) does. Returns `None`,
    /// without a pass, if other threads have driven this engine since the last visit, because they presumably
    /// continue. If they do not continue, the next visit runs a pass. Posts that send at once ([`kick`](Self::kick)) do
    /// not count, because they receive nothing.
    pub(crate) fn visit(&self, stays: bool) -> Option<Polled> {
        let Hot { passes, driver, .. } = &*self.hot;
        let count = passes.load(Ordering::Relaxed);
        let was_driven = self.visited.load(Ordering::Relaxed) != count;
        // This thread's own polls also change the count.
        let others_drive = was_driven && driver.load(Ordering::Relaxed) != this_thread();
        self.note_driven(others_drive);
        if others_drive {
            self.visited.store(count, Ordering::Relaxed);
            return None;
        }
        let polled = self.attempt(stays);
        self.visited.store(passes.load(Ordering::Relaxed), Ordering::Relaxed);
        Some(polled)
    }

    /// Notes whether a visit has found that another thread drives the engine. Mostly stores nothing, because posting
    /// threads read this line.
    fn note_driven(&self, driven: bool) {
        let until = self.visits.driven_until.load(Ordering::Relaxed);
        let now = cycles();
        let next = match driven {
            true if now.saturating_add(FAR_FOR / 2) < until => until,
            true => now.saturating_add(FAR_FOR),
            false => 0,
        };
        if next != until {
            self.visits.driven_until.store(next, Ordering::Relaxed);
        }
    }

    /// Notes that this thread mainly drives this engine, and will go on polling.
    #[inline]
    pub(crate) fn adopt(&self) {
        if self.visits.adopter.load(Ordering::Relaxed) != this_thread() {
            self.visits.adopter.store(this_thread(), Ordering::Relaxed);
        }
    }

    /// Notes that this thread may not poll for long. If it has adopted the engine, posts of other threads no longer
    /// leave requests to it.
    pub(crate) fn abandon(&self) {
        if self.visits.adopter.load(Ordering::Relaxed) == this_thread() {
            self.give_up();
        }
    }

    /// Notes that no polling thread drives the engine.
    fn give_up(&self) {
        if self.visits.adopter.load(Ordering::Relaxed) != 0 {
            self.visits.adopter.store(0, Ordering::Relaxed);
        }
    }

    /// Returns whether another polling thread drives the engine time and again, presumably on another core. Each access
    /// to the engine's data then takes cache lines from that core. Only a hint: it may be wrong for [`FAR_FOR`] after
    /// that thread has stopped polling without notice.
    #[inline]
    pub(crate) fn is_far(&self) -> bool {
        let Visits { driven_until, adopter } = &*self.visits;
        let until = driven_until.load(Ordering::Relaxed);
        until != 0 && ![0, this_thread()].contains(&adopter.load(Ordering::Relaxed)) && cycles() < until
    }

    #[inline]
    fn attempt(&self, stays: bool) -> Polled {
        if self.driver.is_dedicated()
            || self.want.load(Ordering::Relaxed) > 0
            || quiet::must_leave_engines_alone()
        {
            return Polled::Skipped;
        }
        let Some(mut engine) = self.try_lock() else { return Polled::Skipped };
        if stays {
            // No read-modify-write is needed, because only the holder of the lock writes this word.
            let polls = self.hot.polls.load(Ordering::Relaxed);
            self.hot.polls.store(polls.wrapping_add(1), Ordering::Relaxed);
        }
        // Without a thread of the engine's own, what waits would wait forever if the program stops polling.
        let occasion = if stays && self.driver.has_thread() { Occasion::Poll } else { Occasion::Other };
        let worked = engine.pass(occasion);
        drop(engine);
        self.see_to_doorbells();
        if worked { Polled::Worked } else { Polled::Idle }
    }

    /// Called after a pass: wakes the engine's thread if doorbells have to be answered and no other thread polls. The
    /// engine itself [enters queue pairs again](crate::shared::queue::SendQueue::answer), perhaps after the thread has
    /// found no doorbell and gone to sleep.
    #[inline]
    fn see_to_doorbells(&self) {
        if !self.doorbells.is_empty() {
            self.driver.nudge();
        }
    }

    /// Runs a pass, ahead of all pollers. Returns whether the pass found work, and the time until the engine wants
    /// the next pass; `None`: the engine wants a pass only if something happens, or the lock is not available.
    pub(crate) fn pass(&self) -> (bool, Option<Duration>) {
        let answer = self
            .lock()
            .map_or((false, None), |mut engine| (engine.pass(Occasion::Other), engine.next_deadline()));
        self.see_to_doorbells();
        answer
    }

    /// Waits for the end of the pass that is under way, if there is one, without taking the lock. Later passes see
    /// everything that the caller has stored before this call.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the pass cannot end before the caller returns, for example because the caller is a
    /// signal handler that has interrupted the pass. [`Error::Forked`] in a forked child.
    pub(crate) fn await_pass(&self) -> Result<()> {
        if forked() {
            return Err(Error::Forked);
        }
        let Some(pass) = self.pass_under_way() else { return Ok(()) };
        self.want.fetch_add(1, Ordering::Relaxed);
        let (mut spins, mut since) = (0, None);
        let ended = loop {
            if self.has_ended(pass) {
                break Ok(());
            }
            if spins < SPINS {
                spins += 1;
                hint::spin_loop();
            } else if self.is_stuck(&mut since) {
                break Err(Error::Interrupted);
            } else {
                thread::yield_now();
            }
        };
        self.want.fetch_sub(1, Ordering::Relaxed);
        ended
    }

    /// Runs `verb` while no pass is under way, and then a pass.
    ///
    /// # Errors
    /// Errors of `verb`. [`Error::Interrupted`] if the engine's lock is not available, because its holder cannot
    /// continue or the engine is closed. [`Error::Forked`] in a forked child.
    pub(crate) fn control<R>(&self, verb: impl FnOnce(&mut dyn EngineOps) -> Result<R>) -> Result<R> {
        if forked() {
            return Err(Error::Forked);
        }
        let answer = self.lock().and_then(|mut engine| {
            let answer = verb(&mut **engine);
            engine.pass(Occasion::Other);
            answer
        });
        self.driver.nudge();
        answer
    }

    /// Returns the figures of the engine's load. `number` is the engine's number in its device.
    ///
    /// # Errors
    /// As for [`control`](Self::control).
    pub(crate) fn figures(&self, number: EngineNumber) -> Result<EngineFigures> {
        let (Population { queue_pairs, connections }, counters) =
            self.control(|engine| Ok((engine.population(), engine.attributes().counters)))?;
        Ok(EngineFigures {
            number: number.index() as u32,
            core: self.core,
            passes: self.hot.lock.count(),
            busy_passes: self.hot.busy.load(Ordering::Relaxed),
            queue_pairs: queue_pairs as u32,
            connections: connections as u32,
            counters,
        })
    }

    /// Runs `verb` while no pass is under way, but no pass afterwards. For verbs that give the engine no work.
    pub(crate) fn arrange<R>(&self, verb: impl FnOnce(&mut dyn EngineOps) -> Result<R>) -> Result<R> {
        if forked() {
            return Err(Error::Forked);
        }
        verb(&mut **self.lock()?)
    }

    /// Sends what was posted to a queue pair, without a pass. Returns false without sending if another thread drives
    /// the engine or the engine has other data to send. The caller must then ring the doorbell.
    #[inline]
    pub(crate) fn kick(&self, qpn: u32) -> bool {
        if self.driver.is_dedicated() || self.is_wanted() || quiet::must_leave_engines_alone() {
            return false;
        }
        // If another thread drives the engine, nothing more is read: the caller rings, and the engine writes these lines.
        let Some(mut engine) = self.try_lock() else { return false };
        let kicked = engine.kick(qpn);
        drop(engine);
        if kicked {
            self.driver.expect();
        }
        self.see_to_doorbells();
        kicked
    }

    /// Rings the doorbell of a queue pair that has work, and wakes the engine's thread if the thread sleeps and no
    /// other thread polls.
    #[inline]
    pub(crate) fn ring(&self, qpn: u32) {
        self.doorbells.ring(qpn);
        self.driver.nudge();
    }

    /// Notifies the engine that a shared queue has receives for which Sends wait.
    pub(crate) fn ring_receives(&self) {
        self.doorbells.ring_receives();
        self.driver.nudge();
    }

    /// Makes the engine's thread take over now, because the caller is about to sleep.
    pub(crate) fn hand_over(&self) {
        self.abandon();
        self.driver.hand_over();
    }

    /// Stops the engine's thread. After that, only callers drive the engine.
    pub(crate) fn stop(&self) {
        // A forked child does not have the thread.
        if !forked() {
            self.driver.stop();
        }
    }

    /// Closes the engine and its port, even if handles to the device remain, because the program is about to clean up
    /// DPDK's EAL.
    #[cfg(feature = "dpdk")]
    fn close(&self) {
        if let Ok(guard) = self.lock() {
            std::mem::forget(guard);
            self.hot.lock.close();
            // SAFETY: this thread has the lock. The lock is closed, so no other thread can get it, and the shard does
            // not drop the engine again.
            unsafe { ManuallyDrop::drop(&mut *self.engine.get()) };
        }
    }

    #[inline]
    fn try_lock(&self) -> Option<EngineGuard<'_>> {
        // `then_some` would be wrong: it makes a guard even if another thread holds the lock, and dropping that guard
        // would release the lock.
        self.hot.lock.try_take(this_thread()).then(|| EngineGuard { shard: self })
    }

    /// Takes the lock, ahead of all pollers.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the lock is not available, because its holder cannot continue or the engine is
    /// closed.
    fn lock(&self) -> Result<EngineGuard<'_>> {
        self.want.fetch_add(1, Ordering::Relaxed);
        let mut spins = 0;
        let mut since = None;
        let guard = loop {
            if let Some(guard) = self.try_lock() {
                break Ok(guard);
            }
            if spins < SPINS {
                spins += 1;
                hint::spin_loop();
            } else if self.is_stuck(&mut since) {
                break Err(Error::Interrupted);
            } else {
                thread::yield_now();
            }
        };
        self.want.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Returns whether the holder of the lock will never release it. This is so if the holder is this thread,
    /// interrupted by a signal handler, or if the engine is closed. It is also so if the process ends and the holder
    /// is the exiting thread or has presumably been stopped. `since` is the time at which this was first suspected.
    #[cold]
    fn is_stuck(&self, since: &mut Option<Instant>) -> bool {
        let owner = self.hot.lock.owner();
        owner == this_thread()
            || owner == PassLock::CLOSED
            || linger::is_stuck(owner)
            || is_quiet() && since.get_or_insert_with(Instant::now).elapsed() >= linger::PATIENCE
    }

    /// Returns whether a control verb waits.
    #[inline]
    fn is_wanted(&self) -> bool {
        self.want.load(Ordering::Relaxed) > 0
    }
}

impl Fellow for Shard {
    fn ring(&self, qpn: u32) {
        Shard::ring(self, qpn);
    }

    fn ring_receives(&self) {
        Shard::ring_receives(self);
    }

    fn wake(&self) {
        self.driver.alert();
    }

    fn pass_under_way(&self) -> Option<PassNumber> {
        self.hot.lock.under_way()
    }

    fn has_ended(&self, pass: PassNumber) -> bool {
        self.hot.lock.has_ended(pass)
    }
}

/// Returns the present time in cycles of the processor's time stamp counter.
#[inline]
fn cycles() -> u64 {
    // SAFETY: all processors of x86-64 have the instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Returns the nap that follows a nap in which nothing happened.
fn longer(nap: Duration) -> Duration {
    (nap * 2).clamp(driver::SHORTEST_NAP, driver::LONGEST_NAP)
}

impl Drop for Shard {
    fn drop(&mut self) {
        // The port of a forked child is its parent's. Closing it would end the parent's connections.
        if !forked() && !self.hot.lock.is_closed() {
            // SAFETY: the engine is dropped once, here or by `close`, and no thread has the lock any longer.
            unsafe { ManuallyDrop::drop(self.engine.get_mut()) };
        }
    }
}

/// The right to use the engine, held until this guard is dropped.
struct EngineGuard<'a> {
    shard: &'a Shard,
}

impl EngineGuard<'_> {
    /// Runs a pass, and counts it if it finds work.
    #[inline]
    fn pass(&mut self, occasion: Occasion) -> bool {
        let found = (**self).pass(occasion);
        let Hot { passes, busy, driver, .. } = &*self.shard.hot;
        driver.store(this_thread(), Ordering::Relaxed);
        // No read-modify-write is needed, because only the holder of the lock writes these words.
        passes.store(passes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if found {
            busy.store(busy.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
        found
    }
}

impl Deref for EngineGuard<'_> {
    type Target = Box<dyn EngineOps>;
    fn deref(&self) -> &Self::Target {
        // SAFETY: this guard holds the lock.
        unsafe { &*self.shard.engine.get() }
    }
}

impl DerefMut for EngineGuard<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: this guard holds the lock and is borrowed mutably.
        unsafe { &mut *self.shard.engine.get() }
    }
}

impl Drop for EngineGuard<'_> {
    fn drop(&mut self) {
        self.shard.hot.lock.let_go();
    }
}

#[cfg(test)]
mod tests;
