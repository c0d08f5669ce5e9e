//! The inbound half: checks and places one DDP segment, and completes its message (RFC 5041 §7, RFC 5040 §7).
//!
//! Order of the checks: length, DDP version, queue, RDMAP version and opcode, MSN, then the checks that need the user's
//! resources (receive request, STag, read queue). A malformed segment takes none of these resources. The offset and
//! length of a Send are checked only after it has taken its receive request, because the size of the request limits
//! them.

use super::aside::{Aside, Ulpdu, Waiting};
use super::assembly::Wants;
use super::outbound::Outbound;
use super::{AtomicRequest, Pending, ReadRequest};
use crate::atomic::{AtomicHeader, AtomicResult};
use crate::header::{
    ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, Control, IMMEDIATE_LEN, READ_REQUEST_LEN, ReadHeader,
    TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged, VERSION, opcode, queue,
};
use crate::terminate::TERMINATE_MAX;
use crate::{
    AccessFault, AtomicFault, Budget, Cause, Delivery, Fault, Invalidation, Octets, Sink, TaggedOp, Terminate,
};
use std::collections::VecDeque;

/// Octets at the start of a ULPDU that must lie in one piece to be parsed.
pub(super) const HEAD_MAX: usize = UNTAGGED_LEN + TERMINATE_MAX;

/// A copy of the start of a ULPDU that lies in pieces or may change.
pub(super) struct Head {
    octets: [u8; HEAD_MAX],
    len: usize,
}

impl Default for Head {
    #[inline]
    fn default() -> Self {
        Head { octets: [0; HEAD_MAX], len: 0 }
    }
}

impl Head {
    /// Copies the start of a ULPDU of `ulpdu_len` octets. `copy` fills the slice that it gets.
    ///
    /// On the hot path, fill a head where it stays. Moving it reads octets directly after they were written, in words
    /// of other sizes. The processor would wait until all earlier stores are done, and those to placed payload take
    /// long.
    #[inline]
    pub(super) fn fill(&mut self, ulpdu_len: u16, copy: impl FnOnce(&mut [u8])) {
        self.len = HEAD_MAX.min(ulpdu_len.into());
        copy(&mut self.octets[..self.len]);
    }

    #[inline]
    pub(super) fn octets(&self) -> &[u8] {
        &self.octets[..self.len]
    }
}

/// A DDP segment whose CRC is good.
pub(super) struct Segment<'a> {
    /// Start of the segment: all of it, or at least [`HEAD_MAX`] octets.
    pub(super) head: &'a [u8],
    /// ULPDU_Length.
    pub(super) len: u16,
    /// Whether the segment is in an Initiator's first FPDU, which alone may report errors of the enhanced start-up (RFC
    /// 6581 §8).
    pub(super) opens: bool,
}

impl<'a> Segment<'a> {
    /// Wraps a ULPDU that lies in one piece.
    pub(super) fn of(ulpdu: &'a [u8]) -> Self {
        Segment { head: ulpdu, len: ulpdu.len() as u16, opens: false }
    }

    /// Returns a fault whose Terminate blames this segment.
    fn fault(&self, terminate: Terminate, cause: Cause) -> Fault {
        Fault { terminate: Some(terminate.blaming(self.head, self.len)), cause }
    }

    /// Returns whether this is a complete zero-length Send and the first message of its queue.
    pub(super) fn is_empty_send(&self) -> bool {
        let (Some(&[ddp, rdmap, ..]), Some(header)) = (self.head.first_chunk::<2>(), self.head.first_chunk())
        else {
            return false;
        };
        let (control, h) = (Control::parse(ddp, rdmap), Untagged::parse(header));
        let send = !control.tagged && control.opcode == opcode::SEND && h.qn == queue::SEND;
        let versions = control.ddp_version == VERSION && control.rdmap_version == VERSION;
        send && versions && control.last && h.msn == 1 && h.mo == 0 && usize::from(self.len) == UNTAGGED_LEN
    }

    fn opcode(&self, opcode: u8) -> Fault {
        self.fault(Terminate::new(0, 2, 0x06), Cause::Opcode(opcode))
    }

    pub(super) fn untagged(&self, code: u8, cause: Cause) -> Fault {
        self.fault(Terminate::new(1, 2, code), cause)
    }

    /// Returns the `N` octets after the DDP header. The message must be a single segment with exactly `N` such octets;
    /// any other form is a [`Fault`] (ERR-39, ERR-43).
    fn only<const N: usize>(&self, control: Control, h: Untagged, cause: Cause) -> Result<&[u8; N], Fault> {
        let whole = usize::from(self.len) == UNTAGGED_LEN + N && h.mo == 0 && control.last;
        let rdma = self.head.get(UNTAGGED_LEN..).and_then(|rest| rest.first_chunk()).filter(|_| whole);
        rdma.ok_or_else(|| self.fault(Terminate::new(0, 2, 0xFF), cause))
    }
}

/// A Send that has begun to arrive.
#[derive(Clone, Copy, Debug)]
struct Message {
    opcode: u8,
    invalidate: u32,
    /// Octets that its receive request holds.
    capacity: u32,
    /// Octets placed so far, without a gap from the start of the message.
    placed: u32,
}

/// The Write that is arriving, or the Write that arrived last. Immediate Data that directly follows a Write reports the
/// length of that Write, and the receiver's program relies on all of these octets. So the length counts only octets
/// placed without a gap from the Write's first segment on. Segments elsewhere are placed (DDP-33) but not counted.
#[derive(Debug, Default)]
struct Write {
    /// Start of the Write; valid if `len` is not 0.
    stag: u32,
    to: u64,
    /// Octets placed without a gap from the start of the Write.
    len: u32,
    /// Whether the last segment of the Write has yet to arrive.
    open: bool,
    /// Whether a message of queue 0 arrived while the Write was open. If so, the Write does not directly
    /// precede the next message.
    stale: bool,
}

impl Write {
    /// Counts a segment that has been placed.
    #[inline]
    fn segment(&mut self, h: Tagged, len: u32, last: bool) {
        if !self.open {
            *self = Write { stag: h.stag, to: h.to, len, open: !last, stale: false };
            return;
        }
        self.open = !last;
        if self.len == 0 {
            (self.stag, self.to) = (h.stag, h.to);
        }
        let offset = h.to.wrapping_sub(self.to);
        if len > 0 && h.stag == self.stag && offset <= self.len.into() {
            self.len = self.len.max((offset as u32).saturating_add(len));
        }
    }

    /// Notes that a message of queue 0 has arrived. Returns the Write octets that the message reports if it is
    /// Immediate Data.
    #[inline]
    fn followed(&mut self) -> u32 {
        let len = std::mem::take(&mut self.len);
        let whole = !self.open && !self.stale;
        self.stale = self.open;
        if whole { len } else { 0 }
    }
}

/// Treatment of a message of queue 0 that finds no receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unready {
    /// The message ends the stream (ERR-22).
    Ends,
    /// The message and all later ones of the queue wait.
    Waits,
    /// The message and all later ones of the queue are discarded, because the user takes no more messages.
    Discarded,
}

/// Outcome of handling a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handled {
    /// The segment needs no further handling.
    Done,
    /// The segment was a Terminate: the stream is over.
    Terminated,
    /// The segment cannot be handled now and must be offered again. [`Wants::Receive`]: the waiting segments leave no
    /// room for it.
    Stopped(Wants),
}

/// Outcome of handling a segment of queue 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Done,
    /// The message has found no receive.
    NoReceive,
    /// The invalidation at the end of the message is not done.
    Later,
}

/// Time of arrival of a message of queue 0.
#[derive(Clone, Copy)]
enum Arrival {
    Now,
    /// The message arrived earlier and has waited. Immediate Data reports `written` octets.
    Earlier {
        written: u32,
    },
}

#[derive(Debug)]
pub(super) struct Inbound {
    /// Next MSN of queue 0, of queue 1 and of queue 3.
    pub(super) send_msn: u32,
    pub(super) request_msn: u32,
    pub(super) atomic_msn: u32,
    message: Option<Message>,
    write: Write,
    /// Requests not yet taken, oldest first; at most `ird`. Allocates nothing before the first request.
    pub(super) pending: VecDeque<Pending>,
    ird: u16,
    unready: Unready,
    /// Whether a message of queue 0 has found no receive. If so, that message and all later ones of the queue
    /// wait or are discarded.
    held: bool,
    /// The waiting messages. `Some` only while `held`.
    aside: Option<Box<Aside>>,
}

impl Inbound {
    pub(super) fn new(ird: u16) -> Self {
        Inbound {
            send_msn: 1,
            request_msn: 1,
            atomic_msn: 1,
            message: None,
            write: Write::default(),
            pending: VecDeque::new(),
            ird,
            unready: Unready::Ends,
            held: false,
            aside: None,
        }
    }

    /// Checks and places one segment. `ulpdu` may change meanwhile, so `s` alone decides. If the segment must wait,
    /// reserves room for it in `budget`.
    pub(super) fn segment<S: Sink>(
        &mut self,
        outbound: &mut Outbound,
        s: &Segment<'_>,
        sink: &mut S,
        ulpdu: &impl Ulpdu,
        budget: &Budget,
    ) -> Result<Handled, Fault> {
        let &[ddp, rdmap, ..] = s.head else { return Err(short(s)) };
        let control = Control::parse(ddp, rdmap);
        if control.tagged {
            let header = s.head.first_chunk::<TAGGED_LEN>().ok_or_else(|| short(s))?;
            self.tagged(outbound, s, control, Tagged::parse(header), sink, ulpdu)?;
            return Ok(Handled::Done);
        }
        let header = s.head.first_chunk::<UNTAGGED_LEN>().ok_or_else(|| short(s))?;
        let h = Untagged::parse(header);
        if control.ddp_version != VERSION {
            return Err(s.untagged(0x06, Cause::DdpVersion(control.ddp_version)));
        }
        if h.qn > queue::ATOMIC_RESPONSE {
            return Err(s.untagged(0x01, Cause::QueueNumber(h.qn)));
        }
        rdmap_version(s, control)?;
        match (h.qn, control.opcode) {
            (
                queue::SEND,
                opcode::SEND | opcode::SEND_INVALIDATE | opcode::SEND_SE | opcode::SEND_SE_INVALIDATE,
            ) => {
                if self.held {
                    return Ok(self.hold(s, control, ulpdu, budget));
                }
                match self.send(s, control, h, sink, ulpdu, Arrival::Now)? {
                    Taken::Done => {}
                    Taken::NoReceive => return Ok(self.hold(s, control, ulpdu, budget)),
                    Taken::Later => return Ok(Handled::Stopped(Wants::Invalidation)),
                }
            }
            (queue::SEND, opcode::IMMEDIATE | opcode::IMMEDIATE_SE) => {
                if self.held || self.immediate(s, control, h, sink, Arrival::Now)? != Taken::Done {
                    return Ok(self.hold(s, control, ulpdu, budget));
                }
            }
            (queue::REQUEST, opcode::READ_REQUEST) => self.read_request(s, control, h, *header, sink)?,
            (queue::REQUEST, opcode::ATOMIC_REQUEST) => self.atomic_request(s, control, h, *header, sink)?,
            (queue::ATOMIC_RESPONSE, opcode::ATOMIC_RESPONSE) => {
                self.atomic_response(outbound, s, control, h, sink)?;
            }
            (queue::TERMINATE, opcode::TERMINATE) => return terminate(s, control, h, sink),
            _ => return Err(s.opcode(control.opcode)),
        }
        Ok(Handled::Done)
    }

    fn tagged<S: Sink>(
        &mut self,
        outbound: &mut Outbound,
        s: &Segment<'_>,
        control: Control,
        h: Tagged,
        sink: &mut S,
        ulpdu: &impl Ulpdu,
    ) -> Result<(), Fault> {
        if control.ddp_version != VERSION {
            return Err(s.fault(Terminate::new(1, 1, 0x04), Cause::DdpVersion(control.ddp_version)));
        }
        rdmap_version(s, control)?;
        let op = match control.opcode {
            opcode::WRITE => TaggedOp::Write,
            opcode::READ_RESPONSE => TaggedOp::ReadResponse,
            other => return Err(s.opcode(other)),
        };
        let len = u32::from(s.len) - TAGGED_LEN as u32;
        if op == TaggedOp::ReadResponse {
            match_read(outbound, s, control, h, len)?;
        }
        // STag and TO of an empty segment mean nothing (DDP-32).
        if len > 0 {
            let target =
                h.to.checked_add(len.into())
                    .ok_or(AccessFault::Wrap)
                    .and_then(|_| sink.tagged(op, h.stag, h.to, len));
            match target {
                Ok(target) => ulpdu.pieces(TAGGED_LEN, |at, piece| sink.place(target, at, piece)),
                Err(fault) => {
                    let cause = Cause::Tagged { op, fault, stag: h.stag, to: h.to, len };
                    return Err(s.fault(Terminate::tagged(fault), cause));
                }
            }
        }
        if op == TaggedOp::Write {
            self.write.segment(h, len, control.last);
        } else if let Some(read) = outbound.requests.front_mut() {
            read.placed = read.placed.saturating_add(len);
            if control.last {
                let done = Delivery::ReadDone { msn: read.msn, len: read.len };
                outbound.requests.pop_front();
                sink.deliver(done);
            }
        }
        Ok(())
    }

    fn send<S: Sink>(
        &mut self,
        s: &Segment<'_>,
        control: Control,
        h: Untagged,
        sink: &mut S,
        ulpdu: &impl Ulpdu,
        arrival: Arrival,
    ) -> Result<Taken, Fault> {
        check_msn(s, h, self.send_msn)?;
        let message = match self.message {
            Some(message) if message.opcode != control.opcode => return Err(s.opcode(control.opcode)),
            Some(message) => message,
            // An empty message also takes a receive request (RDMAP-84).
            None => {
                let Some(capacity) = sink.receive_buffer() else { return self.no_receive(s) };
                let (opcode, invalidate) = (control.opcode, h.invalidate);
                let message = Message { opcode, invalidate, capacity, placed: 0 };
                *self.message.insert(message)
            }
        };
        let capacity = message.capacity;
        // A segment may overlap octets that were placed before. A gap is a fault, because the missing octets might
        // never come: the message would then report another peer's old data in the buffer as received (DDP-65).
        if h.mo > message.placed || h.mo > capacity {
            let cause = if h.mo > capacity {
                Cause::MessageOffset { mo: h.mo, capacity }
            } else {
                Cause::MessageGap { mo: h.mo, placed: message.placed }
            };
            return Err(s.untagged(0x04, cause));
        }
        let len = u32::from(s.len) - UNTAGGED_LEN as u32;
        let end = match h.mo.checked_add(len) {
            Some(end) if end <= capacity => end,
            _ => {
                let needed = u64::from(h.mo) + u64::from(len);
                return Err(s.untagged(0x05, Cause::MessageTooLong { needed, capacity }));
            }
        };
        if len > 0 {
            match sink.untagged_target(h.mo, len) {
                Ok(target) => ulpdu.pieces(UNTAGGED_LEN, |at, piece| sink.place(target, at, piece)),
                Err(_) => {
                    let terminate = Some(Terminate::STREAM_CATASTROPHIC);
                    return Err(Fault { terminate, cause: Cause::ReceiveMemory });
                }
            }
        }
        let placed = message.placed.max(end);
        let invalidates = matches!(message.opcode, opcode::SEND_INVALIDATE | opcode::SEND_SE_INVALIDATE);
        let invalidated = invalidates.then_some(message.invalidate);
        if control.last {
            if let Some(stag) = invalidated {
                match sink.invalidate(stag) {
                    Ok(Invalidation::Done) => {}
                    Ok(Invalidation::Later) => return Ok(Taken::Later),
                    Err(_) => {
                        return Err(s.fault(Terminate::new(0, 1, 0x09), Cause::CannotInvalidate(stag)));
                    }
                }
            }
            self.message = None;
            if let Arrival::Now = arrival {
                self.write.followed();
            }
            self.send_msn = self.send_msn.wrapping_add(1);
            let solicited = matches!(message.opcode, opcode::SEND_SE | opcode::SEND_SE_INVALIDATE);
            // All octets below `placed` have been placed (DDP-40, DDP-65).
            sink.deliver(Delivery::Received { len: placed, solicited, invalidated });
        } else {
            self.message = Some(Message { placed, ..message });
        }
        Ok(Taken::Done)
    }

    /// Handles Immediate Data, which takes a receive request of any size (RDMAPX-21).
    #[inline(never)]
    fn immediate<S: Sink>(
        &mut self,
        s: &Segment<'_>,
        control: Control,
        h: Untagged,
        sink: &mut S,
        arrival: Arrival,
    ) -> Result<Taken, Fault> {
        check_msn(s, h, self.send_msn)?;
        if self.message.is_some() {
            return Err(s.opcode(control.opcode));
        }
        let data = *s.only::<IMMEDIATE_LEN>(control, h, Cause::ImmediateForm)?; // RDMAPX-23
        if sink.receive_buffer().is_none() {
            return self.no_receive(s);
        }
        self.send_msn = self.send_msn.wrapping_add(1);
        let solicited = control.opcode == opcode::IMMEDIATE_SE;
        let written = match arrival {
            Arrival::Now => self.write.followed(),
            Arrival::Earlier { written } => written,
        };
        sink.deliver(Delivery::Immediate { data, solicited, written });
        Ok(Taken::Done)
    }

    /// Handles a message that has found no receive. Returns a fault if such a message ends the stream.
    #[cold]
    fn no_receive(&self, s: &Segment<'_>) -> Result<Taken, Fault> {
        match self.unready {
            Unready::Ends => Err(s.untagged(0x02, Cause::NoReceive)),
            Unready::Waits | Unready::Discarded => Ok(Taken::NoReceive),
        }
    }

    /// Adds a segment of queue 0 to the waiting ones, or discards it.
    #[cold]
    fn hold(&mut self, s: &Segment<'_>, control: Control, ulpdu: &impl Ulpdu, budget: &Budget) -> Handled {
        self.held = true;
        if self.unready == Unready::Discarded {
            return Handled::Done;
        }
        let aside = self.aside.get_or_insert_with(|| Box::new(Aside::new(budget.clone(), s)));
        if !aside.has_room(s) {
            return Handled::Stopped(Wants::Receive);
        }
        // `written` is fixed now, because later Writes may arrive while the message waits.
        let written = if control.last { self.write.followed() } else { 0 };
        aside.push(s, ulpdu, written);
        Handled::Done
    }

    /// Lets a message wait, from now on, if it finds no receive.
    pub(super) fn let_wait(&mut self) {
        self.unready = Unready::Waits;
    }

    /// Discards the waiting messages. From now on, messages that find no receive are discarded instead of waiting.
    pub(super) fn discard(&mut self) {
        if self.unready == Unready::Waits {
            self.unready = Unready::Discarded;
            self.aside = None;
        }
    }

    /// Drops the waiting messages and ends both waiting and discarding, because the stream is over.
    pub(super) fn forget_held(&mut self) {
        self.held = false;
        self.aside = None;
    }

    /// Returns whether messages wait.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.aside.is_some()
    }

    /// Returns the fault that ends a stream whose oldest message has waited too long; `None` if none waits.
    pub(super) fn overdue(&self) -> Option<Fault> {
        self.aside.as_ref().map(|aside| aside.fault())
    }

    /// Handles the waiting messages in order, until a message lacks a receive or an invalidation is not done.
    pub(super) fn take_up<S: Sink>(&mut self, sink: &mut S) -> Result<(), Fault> {
        let Some(mut aside) = self.aside.take() else { return Ok(()) };
        while let Some(Waiting { ulpdu, written }) = aside.first() {
            match self.take_up_segment(ulpdu, written, sink)? {
                Taken::Done => aside.take_first(),
                waits => {
                    if waits == Taken::NoReceive {
                        aside.first_is_unready();
                    }
                    self.aside = Some(aside);
                    return Ok(());
                }
            }
        }
        self.held = false;
        Ok(())
    }

    fn take_up_segment<S: Sink>(&mut self, ulpdu: &[u8], written: u32, sink: &mut S) -> Result<Taken, Fault> {
        let s = Segment::of(ulpdu);
        // `segment` has checked lengths, versions, queue and opcode on arrival.
        let (Some(&[ddp, rdmap, ..]), Some(header)) = (ulpdu.first_chunk::<2>(), ulpdu.first_chunk()) else {
            return Err(short(&s));
        };
        let (control, h) = (Control::parse(ddp, rdmap), Untagged::parse(header));
        let arrival = Arrival::Earlier { written };
        match control.opcode {
            opcode::IMMEDIATE | opcode::IMMEDIATE_SE => self.immediate(&s, control, h, sink, arrival),
            _ => self.send(&s, control, h, sink, &Octets::from(ulpdu), arrival),
        }
    }

    #[inline(never)]
    fn read_request<S: Sink>(
        &mut self,
        s: &Segment<'_>,
        control: Control,
        h: Untagged,
        ddp: [u8; UNTAGGED_LEN],
        sink: &mut S,
    ) -> Result<(), Fault> {
        self.request(s, h)?;
        let rdma = s.only::<READ_REQUEST_LEN>(control, h, Cause::ReadRequestForm)?;
        let r = ReadHeader::parse(rdma);
        // The source of an empty Read is not checked (RDMAP-34).
        if r.len > 0 {
            let checked = r.src_to.checked_add(r.len.into()).ok_or(AccessFault::Wrap);
            if let Err(fault) = checked.and_then(|_| sink.read_source(r.src_stag, r.src_to, r.len)) {
                let mut t = Terminate::read_source(fault).blaming(s.head, s.len);
                t.rdma = Some(*rdma);
                let cause = Cause::ReadSource { fault, stag: r.src_stag, to: r.src_to, len: r.len };
                return Err(Fault { terminate: Some(t), cause });
            }
        }
        self.request_msn = self.request_msn.wrapping_add(1);
        self.pending.push_back(Pending::Read(ReadRequest {
            sink_stag: r.sink_stag,
            sink_to: r.sink_to,
            len: r.len,
            src_stag: r.src_stag,
            src_to: r.src_to,
            ddp,
        }));
        sink.deliver(Delivery::ReadRequested);
        Ok(())
    }

    /// Checks an Atomic Request. The operation is performed later, when the response is due.
    #[inline(never)]
    fn atomic_request<S: Sink>(
        &mut self,
        s: &Segment<'_>,
        control: Control,
        h: Untagged,
        ddp: [u8; UNTAGGED_LEN],
        sink: &mut S,
    ) -> Result<(), Fault> {
        self.request(s, h)?;
        let rdma = s.only::<ATOMIC_REQUEST_LEN>(control, h, Cause::AtomicRequestForm)?;
        let AtomicHeader { id, stag, to, op } = AtomicHeader::parse(rdma)
            .map_err(|code| s.fault(Terminate::new(0, 2, 0x06), Cause::AtomicCode(code)))?;
        let checked = to.checked_add(8).ok_or(AtomicFault::Access(AccessFault::Wrap));
        checked.and_then(|_| sink.atomic_target(stag, to)).map_err(|fault| {
            s.fault(Terminate::atomic_target(fault), Cause::AtomicTarget { fault, stag, to })
        })?;
        self.request_msn = self.request_msn.wrapping_add(1);
        self.pending.push_back(Pending::Atomic(AtomicRequest { id, stag, to, op, ddp }));
        sink.deliver(Delivery::AtomicRequested);
        Ok(())
    }

    /// Checks that a Read or Atomic Request is the next one and that there is room for it (RDMAP-70, RDMAPX-15).
    fn request(&self, s: &Segment<'_>, h: Untagged) -> Result<(), Fault> {
        check_msn(s, h, self.request_msn)?;
        if self.pending.len() >= self.ird.into() {
            return Err(s.untagged(0x02, Cause::ReadLimit { ird: self.ird }));
        }
        Ok(())
    }

    /// Handles an Atomic Response, which must answer the oldest outstanding request (RDMAPX-17).
    #[inline(never)]
    fn atomic_response<S: Sink>(
        &mut self,
        outbound: &mut Outbound,
        s: &Segment<'_>,
        control: Control,
        h: Untagged,
        sink: &mut S,
    ) -> Result<(), Fault> {
        let Some(request) = outbound.requests.front().copied().filter(|r| r.atomic) else {
            return Err(s.fault(Terminate::new(0, 2, 0x06), Cause::UnexpectedAtomicResponse));
        };
        check_msn(s, h, self.atomic_msn)?;
        let mismatch = Cause::AtomicResponseMismatch;
        let result = AtomicResult::parse(s.only::<ATOMIC_RESPONSE_LEN>(control, h, mismatch)?);
        if result.id != request.msn {
            return Err(s.fault(Terminate::new(0, 2, 0xFF), mismatch));
        }
        sink.atomic_result(request.sink_stag, request.sink_to, result.original).map_err(|fault| Fault {
            terminate: Some(Terminate::STREAM_CATASTROPHIC),
            cause: Cause::AtomicSink(fault),
        })?;
        self.atomic_msn = self.atomic_msn.wrapping_add(1);
        outbound.requests.pop_front();
        sink.deliver(Delivery::AtomicDone { msn: request.msn });
        Ok(())
    }
}

/// Checks that the message is the next one of its queue (DDP-24, DDP-49).
fn check_msn(s: &Segment<'_>, h: Untagged, expected: u32) -> Result<(), Fault> {
    if h.msn != expected {
        return Err(s.untagged(0x03, Cause::Msn { qn: h.qn, expected, got: h.msn }));
    }
    Ok(())
}

/// Returns the fault of a segment without a whole header. Its Terminate can carry no header (ERR-27).
fn short(s: &Segment<'_>) -> Fault {
    Fault { terminate: Some(Terminate::new(1, 0, 0)), cause: Cause::ShortSegment(s.len) }
}

fn rdmap_version(s: &Segment<'_>, control: Control) -> Result<(), Fault> {
    if control.rdmap_version != VERSION {
        return Err(s.fault(Terminate::new(0, 2, 0x05), Cause::RdmapVersion(control.rdmap_version)));
    }
    Ok(())
}

/// Checks that a Read Response segment carries the next octets of the oldest outstanding Read (RDMAP-39, ERR-38).
fn match_read(
    outbound: &Outbound,
    s: &Segment<'_>,
    control: Control,
    h: Tagged,
    len: u32,
) -> Result<(), Fault> {
    let Some(read) = outbound.requests.front().filter(|r| !r.atomic) else {
        return Err(s.fault(Terminate::new(0, 2, 0x06), Cause::UnexpectedReadResponse));
    };
    let mismatch = |fault| Err(s.fault(Terminate::tagged(fault), Cause::ReadResponseMismatch));
    if len > 0 && h.stag != read.sink_stag {
        return mismatch(AccessFault::InvalidStag);
    }
    let left = read.len - read.placed;
    let elsewhere = len > 0 && h.to != read.sink_to.wrapping_add(read.placed.into());
    if elsewhere || len > left || control.last && len != left {
        return mismatch(AccessFault::Bounds);
    }
    Ok(())
}

fn terminate<S: Sink>(
    s: &Segment<'_>,
    control: Control,
    h: Untagged,
    sink: &mut S,
) -> Result<Handled, Fault> {
    let whole = h.msn == 1 && h.mo == 0 && control.last;
    let content = s.head.get(UNTAGGED_LEN..).filter(|_| whole);
    match content.and_then(Terminate::decode) {
        Some(t) => {
            sink.deliver(Delivery::Terminated(if s.opens { t } else { t.after_startup() }));
            Ok(Handled::Terminated)
        }
        // A Terminate, even a malformed one, must not be answered with a Terminate (ERR-47).
        None => Err(Fault { terminate: None, cause: Cause::MalformedTerminate }),
    }
}
