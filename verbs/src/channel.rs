//! Completion channels: a file descriptor that tells of armed completion queues.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam_queue::SegQueue;

use crate::cq::{Cq, CqShared};
use crate::device::DeviceShared;
use crate::error::Result;
use crate::eventfd::EventFd;
use crate::shard::{deliver, is_quiet};

/// A channel as engine and application share it. Queues wait in it at most once each.
pub(crate) struct ChannelShared {
    announced: SegQueue<Weak<CqShared>>,
    fd: EventFd,
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
    fn take(&self) -> Option<Arc<CqShared>> {
        while self.fd.take() {
            if let Some(shared) = self.pop() {
                return Some(shared);
            }
        }
        None
    }

    /// The announcement that one count of the descriptor stands for; none if its queue is gone.
    fn pop(&self) -> Option<Arc<CqShared>> {
        let shared = self.announced.pop()?.upgrade()?;
        // A swap, so that whoever polls now sees what an announcement left out because of `true` tells of.
        shared.announced.swap(false, Ordering::AcqRel);
        Some(shared)
    }
}

/// A completion channel. Its descriptor ([`AsFd`]) is readable while events wait.
#[derive(Clone)]
pub struct CompChannel {
    pub(crate) shared: Arc<ChannelShared>,
    pub(crate) device: Arc<DeviceShared>,
}

impl CompChannel {
    /// Waits for the next armed queue that got a completion; at most `timeout`, or without limit.
    /// Meanwhile the engine's own thread drives the engine, or this call if there is no such thread.
    pub fn get_event(&self, timeout: Option<Duration>) -> Option<Cq> {
        let shared = self.device.shard.wait(&self.shared.fd, timeout, || self.shared.take())?;
        Some(Cq { shared, device: self.device.clone() })
    }

    /// The queue that one read of 8 bytes from the descriptor stands for, for programs that wait in that read instead of
    /// in [`get_event`](Self::get_event). None if the queue does not exist any more. The descriptor blocks unless the
    /// program has set `O_NONBLOCK`.
    pub fn event_after_read(&self) -> Option<Cq> {
        Some(Cq { shared: self.shared.pop()?, device: self.device.clone() })
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.fd.as_fd()
    }
}

#[cfg(test)]
mod tests;
