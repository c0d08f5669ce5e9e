//! Completion queues.

mod batch;

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};

pub use batch::{Completion, Completions};

use crate::channel::{ChannelShared, CompChannel};
use crate::device::{DeviceShared, MAX_CQE, Number};
use crate::error::{Error, Result};
use crate::events::{AsyncEvent, AsyncQueue, Object};
use crate::queue::{CompletionLane, capacity_for};
use crate::shard::{DeviceClock, Polled, is_quiet, still_quiet};
use crate::sync::{Line, SpinGuard, SpinLock};
use crate::wc::Wc;

/// Polls without work after which the poller offers its core to others, so that more pollers than cores
/// may be slow but never stuck.
const IDLE_POLLS: u32 = 256;

/// Pauses between polls that find nothing, some 0.1 us. A round trip over virtio takes 5 % longer without any.
const IDLE_PAUSES: u32 = 4;

/// The completion queue has more completions than its depth; the affected QP goes to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CqOverflow;

/// What a completion queue was asked to report by an event.
mod armed {
    pub(super) const NO: u8 = 0;
    pub(super) const SOLICITED: u8 = 1;
    pub(super) const ANY: u8 = 2;
}

pub(crate) fn check_depth(depth: u32) -> Result<()> {
    if depth == 0 || depth > MAX_CQE {
        return Err(Error::Invalid("the depth of the completion queue"));
    }
    Ok(())
}

/// Completions, and when they came if that is wanted.
struct Lane {
    ring: CompletionLane,
    /// For each slot; none if there are no time stamps.
    times: Box<[AtomicU64]>,
}

impl Lane {
    fn new(depth: u32, stamped: bool) -> Self {
        let ring = CompletionLane::new(depth);
        let times = if stamped { ring.capacity() } else { 0 };
        Self { ring, times: (0..times).map(|_| AtomicU64::new(0)).collect() }
    }

    fn time(&self, index: u32) -> Option<&AtomicU64> {
        self.times.get(self.ring.slot_of(index))
    }
}

/// A completion queue as engine and application share it. One engine, one lane.
pub(crate) struct CqShared {
    number: Number,
    /// Used by the engine under its lock and by pollers under theirs; replaced under both.
    lane: UnsafeCell<Lane>,
    /// Where time stamps come from, if they are wanted.
    clock: Option<DeviceClock>,
    /// Number of the next completion; engine only.
    head: Line<AtomicU32>,
    armed: AtomicU8,
    /// This queue waits in its channel already.
    pub(crate) announced: AtomicBool,
    overflowed: AtomicBool,
    poller: SpinLock<Poller>,
    channel: Option<Arc<ChannelShared>>,
    events: Arc<AsyncQueue>,
    itself: Weak<CqShared>,
}

// SAFETY: the lane is replaced only by `resize`, whose caller has the engine lock and which takes the pollers' lock;
// everybody else has one of the two and uses it through shared references. All else is Sync.
unsafe impl Sync for CqShared {}

/// The application's end.
#[derive(Default)]
struct Poller {
    /// Number of the next completion to take.
    tail: u32,
    idle: u32,
}

impl CqShared {
    pub(crate) fn new(
        number: Number,
        depth: u32,
        channel: Option<Arc<ChannelShared>>,
        events: Arc<AsyncQueue>,
        clock: Option<DeviceClock>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|itself| Self {
            number,
            lane: UnsafeCell::new(Lane::new(depth, clock.is_some())),
            clock,
            head: Line(AtomicU32::new(0)),
            armed: AtomicU8::new(armed::NO),
            announced: AtomicBool::new(false),
            overflowed: AtomicBool::new(false),
            poller: SpinLock::default(),
            channel,
            events,
            itself: itself.clone(),
        })
    }

    /// Engine, under its lock: publishes a completion and announces it if the application asked for that.
    #[inline(always)]
    pub(crate) fn push(&self, wc: Wc) -> Result<(), CqOverflow> {
        let head = self.head.load(Ordering::Relaxed);
        // SAFETY: the caller has the engine lock.
        let lane = unsafe { &*self.lane.get() };
        if self.clock.is_some() {
            self.stamp(lane, head);
        }
        if !lane.ring.push(head, wc) {
            self.overflow();
            return Err(CqOverflow);
        }
        self.head.store(head.wrapping_add(1), Ordering::Relaxed);
        if let Some(channel) = &self.channel {
            // Pairs with the fence in `arm`: either this sees the queue armed, or the poll that follows
            // arming sees the completion (verbs §8.2.5).
            fence(Ordering::SeqCst);
            let wanted = self.armed.load(Ordering::Relaxed);
            if wanted == armed::ANY || (wanted == armed::SOLICITED && wc.is_solicited()) {
                self.armed.store(armed::NO, Ordering::Relaxed);
                channel.announce(self, &self.itself);
            }
        }
        Ok(())
    }

    /// Notes the time of completion `head`, which comes next.
    #[inline(never)]
    fn stamp(&self, lane: &Lane, head: u32) {
        if let (Some(clock), Some(time)) = (&self.clock, lane.time(head))
            && lane.ring.is_free(head)
        {
            time.store(clock(), Ordering::Relaxed);
        }
    }

    #[cold]
    fn overflow(&self) {
        if !self.overflowed.swap(true, Ordering::Relaxed) {
            self.events.raise(AsyncEvent::CqError { cqn: self.number.get() });
        }
    }

    /// Whether completions were lost.
    pub(crate) fn overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }

    fn arm(&self, solicited_only: bool) {
        let wanted = if solicited_only { armed::SOLICITED } else { armed::ANY };
        // The stronger wish wins: arming for solicited ones does not take back arming for any.
        self.armed.fetch_max(wanted, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The application's side of the lane.
    fn polled<'a>(&'a self, _poller: &'a SpinGuard<'_, Poller>) -> &'a Lane {
        // SAFETY: the guard shows that the pollers' lock is held as long as the reference lives.
        unsafe { &*self.lane.get() }
    }

    /// Moves what is there to `fresh`, which takes the lane's place; the old one is given back. The caller has the
    /// engine lock.
    fn resize(&self, poller: &mut Poller, fresh: Lane) -> Result<Lane> {
        // SAFETY: the caller has the engine lock and, as the poller shows, the pollers' lock.
        let lane = unsafe { &mut *self.lane.get() };
        let pending = self.head.load(Ordering::Relaxed).wrapping_sub(poller.tail);
        if pending > fresh.ring.capacity() {
            return Err(Error::Invalid("the completion queue holds more completions than that"));
        }
        for new in 0..pending {
            let old = poller.tail.wrapping_add(new);
            if let Some(wc) = lane.ring.peek(old) {
                fresh.ring.push(new, *wc);
            }
            if let (Some(from), Some(to)) = (lane.time(old), fresh.time(new)) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        poller.tail = 0;
        self.head.store(pending, Ordering::Relaxed);
        self.overflowed.store(false, Ordering::Relaxed);
        Ok(std::mem::replace(lane, fresh))
    }

    /// Takes what is there, without driving the engine.
    fn take(&self, poller: &mut SpinGuard<'_, Poller>, out: &mut [Wc]) -> usize {
        let ring = &self.polled(poller).ring;
        let mut taken = 0;
        while let Some(slot) = out.get_mut(taken) {
            let Some(wc) = ring.peek(poller.tail.wrapping_add(taken as u32)) else { break };
            *slot = *wc;
            taken += 1;
        }
        if taken > 0 {
            let tail = poller.tail.wrapping_add(taken as u32);
            ring.release(tail.wrapping_sub(1));
            poller.tail = tail;
        }
        taken
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        self.events.forget(Object::Cq(self.number.get()));
    }
}

/// What a new completion queue is like.
#[derive(Clone, Copy)]
pub struct CqInit<'a> {
    /// Completions that it holds at least.
    pub depth: u32,
    /// Where its events go.
    pub channel: Option<&'a CompChannel>,
    /// Each completion gets a time stamp, which [`Cq::start_poll`] shows.
    pub timestamps: bool,
}

/// A completion queue. Clones are handles to the same queue.
#[derive(Clone)]
pub struct Cq {
    pub(crate) shared: Arc<CqShared>,
    pub(crate) device: Arc<DeviceShared>,
}

impl Cq {
    /// Moves up to `out.len()` completions into `out` and returns how many. Drives the engine unless
    /// its own thread is dedicated to that.
    pub fn poll(&self, out: &mut [Wc]) -> usize {
        let pass = self.drive();
        if pass == Polled::Skipped && is_quiet() && still_quiet() {
            return 0;
        }
        let mut poller = self.shared.poller.lock();
        let taken = self.shared.take(&mut poller, out);
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
    /// let init = CqInit { depth: 64, channel: None, timestamps: true };
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
        let poller = self.shared.poller.lock();
        if self.shared.polled(&poller).ring.peek(poller.tail).is_some() {
            return Some(Completions::new(&self.shared, poller));
        }
        self.pace(poller, false, pass);
        None
    }

    /// Gives the queue room for at least `depth` completions from now on. Those that it holds remain, in order;
    /// the device and other threads may use it meanwhile.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a depth of 0, beyond the device's limit, or below the number of completions that the
    /// queue holds. It stays as it is then.
    pub fn resize(&self, depth: u32) -> Result<()> {
        check_depth(depth)?;
        let cq = &*self.shared;
        let fresh = Lane::new(depth, cq.clock.is_some());
        // This lock first: who holds it (`start_poll`) may well use control verbs.
        let mut poller = cq.poller.lock();
        let old = self.device.shard.control(|_| cq.resize(&mut poller, fresh))?;
        drop(poller);
        drop(old);
        Ok(())
    }

    /// Runs a pass if that is up to callers.
    #[inline]
    fn drive(&self) -> Polled {
        let cq = &*self.shared;
        let shard = &self.device.shard;
        // Who armed the queue is about to sleep, so that poll does not keep the engine's thread away.
        let stays = cq.armed.load(Ordering::Relaxed) == armed::NO;
        if stays { shard.poll_pass() } else { shard.try_pass() }
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
        self.shared.arm(solicited_only);
        self.device.shard.hand_over();
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
        let poller = self.shared.poller.lock();
        self.shared.polled(&poller).ring.capacity()
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

#[cfg(test)]
mod tests;
