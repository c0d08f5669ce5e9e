//! The types and state that applications and the engine share: work requests and completions, the queues that carry
//! them, the shared parts of the objects, the table of STags, events, errors, limits.
//!
//! Words that all modules use. A **pass** is one turn of an engine, in which the engine receives frames and does the
//! work that waits. A **poster** is a thread that posts work, and a **poller** is a thread that polls a completion
//! queue. A **verb** is a control call, such as the creation of a queue pair; unlike posters and pollers, it may wait
//! for an engine. To **flush** a work request is to complete it with the status `Flushed`.

pub(crate) mod arming;
pub(crate) mod by_source;
pub(crate) mod channel;
pub(crate) mod clock;
pub(crate) mod cm;
pub(crate) mod connection;
pub(crate) mod convert;
pub(crate) mod cq;
pub(crate) mod doorbell;
pub(crate) mod engines;
pub(crate) mod error;
pub(crate) mod eventfd;
pub(crate) mod events;
pub(crate) mod figures;
pub(crate) mod grace;
pub(crate) mod memory;
pub(crate) mod numbers;
pub(crate) mod prefetch;
pub(crate) mod qp;
pub(crate) mod queue;
pub(crate) mod quiet;
pub mod sabotage;
pub(crate) mod scope;
pub(crate) mod source;
pub(crate) mod srq;
pub(crate) mod sync;
pub(crate) mod turns;
pub(crate) mod waiting;
pub(crate) mod wc;
pub(crate) mod wr;
