//! The engines of a device: how they are named, what they have in common, and how they see each other.

use std::sync::{Arc, OnceLock, Weak};

use super::error::Result;
use super::events::AsyncQueue;
use super::memory::MrTable;

use super::grace::{Fellow, Fellows};

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

/// What the engines of a device have in common.
pub(crate) struct Commons {
    /// Where asynchronous events go.
    pub(crate) events: Arc<AsyncQueue>,
    /// Memory regions and windows. There once the first engine is.
    table: OnceLock<Arc<MrTable>>,
    fellows: Arc<Fellows>,
}

impl Commons {
    /// Returns what the engines of a new device share.
    ///
    /// # Errors
    /// [`Error::NoDescriptor`](super::error::Error::NoDescriptor).
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            events: AsyncQueue::new()?,
            table: OnceLock::new(),
            fellows: Arc::new(Fellows::default()),
        }))
    }

    /// Returns the table of STags, which the first caller makes: they follow from its `seed`, which must be secret outside of
    /// tests.
    pub(crate) fn table(&self, seed: u64) -> Arc<MrTable> {
        self.table.get_or_init(|| Arc::new(MrTable::new(seed, self.fellows.clone()))).clone()
    }

    /// Tells the engines of each other, once, in the order of their numbers.
    pub(crate) fn introduce(&self, fellows: impl IntoIterator<Item = Weak<dyn Fellow>>) {
        self.fellows.introduce(fellows);
    }

    /// Returns an engine; `None` if it is gone, or not there yet.
    pub(crate) fn fellow(&self, engine: EngineNumber) -> Option<Arc<dyn Fellow>> {
        self.fellows.get(engine.index())
    }

    /// Returns the number of engines; 1 until they have been introduced.
    pub(crate) fn engines(&self) -> usize {
        self.fellows.count()
    }
}
