//! The RNIC: engine, memory, queues, connection manager, Rust verbs API.
//!
//! A [`Device`] is an RNIC in this process. From it come protection domains ([`Pd`]), and from those memory
//! regions ([`Mr`]) and queue pairs ([`Qp`]); completion queues ([`Cq`]) tell what became of posted work,
//! completion channels ([`CompChannel`]) when to look; an [`EventChannel`] makes connections.
//!
//! Whoever polls drives the engine; the engine's own thread steps in when nobody does (unless `progress`
//! says otherwise). All objects can be shared among threads.

// Floors, from above: each uses those below it.
mod api;
mod drive;
mod shared;

pub use api::channel::CompChannel;
pub use api::cm::{Connection, EventChannel, Listener};
pub use api::cq::{Completion, Completions, Cq, CqInit};
pub use api::device::{Device, DeviceAttr};
pub use api::events::AsyncEvents;
pub use api::mr::{Mr, Rereg};
pub use api::mw::{Mw, MwBind};
pub use api::pd::Pd;
pub use api::qp::{Qp, QpAttr, QpInit};
pub use api::simulation;
pub use api::srq::{Srq, SrqAttr, SrqInit};
pub use drive::shard::before_exit;
pub use shared::cm::{
    CmEvent, ConnParam, ConnRequest, ConnectFailure, DisconnectReason, EventSink, MAX_PRIVATE_DATA, Terms,
};
pub use shared::connection::ConnectionAttr;
pub use shared::error::{Error, PostError, PostListError, Result};
pub use shared::events::{AsyncEvent, AsyncSink, FaultCause, QpFault};
pub use shared::memory::{Access, MwKind};
pub use shared::qp::{QpConnection, QpState, TerminateInfo};
pub use shared::quiet::in_forked_child;
#[cfg(feature = "sabotage")]
pub use shared::sabotage;
pub use shared::wc::{Wc, WcFlags, WcOpcode, WcStatus};
pub use shared::wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};
pub use urnic_config::{Cidr, RtrChoice};
pub use urnic_dataplane::is_control_thread;
pub use urnic_iwarp::Rtr;
pub use urnic_tcp::{
    ConnInfo as TcpInfo, Keepalive, Patience, RecoveryState as TcpRecovery, State as TcpState,
};
