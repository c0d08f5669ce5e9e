//! Shares the send buffers among hosts, so that no host holds more of them than are free, or keeps buffers that other
//! hosts need.
//!
//! TCP keeps every record until the peer acknowledges it. A peer that does not acknowledge thus holds buffers, and a
//! few hundred connections of one host could hold all of them, so that no peer could be answered. While less than
//! half of the buffers are free, a host that already holds as many buffers as are free gets none, and its connections
//! wait here.
//!
//! Many hosts together can still hold all buffers. When few buffers are free, and a host wants buffers although other
//! hosts hold more than it does, records of the hosts with most buffers are put aside: they are copied to ordinary
//! memory, where they wait for their acknowledgement as before. No peer loses data by this, so the engine need not
//! decide which peer misbehaves. The memory for records that are put aside is limited. When it is used up, the engine
//! takes the host that has most octets outstanding, and ends those of its connections on which nothing was
//! acknowledged for at least [`PATIENCE`].

use super::endpoint::{Farewell, Phase};
use super::names::{EndpointId, EndpointIndex};
use super::teardown::Why;
use super::turns::TURNS_PER_PASS;
use super::{Clock, Engine};
use crate::drive::transport::Transport;
use crate::shared::source::Source;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use urnic_tcp::{ConnId, Time};

/// Maximum octets that may be put aside: about thirty times as many as fit into all send buffers of a port on a
/// network with an MTU of 1500.
pub(crate) const ASIDE_MAX: usize = 128 << 20;
/// While at least 1/`PLENTY_PART` of the buffers is free, every host gets buffers.
const PLENTY_PART: usize = 2;
/// When less than 1/`FEW_PART` of the buffers is free, records are put aside.
const FEW_PART: usize = 8;
/// Records are put aside until 1/`ENOUGH_PART` of the buffers is free.
const ENOUGH_PART: usize = 4;
/// Number of buffers that are reserved for frames without payload: acknowledgements and resets.
const RESERVE: usize = 64;
/// How long a count of what the hosts hold remains valid.
const COUNT_EVERY: Duration = Duration::from_millis(4);
/// How often connections that wait are tried again.
const TRY_EVERY: Duration = Duration::from_millis(1);
/// A connection may be displaced only if its peer has acknowledged nothing for this long.
const PATIENCE: Duration = Duration::from_secs(1);
/// Displacing stops when it has freed 1/`FREED_PART` of the memory for records that are put aside.
const FREED_PART: usize = 16;

/// The hosts that hold buffers, and the endpoints that wait for some.
#[derive(Default)]
pub(super) struct Shares {
    /// Endpoints in the order in which they began to wait.
    waiting: VecDeque<EndpointId>,
    try_at: Time,
    /// Number of each host's unacknowledged records at `counted_at`, plus the number of records sent to it since.
    held: HashMap<Source, usize>,
    counted_at: Option<Time>,
    /// Time before which the engine does not search for records to put aside, because the last search freed no
    /// buffer or ended connections.
    look_at: Time,
    /// Number of connections that were ended to free memory for records that are put aside.
    pub(super) displaced: u64,
}

impl Shares {
    /// Returns when waiting connections must be tried again; `None` if no connection waits.
    pub(super) fn next(&self) -> Option<Time> {
        (!self.waiting.is_empty()).then_some(self.try_at)
    }

    /// Returns the number of connections that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// A host that holds buffers.
#[derive(Default)]
struct Holder {
    buffers: usize,
    /// Connections to the host, each with the time since which the host has acknowledged nothing on it.
    connections: Vec<(Time, ConnId)>,
}

/// A connection whose peer has not acknowledged all data.
struct Outstanding {
    /// Time since which the peer has acknowledged nothing.
    since: Time,
    endpoint: EndpointIndex,
    /// Number of octets that the peer has not acknowledged.
    octets: u64,
}

impl<T: Transport, C: Clock> Engine<T, C> {
    /// Returns whether so many buffers are free that each host's buffers need not be counted.
    #[inline]
    pub(super) fn has_plenty(&self) -> bool {
        self.transport.send_buffers() >= self.transport.all_send_buffers() / PLENTY_PART
    }

    /// Returns how many buffers the endpoint at `index` may take while buffers are scarce. If the result is 0, the
    /// endpoint now waits for buffers.
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
        // With this flag, an acknowledgement makes the endpoint try again at once.
        endpoint.starved = true;
        if !std::mem::replace(&mut endpoint.bufferless, true) {
            if self.core.shares.waiting.is_empty() {
                self.core.shares.try_at = now + TRY_EVERY;
            }
            self.core.shares.waiting.push_back(id);
            self.core.tend_at = self.core.tend_at.min(self.core.shares.try_at);
        }
        // An endpoint that is about to be reset gets its turn, because the reset frees all its buffers.
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

    /// Puts records aside until enough buffers are free. Takes only records of hosts that have more than `held`
    /// buffers, and begins with the host that has most. Among the connections of a host, begins with the one on which
    /// nothing was acknowledged for the longest time. If no more octets may be put aside, ends connections instead.
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

    /// Ends connections, because no more records can be put aside. Chooses the host that has most octets
    /// outstanding, and those of its connections on which nothing was acknowledged for at least [`PATIENCE`].
    /// The longest silence comes first.
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
            // A start-up that the program has asked for continues, because it has a time limit anyway.
            Some(Phase::Connecting { .. } | Phase::Requesting { .. } | Phase::Expecting { .. }) | None => {}
        }
    }

    /// Counts the records that the endpoint at `index` has queued in its turn while buffers are scarce.
    /// `before` is the number of its unacknowledged records before the turn.
    #[cold]
    pub(super) fn took_buffers(&mut self, index: EndpointIndex, before: usize) {
        let Some(endpoint) = self.core.endpoints.get(index) else { return };
        let Some(conn) = endpoint.conn else { return };
        let taken = self.transport.records(conn).saturating_sub(before);
        *self.core.shares.held.entry(Source::of(endpoint.peer.ip())).or_default() += taken;
    }

    /// Schedules connections that wait for buffers, only a few at a time while buffers are scarce.
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
