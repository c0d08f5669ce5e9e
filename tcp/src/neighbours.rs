//! The places of a neighbour cache, of ARP or neighbour discovery, and a timer for each. There is a bounded number of
//! them; neighbours that connections hold keep theirs, the others make room.

use crate::arp::Neighbour;
use crate::audit::{Fault, must};
use crate::time::Time;
use crate::timer::TimerWheel;
use core::hash::Hash;
use std::collections::HashMap;

/// What has a place.
pub(crate) trait Entry {
    type Address: Copy + Eq + Hash;
    fn address(&self) -> Self::Address;
    /// A connection holds it.
    fn is_held(&self) -> bool;
    /// Nobody has answered.
    fn is_unknown(&self) -> bool;
}

pub(crate) struct Places<E: Entry> {
    entries: Vec<Option<E>>,
    index: HashMap<E::Address, u16>,
    limit: usize,
    /// Where the next place is looked for when all are taken.
    hand: usize,
    wheel: TimerWheel,
}

impl<E: Entry> Places<E> {
    pub fn new(limit: u32, now: Time) -> Self {
        Places {
            entries: Vec::new(),
            index: HashMap::new(),
            limit: limit.clamp(1, u32::from(Neighbour::MOST)) as usize,
            hand: 0,
            wheel: TimerWheel::new(now),
        }
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn find(&self, address: E::Address) -> Option<u16> {
        self.index.get(&address).copied()
    }

    #[inline]
    pub fn get(&self, i: u16) -> Option<&E> {
        self.entries.get(usize::from(i))?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, i: u16) -> Option<&mut E> {
        self.entries.get_mut(usize::from(i))?.as_mut()
    }

    /// All numbers that a neighbour has or had.
    pub fn numbers(&self) -> core::ops::Range<u16> {
        0..self.entries.len() as u16
    }

    /// The number of the neighbour with this address. Who is new gets one of the next `glances` places that no connection
    /// holds; one that says nothing if there is such.
    pub fn find_or_add(
        &mut self,
        address: E::Address,
        glances: usize,
        new: impl FnOnce() -> E,
    ) -> Option<u16> {
        if let Some(i) = self.find(address) {
            return Some(i);
        }
        let i = if self.entries.len() < self.limit {
            self.entries.push(None);
            self.entries.len() - 1
        } else {
            let from = self.hand;
            let next = (0..glances.min(self.limit)).map(|i| (from + i) % self.limit);
            let entry = |i: &usize| self.entries.get(*i).and_then(Option::as_ref);
            let free = |i: &usize| entry(i).is_none_or(|e| !e.is_held());
            let idle = |i: &usize| entry(i).is_none_or(|e| !e.is_held() && e.is_unknown());
            let found = next.clone().find(idle).or_else(|| next.clone().find(free));
            self.hand = (found.unwrap_or(from + glances) + 1) % self.limit;
            found?
        } as u16;
        self.remove(i);
        *self.entries.get_mut(usize::from(i))? = Some(new());
        self.index.insert(address, i);
        Some(i)
    }

    pub fn remove(&mut self, i: u16) {
        if let Some(old) = self.entries.get_mut(usize::from(i)).and_then(Option::take) {
            self.index.remove(&old.address());
            self.wheel.cancel(u32::from(i));
        }
    }

    /// Sets a neighbour's timer.
    #[inline]
    pub fn schedule(&mut self, i: u16, at: Time) {
        self.wheel.schedule(u32::from(i), at);
    }

    /// One whose timer is due.
    #[inline]
    pub fn poll(&mut self, now: Time) -> Option<u16> {
        self.wheel.poll(now).map(|i| i as u16)
    }

    #[inline]
    pub fn next_deadline(&self) -> Option<Time> {
        self.wheel.next_deadline()
    }

    /// For tests: every neighbour has one place, and there are not too many.
    pub fn audit(&self) -> Result<(), Fault> {
        let known = self.entries.iter().flatten();
        must!(self.entries.len() <= self.limit && self.index.len() == known.clone().count());
        let found = |e: &E| self.find(e.address()).and_then(|i| self.get(i));
        must!(known.clone().all(|e| found(e).is_some_and(|f| core::ptr::eq(f, e))));
        Ok(())
    }
}
