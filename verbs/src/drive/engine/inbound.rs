//! Receive path: turns in-order stream data into placements in registered memory and completions.

use super::endpoint::{Endpoint, Phase};
use super::names::{EndpointIndex, QpIndex};
use super::qp::{QpCore, ReceiveSide, receive_scopes};
use super::read_list;
use super::stags::Stags;
use super::teardown::Why;
use super::{Core, foresee, names};
use crate::drive::transport::{Data, Events};
use crate::shared::engines::EngineNumber;
use crate::shared::events::AsyncEvent;
use crate::shared::memory::{Access, MrFault, MrTable, Refused};
use crate::shared::qp::QpShared;
use crate::shared::queue::WrNumber;
use crate::shared::scope::Scopes;
use crate::shared::wc::{Wc, WcFlags, WcOpcode};
use crate::shared::wr::Sge;
use arrayvec::ArrayVec;
use std::net::SocketAddr;
use urnic_iwarp::{
    AccessFault, AtomicFault, CannotInvalidate, Delivery, Fault, Invalidation, Octets, ReadFault, RecvFault,
    Rest, Sink, Stream, TaggedFault, TaggedOp, Terminate, Wants,
};
use urnic_tcp::{BindId, CloseReason, ConnId};

/// A queue pair's memory and receive queue, as its RDMAP stream uses them.
struct QpSink<'a> {
    shared: &'a QpShared,
    engine: EngineNumber,
    rx: &'a mut ReceiveSide,
    /// Whether this queue pair leaves the receives of its shared queue to queue pairs that wait for them.
    yields: bool,
    table: &'a Stags,
    reads_answered: u32,
    /// Whether there may be something to send now.
    ready: bool,
    terminated: Option<Terminate>,
    overflow: bool,
    /// Whether an invalidation must wait for passes of other engines.
    later: bool,
}

/// Whether a queue pair may take receives of a shared queue although Sends of other queue pairs already wait for them.
#[derive(PartialEq, Eq)]
enum Turn {
    /// It may take receives now.
    Now,
    /// It must leave the receives to the queue pairs whose Sends wait.
    Later,
}

/// The destination of an FPDU's payload.
#[derive(Clone, Copy)]
enum Target {
    /// Contiguous memory at this address.
    Memory(*mut u8),
    /// Nowhere, because the payload has already been placed.
    Placed,
    /// The scatter list of the receive in hand, from this offset in the list on.
    Scatter(u32),
    /// The scatter list of this Read of the queue pair, from this offset in the list on.
    Listed(WrNumber, u32),
}

/// Calls `f` for each contiguous piece of the octets `[offset, offset + len)` of a scatter list, with the piece's
/// address, its length, and its offset within these octets.
#[inline]
fn pieces(
    table: &MrTable,
    sges: &[Sge],
    scopes: Scopes,
    offset: u32,
    len: u32,
    mut f: impl FnMut(*mut u8, u32, u32),
) -> Result<(), MrFault> {
    let (mut base, mut at) = (0u64, 0u32);
    for sge in sges {
        let end = base + u64::from(sge.len);
        let want = u64::from(offset) + u64::from(at);
        if at < len && want < end {
            let skip = want - base;
            let n = (end - want).min(u64::from(len - at)) as u32;
            let span =
                table.resolve(sge.lkey, scopes, Access::LOCAL_WRITE, sge.addr.wrapping_add(skip), n)?;
            f(span.ptr, n, at);
            at += n;
        }
        base = end;
    }
    if at == len { Ok(()) } else { Err(MrFault::Bounds) }
}

/// Returns the `n` octets of `src` from `from` on; `None` if some of them do not exist.
#[inline]
fn part(src: Octets<'_>, from: u32, n: u32) -> Option<Octets<'_>> {
    src.get(from as usize..from as usize + n as usize)
}

impl QpSink<'_> {
    /// Completes the receive in hand.
    fn received(&mut self, wc: Wc) {
        let Some(wr_id) = self.rx.complete(&self.shared.recv) else { return };
        let wc = Wc { wr_id, qpn: self.shared.qpn, ..wc };
        self.overflow |= self.shared.recv_cq.push(self.engine, wc).is_err();
    }

    /// Calls `f` for the [`pieces`] of the scatter list of the receive in hand.
    fn scatter(&self, offset: u32, len: u32, f: impl FnMut(*mut u8, u32, u32)) -> Result<(), MrFault> {
        let Some(view) = self.rx.oldest(&self.shared.recv) else { return Err(MrFault::InvalidStag) };
        pieces(self.table, view.sges, receive_scopes(self.shared), offset, len, f)
    }

    /// Calls `f` for the [`pieces`] of the scatter list of the queue pair's Read `number`.
    fn listed(
        &self,
        number: WrNumber,
        offset: u32,
        len: u32,
        f: impl FnMut(*mut u8, u32, u32),
    ) -> Result<(), MrFault> {
        let Some(view) = self.shared.send.peek(number) else { return Err(MrFault::InvalidStag) };
        pieces(self.table, view.sges, self.shared.scopes, offset, len, f)
    }

    /// Returns the target of `len` octets of a Read into a list. `to` is the tagged offset of the first octet. The
    /// stream has checked that these octets are next in the response to the oldest outstanding Read (RDMAP-39).
    #[inline(never)]
    fn list_target(&self, to: u64, len: u32) -> Result<Target, MrFault> {
        let (number, offset) = read_list::place(to);
        let mut whole = None;
        self.listed(number, offset, len, |ptr, n, _| whole = (n == len).then_some(ptr))?;
        Ok(whole.map_or(Target::Listed(number, offset), Target::Memory))
    }
}

impl Sink for QpSink<'_> {
    type Target = Target;

    fn tagged(&mut self, op: TaggedOp, stag: u32, to: u64, len: u32) -> Result<Target, TaggedFault> {
        // The standards leave open which right a Read's sink needs. Here it needs only local write
        // (docs/write-a-program.md).
        let need = match op {
            TaggedOp::Write => Access::REMOTE_WRITE,
            TaggedOp::ReadResponse => Access::LOCAL_WRITE,
        };
        match self.table.resolve(stag, self.shared.scopes, need, to, len) {
            Ok(span) => Ok(Target::Memory(span.ptr)),
            // The table refuses the STag of lists, because it names no memory. The list of the Read determines the
            // memory.
            Err(MrFault::InvalidStag) if op == TaggedOp::ReadResponse && stag == self.table.list() => {
                self.list_target(to, len).map_err(super::access_fault)
            }
            Err(fault) => Err(super::access_fault(fault)),
        }
    }

    fn receive_buffer(&mut self) -> Option<u32> {
        if self.yields {
            return None;
        }
        self.rx.take(&self.shared.recv)
    }

    fn untagged_target(&mut self, offset: u32, len: u32) -> Result<Target, RecvFault> {
        // The stream presents a segment a second time if the segment had to wait for its invalidation. The payload was
        // placed the first time. It must not be placed again, because the invalidation may have revoked its memory.
        if self.rx.grace.is_some() {
            return Ok(Target::Placed);
        }
        let mut whole = None;
        let checked = self.scatter(offset, len, |ptr, n, _| {
            whole = if n == len { Some(ptr) } else { None };
        });
        match (checked, whole) {
            (Err(_), _) => Err(RecvFault),
            (Ok(()), Some(ptr)) => Ok(Target::Memory(ptr)),
            (Ok(()), None) => Ok(Target::Scatter(offset)),
        }
    }

    fn place(&mut self, target: Target, at: u32, src: Octets<'_>) {
        match target {
            Target::Memory(ptr) => {
                // SAFETY: `tagged`, `untagged_target` or `atomic_result` has resolved the whole segment in this
                // pass, within the same call of the stream. If memory is revoked, it stays registered until all
                // passes that were under way at the revocation have ended. So the `src.len()` octets at offset
                // `at` from `ptr` are registered memory. `src` is a frame, a copy of its octets, a local value, or
                // another mapping of memory that a peer shares, and so at other addresses than registered memory.
                unsafe { src.place(ptr.add(at as usize)) }
            }
            Target::Placed => {}
            Target::Scatter(offset) => {
                // Another thread may have revoked some of the memory since `untagged_target`. Those octets go nowhere.
                let _ = self.scatter(offset + at, src.len() as u32, |ptr, n, from| {
                    if let Some(part) = part(src, from, n) {
                        // SAFETY: as above; `scatter` has just resolved n octets at ptr.
                        unsafe { part.place(ptr) };
                    }
                });
            }
            Target::Listed(number, offset) => {
                // As above, since `tagged`.
                let _ = self.listed(number, offset + at, src.len() as u32, |ptr, n, from| {
                    if let Some(part) = part(src, from, n) {
                        // SAFETY: as above; `listed` has just resolved n octets at ptr.
                        unsafe { part.place(ptr) };
                    }
                });
            }
        }
    }

    fn invalidate(&mut self, stag: u32) -> Result<Invalidation, CannotInvalidate> {
        let grace = match &mut self.rx.grace {
            Some(grace) => grace,
            none => match self.table.invalidate(stag, self.shared.scopes) {
                Ok(grace) if grace.is_over() => return Ok(Invalidation::Done),
                Ok(grace) => none.insert(Box::new(grace)),
                Err(Refused::Fault(_)) => return Err(CannotInvalidate),
                Err(Refused::Later) => {
                    self.later = true;
                    return Ok(Invalidation::Later);
                }
            },
        };
        if self.table.has_ended(grace) {
            self.rx.grace = None;
            return Ok(Invalidation::Done);
        }
        self.later = true;
        Ok(Invalidation::Later)
    }

    fn read_source(&mut self, stag: u32, to: u64, len: u32) -> Result<(), ReadFault> {
        let span = self.table.resolve(stag, self.shared.scopes, Access::REMOTE_READ, to, len);
        span.map(|_| ()).map_err(super::access_fault)
    }

    fn atomic_target(&mut self, stag: u32, to: u64) -> Result<(), AtomicFault> {
        super::atomic::word(self.table, self.shared, stag, to).map(|_| ())
    }

    fn atomic_result(&mut self, stag: u32, to: u64, original: u64) -> Result<(), AccessFault> {
        let span =
            self.table.resolve(stag, self.shared.scopes, Access::LOCAL_WRITE, to, size_of::<u64>() as u32);
        let ptr = span.map_err(super::access_fault)?.ptr;
        // The value is stored in the byte order of this machine, like any `u64` of the application.
        self.place(Target::Memory(ptr), 0, original.to_ne_bytes()[..].into());
        Ok(())
    }

    fn deliver(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Received { len, solicited, invalidated } => {
                let mut flags = WcFlags::empty();
                if invalidated.is_some() {
                    flags |= WcFlags::WITH_INV;
                }
                if solicited {
                    flags |= WcFlags::SOLICITED;
                }
                self.received(Wc {
                    opcode: WcOpcode::Recv,
                    byte_len: len,
                    flags,
                    invalidated_rkey: invalidated.unwrap_or(0),
                    ..Wc::default()
                });
            }
            Delivery::Immediate { data, solicited, written } => {
                let mut flags = WcFlags::WITH_IMM;
                if solicited {
                    flags |= WcFlags::SOLICITED;
                }
                self.received(Wc {
                    opcode: WcOpcode::RecvRdmaWithImm,
                    byte_len: written,
                    flags,
                    imm: u64::from_be_bytes(data),
                    ..Wc::default()
                });
            }
            Delivery::ReadDone { .. } | Delivery::AtomicDone { .. } => {
                self.reads_answered += 1;
                self.ready = true;
            }
            Delivery::ReadRequested | Delivery::AtomicRequested => self.ready = true,
            Delivery::FirstFpdu => self.ready = true,
            Delivery::Terminated(terminate) => self.terminated = Some(terminate),
        }
    }
}

impl<D: Data> Core<D> {
    /// Hands stream data to the queue pair at `qp`. Returns the data that its stream cannot take now; `None` if the
    /// stream has taken all, or if the connection is over and the data is discarded.
    fn receive_rdma(&mut self, endpoint: EndpointIndex, qp: QpIndex, data: D) -> Option<D> {
        let rest = self.hear(endpoint, qp, Turn::Later, |stream, sink| stream.receive(data, sink));
        let Rest { chunk: mut data, taken, wants } = rest?;
        match wants {
            Wants::Memory => self.wait_for_memory(endpoint),
            // `hear` has scheduled the endpoint for the next pass if an invalidation is not done.
            Wants::Receive | Wants::Invalidation => {
                if let Some(core) = self.qps.get_mut(qp) {
                    core.awaits.stopped = true;
                }
            }
        }
        data.skip(taken);
        Some(data)
    }

    /// Serves the waiting messages of the queue pair at `qp` with the available receives.
    pub(super) fn take_up_sends(&mut self, endpoint: EndpointIndex, qp: QpIndex) {
        self.hear(endpoint, qp, Turn::Now, |stream, sink| stream.take_up_sends(sink).map(|()| None));
    }

    /// Calls `receive` with the stream of the queue pair at `qp`, and handles the consequences of what the stream
    /// places and delivers. Returns the data that the stream cannot take now.
    #[inline]
    fn hear(
        &mut self,
        endpoint: EndpointIndex,
        qp: QpIndex,
        turn: Turn,
        receive: impl FnOnce(&mut Stream<D>, &mut QpSink<'_>) -> Result<Option<Rest<D>>, Box<Fault>>,
    ) -> Option<Rest<D>> {
        let core = self.qps.get_mut(qp)?;
        let QpCore { shared, engine, stream: Some(stream), tx, rx, awaits, .. } = &mut **core else {
            return None;
        };
        if tx.terminate.is_some() || shared.state().is_over() {
            return None; // after the end, arriving data is acknowledged and discarded
        }
        let mut inbound = QpSink {
            shared,
            engine: *engine,
            rx,
            yields: turn == Turn::Later && awaits.yields(&shared.recv),
            table: &self.table,
            reads_answered: 0,
            ready: false,
            terminated: None,
            overflow: false,
            later: false,
        };
        let outcome = receive(stream, &mut inbound);
        let QpSink { reads_answered, ready, terminated, overflow, later, .. } = inbound;
        let (incomplete, unready) = (stream.mid_fpdu(), stream.sends_wait());
        if reads_answered > 0 {
            let own = std::mem::take(&mut tx.rtr_read); // the RTR is not reported (MPAE-34)
            tx.reads_answered += reads_answered - u32::from(own);
            if let Some(qp) = self.qps.get_mut(qp) {
                qp.complete_sends();
            }
        }
        if ready {
            self.schedule(endpoint);
        }
        if incomplete && let Some(core) = self.qps.get_mut(qp) {
            Self::note_incomplete(core, qp, &mut self.stopped, self.now);
        }
        if unready {
            self.await_receive(endpoint, qp);
        }
        if later {
            self.note_may_continue(endpoint); // to be tried again in the next pass
        }
        match outcome {
            Err(fault) => {
                let Fault { terminate, cause } = *fault;
                self.fail(qp, terminate, Why::Fault(cause));
                None
            }
            Ok(rest) => {
                if let Some(terminate) = terminated {
                    self.terminated(qp, terminate);
                } else if overflow {
                    self.fail(qp, Some(Terminate::STREAM_CATASTROPHIC), Why::CompletionQueueFull);
                }
                rest
            }
        }
    }
}

impl<D: Data> Events<D> for Core<D> {
    fn foresee(&self, tags: &[u64]) {
        for some in tags.chunks(foresee::TURNS) {
            let indices: ArrayVec<EndpointIndex, { foresee::TURNS }> =
                some.iter().map(|tag| names::tagged(*tag).index).collect();
            self.foresee_endpoints(&indices);
        }
    }

    fn incoming(&mut self, listener: BindId, conn: ConnId, peer: SocketAddr) -> u64 {
        self.admit(listener, conn, peer)
    }

    fn connected(&mut self, _conn: ConnId, tag: u64) {
        if let Some(index) = self.endpoint_of(tag) {
            self.send_request(index);
        }
    }

    fn data(&mut self, _conn: ConnId, tag: u64, data: D) -> Option<D> {
        let index = self.endpoint_of(tag)?;
        match self.endpoints.get_mut(index)? {
            Endpoint { phase: Phase::Open { qp }, heard, .. } => {
                *heard = true;
                let qp = *qp;
                self.receive_rdma(index, qp, data)
            }
            _ => {
                let (qp, rest) = self.receive_startup(index, data)?;
                self.receive_rdma(index, qp, rest)
            }
        }
    }

    fn acked(&mut self, _conn: ConnId, tag: u64, octets: u64) {
        let Some(index) = self.endpoint_of(tag) else { return };
        let Some(endpoint) = self.endpoints.get(index) else { return };
        let starved = endpoint.starved;
        if endpoint.lender.is_some() && self.note_acked(index, octets) || starved {
            self.schedule(index);
        }
    }

    fn finished(&mut self, _conn: ConnId, tag: u64) {
        if let Some(index) = self.endpoint_of(tag) {
            self.peer_finished(index);
        }
    }

    fn closed(&mut self, _conn: ConnId, tag: u64, reason: CloseReason) {
        if let Some(index) = self.endpoint_of(tag) {
            self.connection_gone(index, reason);
        }
    }

    fn pinnable(&mut self, octets: usize) {
        self.budget.set_pinnable(octets);
        if octets == 0 {
            self.copy_out();
        }
    }

    fn link(&mut self, up: bool) {
        self.commons.events.raise(if up { AsyncEvent::PortActive } else { AsyncEvent::PortError });
    }
}
