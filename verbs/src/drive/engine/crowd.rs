//! A room: a bounded set of connections that any host can fill, and that is shared fairly among sources.
//!
//! A source is an IPv4 address or an IPv6 /64 network, because one host may have all addresses of such a network.
//! When the room is full, a newcomer takes the place of the oldest member of the source that has most members: a
//! source that opens many connections displaces its own connections. Every operation takes constant time, so that a
//! flood of connections costs little more than receiving its frames.

use crate::shared::source::Source;
use std::collections::HashMap;
use std::net::IpAddr;
use urnic_tcp::Time;

/// Stands for the absence of an element in a list.
const NONE: u32 = u32::MAX;

/// The first and last elements of a list.
#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

const EMPTY: Ends = Ends { first: NONE, last: NONE };

/// The neighbours (before, after) of each element. An element is in at most one list.
#[derive(Debug, Default)]
struct Links(Vec<(u32, u32)>);

impl Links {
    /// Appends element `i` to `list`.
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

    /// Removes element `i` from its list.
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
    /// The value by which the room's user names the member.
    who: T,
    until: Time,
    /// Index of the member's source in [`Crowd::families`].
    source: u32,
}

#[derive(Clone, Copy, Debug)]
struct Family {
    source: Source,
    members: Ends,
    count: usize,
}

/// A room: a bounded set of members, shared among sources.
#[derive(Debug)]
pub(super) struct Crowd<T> {
    limit: usize,
    len: usize,
    members: Vec<Member<T>>,
    free: Vec<u32>,
    /// All members, oldest first.
    ages: Links,
    all: Ends,
    /// The members of each source, oldest first.
    kin: Links,
    families: Vec<Family>,
    free_families: Vec<u32>,
    by_source: HashMap<Source, u32>,
    /// For each number of members: the sources that have this number, in the order in which they reached it.
    ranks: Vec<Ends>,
    rank_links: Links,
    /// The highest number of members that any source has.
    most: usize,
}

/// A member's place in the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat(u32);

impl<T: Copy> Crowd<T> {
    /// Makes a room for at most `limit` members; for one member if `limit` is 0.
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

    /// Admits the member `who` until the time `until`, which must not be earlier than in the previous call. Returns the
    /// seat, and the member that had to leave if the room was full.
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

    /// Returns the oldest member if its time is over at `now`.
    pub(super) fn due(&self, now: Time) -> Option<T> {
        let oldest = self.members.get(self.all.first as usize)?;
        (oldest.until <= now).then_some(oldest.who)
    }

    /// Returns when the time of the oldest member is over; `None` if the room is empty.
    pub(super) fn next(&self) -> Option<Time> {
        self.members.get(self.all.first as usize).map(|oldest| oldest.until)
    }

    /// Frees the seat of the oldest member of the source that has most members.
    fn displace(&mut self) -> Option<T> {
        let family = self.ranks.get(self.most)?.first;
        let seat = self.families.get(family as usize)?.members.first;
        let who = self.members.get(seat as usize)?.who;
        self.leave(Seat(seat));
        Some(who)
    }

    /// Changes the number of members of a source. Forgets the source if it has no members left.
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
        // The highest number of members changes if the source now has more than any other, or if only this source had
        // the highest number and has lost a member.
        if now > self.most || self.ranks[self.most].first == NONE {
            self.most = now;
        }
    }
}

/// Puts a value into a free place, and returns the place.
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
