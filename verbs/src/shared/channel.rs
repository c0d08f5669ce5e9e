//! The completion channel as engine and application share it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use crossbeam_queue::SegQueue;

use super::cq::CqShared;
use super::error::Result;
use super::eventfd::EventFd;
use super::quiet::{deliver, is_quiet};

/// A channel as engine and application share it. Queues wait in it at most once each.
pub(crate) struct ChannelShared {
    announced: SegQueue<Weak<CqShared>>,
    pub(crate) fd: EventFd,
}

impl ChannelShared {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self { announced: SegQueue::new(), fd: EventFd::new()? }))
    }

    /// Engine: an armed queue has a completion.
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

    /// The next announced queue that still exists.
    pub(crate) fn take(&self) -> Option<Arc<CqShared>> {
        while self.fd.take() {
            if let Some(shared) = self.pop() {
                return Some(shared);
            }
        }
        None
    }

    /// The announcement that one count of the descriptor stands for; none if its queue is gone.
    pub(crate) fn pop(&self) -> Option<Arc<CqShared>> {
        let shared = self.announced.pop()?.upgrade()?;
        // A swap, so that whoever polls now sees what an announcement left out because of `true` tells of.
        shared.announced.swap(false, Ordering::AcqRel);
        Some(shared)
    }
}
