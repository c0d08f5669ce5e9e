//! Counts the events that the program must acknowledge before their object can be destroyed.

use std::sync::{Condvar, Mutex, PoisonError};

#[derive(Default)]
pub struct Ledger {
    open: Mutex<u64>,
    settled: Condvar,
}

impl Ledger {
    /// Counts an event given to the program.
    pub fn give(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// Counts `n` acknowledged events.
    pub fn settle(&self, n: u64) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        *open = open.saturating_sub(n);
        if *open == 0 {
            self.settled.notify_all();
        }
    }

    /// Waits until all events are acknowledged.
    pub fn wait(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let _settled =
            self.settled.wait_while(open, |open| *open > 0).unwrap_or_else(PoisonError::into_inner);
    }
}
