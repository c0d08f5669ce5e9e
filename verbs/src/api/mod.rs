//! The objects that applications hold: devices, queue pairs, queues, memory, channels.

pub(crate) mod batch;
pub(crate) mod channel;
pub(crate) mod cm;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod events;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod inspect;
pub(crate) mod mr;
pub(crate) mod mw;
mod neighbours;
pub(crate) mod owner;
pub(crate) mod pd;
pub(crate) mod qp;
pub mod simulation;
pub(crate) mod srq;
