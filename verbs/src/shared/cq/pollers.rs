//! The threads that poll a completion queue, and the engine that each of them drives first.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::shared::engines::EngineNumber;
use crate::shared::sync::this_thread;

/// A queue counts as polled by several threads until one thread has polled it this many times in a row. At 50 ns a
/// poll these are some 3 ms, which is about a time slice of another program.
const POLLS_ALONE: u32 = 1 << 16;

/// The number of threads that have been given an engine because they poll only shared queues.
static SHARERS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The engine that this thread drives first when it polls a queue that other threads poll too. It is the
    /// home engine of the queue that this thread alone polled last, or, if the thread has polled only shared
    /// queues, an engine of the first of them.
    static OWN: Cell<Option<EngineNumber>> = const { Cell::new(None) };
}

/// The threads that poll a queue of a device with several engines.
#[derive(Default)]
pub(super) struct Pollers {
    /// The thread that polled last ([`this_thread`]), or 0.
    last: AtomicUsize,
    /// Number of polls in a row by which one thread must go on, until the queue counts as polled by that thread
    /// alone.
    until_alone: AtomicU32,
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
        }
        last != 0
    }

    /// Notes a poll by this thread of a queue with this `home` engine, to which the engines of the set `lanes`
    /// complete. Returns the engine that the thread drives first. It is the home engine if no other thread polls the
    /// queue. Otherwise each thread keeps to one engine, because an engine's data would move from core to core if
    /// several threads drove it.
    pub(super) fn first_to_drive(&self, home: EngineNumber, lanes: u64) -> EngineNumber {
        if !self.several() {
            OWN.set(Some(home));
            return home;
        }
        match OWN.get() {
            Some(own) if own.bit() & lanes != 0 => own,
            Some(_) => home,
            None => {
                let own = nth(lanes, SHARERS.fetch_add(1, Ordering::Relaxed)).unwrap_or(home);
                OWN.set(Some(own));
                own
            }
        }
    }
}

/// Returns an engine of the set; consecutive numbers `n` give all engines in turn. `None` if the set is empty.
fn nth(set: u64, n: usize) -> Option<EngineNumber> {
    let size = set.count_ones() as usize;
    EngineNumber::of_set(set).nth(n.checked_rem(size)?)
}

#[cfg(test)]
mod tests;
