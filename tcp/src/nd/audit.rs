//! For tests: the invariants of neighbours, routers and addresses, whatever messages the link carries.

use super::{Inet6, MAX_WAITING, addresses, router};
use crate::audit::{Fault, must};
use crate::config::MAX_ADDRESSES;
use crate::ipv6::MIN_MTU;

impl Inet6 {
    pub fn audit(&self) -> Result<(), Fault> {
        // The configured addresses, one link-local address, and the automatic ones.
        must!(self.own.len() <= MAX_ADDRESSES + 1 + addresses::MAX_AUTOMATIC);
        must!(self.own.iter().enumerate().all(|(i, a)| self.own.iter().skip(i + 1).all(|b| a.ip != b.ip)));
        must!(self.prefixes.len() <= router::MAX_PREFIXES);
        must!(self.routers.len() <= router::MAX_ROUTERS);
        must!(self.out.len() <= MAX_WAITING);
        must!(!self.enabled || (MIN_MTU..=self.link_mtu).contains(&self.mtu));
        must!(self.enabled || self.own.is_empty() && self.out.is_empty());
        self.cache.audit()
    }
}
