//! Send path: queue pairs that have work take [turns](crate::shared::turns), with a quantum for each turn. A
//! turn cuts messages into FPDUs, writes the FPDUs into transmit buffers, and hands the buffers to TCP. Messages of one
//! FPDU go a [shorter way](whole).

mod whole;

use self::whole::Whole;
use super::alarms::Alarm;
use super::endpoint::{Farewell, Phase};
use super::fpdu::Composer;
use super::names::{EndpointIndex, QpIndex};
use super::peers::NUDGE_AFTER;
use super::posting::LITTLE;
use super::qp::{Culprit, Cursor, Message, Origin, QpCore, Spares};
use super::read_list;
use super::stags::Stags;
use super::teardown::Why;
use super::{Clock, Engine, access_fault};
use crate::drive::transport::{Data, Draft, Transport};
use crate::shared::grace::Grace;
use crate::shared::memory::{Bind, MrFault, MrTable, Refused};
use crate::shared::queue::Stored;
use crate::shared::wc::WcStatus;
use crate::shared::wr::{Atomic, SendFlags, SendOp, Sge};
use arrayvec::ArrayVec;
use urnic_iwarp::{BeginError, Op, Pending, STAG_OF_NOTHING, Terminate};
use urnic_tcp::{ConnId, Time, UNEVEN};

/// Maximum length of a turn, in full segments. Long turns cost the link less, because they send more octets of one
/// connection in a burst. Beside brief endpoints, turns are shorter ([`Pace`](super::turns::Pace)).
const TURN_SEGMENTS: usize = 64;
/// Maximum length, in full segments, of the turn of a brief endpoint, and of any turn while buffers are scarce.
const BRIEF_SEGMENTS: usize = 16;
/// Maximum octets of any turn, so that copied data is still in the cache when the link sends it, and so that other
/// endpoints do not wait long if segments are large.
const TURN_OCTETS: usize = 192 << 10;
/// Octets that are worth a call of the link before the end of a turn, if the peer waits for them. A train of usual
/// segments has more.
const EARLY_OCTETS: usize = 16 << 10;
/// Maximum number of FPDUs of any turn.
const TURN_FPDUS: usize = 128;

/// Maximum number of FPDUs of a record whose payload is lent. The receiver of a frame in more pieces copies it, and the
/// driver of the sender takes a descriptor for each piece.
const MAX_LENT: usize = 3;

/// Maximum octets of a start-up frame in one transmit buffer. Every transmit buffer has room for them.
const STARTUP_RECORD: usize = 512;

/// The outcome of looking for what a queue pair sends next.
#[derive(PartialEq, Eq)]
enum Next {
    /// A message has been begun, and is now under way.
    Message,
    /// A work request that concerns only local memory has been carried out. There may be more to send.
    Done,
    /// The next work request cannot be begun. It completes with this status.
    Bad(WcStatus),
    /// The memory of an Atomic of the peer is not available. This Terminate says so.
    Refused(Box<Terminate>),
    /// A work request that concerns only local memory must wait for other engines, until the next pass at least.
    Later,
    Nothing,
}

/// The payload of a work request's message.
#[derive(Clone, Copy)]
enum Carries {
    /// The data of the request's list, or its inline data.
    Payload,
    /// No data of the application.
    Nothing,
}

/// How a turn ended.
#[derive(PartialEq, Eq)]
enum Turn {
    /// There is nothing left to send.
    Idle,
    /// The quantum is used up, no buffer is free, or a work request waits for other engines. The turn continues in
    /// the next pass.
    More,
    /// The TCP window is full. The turn continues when an ACK arrives.
    Starved,
    /// A work request is invalid, or a work request or a request of the peer names memory that is not available.
    Fault { terminate: Terminate, culprit: Option<Culprit> },
    /// The Terminate has been handed to TCP.
    Terminated,
}

impl<D: Data> QpCore<D> {
    /// Chooses and begins the next message. Answers to the peer and work requests alternate. The FPDUs of different
    /// messages are never interleaved, because siw does not support that, and RFC 5041 §5.3 requires submission order
    /// (DDP-34).
    #[inline]
    fn next_message(&mut self, table: &Stags, spares: &mut Spares) -> Next {
        let Some(stream) = &mut self.stream else { return Next::Nothing };
        if let Some(terminate) = &self.tx.terminate {
            let Ok(outgoing) = stream.begin(Op::Terminate(**terminate), 0) else { return Next::Nothing };
            self.tx.message = Some(Box::new(Message { outgoing, origin: Origin::None }));
            return Next::Message;
        }
        let responses_first = self.tx.responses_turn;
        self.tx.responses_turn = !responses_first;
        if responses_first {
            match self.next_response(table, spares) {
                Next::Nothing => {}
                next => return next,
            }
        }
        match self.next_work_request(table, spares) {
            next @ (Next::Nothing | Next::Later) if !responses_first => {
                match self.next_response(table, spares) {
                    Next::Nothing => next,
                    response => response,
                }
            }
            next => next,
        }
    }

    #[inline]
    fn next_response(&mut self, table: &MrTable, spares: &mut Spares) -> Next {
        match &self.stream {
            Some(stream) if stream.responses_pending() > 0 && !stream.ended() => self.answer(table, spares),
            _ => Next::Nothing,
        }
    }

    /// Begins the answer to the peer's oldest request.
    #[inline(never)]
    fn answer(&mut self, table: &MrTable, spares: &mut Spares) -> Next {
        let Some(stream) = &mut self.stream else { return Next::Nothing };
        let (op, len, origin) = match stream.next_response() {
            None => return Next::Nothing,
            Some(Pending::Read(r)) => (Op::ReadResponse(r), r.len, Origin::Response(r)),
            Some(Pending::Atomic(request)) => match super::atomic::perform(table, &self.shared, &request) {
                Ok(original) => (Op::AtomicResponse { id: request.id, original }, 0, Origin::None),
                Err(fault) => return Next::Refused(Box::new(request.terminate(fault))),
            },
        };
        let mut message = spares.message();
        message.origin = origin;
        if stream.begin_in(op, len, &mut message.outgoing).is_err() {
            return Next::Nothing;
        }
        self.tx.message = Some(message);
        Next::Message
    }

    #[inline]
    fn next_work_request(&mut self, table: &Stags, spares: &mut Spares) -> Next {
        let Some(stream) = &mut self.stream else { return Next::Nothing };
        let number = self.tx.next;
        let Some(view) = self.shared.send.peek(number) else { return Next::Nothing };
        if self.tx.closing && number == self.tx.too_late {
            return Next::Nothing;
        }
        let flags = view.entry.flags;
        if flags.contains(SendFlags::FENCE) && stream.reads_outstanding() > 0 {
            return Next::Nothing; // the fence makes the request wait for all earlier Reads and Atomics
        }
        let solicited = flags.contains(SendFlags::SOLICITED);
        let op = match view.entry.op {
            Stored::Send => Op::Send { solicited, invalidate: None },
            Stored::SendInv(stag) => Op::Send { solicited, invalidate: Some(stag) },
            Stored::Write { addr, rkey } => Op::Write { stag: rkey, to: addr },
            Stored::Read { .. } | Stored::Elsewhere => return self.next_of_other_kind(table, spares),
        };
        let length = view.entry.length;
        self.begin(op, length, Carries::Payload, true, spares)
    }

    /// Continues [`Self::next_work_request`] for requests that are neither plain Sends nor plain Writes.
    #[inline(never)]
    fn next_of_other_kind(&mut self, table: &Stags, spares: &mut Spares) -> Next {
        let number = self.tx.next;
        let Some(view) = self.shared.send.peek(number) else { return Next::Nothing };
        let scopes = self.shared.scopes;
        // A zero-length Read may have no sink.
        let none = Sge { addr: 0, len: 0, lkey: STAG_OF_NOTHING };
        let sink = view.sges.first().copied().unwrap_or(none);
        let request = view.op();
        let (op, carries, whole) = match request {
            SendOp::Read { addr, rkey } => {
                let sges = if view.sges.is_empty() { &[none] } else { view.sges };
                let Ok((sink_stag, sink_to)) = read_list::sink(table, scopes, number, sges) else {
                    return Next::Bad(WcStatus::LocalProtection);
                };
                let op = Op::Read { sink_stag, sink_to, src_stag: rkey, src_to: addr };
                (op, Carries::Nothing, true)
            }
            // First, only the Write is begun. `next` stays at this request, so that its Immediate Data follows.
            SendOp::WriteImm { addr, rkey, .. } if !self.tx.immediate => {
                (Op::Write { stag: rkey, to: addr }, Carries::Payload, false)
            }
            SendOp::WriteImm { imm, .. } => {
                let mut data = [0; 8];
                data[..4].copy_from_slice(&imm.to_be_bytes());
                let solicited = view.entry.flags.contains(SendFlags::SOLICITED);
                // The message has no octets of the list. `Payload` ties it to the request, so that the request does
                // not complete before TCP has this message.
                (Op::Immediate { data, solicited }, Carries::Payload, true)
            }
            SendOp::FetchAdd { .. }
            | SendOp::CmpSwap { .. }
            | SendOp::MaskedFetchAdd { .. }
            | SendOp::MaskedCmpSwap { .. } => {
                let Some(Atomic { addr: to, rkey: stag, op }) = request.atomic() else {
                    return Next::Bad(WcStatus::LocalQpOp);
                };
                let (sink_stag, sink_to) = (sink.lkey, sink.addr);
                (Op::Atomic { sink_stag, sink_to, stag, to, op }, Carries::Nothing, true)
            }
            SendOp::LocalInv(_) | SendOp::BindMw { .. } if self.tx.grace.is_some() => {
                return self.await_grace(table);
            }
            SendOp::LocalInv(stag) => {
                let outcome = table.invalidate_local(stag, scopes);
                return self.managed(table, outcome);
            }
            SendOp::BindMw { rkey, lkey, addr, len, access } => {
                let outcome = table.bind(Bind { rkey, lkey, addr, len, access }, scopes);
                return self.managed(table, outcome);
            }
            SendOp::RegMr { key, addr, len, access } => {
                let outcome = table.register(key, addr, len, access, scopes);
                return self.managed(table, outcome.map(|()| Grace::default()));
            }
            // Requests of these kinds are stored in another form, or were refused when they were posted.
            SendOp::Send | SendOp::SendInv(_) | SendOp::Write { .. } | SendOp::SendImm(_) => {
                return Next::Bad(WcStatus::LocalQpOp);
            }
        };
        let length = view.entry.length;
        self.begin(op, length, carries, whole, spares)
    }

    /// Begins a message of the next work request, if possible. `whole` tells whether this is the request's last
    /// message.
    #[inline]
    fn begin(&mut self, op: Op, length: u32, carries: Carries, whole: bool, spares: &mut Spares) -> Next {
        let Some(stream) = &mut self.stream else { return Next::Nothing };
        let mut message = spares.message();
        message.origin = match carries {
            Carries::Payload => Origin::WorkRequest { number: self.tx.next, cursor: Cursor::default() },
            Carries::Nothing => Origin::None,
        };
        match stream.begin_in(op, length, &mut message.outgoing) {
            Ok(()) => {
                self.tx.message = Some(message);
                if whole {
                    self.tx.next = self.tx.next.next();
                }
                self.tx.immediate = !whole;
                Next::Message
            }
            Err(error) => {
                spares.keep(Some(message));
                let waits = matches!(error, BeginError::OrdReached | BeginError::NotYet | BeginError::Ended);
                if waits { Next::Nothing } else { Next::Bad(WcStatus::LocalQpOp) }
            }
        }
    }

    /// Handles the outcome of the next work request, which concerns only local memory and has just been carried out.
    /// The order of the queue is kept, because TCP has the messages of earlier requests, and later requests have not
    /// begun. If the request took back memory, it is done when all passes of other engines that may use this memory
    /// have ended.
    fn managed(&mut self, table: &Stags, outcome: Result<Grace, Refused>) -> Next {
        match outcome {
            Ok(grace) if grace.is_over() => {
                self.tx.next = self.tx.next.next();
                Next::Done
            }
            Ok(grace) => {
                self.tx.grace = Some(Box::new(grace));
                self.await_grace(table)
            }
            Err(Refused::Later) => Next::Later,
            Err(Refused::Fault(_)) => Next::Bad(WcStatus::MemoryManagement),
        }
    }

    /// Checks whether the next work request, which has been carried out, must still wait for other engines.
    #[cold]
    fn await_grace(&mut self, table: &Stags) -> Next {
        if self.tx.grace.as_mut().is_some_and(|grace| !table.has_ended(grace)) {
            return Next::Later;
        }
        self.tx.grace = None;
        self.tx.next = self.tx.next.next();
        Next::Done
    }
}

impl<T: Transport, C: Clock> Engine<T, C> {
    /// Runs the turn of the endpoint at `index`. Returns true if the endpoint has more to send now.
    pub(super) fn service(&mut self, index: EndpointIndex, now: Time) -> bool {
        let Some(endpoint) = self.core.endpoints.get_mut(index) else { return false };
        let Some(conn) = endpoint.conn else {
            self.service_unconnected(index);
            return false;
        };
        endpoint.starved = false;
        if !self.has_plenty() {
            return self.service_scarce(index, conn, now);
        }
        self.service_connected(index, conn, now, None)
    }

    /// Runs the endpoint's turn while buffers are scarce, unless the peer's host already holds its share of
    /// them.
    #[cold]
    fn service_scarce(&mut self, index: EndpointIndex, conn: ConnId, now: Time) -> bool {
        let share = self.share(index, now);
        if share == 0 {
            return false;
        }
        let before = self.transport.records(conn);
        let more = self.service_connected(index, conn, now, Some(share));
        self.took_buffers(index, before);
        more
    }

    /// Runs the turn of the connected endpoint at `index`. `share` is the number of buffers that the endpoint
    /// may take; `None`: buffers are not scarce.
    #[inline]
    fn service_connected(
        &mut self,
        index: EndpointIndex,
        conn: ConnId,
        now: Time,
        share: Option<usize>,
    ) -> bool {
        let Some(endpoint) = self.core.endpoints.get_mut(index) else { return false };
        if endpoint.has_outbox && !self.send_outbox(index, conn) {
            return true;
        }
        let mut more = false;
        if let Some(&Phase::Open { qp }) = self.core.endpoints.get(index).map(|e| &e.phase) {
            more = self.service_qp(index, conn, qp, now, share);
        }
        let farewell = self.core.endpoints.get_mut(index).and_then(|e| e.farewell.take());
        if self.core.endpoints.get(index).is_some_and(|e| e.lender.is_some()) {
            self.take_back_abandoned(index, conn);
        }
        match farewell {
            None => self.transport.output(now, conn),
            Some(Farewell::Fin) => {
                self.transport.close(now, conn);
                self.transport.output(now, conn);
            }
            Some(Farewell::Reset) => self.transport.abort(now, conn),
        }
        more
    }

    /// Hands the endpoint's start-up octets to TCP. Returns false if there were not enough buffers.
    fn send_outbox(&mut self, index: EndpointIndex, conn: ConnId) -> bool {
        let Some(endpoint) = self.core.endpoints.get_mut(index) else { return true };
        while !endpoint.outbox.is_empty() {
            let Some(mut draft) = self.transport.draft() else { return false };
            let n = STARTUP_RECORD.min(endpoint.outbox.len());
            let Some(out) = draft.append(n) else { return false };
            out.copy_from_slice(&endpoint.outbox[..n]);
            endpoint.startup_sent(n);
            self.transport.send(conn, draft, None, 0);
        }
        true
    }

    fn service_qp(
        &mut self,
        index: EndpointIndex,
        conn: ConnId,
        qp_index: QpIndex,
        now: Time,
        share: Option<usize>,
    ) -> bool {
        let Some(qp) = self.core.qps.get_mut(qp_index) else { return false };
        let Some(stream) = &qp.stream else { return false };
        if !stream.may_send() {
            return self.wait_to_speak(index, qp_index);
        }
        let next = qp.tx.next;
        let first_words = !qp.tx.spoken && qp.tx.initiator;
        let emss = self.transport.segment(conn);
        let marked = stream.tx_markers().is_some();
        let record_max = self.transport.record_max(conn);
        let mut segments = share.map_or(TURN_SEGMENTS, |buffers| buffers.min(BRIEF_SEGMENTS));
        if let Some(octets) = self.pace.octets(now) {
            // Whole trains, because a part of a train costs both ends as much as a train.
            let train = (record_max / emss.max(1)).max(1);
            segments = segments.min((octets as usize / (train * emss).max(1)).max(1) * train);
        }
        let quantum = TURN_OCTETS.min(segments * emss);
        let mut turn = Segments {
            emss,
            marked,
            mulpdu: urnic_iwarp::mulpdu(emss, marked),
            record_max,
            first: 0,
            last: 0,
            is_even: true,
            lent: 0,
            whole_quantum: quantum,
            quantum,
            left_early: 0,
            alone: self.core.ready.is_empty(),
            now,
            conn,
            drafts: &mut self.drafts,
            spares: &mut self.spares,
            lends_from: self.transport.lends_from(),
            sum: 0,
            wants_sum: self.transport.wants_sum(),
        };
        let outcome = turn.run(qp, &self.core.table, &mut self.transport);
        turn.hand_over(&mut self.transport);
        let much = quantum - turn.quantum > BRIEF_SEGMENTS * emss;
        self.posting.began(qp.tx.next.since(next));
        let nudge = first_words && qp.tx.spoken;
        if qp.tx.closing || matches!(outcome, Turn::Fault { .. }) {
            qp.complete_sends(); // before `fail` flushes the requests or `finishes` examines the queue
        }
        let finished = outcome == Turn::Idle && qp.finishes();
        if nudge {
            self.core.set_alarm(index, now + NUDGE_AFTER, Alarm::Nudge);
        }
        if let Some(endpoint) = self.core.endpoints.get_mut(index) {
            endpoint.greedy = much || matches!(outcome, Turn::More | Turn::Starved);
        }
        match outcome {
            Turn::Idle if finished => self.core.farewell(index, Farewell::Fin),
            Turn::Idle => {}
            Turn::More => return true,
            Turn::Starved => {
                if let Some(endpoint) = self.core.endpoints.get_mut(index) {
                    endpoint.starved = true;
                }
            }
            Turn::Fault { terminate, culprit } => {
                self.core.fail(qp_index, Some(terminate), Why::WorkRequest(culprit));
                return true;
            }
            Turn::Terminated => self.core.farewell(index, Farewell::Fin),
        }
        false
    }

    /// Does what a queue pair may do that must send nothing yet: the Responder waits for a valid FPDU (MPA-70). Requests
    /// that concern only local memory need not wait. Returns true if the endpoint has more to do now.
    #[cold]
    fn wait_to_speak(&mut self, index: EndpointIndex, qp_index: QpIndex) -> bool {
        let Some(qp) = self.core.qps.get_mut(qp_index) else { return false };
        let table = &self.core.table;
        let next = (0..TURN_FPDUS)
            .map(|_| qp.next_work_request(table, &mut self.spares))
            .find(|next| *next != Next::Done);
        qp.complete_sends();
        if let Some(Next::Bad(status)) = next {
            let why = Why::WorkRequest(Some(Culprit { request: qp.tx.next, status }));
            self.core.fail(qp_index, Some(Terminate::LOCAL_CATASTROPHIC), why);
            return true;
        }
        // Before the first valid FPDU, the only answer to a fault is a FIN (MPA-92).
        if qp.tx.terminate.take().is_some() || qp.finishes() {
            self.core.farewell(index, Farewell::Fin);
        }
        matches!(next, None | Some(Next::Later))
    }

    /// Completes requests after the turn of the endpoint at `index`. Returns true if the endpoint now has a Terminate
    /// to send.
    pub(super) fn complete(&mut self, index: EndpointIndex) -> bool {
        let Some(endpoint) = self.core.endpoints.get(index) else { return false };
        let Phase::Open { qp: qp_index } = endpoint.phase else { return false };
        let lender = endpoint.lender.is_some();
        let Some(qp) = self.core.qps.get_mut(qp_index) else { return false };
        let lends = qp.tx.lent.any();
        qp.complete_sends();
        let overflowed = std::mem::take(&mut qp.tx.overflowed) && !qp.is_over();
        if overflowed {
            let terminate = Some(Terminate::STREAM_CATASTROPHIC);
            self.core.fail(qp_index, terminate, Why::CompletionQueueFull);
        }
        if lends || lender {
            self.settle_lent(index, qp_index);
        }
        overflowed
    }
}

/// Takes drafts from the transport until there are two. Returns false if the transport has no more drafts.
pub(super) fn refill<T: Transport>(drafts: &mut ArrayVec<T::Draft, 2>, transport: &mut T) -> bool {
    while !drafts.is_full() {
        let Some(draft) = transport.draft() else { return false };
        drafts.push(draft);
    }
    true
}

/// Begins the next message. If none can be begun, returns how the turn ends. `fpdus` is the number of FPDUs that the
/// turn may still send; each request that concerns only local memory counts as one FPDU.
#[inline]
fn begin<D: Data>(qp: &mut QpCore<D>, table: &Stags, spares: &mut Spares, fpdus: &mut usize) -> Option<Turn> {
    loop {
        match qp.next_message(table, spares) {
            Next::Message => return None,
            Next::Done if *fpdus <= 1 => return Some(Turn::More),
            Next::Later => return Some(Turn::More),
            Next::Done => *fpdus -= 1,
            Next::Nothing => return Some(Turn::Idle),
            Next::Refused(terminate) => return Some(Turn::Fault { terminate: *terminate, culprit: None }),
            Next::Bad(status) => {
                let culprit = Some(Culprit { request: qp.tx.next, status });
                return Some(Turn::Fault { terminate: Terminate::LOCAL_CATASTROPHIC, culprit });
            }
        }
    }
}

/// Returns how a turn ends when the memory of a message's payload is not available from octet `at` of the message on.
#[cold]
fn faulted(origin: Origin, fault: MrFault, at: u32) -> Turn {
    match origin {
        Origin::Response(request) => {
            Turn::Fault { terminate: request.terminate(access_fault(fault), at), culprit: None }
        }
        // ERR-44: no octet of the faulty FPDU was sent.
        Origin::WorkRequest { number, .. } => Turn::Fault {
            terminate: Terminate::LOCAL_CATASTROPHIC,
            culprit: Some(Culprit { request: number, status: WcStatus::LocalProtection }),
        },
        Origin::None => Turn::Idle,
    }
}

/// Builds the records of a turn. A record is a segment, or a train: several segments that the link takes as one
/// frame.
struct Segments<'a, D> {
    emss: usize,
    /// Whether FPDUs carry markers.
    marked: bool,
    /// Maximum octets of a ULPDU whose FPDU fits into a segment.
    mulpdu: usize,
    /// Maximum octets of a train.
    record_max: usize,
    /// Sizes of the first and of the last FPDU of the record under construction, in octets.
    first: usize,
    last: usize,
    /// Whether all FPDUs of the record under construction have the same size, except that the last one may be smaller.
    is_even: bool,
    /// Number of FPDUs of the record under construction whose payload is lent.
    lent: usize,
    /// Octets that the turn may send, and those that are left.
    whole_quantum: usize,
    quantum: usize,
    /// Octets that have left before the end of the turn.
    left_early: usize,
    /// Whether no other endpoint waits for a turn.
    alone: bool,
    now: Time,
    conn: ConnId,
    /// First the record under construction, then a spare, in which [`add`](Self::add) and
    /// [`add_whole`](Self::add_whole) continue if the next FPDU does not fit into the first.
    drafts: &'a mut ArrayVec<D, 2>,
    spares: &'a mut Spares,
    /// Payload of at least this many octets is lent rather than copied.
    lends_from: usize,
    sum: u16,
    wants_sum: bool,
}

impl<D: Draft> Segments<'_, D> {
    /// Sends FPDUs of `qp`'s messages until the turn is over.
    fn run<T: Transport<Draft = D>>(
        &mut self,
        qp: &mut QpCore<T::Data>,
        table: &Stags,
        transport: &mut T,
    ) -> Turn {
        let mut window = transport.room(self.conn);
        let mut fpdus = TURN_FPDUS;
        loop {
            if qp.tx.message.is_none() {
                if window > 0 && self.quantum > 0 && fpdus > 0 {
                    match self.add_whole(qp, table, transport) {
                        Whole::Added(len) => {
                            window = window.saturating_sub(len);
                            self.quantum = self.quantum.saturating_sub(len);
                            fpdus -= 1;
                            continue;
                        }
                        Whole::Other => {}
                        Whole::Nothing => return Turn::Idle,
                    }
                }
                if let Some(turn) = begin(qp, table, self.spares, &mut fpdus) {
                    return turn;
                }
            }
            if window == 0 {
                return Turn::Starved;
            }
            if self.quantum == 0 || fpdus == 0 || !self.refill(transport) {
                return Turn::More;
            }
            let len = match self.add(qp, table, transport) {
                Ok(Some(len)) => len,
                Ok(None) => continue,
                Err(turn) => return turn,
            };
            window = window.saturating_sub(len);
            self.quantum = self.quantum.saturating_sub(len);
            fpdus -= 1;
            if qp.tx.message.is_none() && qp.tx.terminate.is_some() {
                return Turn::Terminated;
            }
        }
    }

    /// Takes drafts from the transport until there are two. Returns false if the transport has no more drafts.
    #[inline]
    fn refill<T: Transport<Draft = D>>(&mut self, transport: &mut T) -> bool {
        self.drafts.is_full() || refill(self.drafts, transport)
    }

    /// Adds the next FPDU of the message under way to the record under construction, or begins a new record with this
    /// FPDU. Returns the FPDU's length on the wire; `None`: the message has no more FPDUs.
    #[inline]
    fn add<T: Transport<Draft = D>>(
        &mut self,
        qp: &mut QpCore<T::Data>,
        table: &MrTable,
        transport: &mut T,
    ) -> Result<Option<usize>, Turn> {
        let QpCore { tx, stream, shared, .. } = qp;
        let Some(message) = &mut tx.message else { return Err(Turn::Idle) };
        let Some(fpdu) = message.outgoing.next(self.mulpdu) else {
            self.spares.keep(tx.message.take());
            return Ok(None);
        };
        let markers = if self.marked { stream.as_ref().and_then(|stream| stream.tx_markers()) } else { None };
        let len = markers.map_or(fpdu.size(), |markers| markers.size(fpdu.size()));
        self.make_room(len, transport);
        let Some(draft) = self.drafts.first_mut() else { return Err(Turn::More) };
        let before = draft.len();
        let composer = Composer { fpdu: &fpdu, qp: shared, table, wants_sum: self.wants_sum };
        let mut lent = None;
        if fpdu.payload_len() >= self.lends_from
            && !self.marked
            && let Origin::WorkRequest { number, cursor } = message.origin
        {
            let company = shared.send.peek(tx.next).is_some();
            let lone_end = if company { 0 } else { self.record_max };
            lent = composer.lend(draft, transport, number, cursor, lone_end);
            if lent.is_some() {
                tx.lent.lend(number);
                self.lent += 1;
            }
        }
        let sum = match lent {
            Some(sum) => sum,
            None => {
                let Some(out) = draft.append(len) else { return Err(Turn::More) };
                match composer.write(out, &mut message.origin) {
                    Ok(sum) => match (markers, stream) {
                        (Some(markers), Some(stream)) => {
                            markers.insert(out, fpdu.size(), fpdu.crc);
                            stream.sent(fpdu.size());
                            urnic_crc::sum(out)
                        }
                        _ => sum,
                    },
                    Err(fault) => {
                        draft.truncate(before);
                        return Err(faulted(message.origin, fault, fpdu.payload.start));
                    }
                }
            }
        };
        self.added(before, len, sum);
        tx.spoken = true;
        if fpdu.last {
            self.spares.keep(tx.message.take());
        }
        Ok(Some(len))
    }

    /// Hands the record under construction to TCP if it cannot take another FPDU, of `len` octets. If the peer has
    /// hardly anything to acknowledge that is not of this turn, and no other endpoint waits, records leave at once, so
    /// that the peer takes them while the next ones are built.
    #[inline]
    fn make_room<T: Transport<Draft = D>>(&mut self, len: usize, transport: &mut T) {
        if self.lent == MAX_LENT || !self.has_room(len) {
            self.hand_over(transport);
            let built = self.whole_quantum - self.quantum;
            if self.alone
                && built - self.left_early >= EARLY_OCTETS
                && transport.unacked(self.conn) <= built as u64 + LITTLE
            {
                transport.send_early(self.now, self.conn);
                self.left_early = built;
            }
        }
    }

    /// Notes that an FPDU of `len` octets with the one's-complement sum `sum` has been added to the record under
    /// construction, which had `before` octets.
    #[inline]
    fn added(&mut self, before: usize, len: usize, sum: u16) {
        if before == 0 {
            (self.first, self.is_even) = (len, true);
        } else {
            self.is_even = self.is_even && self.last == self.first && len <= self.first;
        }
        self.last = len;
        self.sum = urnic_crc::combine(self.sum, 0, sum);
    }

    /// Returns whether the record under construction has room for an FPDU of `len` octets.
    #[inline]
    fn has_room(&self, len: usize) -> bool {
        // A segment contains only whole FPDUs, and may contain several small ones (RFC 5044 §5.1, MPA-43). A train is
        // one segment for the peer. FPDUs with markers form none, because TCP could not find their ends.
        let most = if self.marked { self.emss } else { self.record_max };
        self.drafts[0].len() + len <= most.max(len)
    }

    /// Hands the record under construction, unless it is empty, to TCP.
    fn hand_over<T: Transport<Draft = D>>(&mut self, transport: &mut T) {
        if self.drafts.first().is_some_and(|d| !d.is_empty()) {
            let draft = self.drafts.swap_remove(0);
            let unit = match self.is_even {
                _ if self.marked => 0,
                // Most short messages need no division.
                true if draft.len() <= self.emss => 0,
                // As many FPDUs as fit into a segment.
                true => ((self.emss / self.first).max(1) * self.first) as u16,
                false => UNEVEN,
            };
            transport.send(self.conn, draft, self.wants_sum.then_some(self.sum), unit);
        }
        (self.sum, self.lent) = (0, 0);
    }
}
