//! The order in which members have their turns. Members are connections that send, or sources of events (see
//! [`BySource`](super::by_source::BySource)).
//!
//! A member that was done after its last turn, and had little to do (a brief member), comes before members that had more
//! to do (greedy members). A short message thus passes thousands of connections that are never done (as new flows do
//! in RFC 8290 §4.2). Every fourth turn belongs to greedy members, so that they are not kept out either.

use std::collections::VecDeque;

/// Maximum number of consecutive turns of brief members while greedy members wait.
const IN_A_ROW: u8 = 3;

/// The members that want a turn, each at most once.
pub(crate) struct Turns<T> {
    brief: VecDeque<T>,
    greedy: VecDeque<T>,
    /// Number of consecutive turns of brief members while greedy ones wait.
    row: u8,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { brief: VecDeque::new(), greedy: VecDeque::new(), row: 0 }
    }
}

impl<T> Turns<T> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.brief.is_empty() && self.greedy.is_empty()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.brief.len() + self.greedy.len()
    }

    /// Adds the member `who`. `greedy`: the member was not done after its last turn.
    #[inline]
    pub(crate) fn push(&mut self, who: T, greedy: bool) {
        if greedy { &mut self.greedy } else { &mut self.brief }.push_back(who);
    }

    /// Returns whether the next turn is that of a greedy member.
    #[inline]
    pub(crate) fn next_is_greedy(&self) -> bool {
        !self.greedy.is_empty() && (self.row >= IN_A_ROW || self.brief.is_empty())
    }

    /// Returns all members, roughly in the order of their turns: the turns of greedy members between those of brief
    /// members are not considered.
    pub(crate) fn soon(&self) -> impl Iterator<Item = &T> {
        self.brief.iter().chain(&self.greedy)
    }

    /// Takes the member whose turn it is; `None` if there is none.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        if !self.next_is_greedy() {
            self.row = if self.greedy.is_empty() { 0 } else { self.row + 1 };
            return self.brief.pop_front();
        }
        self.row = 0;
        self.greedy.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brief_ones_pass_thousands_that_are_never_done() {
        let mut turns = Turns::default();
        (0..2000).for_each(|i| turns.push(i, true));
        turns.push(5000, false);
        assert_eq!((turns.len(), turns.pop(), turns.pop()), (2001, Some(5000), Some(0)));
    }

    #[test]
    fn those_that_are_never_done_have_every_fourth_turn() {
        let mut turns = Turns::default();
        (0..10).for_each(|i| turns.push(i, true));
        let mut greedy = Vec::new();
        for at in 0..40 {
            turns.push(100 + at, false);
            turns.push(200 + at, false);
            let index = turns.pop().unwrap();
            if index < 10 {
                greedy.push((at, index));
            }
        }
        let fourth: Vec<_> = (0..10).map(|i| (4 * i + 3, i)).collect();
        assert_eq!(greedy, fourth, "in order");
        let mut rest = 0;
        while turns.pop().is_some() {
            rest += 1;
        }
        assert_eq!((rest, turns.is_empty()), (50, true));
    }
}
