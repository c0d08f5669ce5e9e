//! Completion channels: a file descriptor that reports armed completion queues.
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::cq::Cq;
use super::device::DeviceShared;
use crate::shared::channel::ChannelShared;

/// A completion channel. When an armed ([`Cq::arm`]) completion queue gets a completion, the channel gets an event that
/// names the queue. The channel's descriptor ([`AsFd`]) is readable while events wait.
#[derive(Clone)]
pub struct CompChannel {
    pub(crate) shared: Arc<ChannelShared>,
    pub(crate) device: Arc<DeviceShared>,
}

impl CompChannel {
    /// Waits for the next event and returns its completion queue; `None` once `timeout` has passed. A `timeout` of
    /// `None` waits without limit. Meanwhile the engine's own thread drives the engine; if the engine has no thread,
    /// this call drives it.
    pub fn get_event(&self, timeout: Option<Duration>) -> Option<Cq> {
        let shared = self.device.shards.wait(&self.shared.fd, timeout, || self.shared.take())?;
        Some(Cq { shared, device: self.device.clone() })
    }

    /// Returns the completion queue of an event that the program has taken by reading 8 bytes from the descriptor;
    /// `None` if the queue no longer exists. Programs call this if they sleep in such a read instead of in
    /// [`get_event`](Self::get_event). The descriptor is blocking unless the program has set `O_NONBLOCK`.
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
