//! The part of a completion queue that engines and application share.

mod lane;
mod pollers;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::arming::Arming;
use super::channel::ChannelShared;
use super::clock::DeviceClock;
use urnic_config::MAX_ENGINES;

use super::engines::EngineNumber;
use super::error::{Error, Result};
use super::events::{AsyncEvent, AsyncQueue, Object};
use super::numbers::{MAX_CQE, Number};
use super::queue::capacity_for;
use super::sync::{Line, SpinLock};
use super::wc::Wc;

pub(crate) use lane::{Entries, Lane};
use pollers::Pollers;

/// The completion queue has no room for the completion. The queue pair concerned goes to the terminate or the
/// error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CqOverflow;

pub(crate) fn check_depth(depth: u32) -> Result<()> {
    if depth == 0 || depth > MAX_CQE {
        return Err(Error::Invalid("the depth is 0 or beyond the device's limit, max_cqe"));
    }
    Ok(())
}

/// The part of a completion queue that engines and application share. Each engine adds completions in a lane of its
/// own, under its own lock. A queue pair is at one engine at a time, so the completions of a queue pair keep their
/// order.
pub(crate) struct CqShared {
    pub(crate) number: Number,
    /// The home engine. Queue pairs whose sends complete to this queue begin at this engine.
    pub(crate) home: EngineNumber,
    /// The lane of the home engine.
    lane: Lane,
    /// The other engines that have a lane, one bit each.
    others: AtomicU64,
    /// Lanes of the other engines, by the engine's number. Most queues have none.
    other_lanes: OnceLock<Box<[OnceLock<Box<Lane>>]>>,
    /// The depth of a lane that is opened now, in completions.
    depth: Mutex<u32>,
    /// The source of time stamps; `None` if they are not wanted.
    pub(crate) clock: Option<DeviceClock>,
    pub(crate) arming: Arming,
    /// Whether this queue waits in its channel already.
    pub(crate) announced: AtomicBool,
    overflowed: AtomicBool,
    pub(crate) polls: Line<Polls>,
    channel: Option<Arc<ChannelShared>>,
    events: Arc<AsyncQueue>,
    itself: Weak<CqShared>,
}

/// State that pollers write with each poll. This state has a cache line of its own, which engines do not write.
pub(crate) struct Polls {
    pub(crate) poller: SpinLock<Poller>,
    /// Number of polls that may take completions without driving the engine first, because the last poll left some.
    ahead: AtomicU8,
    /// The engine that a poll last drove after its first engine.
    driven: AtomicU8,
    /// Number of further polls that drive their first engine only, and those in `asked`. Set when a poll found that
    /// another thread drives the engine whose turn it was.
    passing: AtomicU8,
    /// Engines that the next poll drives in any case, one bit each, because they will flush requests to this queue.
    asked: AtomicU64,
    /// Counts polls while the device has several engines; wraps.
    turns: AtomicU32,
    pollers: Pollers,
}

const _: () = assert!(size_of::<Polls>() <= 64, "one cache line");

/// The state of the poller. [`Polls::poller`] holds the only one.
#[derive(Default)]
pub(crate) struct Poller {
    /// Number of polls that found nothing since a poll last found something or yielded its core.
    pub(crate) idle: u32,
    /// The engine whose lane is looked at first.
    pub(crate) turn: EngineNumber,
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
            lane: Lane::new(Entries::new(depth, clock.is_some())),
            others: AtomicU64::new(0),
            other_lanes: OnceLock::new(),
            depth: Mutex::new(depth),
            clock,
            arming: Arming::default(),
            announced: AtomicBool::new(false),
            overflowed: AtomicBool::new(false),
            polls: Line(Polls {
                poller: SpinLock::new(Poller { idle: 0, turn: home }),
                ahead: AtomicU8::new(0),
                driven: AtomicU8::new(0),
                passing: AtomicU8::new(0),
                asked: AtomicU64::new(0),
                turns: AtomicU32::new(0),
                pollers: Pollers::default(),
            }),
            channel,
            events,
            itself: itself.clone(),
        })
    }

    /// Called by the engine, under its lock: publishes a completion, and announces it if the application asked for
    /// that.
    #[inline(always)]
    pub(crate) fn push(&self, engine: EngineNumber, wc: Wc) -> Result<(), CqOverflow> {
        let lane = if engine == self.home { &self.lane } else { self.other_lane(engine) };
        if !lane.push(wc, self.clock.as_ref()) {
            self.overflow();
            return Err(CqOverflow);
        }
        if let Some(channel) = &self.channel
            && self.arming.fires(|| wc.is_solicited())
        {
            channel.announce(self, &self.itself);
        }
        Ok(())
    }

    /// Opens the lane of an engine that will complete to this queue, unless it has one. Called outside of passes,
    /// so that no pass has to open a lane.
    pub(crate) fn open_lane(&self, engine: EngineNumber) {
        if engine != self.home {
            self.other_lane(engine);
        }
    }

    /// Returns the lane of an engine other than the home engine, and opens it if there is none. Marked cold only for
    /// the layout of the code: the surrounding code must be fast on a device with one engine.
    #[cold]
    #[inline(never)]
    fn other_lane(&self, engine: EngineNumber) -> &Lane {
        self.lane_of(engine).unwrap_or_else(|| self.add_lane(engine))
    }

    #[cold]
    fn add_lane(&self, engine: EngineNumber) -> &Lane {
        let lanes = self.other_lanes.get_or_init(|| (0..MAX_ENGINES).map(|_| OnceLock::new()).collect());
        // Under the lock: either a thread that resizes sees the lane, or the lane gets the new depth.
        let depth = self.depth();
        let lane = lanes[engine.index()]
            .get_or_init(|| Box::new(Lane::new(Entries::new(*depth, self.clock.is_some()))));
        // Set before the lane has any completion, so that a poll that must find the first one looks at the lane.
        self.others.fetch_or(engine.bit(), Ordering::Release);
        lane
    }

    fn depth(&self) -> MutexGuard<'_, u32> {
        self.depth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the lane of an engine; `None` if it has none.
    #[inline]
    pub(crate) fn lane_of(&self, engine: EngineNumber) -> Option<&Lane> {
        if engine == self.home {
            return Some(&self.lane);
        }
        self.other_lanes.get()?.get(engine.index())?.get().map(|lane| &**lane)
    }

    /// Returns whether there are lanes beside that of the home engine.
    #[inline]
    pub(crate) fn has_others(&self) -> bool {
        self.others.load(Ordering::Acquire) != 0
    }

    /// Returns the engines that have lanes, each once, in circular order from `first` on.
    pub(crate) fn engines(&self, first: EngineNumber) -> impl Iterator<Item = EngineNumber> + use<> {
        EngineNumber::of_set_from(self.others.load(Ordering::Acquire) | self.home.bit(), first)
    }

    #[cold]
    fn overflow(&self) {
        if !self.overflowed.swap(true, Ordering::Relaxed) {
            self.events.raise(AsyncEvent::CqError { cqn: self.number.get() });
        }
    }

    /// Returns whether completions were lost.
    pub(crate) fn overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Makes entries for a lane of this queue.
    pub(crate) fn entries(&self, depth: u32) -> Entries {
        Entries::new(depth, self.clock.is_some())
    }

    /// Returns the number of completions that each lane can hold.
    pub(crate) fn capacity(&self, poller: &Poller) -> u32 {
        self.lane.polled(poller).ring.capacity()
    }

    /// Begins to resize the lanes. Returns the engines whose lanes must be [replaced](Self::replace). Lanes that
    /// are opened meanwhile are deep enough, whatever the outcome.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a lane holds more completions than the new depth allows.
    pub(crate) fn begin_resize(
        &self,
        poller: &Poller,
        depth: u32,
    ) -> Result<impl Iterator<Item = EngineNumber> + use<>> {
        let mut for_new_ones = self.depth();
        let engines = || self.engines(self.home);
        let holds_more = |lane: &Lane| lane.pending(poller) > capacity_for(depth);
        if engines().filter_map(|engine| self.lane_of(engine)).any(holds_more) {
            return Err(Error::Invalid("the completion queue holds more completions than the new depth"));
        }
        *for_new_ones = depth.max(*for_new_ones);
        Ok(engines())
    }

    /// Gives the lane of `engine` new entries, and moves its completions there. Returns the old entries; `None` if the
    /// engine has no lane. The caller has that engine's lock.
    pub(crate) fn replace(
        &self,
        poller: &mut Poller,
        engine: EngineNumber,
        fresh: Entries,
    ) -> Option<Entries> {
        Some(self.lane_of(engine)?.replace(poller, fresh))
    }

    /// Ends a resize: all lanes have the new depth. Also forgets that completions were lost.
    pub(crate) fn end_resize(&self, _poller: &Poller, depth: u32) {
        *self.depth() = depth;
        self.overflowed.store(false, Ordering::Relaxed);
    }

    /// Returns whether completions of a queue pair at `engine` wait to be taken. Also true if the lane has
    /// completions while another thread is polling, because the queue pairs of these completions are unknown then.
    /// The caller has that engine's lock, so that no completions are added meanwhile.
    pub(crate) fn holds_of(&self, engine: EngineNumber, qpn: u32) -> bool {
        let Some(lane) = self.lane_of(engine) else { return false };
        // Looks at the lane before it tries the pollers' lock: a queue that is polled constantly is mostly locked,
        // but also mostly empty.
        !lane.is_empty() && self.polls.poller.try_lock().is_none_or(|poller| lane.holds_of(&poller, qpn))
    }

    /// Returns the engine that this poll drives first, on a device with several engines: the home engine, or while
    /// several threads poll this queue, an engine for each of them.
    #[inline]
    pub(crate) fn first_to_drive(&self) -> EngineNumber {
        self.polls.pollers.first_to_drive(self.home, self.others.load(Ordering::Acquire) | self.home.bit())
    }

    /// Returns the engine other than `first` that a poller must drive next; the engines take turns. `None` if there is
    /// none.
    pub(crate) fn next_to_drive(&self, first: EngineNumber) -> Option<EngineNumber> {
        let others = (self.others.load(Ordering::Acquire) | self.home.bit()) & !first.bit();
        // Two pollers at once may both drive the same engine. The next poll drives another.
        let last = u32::from(self.polls.driven.load(Ordering::Relaxed));
        let next = last + 1 + others.rotate_right((last + 1) % u64::BITS).trailing_zeros();
        let engine = EngineNumber::new((next % u64::BITS) as usize).filter(|_| others != 0)?;
        self.polls.driven.store(engine.index() as u8, Ordering::Relaxed);
        Some(engine)
    }

    /// Notes that a request was posted that `engine` will flush. The next poll then drives that engine, so that the
    /// poll finds the completion.
    pub(crate) fn ask(&self, engine: EngineNumber) {
        if self.has_others() {
            self.polls.asked.fetch_or(engine.bit(), Ordering::Relaxed);
        }
    }

    /// Returns the engines that were [asked](Self::ask), each once.
    #[inline]
    pub(crate) fn take_asked(&self) -> impl Iterator<Item = EngineNumber> + use<> {
        let asked = &self.polls.asked;
        let engines = if asked.load(Ordering::Relaxed) == 0 { 0 } else { asked.swap(0, Ordering::Relaxed) };
        EngineNumber::of_set(engines)
    }

    /// Returns whether this poll leaves out the engine whose turn it is. Two polls at once may count as one.
    pub(crate) fn skips_others(&self) -> bool {
        let left = self.polls.passing.load(Ordering::Relaxed);
        if left > 0 {
            self.polls.passing.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// Makes the next `polls` polls leave out the engine whose turn it is.
    pub(crate) fn skip_others(&self, polls: u8) {
        self.polls.passing.store(polls, Ordering::Relaxed);
    }

    /// Counts one more poll. Two polls at once may count as one.
    pub(crate) fn next_turn(&self) -> u32 {
        let turn = self.polls.turns.load(Ordering::Relaxed);
        self.polls.turns.store(turn.wrapping_add(1), Ordering::Relaxed);
        turn
    }

    /// Returns how many polls may take completions before the engine is driven again.
    #[inline]
    pub(crate) fn ahead(&self) -> u8 {
        self.polls.ahead.load(Ordering::Relaxed)
    }

    /// Takes completions without driving the engine. If more remain, the next `ahead` polls may do the same.
    pub(crate) fn take(&self, poller: &mut Poller, out: &mut [Wc], ahead: u8) -> usize {
        let (taken, more) = if self.has_others() {
            self.take_in_turn(poller, out)
        } else {
            let taken = self.lane.take(poller, out);
            (taken, taken > 0 && taken == out.len() && self.lane.has_some(poller))
        };
        let ahead = if more { ahead } else { 0 };
        if self.ahead() != ahead {
            self.polls.ahead.store(ahead, Ordering::Relaxed);
        }
        taken
    }

    /// Takes from all lanes, beginning after the one that last filled the `out` of a poll. Returns the number taken,
    /// and whether more remain.
    #[inline(never)]
    fn take_in_turn(&self, poller: &mut Poller, out: &mut [Wc]) -> (usize, bool) {
        let mut taken = 0;
        for engine in self.engines(poller.turn) {
            let Some(lane) = self.lane_of(engine) else { continue };
            if taken < out.len() {
                taken += lane.take(poller, &mut out[taken..]);
                if taken < out.len() {
                    continue;
                }
                poller.turn = engine.after();
            }
            // `out` is full. One lane that has more is reason enough to poll again.
            if taken > 0 && lane.has_some(poller) {
                return (taken, true);
            }
        }
        (taken, false)
    }

    /// Returns the engine whose lane has the completion to be taken next; `None` if there is no completion.
    #[inline]
    pub(crate) fn first_with_some(&self, poller: &Poller) -> Option<EngineNumber> {
        if !self.has_others() {
            return self.lane.has_some(poller).then_some(self.home);
        }
        self.engines(poller.turn)
            .find(|engine| self.lane_of(*engine).is_some_and(|lane| lane.has_some(poller)))
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        self.events.forget(Object::Cq(self.number.get()));
    }
}
