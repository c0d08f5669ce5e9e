//! Full Operation of one connection: FPDUs in and out (RFC 5044 §4, RFC 5041, RFC 5040, RFC 7306).

mod aside;
mod assembly;
mod inbound;
mod outbound;
#[cfg(test)]
mod tests;

use crate::header::{READ_REQUEST_LEN, TAGGED_LEN, UNTAGGED_LEN};
use crate::outgoing::Front;
use crate::sabotage::{Rule, broken};
use crate::{
    AtomicFault, AtomicOp, BeginError, Budget, Cause, Chunk, Delivery, Fault, MULPDU_MAX, Markers,
    Negotiated, Octets, Outgoing, ReadFault, Role, Sink, Terminate, TerminatedHeader,
};
use aside::Ulpdu;
use assembly::{Assembly, Gathered};
pub use assembly::{IncompleteFpdu, Rest, Wants, fpdu_size};
use inbound::{Handled, Head, Inbound, Segment};
use outbound::Outbound;
use std::ops::Range;

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// RDMA Write.
    Write {
        /// The peer's STag.
        stag: u32,
        /// Tagged offset of the first octet.
        to: u64,
    },
    /// Send, optionally with Solicited Event and with Invalidate.
    Send {
        /// Send with Solicited Event.
        solicited: bool,
        /// The peer's STag to invalidate; `None` for a Send without Invalidate.
        invalidate: Option<u32>,
    },
    /// RDMA Read Request. The length given to [`Stream::begin`] is the number of octets to read.
    Read {
        /// Our STag that the data is written to.
        sink_stag: u32,
        /// Tagged offset in `sink_stag`.
        sink_to: u64,
        /// The peer's STag to read from.
        src_stag: u32,
        /// Tagged offset in `src_stag`.
        src_to: u64,
    },
    /// The response to a Read Request of the peer. Its length is [`ReadRequest::len`].
    ReadResponse(ReadRequest),
    /// Immediate Data, optionally with Solicited Event. It has no other payload.
    Immediate {
        /// The eight octets.
        data: [u8; 8],
        /// Immediate Data with Solicited Event.
        solicited: bool,
    },
    /// Atomic Request.
    Atomic {
        /// Our STag that receives the eight octets of the result.
        sink_stag: u32,
        /// Tagged offset in `sink_stag`.
        sink_to: u64,
        /// The peer's STag.
        stag: u32,
        /// Tagged offset in `stag`. The peer's address at this offset must be a multiple of 8 (RDMAPX-30).
        to: u64,
        /// The operation.
        op: AtomicOp,
    },
    /// The response to an Atomic Request of the peer.
    AtomicResponse {
        /// [`AtomicRequest::id`].
        id: u32,
        /// Value in memory before the operation.
        original: u64,
    },
    /// The last message of the stream.
    Terminate(Terminate),
}

impl Op {
    /// Returns the number of octets before the payload of the message's first FPDU; `None` for the kinds of messages
    /// that [`Stream::begin_whole`] does not build.
    #[inline]
    pub fn front(&self) -> Option<usize> {
        match self {
            Op::Write { .. } | Op::ReadResponse(_) => Some(2 + TAGGED_LEN),
            Op::Send { .. } => Some(2 + UNTAGGED_LEN),
            Op::Read { .. } => Some(2 + UNTAGGED_LEN + READ_REQUEST_LEN),
            Op::Immediate { .. } | Op::Atomic { .. } | Op::AtomicResponse { .. } | Op::Terminate(_) => None,
        }
    }
}

/// A request of the peer that waits for its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// RDMA Read.
    Read(ReadRequest),
    /// Atomic. Perform it now and not earlier: only now have the responses to all earlier requests begun (RDMAPX-13,
    /// RDMAPX-25).
    Atomic(AtomicRequest),
}

/// An Atomic Request of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// Request Identifier that the peer chose.
    pub id: u32,
    /// Our STag that the request names.
    pub stag: u32,
    /// Tagged offset in `stag`.
    pub to: u64,
    /// The operation.
    pub op: AtomicOp,
    /// DDP header as received, for a Terminate.
    ddp: [u8; crate::header::UNTAGGED_LEN],
}

impl AtomicRequest {
    /// Returns the Terminate to send if the memory can no longer be used. It has no RDMA header (RDMAPX-26).
    pub fn terminate(&self, fault: AtomicFault) -> Terminate {
        Terminate {
            segment_len: Some((self.ddp.len() + crate::header::ATOMIC_REQUEST_LEN) as u16),
            ddp: Some(TerminatedHeader::Untagged(self.ddp)),
            ..Terminate::atomic_target(fault)
        }
    }
}

/// A Read Request of the peer that we must serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The peer's STag that the data is written to. We must not interpret it (RDMAP-14).
    pub sink_stag: u32,
    /// Tagged offset in `sink_stag`.
    pub sink_to: u64,
    /// Octets wanted.
    pub len: u32,
    /// Our STag to read from. Do not look at it when `len` is 0 (RDMAP-34).
    pub src_stag: u32,
    /// Tagged offset in `src_stag`.
    pub src_to: u64,
    /// DDP header as received, for a Terminate.
    ddp: [u8; crate::header::UNTAGGED_LEN],
}

impl ReadRequest {
    /// Returns the Terminate to send if the source can no longer be read after `done` octets of the response
    /// (RDMAP-21).
    pub fn terminate(&self, fault: ReadFault, done: u32) -> Terminate {
        let rest = crate::header::ReadHeader {
            sink_stag: self.sink_stag,
            sink_to: self.sink_to.wrapping_add(done.into()),
            len: self.len.saturating_sub(done),
            src_stag: self.src_stag,
            src_to: self.src_to.wrapping_add(done.into()),
        };
        Terminate {
            segment_len: Some((self.ddp.len() + crate::header::READ_REQUEST_LEN) as u16),
            ddp: Some(TerminatedHeader::Untagged(self.ddp)),
            rdma: Some(rest.octets()),
            ..Terminate::read_source(fault)
        }
    }
}

/// One stream in Full Operation.
///
/// Pass inbound octets to [`Stream::receive`]. Start each outbound message with [`Stream::begin`], which assigns its
/// sequence number. Finish the [`Outgoing`] of one message before the next one begins.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Stream<C> {
    rdmap: Rdmap,
    /// Marker positions in the next FPDU to receive, and in the next one to send.
    rx_markers: Markers,
    tx_markers: Markers,
    /// Whether the inbound half has ended, by a fault, by a Terminate or by [`Stream::stop_listening`].
    inbound_ended: bool,
    assembly: Assembly<C>,
}

impl<C: Chunk> Stream<C> {
    /// Enters Full Operation with the result of the start-up. All streams of an engine share one `budget`.
    pub fn new(negotiated: &Negotiated, budget: Budget) -> Self {
        let rdmap = Rdmap {
            inbound: Inbound::new(negotiated.ird),
            outbound: Outbound::new(negotiated.ord, negotiated.crc),
            crc: negotiated.crc,
            role: negotiated.role,
            heard: false,
            rtr_send: negotiated.role == Role::Responder
                && negotiated.peer_to_peer.is_some_and(|kinds| kinds.send),
        };
        let markers = |wanted| if wanted { Markers::START } else { Markers::NONE };
        Stream {
            assembly: Assembly::new(budget),
            rdmap,
            rx_markers: markers(negotiated.rx_markers),
            tx_markers: markers(negotiated.tx_markers),
            inbound_ended: false,
        }
    }

    /// Takes the next octets of the stream, split in any way (MPA-44). Until an incomplete FPDU is whole, the stream
    /// keeps its chunks or copies their octets.
    ///
    /// Returns `None` if no octets of the chunk are left; otherwise the stream has stopped before an FPDU that it
    /// cannot handle now. [`Rest::wants`] tells what is missing: room in the [`Budget`] for an incomplete FPDU, room
    /// for one more message that waits for a receive, or the end of an invalidation. When it is no longer missing,
    /// offer the rest of the chunk again, before any other chunk.
    ///
    /// Returns a [`Fault`] at most once. Octets that arrive after a fault or after a Terminate are ignored (DDP-54).
    pub fn receive<S: Sink>(&mut self, chunk: C, sink: &mut S) -> Result<Option<Rest<C>>, Box<Fault>> {
        if self.inbound_ended {
            return Ok(None);
        }
        match self.take(chunk, sink) {
            Ok(rest) => Ok(rest),
            Err(fault) => {
                self.stop_listening();
                // Boxed because a large result would slow down every chunk without a fault.
                Err(Box::new(fault))
            }
        }
    }

    /// Handles a Terminate of the peer.
    #[cold]
    fn handle_terminate(&mut self) -> Option<Rest<C>> {
        self.stop_listening();
        None
    }

    /// Lets a message of queue 0 wait, from now on, if no receive is posted for it. At most 64 KiB of such messages
    /// wait, within the [`Budget`]; all other traffic is served meanwhile. Without this call, such a message is a
    /// [`Fault`] (ERR-22). When the caller posts a receive while [`Self::sends_wait`], it must call
    /// [`Self::take_up_sends`].
    pub fn let_sends_wait(&mut self) {
        self.rdmap.inbound.let_wait();
    }

    /// Returns whether messages wait for receives.
    #[inline]
    pub fn sends_wait(&self) -> bool {
        self.rdmap.inbound.waits()
    }

    /// Handles the waiting messages in order, until a message lacks a receive or an invalidation is not done.
    /// Call this when receives were posted or an invalidation is done. A fault has the same effect as a fault
    /// that [`Self::receive`] returns.
    pub fn take_up_sends<S: Sink>(&mut self, sink: &mut S) -> Result<(), Box<Fault>> {
        if self.inbound_ended {
            return Ok(());
        }
        self.rdmap.inbound.take_up(sink).map_err(|fault| {
            self.stop_listening();
            Box::new(fault)
        })
    }

    /// Discards the waiting messages and all later ones of queue 0, because the user takes no more messages. If none
    /// waits, discarding begins with the next message that finds no receive. All other traffic is served as before.
    /// Does nothing without [`Self::let_sends_wait`].
    pub fn discard_sends(&mut self) {
        self.rdmap.inbound.discard();
    }

    /// Returns the fault that ends a stream whose oldest waiting message has waited too long; `None` if no
    /// message waits. The caller measures the time, because the stream has no clock.
    pub fn receive_missing(&self) -> Option<Fault> {
        self.rdmap.inbound.overdue()
    }

    fn take<S: Sink>(&mut self, mut chunk: C, sink: &mut S) -> Result<Option<Rest<C>>, Fault> {
        if self.rx_markers.any() {
            return self.take_marked(chunk, sink);
        }
        let mut at = 0;
        if !self.assembly.is_empty() {
            match self.take_spread(&mut chunk, 0, sink)? {
                Step::Taken(end) => at = end,
                stopped => return Ok(self.stop(stopped, chunk, 0)),
            }
        }
        let mut copy = Head::default();
        loop {
            let mut rest = chunk.piece(at);
            while let Some((fpdu, ulpdu_len)) = assembly::whole(rest) {
                let (size, is_own) = (fpdu.len(), fpdu.own().is_some());
                assembly::foresee(rest, size);
                let ulpdu = 2..2 + usize::from(ulpdu_len);
                let head = match fpdu.own() {
                    Some(own) => own.get(ulpdu).unwrap_or_default(),
                    None => {
                        copy.fill(ulpdu_len, |head| {
                            fpdu.get(ulpdu).map(|ulpdu| ulpdu.copy_to(head));
                        });
                        copy.octets()
                    }
                };
                match self.rdmap.whole(fpdu, head, ulpdu_len, sink, self.assembly.budget())? {
                    Handled::Done => at += size,
                    Handled::Terminated => return Ok(self.handle_terminate()),
                    Handled::Stopped(wants) => {
                        if !is_own && wants == Wants::Invalidation {
                            let head = head.to_vec();
                            self.keep_stopped(&mut chunk, at..at + size, ulpdu_len, &head)?;
                        }
                        return Ok(Some(Rest { chunk, taken: at, wants }));
                    }
                }
                let Some(after) = rest.get(size..rest.len()) else { break };
                rest = after;
            }
            let left = chunk.len().saturating_sub(at);
            if left == 0 {
                return Ok(None);
            }
            // The FPDU may continue in the next piece. If it is incomplete, only octets that cannot change show it.
            if rest.len() == left && !chunk.is_shared() {
                return Ok(self.assembly.keep(chunk, at, Markers::NONE));
            }
            match self.take_spread(&mut chunk, at, sink)? {
                Step::Taken(end) => at = end,
                stopped => return Ok(self.stop(stopped, chunk, at)),
            }
        }
    }

    /// Does the work of `take` for a stream with markers, where an FPDU with a marker in it never lies in one piece.
    fn take_marked<S: Sink>(&mut self, mut chunk: C, sink: &mut S) -> Result<Option<Rest<C>>, Fault> {
        if chunk.is_shared() {
            chunk.keep();
        }
        let mut at = 0;
        loop {
            match self.take_spread(&mut chunk, at, sink)? {
                Step::Taken(end) => at = end,
                Step::Incomplete if at >= chunk.len() => return Ok(None),
                stopped => return Ok(self.stop(stopped, chunk, at)),
            }
        }
    }

    /// Takes one FPDU that ends in `chunk`: the octets of the assembly, followed by those of the chunk from `at` on.
    /// Its octets may lie in several pieces and have markers between them. If the FPDU is incomplete, the chunk is not
    /// shared afterwards.
    #[inline(never)]
    fn take_spread<S: Sink>(&mut self, chunk: &mut C, at: usize, sink: &mut S) -> Result<Step, Fault> {
        let markers = self.rx_markers;
        let (end, ulpdu_len) = loop {
            match self.assembly.completed_by(chunk, at, markers) {
                Some(completed) => break completed,
                // The length may have changed until the chunk is kept, so it is read again.
                None if chunk.is_shared() => chunk.keep(),
                None => return Ok(Step::Incomplete),
            }
        };
        let fpdu = self.assembly.gathered(chunk, at..end, markers);
        let mut head = Head::default();
        fpdu.copy_head(ulpdu_len, &mut head);
        match self.rdmap.spread(&fpdu, head.octets(), ulpdu_len, sink, self.assembly.budget())? {
            Handled::Done => {
                self.assembly.clear();
                self.rx_markers = markers.after(assembly::fpdu_size(ulpdu_len));
                Ok(Step::Taken(end))
            }
            Handled::Terminated => Ok(Step::Ended),
            Handled::Stopped(wants) => {
                if wants == Wants::Invalidation && chunk.is_shared() {
                    self.keep_stopped(chunk, at..end, ulpdu_len, head.octets())?;
                }
                Ok(Step::Stopped(wants))
            }
        }
    }

    /// Ends a call of `take` at octet `at` of `chunk`, and returns its result.
    fn stop(&mut self, step: Step, chunk: C, at: usize) -> Option<Rest<C>> {
        match step {
            Step::Stopped(wants) => Some(Rest { chunk, taken: at, wants }),
            Step::Incomplete => self.assembly.keep(chunk, at, self.rx_markers),
            Step::Ended => self.handle_terminate(),
            Step::Taken(_) => None,
        }
    }

    /// Keeps a shared chunk whose FPDU in `range` will be offered again, and checks that the FPDU still begins with the
    /// octets that have been handled. The sink remembers that it has placed the segment, so the same segment must come
    /// again. A change is an error of the sender, as a wrong CRC is.
    #[cold]
    fn keep_stopped(
        &self,
        chunk: &mut C,
        range: Range<usize>,
        ulpdu_len: u16,
        head: &[u8],
    ) -> Result<(), Fault> {
        chunk.keep();
        let fpdu = self.assembly.gathered(chunk, range, self.rx_markers);
        let mut kept = Head::default();
        fpdu.copy_head(ulpdu_len, &mut kept);
        if fpdu.ulpdu_len() == Some(ulpdu_len) && kept.octets() == head {
            Ok(())
        } else {
            Err(self.rdmap.crc_fault())
        }
    }

    /// Returns the marker positions in the next FPDU to send; `None` if the peer did not ask for markers (MPA-19,
    /// MPA-27). The caller inserts the markers and then calls [`Stream::sent`].
    #[inline]
    pub fn tx_markers(&self) -> Option<Markers> {
        self.tx_markers.any().then_some(self.tx_markers)
    }

    /// Moves the marker positions past an FPDU that has been sent with its markers. `plain` is its
    /// [`crate::Fpdu::size`].
    pub fn sent(&mut self, plain: usize) {
        self.tx_markers = self.tx_markers.after(plain);
    }

    /// Returns whether FPDUs may be sent. A Responder must first receive a valid FPDU of the Initiator (MPA-70).
    pub fn may_send(&self) -> bool {
        self.rdmap.may_send()
    }

    /// Starts a message. `len` is its payload in octets for [`Op::Write`] and [`Op::Send`], and the octets to read
    /// for [`Op::Read`]. Other messages have lengths of their own and ignore `len`.
    ///
    /// An error changes nothing. See [`BeginError`] for when to try again.
    #[inline]
    pub fn begin(&mut self, op: Op, len: u32) -> Result<Outgoing, BeginError> {
        let mut message = Outgoing::default();
        self.begin_in(op, len, &mut message).map(|()| message)
    }

    /// Starts a message like [`begin`](Self::begin), but builds it in place. This is faster where many messages
    /// are begun.
    #[inline]
    pub fn begin_in(&mut self, op: Op, len: u32, into: &mut Outgoing) -> Result<(), BeginError> {
        if !self.may_send() {
            return Err(BeginError::NotYet);
        }
        if self.inbound_ended && !matches!(op, Op::Terminate(_)) {
            return Err(BeginError::Ended);
        }
        self.rdmap.outbound.begin(op, len, into)
    }

    /// Starts a message like [`begin`](Self::begin) that is one FPDU, and writes the octets before the payload to
    /// `fpdu`, which must have the [size](fpdu_size) of that FPDU. The caller writes the rest: payload, pad, CRC field.
    /// Returns whether that field holds a CRC32C over everything before it (otherwise it is zero, MPA-15).
    #[inline]
    pub fn begin_whole(&mut self, op: Op, len: u32, fpdu: &mut [u8]) -> Result<bool, BeginError> {
        if !self.may_send() {
            return Err(BeginError::NotYet);
        }
        if self.inbound_ended {
            return Err(BeginError::Ended);
        }
        let payload = match op {
            Op::Read { .. } => 0,
            Op::ReadResponse(request) => request.len,
            _ => len,
        };
        let ulpdu = op.front().map(|front| front - 2 + payload as usize);
        if !ulpdu.is_some_and(|ulpdu| ulpdu <= MULPDU_MAX && fpdu.len() == fpdu_size(ulpdu as u16)) {
            return Err(BeginError::NotWhole);
        }
        self.rdmap.outbound.begin(op, len, &mut Front(fpdu))?;
        Ok(self.rdmap.outbound.crc)
    }

    /// Returns the number of our Reads and Atomics that are not complete.
    pub fn reads_outstanding(&self) -> usize {
        self.rdmap.outbound.requests.len()
    }

    /// Returns how many of our Reads and Atomics may be outstanding at once.
    pub fn ord(&self) -> u16 {
        self.rdmap.outbound.ord
    }

    /// Takes the oldest request of the peer; `None` if no request waits. Respond in this order (RDMAP-65, RDMAPX-13).
    pub fn next_response(&mut self) -> Option<Pending> {
        self.rdmap.inbound.pending.pop_front()
    }

    /// Returns the request that [`Stream::next_response`] would take.
    #[inline]
    pub fn first_request(&self) -> Option<&Pending> {
        self.rdmap.inbound.pending.front()
    }

    /// Returns how many requests of the peer wait for [`Stream::next_response`].
    pub fn responses_pending(&self) -> usize {
        self.rdmap.inbound.pending.len()
    }

    /// Returns whether octets of an incomplete FPDU are kept. A FIN would now cut that FPDU short.
    pub fn mid_fpdu(&self) -> bool {
        !self.assembly.is_empty()
    }

    /// Returns the incomplete FPDU; `None` if there is none.
    pub fn incomplete(&self) -> Option<IncompleteFpdu> {
        self.assembly.incomplete()
    }

    /// Returns whether chunks are held.
    #[inline]
    pub fn holds_chunks(&self) -> bool {
        self.assembly.holds_chunks()
    }

    /// Copies the octets of the held chunks and releases the chunks. Call this when receive buffers are scarce.
    pub fn copy_out(&mut self) {
        self.assembly.stage();
    }

    /// Ends the inbound half. Octets that arrive from now on are ignored; an incomplete FPDU and waiting messages are
    /// dropped.
    pub fn stop_listening(&mut self) {
        self.inbound_ended = true;
        self.assembly.clear();
        self.rdmap.inbound.forget_held();
    }

    /// Returns whether the inbound half has ended: by a fault, by the peer's Terminate or by
    /// [`Self::stop_listening`].
    pub fn ended(&self) -> bool {
        self.inbound_ended
    }
}

/// Outcome of taking one FPDU that may lie in pieces.
enum Step {
    /// The FPDU needs no further handling. It ends at this octet of the chunk.
    Taken(usize),
    /// The FPDU was a Terminate.
    Ended,
    /// The FPDU must be offered again.
    Stopped(Wants),
    /// The FPDU is incomplete.
    Incomplete,
}

/// The ULPDU of an FPDU that lies in pieces.
struct Spread<'a, C> {
    fpdu: &'a Gathered<'a, C>,
    ulpdu_len: usize,
}

impl<C: Chunk> Ulpdu for Spread<'_, C> {
    fn pieces(&self, from: usize, mut f: impl FnMut(u32, Octets<'_>)) {
        self.fpdu.pieces(2 + from..2 + self.ulpdu_len, |at, piece| f(at as u32, piece));
    }
}

/// The DDP and RDMAP state of both halves. It is separate from the assembly, because an FPDU that is being handled
/// borrows its octets from the assembly.
#[derive(Debug)]
#[repr(C)]
struct Rdmap {
    outbound: Outbound,
    crc: bool,
    role: Role,
    /// Whether a valid FPDU has arrived.
    heard: bool,
    /// Whether a zero-length Send in the first FPDU is an RTR indication, not a message of the peer's user.
    rtr_send: bool,
    inbound: Inbound,
}

impl Rdmap {
    /// Returns whether FPDUs may be sent (MPA-70).
    fn may_send(&self) -> bool {
        self.heard || self.role == Role::Initiator
    }

    /// Handles an FPDU that lies in one piece. `head` is its ULPDU, or a copy of the ULPDU's start if the octets may
    /// change. All streams share `budget`.
    fn whole<S: Sink>(
        &mut self,
        fpdu: Octets<'_>,
        head: &[u8],
        ulpdu_len: u16,
        sink: &mut S,
        budget: &Budget,
    ) -> Result<Handled, Fault> {
        let end = fpdu.len().saturating_sub(4);
        let field = fpdu.get(end..fpdu.len()).and_then(Octets::first_chunk);
        let (Some(covered), Some(field), Some(ulpdu)) =
            (fpdu.get(0..end), field, fpdu.get(2..2 + usize::from(ulpdu_len)))
        else {
            return Ok(Handled::Done);
        };
        let segment = Segment { head, len: ulpdu_len, opens: !self.may_send() };
        if broken(Rule::PlaceBeforeCrc) {
            self.inbound.segment(&mut self.outbound, &segment, sink, &ulpdu, budget)?;
        }
        self.check_crc(field, || covered.crc32c(urnic_crc::INIT))?;
        if !self.heard && self.first(&segment, sink) {
            return Ok(Handled::Done);
        }
        if broken(Rule::PlaceBeforeCrc) {
            return Ok(Handled::Done);
        }
        self.inbound.segment(&mut self.outbound, &segment, sink, &ulpdu, budget)
    }

    /// Handles an FPDU whose octets lie in several pieces or have markers between them. `head` is a copy of the start
    /// of its ULPDU.
    fn spread<C: Chunk, S: Sink>(
        &mut self,
        fpdu: &Gathered<'_, C>,
        head: &[u8],
        ulpdu_len: u16,
        sink: &mut S,
        budget: &Budget,
    ) -> Result<Handled, Fault> {
        let covered = fpdu.len().saturating_sub(4);
        let mut crc = [0; 4];
        fpdu.copy_wire(covered, &mut crc);
        self.check_crc(crc, || {
            let mut state = urnic_crc::INIT;
            fpdu.wire(0..covered, |_, piece| state = piece.crc32c(state));
            state
        })?;
        self.check_markers(fpdu, ulpdu_len)?;
        let segment = Segment { head, len: ulpdu_len, opens: !self.may_send() };
        if !self.heard && self.first(&segment, sink) {
            return Ok(Handled::Done);
        }
        let ulpdu = Spread { fpdu, ulpdu_len: ulpdu_len.into() };
        self.inbound.segment(&mut self.outbound, &segment, sink, &ulpdu, budget)
    }

    /// Checks that every marker points at the FPDU around it (MPA-80). Ignores the reserved bits of a marker and the
    /// low two bits of FPDUPTR (MPA-17, MPA-18).
    fn check_markers<C: Chunk>(&self, fpdu: &Gathered<'_, C>, ulpdu_len: u16) -> Result<(), Fault> {
        for at in fpdu.markers.places(assembly::fpdu_size(ulpdu_len)) {
            let mut marker = [0; 4];
            fpdu.copy_wire(at, &mut marker);
            let [_, _, high, low] = marker;
            let (expected, got) = (fpdu.markers.pointer(at), u16::from_be_bytes([high, low & !3]));
            if got != expected {
                let terminate = self.may_send().then_some(Terminate::MARKER);
                return Err(Fault { terminate, cause: Cause::Marker { expected, got } });
            }
        }
        Ok(())
    }

    /// Verifies the CRC, unless both ends declined CRCs (MPA-16, MPA-34).
    #[inline]
    fn check_crc(&self, received: [u8; 4], register: impl FnOnce() -> u32) -> Result<(), Fault> {
        if self.crc && urnic_crc::finish(register()) != u32::from_le_bytes(received) {
            return Err(self.crc_fault());
        }
        Ok(())
    }

    #[cold]
    fn crc_fault(&self) -> Fault {
        // A Responder that has validated no FPDU may send none, not even a Terminate (MPA-92).
        let terminate = self.may_send().then_some(Terminate::CRC);
        Fault { terminate, cause: Cause::Crc }
    }

    /// Delivers [`Delivery::FirstFpdu`]. Returns `true` if the FPDU is a zero-length Send that is the RTR indication.
    /// This Send uses the first MSN of its queue, but takes no receive request and completes nothing (MPAE-32,
    /// MPAE-34), because users of the peer-to-peer model post no receive for it.
    #[cold]
    fn first<S: Sink>(&mut self, segment: &Segment<'_>, sink: &mut S) -> bool {
        self.heard = true;
        sink.deliver(Delivery::FirstFpdu);
        let is_rtr = self.rtr_send && segment.is_empty_send();
        if is_rtr {
            self.inbound.send_msn = self.inbound.send_msn.wrapping_add(1);
        }
        is_rtr
    }
}
