//! Typed settings of urnic.
//!
//! A [`Config`] is built in layers: defaults, then a TOML file, then `URNIC_*` environment variables, then command-line
//! options; each layer overrides the layers before it ([`Config::load`]). The error for a mistake states where it was
//! made, the key, what is wrong and what to write instead ([`ConfigError`]).
//!
//! `docs/urnic.toml` in the repository describes every key and its default.

#![forbid(unsafe_code)]

mod error;
mod kernel;
mod keys;
mod load;
mod net;
mod port;
mod suggest;
mod units;
mod value;

pub use error::{ConfigError, Origin};
pub use kernel::KernelAddresses;
pub use keys::variable;
pub use load::{Setting, Sources};
pub use net::{Cidr, Mac, MacSource, Route};
pub use port::{MemifRole, PortSpec};
pub use units::bytes;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// All settings. Fields are public: programs may also fill a `Config` themselves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// The port below the stack.
    pub port: PortConfig,
    /// Addresses, VLAN, routers and routes.
    pub ip: IpConfig,
    /// Engines of a device: their number, their cores and the threads that drive them; the CRC implementation.
    pub engine: EngineConfig,
    /// TCP.
    pub tcp: TcpConfig,
    /// The start-up of iWARP connections.
    pub mpa: MpaConfig,
    /// Memory of the process.
    pub memory: MemoryConfig,
}

/// Smallest MTU accepted, in bytes: the packet size that every IPv4 host must accept (RFC 791).
pub const MTU_MIN: u16 = 576;
/// Smallest MTU accepted with IPv6, in bytes (RFC 8200 §5).
pub const MTU_MIN_IPV6: u16 = 1280;
/// Largest MTU accepted, in bytes.
pub const MTU_MAX: u16 = 9000;

/// Section `[port]`.
#[derive(Clone, Debug, PartialEq)]
pub struct PortConfig {
    /// The DPDK port to open; `None`: the device uses the kernel's sockets.
    pub spec: Option<PortSpec>,
    /// The addresses of a device on the kernel's sockets.
    pub kernel: KernelAddresses,
    /// Largest IP packet, in bytes, from [`MTU_MIN`] to [`MTU_MAX`].
    pub mtu: u16,
    /// Source of the Ethernet address.
    pub mac: MacSource,
    /// Faults to inject at the port, in the syntax of the impairment model (`loss=0.01,seed=7`); `None`: no faults.
    pub fault: Option<String>,
    /// File (pcapng) that records all frames that the port sends and receives; `None`: no recording.
    pub capture: Option<PathBuf>,
}

impl Default for PortConfig {
    fn default() -> Self {
        PortConfig {
            spec: None,
            kernel: KernelAddresses::All,
            mtu: 1500,
            mac: MacSource::Derived,
            fault: None,
            capture: None,
        }
    }
}

/// Section `[ip]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IpConfig {
    /// Our addresses with their prefix lengths, the main one first, at most one IPv4 address. A device on a port needs
    /// an address, or [`autoconf`](Self::autoconf).
    pub addresses: Vec<Cidr>,
    /// Whether to take addresses and default routers from IPv6 router advertisements on the link (RFC 4862).
    pub autoconf: bool,
    /// The VLAN that all frames are tagged with; `None`: untagged frames.
    pub vlan: Option<u16>,
    /// Routers for packets to other networks: at most one for IPv4 and one for IPv6.
    pub gateways: Vec<IpAddr>,
    /// Static routes to certain other networks; the longest matching prefix decides.
    pub routes: Vec<Route>,
}

/// Section `[engine]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineConfig {
    /// Core numbers for engine threads; empty: any core.
    pub cores: Vec<usize>,
    /// Engines of a device; `None`: one for each of `cores`, at least one.
    pub engines: Option<usize>,
    /// Which threads drive the engine.
    pub progress: Progress,
    /// The implementation of the CRC.
    pub crc_kernel: CrcKernel,
}

impl EngineConfig {
    /// Returns the number of engines of a device, from 1 to [`MAX_ENGINES`].
    pub fn count(&self) -> usize {
        self.engines.unwrap_or(self.cores.len()).clamp(1, MAX_ENGINES)
    }
}

/// The maximum number of engines of a device.
pub const MAX_ENGINES: usize = 64;

/// The maximum number of keep-alive probes without an answer after which a connection ends.
pub const MAX_PROBES: u8 = 100;

/// Which threads drive an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// Only the application, by polling completion queues and by control calls.
    Inline,
    /// A dedicated thread that never sleeps.
    Dedicated,
    /// Application threads while they poll. While none polls, an engine thread takes over. It sleeps between its polls:
    /// until something arrives if the transport signals arrivals, otherwise briefly.
    #[default]
    Adaptive,
}

/// Choice of the CRC implementation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrcKernel {
    /// The fastest that the processor can run.
    #[default]
    Auto,
    /// Tables.
    Portable,
    /// The CRC32 instruction.
    Sse42,
    /// AVX2 with VPCLMULQDQ.
    Avx2,
    /// AVX-512 with VPCLMULQDQ.
    Vpclmul,
}

/// Section `[tcp]`.
#[derive(Clone, Debug, PartialEq)]
pub struct TcpConfig {
    /// Minimum retransmission time-out (RFC 6298).
    pub rto_min: Duration,
    /// Receive window of a connection, in bytes.
    pub recv_window: u32,
    /// Whether to offer selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Whether to offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Whether to offer window scaling (RFC 7323); without it a window is at most 65,535 bytes.
    pub window_scale: bool,
    /// Congestion control.
    pub congestion: Congestion,
    /// Explicit congestion notification.
    pub ecn: Ecn,
    /// Whether to spread the segments of a congestion window over the round-trip time.
    pub pacing: bool,
    /// Silence after which keep-alive probes start (RFC 9293 §3.8.4); `None`: no probes, so a dead peer goes
    /// unnoticed while nothing is sent.
    pub keepalive_idle: Option<Duration>,
    /// Time between keep-alive probes.
    pub keepalive_interval: Duration,
    /// Unanswered keep-alive probes after which the peer counts as dead.
    pub keepalive_count: u8,
    /// Maximum time that data stays unacknowledged before the connection is aborted (RFC 9293 §3.8.3); `None`:
    /// only the maximum number of retransmissions ends the connection.
    pub user_timeout: Option<Duration>,
    /// Maximum time that octets of a stream should wait on a link between two processes; `None`: only the congestion
    /// window limits the octets in flight.
    pub queue_delay: Option<Duration>,
}

impl Default for TcpConfig {
    fn default() -> Self {
        TcpConfig {
            rto_min: Duration::from_millis(200),
            recv_window: 1 << 20,
            sack: true,
            timestamps: true,
            window_scale: true,
            congestion: Congestion::Cubic,
            ecn: Ecn::Accept,
            pacing: false,
            keepalive_idle: Some(Duration::from_secs(10)),
            keepalive_interval: Duration::from_secs(1),
            keepalive_count: 5,
            user_timeout: Some(Duration::from_secs(30)),
            queue_delay: None,
        }
    }
}

/// Congestion control of a TCP sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// NewReno (RFC 5681, RFC 6582).
    Reno,
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// DCTCP (RFC 8257); offers ECN unless that is off.
    Dctcp,
}

/// Explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Never used.
    Off,
    /// Accepted from peers that offer it when they open a connection.
    #[default]
    Accept,
    /// Accepted, and offered to every peer.
    Offer,
}

/// Section `[mpa]`.
#[derive(Clone, Debug, PartialEq)]
pub struct MpaConfig {
    /// Highest MPA revision that is used: 1 (RFC 5044) or 2 (RFC 6581).
    pub rev: u8,
    /// Whether to ask for CRC32C; a connection uses it if either side asks (RFC 5044 §7.1).
    pub crc: bool,
    /// Whether to ask the peer to send markers (RFC 5044 §4.3). We send markers if the peer asks for them.
    pub markers: bool,
    /// The ready-to-receive indication that a connecting side sends first, so that the accepting side may send too
    /// (RFC 6581 §5).
    pub rtr: RtrChoice,
    /// Maximum number of inbound RDMA Reads served at once per connection; an application may ask for fewer.
    pub ird: u16,
    /// Maximum number of outbound RDMA Reads in flight per connection; an application may ask for fewer.
    pub ord: u16,
    /// Time that the accepting side waits for the MPA Request after TCP has connected, and for the
    /// ready-to-receive indication after its own Reply. For connections that the application requests or converts,
    /// the application sets the limit.
    pub startup_timeout: Duration,
}

/// The ready-to-receive indication that a connecting side sends before anything else, without the application's
/// involvement. It belongs to the peer-to-peer model of RFC 6581, which needs revision 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RtrChoice {
    /// None: the client-server model, in which the application that connects sends first.
    #[default]
    Off,
    /// Any kind that the peer accepts, preferably a Write, then a Read, then a Send.
    Any,
    /// A zero-length RDMA Write.
    Write,
    /// A zero-length RDMA Read.
    Read,
    /// A zero-length Send.
    Send,
}

/// The maximum number of concurrent RDMA Reads that revision 2 can negotiate (RFC 6581 §9.1: 14 bits, all ones
/// excluded).
pub const IRD_ORD_MAX: u16 = 0x3ffe;

impl Default for MpaConfig {
    fn default() -> Self {
        MpaConfig {
            rev: 2,
            crc: true,
            markers: false,
            rtr: RtrChoice::Off,
            ird: 255,
            ord: 255,
            startup_timeout: Duration::from_secs(5),
        }
    }
}

/// Section `[memory]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryConfig {
    /// MiB for packet buffers and the built-in allocator; `None`: as much as the MTU and the engines need
    /// ([`Config::memory_mb`]).
    pub mb: Option<u32>,
    /// Whether to use hugepages.
    pub hugepages: Hugepages,
    /// Whether payload may be sent from the application's memory without a copy.
    pub lend: Lend,
}

/// Sending of payload without a copy, where the transport supports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lend {
    /// Used for payload that is long enough to gain from it. A program that changes a buffer before its request is
    /// complete breaks the CRC of the data in flight, which ends the connection.
    #[default]
    Auto,
    /// Never used. All payload is copied, so a program that changes a buffer too early does not break a CRC.
    Off,
}

/// Use of hugepages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hugepages {
    /// Used if enough of them are free; otherwise ordinary pages are used, with one warning.
    #[default]
    Auto,
    /// Never used.
    Off,
    /// Required: without enough of them, the device is not opened.
    Required,
}

impl IpConfig {
    /// Returns whether the node has an address, or may get one from a router.
    pub fn is_configured(&self) -> bool {
        !self.addresses.is_empty() || self.autoconf
    }

    /// Returns whether the node uses IPv6.
    pub fn has_ipv6(&self) -> bool {
        self.autoconf || self.addresses.iter().any(|a| a.address.is_ipv6())
    }
}

impl Config {
    /// Returns the memory of this process in MiB: the value set; otherwise 128, or 256 with jumbo frames, plus half
    /// of that for each engine beyond the first.
    pub fn memory_mb(&self) -> u32 {
        let first = if self.port.mtu > 1500 { 256 } else { 128 };
        self.memory.mb.unwrap_or(first + first / 2 * (self.engine.count() as u32 - 1))
    }
}

/// Words that stand for the values of an enum in files, in the environment and on the command line.
pub trait Choice: Copy + PartialEq + Sized + 'static {
    /// Each value with its word.
    const WORDS: &'static [(Self, &'static str)];

    /// Returns the value of a word; `None` for an unknown word.
    fn from_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(_, w)| *w == word).map(|(value, _)| *value)
    }

    /// Returns the word of this value.
    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(value, _)| *value == self).map_or("", |(_, word)| *word)
    }
}

macro_rules! choices {
    ($($name:ident { $($value:ident = $word:literal),+ })+) => {$(
        impl Choice for $name {
            const WORDS: &'static [(Self, &'static str)] = &[$(($name::$value, $word)),+];
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }
    )+};
}

choices! {
    Progress { Inline = "inline", Dedicated = "dedicated", Adaptive = "adaptive" }
    CrcKernel { Auto = "auto", Portable = "portable", Sse42 = "sse4.2", Avx2 = "avx2", Vpclmul = "vpclmul" }
    RtrChoice { Off = "off", Any = "any", Write = "write", Read = "read", Send = "send" }
    Congestion { Reno = "reno", Cubic = "cubic", Dctcp = "dctcp" }
    Ecn { Off = "off", Accept = "accept", Offer = "offer" }
    Hugepages { Auto = "auto", Off = "off", Required = "required" }
    Lend { Auto = "auto", Off = "off" }
    MemifRole { Server = "server", Client = "client" }
}
