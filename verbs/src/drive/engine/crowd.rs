//! A room for connections that strangers can fill: bounded, and shared among sources.
//!
//! A source is an IPv4 address or an IPv6 /64, of which one host may have all addresses. When the room is full, a newcomer
//! takes the place of the oldest member of the source that has most: however many connections a source opens, it
//! displaces its own. Every step takes constant time: a flood must not cost more than its frames.

use crate::shared::source::Source;
use std::collections::HashMap;
use std::net::IpAddr;
use urnic_tcp::Time;

/// No index.
const NONE: u32 = u32::MAX;

/// First and last of a list.
#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

const EMPTY: Ends = Ends { first: NONE, last: NONE };

/// What comes before and after each element, which is in one list at a time.
#[derive(Debug, Default)]
struct Links(Vec<(u32, u32)>);

impl Links {
    /// Appends element `i` to the list.
    fn push(&mut self, list: &mut Ends, i: u32) {
        if self.0.len() <= i as usize {
            self.0.resize(i as usize + 1, (NONE, NONE));
        }
        self.0[i as usize] = (list.last, NONE);
        match self.0.get_mut(list.last as usize) {
            Some((_, after)) => *after = i,
            None => list.first = i,
        }
        list.last = i;
    }

    /// Takes element `i` out of the list that it is in.
    fn remove(&mut self, list: &mut Ends, i: u32) {
        let (before, after) = self.0[i as usize];
        match self.0.get_mut(before as usize) {
            Some((_, next)) => *next = after,
            None => list.first = after,
        }
        match self.0.get_mut(after as usize) {
            Some((previous, _)) => *previous = before,
            None => list.last = before,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Member<T> {
    /// What the owner knows it by.
    who: T,
    until: Time,
    /// Its source's index.
    source: u32,
}

#[derive(Clone, Copy, Debug)]
struct Family {
    source: Source,
    members: Ends,
    count: usize,
}

/// The room.
#[derive(Debug)]
pub(super) struct Crowd<T> {
    limit: usize,
    len: usize,
    members: Vec<Member<T>>,
    free: Vec<u32>,
    /// All members, the oldest first.
    ages: Links,
    all: Ends,
    /// Those of a source, the oldest first.
    kin: Links,
    families: Vec<Family>,
    free_families: Vec<u32>,
    by_source: HashMap<Source, u32>,
    /// Sources of so many members, those that have had so many for longest first.
    ranks: Vec<Ends>,
    rank_links: Links,
    /// The most members that a source has.
    most: usize,
}

/// A member's place in the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat(u32);

impl<T: Copy> Crowd<T> {
    /// A room for `limit` members, at least one.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            len: 0,
            members: Vec::new(),
            free: Vec::new(),
            ages: Links::default(),
            all: EMPTY,
            kin: Links::default(),
            families: Vec::new(),
            free_families: Vec::new(),
            by_source: HashMap::new(),
            ranks: Vec::new(),
            rank_links: Links::default(),
            most: 0,
        }
    }

    #[cfg(test)]
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Lets `who` in until `until`, which is never earlier than that of the member before. Returns its seat, and the member
    /// that had to go if the room was full.
    pub(super) fn enter(&mut self, who: T, from: IpAddr, until: Time) -> (Seat, Option<T>) {
        let displaced = if self.len >= self.limit { self.displace() } else { None };
        let source = Source::of(from);
        let family = match self.by_source.get(&source) {
            Some(&family) => family,
            None => {
                let family = place(
                    &mut self.families,
                    &mut self.free_families,
                    Family { source, members: EMPTY, count: 0 },
                );
                self.by_source.insert(source, family);
                family
            }
        };
        let seat = place(&mut self.members, &mut self.free, Member { who, until, source: family });
        self.len += 1;
        self.ages.push(&mut self.all, seat);
        self.kin.push(&mut self.families[family as usize].members, seat);
        self.recount(family, 1);
        (Seat(seat), displaced)
    }

    /// Frees a seat.
    pub(super) fn leave(&mut self, Seat(seat): Seat) {
        let family = self.members[seat as usize].source;
        self.len -= 1;
        self.ages.remove(&mut self.all, seat);
        self.kin.remove(&mut self.families[family as usize].members, seat);
        self.free.push(seat);
        self.recount(family, -1);
    }

    /// The oldest member, if its time is over at `now`.
    pub(super) fn due(&self, now: Time) -> Option<T> {
        let oldest = self.members.get(self.all.first as usize)?;
        (oldest.until <= now).then_some(oldest.who)
    }

    /// When the time of the oldest member is over.
    pub(super) fn next(&self) -> Option<Time> {
        self.members.get(self.all.first as usize).map(|oldest| oldest.until)
    }

    /// Frees the seat of the oldest member of the source that has most.
    fn displace(&mut self) -> Option<T> {
        let family = self.ranks.get(self.most)?.first;
        let seat = self.families.get(family as usize)?.members.first;
        let who = self.members.get(seat as usize)?.who;
        self.leave(Seat(seat));
        Some(who)
    }

    /// A source has one member more or less. Forgets it with its last.
    fn recount(&mut self, index: u32, change: isize) {
        let family = &mut self.families[index as usize];
        let (before, source) = (family.count, family.source);
        let now = before.saturating_add_signed(change);
        family.count = now;
        if before > 0 {
            self.rank_links.remove(&mut self.ranks[before], index);
        }
        if now > 0 {
            if self.ranks.len() <= now {
                self.ranks.resize(now + 1, EMPTY);
            }
            self.rank_links.push(&mut self.ranks[now], index);
        } else {
            self.by_source.remove(&source);
            self.free_families.push(index);
        }
        // A source that leaves the highest rank goes to the one below.
        if now > self.most || self.ranks[self.most].first == NONE {
            self.most = now;
        }
    }
}

/// Puts a value into a free place.
fn place<T>(values: &mut Vec<T>, free: &mut Vec<u32>, value: T) -> u32 {
    match free.pop() {
        Some(i) => {
            values[i as usize] = value;
            i
        }
        None => {
            values.push(value);
            values.len() as u32 - 1
        }
    }
}

#[cfg(test)]
mod tests;
