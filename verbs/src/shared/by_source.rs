//! A queue in which sources (peers, see [`Source`]) take turns. Sources that are new, or had no entries left after
//! their last turn, come first, so that a busy source does not delay them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::source::Source;
use super::turns::Turns;

/// Entries of many sources. Those of one source keep their order; the sources take turns ([`Turns`]).
pub(crate) struct BySource<T>(Mutex<Queues<T>>);

struct Queues<T> {
    /// The entries of each source; no list is empty.
    of: HashMap<Source, VecDeque<T>>,
    /// Each source that has entries, once.
    turns: Turns<Source>,
}

impl<T> BySource<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Queues { of: HashMap::new(), turns: Turns::default() }))
    }

    fn queues(&self) -> MutexGuard<'_, Queues<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, source: Source, thing: T) {
        let queues = &mut *self.queues();
        let of_source = queues.of.entry(source).or_default();
        if of_source.is_empty() {
            queues.turns.push(source, false);
        }
        of_source.push_back(thing);
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let queues = &mut *self.queues();
        let source = queues.turns.pop()?;
        let of_source = queues.of.get_mut(&source)?;
        let thing = of_source.pop_front();
        if of_source.is_empty() {
            queues.of.remove(&source);
        } else {
            queues.turns.push(source, true);
        }
        thing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_take_turns_and_each_keeps_its_order() {
        let queue = BySource::new();
        (0..4).for_each(|i| queue.push(Source::V4(1), i));
        queue.push(Source::V4(2), 10);
        (20..22).for_each(|i| queue.push(Source::V6(1), i));
        let mut order = vec![queue.pop().unwrap()];
        // A source that had a turn, and has entries again, waits behind the sources that had no turn yet.
        queue.push(Source::V4(2), 11);
        order.extend(std::iter::from_fn(|| queue.pop()));
        assert_eq!(order, [0, 10, 20, 1, 11, 21, 2, 3]);
        assert!(queue.queues().of.is_empty() && queue.queues().turns.is_empty());
    }

    #[test]
    fn a_newcomer_passes_those_of_which_there_is_much() {
        let queue = BySource::new();
        let all = (0..64).flat_map(|source| (0..30).map(move |_| source));
        all.for_each(|source| queue.push(Source::V4(source), source));
        // After these turns, each of the 64 sources has had one. Until then, only every fourth turn goes to a source
        // that has had one before.
        (0..86).for_each(|_| _ = queue.pop());
        for _ in 0..100 {
            queue.push(Source::V4(1000), 1000);
            let place = (0..).find(|_| queue.pop() == Some(1000));
            assert!(place.is_some_and(|place| place <= 1), "{place:?}");
        }
    }
}
