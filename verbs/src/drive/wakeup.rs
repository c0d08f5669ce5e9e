//! What ends the nap of an engine's thread.

use std::os::fd::AsFd;

/// A descriptor that becomes readable when there is something to receive.
pub trait Wakeup: AsFd + Send + Sync {
    /// Makes the descriptor unreadable until something new happens.
    fn clear(&self);

    /// Returns true if the descriptor becomes readable whenever something arrives, so that an engine may sleep
    /// until something else is due. Otherwise the engine looks every few milliseconds.
    fn is_certain(&self) -> bool {
        false
    }
}

impl Wakeup for urnic_dataplane::RxEvent {
    fn clear(&self) {
        self.clear();
    }
}
