//! What is known of the largest packets that paths carry (RFC 1191 §6.3, RFC 8201 §5.3). Bounded, and forgotten after a
//! while: paths change, and a false message must not slow a connection down for ever.

use crate::audit::{Fault, must};
use crate::time::Time;
use core::net::IpAddr;
use core::time::Duration;
use std::collections::{HashMap, VecDeque};

/// How long a smaller packet size counts before a larger one is tried again (RFC 1191 §6.3: 10 minutes).
pub(crate) const LIFETIME: Duration = Duration::from_secs(600);
/// Destinations that are remembered.
const MAX_DESTINATIONS: usize = 1024;

pub(crate) struct PathMtus {
    known: HashMap<IpAddr, (u16, Time)>,
    /// All of them, the oldest first; those that were told of again are named again.
    order: VecDeque<(IpAddr, Time)>,
}

impl PathMtus {
    pub fn new() -> Self {
        PathMtus { known: HashMap::new(), order: VecDeque::new() }
    }

    /// The largest packet to `ip`, if it is known to be smaller than those of our link.
    pub fn get(&self, ip: IpAddr, now: Time) -> Option<u16> {
        self.known.get(&ip).filter(|(_, until)| *until > now).map(|(mtu, _)| *mtu)
    }

    /// For tests: no more are remembered than there is room for.
    pub fn audit(&self) -> Result<(), Fault> {
        must!(self.order.len() <= MAX_DESTINATIONS && self.known.len() <= self.order.len());
        Ok(())
    }

    /// A path carries no more than `mtu`.
    pub fn set(&mut self, ip: IpAddr, mtu: u16, now: Time) {
        let until = now + LIFETIME;
        self.known.insert(ip, (mtu, until));
        self.order.push_back((ip, until));
        // What is told of again and again leaves old names behind, which count too.
        while self.order.len() > MAX_DESTINATIONS {
            let Some((old, end)) = self.order.pop_front() else { break };
            if self.known.get(&old).is_some_and(|(_, until)| *until == end) {
                self.known.remove(&old);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_and_forgotten() {
        let mut mtus = PathMtus::new();
        let host = |n: u32| IpAddr::from(n.to_be_bytes());
        mtus.set(host(1), 1400, Time::ZERO);
        assert_eq!(mtus.get(host(1), Time::from_secs(599)), Some(1400));
        assert_eq!(mtus.get(host(1), Time::from_secs(600)), None);
        for n in 0..5000 {
            mtus.set(host(n), 1300, Time::from_secs(1));
        }
        assert!(mtus.known.len() <= MAX_DESTINATIONS && mtus.order.len() <= MAX_DESTINATIONS);
        assert_eq!(
            (mtus.get(host(1), Time::from_secs(2)), mtus.get(host(4999), Time::from_secs(2))),
            (None, Some(1300))
        );
    }
}
