//! Sources: groups of addresses that count as one peer when peers share a resource, so that no peer can take all of
//! it.

use std::net::IpAddr;

/// A source: an IPv4 address, or an IPv6 prefix of 64 bits, because one host may have all addresses of such a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    V4(u32),
    V6(u64),
}

impl Source {
    /// Returns the source that `ip` belongs to.
    pub(crate) fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Source::V4(ip.to_bits()),
            IpAddr::V6(ip) => Source::V6((ip.to_bits() >> 64) as u64),
        }
    }
}
