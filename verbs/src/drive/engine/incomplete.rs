//! Memory for incomplete FPDUs: bounded for all connections together, and not available to one source alone.
//!
//! A stream that finds no room in the [`Budget`](urnic_iwarp::Budget) stops before its next incomplete FPDU. TCP
//! keeps what follows and shuts the window, and the connection waits here in turn. When memory has become free, or
//! has been taken from the source that has most of it, TCP offers the octets again.

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

/// Default maximum of incomplete FPDUs that an engine keeps, in octets: two thousand FPDUs of the largest size.
/// Memory is allocated as they arrive.
pub(crate) const INCOMPLETE_MAX: usize = 128 << 20;
/// Memory is returned to the system when this many octets, and half of those that were in use, have become free.
const MUCH: usize = 8 << 20;
/// Approximate memory of a connection, or of a queue pair with its queues, in octets.
const OBJECT: usize = 8 << 10;
/// The budget is short when it has no room for an FPDU of the largest size. This many octets are then freed.
const SHORT: usize = 68 << 10;
/// An FPDU is displaced for other sources once it has been incomplete for this long. Until then its segments may be
/// on the way.
const YOUNG: Duration = Duration::from_millis(100);
/// An FPDU is displaced for its own source after this time.
const OLD: Duration = Duration::from_secs(2);
/// How often memory is sought while it is short.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Maximum number of streams that are tried in one pass.
const TRIES_PER_PASS: usize = 16;

/// The streams that have stopped.
#[derive(Default)]
pub(super) struct Stopped {
    /// Endpoints in the order in which they stopped.
    waiting: VecDeque<EndpointId>,
    /// Endpoints of the source that had most memory at the last check. They come after all others.
    greedy: VecDeque<EndpointId>,
    most: Option<Source>,
    /// Time of the next search for memory.
    look_at: Time,
    /// Queue pairs that may hold frames, each at most once.
    holders: Vec<QpIndex>,
    /// Most octets in use since memory was last returned to the system.
    peak: usize,
}

impl Stopped {
    /// Whether no stream waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.greedy.is_empty()
    }

    /// Returns when memory must be sought; `None` if no stream waits.
    pub(super) fn next(&self) -> Option<Time> {
        (!self.is_empty()).then_some(self.look_at)
    }
}

/// An incomplete FPDU that may be displaced.
struct Displaceable {
    since: Time,
    qp: QpIndex,
    /// Octets that it has reserved.
    octets: usize,
}

impl<D: Data> Core<D> {
    /// Called after a stream has received: notes an FPDU that has begun, and a stream that holds frames.
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

    /// Called when a queue pair leaves this engine.
    pub(super) fn holds_no_more(qp: &mut QpCore<D>, at: QpIndex, stopped: &mut Stopped) {
        if std::mem::take(&mut qp.is_holder) {
            stopped.holders.retain(|other| *other != at);
        }
    }

    /// A stream has stopped: it waits for its turn.
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

    /// Receive buffers are scarce: copies the content of held frames, and returns the frames.
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

    /// Memory for incomplete FPDUs is short: the source that has reserved most of it loses its oldest FPDUs, and
    /// with them their connections. Its streams wait behind all others.
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

    /// Divides the waiting streams into those of the source that has most memory, and others.
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

    /// Whether much memory has become free since this last returned true. `aside` is the number of octets that have
    /// been put aside.
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
    /// Tries streams that have stopped again, while there is memory.
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
