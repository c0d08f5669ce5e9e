//! Settings of a stack.

use crate::congestion::Congestion;
use core::net::Ipv4Addr;
use core::time::Duration;
use thiserror::Error;

/// Settings of one stack: one port, one IPv4 address.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Our MAC address; unicast, not zero.
    pub mac: [u8; 6],
    /// Our address; a host address of the prefix.
    pub ip: Ipv4Addr,
    /// Length of the on-link prefix, 0 to 32.
    pub prefix_len: u8,
    /// Where packets for other prefixes go; without it they are unreachable.
    pub gateway: Option<Ipv4Addr>,
    /// Where packets for certain other prefixes go; the longest prefix decides.
    pub routes: Vec<Route>,
    /// Largest IP packet, in octets: 576 to 65535.
    pub mtu: u16,
    /// Secret from which initial sequence numbers, port numbers and hash keys derive. Must not be guessable.
    pub seed: u64,
    /// The port fills TCP checksums: the field then holds the pseudo-header's sum.
    pub checksum_offload_tx: bool,
    /// TCP's own settings.
    pub tcp: TcpConfig,
}

/// A static route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// An address of the prefix.
    pub network: Ipv4Addr,
    /// Its length, 0 to 32.
    pub prefix_len: u8,
    /// The router, a host of our own prefix.
    pub via: Ipv4Addr,
}

impl Route {
    pub(crate) fn leads_to(&self, ip: Ipv4Addr) -> bool {
        (self.network.to_bits() ^ ip.to_bits()) & prefix_mask(self.prefix_len) == 0
    }
}

impl StackConfig {
    /// Defaults for everything but the addresses and the secret.
    pub fn new(mac: [u8; 6], ip: Ipv4Addr, prefix_len: u8, seed: u64) -> Self {
        StackConfig {
            mac,
            ip,
            prefix_len,
            gateway: None,
            routes: Vec::new(),
            mtu: 1500,
            seed,
            checksum_offload_tx: false,
            tcp: TcpConfig::default(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.mac == [0; 6] || self.mac[0] & 1 != 0 {
            return Err(ConfigError::Mac);
        }
        if self.prefix_len > 32 {
            return Err(ConfigError::Prefix(self.prefix_len));
        }
        if self.ip.is_unspecified()
            || self.ip.is_broadcast()
            || self.ip.is_multicast()
            || self.ip.is_loopback()
        {
            return Err(ConfigError::Address(self.ip));
        }
        for route in &self.routes {
            if route.prefix_len > 32 {
                return Err(ConfigError::Prefix(route.prefix_len));
            }
        }
        for g in self.gateway.into_iter().chain(self.routes.iter().map(|r| r.via)) {
            let mask = prefix_mask(self.prefix_len);
            if g == self.ip || g.to_bits() & mask != self.ip.to_bits() & mask {
                return Err(ConfigError::Gateway(g));
            }
        }
        if self.mtu < 576 {
            return Err(ConfigError::Mtu(self.mtu));
        }
        let t = &self.tcp;
        if !(4096..=1 << 30).contains(&t.recv_window) {
            return Err(ConfigError::RecvWindow(t.recv_window));
        }
        if t.max_connections == 0 || t.max_connections > 1 << 24 || t.max_syn_backlog > 1 << 24 {
            return Err(ConfigError::Limit);
        }
        if t.rto_min.is_zero() || t.rto_initial < t.rto_min || t.rto_max < t.rto_initial {
            return Err(ConfigError::Rto);
        }
        Ok(())
    }
}

/// The bits of the network part.
pub(crate) fn prefix_mask(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0)
}

/// TCP's settings.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Floor of the retransmission timeout. RFC 6298 asks for 1 s; 200 ms suits a LAN.
    pub rto_min: Duration,
    /// Retransmission timeout before the first round-trip sample (RFC 6298 §2.1).
    pub rto_initial: Duration,
    /// Ceiling of the retransmission timeout (RFC 6298 §2.5).
    pub rto_max: Duration,
    /// Octets of receive window. Advertised always: the user takes all data at once.
    pub recv_window: u32,
    /// Octets that one connection may have queued or in flight.
    pub send_buffer: u32,
    /// Offer selective acknowledgement (RFC 2018).
    pub sack: bool,
    /// Offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Offer window scaling (RFC 7323).
    pub window_scale: bool,
    /// Congestion control.
    pub congestion: Congestion,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: Ecn,
    /// Spread what the window lets go over the round trip instead of sending it at once. Costs a timer per few segments.
    pub pacing: bool,
    /// Initial congestion window in segments (RFC 6928: 10).
    pub initial_window: u32,
    /// Probes of idle connections; `None`: no probes.
    pub keepalive: Option<Keepalive>,
    /// A connection whose data has gone unacknowledged this long is closed (RFC 5482); `None`: never for that reason.
    pub user_timeout: Option<Duration>,
    /// How often a SYN or SYN-ACK is sent again.
    pub syn_retries: u8,
    /// How often data is sent again without an answer (RFC 9293 §3.8.3, R2).
    pub data_retries: u8,
    /// Time in TIME-WAIT. RFC 9293 asks for 2 MSL, four minutes; hosts use less.
    pub time_wait: Duration,
    /// How long a connection that has closed its side and has been acknowledged waits for the peer's FIN.
    pub fin_wait: Duration,
    /// How long a segment waits for a window that fits it whole (RFC 9293 §3.8.6.2.1: 0.1 to 1 s).
    pub sws_override: Duration,
    /// Connections, without those in TIME-WAIT.
    pub max_connections: u32,
    /// Half-open passive connections.
    pub max_syn_backlog: u32,
    /// Connections remembered in TIME-WAIT; the oldest go first.
    pub max_time_wait: u32,
    /// Out-of-order frames that all connections together hold.
    pub max_held_frames: u32,
    /// Neighbours remembered.
    pub max_neighbours: u32,
}

impl TcpConfig {
    /// Whether SYNs offer ECN.
    pub(crate) fn offers_ecn(&self) -> bool {
        self.ecn == Ecn::Offer || (self.congestion == Congestion::Dctcp && self.ecn != Ecn::Off)
    }
}

/// Use of explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ecn {
    /// Never.
    Off,
    /// On connections whose opener offers it; DCTCP offers it, too.
    #[default]
    Accept,
    /// Wherever the peer agrees.
    Offer,
}

impl Default for TcpConfig {
    fn default() -> Self {
        TcpConfig {
            rto_min: Duration::from_millis(200),
            rto_initial: Duration::from_secs(1),
            rto_max: Duration::from_secs(60),
            recv_window: 1 << 20,
            send_buffer: 4 << 20,
            sack: true,
            timestamps: true,
            window_scale: true,
            congestion: Congestion::Cubic,
            ecn: Ecn::Accept,
            pacing: false,
            initial_window: 10,
            keepalive: None,
            user_timeout: None,
            syn_retries: 6,
            data_retries: 12,
            time_wait: Duration::from_secs(60),
            fin_wait: Duration::from_secs(60),
            sws_override: Duration::from_millis(100),
            max_connections: 65_536,
            max_syn_backlog: 1024,
            max_time_wait: 16_384,
            max_held_frames: 16_384,
            max_neighbours: 4096,
        }
    }
}

/// When idle connections are probed (RFC 9293 §3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Between probes.
    pub interval: Duration,
    /// Unanswered probes before the connection is closed.
    pub count: u8,
}

/// How long a connection waits for a peer that is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// See [`TcpConfig::keepalive`].
    pub keepalive: Option<Keepalive>,
    /// See [`TcpConfig::user_timeout`].
    pub user_timeout: Option<Duration>,
}

/// A setting that cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// Zero or a group address.
    #[error("the MAC address must be a unicast address")]
    Mac,
    /// Longer than 32.
    #[error("prefix length {0} is over 32")]
    Prefix(u8),
    /// Not a host's address.
    #[error("{0} is not the address of a host")]
    Address(Ipv4Addr),
    /// Not on our link.
    #[error("gateway {0} is not another host of the local prefix")]
    Gateway(Ipv4Addr),
    /// Too small.
    #[error("MTU {0} is under 576")]
    Mtu(u16),
    /// Out of range.
    #[error("receive window {0} is not between 4096 and 2^30")]
    RecvWindow(u32),
    /// Zero or absurd.
    #[error("max_connections and max_syn_backlog must be between 1 and 2^24")]
    Limit,
    /// Not ordered.
    #[error("retransmission timeouts must satisfy 0 < rto_min <= rto_initial <= rto_max")]
    Rto,
}
