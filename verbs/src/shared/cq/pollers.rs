//! The threads that poll a completion queue, and the engine that each of them drives first.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use crate::shared::engines::EngineNumber;
use crate::shared::sync::this_thread;

/// A queue counts as polled by several threads until one thread has polled it this many times in a row. At 50 ns a
/// poll these are some 3 ms, which is about a time slice of another program.
const POLLS_ALONE: u32 = 1 << 16;

thread_local! {
    /// The engine that this thread drives first when it polls a queue that other threads poll too. If this thread has
    /// polled queues that no other thread has ever polled, this engine is the home engine of the latest of these.
    /// Otherwise it is an engine of the first queue that this thread polled.
    static OWN: Cell<Option<EngineNumber>> = const { Cell::new(None) };
}

/// The threads that poll a queue of a device with several engines.
#[derive(Default)]
pub(super) struct Pollers {
    /// The thread that polled last ([`this_thread`]), or 0.
    last: AtomicUsize,
    /// Number of polls in a row that the thread `last` must still make until the queue counts as polled by that thread
    /// alone.
    until_alone: AtomicU32,
    /// Whether a second thread has ever polled.
    was_shared: AtomicBool,
    /// Number of threads that have been given an engine here, beside the thread that polled first; wraps.
    given: AtomicU8,
}

impl Pollers {
    /// Notes a poll by this thread. Returns whether other threads poll the queue too. Two polls at once may count as
    /// one.
    fn several(&self) -> bool {
        let (me, last) = (this_thread(), self.last.load(Ordering::Relaxed));
        if last == me {
            let left = self.until_alone.load(Ordering::Relaxed);
            if left > 0 {
                self.until_alone.store(left - 1, Ordering::Relaxed);
            }
            return left > 0;
        }
        self.last.store(me, Ordering::Relaxed);
        if last != 0 {
            self.until_alone.store(POLLS_ALONE, Ordering::Relaxed);
            self.was_shared.store(true, Ordering::Relaxed);
        }
        last != 0
    }

    /// Notes a poll by this thread of a queue with this `home` engine, to which the engines of the set `lanes`
    /// complete. Returns the engine that the thread drives first. It is the home engine if no other thread polls the
    /// queue. Otherwise each thread keeps to one engine, because an engine's data would move from core to core if
    /// several threads drove it.
    pub(super) fn first_to_drive(&self, home: EngineNumber, lanes: u64) -> EngineNumber {
        let several = self.several();
        let own = OWN.get();
        // On a queue that was shared, this thread keeps its engine, because the other threads may only be pausing.
        if !several && (own.is_none() || !self.was_shared.load(Ordering::Relaxed)) {
            OWN.set(Some(home));
        }
        match own {
            _ if !several => home,
            Some(own) if own.bit() & lanes != 0 => own,
            Some(_) => home,
            None => {
                let own = self.give(home, lanes);
                OWN.set(Some(own));
                own
            }
        }
    }

    /// Returns an engine for one more thread that polls this queue. The thread that polled first has the home engine,
    /// so the turn begins with the engine after that.
    #[cold]
    fn give(&self, home: EngineNumber, lanes: u64) -> EngineNumber {
        let turn = usize::from(self.given.fetch_add(1, Ordering::Relaxed)) + 1;
        let engines = lanes.count_ones() as usize;
        EngineNumber::of_set_from(lanes, home).nth(turn % engines.max(1)).unwrap_or(home)
    }
}

#[cfg(test)]
mod tests;
