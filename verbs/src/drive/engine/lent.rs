//! Payload that is sent without a copy. If the transport supports this, the engine lends TCP the memory of a
//! work request until the peer has acknowledged the content. The request completes only then. If TCP must
//! return the memory earlier, because the memory is deregistered or the request ends with an error, TCP copies
//! the content first.

use super::endpoint::Phase;
use super::names::{EndpointIndex, QpIndex};
use super::{Clock, Core, Engine};
use crate::drive::transport::{Data, Transport};
use crate::shared::cm::DisconnectReason;
use crate::shared::queue::WrNumber;
use crate::shared::sabotage::{Rule, broken};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;
use urnic_tcp::ConnId;

/// The requests of a queue pair that have lent memory.
#[derive(Default)]
pub(super) struct Lent {
    /// The requests, oldest first.
    requests: VecDeque<LentRequest>,
    /// Number of octets that the peer has acknowledged so far while requests had lent memory.
    acked: u64,
    /// Whether requests have ended before TCP returned their memory.
    abandoned: bool,
}

/// A request that has lent memory.
struct LentRequest {
    number: WrNumber,
    /// The value of `Lent::acked` at which TCP no longer needs the memory, or [`LATER`].
    until: u64,
}

/// Longest time that the end of a registration or of a queue pair waits until a peer that reads frames late, in the
/// memory of this end, has read them. A peer that reads at all does so within microseconds, unless its thread waits for
/// a processor.
const READING: Duration = Duration::from_millis(50);

/// Value of [`LentRequest::until`] during a turn, because the count is known only at the end of the turn.
const LATER: u64 = u64::MAX;

impl Lent {
    /// Notes that memory of request `number`, the last one begun, has been lent.
    #[inline]
    pub(super) fn lend(&mut self, number: WrNumber) {
        match self.requests.back_mut() {
            Some(last) if last.number == number => last.until = LATER,
            _ => self.requests.push_back(LentRequest { number, until: LATER }),
        }
    }

    /// Returns whether request `number`, the oldest that is not complete, must wait until TCP returns its memory. If
    /// TCP has returned the memory, forgets the request.
    #[inline]
    pub(super) fn holds(&mut self, number: WrNumber) -> bool {
        match self.requests.front() {
            Some(&LentRequest { number: oldest, until })
                if oldest == number && !broken(Rule::LentUntilAcked) =>
            {
                let holds = until > self.acked;
                if !holds {
                    self.requests.pop_front();
                }
                holds
            }
            _ => false,
        }
    }

    /// Notes the end of a turn: TCP now has all data of the turn, and `unacked` octets in total are not acknowledged.
    fn settle(&mut self, unacked: u64) {
        let until = self.acked.wrapping_add(unacked);
        for request in self.requests.iter_mut().rev().take_while(|request| request.until == LATER) {
            request.until = until;
        }
    }

    /// Notes that the peer has acknowledged `octets` more. Returns whether TCP no longer needs the memory of the
    /// oldest request.
    fn acked(&mut self, octets: u64) -> bool {
        self.acked += octets;
        self.requests.front().is_some_and(|oldest| oldest.until <= self.acked)
    }

    /// Returns whether TCP may still hold memory of the queue pair.
    #[inline]
    pub(super) fn any(&self) -> bool {
        !self.requests.is_empty() || self.abandoned
    }

    /// Forgets the requests, which have ended without waiting for their memory.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.abandoned |= !self.requests.is_empty();
        self.requests.clear();
    }
}

impl<D: Data> Core<D> {
    /// Notes that the peer of a lender has acknowledged octets. Returns whether a request may be complete now.
    #[inline(never)]
    pub(super) fn note_acked(&mut self, index: EndpointIndex, octets: u64) -> bool {
        let Some(&Phase::Open { qp }) = self.endpoints.get(index).map(|e| &e.phase) else { return false };
        self.qps.get_mut(qp).is_some_and(|qp| qp.tx.lent.acked(octets))
    }

    /// Enters an endpoint into the list of lenders, unless it is there.
    fn lends(&mut self, index: EndpointIndex) {
        let Some(endpoint) = self.endpoints.get_mut(index) else { return };
        if endpoint.lender.is_none() {
            endpoint.lender = Some(self.lenders.len() as u32);
            self.lenders.push(index);
        }
    }

    /// Removes an endpoint from the list of lenders.
    pub(super) fn remove_lender(&mut self, index: EndpointIndex) {
        let Some(place) = self.endpoints.get_mut(index).and_then(|e| e.lender.take()) else { return };
        self.lenders.swap_remove(place as usize);
        if let Some(&moved) = self.lenders.get(place as usize)
            && let Some(endpoint) = self.endpoints.get_mut(moved)
        {
            endpoint.lender = Some(place);
        }
    }
}

impl<T: Transport, C: Clock> Engine<T, C> {
    /// Takes back the memory of requests that have ended without waiting for the peer's acknowledgement, because the
    /// lender's queue pair has failed or no longer exists.
    #[inline(never)]
    pub(super) fn take_back_abandoned(&mut self, index: EndpointIndex, conn: ConnId) {
        let qp = match self.core.endpoints.get(index).map(|e| &e.phase) {
            Some(&Phase::Open { qp }) => self.core.qps.get_mut(qp),
            _ => None,
        };
        // The endpoint of a failed queue pair is in the ready list, so this turn comes soon after the failure.
        if qp.is_none_or(|qp| std::mem::take(&mut qp.tx.lent.abandoned)) {
            self.core.remove_lender(index);
            // No `forget` is needed: the memory stays registered, so queued frames may still be sent from it.
            self.take_back_from(index, conn, &(0..usize::MAX));
        }
    }

    /// Takes back the memory that the queue pair of the endpoint at `index` has lent, because the program destroys or
    /// resets the queue pair. The program may then reuse the memory, but the endpoint's next turn may be some passes
    /// away. Must be called outside of passes.
    pub(super) fn take_back_at_once(&mut self, index: EndpointIndex) {
        let Some(endpoint) = self.core.endpoints.get(index).filter(|e| e.lender.is_some()) else { return };
        if let Some(conn) = endpoint.conn {
            self.transport.settle_acks(&mut self.core);
            let all = 0..usize::MAX;
            let unread = self.unread(conn, &all);
            self.core.remove_lender(index);
            self.take_back_from(index, conn, &all);
            self.await_reading(&unread.into_iter().collect::<Vec<_>>());
        }
    }

    /// Updates the list of lenders after a turn of the endpoint at `index`, whose queue pair lends memory or did so
    /// before.
    #[inline(never)]
    pub(super) fn settle_lent(&mut self, index: EndpointIndex, qp: QpIndex) {
        let Some(conn) = self.core.endpoints.get(index).and_then(|e| e.conn) else { return };
        let Some(lent) = self.core.qps.get_mut(qp).map(|qp| &mut qp.tx.lent) else { return };
        if lent.any() {
            lent.settle(self.transport.unacked(conn));
            self.core.lends(index);
        } else {
            self.core.remove_lender(index);
        }
    }

    /// Takes back all memory within `range` (addresses): afterwards, the transport no longer refers to it. Must be
    /// called outside of passes.
    pub(super) fn take_back_range(&mut self, range: &Range<usize>) {
        self.transport.settle_acks(&mut self.core);
        let mut unread = Vec::new();
        for i in 0..self.core.lenders.len() {
            let Some(&index) = self.core.lenders.get(i) else { break };
            if let Some(conn) = self.core.endpoints.get(index).and_then(|e| e.conn) {
                unread.extend(self.unread(conn, range));
                self.take_back_from(index, conn, range);
            }
        }
        self.await_reading(&unread);
        // Drops the queued frames that refer to the memory. Some may be retransmissions of data that the peer has
        // acknowledged meanwhile. `take_back` does not find these, because no connection refers to their data.
        self.transport.forget(range);
    }

    /// Returns the connection, and the number of its octets that have not been sent, if the link's peer may yet read
    /// frames of the connection in lent memory within `range` (addresses).
    fn unread(&mut self, conn: ConnId, range: &Range<usize>) -> Option<(ConnId, u64)> {
        self.transport.is_read_late(conn, range).then(|| (conn, self.transport.unsent(conn)))
    }

    /// Waits until the peer has acknowledged what these connections had sent, so it has read the frames; at most for
    /// [`READING`], and not again before anything has come from a peer that has let this time pass. What they send from
    /// now on is copied. If a peer does not acknowledge in this time, it may read what the program writes to the memory
    /// next, and finds a wrong CRC.
    fn await_reading(&mut self, unread: &[(ConnId, u64)]) {
        if unread.is_empty() {
            return;
        }
        let end = self.now() + READING;
        while !self.peer_sleeps && unread.iter().any(|&(conn, unsent)| self.transport.unacked(conn) > unsent)
        {
            self.transport.flush();
            let now = self.now();
            let received = self.receive(now);
            if now > end {
                self.peer_sleeps = !received;
                break;
            }
            if !received {
                std::thread::yield_now();
            }
        }
    }

    /// Takes back the memory within `range` that the connection of the endpoint at `index` refers to. If it cannot be
    /// copied, aborts the connection and reports that this end has done so.
    fn take_back_from(&mut self, index: EndpointIndex, conn: ConnId, range: &Range<usize>) {
        if !self.transport.take_back(conn, range) {
            self.core.announce(index, DisconnectReason::Aborted);
            self.transport.abort(self.core.now, conn);
        }
    }
}

#[cfg(test)]
mod tests;
