//! The engines of a device: their numbers, the state that they share, and how they see each other.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use urnic_config::MAX_ENGINES;

use super::error::Result;
use super::events::AsyncQueue;
use super::memory::MrTable;

use super::grace::{Fellow, Fellows};

// A set of engines has one bit for each engine, in 64 bits. [`Owner`] keeps the number of an engine in 7 bits,
// because the eighth marks a move.
const _: () = assert!(MAX_ENGINES <= u64::BITS as usize);

/// An engine's number within its device, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct EngineNumber(u8);

impl EngineNumber {
    /// The only engine of a device with one engine.
    pub(crate) const FIRST: Self = Self(0);

    /// Returns the engine with this index; `None` if it is beyond the maximum number of engines.
    pub(crate) fn new(index: usize) -> Option<Self> {
        (index < MAX_ENGINES).then_some(Self(index as u8))
    }

    /// Returns the next engine, in a circle of all engines that a device may have.
    pub(crate) fn after(self) -> Self {
        Self((self.0 + 1) % MAX_ENGINES as u8)
    }

    /// Returns the engine's bit in sets of a device's engines.
    #[inline]
    pub(crate) fn bit(self) -> u64 {
        1 << self.0
    }

    /// Returns the engines of a set, in the order of their numbers.
    pub(crate) fn of_set(mut set: u64) -> impl Iterator<Item = Self> {
        std::iter::from_fn(move || {
            let next = (set != 0).then(|| set.trailing_zeros() as u8)?;
            set &= set - 1;
            Some(Self(next))
        })
    }

    /// Returns the engines of a set, each once, in circular order from `first` on.
    pub(crate) fn of_set_from(set: u64, first: Self) -> impl Iterator<Item = Self> {
        let before = set & (first.bit() - 1);
        Self::of_set(set ^ before).chain(Self::of_set(before))
    }

    /// Returns the engine's index in lists of a device's engines.
    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0.into()
    }
}

/// The engine that a queue pair belongs to.
#[derive(Debug)]
pub(crate) struct Owner(AtomicU8);

impl Owner {
    /// Marks a queue pair that is about to leave the engine.
    const LEAVING: u8 = 1 << 7;

    pub(crate) fn new(engine: EngineNumber) -> Self {
        Self(AtomicU8::new(engine.0))
    }

    /// Returns the engine; while the queue pair moves, the engine that it leaves. A doorbell there is forwarded.
    #[inline]
    pub(crate) fn get(&self) -> EngineNumber {
        EngineNumber(self.0.load(Ordering::Acquire) & !Self::LEAVING)
    }

    /// Returns the engine; `None` while the queue pair moves.
    pub(crate) fn settled(&self) -> Option<EngineNumber> {
        let word = self.0.load(Ordering::Acquire);
        (word & Self::LEAVING == 0).then_some(EngineNumber(word))
    }

    /// Begins a move away from `from`. Returns false if the queue pair is elsewhere, or is moving already.
    pub(crate) fn leave(&self, from: EngineNumber) -> bool {
        self.0.compare_exchange(from.0, from.0 | Self::LEAVING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Ends a move: the queue pair is with `to`.
    pub(crate) fn join(&self, to: EngineNumber) {
        self.0.store(to.0, Ordering::Release);
    }
}

/// State that the engines of a device share.
pub(crate) struct Commons {
    /// The queue of asynchronous events.
    pub(crate) events: Arc<AsyncQueue>,
    /// Memory regions and windows. Set by the first engine.
    table: OnceLock<Arc<MrTable>>,
    fellows: Arc<Fellows>,
}

impl Commons {
    /// Makes the state that the engines of a new device share.
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

    /// Returns the table of STags, which the first caller makes. The STags follow from its `seed`, which must be
    /// secret outside of tests.
    pub(crate) fn table(&self, seed: u64) -> Arc<MrTable> {
        self.table.get_or_init(|| Arc::new(MrTable::new(seed, self.fellows.clone()))).clone()
    }

    /// Introduces the engines to each other, once, in the order of their numbers.
    pub(crate) fn introduce(&self, fellows: impl IntoIterator<Item = Weak<dyn Fellow>>) {
        self.fellows.introduce(fellows);
    }

    /// Returns an engine; `None` if it no longer exists, or does not exist yet.
    pub(crate) fn fellow(&self, engine: EngineNumber) -> Option<Arc<dyn Fellow>> {
        self.fellows.get(engine.index())
    }

    /// Returns the number of engines; 1 until they have been introduced.
    pub(crate) fn engines(&self) -> usize {
        self.fellows.count()
    }
}
