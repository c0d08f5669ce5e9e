//! librdmacm.

mod addrinfo;
mod channel;
mod connect;
mod endpoint;
mod hub;
mod id;
mod names;
mod options;
mod qp;
mod resolve;
mod unsupported;

pub use connect::close_qp;
pub use hub::{destroy_qp, dispatch};
