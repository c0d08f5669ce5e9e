//! Latency, bandwidth and message rate of RDMA operations between two nodes.
//!
//! A server and a client run over any two ports. The data that they need of each other (parameters, rkeys, addresses,
//! verdicts) travels in the private data and the Sends of the RDMA connections themselves.
//!
//! # What is measured
//! * `lat`: Writes and Sends play ping-pong, one message each way; the receiver notices a Write by polling the last
//!   byte of its buffer. Reads and Atomics are timed from post to completion.
//! * `bw`: the client keeps a window of requests outstanding. The clock stops when the other end confirms the last
//!   Write or Send, or when the last Read or Atomic completes.
//! * `rate`: as `bw`, with a larger default window, and with fewer completions: one for every 64th request, or
//!   two per window if the window is smaller than 128. In both modes a call posts one request.

mod client;
mod crew;
mod end;
mod error;
#[cfg(feature = "dpdk")]
pub mod floor;
pub(crate) mod measure;
pub mod options;
mod pair;
mod pattern;
mod pingpong;
pub(crate) mod process;
pub mod report;
mod server;
pub mod sleeping;
pub mod sockets;
mod stream;
mod wire;

pub use client::run_client;
pub use error::PerfError;
pub use options::{Amount, Beside, Mode, Op, PerfOptions, Wait};
pub use pair::{Link, run_pair};
pub use report::{Latency, PerfReport, table};
pub use server::{DEFAULT_PORT, run_server};
