//! Completion queues.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering, fence};
use std::sync::{Arc, Weak};

use crate::channel::ChannelShared;
use crate::device::{DeviceShared, Number};
use crate::events::{AsyncEvent, AsyncQueue, Object};
use crate::queue::{CompletionLane, capacity_for};
use crate::shard::Polled;
use crate::sync::{Line, SpinLock};
use crate::wc::Wc;

/// Polls without work after which the poller offers its core to others, so that more pollers than cores
/// may be slow but never stuck.
const IDLE_POLLS: u32 = 256;

/// The completion queue has more completions than its depth; the affected QP goes to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CqOverflow;

/// What a completion queue was asked to report by an event.
mod armed {
    pub(super) const NO: u8 = 0;
    pub(super) const SOLICITED: u8 = 1;
    pub(super) const ANY: u8 = 2;
}

/// A completion queue as engine and application share it. One engine, one lane.
pub(crate) struct CqShared {
    number: Number,
    lane: CompletionLane,
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
    ) -> Arc<Self> {
        Arc::new_cyclic(|itself| Self {
            number,
            lane: CompletionLane::new(depth),
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
    #[inline]
    pub(crate) fn push(&self, wc: Wc) -> Result<(), CqOverflow> {
        let head = self.head.load(Ordering::Relaxed);
        if !self.lane.push(head, wc) {
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

    /// Takes what is there, without driving the engine.
    fn take(&self, poller: &mut Poller, out: &mut [Wc]) -> usize {
        let mut taken = 0;
        while let Some(slot) = out.get_mut(taken) {
            let Some(wc) = self.lane.peek(poller.tail.wrapping_add(taken as u32)) else { break };
            *slot = *wc;
            taken += 1;
        }
        if taken > 0 {
            poller.tail = poller.tail.wrapping_add(taken as u32);
            self.lane.release(poller.tail.wrapping_sub(1));
        }
        taken
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        self.events.forget(Object::Cq(self.number.get()));
    }
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
        let cq = &*self.shared;
        let shard = &self.device.shard;
        // Who armed the queue is about to sleep, so that poll does not keep the engine's thread away.
        let stays = cq.armed.load(Ordering::Relaxed) == armed::NO;
        let pass = if stays { shard.poll_pass() } else { shard.try_pass() };
        let mut poller = cq.poller.lock();
        let taken = cq.take(&mut poller, out);
        if taken > 0 || pass == Polled::Worked {
            poller.idle = 0;
        } else {
            poller.idle += 1;
            if poller.idle >= IDLE_POLLS {
                poller.idle = 0;
                drop(poller);
                std::thread::yield_now();
            } else if pass == Polled::Skipped {
                // Whoever drives the engine may share this core.
                std::hint::spin_loop();
            }
        }
        taken
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
    /// peers do: what was asked for is rounded up there (RFC 5042 §6.4.3.2).
    pub fn depth_for(work_queues: &[u32]) -> u32 {
        work_queues.iter().map(|size| capacity_for(*size)).fold(0, u32::saturating_add)
    }

    /// How many completions the queue holds.
    pub fn depth(&self) -> u32 {
        self.shared.lane.capacity()
    }

    /// Whether completions were lost because the queue was full. The QPs concerned are in the error state.
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
