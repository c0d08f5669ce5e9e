//! Our addresses, configured or made from a router's prefix, and duplicate address detection (RFC 4862).

use super::{DEFEND_INTERVAL, Inet6};
use crate::ipv6::{self, interface_id, is_link_local};
use crate::nd::message::{self, advert};
use crate::time::Time;
use core::net::Ipv6Addr;
use core::time::Duration;

/// Probes for an address before it is used, and the time after each. RFC 4862 §5.1 sends one probe and waits for a
/// second, because some networks delay frames. As with ARP, the wait here is shorter, because hosts on a wire answer
/// within a millisecond.
const PROBES: u8 = 3;
const PROBE_INTERVAL: Duration = Duration::from_millis(40);
/// Most addresses that we make from routers' prefixes.
pub(super) const MAX_AUTOMATIC: usize = 8;
/// An advertisement cannot reduce the remaining lifetime of an address to less than this, and cannot reduce a shorter
/// one at all (RFC 4862 §5.5.3 e).
const TWO_HOURS: Duration = Duration::from_secs(7200);

/// A link-local destination that stands for all others when a source address is looked up.
pub(super) const ANY_LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The network is being asked whether another host has the address.
    Tentative {
        probes: u8,
        next: Time,
        nonce: [u8; 6],
    },
    Usable,
    /// Another host has the address.
    Duplicate,
}

/// An address of ours.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub ip: Ipv6Addr,
    pub prefix_len: u8,
    state: State,
    /// Made from a router's prefix.
    automatic: bool,
    preferred_until: Time,
    valid_until: Time,
    /// `preferred_until` has passed. New connections use this address only if no other one suits.
    deprecated: bool,
}

impl Own {
    /// Makes a configured address.
    pub fn fixed(ip: Ipv6Addr, prefix_len: u8) -> Self {
        Own {
            ip,
            prefix_len,
            state: State::Usable,
            automatic: false,
            preferred_until: Time::MAX,
            valid_until: Time::MAX,
            deprecated: false,
        }
    }

    pub fn is_usable(&self) -> bool {
        self.state == State::Usable
    }

    pub fn is_tentative(&self) -> bool {
        matches!(self.state, State::Tentative { .. })
    }

    pub fn is_duplicate(&self) -> bool {
        self.state == State::Duplicate
    }

    pub fn is_deprecated(&self) -> bool {
        self.deprecated
    }

    /// Returns whether the configuration, and not a router, puts its prefix on the link.
    pub fn is_fixed(&self) -> bool {
        !self.automatic
    }

    /// Returns whether a probe with this nonce is our own.
    pub fn asked_with(&self, nonce: &[u8]) -> bool {
        matches!(self.state, State::Tentative { nonce: own, .. } if nonce == own)
    }
}

impl Inet6 {
    /// Begins to ask whether another host has our addresses (RFC 4862 §5.4). Until the result is known, they are not
    /// used.
    pub fn claim_addresses(&mut self, now: Time) {
        self.probes_addresses = true;
        self.conflict = None;
        for i in 0..self.own.len() {
            self.ask_whether_free(i, now);
        }
    }

    fn ask_whether_free(&mut self, i: usize, now: Time) {
        let [a, b, c, d, e, f, ..] = self.secret.random().to_be_bytes();
        if let Some(own) = self.own.get_mut(i) {
            own.state = State::Tentative { probes: PROBES, next: now, nonce: [a, b, c, d, e, f] };
            self.review_at = self.review_at.min(now);
        }
    }

    /// Handles a message that shows that another host has one of our addresses or wants it.
    pub(super) fn contested(&mut self, i: usize, by: [u8; 6], now: Time) {
        let Some(own) = self.own.get_mut(i) else { return };
        self.conflicts += u64::from(!self.silent);
        self.rival = Some(by);
        self.contested_address = Some(own.ip);
        if own.is_tentative() {
            own.state = State::Duplicate;
            // Only conflicts of configured addresses are reported, not the loss of an automatic one.
            if !own.automatic {
                self.conflict = Some(by);
            }
        } else if own.is_usable() && self.defended.is_none_or(|at| now >= at + DEFEND_INTERVAL) {
            self.defended = Some(now);
            let ip = own.ip;
            self.advertise(ip, ipv6::ALL_NODES, None, advert::OVERRIDE);
        }
    }

    /// Takes the steps of addresses, prefixes and routers that are due.
    pub(super) fn review(&mut self, now: Time) {
        let mut next = Time::MAX;
        self.own.retain(|a| a.valid_until > now);
        for i in 0..self.own.len() {
            let Some(own) = self.own.get_mut(i) else { break };
            if let State::Tentative { probes, next: at, nonce } = own.state {
                let (ip, mut state, mut due) = (own.ip, own.state, at);
                if at <= now && probes > 0 {
                    due = now + PROBE_INTERVAL;
                    state = State::Tentative { probes: probes - 1, next: due, nonce };
                    let frame = message::probe(self.mac, ip, nonce);
                    self.queue(frame);
                } else if at <= now {
                    (state, due) = (State::Usable, Time::MAX);
                    // Neighbours that remember another MAC address for it learn our MAC address (RFC 4861 §7.2.6).
                    self.advertise(ip, ipv6::ALL_NODES, None, advert::OVERRIDE);
                    if is_link_local(ip) {
                        self.joined(now);
                        self.ask_for_routers(now);
                    }
                }
                if let Some(own) = self.own.get_mut(i) {
                    own.state = state;
                }
                next = next.min(due);
            }
            if let Some(own) = self.own.get_mut(i) {
                own.deprecated = own.preferred_until <= now;
                let ends = if own.deprecated { own.valid_until } else { own.preferred_until };
                next = next.min(ends);
            }
        }
        self.prefixes.retain(|p| p.until > now);
        self.routers.retain(|r| r.until > now);
        let learned = self.prefixes.iter().map(|p| p.until).chain(self.routers.iter().map(|r| r.until));
        self.review_at = learned.min().unwrap_or(Time::MAX).min(next);
    }

    /// Makes an address from a prefix that a router offers, or updates it (RFC 4862 §5.5.3).
    pub(super) fn autoconfigure(
        &mut self,
        prefix: Ipv6Addr,
        len: u8,
        valid: Duration,
        preferred: Duration,
        now: Time,
    ) {
        if len != 64 || is_link_local(prefix) || preferred > valid || ipv6::is_no_host(prefix) {
            return;
        }
        let network = prefix.to_bits() >> 64;
        let same = |a: &&mut super::Own| a.automatic && a.ip.to_bits() >> 64 == network;
        if let Some(own) = self.own.iter_mut().find(same) {
            own.preferred_until = now + preferred;
            // A forged advertisement must not be able to take an address away at once (§5.5.3 e).
            let rest = own.valid_until.since(now);
            let valid = if valid > TWO_HOURS || valid > rest { valid } else { rest.min(TWO_HOURS) };
            own.valid_until = now + valid;
            self.review_at = now;
            return;
        }
        let automatic = self.own.iter().filter(|a| a.automatic).count();
        if valid.is_zero() || automatic >= MAX_AUTOMATIC {
            return;
        }
        let ip = Ipv6Addr::from_bits(network << 64 | interface_id(self.mac));
        if self.own.iter().any(|a| a.ip == ip) {
            return;
        }
        self.own.push(Own {
            automatic: true,
            preferred_until: now + preferred,
            valid_until: now + valid,
            ..Own::fixed(ip, len)
        });
        self.joined(now);
        self.review_at = now;
        if self.probes_addresses {
            self.ask_whether_free(self.own.len() - 1, now);
        }
    }
}
