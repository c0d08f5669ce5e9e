//! The functions of libibverbs.

pub mod async_event;
mod buf;
pub mod channel;
pub mod context;
pub mod cq;
mod cq_ex;
mod device;
pub mod mr;
mod mw;
pub mod names;
pub mod pd;
mod post;
pub mod qp;
pub mod qp_ex;
mod query;
pub mod srq;
mod unsupported;
