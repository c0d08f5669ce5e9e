//! Prefetches the state of queue pairs whose turn comes soon. With hundreds of queue pairs, this state is not in the
//! caches next to the core, and the engine would wait for each cache line at its first access. Therefore the engine
//! requests the lines of several queue pairs at the same time. It does so in stages, because the address of one line is
//! in another.

use std::ptr;

use arrayvec::ArrayVec;
use urnic_tcp::ConnId;

use super::endpoint::{Endpoint, Phase};
use super::names::{EndpointIndex, Qpn};
use super::qp::QpCore;
use super::{Clock, Core, Engine};
use crate::drive::transport::{Data, Transport};
use crate::shared::prefetch::prefetch;

/// Number of turns whose state is prefetched together. All this state fits into a first-level cache of 32 KiB.
pub(super) const TURNS: usize = 16;
/// Bytes of an endpoint that RDMA mode touches.
const ENDPOINT: usize = 64;
/// Bytes of a [`QpCore`] that a lone message touches.
const QUEUE_PAIR: usize = 3 * 64;
/// Bytes of a queue pair's stream that a message touches, in either direction.
const STREAM: usize = 4 * 64;
/// Bytes of a queue pair's shared part that the engine reads.
const SHARED: usize = 64;

impl<D: Data> Core<D> {
    /// Returns the queue pair of an endpoint in RDMA mode.
    fn open_qp(&self, endpoint: &Endpoint) -> Option<&QpCore<D>> {
        match &endpoint.phase {
            Phase::Open { qp } => self.qps.get(*qp).map(|qp| &**qp),
            _ => None,
        }
    }

    /// Prefetches what [`Core::doorbell`] touches: parts of the queue pairs in `rung`, and of their endpoints.
    pub(super) fn foresee_doorbells(&self, rung: &[u32]) {
        let qps = || rung.iter().filter_map(|qpn| self.qps.get(self.index_of(Qpn(*qpn))?));
        qps().for_each(|qp| prefetch(ptr::from_ref(&**qp), QUEUE_PAIR));
        qps().for_each(|qp| self.foresee_endpoint_of(qp));
    }

    fn foresee_endpoint_of(&self, qp: &QpCore<D>) {
        if let Some(place) = qp.endpoint.and_then(|index| self.endpoints.place(index)) {
            prefetch(ptr::from_ref(place), ENDPOINT);
        }
    }

    /// Prefetches the state of these endpoints, for frames that have arrived or for turns.
    pub(super) fn foresee_endpoints(&self, indices: &[EndpointIndex]) {
        for place in indices.iter().filter_map(|index| self.endpoints.place(*index)) {
            prefetch(ptr::from_ref(place), ENDPOINT);
        }
        let open = || indices.iter().filter_map(|index| self.open_qp(self.endpoints.get(*index)?));
        open().for_each(|qp| prefetch(ptr::from_ref(qp), QUEUE_PAIR));
        for qp in open() {
            prefetch(ptr::from_ref(&*qp.shared), SHARED);
            if let Some(stream) = qp.stream.as_deref() {
                prefetch(ptr::from_ref(stream), STREAM);
            }
        }
    }
}

impl<T: Transport, C: Clock> Engine<T, C> {
    /// Takes the doorbells that have rung, several at a time, so that their queue pairs can be prefetched together.
    /// Those that ring meanwhile, or must ring again, are left for the next pass.
    pub(super) fn take_doorbells(&mut self) {
        let crowd = self.transport.has_crowd();
        let mut left = self.doorbells.entered() as usize;
        while left > 0 {
            let mut rung = ArrayVec::<u32, { TURNS }>::new();
            rung.extend(std::iter::from_fn(|| self.doorbells.pop()).take(TURNS.min(left)));
            if rung.is_empty() {
                return;
            }
            left -= rung.len();
            if crowd && rung.len() > 1 {
                self.core.foresee_doorbells(&rung);
            }
            for qpn in rung {
                if self.core.doorbell(Qpn(qpn)) {
                    self.doorbells.ring(qpn);
                }
            }
        }
    }

    /// Prefetches parts of a queue pair with a request that waits for a pass, and what the previous such queue pair
    /// refers to, if there are many connections. So these lines come while the poster goes on.
    #[inline]
    pub(super) fn foresee_waiting(&mut self, qpn: Qpn) {
        if !self.transport.has_crowd() {
            return;
        }
        let index = self.core.index_of(qpn);
        let previous = std::mem::replace(&mut self.waiting, index);
        if let Some(qp) = index.and_then(|index| self.core.qps.get(index)) {
            prefetch(ptr::from_ref(&**qp), QUEUE_PAIR);
        }
        if let Some(qp) = previous.and_then(|index| self.core.qps.get(index)) {
            self.core.foresee_endpoint_of(qp);
            if let Some(stream) = qp.stream.as_deref() {
                prefetch(ptr::from_ref(stream), STREAM);
            }
        }
    }

    /// Prefetches what the next [`TURNS`] turns need, if there are several and there are many connections.
    #[inline]
    pub(super) fn foresee_turns(&self) {
        if self.core.ready.len() > 1 && self.transport.has_crowd() {
            self.fetch_turns();
        }
    }

    #[inline(never)]
    fn fetch_turns(&self) {
        let soon: ArrayVec<EndpointIndex, TURNS> = self.core.ready.soon().take(TURNS).copied().collect();
        self.core.foresee_endpoints(&soon);
        let conn = |index: &EndpointIndex| self.core.endpoints.get(*index)?.conn;
        let conns: ArrayVec<ConnId, TURNS> = soon.iter().filter_map(conn).collect();
        self.transport.foresee_output(&conns);
    }
}
