//! The part of a shared receive queue that engines and application share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::doorbell::AwaitedBy;
use super::engines::EngineNumber;
use super::error::{PostError, PostListError};
use super::events::{AsyncEvent, AsyncQueue, Object};
use super::numbers::Number;
use super::queue::{RecvPoster, RecvQueue, RecvView, WrNumber};
use super::scope::Scope;
use super::sync::Line;
use super::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use super::sync::thread;
use super::wr::{RecvWr, Sge};

/// How often a poster yields before it looks at the clock. A poster yields if an engine is about to free the slot
/// that the poster needs.
const YIELDS: u32 = 10_000;
/// How long the poster then waits. The thread that drives the engine may have lost its core just then, and will get it
/// back.
const PATIENCE: Duration = Duration::from_secs(1);

/// The part of a shared receive queue that engines and application share.
///
/// Several engines take from it without a lock. An engine claims the oldest receive by advancing `head`, then
/// copies it and gives back its slot. An engine that is preempted meanwhile delays only a poster that needs this
/// very slot.
pub(crate) struct SrqShared {
    pub(crate) number: Number,
    /// The domain of the receives' memory, which need not be that of the queue pairs.
    pub(crate) domain: Scope,
    pub(crate) queue: RecvQueue,
    /// Whether several engines take from this queue.
    pub(crate) several: bool,
    /// Number of the next receive to take, in 64 bits, so that it never returns to a value that an engine has seen.
    head: Line<AtomicU64>,
    /// The limit: when fewer receives than this are left, an event is raised, once. 0: no limit.
    limit: AtomicU32,
    events: Arc<AsyncQueue>,
    /// Engines at which Sends of peers wait for receives. Posters ring there.
    pub(crate) awaited: AwaitedBy,
    /// Engines of `awaited` that have got a receive for a waiting Send in this round. A round ends when all engines of
    /// `awaited` have got one.
    served: AtomicU64,
}

impl SrqShared {
    /// Makes a queue from which `engines` engines take.
    pub(crate) fn new(
        number: Number,
        domain: Scope,
        queue: RecvQueue,
        limit: u32,
        events: Arc<AsyncQueue>,
        engines: usize,
    ) -> Self {
        Self {
            number,
            domain,
            queue,
            several: engines > 1,
            head: Line(AtomicU64::new(0)),
            // This limit raises no event before the first receive is posted, because no receive is taken until then.
            limit: AtomicU32::new(limit),
            events,
            awaited: AwaitedBy::default(),
            served: AtomicU64::new(0),
        }
    }

    /// Called by the engine: takes the oldest receive, for a message that begins, and frees its place in the queue.
    /// Returns the size of the receive in bytes; `None` if there is none.
    #[inline(never)]
    pub(crate) fn take(&self, held: &mut HeldRecv) -> Option<u32> {
        if self.several {
            return self.take_among_several(held);
        }
        let head = self.head.load(Ordering::Relaxed);
        let number = WrNumber(head as u32);
        held.fill(self.queue.peek(number)?);
        self.queue.release(number);
        self.head.store(head + 1, Ordering::Relaxed);
        if self.limit.load(Ordering::Relaxed) > 0 {
            self.check_limit();
        }
        Some(held.length)
    }

    fn take_among_several(&self, held: &mut HeldRecv) -> Option<u32> {
        let number = claim(&self.head, |number| self.queue.has(number))?;
        held.fill(self.queue.peek(number)?);
        self.queue.release(number);
        if self.limit.load(Ordering::Relaxed) > 0 {
            self.check_limit();
        }
        Some(held.length)
    }

    /// Returns whether there is a receive to take.
    pub(crate) fn has_some(&self) -> bool {
        self.queue.has(self.next())
    }

    fn next(&self) -> WrNumber {
        WrNumber(self.head.load(Ordering::Acquire) as u32)
    }

    pub(crate) fn number(&self) -> u32 {
        self.number.get()
    }

    /// Makes a place for a receive of this queue.
    pub(crate) fn held(&self) -> HeldRecv {
        let sges = vec![Sge::default(); self.queue.max_sge().into()].into();
        HeldRecv { wr_id: 0, length: 0, num_sge: 0, sges }
    }

    /// Returns the limit, in receives, while its event is pending; otherwise 0.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit, and raises its event if the limit is reached already. On a device with one engine, the caller
    /// has that engine's lock.
    pub(crate) fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
        // Orders this among the claims: an engine that claims later sees the limit, and this thread sees earlier
        // claims.
        self.head.fetch_add(0, Ordering::AcqRel);
        self.check_limit();
    }

    /// Raises the pending event if the limit is reached. With several engines, each calls this after it has taken a
    /// receive, so at the latest the engine that takes last finds that the limit is reached. If several engines find
    /// this, only one of them raises the event.
    fn check_limit(&self) {
        let limit = self.limit.load(Ordering::Relaxed);
        let last = WrNumber(self.next().0.wrapping_add(limit).wrapping_sub(1));
        let reached = limit > 0 && !self.queue.was_posted(last);
        if reached && self.limit.compare_exchange(limit, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.events.raise(AsyncEvent::SrqLimitReached { srqn: self.number.get() });
        }
    }

    /// Posts receives in order, and stops at the first that is refused. No other thread's receives come in between.
    pub(crate) fn post(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostListError> {
        let mut poster = self.queue.poster();
        let mut outcome = Ok(());
        for (posted, wr) in wrs.iter().enumerate() {
            outcome = self.write(&mut poster, wr).map_err(|error| PostListError { posted, error });
            if outcome.is_err() {
                break;
            }
        }
        poster.publish();
        outcome
    }

    /// Writes a receive, or refuses it and changes nothing.
    #[inline]
    pub(crate) fn write(&self, poster: &mut RecvPoster<'_>, wr: &RecvWr<'_>) -> Result<(), PostError> {
        poster.write(wr).or_else(|error| self.write_late(poster, wr, error))
    }

    /// Writes a receive that was refused, once the slot that it needs is free. Waits only if an engine has claimed
    /// the slot's old receive and is copying it: a program that has seen younger receives complete may expect room
    /// for a new one.
    #[cold]
    fn write_late(
        &self,
        poster: &mut RecvPoster<'_>,
        wr: &RecvWr<'_>,
        mut error: PostError,
    ) -> Result<(), PostError> {
        let (mut yields, mut since) = (0, None);
        loop {
            let oldest = poster.next().0.wrapping_sub(self.queue.capacity());
            let claimed = self.next().0.wrapping_sub(oldest) as i32 > 0;
            if error != PostError::QueueFull || !self.several || !claimed {
                break;
            }
            match poster.write(wr) {
                Ok(()) => return Ok(()),
                Err(refused) => error = refused,
            }
            yields += 1;
            if yields > YIELDS && since.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
                break;
            }
            thread::yield_now();
        }
        Err(error)
    }

    /// Called by the engine: returns whether Sends that wait here must leave the receives to other engines. This is
    /// so if, in this round, this engine has had a receive for such a Send, and another engine at which Sends wait
    /// has had none.
    pub(crate) fn is_others_turn(&self, engine: EngineNumber) -> bool {
        let served = self.served.load(Ordering::Relaxed);
        self.several
            && served & engine.bit() != 0
            && self.awaited.all() & !(served | engine.bit()) != 0
            && self.has_some()
    }

    /// Called by the engine: returns whether Sends wait at other engines as well.
    pub(crate) fn is_awaited_elsewhere(&self, engine: EngineNumber) -> bool {
        self.several && self.awaited.all() & !engine.bit() != 0
    }

    /// Called by the engine: notes that a Send that waited here has had its receive.
    pub(crate) fn has_served(&self, engine: EngineNumber) {
        // Only a hint, so it does not matter what other engines do between these steps.
        let served = self.served.fetch_or(engine.bit(), Ordering::Relaxed) | engine.bit();
        if self.awaited.all() & !served == 0 {
            self.served.store(0, Ordering::Relaxed);
        }
    }
}

/// Claims the oldest entry of a ring with several consumers: advances `head` if the entry there is published.
/// Returns `None` if it is not. An attempt fails only if another consumer has claimed an entry, so some
/// consumer always makes progress.
pub(crate) fn claim(head: &AtomicU64, is_published: impl Fn(WrNumber) -> bool) -> Option<WrNumber> {
    let mut seen = head.load(Ordering::Acquire);
    loop {
        let number = WrNumber(seen as u32);
        if is_published(number) {
            match head.compare_exchange(seen, seen + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(number),
                Err(now) => seen = now,
            }
        } else {
            // Another consumer may have claimed this entry and given it back.
            let now = head.load(Ordering::Acquire);
            if now == seen {
                return None;
            }
            seen = now;
        }
    }
}

impl Drop for SrqShared {
    fn drop(&mut self) {
        self.events.forget(Object::Srq(self.number.get()));
    }
}

/// A receive that a queue pair has taken from a shared queue, and has not completed.
pub(crate) struct HeldRecv {
    wr_id: u64,
    length: u32,
    num_sge: u8,
    sges: Box<[Sge]>,
}

impl HeldRecv {
    fn fill(&mut self, view: RecvView<'_>) {
        self.wr_id = view.wr_id;
        self.length = view.length;
        self.num_sge = view.sges.len() as u8;
        self.sges[..view.sges.len()].copy_from_slice(view.sges);
    }

    pub(crate) fn view(&self) -> RecvView<'_> {
        RecvView { wr_id: self.wr_id, sges: &self.sges[..usize::from(self.num_sge)], length: self.length }
    }
}
