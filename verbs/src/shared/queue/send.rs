//! The send queue of a queue pair.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::OnceLock;

use super::ring::CacheLine;
use super::{Entry, OrderedRing, Room, WrNumber, elements};
use crate::shared::doorbell::Bell;
use crate::shared::error::PostError;
use crate::shared::memory::Regions;
use crate::shared::prefetch::prefetch_for_writing;
use crate::shared::sync::{SpinGuard, SpinLock};
use crate::shared::wc::WcOpcode;
use crate::shared::wr::{SendFlags, SendOp, SendWr, Sge};

/// A posted send request. The scatter-gather list is elsewhere if it has several elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendEntry {
    pub(crate) wr_id: u64,
    pub(crate) op: Stored,
    pub(crate) flags: SendFlags,
    pub(crate) num_sge: u8,
    /// Message length in bytes.
    pub(crate) length: u32,
    /// The scatter-gather list, if it has only one element.
    only: [Sge; 1],
}

impl Entry for SendEntry {
    /// Each request takes a cache line of its own. Packing requests would save little: with many queue pairs, the
    /// engine seldom reads several requests of one queue pair in a row.
    type Align = CacheLine;
}

/// The requests of a send queue.
pub(crate) type SendRing = OrderedRing<SendEntry>;

/// The operation of a request, as its slot holds it. Only frequent and small operations are in the slot itself, so
/// that slots stay small.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stored {
    Send,
    SendInv(u32),
    Write { addr: u64, rkey: u32 },
    Read { addr: u64, rkey: u32 },
    Elsewhere,
}

/// A posted request, as the engine sees it.
#[derive(Clone, Copy)]
pub(crate) struct SendView<'a> {
    pub(crate) entry: &'a SendEntry,
    queue: &'a SendQueue,
    slot: usize,
    pub(crate) sges: &'a [Sge],
    /// The payload itself if it was posted inline; otherwise `None`.
    pub(crate) inline: Option<&'a [u8]>,
}

impl SendView<'_> {
    /// Returns the opcode of the request's completion.
    #[inline]
    pub(crate) fn completes_as(&self) -> WcOpcode {
        match self.entry.op {
            Stored::Send | Stored::SendInv(_) => WcOpcode::Send,
            Stored::Write { .. } => WcOpcode::Write,
            Stored::Read { .. } => WcOpcode::Read,
            Stored::Elsewhere => self.op().completes_as(),
        }
    }

    /// Returns whether the request is complete only when the peer has answered.
    #[inline]
    pub(crate) fn is_answered(&self) -> bool {
        match self.entry.op {
            Stored::Send | Stored::SendInv(_) | Stored::Write { .. } => false,
            Stored::Read { .. } => true,
            Stored::Elsewhere => self.op().is_answered(),
        }
    }

    /// Returns the operation.
    #[inline]
    pub(crate) fn op(&self) -> SendOp {
        match self.entry.op {
            Stored::Send => SendOp::Send,
            Stored::SendInv(stag) => SendOp::SendInv(stag),
            Stored::Write { addr, rkey } => SendOp::Write { addr, rkey },
            Stored::Read { addr, rkey } => SendOp::Read { addr, rkey },
            // SAFETY: the slot is published: the producer wrote the slot's operation, and leaves it alone until the
            // engine releases the slot.
            Stored::Elsewhere => unsafe { *self.queue.elsewhere_at(self.slot) },
        }
    }
}

/// The source of a request's payload when it is posted.
#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    /// The request's scatter-gather list, in these regions of the protection domain. The payload of an inline request
    /// is gathered from them.
    Listed(&'a Regions),
    /// These bytes, which are copied.
    Bytes(&'a [u8]),
}

/// The state of a send queue's posters.
struct Tail {
    /// Number of the next request.
    next: u32,
    room: Room,
}

/// Carries send requests from the application (one thread at a time, under `tail`) to the engine (under the engine
/// lock).
///
/// The fields before `tail` are in the first cache line of [`QpShared`](crate::shared::qp::QpShared), which the engine
/// reads. A poster on another core writes the next line, and the engine when it answers the bell.
#[repr(C)]
pub(crate) struct SendQueue {
    ring: SendRing,
    max_sge: u8,
    max_inline: u32,
    tail: SpinLock<Tail>,
    /// Rings for requests, and for receives that the engine must see at once.
    pub(crate) bell: Bell,
    /// `max_sge` elements for each slot, for lists of several elements. Empty if `max_sge` is less than 2. The
    /// elements belong to the owner of the slot.
    sges: Box<[UnsafeCell<Sge>]>,
    /// `max_inline` bytes for each slot. Allocated by the first inline request.
    inline: OnceLock<Box<[UnsafeCell<u8>]>>,
    /// For each slot, the operation that does not fit into it. Allocated by the first such request.
    elsewhere: OnceLock<Box<[UnsafeCell<SendOp>]>>,
}

// SAFETY: a slot's list, inline bytes and operation have the same owner as the ring's slot.
unsafe impl Sync for SendQueue {}

impl SendQueue {
    /// Offset of the first field that posters write.
    #[cfg(test)]
    pub(crate) const WRITTEN_BY_POSTERS: usize = std::mem::offset_of!(Self, tail);
    /// End of the fields that posters write with each request.
    #[cfg(test)]
    pub(crate) const END_OF_WRITTEN: usize = std::mem::offset_of!(Self, bell) + size_of::<Bell>();

    /// Makes a queue of a new ring.
    pub(crate) fn new(ring: SendRing, max_sge: u8, max_inline: u32) -> Self {
        let sges = elements(ring.capacity(), max_sge);
        let tail = Tail { next: 0, room: ring.room() };
        Self {
            ring,
            max_sge,
            max_inline,
            tail: SpinLock::new(tail),
            bell: Bell::default(),
            sges,
            inline: OnceLock::new(),
            elsewhere: OnceLock::new(),
        }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    pub(crate) fn max_sge(&self) -> u8 {
        self.max_sge
    }

    pub(crate) fn max_inline(&self) -> u32 {
        self.max_inline
    }

    /// Application: prefetches what [`poster`](Self::poster) takes, for a queue that may be in no cache.
    #[inline]
    pub(crate) fn foresee_poster(&self) {
        prefetch_for_writing(&raw const self.tail);
    }

    /// Application: takes the right to post, until the result is dropped.
    pub(crate) fn poster(&self) -> SendPoster<'_> {
        SendPoster { queue: self, tail: self.tail.lock(), written: 0 }
    }

    /// Application: posts one request, or refuses it and changes nothing. Returns whether the bell has rung, so that the
    /// poster need not ring. Ringing is an atomic exchange, which costs as much as writing a request. `far` tells that
    /// the engine is on another core (see [`SendPoster::fetch_slots`]).
    ///
    /// No request is lost. The engine withdraws the ring, then looks at the lock, and then at the queue
    /// ([`answer`](Self::answer)). If that ring is still seen here, the lock was taken before the engine's look. So the
    /// engine sees it held, and looks at the queue again later; or it sees the lock released, and with it the request.
    /// A ring that comes after the engine has withdrawn one has an entry of its own.
    #[inline]
    pub(crate) fn post(&self, wr: &SendWr<'_>, payload: Payload<'_>, far: bool) -> Result<bool, PostError> {
        let mut poster = SendPoster { queue: self, tail: self.tail.lock_briefly(), written: 0 };
        poster.push(wr, payload)?;
        if far {
            poster.fetch_slots(1);
        }
        Ok(self.bell.has_rung())
    }

    /// Does what [`post`](Self::post) does until it has taken the lock.
    #[cfg(test)]
    pub(crate) fn begin_post(&self) -> SendPoster<'_> {
        SendPoster { queue: self, tail: self.tail.lock_briefly(), written: 0 }
    }

    /// Engine, before it looks at the queues: withdraws the bell's ring. Posts that the look misses ring again, except
    /// that of a poster who has seen the ring before ([`post`](Self::post)). Returns whether there may be such a poster.
    /// The bell has then rung again, and the queue pair's number must be entered.
    #[inline]
    #[must_use = "requests may wait for ever"]
    pub(crate) fn answer(&self) -> bool {
        self.bell.withdraw();
        self.tail.is_held_briefly() && self.bell.ring()
    }

    /// Engine: returns a request, which must not have been released; `None` if it is not posted yet.
    #[inline]
    pub(crate) fn peek(&self, number: WrNumber) -> Option<SendView<'_>> {
        let entry = self.ring.peek(number.0)?;
        let slot = self.ring.slot_of(number.0);
        let (sges, inline) = if entry.flags.contains(SendFlags::INLINE) {
            // SAFETY: the slot is published: the producer wrote the first `length` <= max_inline of the slot's bytes,
            // and leaves them alone until the engine releases the slot.
            let bytes = unsafe {
                std::slice::from_raw_parts(self.inline_at(slot).cast_const(), entry.length as usize)
            };
            (&[][..], Some(bytes))
        } else {
            let count = usize::from(entry.num_sge);
            let sges = entry.only.get(..count).unwrap_or_else(|| {
                // SAFETY: as above, with `num_sge` <= max_sge elements.
                unsafe { std::slice::from_raw_parts(self.sges_at(slot).cast_const(), count) }
            });
            (sges, None)
        };
        Some(SendView { entry, sges, inline, queue: self, slot })
    }

    /// Engine: gives back the slot of request `number`, and those of the requests before it.
    #[inline]
    pub(crate) fn release(&self, number: WrNumber) {
        self.ring.release_until(number.next().0);
    }

    /// Returns the start of the slot's list; valid for `max_sge` elements.
    fn sges_at(&self, slot: usize) -> *mut Sge {
        self.sges.as_ptr().cast_mut().cast::<Sge>().wrapping_add(slot * usize::from(self.max_sge))
    }

    /// Returns the slot's operation; valid for reading and writing.
    #[cold]
    fn elsewhere_at(&self, slot: usize) -> *mut SendOp {
        let ops = self
            .elsewhere
            .get_or_init(|| (0..self.ring.capacity()).map(|_| UnsafeCell::new(SendOp::Send)).collect());
        ops[slot].get()
    }

    /// Returns the start of the slot's inline bytes; valid for `max_inline`.
    #[inline]
    fn inline_at(&self, slot: usize) -> *mut u8 {
        let bytes = self.inline.get_or_init(|| self.inline_bytes());
        bytes.as_ptr().cast_mut().cast::<u8>().wrapping_add(slot * self.max_inline as usize)
    }

    /// Allocates the inline bytes. Called at the first inline request, because most programs never use the inline
    /// bytes that they are given.
    #[cold]
    fn inline_bytes(&self) -> Box<[UnsafeCell<u8>]> {
        let len = self.ring.capacity() as usize * self.max_inline as usize;
        // The system supplies zeroed pages lazily, so that unused slots take no memory.
        let bytes = Box::into_raw(vec![0u8; len].into_boxed_slice());
        // SAFETY: a cell has the layout of its content.
        unsafe { Box::from_raw(bytes as *mut [UnsafeCell<u8>]) }
    }
}

/// Slots are [fetched](SendPoster::fetch_slots) this many posts before they are used. Fewer posts may take less time
/// than a line takes to come. The engine's core may take back lines that were fetched much earlier.
const AHEAD: u32 = 8;

/// How a request uses local memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Its list, or inline data, is the source of a message.
    Plain,
    /// Its list is the destination.
    Read,
    /// Its list is one element of eight bytes, the destination of the original value.
    Atomic,
    /// It has no list.
    Local,
}

impl Kind {
    #[cold]
    fn of(op: &SendOp) -> Result<Self, PostError> {
        match op {
            SendOp::SendImm(_) => Err(PostError::SendImm),
            op if op.is_atomic() => Ok(Self::Atomic),
            op if op.is_local() => Ok(Self::Local),
            _ => Ok(Self::Plain),
        }
    }
}

/// The application's end of a send queue, with the lock.
pub(crate) struct SendPoster<'a> {
    queue: &'a SendQueue,
    tail: SpinGuard<'a, Tail>,
    /// Number of requests from `tail` on that are written and not published.
    written: u32,
}

impl SendPoster<'_> {
    /// Returns whether the next request has a slot.
    #[inline]
    fn has_room(&self) -> bool {
        self.queue.ring.is_free(self.next(), &self.tail.room)
    }

    /// Posts one request, or refuses it and changes nothing.
    #[inline]
    pub(crate) fn push(&mut self, wr: &SendWr<'_>, payload: Payload<'_>) -> Result<(), PostError> {
        self.write(wr, payload)?;
        self.publish();
        Ok(())
    }

    /// Publishes all written requests to the engine, and returns their number. Requests that are never published were
    /// never posted.
    #[inline]
    pub(crate) fn publish(&mut self) -> u32 {
        let end = self.next();
        while self.tail.next != end {
            self.queue.ring.publish(self.tail.next);
            self.tail.next = self.tail.next.wrapping_add(1);
        }
        std::mem::take(&mut self.written)
    }

    /// Fetches, for writing, the cache lines of slots that will be used soon. Call this after a post of `posted`
    /// requests to an engine on another core, because that core's cache has the lines of all slots that the engine has
    /// read. Without this, each post would wait for the line of its slot.
    #[inline]
    pub(crate) fn fetch_slots(&self, posted: u32) {
        // The slots before the next one have requests that the engine has yet to read.
        let ahead = self.next().wrapping_add(AHEAD.max(posted.saturating_sub(1)));
        let room = &self.tail.room;
        (0..posted).for_each(|back| self.queue.ring.fetch_slot(ahead.wrapping_sub(back), room));
    }

    /// Returns the number of the next request.
    #[inline]
    fn next(&self) -> u32 {
        self.tail.next.wrapping_add(self.written)
    }

    /// Writes one request, or refuses it and changes nothing.
    pub(crate) fn write(&mut self, wr: &SendWr<'_>, payload: Payload<'_>) -> Result<(), PostError> {
        let queue = self.queue;
        let (op, kind) = match wr.op {
            SendOp::Send => (Stored::Send, Kind::Plain),
            SendOp::SendInv(stag) => (Stored::SendInv(stag), Kind::Plain),
            SendOp::Write { addr, rkey } => (Stored::Write { addr, rkey }, Kind::Plain),
            SendOp::Read { addr, rkey } => (Stored::Read { addr, rkey }, Kind::Read),
            ref other => (Stored::Elsewhere, Kind::of(other)?),
        };
        let inline = matches!(payload, Payload::Bytes(_)) || wr.flags.contains(SendFlags::INLINE);
        if inline && kind != Kind::Local {
            return self.push_inline(wr, op, kind, payload);
        }
        let most = match kind {
            Kind::Plain | Kind::Read => queue.max_sge,
            Kind::Atomic => queue.max_sge.min(1),
            Kind::Local => 0,
        };
        if wr.sges.len() > usize::from(most) {
            return Err(PostError::TooManySges);
        }
        let length = total(wr.sges)?;
        if kind == Kind::Atomic && length as usize != size_of::<u64>() {
            return Err(PostError::AtomicSink);
        }
        if !self.has_room() && !self.room_comes() {
            return Err(PostError::QueueFull);
        }
        let only = [first_of(wr.sges)];
        if wr.sges.len() > only.len() {
            let list = queue.sges_at(queue.ring.slot_of(self.next()));
            // SAFETY: the slot is free, so its list is ours; it has room for max_sge elements.
            unsafe { std::ptr::copy_nonoverlapping(wr.sges.as_ptr(), list, wr.sges.len()) };
        }
        let (flags, num_sge) = (wr.flags - SendFlags::INLINE, wr.sges.len() as u8);
        self.fill(SendEntry { wr_id: wr.wr_id, op, flags, num_sge, length, only }, &wr.op);
        Ok(())
    }

    /// Waits briefly for a slot, because a poster that has seen a completion may find the request's slot still taken:
    /// the engine, on another core, frees the slot right after it publishes the completion. (The reverse order would
    /// cost the engine about 100 ns more for each completion.)
    #[cold]
    fn room_comes(&self) -> bool {
        const LOOKS: u32 = 256;
        (0..LOOKS).any(|_| {
            std::hint::spin_loop();
            self.has_room()
        })
    }

    /// Writes a request whose payload is copied now.
    fn push_inline(
        &mut self,
        wr: &SendWr<'_>,
        op: Stored,
        kind: Kind,
        payload: Payload<'_>,
    ) -> Result<(), PostError> {
        let queue = self.queue;
        let length = match payload {
            Payload::Bytes(bytes) => u32::try_from(bytes.len()).map_err(|_| PostError::TooLong)?,
            Payload::Listed(_) => total(wr.sges)?,
        };
        if kind != Kind::Plain {
            return Err(PostError::InlineRead);
        }
        if length > queue.max_inline {
            return Err(PostError::InlineTooLong);
        }
        if !self.has_room() && !self.room_comes() {
            return Err(PostError::QueueFull);
        }
        let place = queue.inline_at(queue.ring.slot_of(self.next()));
        // SAFETY: the slot is free, so its inline bytes are ours; `length` <= max_inline of them.
        let room = unsafe { std::slice::from_raw_parts_mut(place, length as usize) };
        match payload {
            Payload::Bytes(bytes) => room.copy_from_slice(bytes),
            Payload::Listed(regions) => regions.gather(wr.sges, room)?,
        }
        let flags = wr.flags | SendFlags::INLINE;
        let only = [Sge::default()];
        self.fill(SendEntry { wr_id: wr.wr_id, op, flags, num_sge: 0, length, only }, &wr.op);
        Ok(())
    }

    /// Fills in the rest of the next slot, whose list or inline bytes have been written.
    #[inline]
    fn fill(&mut self, entry: SendEntry, op: &SendOp) {
        let index = self.next();
        if matches!(entry.op, Stored::Elsewhere) {
            let place = self.queue.elsewhere_at(self.queue.ring.slot_of(index));
            // SAFETY: the slot is free, so its operation is ours.
            unsafe { place.write(*op) };
        }
        self.queue.ring.write(index, entry, &self.tail.room);
        self.written += 1;
    }
}

/// Copies the first element of a list. Reads each field by itself, because programs write the list field by field right
/// before they post it: the processor cannot serve a wider read from its store buffer, so the read would wait until the
/// stores have left that buffer.
#[inline]
fn first_of(sges: &[Sge]) -> Sge {
    let Some(first) = sges.first() else { return Sge::default() };
    // SAFETY: the fields of an element that is borrowed are readable.
    unsafe {
        let (len, lkey) =
            (ptr::read_volatile(&raw const first.len), ptr::read_volatile(&raw const first.lkey));
        Sge { addr: first.addr, len, lkey }
    }
}

/// Returns the total length of a list, in bytes.
#[inline]
fn total(sges: &[Sge]) -> Result<u32, PostError> {
    match sges {
        [] => Ok(0),
        [only] => Ok(only.len),
        several => {
            let total: u64 = several.iter().map(|sge| u64::from(sge.len)).sum();
            u32::try_from(total).map_err(|_| PostError::TooLong)
        }
    }
}
