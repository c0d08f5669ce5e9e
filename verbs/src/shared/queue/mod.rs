//! The rings between applications and the engine: one producer, one consumer, a sequence number in each slot. A
//! spinlock guards the application's end, the engine lock the engine's end. A shared receive queue may have several
//! engines as consumers. They claim receives without a lock (see [`srq`](crate::shared::srq)).

mod ordered;
mod recv;
mod ring;
mod send;

pub(crate) use ordered::{OrderedRing, Room};
pub(crate) use recv::{RecvPoster, RecvQueue, RecvView};
pub(crate) use ring::{Entry, Ring, capacity_for};
pub(crate) use send::{Payload, SendPoster, SendQueue, SendRing, SendView, Stored};

use std::cell::UnsafeCell;

use crate::shared::wc::Wc;
use crate::shared::wr::Sge;

impl Entry for Wc {
    /// Completions are read one after the other, so they lie close together.
    type Align = Self;
}

/// The completions that one engine adds to one completion queue.
pub(crate) type CompletionRing = OrderedRing<Wc>;

/// Returns `max_sge` elements for each slot of a ring. Returns an empty slice if no list has more than one element,
/// because the slot itself has room for one.
fn elements(capacity: u32, max_sge: u8) -> Box<[UnsafeCell<Sge>]> {
    let each = if max_sge > 1 { usize::from(max_sge) } else { 0 };
    (0..capacity as usize * each).map(|_| UnsafeCell::new(Sge::default())).collect()
}

/// The number of a work request in its queue, from 0 in the order of posting. It wraps, so numbers have no order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct WrNumber(pub(crate) u32);

impl WrNumber {
    /// Returns the number of the request after this one.
    #[inline]
    #[must_use]
    pub(crate) fn next(self) -> Self {
        WrNumber(self.0.wrapping_add(1))
    }

    /// Returns the number of requests from `earlier` (included) to this one (not included).
    #[inline]
    pub(crate) fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests;
