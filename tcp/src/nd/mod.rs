//! IPv6 on the link: our addresses and whether another host has them, neighbours, routers, and the groups that we
//! join (RFC 4861, RFC 4862, RFC 3810).
//!
//! This module does no I/O: the caller passes in messages, takes frames to send from a bounded queue, and asks for
//! the next deadline. Redirects are ignored, because with them any node of the link could divert a host's packets.

mod addresses;
mod audit;
mod cache;
pub(crate) mod message;
mod router;

use crate::arp::{Claim, Resolved};
use crate::config::{Address, Route, StackConfig, same_prefix};
use crate::ipv6::{self, is_link_local, is_no_host};
use crate::neighbours::Neighbour;
use crate::secret::Secret;
use crate::time::Time;
use addresses::Own;
use cache::{Advert, Cache};
use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;
use message::{Envelope, advert, kind, option};
use router::{Prefix, Router};
use std::collections::VecDeque;

/// Most frames that wait to be sent. A frame that finds the queue full is dropped; the next solicitation or report
/// replaces it.
const MAX_WAITING: usize = 64;
/// Time between the two reports of groups that we have joined (RFC 3810 §9.11).
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time between two defences of our addresses.
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// An arrived message of neighbour or listener discovery, with a correct checksum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival<'a> {
    /// MAC address that its frame came from.
    pub src_mac: [u8; 6],
    pub src: Ipv6Addr,
    pub dst: Ipv6Addr,
    pub hop_limit: u8,
    pub message: &'a [u8],
}

/// The state of IPv6 in a stack.
pub(crate) struct Inet6 {
    mac: [u8; 6],
    /// Another stack of the device speaks for our addresses. This stack learns from all messages, but sends only
    /// solicitations for neighbours.
    silent: bool,
    /// If false, there is no IPv6: no addresses, and nothing is sent or accepted.
    enabled: bool,
    autoconf: bool,
    own: Vec<Own>,
    cache: Cache,
    gateway: Option<Ipv6Addr>,
    routes: Vec<Route>,
    prefixes: Vec<Prefix>,
    routers: Vec<Router>,
    /// Largest packet on this link, in octets: the configured size, or the one that a router advertises.
    pub mtu: u16,
    /// The configured size. No router can make `mtu` larger.
    link_mtu: u16,
    pub hop_limit: u8,
    /// Addresses are used only after the network was asked whether another host has them.
    probes_addresses: bool,
    /// Router solicitations still to be sent, and the time of the next one.
    solicitations: u8,
    solicit_at: Time,
    /// Reports of our groups still to be sent, and the time of the next one.
    reports: u8,
    report_at: Time,
    /// Time of the next step of addresses, prefixes and routers.
    review_at: Time,
    /// Time of the last call of `advance`.
    reached: Time,
    secret: Secret,
    out: VecDeque<Vec<u8>>,
    /// MAC address of the host that turned out to have a configured address of ours when we probed for it;
    /// `None`: the probes found no such host.
    conflict: Option<[u8; 6]>,
    /// Packets in which another host uses one of our addresses. The two fields after this one are the MAC address of
    /// the last such host, and that address of ours.
    conflicts: u64,
    rival: Option<[u8; 6]>,
    contested_address: Option<Ipv6Addr>,
    /// Time of the last defence of an address; `None`: none was defended.
    defended: Option<Time>,
}

impl Inet6 {
    pub fn new(cfg: &StackConfig, now: Time) -> Self {
        let v6 = |ip: &IpAddr| match ip {
            IpAddr::V6(ip) => Some(*ip),
            IpAddr::V4(_) => None,
        };
        let fixed = |a: &Address| v6(&a.ip).map(|ip| Own::fixed(ip, a.prefix_len));
        let mut own: Vec<Own> = cfg.addresses.iter().filter_map(fixed).collect();
        let enabled = !own.is_empty() || cfg.autoconf;
        if enabled && !own.iter().any(|a| is_link_local(a.ip)) {
            own.push(Own::fixed(ipv6::link_local(cfg.mac), 64));
        }
        let mut inet = Inet6 {
            mac: cfg.mac,
            silent: !cfg.steering.speaks(),
            enabled,
            autoconf: cfg.autoconf,
            own,
            cache: Cache::new(cfg.tcp.max_neighbours, now),
            gateway: cfg.gateways.iter().find_map(v6),
            routes: cfg.routes.iter().filter(|r| r.network.is_ipv6()).copied().collect(),
            prefixes: Vec::new(),
            routers: Vec::new(),
            mtu: cfg.mtu,
            link_mtu: cfg.mtu,
            hop_limit: 64,
            probes_addresses: false,
            solicitations: 0,
            solicit_at: Time::MAX,
            reports: 0,
            report_at: Time::MAX,
            review_at: Time::MAX,
            reached: now,
            secret: Secret::new(cfg.seed ^ 0x6e64_6973_6331),
            out: VecDeque::new(),
            conflict: None,
            conflicts: 0,
            rival: None,
            contested_address: None,
            defended: None,
        };
        if enabled {
            inet.joined(now);
            inet.ask_for_routers(now);
        }
        inet
    }

    #[inline]
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns our usable addresses with their prefix lengths.
    pub fn addresses(&self) -> impl Iterator<Item = Address> {
        let usable = self.own.iter().filter(|a| a.is_usable());
        usable.map(|a| Address { ip: a.ip.into(), prefix_len: a.prefix_len })
    }

    /// Returns whether packets to `ip` are for us.
    #[inline]
    pub fn is_own(&self, ip: Ipv6Addr) -> bool {
        self.own.iter().any(|a| a.ip == ip && a.is_usable())
    }

    /// Returns whether we want an address but do not know yet whether another host has it.
    pub fn is_tentative(&self, ip: Ipv6Addr) -> bool {
        self.own.iter().any(|a| a.ip == ip && a.is_tentative())
    }

    /// Returns whether we are in a group.
    pub fn hears(&self, group: Ipv6Addr) -> bool {
        group == ipv6::ALL_NODES || self.own.iter().any(|a| ipv6::solicited_node(a.ip) == group)
    }

    /// Returns whether frames to a group's Ethernet address concern us.
    pub fn hears_frames_to(&self, mac: &[u8]) -> bool {
        self.enabled
            && mac.starts_with(&[0x33, 0x33])
            && (mac.starts_with(&ipv6::group_mac(ipv6::ALL_NODES))
                || self.own.iter().any(|a| mac.starts_with(&ipv6::group_mac(ipv6::solicited_node(a.ip)))))
    }

    /// Returns our address for packets to `dst` (RFC 6724 §5, as far as it concerns one interface); `None` if there
    /// is none.
    pub fn source_for(&self, dst: Ipv6Addr) -> Option<Ipv6Addr> {
        if self.is_own(dst) {
            return Some(dst);
        }
        let scope = is_link_local(dst);
        let usable = self.own.iter().filter(|a| a.is_usable() && is_link_local(a.ip) == scope);
        let rank = |a: &&Own| (!a.is_deprecated(), (a.ip.to_bits() ^ dst.to_bits()).leading_zeros());
        // Of addresses with equal ranks, the first one is taken.
        usable.rev().max_by_key(rank).map(|a| a.ip)
    }

    /// Returns the address on our link that a packet to `dst` goes to (RFC 4861 §5.2); `None` if there is no route.
    pub fn next_hop(&self, dst: Ipv6Addr, now: Time) -> Option<Ipv6Addr> {
        if !self.enabled || is_no_host(dst) {
            return None;
        }
        if is_link_local(dst) {
            return Some(dst);
        }
        // The longest of the on-link prefixes and routes decides; on-link wins if they are equal.
        let ip = IpAddr::V6(dst);
        let fixed = self.own.iter().filter(|a| a.is_fixed() && same_prefix(a.ip.into(), ip, a.prefix_len));
        let learned = self.prefixes.iter().filter(|p| p.until > now && p.has(dst));
        let on_link = fixed.map(|a| a.prefix_len).chain(learned.map(|p| p.len)).max();
        let route = self.routes.iter().filter(|r| r.leads_to(ip)).max_by_key(|r| r.prefix_len);
        match (on_link, route) {
            (Some(len), Some(r)) if r.prefix_len > len => via(r),
            (Some(_), _) => Some(dst),
            (None, Some(r)) => via(r),
            (None, None) => self.gateway.or_else(|| self.default_router(now)),
        }
    }

    pub fn hold(&mut self, ip: Ipv6Addr, now: Time) -> Option<Neighbour> {
        if self.is_own(ip) { Some(Neighbour::OWN) } else { self.cache.hold(ip, now) }
    }

    pub fn release(&mut self, n: Neighbour) {
        self.cache.release(n);
    }

    #[inline]
    pub fn resolve(&mut self, n: Neighbour, now: Time) -> Option<[u8; 6]> {
        self.cache.resolve(n, now)
    }

    /// Notes that TCP makes progress through a neighbour.
    #[inline]
    pub fn confirm(&mut self, n: Neighbour, now: Time) {
        self.cache.confirm(n, now);
    }

    /// Takes a message of neighbour or listener discovery.
    pub fn receive(&mut self, now: Time, a: &Arrival<'_>) -> Option<Resolved> {
        let (kind, code) = match *a.message {
            [kind, code, _, _, _, _, _, _, ..] => (kind, code),
            _ => return None,
        };
        if kind == kind::LISTENER_QUERY {
            self.receive_query(now, a);
            return None;
        }
        // RFC 4861 §6.1 and §7.1: messages that have crossed a router are invalid.
        if a.hop_limit != message::HOP_LIMIT || code != 0 {
            return None;
        }
        match kind {
            kind::NEIGHBOUR_SOLICITATION => self.receive_solicitation(now, a),
            kind::NEIGHBOUR_ADVERTISEMENT => self.receive_advertisement(now, a),
            kind::ROUTER_ADVERTISEMENT if self.autoconf => self.receive_router(now, a),
            _ => None,
        }
    }

    /// Handles a neighbour solicitation (RFC 4861 §7.2.3, RFC 4862 §5.4.3).
    fn receive_solicitation(&mut self, now: Time, a: &Arrival<'_>) -> Option<Resolved> {
        let target = message::address_at(a.message, 8)?;
        let options = message::options(a.message.get(24..)?)?;
        let mac = message::mac_in(&options, option::SOURCE);
        let nonce = options.iter().find(|(k, _)| *k == option::NONCE).map(|(_, body)| *body);
        if target.is_multicast() {
            return None;
        }
        if a.src.is_unspecified() {
            // A host asks whether the address is free.
            let to_group = a.dst == ipv6::solicited_node(target);
            if mac.is_some() || !to_group {
                return None;
            }
            let i = self.own.iter().position(|o| o.ip == target)?;
            if self.own[i].is_tentative() {
                // RFC 7527: our own probe may come back to us. Besides, if a kernel's interface has our Ethernet
                // address, the kernel makes the same IPv6 address from it and probes for it when that interface comes
                // up. So a probe from our Ethernet address shows no conflict.
                if a.src_mac != self.mac && !self.own[i].asked_with(nonce.unwrap_or(&[])) {
                    self.contested(i, a.src_mac, now);
                }
            } else if self.own[i].is_usable() {
                self.advertise(target, ipv6::ALL_NODES, None, advert::OVERRIDE);
            }
            return None;
        }
        if !self.is_own(target) || is_no_host(a.src) || self.is_own(a.src) {
            return None;
        }
        // Only hosts of this link are remembered.
        let near = is_link_local(a.src) || self.next_hop(a.src, now) == Some(a.src);
        let resolved = match mac {
            Some(mac) if near => self.cache.learn(a.src, mac, false, now),
            _ => None,
        };
        let to = mac.or_else(|| self.cache.find(a.src).map(|e| e.mac))?;
        self.advertise(target, a.src, Some(to), advert::SOLICITED | advert::OVERRIDE);
        resolved
    }

    /// Handles a neighbour advertisement (RFC 4861 §7.2.5).
    fn receive_advertisement(&mut self, now: Time, a: &Arrival<'_>) -> Option<Resolved> {
        let flags = *a.message.get(4)?;
        let target = message::address_at(a.message, 8)?;
        let options = message::options(a.message.get(24..)?)?;
        let mac = message::mac_in(&options, option::TARGET);
        let solicited = flags & advert::SOLICITED != 0;
        if target.is_multicast() || solicited && a.dst.is_multicast() {
            return None;
        }
        if let Some(i) = self.own.iter().position(|o| o.ip == target) {
            // RFC 4862 §5.4.4. An advertisement with our own MAC address is an echo of ours.
            if mac != Some(self.mac) || self.own[i].is_tentative() {
                self.contested(i, mac.unwrap_or(a.src_mac), now);
            }
            return None;
        }
        let router = flags & advert::ROUTER != 0;
        let override_ = flags & advert::OVERRIDE != 0;
        let resolved = self.cache.advertised(target, Advert { mac, router, solicited, override_ }, now);
        if !router {
            // The neighbour is no longer a router (RFC 4861 §7.2.5).
            self.routers.retain(|r| r.ip != target);
        }
        resolved
    }

    /// Advertises our MAC address for `target`, one of our addresses, to `to`. `mac`: MAC address of `to`; `None`: `to`
    /// is a group.
    fn advertise(&mut self, target: Ipv6Addr, to: Ipv6Addr, mac: Option<[u8; 6]>, flags: u8) {
        let e = Envelope {
            dst_mac: mac.unwrap_or(ipv6::group_mac(to)),
            src_mac: self.mac,
            src: target,
            dst: to,
            hop_limit: message::HOP_LIMIT,
        };
        self.queue(message::advertisement(&e, target, flags));
    }

    fn queue(&mut self, frame: Vec<u8>) {
        if !self.silent && self.out.len() < MAX_WAITING {
            self.out.push_back(frame);
        }
    }

    /// Handles a query for the groups that have members (RFC 3810 §5.1). All our groups are reported within the time
    /// that the query gives.
    fn receive_query(&mut self, now: Time, a: &Arrival<'_>) {
        let &[_, _, _, _, m0, m1, ..] = a.message else { return };
        if a.hop_limit != 1 || !is_link_local(a.src) || a.message.len() < 24 || !self.enabled {
            return;
        }
        let code = u32::from(u16::from_be_bytes([m0, m1]));
        // From 32768 on, the field is a floating-point number. Such long times are not useful here.
        let within = Duration::from_millis(u64::from(self.secret.below(code.clamp(1, 10_000))));
        if self.reports == 0 {
            self.reports = 1;
        }
        self.report_at = self.report_at.min(now + within);
    }

    /// Notes that groups have been joined. Two reports announce them.
    fn joined(&mut self, now: Time) {
        (self.reports, self.report_at) = (2, now);
    }

    fn report(&mut self, now: Time) {
        let mut groups: Vec<Ipv6Addr> =
            self.own.iter().filter(|a| !a.is_duplicate()).map(|a| ipv6::solicited_node(a.ip)).collect();
        groups.sort_unstable();
        groups.dedup();
        // Before there is a link-local address, reports have no source address (RFC 3590).
        let link_local = self.own.iter().find(|a| a.is_usable() && is_link_local(a.ip));
        let src = link_local.map_or(Ipv6Addr::UNSPECIFIED, |a| a.ip);
        self.queue(message::listener_report(self.mac, src, &groups, self.reports > 1));
        self.reports = self.reports.saturating_sub(1);
        self.report_at = if self.reports > 0 { now + REPORT_INTERVAL } else { Time::MAX };
    }

    /// Takes the steps that are due. Call `advance_neighbours` as well.
    pub fn advance(&mut self, now: Time) {
        if !self.enabled {
            return;
        }
        self.reached = now;
        if self.report_at <= now {
            self.report(now);
        }
        if self.solicit_at <= now {
            self.solicit_routers(now);
        }
        if self.review_at <= now {
            self.review(now);
        }
    }

    /// Handles one timer that is due, and returns the news about its neighbour: `Some(None)` if there is no news;
    /// `None` if no timer is due. Call until it returns `None`.
    pub fn advance_neighbours(&mut self, now: Time) -> Option<Option<Resolved>> {
        let step = self.cache.advance(now)?;
        if let Some(Resolved::Absent(_)) = step {
            self.routers_changed();
        }
        Some(step)
    }

    pub fn link_came_up(&mut self, now: Time) {
        self.cache.link_came_up(now);
        if self.enabled {
            self.joined(now);
            self.ask_for_routers(now);
        }
    }

    #[inline]
    pub fn next_deadline(&self) -> Option<Time> {
        if !self.enabled {
            return None;
        }
        let own = self.report_at.min(self.solicit_at).min(self.review_at);
        // The step waits for the tick after its own, because the stack may have handled its own tick already. A step
        // that was due before `reached` waits for the tick after `reached`.
        let own =
            (own < Time::MAX).then(|| crate::timer::round_up(own.max(self.reached) + crate::timer::TICK));
        self.cache.next_deadline().into_iter().chain(own).min()
    }

    #[inline]
    pub fn has_frames(&self) -> bool {
        self.enabled && (!self.out.is_empty() || self.cache.has_asks())
    }

    /// Returns the next frame to send; `None` if there is none.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        if let Some(frame) = self.out.pop_front() {
            return Some(frame);
        }
        while let Some(ask) = self.cache.next_ask() {
            // Uses a source address that the neighbour can answer to. We may have none yet.
            let source = self.source_for(ask.target).or_else(|| self.source_for(addresses::ANY_LINK_LOCAL));
            if let Some(src) = source {
                return Some(message::solicitation(self.mac, src, ask.target, ask.directly));
            }
        }
        None
    }

    /// Returns whether our addresses may be used, or which host has one of them.
    pub fn claim(&self) -> Claim {
        match self.conflict {
            Some(mac) => Claim::Conflict(mac),
            None if self.own.iter().any(Own::is_tentative) => Claim::Probing,
            None => Claim::Held,
        }
    }

    pub fn contested_address(&self) -> Option<Ipv6Addr> {
        self.contested_address
    }

    /// Returns how many packets showed that another host uses one of our addresses, and the MAC address of the last
    /// such host.
    pub fn conflicts(&self) -> (u64, Option<[u8; 6]>) {
        (self.conflicts, self.rival)
    }
}

fn via(r: &Route) -> Option<Ipv6Addr> {
    match r.via {
        IpAddr::V6(ip) => Some(ip),
        IpAddr::V4(_) => None,
    }
}
