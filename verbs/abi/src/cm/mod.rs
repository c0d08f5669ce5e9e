//! The functions of librdmacm.

mod addrinfo;
mod channel;
mod connect;
mod convert;
mod endpoint;
mod hub;
mod id;
mod names;
mod options;
mod qp;
mod resolve;
mod unsupported;
