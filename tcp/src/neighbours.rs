//! The places of a neighbour cache (for ARP or neighbour discovery), with a timer for each. Their number is
//! bounded. Neighbours that connections hold keep their places. A new neighbour displaces one of those that
//! have been unheld for longest, preferably one whose MAC address is unknown. No operation here searches the
//! whole cache, because strangers decide how many neighbours there are.

use crate::audit::{Fault, must};
use crate::time::Time;
use crate::timer::TimerWheel;
use core::hash::Hash;
use std::collections::HashMap;

/// Id of a neighbour, which stays valid while the neighbour is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Neighbour(pub u16);

impl Neighbour {
    /// This host itself.
    pub const OWN: Neighbour = Neighbour(0x7fff);
    /// Most neighbours of one family.
    pub const MOST: u16 = 0x7fff;
    const V6: u16 = 0x8000;

    /// Makes the id of an IPv6 neighbour of `Inet6`.
    pub fn v6(index: u16) -> Self {
        Neighbour(index | Self::V6)
    }

    #[inline]
    pub fn is_v6(self) -> bool {
        self.0 & Self::V6 != 0
    }

    /// Returns the neighbour's number within its family.
    #[inline]
    pub fn index(self) -> u16 {
        self.0 & !Self::V6
    }
}

/// An entry of the cache.
pub(crate) trait Entry {
    type Address: Copy + Eq + Hash;
    fn address(&self) -> Self::Address;
    /// Returns the number of connections that hold it.
    fn holders(&mut self) -> &mut u32;
    /// Returns whether its MAC address is unknown because no host has answered.
    fn is_unknown(&self) -> bool;
}

/// Number of unheld neighbours examined to find one to displace, from the one unheld for longest on. The first one with
/// an unknown MAC address is displaced. If there is none, the one unheld for longest is displaced.
const GLANCES: usize = 8;
/// No place.
const NONE: u16 = u16::MAX;

struct Place<E> {
    entry: Option<E>,
    /// The places before and after this one in the list of unheld neighbours.
    before: u16,
    after: u16,
}

pub(crate) struct Places<E: Entry> {
    places: Vec<Place<E>>,
    vacant: Vec<u16>,
    /// First and last of the unheld neighbours, in the order in which they were added or released.
    first: u16,
    last: u16,
    index: HashMap<E::Address, u16>,
    limit: usize,
    wheel: TimerWheel,
}

impl<E: Entry> Places<E> {
    pub fn new(limit: u32, now: Time) -> Self {
        Places {
            places: Vec::new(),
            vacant: Vec::new(),
            first: NONE,
            last: NONE,
            index: HashMap::new(),
            limit: limit.clamp(1, u32::from(Neighbour::MOST)) as usize,
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
        self.places.get(usize::from(i))?.entry.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, i: u16) -> Option<&mut E> {
        self.places.get_mut(usize::from(i))?.entry.as_mut()
    }

    /// Returns all numbers that a neighbour has or had.
    pub fn numbers(&self) -> core::ops::Range<u16> {
        0..self.places.len() as u16
    }

    /// Returns the number of the neighbour with this address. A new neighbour takes a free place, or displaces an
    /// unheld one. `None`: connections hold all places.
    pub fn find_or_add(&mut self, address: E::Address, new: impl FnOnce() -> E) -> Option<u16> {
        if let Some(i) = self.find(address) {
            return Some(i);
        }
        if self.vacant.is_empty() && self.places.len() >= self.limit {
            let idle = |i: &u16| Some(self.places.get(usize::from(*i))?.after).filter(|i| *i != NONE);
            let first = Some(self.first).filter(|i| *i != NONE);
            let mut next = std::iter::successors(first, idle).take(GLANCES);
            let silent = next.find(|i| self.get(*i).is_some_and(Entry::is_unknown));
            self.remove(silent.or(first)?);
        }
        let i = self.vacant.pop().unwrap_or(self.places.len() as u16);
        let place = Place { entry: Some(new()), before: NONE, after: NONE };
        match self.places.get_mut(usize::from(i)) {
            Some(vacant) => *vacant = place,
            None => self.places.push(place),
        }
        self.index.insert(address, i);
        self.append(i);
        Some(i)
    }

    /// Adds a hold of a neighbour by a connection.
    pub fn hold(&mut self, i: u16) {
        let Some(holders) = self.get_mut(i).map(E::holders) else { return };
        *holders += 1;
        if *holders == 1 {
            self.take_out(i);
        }
    }

    /// Ends a hold of a neighbour by a connection.
    pub fn release(&mut self, i: u16) {
        let Some(holders) = self.get_mut(i).map(E::holders).filter(|n| **n > 0) else { return };
        *holders -= 1;
        if *holders == 0 {
            self.append(i);
        }
    }

    /// Removes a neighbour, unless a connection holds it.
    pub fn remove(&mut self, i: u16) {
        if self.get_mut(i).is_none_or(|e| *e.holders() > 0) {
            return;
        }
        self.take_out(i);
        if let Some(old) = self.places.get_mut(usize::from(i)).and_then(|p| p.entry.take()) {
            self.index.remove(&old.address());
            self.wheel.cancel(u32::from(i));
            self.vacant.push(i);
        }
    }

    /// Appends a place to the list of unheld neighbours.
    fn append(&mut self, i: u16) {
        let last = std::mem::replace(&mut self.last, i);
        match self.places.get_mut(usize::from(last)) {
            Some(before) => before.after = i,
            None => self.first = i,
        }
        if let Some(place) = self.places.get_mut(usize::from(i)) {
            (place.before, place.after) = (last, NONE);
        }
    }

    fn take_out(&mut self, i: u16) {
        let Some(&Place { before, after, .. }) = self.places.get(usize::from(i)) else { return };
        match self.places.get_mut(usize::from(before)) {
            Some(place) => place.after = after,
            None => self.first = after,
        }
        match self.places.get_mut(usize::from(after)) {
            Some(place) => place.before = before,
            None => self.last = before,
        }
    }

    /// Sets a neighbour's timer.
    #[inline]
    pub fn schedule(&mut self, i: u16, at: Time) {
        self.wheel.schedule(u32::from(i), at);
    }

    /// Returns a neighbour whose timer is due; `None` if there is none.
    #[inline]
    pub fn poll(&mut self, now: Time) -> Option<u16> {
        self.wheel.poll(now).map(|i| i as u16)
    }

    #[inline]
    pub fn next_deadline(&self) -> Option<Time> {
        self.wheel.next_deadline()
    }

    /// Checks, for tests, that every neighbour has one place, that their number is within the limit, and that the
    /// list has exactly the unheld ones.
    pub fn audit(&self) -> Result<(), Fault>
    where
        E: Clone,
    {
        let known = self.places.iter().filter_map(|p| p.entry.as_ref());
        must!(self.places.len() <= self.limit && self.index.len() == known.clone().count());
        must!(self.vacant.len() == self.places.len() - self.index.len());
        let found = |e: &E| self.find(e.address()).and_then(|i| self.get(i));
        must!(known.clone().all(|e| found(e).is_some_and(|f| core::ptr::eq(f, e))));
        let after = |i: &u16| self.places.get(usize::from(*i)).map(|p| p.after).filter(|i| *i != NONE);
        let idle = std::iter::successors(Some(self.first).filter(|i| *i != NONE), after);
        let held = |e: &E| *e.clone().holders() > 0;
        must!(idle.clone().take(self.limit + 1).count() == known.filter(|e| !held(e)).count());
        must!(idle.clone().all(|i| self.get(i).is_some_and(|e| !held(e))));
        must!(idle.last().unwrap_or(NONE) == self.last);
        Ok(())
    }
}
