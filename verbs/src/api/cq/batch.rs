//! Completions read in place.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use crate::shared::cq::{CqShared, Poller};
use crate::shared::sync::SpinGuard;
use crate::shared::wc::Wc;

/// Completions that are being read, by [`Cq::start_poll`](crate::Cq::start_poll). When this is dropped, the queue has
/// room for as many more as were read.
pub struct Completions<'a> {
    cq: &'a CqShared,
    poller: SpinGuard<'a, Poller>,
    /// The next to read.
    next: u32,
}

impl<'a> Completions<'a> {
    pub(super) fn new(cq: &'a CqShared, poller: SpinGuard<'a, Poller>) -> Self {
        let next = poller.tail;
        Self { cq, poller, next }
    }

    /// The next completion, in the order in which they came.
    #[allow(clippy::should_implement_trait)] // what it gives must not outlive `self`
    #[inline]
    pub fn next(&mut self) -> Option<Completion<'_>> {
        let wc = self.cq.polled(&self.poller).ring.peek(self.next)?;
        let index = self.next;
        self.next = index.wrapping_add(1);
        Some(Completion { wc, index, of: self })
    }
}

impl Drop for Completions<'_> {
    fn drop(&mut self) {
        if self.next != self.poller.tail {
            self.cq.polled(&self.poller).ring.release(self.next.wrapping_sub(1));
            self.poller.tail = self.next;
        }
        self.poller.idle = 0;
    }
}

/// A completion in its queue. Its fields are those of [`Wc`], read where they are.
#[derive(Clone, Copy)]
pub struct Completion<'a> {
    wc: &'a Wc,
    index: u32,
    of: &'a Completions<'a>,
}

impl Completion<'_> {
    /// When the work completed, by the device's clock ([`Device::raw_clock`](crate::Device::raw_clock)), in
    /// nanoseconds. `None` if the queue was created without time stamps.
    pub fn timestamp(&self) -> Option<u64> {
        let time = self.of.cq.polled(&self.of.poller).time(self.index)?;
        Some(time.load(Ordering::Relaxed))
    }

    /// The same by the wall clock, as that goes now.
    pub fn wall_clock(&self) -> Option<SystemTime> {
        let now = self.of.cq.clock.as_ref()?();
        let ago = now.saturating_sub(self.timestamp()?);
        SystemTime::now().checked_sub(Duration::from_nanos(ago))
    }
}

impl Deref for Completion<'_> {
    type Target = Wc;
    #[inline]
    fn deref(&self) -> &Wc {
        self.wc
    }
}

impl fmt::Debug for Completion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wc.fmt(f)
    }
}
