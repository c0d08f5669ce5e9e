//! What ends an engine's nap.

use std::os::fd::AsFd;

/// A descriptor that becomes readable when there is something to receive.
pub trait Wakeup: AsFd + Send + Sync {
    /// Takes note of what has happened so far: the descriptor is not readable until there is something new.
    fn clear(&self);

    /// Returns true if nothing can arrive without making the descriptor readable, so that an engine may sleep for as
    /// long as nothing else is due. Otherwise the engine looks every few milliseconds.
    fn is_certain(&self) -> bool {
        false
    }
}

impl Wakeup for urnic_dataplane::RxEvent {
    fn clear(&self) {
        self.clear();
    }
}
