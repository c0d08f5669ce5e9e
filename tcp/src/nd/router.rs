//! Routers and their advertisements (RFC 4861 §6.3).

use super::addresses::ANY_LINK_LOCAL;
use super::cache::{REACHABLE, State};
use super::message::{self, option};
use super::{Arrival, Inet6};
use crate::arp::Resolved;
use crate::ipv6::{self, is_link_local};
use crate::time::Time;
use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;

/// MAX_RTR_SOLICITATIONS and RTR_SOLICITATION_INTERVAL (RFC 4861 §10).
const SOLICITATIONS: u8 = 3;
const SOLICITATION_INTERVAL: Duration = Duration::from_secs(4);
/// Most routers and prefixes that are remembered.
pub(super) const MAX_ROUTERS: usize = 8;
pub(super) const MAX_PREFIXES: usize = 16;

/// A prefix whose hosts are on our link.
#[derive(Clone, Debug)]
pub(super) struct Prefix {
    ip: Ipv6Addr,
    pub len: u8,
    pub until: Time,
}

impl Prefix {
    pub fn has(&self, ip: Ipv6Addr) -> bool {
        crate::config::same_prefix(IpAddr::V6(self.ip), IpAddr::V6(ip), self.len)
    }
}

/// A default router.
#[derive(Clone, Debug)]
pub(super) struct Router {
    pub ip: Ipv6Addr,
    pub until: Time,
}

/// Returns a lifetime from its field in seconds. All ones means for ever.
fn lifetime(field: &[u8]) -> Duration {
    match field {
        &[a, b, c, d] => match u32::from_be_bytes([a, b, c, d]) {
            u32::MAX => Duration::MAX,
            seconds => Duration::from_secs(seconds.into()),
        },
        _ => Duration::ZERO,
    }
}

impl Inet6 {
    /// Asks for routers, if autoconfiguration uses their answers.
    pub(super) fn ask_for_routers(&mut self, now: Time) {
        if self.autoconf {
            (self.solicitations, self.solicit_at) = (SOLICITATIONS, now);
        }
    }

    pub(super) fn solicit_routers(&mut self, now: Time) {
        self.solicit_at = Time::MAX;
        // Does not ask before there is an address that a router can answer to.
        let Some(src) = self.source_for(ANY_LINK_LOCAL) else { return };
        let frame = message::router_solicitation(self.mac, src);
        self.queue(frame);
        self.solicitations = self.solicitations.saturating_sub(1);
        if self.solicitations > 0 {
            self.solicit_at = now + SOLICITATION_INTERVAL;
        }
    }

    /// Handles a router advertisement (RFC 4861 §6.1.2 and §6.3.4).
    pub(super) fn receive_router(&mut self, now: Time, a: &Arrival<'_>) -> Option<Resolved> {
        if !is_link_local(a.src) || self.is_own(a.src) {
            return None;
        }
        let fields: [u8; 16] = *a.message.first_chunk()?;
        let options = message::options(a.message.get(16..)?)?;
        (self.solicitations, self.solicit_at) = (0, Time::MAX);

        if fields[4] != 0 {
            self.hop_limit = fields[4];
        }
        let router_lifetime = Duration::from_secs(u16::from_be_bytes([fields[6], fields[7]]).into());
        let reachable = u64::from(u32::from_be_bytes([fields[8], fields[9], fields[10], fields[11]]));
        if reachable != 0 {
            // Bounded, so that no router can make us ask neighbours all the time or never.
            self.cache.reachable = Duration::from_millis(reachable).clamp(REACHABLE / 10, REACHABLE * 10);
        }
        self.routers.retain(|r| r.ip != a.src || !router_lifetime.is_zero());
        if !router_lifetime.is_zero() {
            let (until, count) = (now + router_lifetime, self.routers.len());
            match self.routers.iter_mut().find(|r| r.ip == a.src) {
                Some(known) => known.until = until,
                None if count < MAX_ROUTERS => self.routers.push(Router { ip: a.src, until }),
                None => {}
            }
        }
        for (kind, body) in &options {
            match (*kind, body.len()) {
                (option::PREFIX, 30) => self.offered(body, now),
                (option::MTU, 6) => {
                    let mtu = u32::from_be_bytes([body[2], body[3], body[4], body[5]]);
                    if mtu >= u32::from(ipv6::MIN_MTU) && mtu <= u32::from(self.link_mtu) {
                        self.mtu = mtu as u16;
                    }
                }
                _ => {}
            }
        }
        self.review_at = now;
        let mac = message::mac_in(&options, option::SOURCE)?;
        self.cache.learn(a.src, mac, true, now)
    }

    /// Handles a prefix information option (RFC 4861 §4.6.2).
    fn offered(&mut self, body: &[u8], now: Time) {
        const ON_LINK: u8 = 0x80;
        const AUTONOMOUS: u8 = 0x40;
        let (Some(&[len, flags]), Some(ip)) = (body.first_chunk::<2>(), message::address_at(body, 14)) else {
            return;
        };
        let (valid, preferred) = (lifetime(&body[2..6]), lifetime(&body[6..10]));
        if len > 128 || is_link_local(ip) || ip.is_multicast() {
            return;
        }
        if flags & ON_LINK != 0 && len > 0 {
            let (until, count) = (now + valid, self.prefixes.len());
            match self.prefixes.iter_mut().find(|p| p.len == len && p.has(ip)) {
                Some(known) => known.until = until,
                None if valid.is_zero() || count >= MAX_PREFIXES => {}
                None => self.prefixes.push(Prefix { ip, len, until }),
            }
        }
        if flags & AUTONOMOUS != 0 {
            self.autoconfigure(ip, len, valid, preferred, now);
        }
    }

    /// Returns the router for destinations without a prefix or route. Prefers a router that answers (RFC 4861
    /// §6.3.6). `None` if there is no router.
    pub(super) fn default_router(&self, now: Time) -> Option<Ipv6Addr> {
        let alive = self.routers.iter().filter(|r| r.until > now);
        let answers = |r: &&Router| {
            let state = self.cache.find(r.ip).map(|e| e.state);
            !matches!(state, None | Some(State::Incomplete | State::Absent))
        };
        alive.clone().find(answers).or_else(|| alive.clone().next()).map(|r| r.ip)
    }

    /// Moves routers that do not answer behind the others, so that the next connection uses another one.
    pub(super) fn routers_changed(&mut self) {
        let cache = &self.cache;
        let absent = |r: &Router| cache.find(r.ip).is_some_and(|e| e.state == State::Absent);
        self.routers.sort_by_key(absent);
    }
}
