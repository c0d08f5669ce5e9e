//! The rings between applications and the engine: one producer, one consumer, a sequence number in each slot. A
//! spinlock guards the application's end, the engine lock the engine's end.

mod recv;
mod ring;
mod send;

pub(crate) use recv::{RecvPoster, RecvQueue, RecvView};
pub(crate) use ring::{Ring, capacity_for};
pub(crate) use send::{Payload, SendPoster, SendQueue, SendView, Stored};

use crate::shared::wc::Wc;

/// The completions that one engine adds to one completion queue.
pub(crate) type CompletionRing = Ring<Wc>;

/// The number of a work request in its queue, from 0 in the order of posting. It wraps, so numbers have no order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct WrNumber(pub(crate) u32);

impl WrNumber {
    /// Returns the number of the request that is posted next.
    #[inline]
    #[must_use]
    pub(crate) fn next(self) -> Self {
        WrNumber(self.0.wrapping_add(1))
    }

    /// Returns the number of requests from `earlier` up to, but without, this one.
    #[inline]
    pub(crate) fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests;
