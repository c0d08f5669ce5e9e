//! Sans-IO TCP/IP stack of one core: Ethernet, ARP, IPv4, ICMP and TCP. No I/O, no clock, no threads, no unsafe.
//!
//! Frames go in with the time; stream data and connection events come out through a [`Handler`]; frames to send
//! come out through a [`Transmit`]. Received payload leaves as frame plus range, never copied; what is sent is
//! queued as reference-counted [`Payload`]s, which retransmissions hand out again.
//!
//! # A pass
//! ```text
//! for frame in burst { stack.receive(now, frame, &mut handler, &mut tx) }
//! stack.advance(now, &mut handler, &mut tx)     // timers
//! ...                                           // what the handler noted: send(), output(), close() ...
//! stack.flush(now, &mut tx)                     // delayed ACKs, connections that waited for room
//! ```
//! [`Stack::next_deadline`] says when `advance` has something to do.
//!
//! # What is sent
//! [`Stack::send`] queues one record. Segments are cut at record boundaries: several whole records share one
//! segment if they fit, a record longer than a segment is split, and a segment never carries a part of a record
//! behind anything else. [`Stack::room`] says how much is worth queueing.
#![forbid(unsafe_code)]

mod arp;
mod buffers;
mod config;
mod connection;
mod counters;
mod listen;
mod net;
mod ports;
mod secret;
mod seq;
mod slab;
mod stack;
mod table;
#[cfg(test)]
mod testing;
mod timewait;
mod wire;

pub mod congestion;
pub mod reassembly;
pub mod rtt;
pub mod sabotage;
pub mod scoreboard;
pub mod sum;
pub mod time;
pub mod timer;

pub use buffers::{
    Buffers, CloseReason, ConnId, Emit, Frame, Handler, ListenerId, MAX_PIECES, Payload, Piece, Transmit,
};
pub use config::{ConfigError, Keepalive, StackConfig, TcpConfig};
pub use congestion::Congestion;
pub use connection::{ConnInfo, State};
pub use counters::Counters;
pub use listen::ListenError;
pub use ports::{LocalPorts, PortError, PortSpace};
pub use seq::Seq;
pub use stack::{ConnectError, SendError, Stack};
pub use time::Time;
