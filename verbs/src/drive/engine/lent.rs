//! Payload that is not copied. If the transport can, TCP is lent the memory of a work request until the peer has
//! acknowledged the content, and the request completes then. If memory must be given back earlier, because it is
//! deregistered or its request ends otherwise, the content is copied first.

use super::endpoint::Phase;
use super::names::{EndpointIndex, QpIndex};
use super::{Clock, Core, Engine};
use crate::drive::transport::{Data, Transport};
use crate::shared::queue::WrNumber;
use crate::shared::sabotage::{Rule, broken};
use std::collections::VecDeque;
use std::ops::Range;
use urnic_tcp::ConnId;

/// The requests of a queue pair that have lent memory.
#[derive(Default)]
pub(super) struct Lent {
    /// Oldest first.
    requests: VecDeque<LentRequest>,
    /// Octets that were acknowledged while there were such requests.
    acked: u64,
    /// Whether requests have ended before their memory came back.
    abandoned: bool,
}

/// A request that has lent memory.
struct LentRequest {
    number: WrNumber,
    /// Count of acknowledged octets at which its memory is free.
    until: u64,
}

/// Placeholder: the count is not known before the end of the turn.
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

    /// Whether request `number`, the oldest that is not complete, waits for its memory.
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

    /// Called at the end of a turn: TCP has all data of the turn, and `unacked` octets in all.
    fn settle(&mut self, unacked: u64) {
        let until = self.acked.wrapping_add(unacked);
        for request in self.requests.iter_mut().rev().take_while(|request| request.until == LATER) {
            request.until = until;
        }
    }

    /// `octets` more are acknowledged. Returns whether the memory of the oldest request is free now.
    fn acked(&mut self, octets: u64) -> bool {
        self.acked += octets;
        self.requests.front().is_some_and(|oldest| oldest.until <= self.acked)
    }

    /// Whether any memory has not come back.
    #[inline]
    pub(super) fn any(&self) -> bool {
        !self.requests.is_empty() || self.abandoned
    }

    /// The requests have ended otherwise.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.abandoned |= !self.requests.is_empty();
        self.requests.clear();
    }
}

impl<D: Data> Core<D> {
    /// The peer of a lender has acknowledged octets. Returns whether a request may be complete.
    #[inline(never)]
    pub(super) fn came_back(&mut self, index: EndpointIndex, octets: u64) -> bool {
        let Some(&Phase::Open { qp }) = self.endpoints.get(index).map(|e| &e.phase) else { return false };
        self.qps.get_mut(qp).is_some_and(|qp| qp.tx.lent.acked(octets))
    }

    /// Enters an endpoint into the list of lenders, once.
    fn lends(&mut self, index: EndpointIndex) {
        let Some(endpoint) = self.endpoints.get_mut(index) else { return };
        if endpoint.lender.is_none() {
            endpoint.lender = Some(self.lenders.len() as u32);
            self.lenders.push(index);
        }
    }

    /// Removes an endpoint from the list of lenders.
    pub(super) fn lends_no_more(&mut self, index: EndpointIndex) {
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
    /// Takes back what a lender has lent if its requests have ended without waiting for the peer, because its queue
    /// pair has failed or no longer exists.
    #[inline(never)]
    pub(super) fn take_back_abandoned(&mut self, index: EndpointIndex, conn: ConnId) {
        let qp = match self.core.endpoints.get(index).map(|e| &e.phase) {
            Some(&Phase::Open { qp }) => self.core.qps.get_mut(qp),
            _ => None,
        };
        // A queue pair that has failed is in the ready list.
        if qp.is_none_or(|qp| std::mem::take(&mut qp.tx.lent.abandoned)) {
            self.core.lends_no_more(index);
            // Queued frames may still be sent, because the memory is registered.
            self.transport.take_back(self.core.now, conn, &(0..usize::MAX));
        }
    }

    /// Called after the turn of the endpoint at `index`, whose queue pair has lent memory or had lent some.
    #[inline(never)]
    pub(super) fn settle_lent(&mut self, index: EndpointIndex, qp: QpIndex) {
        let Some(conn) = self.core.endpoints.get(index).and_then(|e| e.conn) else { return };
        let Some(lent) = self.core.qps.get_mut(qp).map(|qp| &mut qp.tx.lent) else { return };
        if lent.any() {
            lent.settle(self.transport.unacked(conn));
            self.core.lends(index);
        } else {
            self.core.lends_no_more(index);
        }
    }

    /// When this returns, nothing refers to memory within `range` (addresses).
    pub(super) fn take_back_range(&mut self, range: &Range<usize>) {
        // Also drops frames of data that was sent twice, and has been acknowledged since.
        self.transport.forget(range);
        for i in 0..self.core.lenders.len() {
            let endpoint = self.core.lenders.get(i).and_then(|index| self.core.endpoints.get(*index));
            if let Some(conn) = endpoint.and_then(|e| e.conn) {
                self.transport.take_back(self.core.now, conn, range);
            }
        }
    }
}
