//! Network addresses in their usual text forms.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address with its network's prefix length: `10.0.0.1/24`, `fd00::1/64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    /// The address of the host.
    pub address: IpAddr,
    /// Prefix length in bits, from 1 to 32 (IPv4) or 128 (IPv6).
    pub prefix: u8,
}

/// Returns the bits of an address, left-aligned in 128 bits, and the number of these bits.
fn bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(a) => (u128::from(a.to_bits()) << 96, 32),
        IpAddr::V6(a) => (a.to_bits(), 128),
    }
}

/// Returns a mask of all bits after the first `prefix` bits.
fn host_bits(prefix: u8) -> u128 {
    u128::MAX.checked_shr(prefix.into()).unwrap_or(0)
}

impl Cidr {
    /// Returns whether `other` is in the same network.
    pub fn contains(self, other: IpAddr) -> bool {
        let ((own, width), (other, other_width)) = (bits(self.address), bits(other));
        width == other_width && (own ^ other) & !host_bits(self.prefix) == 0
    }

    /// Returns whether a host can have this address. It cannot if the address is the network's own, or a
    /// broadcast, multicast, loopback, unspecified or IPv4-mapped address. An IPv6 network's own address
    /// belongs to its routers (RFC 4291 §2.6.1). With a prefix of 31 bits or more (RFC 3021), or 127 bits or
    /// more with IPv6 (RFC 6164), a network has neither an address of its own nor a broadcast address.
    fn usable(self) -> bool {
        let a = self.address;
        let (own, width) = bits(a);
        let mask = host_bits(self.prefix) & !host_bits(width);
        let host = own & mask;
        let edge = match a {
            IpAddr::V4(_) => self.prefix < 31 && (host == 0 || host == mask),
            IpAddr::V6(a) => self.prefix < 127 && host == 0 || a.to_ipv4_mapped().is_some(),
        };
        let broadcast = a == IpAddr::from([255; 4]);
        !(edge || broadcast || a.is_unspecified() || a.is_multicast() || a.is_loopback())
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((address, prefix)) = text.split_once('/') else {
            return Err(format!("{text:?} has no prefix length"));
        };
        let address = address.parse().map_err(|_| format!("{address:?} is not an IP address"))?;
        let (_, width) = bits(address);
        let prefix = prefix
            .parse()
            .ok()
            .filter(|p| (1..=width).contains(p))
            .ok_or_else(|| format!("the prefix length {prefix:?} is not a number from 1 to {width}"))?;
        let cidr = Cidr { address, prefix };
        if !cidr.usable() {
            return Err(format!("{text:?} cannot be the address of a host"));
        }
        Ok(cidr)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// A static route: `10.1.0.0/16 via 10.0.0.2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The network's address.
    pub network: IpAddr,
    /// Prefix length in bits, from 0 to 32 (IPv4) or 128 (IPv6).
    pub prefix: u8,
    /// The router: an address in one of our own networks, or an IPv6 link-local address.
    pub via: IpAddr,
}

impl FromStr for Route {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a route");
        let (network, via) = text.split_once(" via ").ok_or_else(wrong)?;
        let (network, prefix) = network.trim().split_once('/').ok_or_else(wrong)?;
        let network: IpAddr = network.parse().map_err(|_| wrong())?;
        let (own, width) = bits(network);
        let prefix: u8 = prefix.parse().ok().filter(|p| *p <= width).ok_or_else(wrong)?;
        if own & host_bits(prefix) != 0 {
            return Err(format!("{text:?} has host bits set behind its prefix"));
        }
        let via: IpAddr = via.trim().parse().map_err(|_| wrong())?;
        if via.is_ipv4() != network.is_ipv4() {
            return Err(format!("{text:?} mixes IPv4 and IPv6"));
        }
        Ok(Route { network, prefix, via })
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} via {}", self.network, self.prefix, self.via)
    }
}

/// An Ethernet address: `02:00:00:00:00:01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Returns the locally administered Ethernet address that is derived from an IP address. Hosts of one network get
    /// different Ethernet addresses if their IP addresses differ in the last 32 bits only.
    pub fn for_address(address: IpAddr) -> Mac {
        match address {
            IpAddr::V4(ip) => {
                let [a, b, c, d] = ip.octets();
                Mac([0x02, 0x75, a, b, c, d])
            }
            IpAddr::V6(ip) => {
                let bits = ip.to_bits();
                let folded = ((bits >> 96) ^ (bits >> 64) ^ (bits >> 32) ^ bits) as u32;
                let [a, b, c, d] = folded.to_be_bytes();
                Mac([0x02, 0x76, a, b, c, d])
            }
        }
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not an Ethernet address");
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().filter(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()));
            *octet = u8::from_str_radix(part.ok_or_else(wrong)?, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() {
            return Err(wrong());
        }
        if octets[0] & 1 == 1 {
            return Err(format!("{text:?} is a group address (the first octet is odd)"));
        }
        if octets == [0; 6] {
            return Err(format!("{text:?} is not the address of a station"));
        }
        Ok(Mac(octets))
    }
}

/// Source of the Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MacSource {
    /// A locally administered address, derived from the IP address. The kernel's stack ignores frames to this address.
    #[default]
    Derived,
    /// The address of the network interface or NIC, for networks that block frames with any other address.
    Interface,
    /// A fixed address.
    Fixed(Mac),
}

impl FromStr for MacSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "derived" => Ok(MacSource::Derived),
            "interface" => Ok(MacSource::Interface),
            _ => text.parse().map(MacSource::Fixed),
        }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests;
