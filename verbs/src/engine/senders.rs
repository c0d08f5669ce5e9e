//! Buffers for what is sent: no host has more of them than are free for all others together.
//!
//! TCP keeps every record until the peer acknowledges it, so a peer that does not holds buffers, and a few hundred
//! connections of one host would hold all: nobody could be answered. While less than half of the buffers are free, a host
//! that holds more than its share gets none, and its connections wait here; what they hold comes back when the host
//! acknowledges it, or when TCP gives them up.

use super::endpoint::Farewell;
use super::{Clock, Engine, TURNS_PER_PASS};
use crate::port::Port;
use crate::source::Source;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use urnic_tcp::Time;

/// While more than one part of so many is free, everybody gets buffers.
const PLENTY_PART: usize = 2;
/// So many buffers are for headers alone, of acknowledgements and resets.
const RESERVE: usize = 64;
/// How long a count of what hosts hold is good for.
const COUNT_EVERY: Duration = Duration::from_millis(4);
/// How often connections that wait are tried again.
const TRY_EVERY: Duration = Duration::from_millis(1);

/// Who holds buffers, and who waits for some.
#[derive(Default)]
pub(super) struct Shares {
    /// Endpoints in the order in which they began to wait, with their generations.
    waiting: VecDeque<(u32, u32)>,
    try_at: Time,
    /// Records that each host has not acknowledged, as of `counted_at` and with what has been sent since.
    held: HashMap<Source, usize>,
    counted_at: Option<Time>,
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

impl<P: Port, C: Clock> Engine<P, C> {
    /// Whether so many buffers are free that nobody needs to be counted.
    #[inline]
    pub(super) fn has_plenty(&self) -> bool {
        self.port.send_buffers() >= self.port.all_send_buffers() / PLENTY_PART
    }

    /// While buffers are scarce: how many the endpoint at `index` may take. If none, it waits for its turn.
    #[cold]
    pub(super) fn share(&mut self, index: u32, now: Time) -> usize {
        let Some(endpoint) = self.core.endpoints.get(index) else { return 0 };
        let host = Source::of(endpoint.peer.ip());
        if self.core.shares.counted_at.is_none_or(|at| now >= at + COUNT_EVERY) {
            self.count_held(now);
        }
        let held = self.core.shares.held.get(&host).copied().unwrap_or(0);
        let share = self.port.send_buffers().saturating_sub(RESERVE + held);
        if share > 0 {
            return share;
        }
        let Some(endpoint) = self.core.endpoints.get_mut(index) else { return 0 };
        // An acknowledgement is a reason to try again at once.
        endpoint.starved = true;
        if !std::mem::replace(&mut endpoint.bufferless, true) {
            if self.core.shares.waiting.is_empty() {
                self.core.shares.try_at = now + TRY_EVERY;
            }
            self.core.shares.waiting.push_back((index, endpoint.generation));
            self.core.tend_at = self.core.tend_at.min(self.core.shares.try_at);
        }
        // A reset gives all back.
        usize::from(endpoint.farewell == Some(Farewell::Reset))
    }

    fn count_held(&mut self, now: Time) {
        let shares = &mut self.core.shares;
        shares.held.clear();
        for (_, endpoint) in self.core.endpoints.iter() {
            let records = endpoint.conn.map_or(0, |conn| self.stack.records(conn));
            if records > 0 {
                *shares.held.entry(Source::of(endpoint.peer.ip())).or_default() += records;
            }
        }
        shares.counted_at = Some(now);
    }

    /// While buffers are scarce: the endpoint at `index` may have taken some; it had `before` of them.
    #[cold]
    pub(super) fn took_buffers(&mut self, index: u32, before: usize) {
        let Some(endpoint) = self.core.endpoints.get(index) else { return };
        let Some(conn) = endpoint.conn else { return };
        let taken = self.stack.records(conn).saturating_sub(before);
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
            let Some((index, generation)) = self.core.shares.waiting.pop_front() else { break };
            let endpoint = self.core.endpoints.get_mut(index).filter(|e| e.generation == generation);
            let Some(endpoint) = endpoint else { continue };
            endpoint.bufferless = false;
            self.core.schedule(index);
        }
        self.core.shares.try_at = now + TRY_EVERY;
    }
}
