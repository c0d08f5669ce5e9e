//! The engines of a device: how they are named, what they have in common, and how they see each other.

use std::sync::{Arc, OnceLock, Weak};

use super::error::Result;
use super::events::AsyncQueue;

/// Most engines of a device.
pub(crate) const MAX_ENGINES: usize = 64;

/// An engine's number within its device, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct EngineNumber(u8);

impl EngineNumber {
    /// The engine that a device with one engine has.
    pub(crate) const FIRST: Self = Self(0);

    /// Returns the engine with this index; `None` if no device has so many.
    pub(crate) fn new(index: usize) -> Option<Self> {
        (index < MAX_ENGINES).then_some(Self(index as u8))
    }

    /// Returns its place in lists of a device's engines.
    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0.into()
    }
}

/// Names one pass of an engine. It wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PassNumber(pub(crate) u32);

/// An engine as the other engines of its device see it. Nothing here waits.
pub(crate) trait Fellow: Send + Sync {
    /// Enters the doorbell of a queue pair that belongs to that engine, and wakes whoever drives it.
    fn ring(&self, qpn: u32);

    /// Wakes whoever drives that engine, if it sleeps: something has been put where the engine's next pass finds it.
    fn wake(&self);

    /// Returns the pass (or verb) that holds the engine at this moment; `None` if nobody does. Whatever the caller stored
    /// before is seen by all passes that begin after this.
    fn pass_under_way(&self) -> Option<PassNumber>;

    /// Returns whether a pass that was under way has ended. What it did is seen by the caller then.
    fn has_ended(&self, pass: PassNumber) -> bool;
}

/// What the engines of a device have in common.
pub(crate) struct Commons {
    /// Where asynchronous events go.
    pub(crate) events: Arc<AsyncQueue>,
    /// Engines, by number.
    fellows: OnceLock<Box<[Weak<dyn Fellow>]>>,
}

impl Commons {
    /// Returns what the engines of a new device share.
    ///
    /// # Errors
    /// [`Error::NoDescriptor`](super::error::Error::NoDescriptor).
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self { events: AsyncQueue::new()?, fellows: OnceLock::new() }))
    }

    /// Tells the engines of each other, once, in the order of their numbers.
    pub(crate) fn introduce(&self, fellows: impl IntoIterator<Item = Weak<dyn Fellow>>) {
        let _ = self.fellows.set(fellows.into_iter().collect());
    }

    /// Returns an engine; `None` if it is gone, or not there yet.
    pub(crate) fn fellow(&self, engine: EngineNumber) -> Option<Arc<dyn Fellow>> {
        self.fellows.get()?.get(engine.index())?.upgrade()
    }

    /// Returns the number of engines; 1 until they have been introduced.
    pub(crate) fn engines(&self) -> usize {
        self.fellows.get().map_or(1, |fellows| fellows.len())
    }
}
