//! Events that were given to the program and that it has to acknowledge before their object goes.

use std::sync::{Condvar, Mutex, PoisonError};

#[derive(Default)]
pub struct Ledger {
    open: Mutex<u64>,
    settled: Condvar,
}

impl Ledger {
    /// An event was given out.
    pub fn give(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// `n` events came back.
    pub fn settle(&self, n: u64) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        *open = open.saturating_sub(n);
        if *open == 0 {
            self.settled.notify_all();
        }
    }

    /// Waits until all are back.
    pub fn wait(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let _settled =
            self.settled.wait_while(open, |open| *open > 0).unwrap_or_else(PoisonError::into_inner);
    }
}
