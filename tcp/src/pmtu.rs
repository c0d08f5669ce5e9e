//! Known path MTUs (RFC 1191 §6.3, RFC 8201 §5.3). The number of entries is bounded. Entries expire, because paths
//! change and a false message must not slow a connection down for ever.

use crate::audit::{Fault, must};
use crate::time::Time;
use core::net::IpAddr;
use core::time::Duration;
use std::collections::{HashMap, VecDeque};

/// Time for which a lowered path MTU is kept before a larger packet is tried again (RFC 1191 §6.3: 10 minutes).
pub(crate) const LIFETIME: Duration = Duration::from_secs(600);
/// Maximum number of remembered destinations.
const MAX_DESTINATIONS: usize = 1024;

pub(crate) struct PathMtus {
    known: HashMap<IpAddr, (u16, Time)>,
    /// All destinations, each with the time at which it expires; the oldest first. A destination that is set twice
    /// is listed twice.
    order: VecDeque<(IpAddr, Time)>,
}

impl PathMtus {
    pub fn new() -> Self {
        PathMtus { known: HashMap::new(), order: VecDeque::new() }
    }

    /// Returns the path MTU to `ip`, if it is known to be smaller than that of our link.
    pub fn get(&self, ip: IpAddr, now: Time) -> Option<u16> {
        self.known.get(&ip).filter(|(_, until)| *until > now).map(|(mtu, _)| *mtu)
    }

    /// Checks, for tests, that the number of entries is bounded.
    pub fn audit(&self) -> Result<(), Fault> {
        must!(self.order.len() <= MAX_DESTINATIONS && self.known.len() <= self.order.len());
        Ok(())
    }

    /// Notes that the path to `ip` carries packets of at most `mtu` octets.
    pub fn set(&mut self, ip: IpAddr, mtu: u16, now: Time) {
        let until = now + LIFETIME;
        self.known.insert(ip, (mtu, until));
        self.order.push_back((ip, until));
        // A destination that is set again keeps its old entry in `order`, and this entry counts towards the limit.
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
