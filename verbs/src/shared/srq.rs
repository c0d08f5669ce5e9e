//! The shared receive queue as engine and application share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::doorbell::Awaited;
use super::events::{AsyncEvent, AsyncQueue, Object};
use super::numbers::Number;
use super::queue::{RecvQueue, RecvView, WrNumber};
use super::scope::Scope;
use super::wr::Sge;

/// A shared receive queue as engine and application share it. One engine takes from it.
pub(crate) struct SrqShared {
    pub(crate) number: Number,
    /// The domain of the receives' memory, whatever that of the queue pairs is.
    pub(crate) domain: Scope,
    pub(crate) queue: RecvQueue,
    /// Number of the next receive to take; engine only.
    pub(crate) head: AtomicU32,
    /// Fewer receives than this raise an event, once; 0: none do. Changed under the engine lock only.
    pub(crate) limit: AtomicU32,
    pub(crate) events: Arc<AsyncQueue>,
    /// Sends of peers wait for receives: who posts one rings.
    pub(crate) awaited: Awaited,
}

impl SrqShared {
    /// Engine: takes the oldest receive, for a message that begins; gives the bytes that it holds. Its place in the queue
    /// is free from now on.
    #[inline(never)]
    pub(crate) fn take(&self, held: &mut HeldRecv) -> Option<u32> {
        let head = WrNumber(self.head.load(Ordering::Relaxed));
        held.fill(self.queue.peek(head)?);
        self.queue.release(head);
        self.head.store(head.next().0, Ordering::Relaxed);
        if self.limit.load(Ordering::Relaxed) > 0 {
            self.check_limit();
        }
        Some(held.length)
    }

    pub(crate) fn number(&self) -> u32 {
        self.number.get()
    }

    /// A place for a receive of this queue.
    pub(crate) fn held(&self) -> HeldRecv {
        let sges = vec![Sge::default(); self.queue.max_sge().into()].into();
        HeldRecv { wr_id: 0, length: 0, num_sge: 0, sges }
    }

    /// Under the engine lock: raises the event that was asked for, if it is time.
    pub(crate) fn check_limit(&self) {
        let limit = self.limit.load(Ordering::Relaxed);
        let last = self.head.load(Ordering::Relaxed).wrapping_add(limit).wrapping_sub(1);
        if limit > 0 && self.queue.peek(WrNumber(last)).is_none() {
            self.limit.store(0, Ordering::Relaxed);
            self.events.raise(AsyncEvent::SrqLimitReached { srqn: self.number.get() });
        }
    }
}

impl Drop for SrqShared {
    fn drop(&mut self) {
        self.events.forget(Object::Srq(self.number.get()));
    }
}

/// A receive that a queue pair has taken from a shared queue and not completed.
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
