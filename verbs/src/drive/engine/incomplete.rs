//! Limits the memory for incomplete FPDUs of all connections together, and shares it among sources.
//!
//! A stream that finds no room in the [`Budget`](urnic_iwarp::Budget) stops before its next incomplete FPDU. TCP
//! keeps the octets that follow and shuts the window, and the connection waits here for its turn. When memory has
//! become free, TCP offers the octets again. If memory stays short, the engine displaces incomplete FPDUs of the source
//! that has most of the memory: it ends their connections.

use super::names::{EndpointId, EndpointIndex, QpIndex};
use super::qp::{Begun, QpCore};
use super::teardown::Why;
use super::{Clock, Core, Engine, Phase};
use crate::drive::transport::{Data, Transport};
use crate::shared::source::Source;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use urnic_iwarp::Terminate;
use urnic_tcp::Time;

/// Default maximum octets of incomplete FPDUs that an engine keeps: two thousand FPDUs of the largest size. The
/// memory is allocated as octets arrive.
pub(crate) const INCOMPLETE_MAX: usize = 128 << 20;
/// Minimum number of octets that must have become free before memory is returned to the system. They must also be at
/// least half of the octets that were in use.
const MUCH: usize = 8 << 20;
/// Approximate size of a connection, or of a queue pair with its queues, in octets.
const OBJECT: usize = 8 << 10;
/// Octets that an FPDU of the largest size needs. Memory is short when less than this is free in the budget. In
/// a budget of less than twice this size, memory is short when less than half is free. Displacing stops when it
/// has freed this many octets, or earlier at the first FPDU that is too young.
const SHORT: usize = 68 << 10;
/// Age from which an incomplete FPDU may be displaced while other sources wait. The segments of a younger FPDU may
/// still be on the way.
const YOUNG: Duration = Duration::from_millis(100);
/// Age from which an incomplete FPDU may be displaced while only its own source waits.
const OLD: Duration = Duration::from_secs(2);
/// How often the engine looks for FPDUs to displace while memory is short.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Maximum number of streams that are tried in one pass.
const TRIES_PER_PASS: usize = 16;

/// The streams that have stopped because there was no memory for their next incomplete FPDU.
#[derive(Default)]
pub(super) struct Stopped {
    /// Endpoints in the order in which they stopped.
    waiting: VecDeque<EndpointId>,
    /// Endpoints of the source that had most memory at the last check. They are tried after all endpoints of
    /// `waiting`.
    greedy: VecDeque<EndpointId>,
    most: Option<Source>,
    /// Time of the next search for memory.
    look_at: Time,
    /// Queue pairs whose streams may hold received frames, each at most once.
    holders: Vec<QpIndex>,
    /// Highest number of octets in use since memory was last returned to the system.
    peak: usize,
}

impl Stopped {
    /// Returns whether no stream waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.greedy.is_empty()
    }

    /// Returns when the engine must look for memory; `None` if no stream waits.
    pub(super) fn next(&self) -> Option<Time> {
        (!self.is_empty()).then_some(self.look_at)
    }
}

/// An incomplete FPDU that may be displaced.
struct Displaceable {
    since: Time,
    qp: QpIndex,
    /// Octets that the FPDU has reserved in the budget.
    octets: usize,
}

impl<D: Data> Core<D> {
    /// Notes, after a stream has received, whether an incomplete FPDU has begun, and whether the stream holds frames.
    #[inline]
    pub(super) fn note_incomplete(qp: &mut QpCore<D>, at: QpIndex, stopped: &mut Stopped, now: Time) {
        let Some(stream) = &qp.stream else { return };
        if let Some(fpdu) = stream.incomplete() {
            if qp.incomplete.is_none_or(|begun| begun.number != fpdu.number) {
                qp.incomplete = Some(Begun { number: fpdu.number, since: now });
            }
            if stream.holds_chunks() && !std::mem::replace(&mut qp.is_holder, true) {
                stopped.holders.push(at);
            }
        }
    }

    /// Notes that a queue pair leaves this engine, so that it no longer counts as a holder of frames.
    pub(super) fn remove_holder(qp: &mut QpCore<D>, at: QpIndex, stopped: &mut Stopped) {
        if std::mem::take(&mut qp.is_holder) {
            stopped.holders.retain(|other| *other != at);
        }
    }

    /// Makes an endpoint whose stream has stopped wait for memory.
    #[cold]
    pub(super) fn wait_for_memory(&mut self, index: EndpointIndex) {
        let Some(id) = self.endpoints.id(index) else { return };
        let Some(endpoint) = self.endpoints.get_mut(index) else { return };
        if std::mem::replace(&mut endpoint.stopped, true) {
            return;
        }
        let stopped = &mut self.stopped;
        let greedy = stopped.most == Some(Source::of(endpoint.peer.ip()));
        let queue = if greedy { &mut stopped.greedy } else { &mut stopped.waiting };
        queue.push_back(id);
        self.tend_at = Time::ZERO;
    }

    /// Copies the content of all held frames and frees the frames, because receive buffers are scarce.
    #[cold]
    pub(super) fn copy_out(&mut self) {
        for at in self.stopped.holders.drain(..) {
            let Some(qp) = self.qps.get_mut(at) else { continue };
            qp.is_holder = false;
            if let Some(stream) = &mut qp.stream {
                stream.copy_out();
            }
        }
    }

    /// Frees memory for incomplete FPDUs: ends the connections with the oldest incomplete FPDUs of the source that
    /// has reserved most memory. From now on, this source's streams wait behind all others.
    #[cold]
    fn displace(&mut self) {
        let mut sources = HashMap::<Source, (usize, Vec<Displaceable>)>::new();
        for (_, endpoint) in self.endpoints.iter() {
            let Phase::Open { qp } = endpoint.phase else { continue };
            let Some(core) = self.qps.get(qp) else { continue };
            let incomplete = core.stream.as_ref().and_then(|s| s.incomplete()).zip(core.incomplete);
            if let Some((fpdu, Begun { since, .. })) = incomplete {
                let (sum, fpdus) = sources.entry(Source::of(endpoint.peer.ip())).or_default();
                *sum += fpdu.reserved;
                fpdus.push(Displaceable { since, qp, octets: fpdu.reserved });
            }
        }
        let most = sources.into_iter().max_by_key(|(_, (octets, _))| *octets);
        let Some((most, (_, mut fpdus))) = most else { return };
        self.part_greedy(most);
        let patience = if self.stopped.waiting.is_empty() { OLD } else { YOUNG };
        fpdus.sort_unstable_by_key(|fpdu| fpdu.since);
        let mut freed = 0;
        for fpdu in fpdus {
            if freed >= SHORT || fpdu.since + patience > self.now {
                break;
            }
            freed += fpdu.octets;
            self.displaced += 1;
            self.fail(fpdu.qp, Some(Terminate::STREAM_CATASTROPHIC), Why::Displaced);
        }
    }

    /// Divides the waiting streams into those of the source `most`, which has most memory, and all others.
    fn part_greedy(&mut self, most: Source) {
        let Stopped { waiting, greedy, .. } = &mut self.stopped;
        let all: Vec<_> = waiting.drain(..).chain(greedy.drain(..)).collect();
        self.stopped.most = Some(most);
        for id in all {
            let Some(endpoint) = self.endpoints.find(id).and_then(|index| self.endpoints.get(index)) else {
                continue;
            };
            let Stopped { waiting, greedy, .. } = &mut self.stopped;
            let is_greedy = Source::of(endpoint.peer.ip()) == most;
            if is_greedy { greedy } else { waiting }.push_back(id);
        }
    }

    /// Returns whether much memory has become free since this function last returned true. `aside` is the number of
    /// octets that the transport has put aside.
    pub(super) fn has_freed_much(&mut self, aside: usize) -> bool {
        let objects = self.endpoints.len() + self.qps.len();
        let used = self.budget.reserved() + self.budget.aside() + aside + objects * OBJECT;
        let peak = self.stopped.peak.max(used);
        let freed = used <= peak / 2 && peak - used >= MUCH;
        self.stopped.peak = if freed { used } else { peak };
        freed
    }

    fn is_short(&self) -> bool {
        let (reserved, reservable) = (self.budget.reserved(), self.budget.reservable());
        reservable - reserved < SHORT.min(reservable / 2)
    }
}

impl<T: Transport, C: Clock> Engine<T, C> {
    /// Resumes stopped streams, as long as there is memory. If memory is short, first displaces incomplete FPDUs, at
    /// most once in [`LOOK_EVERY`].
    #[cold]
    pub(super) fn try_stopped(&mut self, now: Time) {
        if self.core.is_short() {
            if now < self.core.stopped.look_at {
                return;
            }
            self.core.stopped.look_at = now + LOOK_EVERY;
            self.core.displace();
        }
        for _ in 0..TRIES_PER_PASS {
            if self.core.is_short() {
                break;
            }
            let Stopped { waiting, greedy, .. } = &mut self.core.stopped;
            let Some(id) = waiting.pop_front().or_else(|| greedy.pop_front()) else { break };
            let Some(index) = self.core.endpoints.find(id) else { continue };
            let Some(endpoint) = self.core.endpoints.get_mut(index) else { continue };
            endpoint.stopped = false;
            if let Some(conn) = endpoint.conn {
                self.transport.resume(now, conn, &mut self.core);
            }
        }
    }
}
