//! State that all connections of a stack share.

use crate::arp::Arp;
use crate::audit::{Fault, must};
use crate::buffers::{ConnId, Emit, Payload, Piece, Transmit};
use crate::config::{StackConfig, prefix_mask};
use crate::counters::Counters;
use crate::ecn;
use crate::held::HeldFrames;
use crate::nd::Inet6;
use crate::neighbours::Neighbour;
use crate::paths::{Path, Paths};
use crate::pmtu::PathMtus;
use crate::secret::{Purpose, Secret};
use crate::seq::Seq;
use crate::sum;
use crate::table::Key;
use crate::time::Time;
use crate::wire::{
    Common, HeaderTemplate, HeaderTemplate6, Options, Own, Segment, TYPE_TAG, TcpFields, flag,
};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::collections::HashMap;

/// Limit per second of the replies that need no connection: RST, echo replies, ACKs from TIME-WAIT, and
/// SYN-ACKs that answer a segment for a half-open connection.
const STATELESS_REPLIES: u32 = 10_000;
/// Limit of ICMP errors per second (RFC 4443 §2.4 f).
const ICMP_ERRORS: u32 = 100;

/// The common part of a series of segments that are sent directly one after the other.
pub(crate) struct Volley {
    common: Common,
    v6: bool,
    /// The segments go to ourselves.
    loopback: bool,
}

/// Returns the octets of IP and TCP headers without options or extensions.
pub(crate) fn ip_tcp(key: Key) -> u16 {
    if key.is_v6() { 60 } else { 40 }
}

pub(crate) struct Net {
    pub cfg: StackConfig,
    /// Our IPv4 address and its prefix length; unspecified if there is none.
    pub ip: Ipv4Addr,
    prefix_len: u8,
    /// The window shift that we offer (RFC 7323 §2.2).
    pub window_scale: u8,
    pub counters: Counters,
    pub arp: Arp,
    pub inet6: Inet6,
    pub paths: Paths,
    pub pmtus: PathMtus,
    pub secret: Secret,
    /// Connections that wait for a neighbour's MAC address. A connection that ends stays in the list until the
    /// neighbour answers or is found to be absent.
    waiters: HashMap<Neighbour, Vec<ConnId>>,
    /// Number of entries in all lists of `waiters`. `wait` bounds it.
    waiting: usize,
    pub held: HeldFrames,
    /// The link is short of receive buffers.
    pub pressure: bool,
    /// Most octets of payload in a frame of several segments, which the link splits or its other end takes
    /// whole; zero if the link takes no such frames.
    pub gso_max: u32,
    header: HeaderTemplate,
    header6: HeaderTemplate6,
    stateless: Limiter,
    errors: Limiter,
}

impl Net {
    pub fn new(cfg: StackConfig, now: Time) -> Self {
        let window_scale = if cfg.tcp.window_scale {
            (0..14).find(|s| cfg.tcp.recv_window >> s <= 0xffff).unwrap_or(14)
        } else {
            0
        };
        let mut secret = Secret::new(cfg.seed);
        let (ip, prefix_len) = cfg.ipv4().unwrap_or((Ipv4Addr::UNSPECIFIED, 32));
        let mut arp = Arp::new(cfg.mac, ip, cfg.tcp.max_neighbours, now);
        if !cfg.steering.speaks() {
            arp.be_silent();
        }
        if !cfg.steering.is_alone() {
            arp.be_one_of_several();
        }
        Net {
            ip,
            prefix_len,
            window_scale,
            counters: Counters::default(),
            arp,
            inet6: Inet6::new(&cfg, now),
            paths: Paths::new(secret.random(), secret.random()),
            pmtus: PathMtus::new(),
            secret,
            waiters: HashMap::new(),
            waiting: 0,
            held: HeldFrames::new(cfg.tcp.max_held_frames),
            pressure: false,
            gso_max: 0,
            header: HeaderTemplate::new(cfg.mac, cfg.vlan, ip.to_bits()),
            header6: HeaderTemplate6::new(cfg.mac, cfg.vlan),
            stateless: Limiter::new(STATELESS_REPLIES, now),
            errors: Limiter::new(ICMP_ERRORS, now),
            cfg,
        }
    }

    /// Returns the local address of a connection.
    pub fn local(&self, key: Key) -> SocketAddr {
        let ip = match self.path(key) {
            Some(path) => path.local.into(),
            None => self.ip.into(),
        };
        SocketAddr::new(ip, key.local_port())
    }

    /// Returns the remote address of a connection.
    pub fn remote(&self, key: Key) -> SocketAddr {
        let ip = match self.path(key) {
            Some(path) => path.remote.into(),
            None => Ipv4Addr::from_bits(key.remote_ip()).into(),
        };
        SocketAddr::new(ip, key.remote_port())
    }

    /// Returns the addresses of an IPv6 key; `None` for an IPv4 key.
    #[inline]
    fn path(&self, key: Key) -> Option<&Path> {
        if key.is_v6() { self.paths.get(key.remote_ip()) } else { None }
    }

    /// Returns the size of the largest packet on our link, in octets.
    fn link_mtu(&self, key: Key) -> u16 {
        if key.is_v6() { self.inet6.mtu } else { self.cfg.mtu }
    }

    /// Lowers the path MTU, after a trustworthy report or repeated losses have shown that the path to the other
    /// end carries only packets up to `mtu` octets.
    pub fn path_shrank(&mut self, key: Key, mtu: u16, now: Time) {
        if mtu < self.path_mtu(key, now) {
            self.counters.path_mtu_reductions += 1;
            self.pmtus.set(self.remote(key).ip(), mtu, now);
        }
    }

    /// Returns the size of the largest packet to the other end, in octets, as far as known.
    pub fn path_mtu(&self, key: Key, now: Time) -> u16 {
        let link = self.link_mtu(key);
        self.pmtus.get(self.remote(key).ip(), now).map_or(link, |known| known.min(link))
    }

    /// Returns our MSS option: the payload of one packet without any options (RFC 6691), in octets.
    pub fn our_mss(&self, key: Key) -> u16 {
        self.link_mtu(key) - ip_tcp(key)
    }

    /// Returns the window, in octets, of an accepted connection until [`Stack::welcome`](crate::Stack::welcome) opens
    /// it fully ([`TcpConfig::wary`](crate::TcpConfig::wary)). The window is two link MTUs, because peers cut their
    /// segments to half of the largest window that they have seen (compare RFC 9293 §3.8.6.2.1). The window is rounded
    /// up to units of the window field, and is at most the configured window and 65,535.
    pub fn newcomer_window(&self) -> u32 {
        let most = self.cfg.tcp.recv_window.min(0xffff) >> self.window_scale;
        (2 * u32::from(self.cfg.mtu)).div_ceil(1 << self.window_scale).min(most) << self.window_scale
    }

    /// Checks, for tests, that the shared state is bounded. `connections`: the number of connections.
    pub fn audit(&self, connections: usize) -> Result<(), Fault> {
        must!(self.waiting == self.waiters.values().map(Vec::len).sum::<usize>());
        must!(self.waiting <= 2 * self.cfg.tcp.max_connections as usize);
        must!(connections <= self.cfg.tcp.max_connections as usize);
        self.arp.audit()?;
        self.inet6.audit()?;
        self.pmtus.audit()
    }

    /// Notes that the stack's table now has this key.
    pub fn key_used(&mut self, key: Key) {
        if key.is_v6() {
            self.paths.hold(key.remote_ip());
        }
    }

    /// Notes that the stack's table no longer has this key.
    pub fn key_unused(&mut self, key: Key) {
        if key.is_v6() {
            self.paths.release(key.remote_ip());
        }
    }

    /// Returns the address on our link that a packet to `ip` goes to; `None` if there is no route.
    pub fn next_hop(&self, ip: IpAddr, now: Time) -> Option<IpAddr> {
        let ip = match ip {
            IpAddr::V4(ip) if !self.ip.is_unspecified() => ip,
            IpAddr::V4(_) => return None,
            IpAddr::V6(ip) => return self.inet6.next_hop(ip, now).map(IpAddr::V6),
        };
        if ip.octets()[0] == 0 || ip.is_broadcast() || ip.is_multicast() || ip.is_loopback() {
            return None;
        }
        let mask = prefix_mask(self.prefix_len);
        let (ours, theirs) = (self.ip.to_bits(), ip.to_bits());
        let on_link = ours & mask == theirs & mask;
        let routes = self.cfg.routes.iter().filter(|r| r.leads_to(ip.into()));
        match routes.max_by_key(|r| r.prefix_len) {
            Some(route) if !on_link || route.prefix_len > self.prefix_len => return Some(route.via),
            _ if !on_link => return self.cfg.gateways.iter().find(|g| g.is_ipv4()).copied(),
            _ => {}
        }
        // The first and the last address of a prefix are no hosts, except in /31 and /32 (RFC 3021).
        let host = theirs & !mask;
        let no_host = self.prefix_len < 31 && (host == 0 || host == !mask);
        (!no_host).then_some(ip.into())
    }

    /// Returns the initial sequence number of a connection (RFC 6528 §3): a secret function of its addresses plus a
    /// clock with ticks of 4 µs.
    pub fn initial_sequence(&self, key: Key, now: Time) -> Seq {
        let f = self.secret.of_connection(self.local(key), self.remote(key), Purpose::InitialSequence);
        Seq((f as u32).wrapping_add((now.as_nanos() / 4_000) as u32))
    }

    /// Returns the offset of a connection's timestamps (RFC 7323 §5.4). It depends only on the addresses and ports,
    /// so a new connection between the same ports continues the timestamps of the old one.
    pub fn timestamp_offset(&self, key: Key) -> u32 {
        self.secret.of_connection(self.local(key), self.remote(key), Purpose::TimestampOffset) as u32
    }

    /// Sends one segment. The caller has checked that there is room.
    pub fn emit<P: Payload, T: Transmit<P>>(
        &mut self,
        tx: &mut T,
        fields: &TcpFields<'_>,
        payload: &[Piece<'_, P>],
        retransmit: bool,
        gso_size: u16,
    ) {
        if let Some(volley) = self.begin(fields) {
            self.emit_next(tx, &volley, fields.own(), payload, retransmit, gso_size);
        }
    }

    /// Begins a series of segments that differ from `fields` only in sequence number and flags. Nothing else may be
    /// emitted before the last of these segments. `None`: `paths` does not have the IPv6 addresses of the key.
    #[inline(always)]
    pub fn begin(&mut self, fields: &TcpFields<'_>) -> Option<Volley> {
        let remote = fields.key.remote_ip();
        if fields.key.is_v6() {
            let path = self.paths.get(remote)?;
            let common = self.header6.begin(fields, path, self.inet6.hop_limit);
            return Some(Volley { common, v6: true, loopback: path.own });
        }
        let loopback = remote == self.ip.to_bits();
        Some(Volley { common: self.header.begin(fields), v6: false, loopback })
    }

    /// Sends one segment of the series. The caller has checked that there is room.
    #[inline(always)]
    pub fn emit_next<P: Payload, T: Transmit<P>>(
        &mut self,
        tx: &mut T,
        volley: &Volley,
        own: Own,
        payload: &[Piece<'_, P>],
        retransmit: bool,
        gso_size: u16,
    ) {
        let offload = self.cfg.checksum_offload_tx;
        let (len, sum) = match payload {
            _ if offload => (payload.iter().map(|p| p.range.len()).sum(), 0),
            [p] => (p.range.len(), p.payload.sum(p.range.clone())),
            _ => payload.iter().fold((0, 0), |(len, sum), p| {
                (len + p.range.len(), sum::combine(sum, len, p.payload.sum(p.range.clone())))
            }),
        };
        let payload_sum = (!offload).then_some(sum);
        let headers = if volley.v6 {
            self.header6.finish(&volley.common, own, len, payload_sum)
        } else {
            self.header.finish(&volley.common, own, len, payload_sum)
        };
        let loopback = volley.loopback;
        self.counters.segments_out += 1;
        self.counters.bytes_out += len as u64;
        if retransmit {
            self.counters.retransmitted_segments += 1;
            self.counters.retransmitted_bytes += len as u64;
        }
        tx.emit(Emit { headers, payload, loopback, retransmit, tcp_checksum_offload: offload, gso_size });
    }

    /// Sends a frame that is complete except for the tag of our VLAN.
    pub fn emit_frame<P: Payload, T: Transmit<P>>(&mut self, tx: &mut T, frame: &[u8], loopback: bool) {
        let tagged = self.cfg.vlan.zip(frame.split_at_checked(12)).map(|(vlan, (addresses, rest))| {
            [addresses, &TYPE_TAG.to_be_bytes(), &vlan.to_be_bytes(), rest].concat()
        });
        tx.emit(Emit {
            headers: tagged.as_deref().unwrap_or(frame),
            payload: &[],
            loopback,
            retransmit: false,
            tcp_checksum_offload: false,
            gso_size: 0,
        });
    }

    /// Holds the neighbour with address `ip` for a connection. `None`: connections hold every place in the cache.
    pub fn hold(&mut self, ip: IpAddr, now: Time) -> Option<Neighbour> {
        match ip {
            IpAddr::V4(ip) => self.arp.hold(ip),
            IpAddr::V6(ip) => self.inet6.hold(ip, now),
        }
    }

    /// Ends one hold of the neighbour.
    pub fn release(&mut self, n: Neighbour) {
        if n.is_v6() { self.inet6.release(n) } else { self.arp.release(n) }
    }

    /// Returns the neighbour's MAC address; `None` if it is not known. The first such call queues a request, which the
    /// next `flush` sends.
    #[inline]
    pub fn resolve(&mut self, n: Neighbour, now: Time) -> Option<[u8; 6]> {
        if n.is_v6() { self.inet6.resolve(n, now) } else { self.arp.resolve(n, now) }
    }

    /// Remembers that a connection waits for a neighbour. `false`: too many wait, and the connection must try again
    /// by itself.
    pub fn wait(&mut self, n: Neighbour, id: ConnId) -> bool {
        let may = self.waiting < 2 * self.cfg.tcp.max_connections as usize;
        if may {
            self.waiters.entry(n).or_default().push(id);
            self.waiting += 1;
        }
        may
    }

    /// Removes and returns the connections that wait for a neighbour.
    pub fn take_waiters(&mut self, n: Neighbour) -> Vec<ConnId> {
        let those = self.waiters.remove(&n).unwrap_or_default();
        self.waiting -= those.len();
        those
    }

    /// Counts one more stateless reply. Returns whether the limit allows it.
    pub fn may_reply(&mut self, now: Time) -> bool {
        let may = self.stateless.take(now);
        self.counters.limited += u64::from(!may);
        may
    }

    /// Counts one more ICMP error message. Returns whether the limit allows it.
    pub fn may_complain(&mut self, now: Time) -> bool {
        let may = self.errors.take(now);
        self.counters.limited += u64::from(!may);
        may
    }

    /// Answers a segment with a RST to the MAC address `mac` (RFC 9293 §3.10.7.1). The segment belongs to no
    /// connection, or its ACK is unacceptable during the handshake. Does nothing if the segment is a RST,
    /// without room, or beyond the limit of stateless replies.
    pub fn reset<P: Payload, T: Transmit<P>>(
        &mut self,
        now: Time,
        tx: &mut T,
        mac: [u8; 6],
        key: Key,
        s: &Segment,
    ) {
        if s.has(flag::RST) || tx.room() == 0 || !self.may_reply(now) {
            return;
        }
        let (seq, ack, flags) = if s.has(flag::ACK) {
            (s.ack, Seq(0), flag::RST)
        } else {
            (Seq(0), s.seq + s.len(), flag::RST | flag::ACK)
        };
        self.counters.resets_out += 1;
        let fields = TcpFields {
            dst_mac: mac,
            key,
            seq,
            ack,
            flags,
            ecn: ecn::NOT_ECT,
            window: 0,
            options: &Options::new(),
        };
        self.emit(tx, &fields, &[], false, 0);
    }
}

/// A limit per second, with bursts of at most a tenth of it.
struct Limiter {
    interval: Duration,
    burst: Duration,
    /// Time up to which the allowance is used up. Each reply moves it on by `interval`, but never past the present.
    spent: Time,
}

impl Limiter {
    fn new(per_second: u32, now: Time) -> Self {
        let burst = Duration::from_millis(100);
        Limiter { interval: Duration::from_secs(1) / per_second, burst, spent: now - burst }
    }

    fn take(&mut self, now: Time) -> bool {
        let from = self.spent.max(now - self.burst);
        if from + self.interval > now {
            return false;
        }
        self.spent = from + self.interval;
        true
    }
}
