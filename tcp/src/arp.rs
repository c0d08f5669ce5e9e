//! Neighbours and their MAC addresses (RFC 826, RFC 1122 §2.3.2).
//!
//! A connection holds its neighbour by index, so that a changed address takes effect with the next frame. The cache
//! is bounded. Neighbours that no connection holds make room for others.

use crate::audit::{Fault, must};
use crate::neighbours::{self, Neighbour, Places};
use crate::time::Time;
use core::time::Duration;
use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol};
use std::net::Ipv4Addr;

/// Time that a MAC address is used before its neighbour is asked again.
const REACHABLE: Duration = Duration::from_secs(60);
/// Time that a stack remembers a MAC address without using it, if the device has several stacks. It is longer than
/// [`REACHABLE`], so that a stack that uses the address asks again first; all stacks hear the answer.
const REMEMBERED: Duration = Duration::from_secs(65);
/// Time between requests (RFC 1122 §2.3.2.1: at most one per second).
const RETRY: Duration = Duration::from_secs(1);
/// Time that the owner of an address has to object when another host claims it.
const OBJECTION: Duration = Duration::from_millis(200);
/// Requests without an answer after which the neighbour counts as absent.
const TRIES: u8 = 3;
/// Probes for an address before it is used, and the time after each. RFC 5227 §1.1 waits for seconds, because some
/// networks delay or lose frames. The wait here is shorter, because hosts on a wire answer within a millisecond.
const PROBES: u8 = 3;
const PROBE_INTERVAL: Duration = Duration::from_millis(40);
/// Announcements of a new address, and the time between them (RFC 5227 §1.1).
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// Shortest time between two defences of our address (RFC 5227 §2.4).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);
/// Octets of an ARP frame.
pub(crate) const ARP_FRAME: usize = 42;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A request is out; no address is known.
    Incomplete,
    Reachable,
    /// The address is known and is asked for again.
    Probing,
    /// No host answered, or none was asked yet. The next send asks.
    Absent,
}

#[derive(Clone, Debug)]
struct Entry {
    ip: Ipv4Addr,
    mac: [u8; 6],
    state: State,
    tries: u8,
    /// MAC address of another host that claims to be this neighbour; `None`: no host does.
    claimant: Option<[u8; 6]>,
    /// Time when the owner of `mac` was last heard.
    confirmed: Time,
    /// A request waits to be sent.
    asked: bool,
    /// Number of connections that hold the neighbour.
    holders: u32,
    /// A frame was sent to the neighbour since `confirmed`.
    used: bool,
}

impl neighbours::Entry for Entry {
    type Address = Ipv4Addr;

    fn address(&self) -> Ipv4Addr {
        self.ip
    }

    fn holders(&mut self) -> &mut u32 {
        &mut self.holders
    }

    fn is_unknown(&self) -> bool {
        matches!(self.state, State::Incomplete | State::Absent)
    }
}

/// State of the claim to our addresses (RFC 5227).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The addresses may be used: they were never claimed, or no host objected to the claim. If another host uses one
    /// of them later, we defend it and the state stays.
    Held,
    /// The network is being asked whether another host has them.
    Probing,
    /// The host with this MAC address had one of our addresses first, or claims it at the same time. We neither answer
    /// for the address nor defend it.
    Conflict([u8; 6]),
}

/// News about a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// Its address is known now.
    Found(Neighbour),
    /// No host answers for the address.
    Absent(Neighbour),
}

/// The neighbour cache of IPv4.
pub(crate) struct Arp {
    mac: [u8; 6],
    /// Another stack of the device claims and defends our address and answers for it.
    silent: bool,
    /// The device has other stacks, which may use neighbours that this one does not use.
    several: bool,
    ip: Ipv4Addr,
    places: Places<Entry>,
    /// Neighbours to send a request for.
    requests: Vec<Neighbour>,
    claim: Claim,
    /// Probes and announcements still to be sent, and the time of the next step of the claim.
    probes: u8,
    announcements: u8,
    claim_step: Time,
    /// A probe or announcement that waits to be sent.
    about_us: Option<[u8; ARP_FRAME]>,
    defended: Option<Time>,
    /// Packets in which another host uses our address, and the MAC address of the last such host.
    conflicts: u64,
    rival: Option<[u8; 6]>,
}

impl Arp {
    pub fn new(mac: [u8; 6], ip: Ipv4Addr, limit: u32, now: Time) -> Self {
        Arp {
            mac,
            silent: false,
            several: false,
            ip,
            places: Places::new(limit, now),
            requests: Vec::new(),
            claim: Claim::Held,
            probes: 0,
            announcements: 0,
            claim_step: Time::MAX,
            about_us: None,
            defended: None,
            conflicts: 0,
            rival: None,
        }
    }

    /// Lets another stack of the device speak for our address. That stack counts the conflicts; this one only
    /// remembers the MAC address of the other host.
    pub fn be_silent(&mut self) {
        self.silent = true;
    }

    /// Keeps unused neighbours longer from now on ([`REMEMBERED`]), and defends every known neighbour against
    /// another host that claims to be it ([`Self::confirm`]), because connections of the device's other stacks
    /// may use it.
    pub fn be_one_of_several(&mut self) {
        self.several = true;
    }

    /// Begins to ask whether another host has our address (RFC 5227 §2.1.1). Requests for the address are answered
    /// once the result is known, and only if no other host has the address.
    pub fn claim_address(&mut self, now: Time) {
        (self.claim, self.probes, self.announcements) = (Claim::Probing, PROBES, ANNOUNCEMENTS);
        self.claim_step = now;
    }

    pub fn claim(&self) -> Claim {
        self.claim
    }

    /// Returns how many packets showed that another host uses our address, and the MAC address of the last such host.
    pub fn conflicts(&self) -> (u64, Option<[u8; 6]>) {
        (self.conflicts, self.rival)
    }

    /// Takes the steps of a claim that are due: first probes, then announcements.
    pub fn advance_claim(&mut self, now: Time) {
        if now < self.claim_step {
            return;
        }
        if self.probes > 0 {
            self.probes -= 1;
            self.claim_step = now + PROBE_INTERVAL;
            // RFC 5227 §2.1.1: a probe has no sender address, so that no cache learns from it.
            self.queue_about_us(Ipv4Addr::UNSPECIFIED);
        } else if self.announcements > 0 {
            // RFC 5227 §2.3.
            if core::mem::replace(&mut self.claim, Claim::Held) == Claim::Probing {
                self.ask_again(now);
            }
            self.announcements -= 1;
            self.claim_step = now + ANNOUNCE_INTERVAL;
            self.queue_about_us(self.ip);
        } else {
            self.claim_step = Time::MAX;
        }
    }

    /// Queues a request for our own address, unless another stack speaks for it.
    fn queue_about_us(&mut self, sender: Ipv4Addr) {
        if !self.silent {
            self.about_us = Some(self.from(sender));
        }
    }

    /// Returns a request for our own address: a probe or an announcement.
    fn from(&self, sender: Ipv4Addr) -> [u8; ARP_FRAME] {
        let (everybody, nobody) = (EthernetAddress([0xff; 6]), EthernetAddress([0; 6]));
        self.packet(ArpOperation::Request, everybody, sender, self.ip, nobody)
    }

    /// Handles a packet in which another host uses our address or wants it.
    fn contested(&mut self, by: [u8; 6], now: Time) {
        self.conflicts += u64::from(!self.silent);
        self.rival = Some(by);
        match self.claim {
            Claim::Probing => (self.claim, self.probes, self.announcements) = (Claim::Conflict(by), 0, 0),
            Claim::Held if self.defended.is_none_or(|at| now >= at + DEFEND_INTERVAL) => {
                self.defended = Some(now);
                self.queue_about_us(self.ip);
            }
            // An address that another host had first is not ours to defend (RFC 5227 §2.1.1).
            Claim::Held | Claim::Conflict(_) => {}
        }
    }

    fn entry_mut(&mut self, n: Neighbour) -> Option<&mut Entry> {
        self.places.get_mut(n.0)
    }

    /// Holds the neighbour with address `ip` for a connection. `None`: connections hold every place in the cache.
    pub fn hold(&mut self, ip: Ipv4Addr) -> Option<Neighbour> {
        if ip == self.ip {
            return Some(Neighbour::OWN);
        }
        let n = self.find_or_create(ip)?;
        self.places.hold(n.0);
        Some(n)
    }

    pub fn release(&mut self, n: Neighbour) {
        self.places.release(n.0);
    }

    /// Returns the neighbour's MAC address. `None`: it is not known. A request is then out, or leaves with the
    /// stack's next `flush`.
    #[inline]
    pub fn resolve(&mut self, n: Neighbour, now: Time) -> Option<[u8; 6]> {
        if n == Neighbour::OWN {
            return Some(self.mac);
        }
        let e = self.places.get_mut(n.0)?;
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
        let new = || Entry {
            ip,
            mac: [0; 6],
            state: State::Absent,
            tries: 0,
            claimant: None,
            confirmed: Time::ZERO,
            asked: false,
            holders: 0,
            used: false,
        };
        self.places.find_or_add(ip, new).map(Neighbour)
    }

    fn ask(&mut self, n: Neighbour, now: Time) {
        if let Some(e) = self.entry_mut(n)
            && !e.asked
        {
            e.asked = true;
            self.requests.push(n);
        }
        self.places.schedule(n.0, now + RETRY);
    }

    /// Takes an ARP frame. Returns news about a neighbour and, for a request for our address, the reply to send.
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
        // No host may have a group address. The sender address may be unspecified, as in a probe (RFC 5227
        // §2.1.1).
        if !mac.is_unicast() || ip.is_multicast() || ip.is_broadcast() {
            return (None, None);
        }
        let (for_us, probing) = (target == self.ip, self.claim == Claim::Probing);
        let us = mac.0 == self.mac;
        // A frame with our IP address as the sender shows a conflict, unless it is an echo of our own frame. While we
        // probe, we send no such frame, so there is no echo: the frame comes from another node. That node may even have
        // our Ethernet address, because nodes may derive it from the IP address. At other times, a frame with our
        // Ethernet address may be an echo. A probe of our address shows a conflict only while we probe as well, and
        // may be an echo if it has our Ethernet address.
        let probe = ip.is_unspecified() && for_us;
        if ip == self.ip && (probing || !us) || probe && probing && !us {
            self.contested(mac.0, now);
            return (None, None);
        }
        // Only the host that has an address answers for it.
        if ip == self.ip || for_us && self.claim != Claim::Held {
            return (None, None);
        }
        let asked = for_us && operation == ArpOperation::Request;
        let known = self.places.find(ip).map(Neighbour);
        // RFC 826: any packet of a known sender may update its entry (see `confirm`); a new sender is remembered only
        // if it asks for us.
        let n = match known {
            Some(n) => Some(n),
            None if asked && !ip.is_unspecified() => self.find_or_create(ip),
            None => None,
        };
        let resolved = n.and_then(|n| self.confirm(n, mac.0, now));
        // A switch does not return a frame to the address that it comes from.
        let to = if us { EthernetAddress([0xff; 6]) } else { mac };
        let reply = (asked && !self.silent).then(|| self.packet(ArpOperation::Reply, to, self.ip, ip, mac));
        (resolved, reply)
    }

    /// Handles a host's statement that it is neighbour `n`. If the neighbour is in use and is known with another MAC
    /// address, the host with the known address is asked first, at most once a second. So no host can take over the
    /// IP address of a host that is there to object. If the device has several stacks, every known neighbour counts
    /// as in use, because a stack does not know which neighbours the others use, and the next connection may belong
    /// to any stack.
    fn confirm(&mut self, n: Neighbour, mac: [u8; 6], now: Time) -> Option<Resolved> {
        let several = self.several;
        let e = self.entry_mut(n)?;
        let in_use = several || e.holders > 0 || e.used;
        if mac != e.mac && in_use {
            match e.state {
                State::Reachable if now < e.confirmed + RETRY => return None,
                State::Reachable => {
                    (e.state, e.tries, e.claimant) = (State::Probing, 1, Some(mac));
                    self.ask(n, now);
                    self.places.schedule(n.0, now + OBJECTION);
                    return None;
                }
                State::Probing if e.tries <= 1 => {
                    e.claimant = Some(mac);
                    return None;
                }
                _ => {}
            }
        }
        self.learn(n, mac, now)
    }

    fn learn(&mut self, n: Neighbour, mac: [u8; 6], now: Time) -> Option<Resolved> {
        let e = self.entry_mut(n)?;
        let waiting = matches!(e.state, State::Incomplete | State::Absent);
        (e.mac, e.state, e.tries, e.used) = (mac, State::Reachable, 0, false);
        (e.claimant, e.confirmed) = (None, now);
        self.places.schedule(n.0, now + REACHABLE);
        waiting.then_some(Resolved::Found(n))
    }

    /// Handles one timer that is due, and returns the news about its neighbour: `Some(None)` if there is no news;
    /// `None` if no timer is due. Call until it returns `None`.
    pub fn advance(&mut self, now: Time) -> Option<Option<Resolved>> {
        let n = Neighbour(self.places.poll(now)?);
        let several = self.several;
        let Some(e) = self.entry_mut(n) else { return Some(None) };
        if let Some(mac) = e.claimant {
            // The host with the known address did not object.
            self.learn(n, mac, now);
            return Some(None);
        }
        match e.state {
            State::Reachable if e.holders == 0 && !e.used => {
                let until = e.confirmed + REMEMBERED;
                if several && now < until {
                    self.places.schedule(n.0, until);
                } else {
                    self.places.remove(n.0);
                }
                return Some(None);
            }
            State::Reachable => (e.state, e.tries) = (State::Probing, 1),
            State::Incomplete | State::Probing if e.tries < TRIES => e.tries += 1,
            State::Incomplete | State::Probing => {
                e.state = State::Absent;
                if e.holders == 0 {
                    self.places.remove(n.0);
                }
                return Some(Some(Resolved::Absent(n)));
            }
            State::Absent => return Some(None),
        }
        self.ask(n, now);
        Some(None)
    }

    /// Asks again for the unknown neighbours when requests can be sent again: the link has come up, or the address has
    /// turned out to be ours. The limit of one request per second (RFC 1122 §2.3.2.1) is kept, because the earlier
    /// requests did not leave.
    pub fn ask_again(&mut self, now: Time) {
        for i in self.places.numbers() {
            if self.places.get(i).is_some_and(|e| e.state == State::Incomplete) {
                self.ask(Neighbour(i), now);
            }
        }
    }

    /// Checks, for tests, that requests and places are consistent and bounded.
    pub fn audit(&self) -> Result<(), Fault> {
        must!(self.requests.len() <= 2 * self.places.limit());
        self.places.audit()
    }

    pub fn next_deadline(&self) -> Option<Time> {
        // Rounded up to the tick at which the timer wheels are polled, so that the deadline does not count as due
        // before that.
        let claim = Some(self.claim_step).filter(|&at| at < Time::MAX).map(crate::timer::round_up);
        self.places.next_deadline().into_iter().chain(claim).min()
    }

    /// Returns the next request to send; `None` if there is none. Drops requests to neighbours unless our address is
    /// in use: they would name it as their sender, and caches would learn it, although it may be another host's
    /// (RFC 5227 §2.1).
    pub fn next_request(&mut self) -> Option<[u8; ARP_FRAME]> {
        if let Some(frame) = self.about_us.take() {
            return Some(frame);
        }
        let held = self.claim == Claim::Held;
        loop {
            let n = self.requests.pop()?;
            let Some(e) = self.entry_mut(n) else { continue };
            e.asked = false;
            if !held {
                continue;
            }
            // RFC 1122 §2.3.2.1 (2): the first request to a known neighbour goes directly to it. Later ones are
            // broadcast, because its address may have changed or may never have been right.
            let directly = e.state == State::Probing && e.tries <= 1;
            let to = if directly { e.mac } else { [0xff; 6] };
            let ip = e.ip;
            return Some(self.packet(
                ArpOperation::Request,
                EthernetAddress(to),
                self.ip,
                ip,
                EthernetAddress([0; 6]),
            ));
        }
    }

    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty() || self.about_us.is_some()
    }

    fn packet(
        &self,
        operation: ArpOperation,
        to: EthernetAddress,
        sender_ip: Ipv4Addr,
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
            source_protocol_addr: sender_ip,
            target_hardware_addr: target_mac,
            target_protocol_addr: target_ip,
        }
        .emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
        bytes
    }
}

#[cfg(test)]
mod tests;
