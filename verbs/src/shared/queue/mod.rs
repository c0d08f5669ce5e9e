//! The rings between applications and the engine: single producer, single consumer, a sequence number
//! in each slot. The application's end is guarded by a spinlock, the engine's end by the engine lock.

mod recv;
mod ring;
mod send;

pub(crate) use recv::{RecvPoster, RecvQueue, RecvView};
pub(crate) use ring::{Ring, capacity_for};
pub(crate) use send::{Payload, SendPoster, SendQueue, SendView, Stored};

use crate::shared::wc::Wc;

/// The completions that one engine gives to one completion queue.
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

    /// Returns how many requests there are from `earlier` to before this one.
    #[inline]
    pub(crate) fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests;
