//! urnic: a software RNIC in Rust. It speaks standard iWARP (RDMA over TCP), and this crate is its verbs API.
//!
//! The object model is that of verbs. A [`Device`] is an RNIC inside this process. A device makes protection domains
//! ([`Pd`]). A protection domain makes memory regions ([`Mr`]) and queue pairs ([`Qp`]). Work is posted to queue
//! pairs, and completion queues ([`Cq`]) report its outcome. An [`EventChannel`] listens and connects. A program that
//! does not want to poll sleeps on a completion channel ([`CompChannel`]).
//!
//! The engine of a device is the code that sends, receives and does the posted work; a device may have several
//! engines. By default, a thread that polls also drives the engine, that is, runs this code. The engine's own thread
//! takes over when no thread polls ([`Progress`] selects this). All objects may be shared among threads.
//!
//! # Getting started
//! [`Device::open`] with a default [`Config`] carries RDMA over the kernel's TCP sockets. This works for any
//! user, without special hardware or setup. Linux 5.14 is needed only to register memory of the program
//! ([`Pd::reg_mr`]) or to register a region anew ([`Mr::rereg`]). In a checkout of urnic, `greet` is a complete
//! program with a server and a client:
//!
//! ```text
//! cargo run -p urnic --no-default-features --example greet -- serve                  # in one shell
//! cargo run -p urnic --no-default-features --example greet -- say 127.0.0.1 hello    # in another
//! ```
//!
//! The default feature `dpdk` adds DPDK ports, and needs DPDK to build. A program that uses only the kernel's
//! sockets depends on this crate with `default-features = false`. `docs/write-a-program.md` explains `greet` step
//! by step.
//!
//! # A first program
//! One device writes into the memory of another. Both are simulated here, so that the program runs anywhere. A
//! program for real devices differs in two places: it opens them with [`Device::open`], and it waits for events and
//! completions ([`EventChannel::wait`], [`Cq::poll`]) where this program lets simulated time pass
//! ([`Simulation::run`](simulation::Simulation::run)).
//!
//! ```
//! use std::time::Duration;
//! use urnic::simulation::{Options, Simulation};
//! use urnic::{Access, CmEvent, ConnParam, Device, QpInit, SendFlags, SendOp, SendWr, Sge, Wc, WcStatus};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut simulation = Simulation::new(&Options::default())?;
//! let (server, client) = (simulation.device(0), simulation.device(1));
//! let limit = Duration::from_secs(1);
//!
//! // Each end has a domain for memory, a queue for completions, a queue pair, and a channel for connections.
//! let end = |device: &Device| -> urnic::Result<_> {
//!     let (pd, cq) = (device.alloc_pd(), device.create_cq(16, None)?);
//!     let qp = pd.create_qp(&QpInit {
//!         send_cq: &cq,
//!         recv_cq: &cq,
//!         max_send_wr: 4,
//!         max_recv_wr: 4,
//!         max_send_sge: 1,
//!         max_recv_sge: 1,
//!         max_inline: 0,
//!         signal_all: true,
//!     })?;
//!     Ok((pd, cq, qp, device.create_event_channel()?))
//! };
//! let (server_pd, _, server_qp, requests) = end(&server)?;
//! let (client_pd, client_cq, client_qp, events) = end(&client)?;
//!
//! // The server lets peers write into this memory. A real server sends the memory's address and key to the client.
//! let offered = server_pd.alloc_mr(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! let _listener = requests.listen(7500, 8)?;
//!
//! // The client connects, and the server accepts.
//! let to = (Simulation::address(0), 7500);
//! let _connection = events.connect(&client_qp, to, &ConnParam::default())?;
//! let mut accepted = None;
//! let there = simulation.run(limit, || {
//!     if let Some(CmEvent::ConnectRequest(request)) = requests.poll() {
//!         accepted = request.accept(&server_qp, &ConnParam::default()).ok();
//!     }
//!     matches!(events.poll(), Some(CmEvent::Established { .. }))
//! });
//! assert!(there && accepted.is_some());
//!
//! // An RDMA Write: the server's program takes no part in it.
//! let greeting = client_pd.alloc_mr(64, Access::LOCAL_WRITE)?;
//! greeting.write_at(0, b"hello")?;
//! client_qp.post_send(&SendWr {
//!     wr_id: 1,
//!     op: SendOp::Write { addr: offered.addr(), rkey: offered.rkey() },
//!     sges: &[Sge::of(&greeting, 0, 5)],
//!     flags: SendFlags::SIGNALED,
//! })?;
//! let mut wc = [Wc::default()];
//! assert!(simulation.run(limit, || client_cq.poll(&mut wc) == 1));
//! assert_eq!((wc[0].wr_id, wc[0].status), (1, WcStatus::Success));
//!
//! // A completed Write has been handed to TCP. It reaches the server's memory a moment later.
//! let mut found = [0; 5];
//! assert!(simulation.run(limit, || offered.read_at(0, &mut found).is_ok() && found == *b"hello"));
//! # Ok(())
//! # }
//! ```

// The layers, top first: each uses only those below it.
mod api;
mod drive;
mod shared;

pub use api::batch::{RecvBatch, SendBatch};
pub use api::channel::CompChannel;
pub use api::cm::{Bound, Connection, EventChannel, Listener};
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
pub use drive::transport;
pub use shared::cm::{
    CmEvent, ConnParam, ConnRequest, ConnectFailure, DisconnectReason, EventSink, MAX_PRIVATE_DATA,
    RNR_WITHOUT_LIMIT, Terms,
};
pub use shared::connection::ConnectionAttr;
pub use shared::convert::{ConvertError, NotConvertible};
pub use shared::error::{Error, PostError, PostListError, Result};
pub use shared::events::{AsyncEvent, AsyncSink, FaultCause, QpFault};
pub use shared::figures::EngineFigures;
pub use shared::memory::{Access, MwKind};
pub use shared::qp::{QpConnection, QpState, TerminateInfo};
pub use shared::quiet::in_forked_child;
#[cfg(feature = "sabotage")]
pub use shared::sabotage;
pub use shared::wc::{Wc, WcFlags, WcOpcode, WcStatus};
pub use shared::wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};
pub use urnic_config as config;
pub use urnic_config::{Cidr, Config, Progress, RtrChoice};
pub use urnic_dataplane::{Capabilities, ExternalMemory, RxChecksum, TxChecksum, is_control_thread};
pub use urnic_iwarp::{Role, Rtr};
pub use urnic_tcp::congestion::Rate as TcpRate;
pub use urnic_tcp::{
    ConnInfo as TcpInfo, Keepalive, Patience, RecoveryState as TcpRecovery, State as TcpState,
};
