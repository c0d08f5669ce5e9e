//! The completion queue as engine and application share it.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};

use super::channel::ChannelShared;
use super::clock::DeviceClock;
use super::engines::EngineNumber;
use super::error::{Error, Result};
use super::events::{AsyncEvent, AsyncQueue, Object};
use super::numbers::{MAX_CQE, Number};
use super::queue::CompletionLane;
use super::sync::{Line, SpinGuard, SpinLock};
use super::wc::Wc;

/// The completion queue has more completions than its depth; the affected QP goes to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CqOverflow;

/// What a completion queue was asked to report by an event.
pub(crate) mod armed {
    pub(crate) const NO: u8 = 0;
    pub(crate) const SOLICITED: u8 = 1;
    pub(crate) const ANY: u8 = 2;
}

pub(crate) fn check_depth(depth: u32) -> Result<()> {
    if depth == 0 || depth > MAX_CQE {
        return Err(Error::Invalid("the depth of the completion queue"));
    }
    Ok(())
}

/// Completions, and when they came if that is wanted.
pub(crate) struct Lane {
    pub(crate) ring: CompletionLane,
    /// For each slot; none if there are no time stamps.
    times: Box<[AtomicU64]>,
}

impl Lane {
    pub(crate) fn new(depth: u32, stamped: bool) -> Self {
        let ring = CompletionLane::new(depth);
        let times = if stamped { ring.capacity() } else { 0 };
        Self { ring, times: (0..times).map(|_| AtomicU64::new(0)).collect() }
    }

    pub(crate) fn time(&self, index: u32) -> Option<&AtomicU64> {
        self.times.get(self.ring.slot_of(index))
    }
}

/// A completion queue as engine and application share it. One engine, one lane.
pub(crate) struct CqShared {
    pub(crate) number: Number,
    /// The engine that its pollers drive first.
    home: EngineNumber,
    /// Used by the engine under its lock and by pollers under theirs; replaced under both.
    lane: UnsafeCell<Lane>,
    /// Where time stamps come from, if they are wanted.
    pub(crate) clock: Option<DeviceClock>,
    /// Number of the next completion; engine only.
    head: Line<AtomicU32>,
    pub(crate) armed: AtomicU8,
    /// This queue waits in its channel already.
    pub(crate) announced: AtomicBool,
    overflowed: AtomicBool,
    pub(crate) poller: SpinLock<Poller>,
    /// So many polls may take completions without driving the engine first: the last one has left some.
    ahead: AtomicU8,
    channel: Option<Arc<ChannelShared>>,
    events: Arc<AsyncQueue>,
    itself: Weak<CqShared>,
}

// SAFETY: the lane is replaced only by `resize`, whose caller has the engine lock and which takes the pollers' lock;
// everybody else has one of the two and uses it through shared references. All else is Sync.
unsafe impl Sync for CqShared {}

/// The application's end.
#[derive(Default)]
pub(crate) struct Poller {
    /// Number of the next completion to take.
    pub(crate) tail: u32,
    pub(crate) idle: u32,
}

impl CqShared {
    pub(crate) fn new(
        number: Number,
        home: EngineNumber,
        depth: u32,
        channel: Option<Arc<ChannelShared>>,
        events: Arc<AsyncQueue>,
        clock: Option<DeviceClock>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|itself| Self {
            number,
            home,
            lane: UnsafeCell::new(Lane::new(depth, clock.is_some())),
            clock,
            head: Line(AtomicU32::new(0)),
            armed: AtomicU8::new(armed::NO),
            announced: AtomicBool::new(false),
            overflowed: AtomicBool::new(false),
            poller: SpinLock::default(),
            ahead: AtomicU8::new(0),
            channel,
            events,
            itself: itself.clone(),
        })
    }

    /// Returns its home engine.
    pub(crate) fn home(&self) -> EngineNumber {
        self.home
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

    pub(crate) fn arm(&self, solicited_only: bool) {
        let wanted = if solicited_only { armed::SOLICITED } else { armed::ANY };
        // The stronger wish wins: arming for solicited ones does not take back arming for any.
        self.armed.fetch_max(wanted, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The application's side of the lane.
    pub(crate) fn polled<'a>(&'a self, _poller: &'a SpinGuard<'_, Poller>) -> &'a Lane {
        // SAFETY: the guard shows that the pollers' lock is held as long as the reference lives.
        unsafe { &*self.lane.get() }
    }

    /// Moves what is there to `fresh`, which takes the lane's place; the old one is given back. The caller has the
    /// engine lock.
    pub(crate) fn resize(&self, poller: &mut Poller, fresh: Lane) -> Result<Lane> {
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

    /// What a queue pair has completed at an engine that it has left comes before what it will complete elsewhere.
    pub(crate) fn put_first(&self, _engine: EngineNumber) {}

    /// How many polls may take completions before the engine is driven again.
    #[inline]
    pub(crate) fn ahead(&self) -> u8 {
        self.ahead.load(Ordering::Relaxed)
    }

    /// Takes what is there, without driving the engine. If there is more, the next `ahead` polls may do so, too.
    pub(crate) fn take(&self, poller: &mut SpinGuard<'_, Poller>, out: &mut [Wc], ahead: u8) -> usize {
        let (first, ring) = (poller.tail, &self.polled(poller).ring);
        let mut taken = 0;
        while let Some(slot) = out.get_mut(taken) {
            let Some(wc) = ring.peek(first.wrapping_add(taken as u32)) else { break };
            *slot = *wc;
            taken += 1;
        }
        let tail = first.wrapping_add(taken as u32);
        let mut more = false;
        if taken > 0 {
            ring.release(tail.wrapping_sub(1));
            more = taken == out.len() && ring.peek(tail).is_some();
            poller.tail = tail;
        }
        let ahead = if more { ahead } else { 0 };
        if self.ahead() != ahead {
            self.ahead.store(ahead, Ordering::Relaxed);
        }
        taken
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        self.events.forget(Object::Cq(self.number.get()));
    }
}
