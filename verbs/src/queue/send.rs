//! The send queue of a QP.

use std::cell::UnsafeCell;
use std::sync::OnceLock;

use super::Ring;
use crate::error::PostError;
use crate::memory::Regions;
use crate::sync::{SpinGuard, SpinLock};
use crate::wr::{SendFlags, SendOp, SendWr, Sge};

/// A posted send request, without its scatter-gather list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendEntry {
    pub(crate) wr_id: u64,
    op: Stored,
    pub(crate) flags: SendFlags,
    pub(crate) num_sge: u8,
    /// Message length in bytes.
    pub(crate) length: u32,
}

/// The operation of a request, as its slot holds it. Only those that are many and small are in the slot itself, so that
/// slots stay small.
#[derive(Clone, Copy, Debug)]
enum Stored {
    Send,
    SendInv(u32),
    Write { addr: u64, rkey: u32 },
    Read { addr: u64, rkey: u32 },
    Elsewhere,
}

impl Stored {
    #[inline]
    fn of(op: &SendOp) -> Self {
        match *op {
            SendOp::Send => Self::Send,
            SendOp::SendInv(stag) => Self::SendInv(stag),
            SendOp::Write { addr, rkey } => Self::Write { addr, rkey },
            SendOp::Read { addr, rkey } => Self::Read { addr, rkey },
            _ => Self::Elsewhere,
        }
    }
}

/// What the engine sees of a posted request.
#[derive(Clone, Copy)]
pub(crate) struct SendView<'a> {
    pub(crate) entry: &'a SendEntry,
    /// The operation if the entry does not hold it.
    elsewhere: Option<&'a SendOp>,
    pub(crate) sges: &'a [Sge],
    /// The payload itself, if it was posted inline.
    pub(crate) inline: Option<&'a [u8]>,
}

impl SendView<'_> {
    /// The operation.
    #[inline]
    pub(crate) fn op(&self) -> SendOp {
        match self.entry.op {
            Stored::Send => SendOp::Send,
            Stored::SendInv(stag) => SendOp::SendInv(stag),
            Stored::Write { addr, rkey } => SendOp::Write { addr, rkey },
            Stored::Read { addr, rkey } => SendOp::Read { addr, rkey },
            Stored::Elsewhere => self.elsewhere.copied().unwrap_or(SendOp::Send),
        }
    }
}

/// Where the payload of a request comes from when it is posted.
#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    /// Its scatter-gather list; inline requests are gathered from the regions of the protection domain.
    Listed(&'a Regions),
    /// These bytes, copied.
    Bytes(&'a [u8]),
}

/// Send requests from the application (one at a time, under `tail`) to the engine (under the engine lock).
pub(crate) struct SendQueue {
    ring: Ring<SendEntry>,
    /// `max_sge` elements for each slot; they belong to whoever owns the slot.
    sges: Box<[UnsafeCell<Sge>]>,
    /// `max_inline` bytes for each slot.
    inline: Box<[UnsafeCell<u8>]>,
    /// For each slot the operation that does not fit it; there from the first such request on.
    elsewhere: OnceLock<Box<[UnsafeCell<SendOp>]>>,
    max_sge: usize,
    max_inline: usize,
    /// Number of the next request.
    tail: SpinLock<u32>,
}

// SAFETY: list, inline bytes and operation of a slot follow the ownership of the ring's slot.
unsafe impl Sync for SendQueue {}

impl SendQueue {
    pub(crate) fn new(entries: u32, max_sge: u8, max_inline: u32) -> Self {
        let ring = Ring::new(entries);
        let capacity = ring.capacity() as usize;
        let max_inline = max_inline as usize;
        Self {
            ring,
            sges: (0..capacity * usize::from(max_sge)).map(|_| UnsafeCell::new(Sge::default())).collect(),
            inline: (0..capacity * max_inline).map(|_| UnsafeCell::new(0)).collect(),
            elsewhere: OnceLock::new(),
            max_sge: max_sge.into(),
            max_inline,
            tail: SpinLock::new(0),
        }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    pub(crate) fn max_sge(&self) -> u8 {
        self.max_sge as u8
    }

    pub(crate) fn max_inline(&self) -> u32 {
        self.max_inline as u32
    }

    /// Application: the right to post, until dropped.
    pub(crate) fn poster(&self) -> SendPoster<'_> {
        SendPoster { queue: self, tail: self.tail.lock() }
    }

    /// Engine: request number `index`, or `None` if it is not posted yet.
    #[inline]
    pub(crate) fn peek(&self, index: u32) -> Option<SendView<'_>> {
        let entry = self.ring.peek(index)?;
        let slot = self.ring.slot_of(index);
        let (sges, inline) = if entry.flags.contains(SendFlags::INLINE) {
            // SAFETY: the slot is published: the producer wrote `length` <= max_inline bytes of its share and
            // leaves them alone until release.
            let bytes = unsafe {
                std::slice::from_raw_parts(self.inline_at(slot).cast_const(), entry.length as usize)
            };
            (&[][..], Some(bytes))
        } else {
            // SAFETY: as above, with `num_sge` <= max_sge elements.
            let sges = unsafe {
                std::slice::from_raw_parts(self.sges_at(slot).cast_const(), usize::from(entry.num_sge))
            };
            (sges, None)
        };
        let elsewhere = match entry.op {
            // SAFETY: as above, with the operation.
            Stored::Elsewhere => self.elsewhere.get().map(|ops| unsafe { &*ops[slot].get() }),
            _ => None,
        };
        Some(SendView { entry, elsewhere, sges, inline })
    }

    /// Engine: the slots up to and including request `index` may be used again.
    #[inline]
    pub(crate) fn release(&self, index: u32) {
        self.ring.release(index);
    }

    /// Start of the slot's list; valid for `max_sge` elements.
    fn sges_at(&self, slot: usize) -> *mut Sge {
        self.sges.as_ptr().cast_mut().cast::<Sge>().wrapping_add(slot * self.max_sge)
    }

    /// The slot's operation; valid for writing.
    fn elsewhere_at(&self, slot: usize) -> *mut SendOp {
        let ops = self
            .elsewhere
            .get_or_init(|| (0..self.ring.capacity()).map(|_| UnsafeCell::new(SendOp::Send)).collect());
        ops[slot].get()
    }

    /// Start of the slot's inline bytes; valid for `max_inline`.
    fn inline_at(&self, slot: usize) -> *mut u8 {
        self.inline.as_ptr().cast_mut().cast::<u8>().wrapping_add(slot * self.max_inline)
    }
}

/// The application's end of a send queue.
pub(crate) struct SendPoster<'a> {
    queue: &'a SendQueue,
    tail: SpinGuard<'a, u32>,
}

impl SendPoster<'_> {
    /// Posts one request, or refuses it and changes nothing.
    pub(crate) fn push(&mut self, wr: &SendWr<'_>, payload: Payload<'_>) -> Result<(), PostError> {
        let queue = self.queue;
        let index = *self.tail;
        let is_read = wr.op.is_answered();
        let most = match wr.op {
            _ if is_read => queue.max_sge.min(1),
            op if op.is_local() => 0,
            _ => queue.max_sge,
        };
        let mut flags = wr.flags;
        let inline = match payload {
            _ if wr.op.is_local() => false,
            Payload::Bytes(_) => true,
            Payload::Listed(_) => flags.contains(SendFlags::INLINE),
        };
        flags.set(SendFlags::INLINE, inline);
        let length = match payload {
            Payload::Bytes(bytes) if inline => bytes.len() as u64,
            _ => wr.sges.iter().map(|sge| u64::from(sge.len)).sum(),
        };
        let length = u32::try_from(length).map_err(|_| PostError::TooLong)?;
        if inline && is_read {
            return Err(PostError::InlineRead);
        }
        if inline && length as usize > queue.max_inline {
            return Err(PostError::InlineTooLong);
        }
        if wr.sges.len() > most && !inline {
            return Err(PostError::TooManySges);
        }
        if wr.op.is_atomic() && length as usize != size_of::<u64>() {
            return Err(PostError::AtomicSink);
        }
        if matches!(wr.op, SendOp::SendImm(_)) {
            return Err(PostError::SendImm);
        }
        if !queue.ring.is_free(index) {
            return Err(PostError::QueueFull);
        }
        let slot = queue.ring.slot_of(index);
        let mut num_sge = 0;
        if inline {
            // SAFETY: the slot is free, so its inline bytes are ours; `length` <= max_inline of them.
            let room = unsafe { std::slice::from_raw_parts_mut(queue.inline_at(slot), length as usize) };
            match payload {
                Payload::Bytes(bytes) => room.copy_from_slice(bytes),
                Payload::Listed(regions) => regions.gather(wr.sges, room)?,
            }
        } else {
            num_sge = wr.sges.len() as u8;
            // SAFETY: the slot is free, so its list is ours; at most max_sge elements are written.
            unsafe {
                std::ptr::copy_nonoverlapping(wr.sges.as_ptr(), queue.sges_at(slot), wr.sges.len());
            }
        }
        let op = Stored::of(&wr.op);
        if matches!(op, Stored::Elsewhere) {
            let place = queue.elsewhere_at(slot);
            // SAFETY: the slot is free, so its operation is ours.
            unsafe { place.write(wr.op) };
        }
        queue.ring.push(index, SendEntry { wr_id: wr.wr_id, op, flags, num_sge, length });
        *self.tail = index.wrapping_add(1);
        Ok(())
    }
}
