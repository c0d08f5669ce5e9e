//! Places for connection requests that the program has not answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A bounded number of places.
pub(crate) struct Waiting {
    limit: usize,
    taken: AtomicUsize,
}

impl Waiting {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit: limit.max(1), taken: AtomicUsize::new(0) })
    }

    #[cfg(test)]
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Takes a place in each of two rooms: a listener's and the device's. `None` if one is full. The engine alone takes.
    pub(crate) fn take(rooms: [&Arc<Self>; 2]) -> Option<Place> {
        if rooms.iter().any(|room| room.taken.load(Ordering::Acquire) >= room.limit) {
            return None;
        }
        Some(Place(rooms.map(|room| {
            room.taken.fetch_add(1, Ordering::AcqRel);
            room.clone()
        })))
    }
}

/// A request's places, free again when it is dropped: the program has answered it then, or forgotten. A peer that goes before
/// the answer keeps its place until then, so that requests which wait in vain do not pile up either.
pub(crate) struct Place([Arc<Waiting>; 2]);

impl Drop for Place {
    fn drop(&mut self) {
        for room in &self.0 {
            room.taken.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
