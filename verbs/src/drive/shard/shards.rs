//! The shards of a device.

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

/// Number of polls of a completion queue after which one engine is driven that may complete to no polled queue.
const LOOKS_AFTER_EVERY: u32 = 64;

/// An engine that no thread drives yet, and the list of its doorbells.
pub(crate) struct Undriven {
    pub(crate) engine: Box<dyn EngineOps>,
    pub(crate) doorbells: Arc<Doorbells>,
    /// NUMA node of the port, near which the engine's thread runs; `None`: on any node.
    pub(crate) node: Option<u32>,
}

/// The shards of a device, by the numbers of their engines. There is at least one.
#[derive(Clone)]
pub(crate) struct Shards {
    first: Arc<Shard>,
    others: Arc<[Arc<Shard>]>,
}

impl Shards {
    /// Makes a shard of each engine, and starts its thread if `progress` asks for threads. The thread is pinned to
    /// the core that has the engine's place in `cores`; threads beyond the list are not pinned.
    ///
    /// # Errors
    /// As for [`Shard::new`].
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
                    // The shards live as long as their threads, so the threads must stop.
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

    /// Returns the first shard, whose engine does what concerns the device as a whole.
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

    /// Runs `verb` between passes of each engine in turn, then a pass of that engine, and stops at the first error.
    /// No two engines are locked at once.
    ///
    /// # Errors
    /// Those of `verb`, and as for [`Shard::control`].
    pub(crate) fn control_each(
        &self,
        mut verb: impl FnMut(EngineNumber, &mut dyn EngineOps) -> Result<()>,
    ) -> Result<()> {
        self.numbers()
            .zip(self.iter())
            .try_for_each(|(number, shard)| shard.control(|engine| verb(number, engine)))
    }

    /// Returns the load of each engine, in the order of their numbers.
    ///
    /// # Errors
    /// As for [`Shard::control`].
    pub(crate) fn figures(&self) -> Result<Vec<EngineFigures>> {
        self.numbers().zip(self.iter()).map(|(number, shard)| shard.figures(number)).collect()
    }

    /// Returns the connections of all engines.
    ///
    /// # Errors
    /// As for [`Shard::control`].
    pub(crate) fn connections(&self) -> Result<Vec<ConnectionAttr>> {
        let mut all = Vec::new();
        for shard in self.iter() {
            all.extend(shard.control(|engine| Ok(engine.connections()))?);
        }
        Ok(all)
    }

    /// Runs a pass of each engine that no other thread drives, for a thread that will come again soon.
    pub(crate) fn poll_passes(&self) {
        self.iter().for_each(|shard| {
            shard.poll_pass();
        });
    }

    /// If the engines have no threads, runs a pass of one of them once in [`LOOKS_AFTER_EVERY`] calls, each engine
    /// in turn. An engine that completes to no polled queue may still have a frame for another engine, an answer
    /// for a neighbour, or a deed that is due. `turn` counts the polls of the caller.
    #[inline(never)]
    pub(crate) fn look_after(&self, turn: u32) {
        let every = turn.is_multiple_of(LOOKS_AFTER_EVERY) && !self.first.driver.has_thread();
        if every && let Some(engine) = EngineNumber::new((turn / LOOKS_AFTER_EVERY) as usize % self.count()) {
            self.of(engine).visit(false);
        }
    }

    /// The caller is about to sleep: makes the engines' threads take over now.
    pub(crate) fn hand_over(&self) {
        self.iter().for_each(|shard| shard.hand_over());
    }

    /// Waits until `take` returns something, which `fd` signals, and returns it; `None` once `timeout` has passed.
    /// A `timeout` of `None` waits without limit. If the engines have no threads, this drives the engines
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
            // If a signal interrupts the wait, the loop just looks again.
            let _ = fd.wait(limit);
        }
    }

    /// Stops the engines' threads. From then on only callers drive the engines.
    pub(crate) fn stop(&self) {
        self.iter().for_each(|shard| shard.stop());
    }

    /// Ends all connections gracefully, and drives the engines until all data is acknowledged or a time limit is
    /// reached.
    pub(crate) fn linger(&self) {
        let all: Vec<&Shard> = self.iter().map(Arc::as_ref).collect();
        linger::linger(&all);
    }

    /// Returns a handle that does not keep the device alive.
    pub(crate) fn downgrade(&self) -> WeakShards {
        WeakShards {
            first: Arc::downgrade(&self.first),
            others: self.others.iter().map(Arc::downgrade).collect(),
        }
    }
}

/// The shards of a device that may no longer exist.
pub(crate) struct WeakShards {
    first: Weak<Shard>,
    others: Box<[Weak<Shard>]>,
}

impl WeakShards {
    /// Returns the shards; `None` if the device no longer exists.
    pub(crate) fn upgrade(&self) -> Option<Shards> {
        let others: Option<Vec<_>> = self.others.iter().map(Weak::upgrade).collect();
        Some(Shards { first: self.first.upgrade()?, others: others?.into() })
    }
}
