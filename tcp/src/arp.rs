//! Neighbours: who has which MAC address (RFC 826, RFC 1122 §2.3.2).
//!
//! A connection holds its neighbour by index, so that a changed address takes effect with the next frame. The
//! cache is bounded; neighbours that no connection holds make room for others.

use crate::time::Time;
use crate::timer::TimerWheel;
use core::time::Duration;
use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol};
use std::collections::HashMap;
use std::net::Ipv4Addr;

/// How long an address is used before it is asked for again.
const REACHABLE: Duration = Duration::from_secs(60);
/// Between requests (RFC 1122 §2.3.2.1: at most one per second).
const RETRY: Duration = Duration::from_secs(1);
/// Requests without an answer before the neighbour counts as absent.
const TRIES: u8 = 3;
/// Octets of an ARP frame.
pub(crate) const ARP_FRAME: usize = 42;

/// Names a neighbour; stays valid while it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour(u16);

impl Neighbour {
    /// This host itself.
    pub const OWN: Neighbour = Neighbour(u16::MAX);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Asking; no address known.
    Incomplete,
    Reachable,
    /// The address is known, and asked for again.
    Probing,
    /// Nobody answered; asks again when someone wants to send.
    Absent,
}

#[derive(Debug)]
struct Entry {
    ip: Ipv4Addr,
    mac: [u8; 6],
    state: State,
    tries: u8,
    /// Connections that hold it.
    holders: u32,
    /// Someone sent through it since it was last confirmed.
    used: bool,
}

/// What became known about a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// It can be sent to now.
    Found(Neighbour),
    /// Nobody answers for the address.
    Absent(Neighbour),
}

/// The cache.
pub(crate) struct Arp {
    mac: [u8; 6],
    ip: Ipv4Addr,
    entries: Vec<Option<Entry>>,
    index: HashMap<Ipv4Addr, u16>,
    limit: usize,
    wheel: TimerWheel,
    /// Neighbours to send a request for.
    requests: Vec<Neighbour>,
}

impl Arp {
    pub fn new(mac: [u8; 6], ip: Ipv4Addr, limit: u32, now: Time) -> Self {
        Arp {
            mac,
            ip,
            entries: Vec::new(),
            index: HashMap::new(),
            limit: limit.clamp(1, u32::from(u16::MAX) - 1) as usize,
            wheel: TimerWheel::new(now),
            requests: Vec::new(),
        }
    }

    fn entry(&self, n: Neighbour) -> Option<&Entry> {
        self.entries.get(usize::from(n.0))?.as_ref()
    }

    fn entry_mut(&mut self, n: Neighbour) -> Option<&mut Entry> {
        self.entries.get_mut(usize::from(n.0))?.as_mut()
    }

    /// Holds the neighbour with address `ip` for a connection. `None`: every place is held by connections.
    pub fn hold(&mut self, ip: Ipv4Addr) -> Option<Neighbour> {
        if ip == self.ip {
            return Some(Neighbour::OWN);
        }
        let n = self.find_or_create(ip)?;
        self.entry_mut(n)?.holders += 1;
        Some(n)
    }

    pub fn release(&mut self, n: Neighbour) {
        if let Some(e) = self.entry_mut(n) {
            e.holders = e.holders.saturating_sub(1);
        }
    }

    /// The neighbour's MAC address. `None`: not known yet, a request goes out with the next `flush`.
    #[inline]
    pub fn resolve(&mut self, n: Neighbour, now: Time) -> Option<[u8; 6]> {
        if n == Neighbour::OWN {
            return Some(self.mac);
        }
        let e = self.entries.get_mut(usize::from(n.0))?.as_mut()?;
        match e.state {
            State::Reachable | State::Probing => {
                e.used = true;
                Some(e.mac)
            }
            State::Incomplete => None,
            State::Absent => {
                (e.state, e.tries) = (State::Incomplete, 1);
                self.ask(n, now);
                None
            }
        }
    }

    fn find_or_create(&mut self, ip: Ipv4Addr) -> Option<Neighbour> {
        if let Some(&i) = self.index.get(&ip) {
            return Some(Neighbour(i));
        }
        let i = if self.entries.len() < self.limit {
            self.entries.push(None);
            self.entries.len() - 1
        } else {
            // A place that no connection holds; one without an address if there is such.
            let free = |e: &Option<Entry>| e.as_ref().is_none_or(|e| e.holders == 0);
            let idle = |e: &Option<Entry>| {
                free(e) && e.as_ref().is_none_or(|e| matches!(e.state, State::Incomplete | State::Absent))
            };
            self.entries.iter().position(idle).or_else(|| self.entries.iter().position(free))?
        };
        let n = Neighbour(i as u16);
        self.remove(n);
        let entry = Entry { ip, mac: [0; 6], state: State::Absent, tries: 0, holders: 0, used: false };
        *self.entries.get_mut(i)? = Some(entry);
        self.index.insert(ip, n.0);
        Some(n)
    }

    fn remove(&mut self, n: Neighbour) {
        if let Some(old) = self.entries.get_mut(usize::from(n.0)).and_then(Option::take) {
            self.index.remove(&old.ip);
            self.wheel.cancel(u32::from(n.0));
        }
    }

    fn ask(&mut self, n: Neighbour, now: Time) {
        if !self.requests.contains(&n) {
            self.requests.push(n);
        }
        self.wheel.schedule(u32::from(n.0), now + RETRY);
    }

    /// Takes an ARP frame. Answers what became known and, for a request for our address, the reply to send.
    pub fn receive(&mut self, frame: &[u8], now: Time) -> (Option<Resolved>, Option<[u8; ARP_FRAME]>) {
        let parsed = EthernetFrame::new_checked(frame)
            .and_then(|f| ArpPacket::new_checked(f.payload()))
            .and_then(|p| ArpRepr::parse(&p));
        let Ok(ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: mac,
            source_protocol_addr: ip,
            target_protocol_addr: target,
            ..
        }) = parsed
        else {
            return (None, None);
        };
        // A probe (RFC 5227) has no sender address; nobody may claim ours or a group's.
        if !mac.is_unicast() || ip == self.ip || ip.is_multicast() || ip.is_broadcast() {
            return (None, None);
        }
        let for_us = target == self.ip;
        let asked = for_us && operation == ArpOperation::Request;
        let known = self.index.get(&ip).map(|&i| Neighbour(i));
        // RFC 826: known senders are updated always, new ones are remembered if they talk to us.
        let n = match known {
            Some(n) => Some(n),
            None if asked && !ip.is_unspecified() => self.find_or_create(ip),
            None => None,
        };
        let resolved = n.and_then(|n| self.confirm(n, mac.0, now));
        let reply = asked.then(|| self.packet(ArpOperation::Reply, mac, ip, mac));
        (resolved, reply)
    }

    fn confirm(&mut self, n: Neighbour, mac: [u8; 6], now: Time) -> Option<Resolved> {
        let e = self.entry_mut(n)?;
        let waiting = matches!(e.state, State::Incomplete | State::Absent);
        (e.mac, e.state, e.tries, e.used) = (mac, State::Reachable, 0, false);
        self.wheel.schedule(u32::from(n.0), now + REACHABLE);
        waiting.then_some(Resolved::Found(n))
    }

    /// Works off one timer that is due; call until `None`.
    pub fn advance(&mut self, now: Time) -> Option<Option<Resolved>> {
        let n = Neighbour(self.wheel.poll(now)? as u16);
        let Some(e) = self.entry_mut(n) else { return Some(None) };
        match e.state {
            State::Reachable if e.holders == 0 && !e.used => {
                self.remove(n);
                return Some(None);
            }
            State::Reachable => (e.state, e.tries) = (State::Probing, 1),
            State::Incomplete | State::Probing if e.tries < TRIES => e.tries += 1,
            State::Incomplete | State::Probing => {
                e.state = State::Absent;
                if e.holders == 0 {
                    self.remove(n);
                }
                return Some(Some(Resolved::Absent(n)));
            }
            State::Absent => return Some(None),
        }
        self.ask(n, now);
        Some(None)
    }

    /// The link has come up: asks again for who did not answer while it was down. RFC 1122 §2.3.2.1 limits requests to
    /// one a second; those before did not leave.
    pub fn link_came_up(&mut self, now: Time) {
        for i in 0..self.entries.len() {
            let n = Neighbour(i as u16);
            if self.entry(n).is_some_and(|e| e.state == State::Incomplete) {
                self.ask(n, now);
            }
        }
    }

    pub fn next_deadline(&self) -> Option<Time> {
        self.wheel.next_deadline()
    }

    /// The next request to send.
    pub fn next_request(&mut self) -> Option<[u8; ARP_FRAME]> {
        loop {
            let n = self.requests.pop()?;
            let Some(e) = self.entry(n) else { continue };
            // RFC 1122 §2.3.2.1 (2): a known neighbour is asked directly, at first: its address may have changed, or
            // never have been right.
            let directly = e.state == State::Probing && e.tries <= 1;
            let to = if directly { e.mac } else { [0xff; 6] };
            let ip = e.ip;
            return Some(self.packet(
                ArpOperation::Request,
                EthernetAddress(to),
                ip,
                EthernetAddress([0; 6]),
            ));
        }
    }

    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    fn packet(
        &self,
        operation: ArpOperation,
        to: EthernetAddress,
        target_ip: Ipv4Addr,
        target_mac: EthernetAddress,
    ) -> [u8; ARP_FRAME] {
        let mut bytes = [0; ARP_FRAME];
        let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
        frame.set_dst_addr(to);
        frame.set_src_addr(EthernetAddress(self.mac));
        frame.set_ethertype(EthernetProtocol::Arp);
        ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: EthernetAddress(self.mac),
            source_protocol_addr: self.ip,
            target_hardware_addr: target_mac,
            target_protocol_addr: target_ip,
        }
        .emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
        bytes
    }
}

#[cfg(test)]
mod tests;
