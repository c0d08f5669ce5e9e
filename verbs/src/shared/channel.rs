//! The part of a completion channel that engine and application share.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use crossbeam_queue::SegQueue;

use super::cq::CqShared;
use super::error::Result;
use super::eventfd::EventFd;
use super::quiet::{deliver, is_quiet};

/// The shared part of a completion channel. A completion queue waits in it at most once.
pub(crate) struct ChannelShared {
    announced: SegQueue<Weak<CqShared>>,
    pub(crate) fd: EventFd,
}

impl ChannelShared {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self { announced: SegQueue::new(), fd: EventFd::new()? }))
    }

    /// Announces an armed queue that has a completion. Called by the engine.
    pub(crate) fn announce(self: &Arc<Self>, cq: &CqShared, handle: &Weak<CqShared>) {
        if !cq.announced.swap(true, Ordering::AcqRel) {
            if is_quiet() {
                let (channel, handle) = (self.clone(), handle.clone());
                return deliver(move || channel.give(handle));
            }
            self.give(handle.clone());
        }
    }

    fn give(&self, handle: Weak<CqShared>) {
        self.announced.push(handle);
        self.fd.signal();
    }

    /// Returns the next announced queue that still exists; `None` if there is none.
    pub(crate) fn take(&self) -> Option<Arc<CqShared>> {
        while self.fd.take() {
            if let Some(shared) = self.pop() {
                return Some(shared);
            }
        }
        None
    }

    /// Takes the oldest announcement, and returns the announced queue; `None` if that queue no longer exists. The
    /// caller has taken one from the descriptor's count, which counts the announcements.
    pub(crate) fn pop(&self) -> Option<Arc<CqShared>> {
        let shared = self.announced.pop()?.upgrade()?;
        // While the queue's flag `announced` was `true`, the engine announced no further completions of the queue. The
        // program's next poll must see these completions. The swap acquires them; a store would not.
        shared.announced.swap(false, Ordering::AcqRel);
        Some(shared)
    }
}
