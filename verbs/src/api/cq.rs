//! Completion queues.

mod batch;

use std::sync::Arc;

use super::channel::CompChannel;
use super::device::DeviceShared;
use crate::drive::shard::{Polled, Shard, still_quiet};
use crate::shared::cq::{CqShared, Poller, check_depth};
use crate::shared::error::Result;
use crate::shared::queue::capacity_for;
use crate::shared::quiet::is_quiet;
use crate::shared::sync::SpinGuard;
use crate::shared::wc::Wc;

pub use batch::{Completion, Completions};

/// Polls without work after which the poller offers its core to others, so that more pollers than cores
/// may be slow but never stuck.
const IDLE_POLLS: u32 = 256;

/// Polls that take what the engine has completed before it is driven again. An application that drives it with each poll may
/// get completions faster than it takes them, and hears of them later and later.
const POLLS_AHEAD: u8 = 8;

/// Polls that leave the engines beside the home engine alone once one of them was found to be driven by another thread: to look
/// takes a cache line away from that thread, and to drive takes all that the engine works with.
const PASSED_BY: u8 = 15;

/// Pauses between polls that find nothing, some 0.1 us. A round trip over virtio takes 5 % longer without any.
const IDLE_PAUSES: u32 = 4;

/// What a new completion queue is like.
#[derive(Clone, Copy)]
pub struct CqInit<'a> {
    /// Completions that it holds at least.
    pub depth: u32,
    /// Where its events go.
    pub channel: Option<&'a CompChannel>,
    /// Each completion gets a time stamp, which [`Cq::start_poll`] shows.
    pub timestamps: bool,
    /// Its home engine, from 0; see [`DeviceAttr::engines`](crate::DeviceAttr::engines). Queue pairs that send to it begin there, and polling drives
    /// it first.
    pub vector: u32,
}

/// A completion queue. Clones are handles to the same queue.
#[derive(Clone)]
pub struct Cq {
    pub(crate) shared: Arc<CqShared>,
    pub(crate) device: Arc<DeviceShared>,
}

impl Cq {
    /// Moves up to `out.len()` completions into `out` and returns how many. Drives the engine first, unless its own thread is
    /// dedicated to that, or the last poll has left completions.
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

    /// Begins to read completions in place, one by one, each field only if it is wanted. `None` if there are
    /// none. Drives the engine as [`poll`](Self::poll) does.
    ///
    /// Until the answer is dropped, other threads that poll this queue wait, and so does who resizes it: do not do
    /// either in the same thread.
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

    /// Gives the queue room for at least `depth` completions from now on. Those that it holds remain, in order;
    /// the device and other threads may use it meanwhile.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a depth of 0, beyond the device's limit, or below the number of
    /// completions that the queue holds. It stays as it is then.
    pub fn resize(&self, depth: u32) -> Result<()> {
        check_depth(depth)?;
        let cq = &*self.shared;
        let mut old = Vec::new();
        // This lock first: who holds it (`start_poll`) may well use control verbs.
        let mut poller = cq.polls.poller.lock();
        for engine in cq.begin_resize(&poller, depth)? {
            let fresh = cq.entries(depth);
            // Should the engine be gone, the others have been replaced, and the queue has the depth that it had.
            old.push(self.device.shards.of(engine).control(|_| Ok(cq.replace(&mut poller, engine, fresh)))?);
        }
        cq.end_resize(&poller, depth);
        drop(poller);
        drop(old);
        Ok(())
    }

    /// Runs a pass of the home engine if that is up to callers, and then of one of the others that complete to this queue, in
    /// turn.
    #[inline]
    fn drive(&self) -> Polled {
        let cq = &*self.shared;
        let shards = &self.device.shards;
        // Who armed the queue is about to sleep, so that poll does not keep the engine's thread away.
        let stays = !cq.arming.is_armed();
        if shards.are_several() {
            return self.drive_in_turn(stays);
        }
        drive(shards.first(), stays)
    }

    /// [`drive`](Self::drive) where there are several engines.
    #[inline(never)]
    fn drive_in_turn(&self, stays: bool) -> Polled {
        let cq = &*self.shared;
        let pass = drive(self.device.shards.of(cq.home), stays);
        self.device.shards.look_after(cq.next_turn());
        if cq.has_others() { self.drive_another(stays, pass) } else { pass }
    }

    #[inline(never)]
    fn drive_another(&self, stays: bool, pass: Polled) -> Polled {
        for engine in self.shared.take_asked() {
            drive(self.device.shards.of(engine), stays);
        }
        if self.shared.passes_by() {
            return pass;
        }
        let Some(engine) = self.shared.next_to_drive() else { return pass };
        let Some(other) = self.device.shards.of(engine).visit(stays) else {
            self.shared.pass_by(PASSED_BY);
            return pass;
        };
        match (pass, other) {
            (Polled::Worked, _) | (_, Polled::Worked) => Polled::Worked,
            (Polled::Skipped, Polled::Skipped) => Polled::Skipped,
            _ => Polled::Idle,
        }
    }

    /// After a poll: who has found nothing for long lets others have the core.
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
                // Whoever drives the engine may share this core. And a peer that writes on the other side of a memory
                // link is held up by who looks all the time.
                (0..IDLE_PAUSES).for_each(|_| std::hint::spin_loop());
            }
        }
    }

    /// Asks for one event on the queue's channel, at the next completion or, with `solicited_only`, the next
    /// solicited Send or error. Completions that are there already do not cause it: poll once more after this.
    /// Hands the engine over to its own thread.
    pub fn arm(&self, solicited_only: bool) {
        self.shared.arming.arm(solicited_only);
        self.device.shards.hand_over();
    }

    /// The number of this queue, by which events name it.
    pub fn cqn(&self) -> u32 {
        self.shared.number.get()
    }

    /// The depth of a completion queue that cannot overflow while work queues of these sizes complete to it, whatever their
    /// peers do: what was asked for is rounded up there (RFC 5042 §6.4.3.2). It is for the application not to have more
    /// requests posted whose completions it has not taken: a send queue has room again when a request is complete.
    pub fn depth_for(work_queues: &[u32]) -> u32 {
        work_queues.iter().map(|size| capacity_for(*size)).fold(0, u32::saturating_add)
    }

    /// How many completions the queue holds.
    pub fn depth(&self) -> u32 {
        let poller = self.shared.polls.poller.lock();
        self.shared.capacity(&poller)
    }

    /// Whether completions were lost because the queue was full, since its creation or the last
    /// [`resize`](Self::resize). The QPs concerned are in the terminate or the error state.
    pub fn overflowed(&self) -> bool {
        self.shared.overflowed()
    }

    /// Whether both are the same queue.
    pub fn is(&self, other: &Cq) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// Runs a pass of an engine, if that is up to callers.
#[inline]
fn drive(shard: &Shard, stays: bool) -> Polled {
    if stays { shard.poll_pass() } else { shard.try_pass() }
}

#[cfg(test)]
mod tests;
