//! All shards of a device.

use std::iter;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use urnic_config::Progress;

use super::{EngineOps, Polled, Shard, linger, longer};
use crate::shared::connection::ConnectionAttr;
use crate::shared::doorbell::Doorbells;
use crate::shared::engines::EngineNumber;
use crate::shared::error::Result;
use crate::shared::eventfd::EventFd;
use crate::shared::figures::EngineFigures;
use crate::shared::grace::Fellow;

/// Polls of a completion queue for which an engine that it may not know of is driven once.
const LOOKS_AFTER_EVERY: u32 = 64;

/// An engine that nobody drives yet, and where its doorbells are entered.
pub(crate) struct Undriven {
    pub(crate) engine: Box<dyn EngineOps>,
    pub(crate) doorbells: Arc<Doorbells>,
    /// NUMA node of the port, near which its thread runs; `None`: anywhere.
    pub(crate) node: Option<u32>,
}

/// The shards of a device, by the numbers of their engines. There is at least one.
#[derive(Clone)]
pub(crate) struct Shards {
    first: Arc<Shard>,
    others: Arc<[Arc<Shard>]>,
}

impl Shards {
    /// Makes a shard of each engine, and starts its thread on the core with the same place in `cores`, if `progress` has
    /// threads. Engines beyond the cores are not pinned.
    ///
    /// # Errors
    /// As those of [`Shard::new`].
    pub(crate) fn new(
        first: Undriven,
        others: impl IntoIterator<Item = Undriven>,
        progress: Progress,
        cores: &[usize],
    ) -> Result<Self> {
        let commons = first.engine.ties().commons;
        let mut cores = cores.iter().copied();
        let mut drive = |engine: Undriven| Shard::new(engine, progress, cores.next());
        let first = drive(first)?;
        let mut made = Vec::new();
        for engine in others {
            match drive(engine) {
                Ok(shard) => made.push(shard),
                Err(error) => {
                    // Their threads keep them.
                    iter::once(&first).chain(&made).for_each(|shard| shard.stop());
                    return Err(error);
                }
            }
        }
        let shards = Self { first, others: made.into() };
        commons.introduce(shards.iter().map(|shard| {
            let fellow: Arc<dyn Fellow> = shard.clone();
            Arc::downgrade(&fellow)
        }));
        Ok(shards)
    }

    /// Returns the shard whose engine does what concerns the device as a whole.
    #[inline]
    pub(crate) fn first(&self) -> &Arc<Shard> {
        &self.first
    }

    /// Returns the shard of an engine.
    #[inline]
    pub(crate) fn of(&self, engine: EngineNumber) -> &Arc<Shard> {
        match engine.index().checked_sub(1) {
            None => &self.first,
            Some(other) => self.others.get(other).unwrap_or(&self.first),
        }
    }

    /// Returns whether there is more than one engine.
    #[inline]
    pub(crate) fn are_several(&self) -> bool {
        !self.others.is_empty()
    }

    /// Returns how many engines there are.
    pub(crate) fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// Returns all of them, in the order of their engines' numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Shard>> {
        iter::once(&self.first).chain(self.others.iter())
    }

    /// Returns the numbers of the engines.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = EngineNumber> {
        (0..self.count()).filter_map(EngineNumber::new)
    }

    /// Runs `verb` between passes of each engine in turn, and a pass afterwards, up to the first error. No two are held at
    /// once.
    ///
    /// # Errors
    /// Those of `verb`, and as [`Shard::control`].
    pub(crate) fn control_each(
        &self,
        mut verb: impl FnMut(EngineNumber, &mut dyn EngineOps) -> Result<()>,
    ) -> Result<()> {
        self.numbers()
            .zip(self.iter())
            .try_for_each(|(number, shard)| shard.control(|engine| verb(number, engine)))
    }

    /// Returns how busy each engine is and was, in the order of their numbers.
    ///
    /// # Errors
    /// As those of [`Shard::control`].
    pub(crate) fn figures(&self) -> Result<Vec<EngineFigures>> {
        self.numbers().zip(self.iter()).map(|(number, shard)| shard.figures(number)).collect()
    }

    /// Returns the connections of all engines.
    ///
    /// # Errors
    /// As those of [`Shard::control`].
    pub(crate) fn connections(&self) -> Result<Vec<ConnectionAttr>> {
        let mut all = Vec::new();
        for shard in self.iter() {
            all.extend(shard.control(|engine| Ok(engine.connections()))?);
        }
        Ok(all)
    }

    /// Runs a pass of each engine that nobody else drives, for a thread that will come again soon.
    pub(crate) fn poll_passes(&self) {
        self.iter().for_each(|shard| {
            shard.poll_pass();
        });
    }

    /// Now and then runs a pass of one of the engines, each in turn, if they have no threads: one that completes to no queue
    /// that is polled may have a frame for another engine, an answer to give to a neighbour, or a deed that is due. `turn`
    /// counts the polls of the caller.
    #[inline(never)]
    pub(crate) fn look_after(&self, turn: u32) {
        let every = turn.is_multiple_of(LOOKS_AFTER_EVERY) && !self.first.driver.has_thread();
        if every && let Some(engine) = EngineNumber::new((turn / LOOKS_AFTER_EVERY) as usize % self.count()) {
            self.of(engine).visit(false);
        }
    }

    /// The caller is about to sleep: the engines' threads take over now.
    pub(crate) fn hand_over(&self) {
        self.iter().for_each(|shard| shard.hand_over());
    }

    /// Waits until `take` answers, which `fd` tells of; at most `timeout`. Without engines' threads this drives the engines
    /// meanwhile.
    pub(crate) fn wait<R>(
        &self,
        fd: &EventFd,
        timeout: Option<Duration>,
        take: impl Fn() -> Option<R>,
    ) -> Option<R> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let mut nap = Duration::ZERO;
        loop {
            if let Some(found) = take() {
                return Some(found);
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            let limit = if self.first.driver.has_thread() {
                self.hand_over();
                left
            } else {
                let mut worked = false;
                for shard in self.iter() {
                    worked |= shard.try_pass() == Polled::Worked;
                }
                if let Some(found) = take() {
                    return Some(found);
                }
                nap = if worked { Duration::ZERO } else { longer(nap) };
                Some(left.map_or(nap, |l| l.min(nap)))
            };
            if left.is_some_and(|l| l.is_zero()) {
                return None;
            }
            // An interruption by a signal is only a reason to look again.
            let _ = fd.wait(limit);
        }
    }

    /// Stops the engines' threads; from then on only callers drive the engines.
    pub(crate) fn stop(&self) {
        self.iter().for_each(|shard| shard.stop());
    }

    /// Ends all connections gracefully and drives the engines until their data is acknowledged; bounded.
    pub(crate) fn linger(&self) {
        let all: Vec<&Shard> = self.iter().map(Arc::as_ref).collect();
        linger::linger(&all);
    }

    /// Returns what finds the shards as long as the device is there.
    pub(crate) fn downgrade(&self) -> WeakShards {
        WeakShards {
            first: Arc::downgrade(&self.first),
            others: self.others.iter().map(Arc::downgrade).collect(),
        }
    }
}

/// The shards of a device that may be gone.
pub(crate) struct WeakShards {
    first: Weak<Shard>,
    others: Box<[Weak<Shard>]>,
}

impl WeakShards {
    /// Returns the shards; `None` if the device is gone.
    pub(crate) fn upgrade(&self) -> Option<Shards> {
        let others: Option<Vec<_>> = self.others.iter().map(Weak::upgrade).collect();
        Some(Shards { first: self.first.upgrade()?, others: others?.into() })
    }
}
