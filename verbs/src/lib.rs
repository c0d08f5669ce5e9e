//! The RNIC: engine, memory, queues, connection manager, Rust verbs API.
//!
//! A [`Device`] is an RNIC in this process. From it come protection domains ([`Pd`]), and from those memory
//! regions ([`Mr`]) and queue pairs ([`Qp`]); completion queues ([`Cq`]) tell what became of posted work,
//! completion channels ([`CompChannel`]) when to look; an [`EventChannel`] makes connections.
//!
//! Whoever polls drives the engine; the engine's own thread steps in when nobody does (unless `progress`
//! says otherwise). All objects can be shared among threads.

mod by_source;
mod channel;
mod cm;
mod cq;
mod device;
mod engine;
mod error;
mod eventfd;
mod events;
#[cfg(test)]
mod fake;
mod inspect;
mod memory;
mod pd;
mod port;
mod qp;
mod queue;
#[cfg(feature = "sabotage")]
pub mod sabotage;
#[cfg(not(feature = "sabotage"))]
mod sabotage;
mod shard;
pub mod simulation;
mod source;
mod srq;
mod sync;
mod turns;
mod waiting;
mod wc;
mod wr;

pub use channel::CompChannel;
pub use cm::{
    CmEvent, ConnParam, ConnRequest, ConnectFailure, Connection, DisconnectReason, EventChannel, EventSink,
    Listener, MAX_PRIVATE_DATA, Terms,
};
pub use cq::{Completion, Completions, Cq, CqInit};
pub use device::{Device, DeviceAttr};
pub use error::{Error, PostError, PostListError, Result};
pub use events::{AsyncEvent, AsyncEvents, AsyncSink, FaultCause, QpFault};
pub use inspect::ConnectionAttr;
pub use memory::{Access, Mr, Mw, MwBind, MwKind, Rereg};
pub use pd::Pd;
pub use qp::{Qp, QpAttr, QpConnection, QpInit, QpState, TerminateInfo};
pub use shard::{before_exit, in_forked_child};
pub use srq::{Srq, SrqAttr, SrqInit};
pub use urnic_config::{Cidr, RtrChoice};
pub use urnic_dataplane::is_control_thread;
pub use urnic_iwarp::Rtr;
pub use urnic_tcp::{
    ConnInfo as TcpInfo, Keepalive, Patience, RecoveryState as TcpRecovery, State as TcpState,
};
pub use wc::{Wc, WcFlags, WcOpcode, WcStatus};
pub use wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};
