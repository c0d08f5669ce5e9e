//! The rings between applications and the engine: single producer, single consumer, a sequence number
//! in each slot. The application's end is guarded by a spinlock, the engine's end by the engine lock.

mod recv;
mod ring;
mod send;

pub(crate) use recv::{RecvQueue, RecvView};
pub(crate) use ring::{Ring, capacity_for};
pub(crate) use send::{Payload, SendQueue, SendView, Stored};

use crate::shared::wc::Wc;

/// The completions that one engine gives to one completion queue.
pub(crate) type CompletionLane = Ring<Wc>;

#[cfg(test)]
mod tests;
