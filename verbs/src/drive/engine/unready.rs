//! Handles a peer's Sends that find no posted receive: they wait until the application posts one (DDP-50). Other RDMA
//! transports make the sender retry instead (receiver not ready), which costs packets.
//!
//! The stream copies waiting Sends to memory of its own and serves the other messages. When that memory is full, the
//! transport keeps the data that follows and shuts the window. A queue pair with waiting Sends sets a flag that the
//! application's threads see, so that they ring the doorbell when they post a receive. Queue pairs of one
//! engine that wait for receives of the same shared queue are served in the order in which they began to wait.
//! If queue pairs of several engines wait, the engines take turns.

use super::alarms::Alarm;
use super::names::{EndpointId, EndpointIndex, QpIndex};
use super::qp::QpCore;
use super::teardown::Why;
use super::{Clock, Core, Engine, Phase};
use crate::drive::transport::{Data, Transport};
use crate::shared::cm::RNR_WITHOUT_LIMIT;
use crate::shared::qp::Receives;
use crate::shared::srq::SrqShared;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use urnic_tcp::Time;

/// Time that a Send may wait, for each retry of [`ConnParam::rnr_retry`](crate::ConnParam::rnr_retry).
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// How long the peer's FIN waits behind the peer's Sends. The time begins when the FIN arrives, and again whenever a
/// waiting Send takes a receive.
const FIN_WAITS: Duration = Duration::from_secs(1);
/// Minimum length that a list of waiting endpoints must have before endpoints that no longer exist are removed from it.
const CLEAR_AT: usize = 64;
/// How long this engine leaves receives to another engine whose turn it is. The other engine takes a receive within
/// this time, unless no thread drives that engine.
const TURN_WITHIN: Duration = Duration::from_millis(1);

/// How a queue pair waits for receives.
#[derive(Default)]
pub(super) struct Awaits {
    /// Whether Sends of the peer may wait.
    may: bool,
    /// Time that each Send may wait; `None`: no limit.
    limit: Option<Duration>,
    /// Time at which the oldest waiting Send became the oldest; `None`: no Send waits.
    since: Option<Time>,
    /// Time at which the peer's FIN arrived behind the waiting Sends; `None`: no FIN waits.
    finished: Option<Time>,
    /// Whether an alarm is set.
    alarm: bool,
    /// Whether the stream has stopped, because it has no room for more waiting Sends or an invalidation is not done.
    pub(super) stopped: bool,
}

impl Awaits {
    /// Makes the state for a connection with this [`ConnParam::rnr_retry`](crate::ConnParam::rnr_retry).
    pub(super) fn with(rnr_retry: u8) -> Self {
        let limit = (rnr_retry < RNR_WITHOUT_LIMIT).then(|| RETRY_AFTER * rnr_retry.into());
        Awaits { may: rnr_retry > 0, limit, ..Self::default() }
    }

    /// Returns whether a new message must leave the receives of a shared queue to Sends that already wait.
    #[inline]
    pub(super) fn yields(&self, receives: &Receives) -> bool {
        match receives {
            Receives::Own(_) => false,
            Receives::Shared(srq) => self.may && srq.awaited.all() != 0,
        }
    }

    /// Returns when the wait ends if no receive comes, and what will then have waited too long: a Send or the peer's
    /// FIN. `None` if no Send waits, or if the wait has no limit.
    fn due(&self) -> Option<(Time, Overdue)> {
        let since = self.since?;
        let send = self.limit.map(|limit| (since + limit, Overdue::Send));
        let fin = self.finished.map(|finished| (since.max(finished) + FIN_WAITS, Overdue::Fin));
        send.into_iter().chain(fin).min_by_key(|(at, _)| *at)
    }

    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.since.is_some()
    }
}

/// A Send that has waited too long, or the peer's FIN behind it.
#[derive(Clone, Copy)]
enum Overdue {
    Send,
    Fin,
}

/// The endpoints that wait for receives.
#[derive(Default)]
pub(super) struct Unready {
    /// Endpoints whose own queue may have a receive now, or whose stream may continue without one.
    posted: Vec<EndpointId>,
    /// Endpoints that wait for receives of shared queues, by the number of the queue.
    shared: HashMap<u32, Queue>,
    /// Whether a shared queue may have a receive now.
    shared_posted: bool,
    /// Number of times that a queue pair has begun to wait.
    pub(super) waited: u64,
}

/// The endpoints that wait for one shared queue, oldest first.
struct Queue {
    srq: Arc<SrqShared>,
    waiting: VecDeque<EndpointId>,
    clear_at: usize,
    /// Time since which this engine has left the available receives to other engines; `None`: it does not.
    leaves_since: Option<Time>,
}

impl Unready {
    /// Returns whether there may be receives for waiting endpoints.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.shared_posted || !self.posted.is_empty()
    }
}

impl<D: Data> QpCore<D> {
    /// Notes that no Send waits. Leaves `stopped` unchanged, because a stream that has stopped must still be resumed.
    pub(super) fn awaits_nothing(&mut self) {
        self.awaits.since = None;
        self.shared.awaited.clear();
    }
}

impl<D: Data> Core<D> {
    /// Begins the wait of queue pair `qp` for receives, because Sends of the peer wait there: from now on, a thread
    /// that posts a receive rings the doorbell. Does nothing if the queue pair already waits.
    #[cold]
    pub(super) fn await_receive(&mut self, index: EndpointIndex, qp: QpIndex) {
        let Some(endpoint) = self.endpoints.id(index) else { return };
        let Some(core) = self.qps.get_mut(qp) else { return };
        if core.awaits.is_waiting() || core.is_over() {
            return;
        }
        core.awaits.since = Some(self.now);
        self.unready.waited += 1;
        match &core.shared.recv {
            Receives::Own(_) => {
                core.shared.awaited.set();
                self.unready.posted.push(endpoint);
            }
            Receives::Shared(srq) => {
                let queue = self.unready.shared.entry(srq.number()).or_insert_with(|| Queue {
                    srq: srq.clone(),
                    waiting: VecDeque::new(),
                    clear_at: CLEAR_AT,
                    leaves_since: None,
                });
                srq.awaited.set(self.number);
                if queue.waiting.len() >= queue.clear_at {
                    queue.waiting.retain(|id| self.endpoints.find(*id).is_some());
                    queue.clear_at = (2 * queue.waiting.len()).max(CLEAR_AT);
                }
                queue.waiting.push_back(endpoint);
                self.unready.shared_posted = true;
            }
        }
        self.watch_waiting(index, qp);
    }

    /// Sets the alarm for the end of the wait, unless an alarm is set.
    fn watch_waiting(&mut self, index: EndpointIndex, qp: QpIndex) {
        let Some(core) = self.qps.get_mut(qp) else { return };
        if let Some((at, _)) = core.awaits.due()
            && !std::mem::replace(&mut core.awaits.alarm, true)
        {
            self.set_alarm(index, at, Alarm::Receive);
        }
    }

    /// Notes that the peer's FIN has arrived. Returns true if the FIN must now wait, because Sends before it wait for
    /// receives. The peer relies on these Sends, because TCP has acknowledged them.
    pub(super) fn fin_waits(&mut self, index: EndpointIndex, qp: QpIndex) -> bool {
        let now = self.now;
        let Some(core) = self.qps.get_mut(qp) else { return false };
        if core.is_over() || !core.awaits.is_waiting() || core.awaits.finished.is_some() {
            return false;
        }
        core.awaits.finished = Some(now);
        self.watch_waiting(index, qp);
        true
    }

    /// Notes that a receive may be available in the queue pair's own queue, or that the stream may continue without
    /// one.
    #[cold]
    pub(super) fn note_may_continue(&mut self, index: EndpointIndex) {
        self.unready.posted.extend(self.endpoints.id(index));
    }

    /// Handles the alarm: ends the stream if a Send has waited too long (ERR-22), or handles the peer's FIN if the
    /// FIN has waited too long. If neither has, sets the alarm again.
    pub(super) fn receive_timed_out(&mut self, index: EndpointIndex) {
        let Some(&Phase::Open { qp }) = self.endpoints.get(index).map(|e| &e.phase) else { return };
        let Some(core) = self.qps.get_mut(qp) else { return };
        core.awaits.alarm = false;
        match core.awaits.due() {
            Some((at, overdue)) if at <= self.now => match overdue {
                Overdue::Send => {
                    let fault = core.stream.as_ref().and_then(|stream| stream.receive_missing());
                    if let Some(fault) = fault {
                        self.fail(qp, fault.terminate, Why::Fault(fault.cause));
                    }
                }
                Overdue::Fin => self.peer_finished(index),
            },
            _ => self.watch_waiting(index, qp),
        }
    }

    /// Discards the waiting Sends and all later ones, because the application has asked for a disconnect. If no
    /// Send waits, discarding begins with the next Send that finds no receive.
    pub(super) fn discard_unready(&mut self, qp: QpIndex) {
        let Some(core) = self.qps.get_mut(qp) else { return };
        let Some(stream) = &mut core.stream else { return };
        stream.discard_sends();
        core.awaits.may = false;
        if core.awaits.is_waiting()
            && let Some(index) = core.endpoint
        {
            self.note_may_continue(index);
        }
    }

    /// Offers the available receives to the Sends that wait at this endpoint.
    fn take_up(&mut self, id: EndpointId) -> TakenUp {
        let Some(index) = self.endpoints.find(id) else { return TakenUp::GONE };
        let Some(&Phase::Open { qp }) = self.endpoints.get(index).map(|e| &e.phase) else {
            // The endpoint has lost its queue pair: arriving data is discarded.
            return TakenUp { resumes: Some(index), ..TakenUp::GONE };
        };
        let waits = |core: &&mut Box<QpCore<D>>| core.awaits.is_waiting() || core.awaits.stopped;
        let Some(core) = self.qps.get_mut(qp).filter(waits) else { return TakenUp::GONE };
        let before = core.rx.next;
        self.take_up_sends(index, qp);
        let Some(core) = self.qps.get_mut(qp) else { return TakenUp::GONE };
        let waits = !core.is_over() && core.stream.as_ref().is_some_and(|stream| stream.sends_wait());
        let took = core.rx.next != before;
        if took {
            core.awaits.since = Some(self.now); // the next Send's wait begins now
        }
        let resumes = core.awaits.stopped && (took || !waits);
        if resumes {
            core.awaits.stopped = false;
        }
        let finished = core.awaits.finished.is_some() && !core.is_over();
        if !waits {
            core.awaits_nothing();
            if finished {
                self.peer_finished(index);
            }
        }
        TakenUp { done: !waits, took, resumes: resumes.then_some(index) }
    }
}

/// Outcome of an attempt to serve waiting Sends.
struct TakenUp {
    /// Whether no Send waits at the endpoint now.
    done: bool,
    /// Whether a Send has taken a receive.
    took: bool,
    /// The endpoint, if its stream can take more data that the transport keeps.
    resumes: Option<EndpointIndex>,
}

impl TakenUp {
    const GONE: Self = TakenUp { done: true, took: false, resumes: None };
}

impl<T: Transport, C: Clock> Engine<T, C> {
    /// Serves waiting Sends, because receives may have been posted for them.
    #[cold]
    pub(super) fn take_up_unready(&mut self, now: Time) {
        for id in std::mem::take(&mut self.core.unready.posted) {
            let TakenUp { resumes, .. } = self.core.take_up(id);
            self.go_on(resumes, now);
        }
        self.core.unready.shared_posted = false;
        let numbers: Vec<u32> = self.core.unready.shared.keys().copied().collect();
        for number in numbers {
            self.serve_shared(number, now);
        }
    }

    /// Offers the receives of the shared queue `number` to waiting endpoints, in the order in which they began
    /// to wait.
    fn serve_shared(&mut self, number: u32, now: Time) {
        let engine = self.core.number;
        let Some(queue) = self.core.unready.shared.get_mut(&number) else { return };
        let others_turn = queue.srq.is_others_turn(engine);
        let since = *queue.leaves_since.get_or_insert(now);
        if others_turn && now < since + TURN_WITHIN {
            self.core.unready.shared_posted = true; // look again in the next pass
            return;
        }
        queue.leaves_since = None;
        let srq = queue.srq.clone();
        // This engine takes one receive and then leaves the turn to the other waiting engines. If it has waited for
        // them in vain, it takes all receives that it needs.
        let shares = !others_turn && srq.is_awaited_elsewhere(engine);
        // Each endpoint that waits now gets one attempt. An endpoint whose stream continues may begin to wait again
        // behind the others.
        for _ in 0..queue.waiting.len() {
            let Some(queue) = self.core.unready.shared.get_mut(&number) else { return };
            let Some(&id) = queue.waiting.front() else { break };
            let TakenUp { done, took, resumes } = self.core.take_up(id);
            if took && srq.several {
                srq.has_served(engine);
            }
            if !done {
                // There are no more receives. The endpoint stays first in the queue.
                self.go_on(resumes, now);
                break;
            }
            if let Some(queue) = self.core.unready.shared.get_mut(&number) {
                queue.waiting.pop_front();
            }
            self.go_on(resumes, now);
            if took && shares {
                self.core.unready.shared_posted |= srq.has_some();
                break;
            }
        }
        if let Some(queue) = self.core.unready.shared.get(&number)
            && queue.waiting.is_empty()
        {
            queue.srq.awaited.clear(engine);
            self.core.unready.shared.remove(&number);
        }
    }

    fn go_on(&mut self, resumes: Option<EndpointIndex>, now: Time) {
        let conn = resumes.and_then(|index| self.core.endpoints.get(index)).and_then(|e| e.conn);
        if let Some(conn) = conn {
            self.transport.resume(now, conn, &mut self.core);
        }
    }
}
