//! Where a program reads asynchronous events.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::device::DeviceShared;
use crate::shared::events::AsyncEvent;

/// The asynchronous events of a device. Its descriptor ([`AsFd`]) is readable while events wait. Handles of one
/// device share the events: each is given out once.
///
/// Nothing is lost: an event waits until it is read, from the moment the device is opened. If the same happens again
/// to the same object meanwhile, the newer event takes the place of the older. Destroying an object discards what was
/// not read about it, so no event names an object that is gone when it is read; nothing has to be acknowledged.
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

    /// The next event, if there is one. Drives the engine unless its own thread is dedicated to that.
    pub fn poll(&self) -> Option<AsyncEvent> {
        self.device.events.take().or_else(|| {
            self.device.shards.poll_passes();
            self.device.events.take()
        })
    }

    /// Waits for the next event; at most `timeout`, or without limit.
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
