//! Completion queues: polling, arming, resizing.

mod batch;

use std::sync::Arc;

use super::channel::CompChannel;
use super::device::DeviceShared;
use crate::drive::shard::{Polled, Shard, still_quiet};
use crate::shared::cq::{CqShared, Poller, check_depth};
use crate::shared::engines::EngineNumber;
use crate::shared::error::Result;
use crate::shared::queue::capacity_for;
use crate::shared::quiet::is_quiet;
use crate::shared::sync::SpinGuard;
use crate::shared::wc::Wc;

pub use batch::{Completion, Completions};

/// After this many polls in a row without work, a poller yields its core. With more pollers than cores, polling may
/// thus be slow, but never stuck.
const IDLE_POLLS: u32 = 512;

/// Maximum number of polls in a row that take completions without driving the engine. Such polls follow a poll that has
/// left completions in the queue. If every poll drove the engine, completions could enter the queue faster than the
/// application takes them, and would wait there longer and longer.
const POLLS_AHEAD: u8 = 8;

/// When a poll finds that another thread drives an engine, this many further polls drive their first engine only (and
/// those in [`CqShared::take_asked`]). Even a look at an engine takes a cache line away from the thread that drives it,
/// and a pass takes away all of the engine's working data.
const PASSED_BY: u8 = 15;

/// Number of polls of a queue from which one notes that its thread drives the engine ([`Shard::adopt`]). If two threads
/// drive one engine, they would otherwise write the note in turns.
const ADOPTS_EVERY: u32 = 16;

/// Parameters of a new completion queue.
#[derive(Clone, Copy)]
pub struct CqInit<'a> {
    /// Minimum capacity, in completions.
    pub depth: u32,
    /// The channel for the queue's events; `None`: the queue has no events.
    pub channel: Option<&'a CompChannel>,
    /// Whether each completion gets a time stamp, which [`Completion::timestamp`] returns.
    pub timestamps: bool,
    /// Number of the home engine, from 0; see [`DeviceAttr::engines`](crate::DeviceAttr::engines). Queue pairs
    /// whose send requests complete to this queue begin at that engine, and polling drives it first.
    pub vector: u32,
}

/// A completion queue. Clones are handles to the same queue.
#[derive(Clone)]
pub struct Cq {
    pub(crate) shared: Arc<CqShared>,
    pub(crate) device: Arc<DeviceShared>,
}

impl Cq {
    /// Moves up to `out.len()` completions into `out` and returns their number. Drives the engine first, unless a
    /// dedicated thread does ([`Progress::Dedicated`](crate::Progress::Dedicated)), or an earlier poll has left
    /// completions in the queue.
    pub fn poll(&self, out: &mut [Wc]) -> usize {
        let ahead = self.shared.ahead();
        if ahead > 0 {
            let taken = self.shared.take(&mut self.shared.polls.poller.lock(), out, ahead - 1);
            if taken > 0 {
                return taken;
            }
        }
        let pass = self.drive();
        if pass == Polled::Skipped && is_quiet() && still_quiet() {
            return 0;
        }
        let mut poller = self.shared.polls.poller.lock();
        let taken = self.shared.take(&mut poller, out, POLLS_AHEAD);
        self.pace(poller, taken > 0, pass);
        taken
    }

    /// Begins to read completions in place, one by one. `None` if there are none. Drives the engine first, unless a
    /// dedicated thread does ([`Progress::Dedicated`](crate::Progress::Dedicated)).
    ///
    /// Until the result is dropped, other threads that poll or resize this queue wait. The calling thread must not
    /// poll or resize it.
    ///
    /// ```
    /// use urnic::simulation::{Options, Simulation};
    /// use urnic::CqInit;
    ///
    /// let simulation = Simulation::new(&Options::default())?;
    /// let init = CqInit { depth: 64, channel: None, timestamps: true, vector: 0 };
    /// let cq = simulation.device(0).create_cq_with(&init)?;
    /// if let Some(mut completions) = cq.start_poll() {
    ///     while let Some(completion) = completions.next() {
    ///         println!("{}: {} at {:?}", completion.wr_id, completion.status, completion.wall_clock());
    ///     }
    /// }
    /// # Ok::<(), urnic::Error>(())
    /// ```
    pub fn start_poll(&self) -> Option<Completions<'_>> {
        let pass = self.drive();
        if pass == Polled::Skipped && is_quiet() && still_quiet() {
            return None;
        }
        let poller = self.shared.polls.poller.lock();
        if let Some(engine) = self.shared.first_with_some(&poller) {
            return Completions::new(&self.shared, poller, engine);
        }
        self.pace(poller, false, pass);
        None
    }

    /// Sets the capacity to at least `depth` completions. Completions in the queue stay there, in order. The device
    /// and other threads may use the queue meanwhile.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a depth of 0 or beyond the device's limit, or if the new
    /// capacity is too small for the completions in the queue; the queue is unchanged then.
    /// [`Error::Forked`](crate::Error::Forked); [`Error::Interrupted`](crate::Error::Interrupted): the new
    /// capacity may hold for the completions of some engines only.
    pub fn resize(&self, depth: u32) -> Result<()> {
        check_depth(depth)?;
        let cq = &*self.shared;
        let mut old = Vec::new();
        // This lock is taken before the engines' locks, because a thread that holds it (`start_poll`) may use control
        // verbs.
        let mut poller = cq.polls.poller.lock();
        for engine in cq.begin_resize(&poller, depth)? {
            let fresh = cq.entries(depth);
            // Each engine adds completions to a lane of its own, whose entries are replaced here. If this fails, the
            // earlier lanes have the new depth, and the later ones keep the old depth.
            old.push(self.device.shards.of(engine).control(|_| Ok(cq.replace(&mut poller, engine, fresh)))?);
        }
        cq.end_resize(&poller, depth);
        drop(poller);
        drop(old);
        Ok(())
    }

    /// Runs a pass of this poll's first engine, then a pass of one other engine that completes to this queue; the
    /// others take turns. The first engine is the home engine. But if several threads poll this queue, each thread has
    /// a first engine of its own. Leaves out engines that callers must not drive.
    #[inline]
    fn drive(&self) -> Polled {
        let cq = &*self.shared;
        let shards = &self.device.shards;
        // A thread that armed the queue is about to sleep: this poll must not keep the engine's thread away.
        let stays = !cq.arming.is_armed();
        if shards.are_several() {
            return self.drive_in_turn(stays);
        }
        drive(shards.first(), stays)
    }

    /// Drives engines as [`drive`](Self::drive) does, on a device with several engines.
    #[inline(never)]
    fn drive_in_turn(&self, stays: bool) -> Polled {
        let cq = &*self.shared;
        let first = cq.first_to_drive();
        let shard = self.device.shards.of(first);
        let pass = drive(shard, stays);
        let turn = cq.next_turn();
        if stays && pass != Polled::Skipped && turn.is_multiple_of(ADOPTS_EVERY) {
            shard.adopt();
        }
        self.device.shards.look_after(turn, first);
        if cq.has_others() { self.drive_another(first, stays, pass) } else { pass }
    }

    #[inline(never)]
    fn drive_another(&self, first: EngineNumber, stays: bool, pass: Polled) -> Polled {
        for engine in self.shared.take_asked() {
            drive(self.device.shards.of(engine), stays);
        }
        if self.shared.skips_others() {
            return pass;
        }
        let Some(engine) = self.shared.next_to_drive(first) else { return pass };
        let Some(other) = self.device.shards.of(engine).visit(stays) else {
            self.shared.skip_others(PASSED_BY);
            return pass;
        };
        match (pass, other) {
            (Polled::Worked, _) | (_, Polled::Worked) => Polled::Worked,
            (Polled::Skipped, Polled::Skipped) => Polled::Skipped,
            _ => Polled::Idle,
        }
    }

    /// Called after each poll; yields the core if the pollers have found nothing for long.
    #[inline]
    fn pace(&self, mut poller: SpinGuard<'_, Poller>, found: bool, pass: Polled) {
        if found || pass == Polled::Worked {
            poller.idle = 0;
        } else {
            poller.idle += 1;
            if poller.idle >= IDLE_POLLS {
                poller.idle = 0;
                drop(poller);
                std::thread::yield_now();
            } else {
                // Leaves time to another hyperthread of this core. A frame that comes meanwhile waits for the end of
                // the hint (24 ns on Zen 3), so there are no more of them.
                std::hint::spin_loop();
            }
        }
    }

    /// Asks for one event on the queue's channel, at the next completion. With `solicited_only`, only errors count,
    /// and receives of a Send or Immediate Data that asked for a solicited event. Completions that are already in the
    /// queue raise no event: poll once more after this call. Hands the engine over to its own thread.
    pub fn arm(&self, solicited_only: bool) {
        self.shared.arming.arm(solicited_only);
        self.device.shards.hand_over();
    }

    /// Returns the number of this queue, which events about it carry.
    pub fn cqn(&self) -> u32 {
        self.shared.number.get()
    }

    /// Returns the depth with which a completion queue cannot overflow while work queues of these sizes (in requests)
    /// complete to it, whatever their peers do (RFC 5042 §6.4.3.2). Rounds each size up to a power of two, as the
    /// creation of a work queue does.
    ///
    /// The result holds only if the application never has more requests on a work queue than the queue's size, where a
    /// request counts until the application has taken its completion. The work queue does not enforce this limit: a
    /// send queue accepts a new request as soon as an older one is complete.
    pub fn depth_for(work_queues: &[u32]) -> u32 {
        work_queues.iter().map(|size| capacity_for(*size)).fold(0, u32::saturating_add)
    }

    /// Returns the capacity, in completions.
    pub fn depth(&self) -> u32 {
        let poller = self.shared.polls.poller.lock();
        self.shared.capacity(&poller)
    }

    /// Returns whether completions were lost because the queue was full, since the queue's creation or the last
    /// [`resize`](Self::resize). The queue pairs concerned are in the terminate or the error state.
    pub fn overflowed(&self) -> bool {
        self.shared.overflowed()
    }

    /// Returns whether both are handles to the same queue.
    pub fn is(&self, other: &Cq) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// Runs a pass of an engine if callers may drive it. `stays`: the caller will poll again soon, so the engine's thread
/// may sleep.
#[inline]
fn drive(shard: &Shard, stays: bool) -> Polled {
    if stays { shard.poll_pass() } else { shard.try_pass() }
}

#[cfg(test)]
mod tests;
