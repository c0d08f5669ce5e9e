//! The completion queue as engines and application share it.

mod lane;

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

/// The completion queue has more completions than its depth; the affected QP goes to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CqOverflow;

pub(crate) fn check_depth(depth: u32) -> Result<()> {
    if depth == 0 || depth > MAX_CQE {
        return Err(Error::Invalid("the depth of the completion queue"));
    }
    Ok(())
}

/// A completion queue as engines and application share it. Each engine that gives completions to it does so in a lane of its
/// own, under its own lock; so order holds within a queue pair, which is at one engine at a time.
pub(crate) struct CqShared {
    pub(crate) number: Number,
    /// The engine that the application drives by polling this queue.
    pub(crate) home: EngineNumber,
    /// That of the home engine.
    lane: Lane,
    /// Engines other than that which have a lane, a bit each.
    others: AtomicU64,
    /// The lanes of those, by the engine's number. Most queues have none.
    other_lanes: OnceLock<Box<[OnceLock<Box<Lane>>]>>,
    /// The depth of a lane that is opened now.
    depth: Mutex<u32>,
    /// Where time stamps come from, if they are wanted.
    pub(crate) clock: Option<DeviceClock>,
    pub(crate) arming: Arming,
    /// This queue waits in its channel already.
    pub(crate) announced: AtomicBool,
    overflowed: AtomicBool,
    pub(crate) polls: Line<Polls>,
    channel: Option<Arc<ChannelShared>>,
    events: Arc<AsyncQueue>,
    itself: Weak<CqShared>,
}

/// What pollers write with each poll: engines that complete to the queue write other lines.
pub(crate) struct Polls {
    pub(crate) poller: SpinLock<Poller>,
    /// So many polls may take completions without driving the engine first: the last one has left some.
    ahead: AtomicU8,
    /// The engine that pollers have looked at last, beside the home engine.
    driven: AtomicU8,
    /// So many polls pass the other engines by: another thread has driven the one that was looked at last.
    passing: AtomicU8,
    /// Engines beside the home engine that the next poll drives, a bit each, whoever else does: they have flushes for this queue.
    asked: AtomicU64,
    /// Counts polls while the device has several engines; wraps.
    turns: AtomicU32,
}

/// The application's end. Only the pollers' lock has one.
#[derive(Default)]
pub(crate) struct Poller {
    pub(crate) idle: u32,
    /// The lane that is looked at first.
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
            }),
            channel,
            events,
            itself: itself.clone(),
        })
    }

    /// Engine, under its lock: publishes a completion and announces it if the application asked for that.
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

    /// Opens the lane of an engine that will give completions to this queue, unless it has one. Called outside of passes,
    /// so that no pass has to.
    pub(crate) fn open_lane(&self, engine: EngineNumber) {
        if engine != self.home {
            self.other_lane(engine);
        }
    }

    /// Only the layout of the code makes it cold: what surrounds it is to be fast where a device has one engine.
    #[cold]
    #[inline(never)]
    fn other_lane(&self, engine: EngineNumber) -> &Lane {
        self.lane_of(engine).unwrap_or_else(|| self.add_lane(engine))
    }

    #[cold]
    fn add_lane(&self, engine: EngineNumber) -> &Lane {
        let lanes = self.other_lanes.get_or_init(|| (0..MAX_ENGINES).map(|_| OnceLock::new()).collect());
        // Under the lock, so that whoever resizes knows of the lane, or the lane of the new depth.
        let depth = self.depth();
        let lane = lanes[engine.index()]
            .get_or_init(|| Box::new(Lane::new(Entries::new(*depth, self.clock.is_some()))));
        // Before anything is in it: a poll that is to find that sees this.
        self.others.fetch_or(engine.bit(), Ordering::Release);
        lane
    }

    fn depth(&self) -> MutexGuard<'_, u32> {
        self.depth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the lane of an engine, if it has one.
    #[inline]
    pub(crate) fn lane_of(&self, engine: EngineNumber) -> Option<&Lane> {
        if engine == self.home {
            return Some(&self.lane);
        }
        self.other_lanes.get()?.get(engine.index())?.get().map(|lane| &**lane)
    }

    /// Whether there are lanes beside that of the home engine.
    #[inline]
    pub(crate) fn has_others(&self) -> bool {
        self.others.load(Ordering::Acquire) != 0
    }

    /// Returns the engines that have lanes, each once, `first` first.
    pub(crate) fn engines(&self, first: EngineNumber) -> impl Iterator<Item = EngineNumber> + use<> {
        let open = self.others.load(Ordering::Acquire) | self.home.bit();
        let before = open & (first.bit() - 1);
        EngineNumber::of_set(open ^ before).chain(EngineNumber::of_set(before))
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

    /// Returns entries for a lane of this queue.
    pub(crate) fn entries(&self, depth: u32) -> Entries {
        Entries::new(depth, self.clock.is_some())
    }

    /// Returns how many completions each lane holds.
    pub(crate) fn capacity(&self, poller: &Poller) -> u32 {
        self.lane.polled(poller).ring.capacity()
    }

    /// Begins to give the lanes a new depth, and returns the engines whose lanes have to be [replaced](Self::replace) for
    /// it. Lanes that are opened meanwhile are deep enough, whatever comes of it.
    ///
    /// # Errors
    /// [`Error::Invalid`]: a lane holds more completions than that.
    pub(crate) fn begin_resize(
        &self,
        poller: &Poller,
        depth: u32,
    ) -> Result<impl Iterator<Item = EngineNumber> + use<>> {
        let mut for_new_ones = self.depth();
        let engines = || self.engines(self.home);
        let holds_more = |lane: &Lane| lane.pending(poller) > capacity_for(depth);
        if engines().filter_map(|engine| self.lane_of(engine)).any(holds_more) {
            return Err(Error::Invalid("the completion queue holds more completions than that"));
        }
        *for_new_ones = depth.max(*for_new_ones);
        Ok(engines())
    }

    /// Gives the lane of `engine` new entries, which take over what is in the old ones. The caller has that engine's lock.
    pub(crate) fn replace(
        &self,
        poller: &mut Poller,
        engine: EngineNumber,
        fresh: Entries,
    ) -> Option<Entries> {
        Some(self.lane_of(engine)?.replace(poller, fresh))
    }

    /// All lanes have the new depth.
    pub(crate) fn end_resize(&self, _poller: &Poller, depth: u32) {
        *self.depth() = depth;
        self.overflowed.store(false, Ordering::Relaxed);
    }

    /// Whether completions of a queue pair that it had at `engine` wait to be taken. True also if somebody polls just now,
    /// because nobody else can tell then. The caller has that engine's lock, so that no more are added meanwhile.
    pub(crate) fn holds_of(&self, engine: EngineNumber, qpn: u32) -> bool {
        let Some(lane) = self.lane_of(engine) else { return false };
        // A queue that is polled all the time is mostly empty, and its lock mostly taken.
        !lane.is_empty() && self.polls.poller.try_lock().is_none_or(|poller| lane.holds_of(&poller, qpn))
    }

    /// Returns which of the engines that are not the home engine is to be driven next by whoever polls: each in turn.
    pub(crate) fn next_to_drive(&self) -> Option<EngineNumber> {
        let others = self.others.load(Ordering::Acquire);
        // Of two pollers at once both may drive the same one: the next poll drives another.
        let last = u32::from(self.polls.driven.load(Ordering::Relaxed));
        let next = last + 1 + others.rotate_right((last + 1) % u64::BITS).trailing_zeros();
        let engine = EngineNumber::new((next % u64::BITS) as usize).filter(|_| others != 0)?;
        self.polls.driven.store(engine.index() as u8, Ordering::Relaxed);
        Some(engine)
    }

    /// A request was posted that `engine` will flush: the next poll drives it, so that it finds the completion.
    pub(crate) fn ask(&self, engine: EngineNumber) {
        if engine != self.home {
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

    /// Returns whether this poll passes the engines beside the home engine by. Of two polls at once both may count as one.
    pub(crate) fn passes_by(&self) -> bool {
        let left = self.polls.passing.load(Ordering::Relaxed);
        if left > 0 {
            self.polls.passing.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// Lets so many polls pass the engines beside the home engine by.
    pub(crate) fn pass_by(&self, polls: u8) {
        self.polls.passing.store(polls, Ordering::Relaxed);
    }

    /// Counts one more poll. Of two at once one may be left out.
    pub(crate) fn next_turn(&self) -> u32 {
        let turn = self.polls.turns.load(Ordering::Relaxed);
        self.polls.turns.store(turn.wrapping_add(1), Ordering::Relaxed);
        turn
    }

    /// How many polls may take completions before the engine is driven again.
    #[inline]
    pub(crate) fn ahead(&self) -> u8 {
        self.polls.ahead.load(Ordering::Relaxed)
    }

    /// Takes what is there, without driving the engine. If there is more, the next `ahead` polls may do so, too.
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

    /// Takes from all lanes, beginning behind the one with which the last poll ended. Gives how many, and whether there are
    /// more.
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
            // Full, here or before: a lane that has more is reason enough to poll again.
            if taken > 0 && lane.has_some(poller) {
                return (taken, true);
            }
        }
        (taken, false)
    }

    /// Returns the engine whose lane has the completion to be taken next, if there is one.
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
