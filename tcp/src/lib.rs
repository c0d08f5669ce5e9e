//! Sans-IO TCP/IP stack of one core: Ethernet, ARP, IPv4, IPv6, ND, ICMP and TCP. No I/O, no clock, no threads, no unsafe.
//!
//! Frames go in with the time; stream data and connection events come out through a [`Handler`]; frames to send
//! come out through a [`Transmit`]. Received payload leaves as frame plus range, never copied; what is sent is
//! queued as reference-counted [`Payload`]s, which retransmissions hand out again.
//!
//! # A pass
//! ```text
//! stack.foresee(&burst)                         // if there are many connections: a hint
//! stack.receive_burst(now, burst, &mut handler, &mut tx)
//! stack.advance(now, &mut handler, &mut tx)     // timers; cheap when nothing is due
//! ...                                           // what the handler noted: send(), output(), close() ...
//! stack.flush(now, &mut tx)                     // delayed ACKs, ARP requests, connections that waited for room
//! ```
//! [`Stack::next_deadline`] says when `advance` has something to do, [`Stack::wants_flush`] whether a full port left
//! something for another `flush`. Frames that are emitted with `loopback` go back into `receive`. What happens in a
//! call without a handler (`close`, `abort`) is reported by the next `advance`.
//!
//! # What is sent
//! [`Stack::send`] queues one record. Segments are cut at record boundaries: several whole records share one
//! segment if they fit, a record longer than a segment is split, and nothing follows a part of a record in its
//! segment. A record that the peer's window does not fit is held for `TcpConfig::sws_override`. [`Stack::room`] says
//! how much is worth queueing.
//!
//! # What is acknowledged
//! In-order data once per pass and connection, with data if there is some to send (a stretch ACK, RFC 5681 §4.2
//! asks for one per two segments); what is out of order, fills a gap or was received before at once. SACK blocks go on
//! segments without data only. The user takes all data at once, so the window is constant and its right edge only
//! moves forward.
//!
//! ACKs that arrive in one burst and follow each other count as one, the newest: [`Stack::receive_burst`].
//!
//! # Several stacks of one device
//! Each has a queue of the port and a [`Steering`], which says who owns a connection. A frame may reach any of them: one that
//! belongs elsewhere leaves by [`Handler::hand_over`], and enters the stack that it belongs to by [`Stack::take_over`]. The
//! stacks have one configuration and seed, and [`SharedPorts`]. What is reserved by [`Stack::bind`] at one is entered in the
//! others by [`Stack::bind_too`]; an active open takes a port that makes the opening stack the owner.
//!
//! # Where things are
//! | module | does |
//! |---|---|
//! | `stack` | finds who a frame is for, and takes what was expected on a short way (`burst`); listeners, half-open connections, TIME-WAIT; timers; ICMP |
//! | `connection` | one connection: `open`, `arrive`, `ack`, `data`, `output` and `volley`, `timers`, and its `queue`; losses: `rack`, `repair`, `probe`; `marks` (ECN), `pace`, `info` |
//! | [`reassembly`], [`scoreboard`] | what is out of order here; what is outstanding there, when it was sent, and what became of it |
//! | [`congestion`], [`rtt`], [`timer`] | how much, how long, when |
//! | `arp`, `nd`, `neighbours`, `wire`, `ipv6`, [`sum`], `net` | neighbours and addresses, headers, checksums, what connections share |
//! | `steering` | which stack of a device owns a connection, and which speaks for the host |
//! | `paths`, `pmtu` | pairs of IPv6 addresses by numbers; what packets paths carry |
//! | [`slab`] | tables whose entries keep their place, and names that outlive entries |
//!
//! # What it does not do
//! Fragments are refused (RFC 1122 asks hosts to reassemble), redirects ignored, urgent data is ordinary data, data on a SYN waits for its
//! retransmission. Security considerations: RFC 5961, RFC 4987, RFC 6528, RFC 6056, RFC 5927, RFC 1337; keyed hash; the backlog,
//! out-of-order data, neighbours and stateless replies are bounded.
#![forbid(unsafe_code)]

mod arp;
mod audit;
mod buffers;
mod config;
mod connection;
mod cookie;
mod counters;
mod ecn;
mod held;
mod ipv6;
mod listen;
mod nd;
mod neighbours;
mod net;
mod paths;
mod pmtu;
mod ports;
mod secret;
mod seq;
mod stack;
mod steering;
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
pub mod slab;
pub mod sum;
pub mod time;
pub mod timer;

pub use arp::Claim;
pub use audit::{Fault, Numbers};
pub use buffers::{
    BindId, Buffers, CloseReason, ConnId, Elsewhere, Emit, Frame, Handler, MAX_PIECES, Payload, Piece,
    Transmit,
};
pub use config::{Address, ConfigError, Ecn, Keepalive, Patience, Route, StackConfig, TcpConfig};
pub use congestion::{Congestion, Rate};
pub use connection::{ConnInfo, RecoveryState, State};
pub use counters::Counters;
pub use listen::{BindError, Bound, ListenError};
pub use ports::{LocalPorts, PortError, PortSpace, Scope, SharedPorts};
pub use seq::Seq;
pub use stack::{ConnectError, SendError, Stack};
pub use steering::{MAX_STACKS, Steering};
pub use time::Time;
