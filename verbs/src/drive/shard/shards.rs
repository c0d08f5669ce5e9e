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

/// After this many polls of a completion queue, the poller also visits one of the device's engines
/// ([`Shards::look_after`]).
const LOOKS_AFTER_EVERY: u32 = 64;

/// An engine that has no shard yet, and the list of its doorbells.
pub(crate) struct Undriven {
    pub(crate) engine: Box<dyn EngineOps>,
    pub(crate) doorbells: Arc<Doorbells>,
    /// NUMA node of the port, on which the engine's thread preferably runs; `None`: any node.
    pub(crate) node: Option<u32>,
}

/// The shards of a device, in the order of their engines' numbers; at least one.
#[derive(Clone)]
pub(crate) struct Shards {
    first: Arc<Shard>,
    others: Arc<[Arc<Shard>]>,
}

impl Shards {
    /// Makes a shard of each engine, and starts the engines' threads if `progress` asks for threads. The thread of
    /// engine n is pinned to the n-th core of `cores`. If `cores` is shorter, the remaining threads are not pinned.
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
                    // Each thread keeps its shard alive, so the threads must stop.
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

    /// Returns the first shard, whose engine does the work that concerns the device as a whole.
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

    /// Returns all shards, in the order of their engines' numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Shard>> {
        iter::once(&self.first).chain(self.others.iter())
    }

    /// Returns the numbers of the engines.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = EngineNumber> {
        (0..self.count()).filter_map(EngineNumber::new)
    }

    /// Runs `verb` and then a pass at each engine in turn, as [`Shard::control`] does, and stops at the first error.
    /// Never locks two engines at the same time.
    ///
    /// # Errors
    /// Errors of `verb`, and errors as for [`Shard::control`].
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

    /// Runs a pass of each engine that no other thread drives, for a thread that will poll again soon.
    pub(crate) fn poll_passes(&self) {
        self.iter().for_each(|shard| {
            shard.poll_pass();
        });
    }

    /// If the engines have no threads, visits one of the engines once in [`LOOKS_AFTER_EVERY`] calls, each engine in
    /// turn. Even an engine whose completion queues the program does not poll may have something to do: pass a frame to
    /// another engine, answer a neighbour's ARP or NDP request, or call a function that is due ([`EngineOps::after`]).
    /// `turn` is the number of polls of the caller, and `first` the engine that it has just driven.
    #[inline(never)]
    pub(crate) fn look_after(&self, turn: u32, first: EngineNumber) {
        let every = turn.is_multiple_of(LOOKS_AFTER_EVERY) && !self.first.driver.has_thread();
        let engine = EngineNumber::new((turn / LOOKS_AFTER_EVERY) as usize % self.count());
        if every && let Some(engine) = engine.filter(|engine| *engine != first) {
            self.of(engine).visit(false);
        }
    }

    /// Makes the engines' threads take over now, because the caller is about to sleep.
    pub(crate) fn hand_over(&self) {
        self.iter().for_each(|shard| shard.hand_over());
    }

    /// Calls `take` until it returns a value, and returns this value; `None` when `timeout` has passed. Between the
    /// calls, waits for `fd`, which signals that `take` may now return a value. A `timeout` of `None` means no limit.
    /// If the engines have no threads, the caller drives the engines while it waits.
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
                    shard.abandon();
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
            // If a signal interrupts the wait, the loop calls `take` again.
            let _ = fd.wait(limit);
        }
    }

    /// Stops the engines' threads. After that, only callers drive the engines.
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
