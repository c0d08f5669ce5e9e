//! Messages that fit into one FPDU. Such a message needs no state after its FPDU, so its header is built in the
//! transmit buffer. A [`Message`](crate::drive::engine::qp::Message) would be stored field by field and loaded again at
//! once for the FPDU, which costs about a tenth of the rate of small messages.

use super::{QpCore, Segments};
use crate::drive::engine::fpdu::Source;
use crate::drive::engine::qp::SendSide;
use crate::drive::engine::read_list;
use crate::drive::transport::{Draft, Transport};
use crate::shared::memory::{Access, MrTable};
use crate::shared::qp::QpShared;
use crate::shared::queue::{SendView, Stored};
use crate::shared::scope::Scopes;
use crate::shared::wr::SendFlags;
use urnic_iwarp::{Op, Pending, Stream, fpdu_size};

/// The outcome of [`Segments::add_whole`].
pub(super) enum Whole {
    /// The next message was added. Its FPDU has this length on the wire.
    Added(usize),
    /// The next message, if there is one, must be begun in the general way, as in [`QpCore::next_message`].
    Other,
    /// There is no message to send.
    Nothing,
}

impl<D: Draft> Segments<'_, D> {
    /// Adds the next message of `qp`, if it fits into one FPDU and nothing delays it, to the record under construction,
    /// or begins a new record with it.
    #[inline]
    pub(super) fn add_whole<T: Transport<Draft = D>>(
        &mut self,
        qp: &mut QpCore<T::Data>,
        table: &MrTable,
        transport: &mut T,
    ) -> Whole {
        let QpCore { tx, stream, shared, .. } = qp;
        let Some(stream) = stream.as_deref_mut() else { return Whole::Other };
        // A Terminate goes first, and a disconnect has a last request.
        if tx.terminate.is_some() || tx.closing || self.marked {
            return Whole::Other;
        }
        let view = shared.send.peek(tx.next);
        let answers = stream.responses_pending() > 0 && (tx.responses_turn || view.is_none());
        let added = match view {
            _ if answers => self.add_response(stream, shared.scopes, table, transport),
            Some(view) => self.add_request(tx, stream, shared, view, table, transport),
            None => return Whole::Nothing,
        };
        let Some(size) = added else { return Whole::Other };
        // If both wait, the next message is of the other kind.
        tx.responses_turn = !answers;
        tx.spoken = true;
        Whole::Added(size)
    }

    /// Adds the message of the next work request, `view`.
    #[inline]
    fn add_request<T: Transport<Draft = D>>(
        &mut self,
        tx: &mut SendSide,
        stream: &mut Stream<T::Data>,
        shared: &QpShared,
        view: SendView<'_>,
        table: &MrTable,
        transport: &mut T,
    ) -> Option<usize> {
        let entry = view.entry;
        if entry.flags.contains(SendFlags::FENCE) {
            return None;
        }
        let solicited = entry.flags.contains(SendFlags::SOLICITED);
        let len = entry.length;
        let size = match entry.op {
            Stored::Write { addr, rkey } => {
                let payload = self.payload(view, shared.scopes, table)?;
                self.put(Op::Write { stag: rkey, to: addr }, len, payload, stream, transport)
            }
            Stored::Send | Stored::SendInv(_) => {
                let invalidate = if let Stored::SendInv(stag) = entry.op { Some(stag) } else { None };
                let payload = self.payload(view, shared.scopes, table)?;
                self.put(Op::Send { solicited, invalidate }, len, payload, stream, transport)
            }
            Stored::Read { addr, rkey } => {
                // The list of a Read without sink is empty. A Read that must wait for others is not built in vain.
                let [_] = view.sges else { return None };
                if stream.reads_outstanding() >= stream.ord().into() {
                    return None;
                }
                let (sink_stag, sink_to) = read_list::sink(table, shared.scopes, tx.next, view.sges).ok()?;
                let op = Op::Read { sink_stag, sink_to, src_stag: rkey, src_to: addr };
                self.put(op, len, Source::Octets(&[]), stream, transport)
            }
            Stored::Elsewhere => None,
        }?;
        tx.next = tx.next.next();
        Some(size)
    }

    /// Returns the payload of a work request; `None` if it is long, lent rather than copied, in several pieces,
    /// or not available.
    #[inline]
    fn payload<'a>(&self, view: SendView<'a>, scopes: Scopes, table: &MrTable) -> Option<Source<'a>> {
        let len = view.entry.length;
        match (view.inline, view.sges) {
            (Some(octets), _) => Some(Source::Octets(octets)),
            (None, _) if len == 0 => Some(Source::Octets(&[])),
            (None, [only]) if (len as usize) < self.lends_from.min(self.mulpdu) => {
                let span = table.resolve(only.lkey, scopes, Access::LOCAL_READ, only.addr, len).ok()?;
                Some(Source::Memory(span.ptr, len))
            }
            (None, _) => None,
        }
    }

    /// Adds the answer to the peer's oldest request.
    #[inline(never)]
    fn add_response<T: Transport<Draft = D>>(
        &mut self,
        stream: &mut Stream<T::Data>,
        scopes: Scopes,
        table: &MrTable,
        transport: &mut T,
    ) -> Option<usize> {
        let &Pending::Read(read) = stream.first_request()? else { return None };
        let payload = match read.len {
            0 => Source::Octets(&[]),
            len if len as usize > self.mulpdu => return None,
            len => {
                let (stag, to) = (read.src_stag, read.src_to);
                Source::Memory(table.resolve(stag, scopes, Access::REMOTE_READ, to, len).ok()?.ptr, len)
            }
        };
        let size = self.put(Op::ReadResponse(read), read.len, payload, stream, transport)?;
        let _ = stream.next_response();
        Some(size)
    }

    /// Adds a message, if it fits into one FPDU and can be begun. Each operation has its own copy of this code, because
    /// an `op` that is passed on is stored and loaded again.
    #[inline(always)]
    fn put<T: Transport<Draft = D>>(
        &mut self,
        op: Op,
        len: u32,
        payload: Source<'_>,
        stream: &mut Stream<T::Data>,
        transport: &mut T,
    ) -> Option<usize> {
        let front = op.front()?;
        let ulpdu = front - 2 + payload.len();
        if ulpdu > self.mulpdu {
            return None;
        }
        if !self.refill(transport) {
            return None;
        }
        let size = fpdu_size(ulpdu as u16);
        self.make_room(size, transport);
        let draft = self.drafts.first_mut()?;
        let before = draft.len();
        let out = draft.append(size)?;
        let Ok(has_crc) = stream.begin_whole(op, len, out) else {
            draft.truncate(before);
            return None;
        };
        // SAFETY: the callers have resolved the payload in this pass, and it stays registered until the pass has ended.
        let sum = unsafe { payload.complete(out, front, has_crc, self.wants_sum) };
        self.added(before, size, sum);
        Some(size)
    }
}
