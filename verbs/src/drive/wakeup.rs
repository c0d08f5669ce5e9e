//! Descriptors that wake the sleeping thread of an engine.

use std::os::fd::AsFd;

/// A descriptor that becomes readable when there is something to receive.
pub trait Wakeup: AsFd + Send + Sync {
    /// Makes the descriptor unreadable until something new happens.
    fn clear(&self);

    /// Returns true if the descriptor becomes readable whenever something arrives, so that the engine's thread may
    /// sleep until its next deadline. If the result is false, the thread also polls every few milliseconds.
    fn is_certain(&self) -> bool {
        false
    }
}

impl Wakeup for urnic_dataplane::RxEvent {
    fn clear(&self) {
        self.clear();
    }
}
