//! The asynchronous events of a device, as programs read them.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::device::DeviceShared;
use crate::shared::events::AsyncEvent;

/// The asynchronous events of a device. Its descriptor ([`AsFd`]) is readable while events wait. All handles of a
/// device share its events: each event is returned once.
///
/// Every event since the device was opened waits until it is read, with two exceptions. A new event replaces an unread
/// older one of the same kind about the same object. Destroying an object discards the unread events about it, so
/// that no event names an object that no longer exists. Events need not be acknowledged.
///
/// ```
/// use urnic::simulation::{Options, Simulation};
///
/// let simulation = Simulation::new(&Options::default())?;
/// let events = simulation.device(0).async_events();
/// assert_eq!(events.poll(), None);
/// # Ok::<(), urnic::Error>(())
/// ```
#[derive(Clone)]
pub struct AsyncEvents {
    device: Arc<DeviceShared>,
}

impl AsyncEvents {
    pub(crate) fn new(device: &Arc<DeviceShared>) -> Self {
        Self { device: device.clone() }
    }

    /// Returns the next event; `None` if there is none. Drives the engine, unless a dedicated thread does
    /// ([`Progress::Dedicated`](crate::Progress::Dedicated)).
    pub fn poll(&self) -> Option<AsyncEvent> {
        self.device.events.take().or_else(|| {
            self.device.shards.poll_passes();
            self.device.events.take()
        })
    }

    /// Waits for the next event; `None` once `timeout` has passed. A `timeout` of `None` waits without limit.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<AsyncEvent> {
        let events = &self.device.events;
        self.device.shards.wait(&events.fd, timeout, || events.take())
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.events.fd.as_fd()
    }
}
