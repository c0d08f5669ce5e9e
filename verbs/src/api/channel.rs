//! Completion channels: a file descriptor that reports armed completion queues.
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::cq::Cq;
use super::device::DeviceShared;
use crate::shared::channel::ChannelShared;

/// A completion channel: it reports completion queues that were armed ([`Cq::arm`]) and have a completion since.
/// Its descriptor ([`AsFd`]) is readable while events wait.
#[derive(Clone)]
pub struct CompChannel {
    pub(crate) shared: Arc<ChannelShared>,
    pub(crate) device: Arc<DeviceShared>,
}

impl CompChannel {
    /// Waits for the next event and returns its completion queue; `None` once `timeout` has passed. A `timeout` of
    /// `None` waits without limit. Meanwhile the engine's own thread drives the engine, or this call if there is no
    /// such thread.
    pub fn get_event(&self, timeout: Option<Duration>) -> Option<Cq> {
        let shared = self.device.shards.wait(&self.shared.fd, timeout, || self.shared.take())?;
        Some(Cq { shared, device: self.device.clone() })
    }

    /// Returns the queue that one read of 8 bytes from the descriptor stands for; `None` if that queue no longer
    /// exists. This is for programs that sleep in that read instead of in [`get_event`](Self::get_event). The
    /// descriptor is blocking unless the program has set `O_NONBLOCK`.
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
