//! The neighbour cache and neighbour unreachability detection (RFC 4861 §5, §7.2, §7.3).
//!
//! As with ARP, a connection holds its neighbour by index, the cache is bounded, and neighbours that no connection
//! holds make room for others. A neighbour advertisement never adds a neighbour to the cache. A solicitation adds its
//! sender only if it asks for one of our addresses, and a router advertisement adds the router.

use crate::arp::Resolved;
use crate::audit::{Fault, must};
use crate::neighbours::{self, Neighbour, Places};
use crate::time::Time;
use core::net::Ipv6Addr;
use core::time::Duration;

/// REACHABLE_TIME, DELAY_FIRST_PROBE_TIME and RETRANS_TIMER (RFC 4861 §10).
pub(super) const REACHABLE: Duration = Duration::from_secs(30);
const DELAY: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_secs(1);
/// MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT.
const TRIES: u8 = 3;
/// Time that a neighbour is remembered without being used.
const FORGET: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A solicitation is out; no address is known.
    Incomplete,
    /// The neighbour answered, or TCP made progress through it, a short while ago.
    Reachable,
    /// The address is known but not confirmed. It is used at the next send.
    Stale,
    /// A frame was sent. TCP may still confirm that the neighbour is reachable.
    Delay,
    /// The neighbour is being asked whether it is reachable.
    Probe,
    /// No host answered, or none was asked yet. The next send asks.
    Absent,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub ip: Ipv6Addr,
    pub mac: [u8; 6],
    pub state: State,
    pub router: bool,
    tries: u8,
    /// Number of connections that hold it.
    holders: u32,
    /// A solicitation waits to be sent.
    asked: bool,
    /// Time when it was last known to be reachable.
    confirmed: Time,
}

impl neighbours::Entry for Entry {
    type Address = Ipv6Addr;

    fn address(&self) -> Ipv6Addr {
        self.ip
    }

    fn holders(&mut self) -> &mut u32 {
        &mut self.holders
    }

    fn is_unknown(&self) -> bool {
        matches!(self.state, State::Incomplete | State::Absent)
    }
}

/// A solicitation to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub target: Ipv6Addr,
    /// Last known MAC address of the neighbour, to which the solicitation goes; `None`: it goes to the group.
    pub directly: Option<[u8; 6]>,
}

pub(super) struct Cache {
    places: Places<Entry>,
    /// Neighbours to send a solicitation for.
    asks: Vec<u16>,
    /// Time that an answer remains valid: ReachableTime.
    pub reachable: Duration,
}

/// The content of a neighbour advertisement (RFC 4861 §7.2.5).
#[derive(Clone, Copy, Debug)]
pub(super) struct Advert {
    pub mac: Option<[u8; 6]>,
    pub router: bool,
    pub solicited: bool,
    pub override_: bool,
}

impl Cache {
    pub fn new(limit: u32, now: Time) -> Self {
        Cache { places: Places::new(limit, now), asks: Vec::new(), reachable: REACHABLE }
    }

    pub fn find(&self, ip: Ipv6Addr) -> Option<&Entry> {
        self.places.get(self.places.find(ip)?)
    }

    pub fn hold(&mut self, ip: Ipv6Addr, now: Time) -> Option<Neighbour> {
        let i = self.find_or_create(ip, now)?;
        self.places.hold(i);
        Some(Neighbour::v6(i))
    }

    pub fn release(&mut self, n: Neighbour) {
        self.places.release(n.index());
    }

    /// Returns the neighbour's MAC address; `None` if it is not known. Using a stale address starts reachability
    /// detection.
    #[inline]
    pub fn resolve(&mut self, n: Neighbour, now: Time) -> Option<[u8; 6]> {
        let i = n.index();
        let e = self.places.get_mut(i)?;
        match e.state {
            State::Reachable | State::Delay | State::Probe => Some(e.mac),
            State::Stale => {
                e.state = State::Delay;
                let mac = e.mac;
                self.places.schedule(i, now + DELAY);
                Some(mac)
            }
            State::Incomplete => None,
            State::Absent => {
                (e.state, e.tries) = (State::Incomplete, 1);
                self.ask(i, now);
                None
            }
        }
    }

    /// Notes that the neighbour is reachable, because TCP makes progress through it (RFC 4861 §7.3.1).
    #[inline]
    pub fn confirm(&mut self, n: Neighbour, now: Time) {
        let (i, reachable) = (n.index(), self.reachable);
        let Some(e) = self.places.get_mut(i) else { return };
        match e.state {
            // The timer takes this into account when it expires.
            State::Reachable => e.confirmed = now,
            State::Stale | State::Delay | State::Probe => {
                (e.state, e.confirmed) = (State::Reachable, now);
                self.places.schedule(i, now + reachable);
            }
            State::Incomplete | State::Absent => {}
        }
    }

    fn find_or_create(&mut self, ip: Ipv6Addr, now: Time) -> Option<u16> {
        let new = || Entry {
            ip,
            mac: [0; 6],
            state: State::Absent,
            router: false,
            tries: 0,
            holders: 0,
            asked: false,
            confirmed: now,
        };
        self.places.find_or_add(ip, new)
    }

    fn ask(&mut self, i: u16, now: Time) {
        self.places.schedule(i, now + RETRY);
        if let Some(e) = self.places.get_mut(i)
            && !std::mem::replace(&mut e.asked, true)
        {
            self.asks.push(i);
        }
    }

    pub fn has_asks(&self) -> bool {
        !self.asks.is_empty()
    }

    /// Returns the next solicitation to send; `None` if there is none.
    pub fn next_ask(&mut self) -> Option<Ask> {
        loop {
            let i = self.asks.pop()?;
            // The neighbour that needed the solicitation may be gone, and another one may have its place. The
            // new one is asked only if its own `asked` is set.
            let Some(e) = self.places.get_mut(i).filter(|e| e.asked) else { continue };
            e.asked = false;
            return Some(Ask { target: e.ip, directly: (e.state == State::Probe).then_some(e.mac) });
        }
    }

    /// Learns the MAC address of a host that asks for us, or of a router that advertises itself (RFC 4861 §7.2.3,
    /// §6.3.4). This does not confirm that the neighbour is reachable.
    pub fn learn(&mut self, ip: Ipv6Addr, mac: [u8; 6], router: bool, now: Time) -> Option<Resolved> {
        let i = self.find_or_create(ip, now)?;
        let e = self.places.get_mut(i)?;
        e.router |= router;
        let waiting = matches!(e.state, State::Incomplete | State::Absent);
        if waiting || e.mac != mac {
            (e.mac, e.state, e.tries) = (mac, State::Stale, 0);
            self.places.schedule(i, now + FORGET);
        }
        waiting.then_some(Resolved::Found(Neighbour::v6(i)))
    }

    /// Takes an advertisement of a neighbour (RFC 4861 §7.2.5). A neighbour that is not in the cache is not added.
    pub fn advertised(&mut self, ip: Ipv6Addr, a: Advert, now: Time) -> Option<Resolved> {
        let i = self.places.find(ip)?;
        let reachable = self.reachable;
        let e = self.places.get_mut(i)?;
        let n = Neighbour::v6(i);
        let other = a.mac.is_some_and(|mac| mac != e.mac);
        let waiting = matches!(e.state, State::Incomplete | State::Absent);
        if waiting {
            e.mac = a.mac?;
        } else if other && !a.override_ {
            // The advertisement may be another host's. It makes the known address doubtful but does not replace it.
            if e.state == State::Reachable {
                e.state = State::Stale;
                self.places.schedule(i, now + FORGET);
            }
            return None;
        } else if let Some(mac) = a.mac {
            e.mac = mac;
        }
        e.router = a.router;
        if a.solicited {
            (e.state, e.tries, e.confirmed) = (State::Reachable, 0, now);
            self.places.schedule(i, now + reachable);
        } else if waiting || other {
            (e.state, e.tries) = (State::Stale, 0);
            self.places.schedule(i, now + FORGET);
        }
        waiting.then_some(Resolved::Found(n))
    }

    /// Handles one timer that is due, and returns the news about its neighbour: `Some(None)` if there is no news;
    /// `None` if no timer is due. Call until it returns `None`.
    pub fn advance(&mut self, now: Time) -> Option<Option<Resolved>> {
        let i = self.places.poll(now)?;
        let reachable = self.reachable;
        let Some(e) = self.places.get_mut(i) else { return Some(None) };
        match e.state {
            State::Reachable if e.confirmed + reachable > now => {
                let until = e.confirmed + reachable;
                self.places.schedule(i, until);
                return Some(None);
            }
            State::Reachable => {
                e.state = State::Stale;
                self.places.schedule(i, now + FORGET);
                return Some(None);
            }
            State::Stale => {
                if e.holders == 0 {
                    self.places.remove(i);
                }
                return Some(None);
            }
            State::Delay => (e.state, e.tries) = (State::Probe, 1),
            State::Incomplete | State::Probe if e.tries < TRIES => e.tries += 1,
            // No host answers. If the neighbour's address was known, the neighbour may have another one now
            // (RFC 4861 §7.3.3).
            State::Incomplete | State::Probe => {
                e.state = State::Absent;
                if e.holders == 0 {
                    self.places.remove(i);
                }
                return Some(Some(Resolved::Absent(Neighbour::v6(i))));
            }
            State::Absent => return Some(None),
        }
        self.ask(i, now);
        Some(None)
    }

    /// Repeats the solicitations that could not leave while the link was down.
    pub fn link_came_up(&mut self, now: Time) {
        for i in self.places.numbers() {
            if self.places.get(i).is_some_and(|e| e.state == State::Incomplete) {
                self.ask(i, now);
            }
        }
    }

    /// Checks, for tests, that solicitations and places are consistent and bounded.
    pub fn audit(&self) -> Result<(), Fault> {
        must!(self.asks.len() <= 2 * self.places.limit());
        self.places.audit()
    }

    pub fn next_deadline(&self) -> Option<Time> {
        self.places.next_deadline()
    }
}
