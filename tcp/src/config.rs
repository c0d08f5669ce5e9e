//! Settings of a stack.

use crate::congestion::Congestion;
use crate::ipv6::{MIN_MTU, is_link_local, is_no_host, link_local};
use crate::sabotage::{Rule, broken};
use crate::steering::Steering;
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use thiserror::Error;

/// Most addresses of a stack.
pub const MAX_ADDRESSES: usize = 16;

/// Settings of one stack: one port and its addresses.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Our MAC address: unicast, not zero.
    pub mac: [u8; 6],
    /// Our addresses, the main one first. At most one is of IPv4.
    pub addresses: Vec<Address>,
    /// The VLAN of all frames, 1 to 4094; they carry its tag (IEEE 802.1Q). `None`: frames carry no tag.
    pub vlan: Option<u16>,
    /// Also use the addresses, prefixes and routers that routers of the link advertise (RFC 4862). IPv6 is on if this
    /// is set or an IPv6 address is configured.
    pub autoconf: bool,
    /// Default routers, at most one of each family. Without a default router, configured or advertised, only on-link
    /// prefixes and `routes` can be reached.
    pub gateways: Vec<IpAddr>,
    /// Routes to certain other prefixes. The longest matching prefix decides.
    pub routes: Vec<Route>,
    /// Largest IP packet, in octets: 576 to 65535, or 1280 to 65535 with IPv6.
    pub mtu: u16,
    /// Secret from which initial sequence numbers, port numbers and hash keys derive. It must not be guessable. All
    /// stacks of a device have the same one.
    pub seed: u64,
    /// The stack's place among the stacks of its device.
    pub steering: Steering,
    /// The port fills in TCP checksums. The checksum field then holds the sum of the pseudo-header.
    pub checksum_offload_tx: bool,
    /// TCP's own settings.
    pub tcp: TcpConfig,
}

/// An address of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address, which must be a host's.
    pub ip: IpAddr,
    /// Length of the on-link prefix: at most 32 bits for IPv4, 128 for IPv6.
    pub prefix_len: u8,
}

impl Address {
    /// Returns whether `ip` has this address's on-link prefix.
    pub fn reaches(&self, ip: IpAddr) -> bool {
        same_prefix(self.ip, ip, self.prefix_len)
    }
}

/// A static route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Any address of the prefix.
    pub network: IpAddr,
    /// Length of the prefix: at most 32 bits for IPv4, 128 for IPv6.
    pub prefix_len: u8,
    /// The router: another host of one of our prefixes or, with IPv6, a link-local address.
    pub via: IpAddr,
}

impl Route {
    pub(crate) fn leads_to(&self, ip: IpAddr) -> bool {
        same_prefix(self.network, ip, self.prefix_len)
    }
}

/// Returns whether both addresses are of one family and agree in their first `len` bits.
pub(crate) fn same_prefix(a: IpAddr, b: IpAddr, len: u8) -> bool {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()) & prefix_mask(len) == 0,
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let host = 128 - u32::from(len.min(128));
            (a.to_bits() ^ b.to_bits()).checked_shr(host).unwrap_or(0) == 0
        }
        _ => false,
    }
}

impl StackConfig {
    /// Returns defaults for everything except the addresses and the secret.
    pub fn new(mac: [u8; 6], ip: impl Into<IpAddr>, prefix_len: u8, seed: u64) -> Self {
        StackConfig {
            mac,
            addresses: vec![Address { ip: ip.into(), prefix_len }],
            vlan: None,
            autoconf: false,
            gateways: Vec::new(),
            routes: Vec::new(),
            mtu: 1500,
            seed,
            steering: Steering::ALONE,
            checksum_offload_tx: false,
            tcp: TcpConfig::default(),
        }
    }

    /// Returns the IPv4 address and its prefix length; `None` if there is no IPv4 address.
    pub fn ipv4(&self) -> Option<(Ipv4Addr, u8)> {
        self.addresses.iter().find_map(|a| match a.ip {
            IpAddr::V4(ip) => Some((ip, a.prefix_len)),
            IpAddr::V6(_) => None,
        })
    }

    /// Returns the addresses that no other host of the link may have. These are the configured ones and, with IPv6,
    /// the link-local address made from the MAC address. The latter is left out if another link-local address is
    /// configured and autoconfiguration is off.
    pub fn own_addresses(&self) -> Vec<IpAddr> {
        let mut own: Vec<IpAddr> = self.addresses.iter().map(|a| a.ip).collect();
        let has_own = own.iter().any(|ip| matches!(ip, IpAddr::V6(ip) if is_link_local(*ip)));
        let made = IpAddr::V6(link_local(self.mac));
        if self.has_ipv6() && (self.autoconf || !has_own) && !own.contains(&made) {
            own.push(made);
        }
        own
    }

    fn has_ipv6(&self) -> bool {
        self.autoconf || self.addresses.iter().any(|a| a.ip.is_ipv6())
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.mac == [0; 6] || self.mac[0] & 1 != 0 {
            return Err(ConfigError::Mac);
        }
        let prefixes = self.addresses.iter().map(|a| (a.ip, a.prefix_len));
        for (ip, len) in prefixes.chain(self.routes.iter().map(|r| (r.network, r.prefix_len))) {
            if len > if ip.is_ipv4() { 32 } else { 128 } {
                return Err(ConfigError::Prefix(len));
            }
        }
        let v4 = self.addresses.iter().filter(|a| a.ip.is_ipv4()).count();
        if v4 > 1 || self.addresses.len() > MAX_ADDRESSES || self.addresses.is_empty() && !self.autoconf {
            return Err(ConfigError::Addresses);
        }
        if self.vlan.is_some_and(|vlan| !(1..=4094).contains(&vlan)) {
            return Err(ConfigError::Vlan);
        }
        for &Address { ip, .. } in &self.addresses {
            let no_host = match ip {
                IpAddr::V4(ip) => {
                    ip.octets()[0] == 0 || ip.is_broadcast() || ip.is_multicast() || ip.is_loopback()
                }
                IpAddr::V6(ip) => is_no_host(ip),
            };
            if no_host {
                return Err(ConfigError::Address(ip));
            }
        }
        for g in self.gateways.iter().copied().chain(self.routes.iter().map(|r| r.via)) {
            let near = |ip| self.addresses.iter().any(|a| a.reaches(ip) && a.ip != ip);
            let link_local = matches!(g, IpAddr::V6(g) if is_link_local(g) && self.has_ipv6());
            if !near(g) && !link_local {
                return Err(ConfigError::Gateway(g));
            }
        }
        for &Route { network, via, .. } in &self.routes {
            if network.is_ipv4() != via.is_ipv4() {
                return Err(ConfigError::Family { network, via });
            }
        }
        if self.mtu < if self.has_ipv6() { MIN_MTU } else { 576 } {
            return Err(ConfigError::Mtu(self.mtu));
        }
        let t = &self.tcp;
        if !(4096..=1 << 30).contains(&t.recv_window) {
            return Err(ConfigError::RecvWindow(t.recv_window));
        }
        // RFC 9293 §3.4: sequence numbers can be compared only if they are less than 2^31 apart.
        if t.send_buffer > 1 << 30 {
            return Err(ConfigError::SendBuffer(t.send_buffer));
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

/// Returns a mask with the bits of the network part set.
pub(crate) fn prefix_mask(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0)
}

/// TCP's settings.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Lower limit of the retransmission timeout. RFC 6298 asks for 1 s; 200 ms suits a LAN.
    pub rto_min: Duration,
    /// Retransmission timeout before the first round-trip sample (RFC 6298 (2.1)).
    pub rto_initial: Duration,
    /// Upper limit of the retransmission timeout (RFC 6298 (2.5)).
    pub rto_max: Duration,
    /// Receive window in octets: data that has arrived and the user has not taken, plus data that may still arrive.
    pub recv_window: u32,
    /// Accepted connections get a window of two packets of the link's MTU until
    /// [`Stack::welcome`](crate::Stack::welcome) opens it fully. Until then a stranger can send little more
    /// than the user needs to identify it.
    pub wary: bool,
    /// Most octets that one connection may have queued or in flight; at most 2^30.
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
    /// Spread the data that the window allows over the round trip instead of sending it at once. This costs one timer
    /// event for every few segments.
    pub pacing: bool,
    /// Initial congestion window, in segments (RFC 6928: 10).
    pub initial_window: u32,
    /// Probes of idle connections; `None`: no probes.
    pub keepalive: Option<Keepalive>,
    /// Time without progress after which a connection with unacknowledged data is closed (RFC 5482). It starts anew
    /// whenever the peer acknowledges more. `None`: no connection is closed for that reason.
    pub user_timeout: Option<Duration>,
    /// Most retransmissions of a SYN or SYN-ACK.
    pub syn_retries: u8,
    /// Most retransmissions of data, and most probes of a zero window, without an answer (RFC 9293 §3.8.3, R2). After
    /// the user has closed the connection, probes of a zero window count even if they are answered (RFC 6429).
    pub data_retries: u8,
    /// Time in TIME-WAIT. RFC 9293 asks for 2 MSL, which is four minutes; hosts use less.
    pub time_wait: Duration,
    /// Time that a connection waits for the peer's FIN after our FIN was acknowledged. If both ends are closed, the
    /// user has this time to take the remaining data.
    pub fin_wait: Duration,
    /// Time that a segment waits for a window that fits all of it (RFC 9293 §3.8.6.2.1: 0.1 to 1 s).
    pub sws_override: Duration,
    /// Time that a small amount of in-order data may go without an ACK, so that the ACK can travel with our data or
    /// cover several segments (RFC 1122 §4.2.3.2). Zero: until the end of the [pass](crate#a-pass).
    pub ack_delay: Duration,
    /// Longest time that octets of a connection should wait on a path that no other traffic uses, such as a link
    /// between two processes. It bounds the octets in flight, in addition to the congestion window. `None`: the path
    /// may have other users, so there is no such bound.
    pub queue_delay: Option<Duration>,
    /// Most connections, not counting those in TIME-WAIT.
    pub max_connections: u32,
    /// Most half-open passive connections.
    pub max_syn_backlog: u32,
    /// Most connections remembered in TIME-WAIT. The oldest are dropped first.
    pub max_time_wait: u32,
    /// Most frames held by all connections together: out-of-order frames, and in-order ones that the user has not
    /// taken.
    pub max_held_frames: u32,
    /// Most neighbours remembered of each family, at most 32,767. Neighbours that connections hold are not dropped.
    /// If strangers can open more connections than this, they can fill the cache and so keep new neighbours out.
    pub max_neighbours: u32,
}

impl TcpConfig {
    /// Returns how long an ACK may be delayed.
    #[inline]
    pub(crate) fn ack_wait(&self) -> Duration {
        if broken(Rule::AcksComeDue) { Duration::from_secs(60) } else { self.ack_delay }
    }

    /// Returns whether our SYNs offer ECN.
    pub(crate) fn offers_ecn(&self) -> bool {
        self.ecn == Ecn::Offer || (self.congestion == Congestion::Dctcp && self.ecn != Ecn::Off)
    }
}

/// Use of explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ecn {
    /// Never.
    Off,
    /// On connections whose opener offers it. With DCTCP we offer it as well.
    #[default]
    Accept,
    /// On every connection whose peer agrees; we offer it.
    Offer,
}

impl Default for TcpConfig {
    fn default() -> Self {
        TcpConfig {
            rto_min: Duration::from_millis(200),
            rto_initial: Duration::from_secs(1),
            rto_max: Duration::from_secs(60),
            recv_window: 1 << 20,
            wary: false,
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
            ack_delay: Duration::from_micros(50),
            queue_delay: None,
            max_connections: 1 << 19,
            max_syn_backlog: 1024,
            max_time_wait: 16_384,
            max_held_frames: 16_384,
            max_neighbours: 32_767,
        }
    }
}

/// Schedule of the probes of idle connections (RFC 9293 §3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes before the connection is closed.
    pub count: u8,
}

/// Time limits of a connection whose peer is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// See [`TcpConfig::keepalive`].
    pub keepalive: Option<Keepalive>,
    /// See [`TcpConfig::user_timeout`].
    pub user_timeout: Option<Duration>,
}

/// An invalid setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The Ethernet address is zero or a group address.
    #[error("the Ethernet address must be a unicast address")]
    Mac,
    /// The prefix length exceeds the length of the address.
    #[error("prefix length {0} is longer than the address")]
    Prefix(u8),
    /// No address, two of IPv4, or too many.
    #[error("a stack has at least one address, at most one of IPv4, and at most {MAX_ADDRESSES} in all")]
    Addresses,
    /// The VLAN is out of range.
    #[error("the VLAN must be between 1 and 4094")]
    Vlan,
    /// An address is not a host's.
    #[error("{0} is not the address of a host")]
    Address(IpAddr),
    /// A gateway or router is neither another host of one of our prefixes nor, with IPv6, a link-local address.
    #[error(
        "{0} cannot be a router: it is neither another host in one of the stack's networks nor, with IPv6, a \
         link-local address; name a router on the link"
    )]
    Gateway(IpAddr),
    /// A route leads to addresses of one family through a router of the other.
    #[error(
        "the route to {network} cannot go through {via}, which is of the other family; name a router of its own"
    )]
    Family {
        /// [`Route::network`].
        network: IpAddr,
        /// [`Route::via`].
        via: IpAddr,
    },
    /// The MTU is too small.
    #[error("MTU {0} is under 576, or under 1280 with IPv6")]
    Mtu(u16),
    /// The receive window is out of range.
    #[error("receive window {0} is not between 4096 and 2^30")]
    RecvWindow(u32),
    /// The send buffer is too large.
    #[error("send buffer {0} is over 2^30")]
    SendBuffer(u32),
    /// `max_connections` is zero or too large, or `max_syn_backlog` is too large.
    #[error("max_connections must be between 1 and 2^24, and max_syn_backlog at most 2^24")]
    Limit,
    /// The timeouts are not in order.
    #[error("retransmission timeouts must satisfy 0 < rto_min <= rto_initial <= rto_max")]
    Rto,
}

#[cfg(test)]
mod tests;
