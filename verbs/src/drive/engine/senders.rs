//! Buffers for what is sent: no host has more of them than are free for all others together, and none keeps what others need.
//!
//! TCP keeps every record until the peer acknowledges it, so a peer that does not holds buffers, and a few hundred
//! connections of one host would hold all: nobody could be answered. While less than half of the buffers are free, a host
//! that holds more than its share gets none, and its connections wait here.
//!
//! Many hosts can still hold all of them. So when few are free, and a host wants some that holds less than others, records of
//! those that hold most are put aside, in ordinary memory, where they wait for their acknowledgement as before: nobody
//! loses anything by that, and no peer needs to be judged. That memory is bounded; when it is used up, the source that
//! has most outstanding loses connections whose peers have long acknowledged nothing.

use super::endpoint::{Farewell, Phase};
use super::names::{EndpointId, EndpointIndex};
use super::teardown::Why;
use super::{Clock, Engine, TURNS_PER_PASS};
use crate::drive::transport::Transport;
use crate::shared::source::Source;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use urnic_tcp::{ConnId, Time};

/// Octets that are put aside at most: records of full size from thirty times as many buffers as a port on a network has.
pub(crate) const ASIDE_MAX: usize = 128 << 20;
/// While more than one part of so many is free, everybody gets buffers.
const PLENTY_PART: usize = 2;
/// While less than one part of so many is free, records are put aside ...
const FEW_PART: usize = 8;
/// ... until one part of so many is.
const ENOUGH_PART: usize = 4;
/// So many buffers are for headers alone, of acknowledgements and resets.
const RESERVE: usize = 64;
/// How long a count of what hosts hold is good for.
const COUNT_EVERY: Duration = Duration::from_millis(4);
/// How often connections that wait are tried again.
const TRY_EVERY: Duration = Duration::from_millis(1);
/// A connection is displaced when its peer has acknowledged nothing for so long.
const PATIENCE: Duration = Duration::from_secs(1);
/// Of the memory for what is put aside, one part of so many is freed at a time.
const FREED_PART: usize = 16;

/// Who holds buffers, and who waits for some.
#[derive(Default)]
pub(super) struct Shares {
    /// Endpoints in the order in which they began to wait.
    waiting: VecDeque<EndpointId>,
    try_at: Time,
    /// Records that each host has not acknowledged, as of `counted_at` and with what has been sent since.
    held: HashMap<Source, usize>,
    counted_at: Option<Time>,
    /// When to look again for records to put aside: there were none.
    look_at: Time,
    /// Connections that were ended to free memory.
    pub(super) displaced: u64,
}

impl Shares {
    /// When connections that wait must be tried again; `None` if there are none.
    pub(super) fn next(&self) -> Option<Time> {
        (!self.waiting.is_empty()).then_some(self.try_at)
    }

    /// How many connections wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// A host, as far as it holds buffers.
#[derive(Default)]
struct Holder {
    buffers: usize,
    /// Its connections, and since when each has acknowledged nothing.
    connections: Vec<(Time, ConnId)>,
}

/// A connection whose peer has not acknowledged all.
struct Outstanding {
    /// Since when the peer has acknowledged nothing.
    since: Time,
    endpoint: EndpointIndex,
    /// Octets that it has not acknowledged.
    octets: u64,
}

impl<T: Transport, C: Clock> Engine<T, C> {
    /// Whether so many buffers are free that nobody needs to be counted.
    #[inline]
    pub(super) fn has_plenty(&self) -> bool {
        self.transport.send_buffers() >= self.transport.all_send_buffers() / PLENTY_PART
    }

    /// While buffers are scarce: how many the endpoint at `index` may take. If none, it waits for its turn.
    #[cold]
    pub(super) fn share(&mut self, index: EndpointIndex, now: Time) -> usize {
        let Some(endpoint) = self.core.endpoints.get(index) else { return 0 };
        let host = Source::of(endpoint.peer.ip());
        if self.core.shares.counted_at.is_none_or(|at| now >= at + COUNT_EVERY) {
            self.count_held(now);
        }
        let held = self.core.shares.held.get(&host).copied().unwrap_or(0);
        let few = self.transport.send_buffers() < self.transport.all_send_buffers() / FEW_PART;
        if few && now >= self.core.shares.look_at {
            self.put_aside(held, now);
        }
        let share = self.transport.send_buffers().saturating_sub(RESERVE + held);
        if share > 0 {
            return share;
        }
        let Some(id) = self.core.endpoints.id(index) else { return 0 };
        let Some(endpoint) = self.core.endpoints.get_mut(index) else { return 0 };
        // An acknowledgement is a reason to try again at once.
        endpoint.starved = true;
        if !std::mem::replace(&mut endpoint.bufferless, true) {
            if self.core.shares.waiting.is_empty() {
                self.core.shares.try_at = now + TRY_EVERY;
            }
            self.core.shares.waiting.push_back(id);
            self.core.tend_at = self.core.tend_at.min(self.core.shares.try_at);
        }
        // A reset gives all back.
        usize::from(endpoint.farewell == Some(Farewell::Reset))
    }

    fn count_held(&mut self, now: Time) {
        let shares = &mut self.core.shares;
        shares.held.clear();
        for (_, endpoint) in self.core.endpoints.iter() {
            let records = endpoint.conn.map_or(0, |conn| self.transport.records(conn));
            if records > 0 {
                *shares.held.entry(Source::of(endpoint.peer.ip())).or_default() += records;
            }
        }
        shares.counted_at = Some(now);
    }

    /// Puts records aside, of those hosts first that have most buffers, as long as these have more than `held`. Of a host's
    /// connections those are first that have acknowledged nothing for longest.
    #[cold]
    fn put_aside(&mut self, held: usize, now: Time) {
        let mut holders = HashMap::<Source, Holder>::new();
        for (_, endpoint) in self.core.endpoints.iter() {
            let Some(conn) = endpoint.conn else { continue };
            let buffers = self.transport.buffers(conn);
            if buffers > 0 {
                let holder = holders.entry(Source::of(endpoint.peer.ip())).or_default();
                holder.buffers += buffers;
                holder.connections.push((self.transport.stalled_since(conn).unwrap_or(Time::MAX), conn));
            }
        }
        let mut holders: Vec<_> = holders.into_values().filter(|holder| holder.buffers > held).collect();
        holders.sort_unstable_by_key(|holder| Reverse(holder.buffers));
        let before = self.transport.send_buffers();
        let enough = self.transport.all_send_buffers() / ENOUGH_PART;
        let most = self.core.mpa.aside_max;
        for holder in &mut holders {
            holder.connections.sort_unstable_by_key(|(since, _)| *since);
            for (_, conn) in &holder.connections {
                if self.transport.send_buffers() >= enough {
                    return;
                }
                if self.transport.aside() >= most {
                    return self.displace(now);
                }
                self.transport.put_aside(*conn, most);
            }
        }
        if self.transport.send_buffers() == before {
            self.core.shares.look_at = now + TRY_EVERY;
        }
    }

    /// Nothing more can be put aside: the source that has most outstanding loses connections that have acknowledged nothing
    /// for [`PATIENCE`], the longest first.
    #[cold]
    fn displace(&mut self, now: Time) {
        self.core.shares.look_at = now + TRY_EVERY;
        let mut sources = HashMap::<Source, (u64, Vec<Outstanding>)>::new();
        for (index, endpoint) in self.core.endpoints.iter() {
            let Some(conn) = endpoint.conn else { continue };
            let octets = self.transport.unacked(conn);
            if octets > 0 {
                let (sum, connections) = sources.entry(Source::of(endpoint.peer.ip())).or_default();
                *sum += octets;
                let since = self.transport.stalled_since(conn).filter(|_| endpoint.farewell.is_none());
                connections.extend(since.map(|since| Outstanding { since, endpoint: index, octets }));
            }
        }
        let most = sources.into_values().max_by_key(|(octets, _)| *octets);
        let Some((_, mut connections)) = most else { return };
        connections.sort_unstable_by_key(|connection| connection.since);
        let mut freed = 0;
        for Outstanding { since, endpoint, octets } in connections {
            if freed >= (self.core.mpa.aside_max / FREED_PART) as u64 || since + PATIENCE > now {
                break;
            }
            freed += octets;
            self.core.shares.displaced += 1;
            self.give_up(endpoint);
        }
    }

    /// Resets the connection of the endpoint at `index`.
    fn give_up(&mut self, index: EndpointIndex) {
        let core = &mut self.core;
        match core.endpoints.get(index).map(|endpoint| &endpoint.phase) {
            Some(&Phase::Open { qp }) => {
                core.fail(qp, None, Why::Unacknowledged);
                core.enter_error(qp);
                core.farewell(index, Farewell::Reset);
            }
            Some(Phase::Awaiting { .. } | Phase::Pending { .. } | Phase::Dismissed | Phase::Closing) => {
                core.dismiss(index, Farewell::Reset);
            }
            // A start-up that the program wants, whose time is limited anyway.
            Some(Phase::Connecting { .. } | Phase::Requesting { .. } | Phase::Expecting { .. }) | None => {}
        }
    }

    /// While buffers are scarce: the endpoint at `index` may have taken some; it had `before` of them.
    #[cold]
    pub(super) fn took_buffers(&mut self, index: EndpointIndex, before: usize) {
        let Some(endpoint) = self.core.endpoints.get(index) else { return };
        let Some(conn) = endpoint.conn else { return };
        let taken = self.transport.records(conn).saturating_sub(before);
        *self.core.shares.held.entry(Source::of(endpoint.peer.ip())).or_default() += taken;
    }

    /// Lets connections that wait for buffers try again, a few at a time.
    pub(super) fn try_bufferless(&mut self, now: Time) {
        if now < self.core.shares.try_at {
            return;
        }
        let waiting = self.core.shares.waiting.len();
        let tries = if self.has_plenty() { waiting } else { waiting.min(TURNS_PER_PASS) };
        for _ in 0..tries {
            let Some(id) = self.core.shares.waiting.pop_front() else { break };
            let Some(index) = self.core.endpoints.find(id) else { continue };
            let Some(endpoint) = self.core.endpoints.get_mut(index) else { continue };
            endpoint.bufferless = false;
            self.core.schedule(index);
        }
        self.core.shares.try_at = now + TRY_EVERY;
    }
}
