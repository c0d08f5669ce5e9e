//! Sans-IO TCP/IP stack of one core: Ethernet, ARP, IPv4, IPv6, ND, ICMP and TCP. It does no I/O, reads no clock,
//! starts no threads and has no unsafe code.
//!
//! The caller passes in frames together with the time. Stream data and connection events come out through a
//! [`Handler`]; frames to send come out through a [`Transmit`]. Received payload leaves as a frame and a range in it
//! and is never copied. Data to send is queued as reference-counted [`Payload`]s, and retransmissions hand out the
//! same payloads again.
//!
//! # A pass
//! The caller drives the stack in passes. Each pass makes these calls:
//! ```text
//! stack.foresee(&burst)                         // a hint, useful with many connections
//! stack.receive_burst(now, burst, &mut handler, &mut tx)
//! stack.advance(now, &mut handler, &mut tx)     // timers; cheap when nothing is due
//! ...                                           // work that the handler noted: send(), output(), close() ...
//! stack.flush(now, &mut tx)                     // delayed ACKs, ARP requests, connections that waited for room
//! ```
//! [`Stack::next_deadline`] returns when the next pass is needed even if no frame arrives.
//! [`Stack::wants_flush`] returns whether `flush` is needed again because the network port was full. A frame emitted
//! with `loopback` is for our own address, so the caller passes it to `receive`. The next `advance` reports the events
//! of calls that have no handler (`close`, `abort`).
//!
//! # What is sent
//! [`Stack::send`] queues one record. Segments are cut at record boundaries: several whole records share a segment if
//! they fit, a record longer than a segment is split, and a segment that carries a part of a record carries nothing
//! after that part. A record that does not fit the peer's window is held for at most `TcpConfig::sws_override` and then
//! cut; while the window is closed, it is held until the window opens. [`Stack::room`] returns how much is worth
//! queueing.
//!
//! # What is acknowledged
//! Data in order is acknowledged at most once per pass and connection; the ACK travels with our data if there
//! is any to send. This is a stretch ACK; RFC 5681 §4.2 asks for one ACK per two segments. The ACK of a small
//! amount may wait for [`TcpConfig::ack_delay`]. Data that is out of order, fills a gap or was received before
//! is acknowledged at once. With DCTCP, when the arriving packets change from marked to unmarked or back, the data
//! before the change is acknowledged at once as well (RFC 8257 §3.2). Only segments without data carry SACK blocks.
//! While the handler takes all data at once, the window is constant. The stack keeps the data that the handler leaves,
//! and offers a smaller window until [`Stack::resume`]. The right edge of the window only moves forward.
//!
//! Consecutive ACKs of one connection in a burst are handled as one, the newest (see [`Stack::receive_burst`]).
//!
//! # Several stacks of one device
//! Each stack has a queue of the network port and a [`Steering`], which determines the stack that owns a connection.
//! A frame may reach any stack. A frame that belongs to another stack leaves through [`Handler::hand_over`] and
//! enters its owner through [`Stack::take_over`]. Except for the steering, the stacks have the same configuration,
//! including the seed, and they share one [`SharedPorts`]. A reservation that one stack makes with [`Stack::bind`] is
//! entered in the others with [`Stack::enter_binding`]. An active open chooses a local port for which the opening
//! stack is the owner.
//!
//! # Where things are
//! | module | does |
//! |---|---|
//! | `stack` | finds the connection, listener or table entry for a frame; takes expected segments on a short path (`burst`); listeners, half-open connections, TIME-WAIT; timers; ICMP |
//! | `connection` | one connection: `open`, `arrive`, `ack`, `data`, `output` and `volley`, `timers`, and its `queue`; losses: `rack`, `repair`, `probe`; `marks` (ECN), `pace`, `info` |
//! | [`reassembly`], [`scoreboard`] | received data that is out of order; sent data that is outstanding, when it was sent, and its fate |
//! | [`congestion`], [`rtt`], [`timer`] | amount to send, round-trip times, timers |
//! | `arp`, `nd`, `neighbours`, `wire`, `ipv6`, [`sum`], `net` | neighbours and addresses, headers, checksums, state that connections share |
//! | `steering` | the owner of a connection among the stacks of a device, and the stack that speaks for the host |
//! | `paths`, `pmtu` | short numbers that stand for pairs of IPv6 addresses; packet sizes that paths carry |
//! | [`slab`] | tables whose entries keep their place, and ids that outlive entries |
//!
//! # What it does not do
//! - Fragments are refused, although RFC 1122 asks hosts to reassemble them.
//! - Redirects are ignored.
//! - Urgent data is treated as ordinary data.
//! - Data on a SYN is not taken; the peer must retransmit it.
//!
//! The stack follows the security considerations of RFC 5961, RFC 4987, RFC 6528, RFC 6056, RFC 5927 and RFC 1337.
//! Its hash has a secret key. The backlog, out-of-order data, neighbours and stateless replies are bounded.
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
pub mod rows;
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
    Transmit, UNEVEN, cut_between_parts,
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
