//! Places for connection requests that the program has not answered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::shared::source::Source;

/// Number of places of a listener, as a multiple of the share (the backlog) of one source.
const FULL_BACKLOGS: usize = 16;

/// A bounded number of places, shared among sources. A source gets a place only if it has fewer places than its share,
/// and fewer than are free. A single source thus keeps no other source out, and only a source without a place gets the
/// last place.
pub(crate) struct Waiting {
    share: usize,
    limit: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_source: HashMap<Source, usize>,
}

impl Waiting {
    /// Makes the places of a listener: `backlog` for each source.
    pub(crate) fn of_listener(backlog: usize) -> Arc<Self> {
        let share = backlog.max(1);
        Self::new(share, share.saturating_mul(FULL_BACKLOGS))
    }

    /// Makes the places that an engine has for the requests of all listeners.
    pub(crate) fn of_device(limit: usize) -> Arc<Self> {
        Self::new(limit, limit)
    }

    fn new(share: usize, limit: usize) -> Arc<Self> {
        Arc::new(Self { share, limit: limit.max(1), taken: Mutex::default() })
    }

    #[cfg(test)]
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for `source` in each of two rooms: the listener's, and the engine's for all listeners.
    /// `None` if one of them has no place for it. Any engine may call this at any time.
    pub(crate) fn take(rooms: [&Arc<Self>; 2], source: Source) -> Option<Place> {
        let [first, second] = rooms;
        if !first.enter(source) {
            return None;
        }
        if !second.enter(source) {
            first.leave(source);
            return None;
        }
        Some(Place { rooms: rooms.map(Arc::clone), source })
    }

    /// Takes a place for `source`. Returns false if there is none for it.
    fn enter(&self, source: Source) -> bool {
        let mut taken = self.taken();
        let own = taken.by_source.get(&source).copied().unwrap_or(0);
        let free = own < self.share.min(self.limit.saturating_sub(taken.all));
        if free {
            taken.all += 1;
            taken.by_source.insert(source, own + 1);
        }
        free
    }

    /// Gives back a place of `source`.
    fn leave(&self, source: Source) {
        let mut taken = self.taken();
        taken.all -= 1;
        if let Some(own) = taken.by_source.get_mut(&source) {
            *own -= 1;
            if *own == 0 {
                taken.by_source.remove(&source);
            }
        }
    }
}

/// A request's places. Dropping this frees them. It is dropped when the program has answered or dropped the request. A
/// request whose peer has gone keeps its places until then, so that abandoned requests do not pile up either.
pub(crate) struct Place {
    rooms: [Arc<Waiting>; 2],
    source: Source,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.rooms.iter().for_each(|room| room.leave(self.source));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(n: u32) -> Source {
        Source::V4(n)
    }

    /// A source has its backlog and no more. Others come in beside it, down to the last place.
    #[test]
    fn places_are_shared_among_sources() {
        let (listener, device) = (Waiting::of_listener(4), Waiting::of_device(1000));
        let take = |n| Waiting::take([&listener, &device], source(n));
        let mut places: Vec<_> = (0..4).map(|_| take(0).expect("its share")).collect();
        assert!(take(0).is_none());
        for n in 1..1000 {
            places.extend(std::iter::from_fn(|| take(n)));
        }
        assert_eq!(places.len(), 64, "all places are taken");
        assert!(take(2000).is_none());
        drop(places.remove(0));
        assert!(take(0).is_none(), "the last place is for a newcomer");
        let last = take(2000).expect("the last place");
        drop((places, last));
        assert!(listener.taken().by_source.is_empty() && device.taken().by_source.is_empty());
        assert_eq!((listener.taken().all, device.taken().all), (0, 0));
    }

    #[test]
    fn a_full_device_refuses() {
        let (listener, device) = (Waiting::of_listener(100), Waiting::of_device(3));
        let places: Vec<_> = (0..9).filter_map(|n| Waiting::take([&listener, &device], source(n))).collect();
        assert_eq!(places.len(), 3);
        assert_eq!(listener.taken().all, 3);
    }

    #[test]
    fn engines_that_take_at_once_do_not_take_too_many() {
        let (listener, device) = (Waiting::of_listener(100), Waiting::of_device(30));
        let places: Vec<_> = std::thread::scope(|scope| {
            let take = |n| Waiting::take([&listener, &device], source(n));
            let engines: Vec<_> = (0..3)
                .map(|e| scope.spawn(move || (0..50).filter_map(|i| take(3 * i + e)).collect::<Vec<_>>()))
                .collect();
            engines.into_iter().flat_map(|engine| engine.join().unwrap()).collect()
        });
        assert_eq!((places.len(), device.taken().all), (30, 30));
        drop(places);
        assert!(listener.taken().by_source.is_empty() && device.taken().by_source.is_empty());
    }
}
