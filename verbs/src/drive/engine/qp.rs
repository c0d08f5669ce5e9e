//! The engine's part of a queue pair: the positions in its queues, and its RDMAP stream.

use super::lent::Lent;
use super::names::{EndpointIndex, Qpn};
use super::unready::Awaits;
use crate::drive::transport::Data;
use crate::shared::engines::EngineNumber;
use crate::shared::events::AsyncEvent;
use crate::shared::grace::Grace;
use crate::shared::qp::{QpShared, QpState, Receives};
use crate::shared::queue::{RecvView, WrNumber};
use crate::shared::scope::Scopes;
use crate::shared::srq::HeldRecv;
use crate::shared::wc::{Wc, WcOpcode, WcStatus};
use crate::shared::wr::SendFlags;
use std::sync::Arc;
use urnic_iwarp::{Outgoing, ReadRequest, Stream, Terminate};
use urnic_tcp::Time;

/// The engine's part of a queue pair. The first two cache lines have all that the sending of a single request needs.
#[repr(C, align(64))]
pub(super) struct QpCore<D: Data> {
    pub(super) shared: Arc<QpShared>,
    /// The RDMAP stream; `Some` from the beginning of RDMA mode until the queue pair loses the connection.
    pub(super) stream: Option<Box<Stream<D>>>,
    /// The endpoint whose connection the queue pair uses; `None`: the queue pair has no connection.
    pub(super) endpoint: Option<EndpointIndex>,
    pub(super) reads: ReadLimits,
    /// The engine that has the queue pair.
    pub(super) engine: EngineNumber,
    /// Whether the queue pair is in the list of queue pairs whose streams may hold frames.
    pub(super) is_holder: bool,
    pub(super) tx: SendSide,
    pub(super) rx: ReceiveSide,
    /// How Sends of the peer wait for receives.
    pub(super) awaits: Awaits,
    /// The peer's incomplete FPDU, or the last one that was incomplete.
    pub(super) incomplete: Option<Begun>,
    /// Whether the queue pair was in another state before and has become idle again.
    was_reset: bool,
}

/// Maximum numbers of outstanding Reads and Atomics, as negotiated.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadLimits {
    /// Reads and Atomics of the peer.
    pub(super) ird: u16,
    /// Reads and Atomics of this side.
    pub(super) ord: u16,
}

/// An FPDU that has begun to arrive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    /// The FPDU's number among the incomplete FPDUs of its stream.
    pub(super) number: u32,
    pub(super) since: Time,
}

/// Progress in the send queue.
#[derive(Default)]
#[repr(C)]
pub(super) struct SendSide {
    /// First work request that has not been begun.
    pub(super) next: WrNumber,
    /// First work request that has not been completed.
    pub(super) done: WrNumber,
    /// Number of Reads and Atomics that are answered, but cannot complete before earlier requests.
    pub(super) reads_answered: u32,
    /// Whether the request at `next` is a Write with immediate data whose Write has been begun. Its Immediate Data
    /// message comes next.
    pub(super) immediate: bool,
    /// Whether the application has asked for a graceful disconnect, which sends a FIN once the send queue is empty.
    pub(super) closing: bool,
    /// Whether an event must report that the send queue is empty.
    pub(super) tells_drained: bool,
    /// Whether the FIN of a graceful disconnect has been requested.
    finished: bool,
    /// Whether answers to the peer's Reads and Atomics go before new work requests at the next message boundary.
    pub(super) responses_turn: bool,
    /// Whether an FPDU has been sent.
    pub(super) spoken: bool,
    /// Whether this side is the MPA Initiator.
    pub(super) initiator: bool,
    /// Whether the first Read is the ready-to-receive indication, which the application has not posted.
    pub(super) rtr_read: bool,
    /// Whether a completion found its completion queue full.
    pub(super) overflowed: bool,
    /// The message that is being cut into FPDUs.
    pub(super) message: Option<Box<Message>>,
    /// Requests that have lent payload to TCP, in order.
    pub(super) lent: Lent,
    /// The Terminate to send. Nothing is sent after it (RDMAP-51).
    pub(super) terminate: Option<Box<Terminate>>,
    /// While `closing`: the first request that was posted too late to be sent (DDP-60).
    pub(super) too_late: WrNumber,
    /// The grace period of the request at `next`, which has taken back memory. The request is done when this period
    /// is over.
    pub(super) grace: Option<Box<Grace>>,
}

/// A work request that made its queue pair fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Culprit {
    pub(super) request: WrNumber,
    /// The status with which the request completes.
    pub(super) status: WcStatus,
}

/// A message that is being sent. It shares no cache line with a message of another engine, because another core writes
/// that message for each frame.
#[repr(align(64))]
pub(super) struct Message {
    pub(super) outgoing: Outgoing,
    pub(super) origin: Origin,
}

/// Memory of messages that have ended, for messages that begin. The memory of the message that ended last is still in
/// the processor's cache. If each queue pair had its own memory for a message, this memory would not be in the cache.
#[derive(Default)]
#[allow(clippy::vec_box)] // the boxes move to queue pairs and back, so that messages are not copied
pub(super) struct Spares(Vec<Box<Message>>);

impl Spares {
    /// Maximum number of messages kept.
    const MOST: usize = 64;

    /// Returns a message that has no octets left. The caller must set its origin in place. If the caller built an
    /// origin first and then copied it, the copy's loads would be wider than the stores just before, and would wait
    /// until all earlier stores have left the core.
    #[inline]
    pub(super) fn message(&mut self) -> Box<Message> {
        self.0.pop().unwrap_or_else(Self::fresh)
    }

    #[cold]
    fn fresh() -> Box<Message> {
        Box::new(Message { outgoing: Outgoing::default(), origin: Origin::None })
    }

    /// Takes a message that has ended.
    #[inline]
    pub(super) fn keep(&mut self, ended: Option<Box<Message>>) {
        if let Some(message) = ended
            && self.0.len() < Self::MOST
        {
            self.0.push(message);
        }
    }
}

/// The source of a message's payload.
#[derive(Clone, Copy)]
pub(super) enum Origin {
    /// The scatter-gather list or inline data of work request `number`. `cursor` is the element of the list at which
    /// the search for the next FPDU's octets begins.
    WorkRequest { number: WrNumber, cursor: Cursor },
    /// Registered memory that an inbound Read Request names.
    Response(ReadRequest),
    /// No payload of the application: a Read or Atomic Request, an Atomic Response, a Terminate, the RTR, or a nudge.
    None,
}

/// A position in a scatter-gather list: the index of an element, and the offset of its first octet in the message.
#[derive(Clone, Copy, Default)]
pub(super) struct Cursor {
    pub(super) element: u16,
    pub(super) base: u32,
}

/// Progress in the receive queue. A receive that a message has taken, but not completed, is the receive in hand.
#[derive(Default)]
pub(super) struct ReceiveSide {
    /// First receive that no message has taken.
    pub(super) next: WrNumber,
    /// First receive that has not been completed: the one at `next`, or the one before it.
    pub(super) done: WrNumber,
    /// Place for the receive in hand if the queue pair uses a shared queue; `None` if it has its own queue. The place
    /// is in use while `next` is beyond `done`.
    held: Option<Box<HeldRecv>>,
    /// The grace period of an invalidation by the message in hand. The message is complete when this period is over.
    pub(super) grace: Option<Box<Grace>>,
}

impl ReceiveSide {
    fn new(receives: &Receives) -> Self {
        let held = match receives {
            Receives::Own(_) => None,
            Receives::Shared(srq) => Some(Box::new(srq.held())),
        };
        ReceiveSide { held, ..Self::default() }
    }

    /// Takes the next receive for a message that begins. Returns its size in bytes; `None` if there is no receive.
    #[inline]
    pub(super) fn take(&mut self, receives: &Receives) -> Option<u32> {
        let length = match receives {
            Receives::Own(queue) => queue.peek(self.next)?.length,
            Receives::Shared(srq) => srq.take(self.held.as_deref_mut()?)?,
        };
        self.next = self.next.next();
        Some(length)
    }

    /// Returns the receive in hand. If there is none, returns the next receive of the queue pair's own queue.
    #[inline]
    pub(super) fn oldest<'a>(&'a self, receives: &'a Receives) -> Option<RecvView<'a>> {
        match receives {
            Receives::Own(queue) => queue.peek(self.done),
            Receives::Shared(_) => self.in_hand(),
        }
    }

    #[inline(never)]
    fn in_hand(&self) -> Option<RecvView<'_>> {
        if self.next == self.done { None } else { self.held.as_deref().map(HeldRecv::view) }
    }

    /// Completes the receive that [`oldest`](Self::oldest) returns, and returns its id.
    #[inline]
    pub(super) fn complete(&mut self, receives: &Receives) -> Option<u64> {
        let done = match receives {
            Receives::Own(queue) => {
                let view = queue.peek(self.done)?;
                let done = view.wr_id;
                queue.release(self.done);
                done
            }
            Receives::Shared(_) => self.in_hand().map(|view| view.wr_id)?,
        };
        self.done = self.done.next();
        Some(done)
    }
}

/// Prepares the completion queues of a queue pair for completions by `engine`.
fn open_lanes(shared: &QpShared, engine: EngineNumber) {
    shared.send_cq.open_lane(engine);
    shared.recv_cq.open_lane(engine);
}

/// Returns the scopes within which a receive's memory must be registered.
#[inline]
pub(super) fn receive_scopes(qp: &QpShared) -> Scopes {
    match &qp.recv {
        Receives::Own(_) => qp.scopes,
        Receives::Shared(srq) => Scopes { pd: srq.domain, ..qp.scopes },
    }
}

impl<D: Data> QpCore<D> {
    /// Makes the part of a queue pair that belongs to `engine`. Must be called outside of passes.
    pub(super) fn new(shared: Arc<QpShared>, engine: EngineNumber) -> Self {
        open_lanes(&shared, engine);
        let rx = ReceiveSide::new(&shared.recv);
        QpCore {
            shared,
            engine,
            endpoint: None,
            stream: None,
            reads: ReadLimits::default(),
            awaits: Awaits::default(),
            incomplete: None,
            was_reset: false,
            is_holder: false,
            tx: SendSide::default(),
            rx,
        }
    }

    /// Returns whether the queue pair, which is idle, may have completed requests. The numbers of its requests do not
    /// tell, because they wrap: after 2^32 requests they are those of a new queue pair.
    pub(super) fn has_completed(&self) -> bool {
        self.was_reset
    }

    /// Notes that the queue pair belongs to `engine` from now on. Must be called outside of passes.
    pub(super) fn join(&mut self, engine: EngineNumber) {
        open_lanes(&self.shared, engine);
        self.engine = engine;
    }

    /// Returns the queue pair's number.
    #[inline]
    pub(super) fn qpn(&self) -> Qpn {
        Qpn(self.shared.qpn)
    }

    pub(super) fn state(&self) -> QpState {
        self.shared.state()
    }

    /// Returns whether anything may be sent. A Responder must wait for the Initiator's first FPDU (MPA-70).
    pub(super) fn may_speak(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.may_send())
    }

    /// Returns whether every posted work request is complete (see [`complete_sends`](Self::complete_sends)). While
    /// `closing`, requests that were posted too late do not count.
    pub(super) fn send_queue_empty(&self) -> bool {
        self.tx.message.is_none() && self.tx.done == self.tx.next && self.nothing_to_begin()
    }

    /// Returns whether there is no request to begin.
    fn nothing_to_begin(&self) -> bool {
        self.tx.closing && self.tx.next == self.tx.too_late || self.shared.send.peek(self.tx.next).is_none()
    }

    /// Returns the number of the first request that has not been posted.
    pub(super) fn first_unposted(&self) -> WrNumber {
        let mut number = self.tx.next;
        while self.shared.send.peek(number).is_some() {
            number = number.next();
        }
        number
    }

    /// Returns whether requests of this side are incomplete, or requests of the peer are unanswered. Returns false once
    /// [`finishes`](Self::finishes) has returned true.
    pub(super) fn has_work_left(&self) -> bool {
        let pending = self.stream.as_ref().is_some_and(|stream| stream.responses_pending() > 0);
        let under_way =
            matches!(self.tx.message.as_deref(), Some(Message { origin: Origin::Response(_), .. }));
        let own = self.tx.done != self.tx.next || !self.nothing_to_begin();
        !self.tx.finished && (pending || under_way || own)
    }

    /// Returns whether an end of the stream would now cut something short: an incomplete FPDU, a message that has taken
    /// a receive and is incomplete, or a Send that waits for a receive.
    pub(super) fn is_cut_short(&self) -> bool {
        let cut = |stream: &Stream<D>| stream.mid_fpdu() || stream.sends_wait();
        self.rx.next != self.rx.done || self.stream.as_deref().is_some_and(cut)
    }

    /// Returns true if a disconnect was requested and all work that was posted before is done. In this case,
    /// raises the event for which [`SendSide::tells_drained`] asks. Later calls return false.
    pub(super) fn finishes(&mut self) -> bool {
        let finishes =
            self.tx.closing && self.send_queue_empty() && !std::mem::replace(&mut self.tx.finished, true);
        if finishes && self.tx.tells_drained {
            self.shared.events.raise(AsyncEvent::SendQueueDrained { qpn: self.shared.qpn });
        }
        finishes
    }

    /// Completes requests in order (RDMAP-62). A request whose data is copied is complete once TCP has the
    /// data. A request that has lent memory is complete once the peer has acknowledged the data. A Read or
    /// Atomic is complete once it is answered.
    pub(super) fn complete_sends(&mut self) {
        // The first request that TCP does not have completely: the request of the message under way, or else the next
        // one to begin.
        let handed = match self.tx.message.as_deref() {
            Some(Message { origin: Origin::WorkRequest { number, .. }, .. }) => *number,
            _ => self.tx.next,
        };
        while self.tx.done != handed {
            let Some(view) = self.shared.send.peek(self.tx.done) else { break };
            if self.tx.lent.holds(self.tx.done) {
                break;
            }
            let entry = view.entry;
            if view.is_answered() {
                if self.tx.reads_answered == 0 {
                    break;
                }
                self.tx.reads_answered -= 1;
            }
            let opcode = view.completes_as();
            let signalled = self.shared.signal_all || entry.flags.contains(SendFlags::SIGNALED);
            if signalled {
                let mut wc = self.send_wc(entry.wr_id, opcode, WcStatus::Success);
                wc.byte_len = entry.length;
                self.publish_send(wc);
            }
            self.shared.send.release(self.tx.done);
            self.tx.done = self.tx.done.next();
        }
    }

    /// Returns whether the connection is over, so that posted work is flushed and arriving data is discarded.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.state().is_over()
    }

    /// Enters the terminate or the error state and ends all outstanding work. The send request `culprit` completes
    /// with its status, the receive in hand with the status `open_receive`, and everything else as flushed. Requests
    /// that are posted later are flushed when their doorbell rings.
    pub(super) fn end(&mut self, state: QpState, culprit: Option<Culprit>, open_receive: WcStatus) {
        let was_over = self.is_over();
        self.shared.set_state(state);
        if let Some(stream) = &mut self.stream {
            stream.stop_listening();
        }
        self.awaits_nothing();
        self.flush(culprit, open_receive);
        if !was_over && matches!(self.shared.recv, Receives::Shared(_)) {
            self.shared.events.raise(AsyncEvent::LastWqeReached { qpn: self.shared.qpn });
        }
    }

    /// Moves the queue pair from the error state to the idle state of a new queue pair. The caller must have separated
    /// it from its connection.
    pub(super) fn reset(&mut self) {
        self.flush(None, WcStatus::Flushed);
        let done = self.tx.done;
        self.tx = SendSide { next: done, done, ..SendSide::default() };
        self.stream = None;
        self.incomplete = None;
        self.was_reset = true;
        self.shared.clear_terminate();
        self.shared.set_state(QpState::Idle);
    }

    /// Ends all outstanding work. The caller must have set the state before.
    pub(super) fn flush(&mut self, culprit: Option<Culprit>, open_receive: WcStatus) {
        self.tx.message = None;
        self.tx.immediate = false;
        self.tx.grace = None;
        self.rx.grace = None;
        self.tx.lent.clear();
        while let Some(view) = self.shared.send.peek(self.tx.done) {
            let opcode = view.completes_as();
            let status = match culprit {
                Some(culprit) if culprit.request == self.tx.done => culprit.status,
                _ => WcStatus::Flushed,
            };
            let wc = self.send_wc(view.entry.wr_id, opcode, status);
            self.publish_send(wc);
            self.shared.send.release(self.tx.done);
            self.tx.done = self.tx.done.next();
        }
        self.tx.next = self.tx.done;
        let mut status = if self.rx.next == self.rx.done { WcStatus::Flushed } else { open_receive };
        while let Some(wr_id) = self.rx.complete(&self.shared.recv) {
            let wc = Wc { wr_id, status, opcode: WcOpcode::Recv, qpn: self.shared.qpn, ..Wc::default() };
            // If the completion queue is full, this completion is lost. The queue pair need not fail for that, because
            // it is already over.
            let _ = self.shared.recv_cq.push(self.engine, wc);
            status = WcStatus::Flushed;
        }
        self.rx.next = self.rx.done;
    }

    fn send_wc(&self, wr_id: u64, opcode: WcOpcode, status: WcStatus) -> Wc {
        Wc { wr_id, status, opcode, qpn: self.shared.qpn, ..Wc::default() }
    }

    fn publish_send(&mut self, wc: Wc) {
        self.tx.overflowed |= self.shared.send_cq.push(self.engine, wc).is_err();
    }
}

#[cfg(test)]
mod tests;
