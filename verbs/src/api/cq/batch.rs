//! Reading completions in place. A completion queue has a lane for each engine that completes to it, and a reader takes
//! the completions of the lanes in turn.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use crate::shared::cq::{CqShared, Lane, Poller};
use crate::shared::engines::EngineNumber;
use crate::shared::sync::SpinGuard;
use crate::shared::wc::Wc;

/// Maximum number of completions to read from one engine before another engine has its turn.
const PER_TURN: u32 = 64;

/// Completions that are being read in place, from [`Cq::start_poll`](crate::Cq::start_poll). Dropping this frees
/// the places of the completions that were read.
pub struct Completions<'a> {
    cq: &'a CqShared,
    poller: SpinGuard<'a, Poller>,
    /// The lane of the next completion to read.
    lane: &'a Lane,
    engine: EngineNumber,
    /// Index of the next completion to read.
    next: u32,
    /// Completions still to read from this lane before another has its turn.
    left: u32,
}

impl<'a> Completions<'a> {
    /// Begins with the lane of `engine`; `None` if there is no such lane.
    pub(super) fn new(cq: &'a CqShared, poller: SpinGuard<'a, Poller>, engine: EngineNumber) -> Option<Self> {
        let lane = cq.lane_of(engine)?;
        let next = lane.polled(&poller).taken();
        Some(Self { cq, poller, lane, engine, next, left: PER_TURN })
    }

    /// Returns the next completion; `None` if there are no more. Completions of a queue pair come in the order in
    /// which they were added.
    #[allow(clippy::should_implement_trait)] // the result must not outlive `self`
    #[inline]
    pub fn next(&mut self) -> Option<Completion<'_>> {
        if self.cq.has_others() {
            self.turn();
        }
        let wc = self.lane.polled(&self.poller).ring.peek(self.next)?;
        let index = self.next;
        self.next = index.wrapping_add(1);
        Some(Completion { wc, index, of: self })
    }

    /// Goes on to the next lane that has completions, if this one has had its turn or is empty.
    #[inline(never)]
    fn turn(&mut self) {
        if self.left > 0 && self.lane.polled(&self.poller).ring.peek(self.next).is_some() {
            self.left -= 1;
            return;
        }
        self.release();
        self.poller.turn = self.engine.after();
        let next = self.cq.first_with_some(&self.poller);
        if let Some((engine, lane)) = next.and_then(|engine| Some((engine, self.cq.lane_of(engine)?))) {
            (self.engine, self.lane) = (engine, lane);
            self.next = lane.polled(&self.poller).taken();
            self.left = PER_TURN - 1;
        }
    }

    /// Frees the places of the completions that were read in this lane. Returns whether there were any.
    fn release(&self) -> bool {
        let entries = self.lane.polled(&self.poller);
        let some = self.next != entries.taken();
        if some {
            entries.take_until(self.next);
        }
        some
    }
}

impl Drop for Completions<'_> {
    fn drop(&mut self) {
        if self.release() {
            self.poller.turn = self.engine.after();
        }
        self.poller.idle = 0;
    }
}

/// A completion in its queue. Its fields are those of [`Wc`], read in place.
#[derive(Clone, Copy)]
pub struct Completion<'a> {
    wc: &'a Wc,
    index: u32,
    of: &'a Completions<'a>,
}

impl Completion<'_> {
    /// Returns when the work completed, in nanoseconds of the device's clock
    /// ([`Device::raw_clock`](crate::Device::raw_clock)). `None` if the queue was created without time stamps.
    pub fn timestamp(&self) -> Option<u64> {
        let time = self.of.lane.polled(&self.of.poller).time(self.index)?;
        Some(time.load(Ordering::Relaxed))
    }

    /// Returns the wall-clock time at which the work completed, according to the present setting of the wall clock.
    /// `None` if the queue was created without time stamps.
    pub fn wall_clock(&self) -> Option<SystemTime> {
        let now = self.of.cq.clock.as_ref()?();
        let ago = now.saturating_sub(self.timestamp()?);
        SystemTime::now().checked_sub(Duration::from_nanos(ago))
    }
}

impl Deref for Completion<'_> {
    type Target = Wc;
    #[inline]
    fn deref(&self) -> &Wc {
        self.wc
    }
}

impl fmt::Debug for Completion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wc.fmt(f)
    }
}
