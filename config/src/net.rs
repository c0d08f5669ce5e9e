//! Network addresses as people write them.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// An IPv4 address and the length of its network's prefix: `10.0.0.1/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    /// The address of the host.
    pub address: Ipv4Addr,
    /// Bits of the network, 1 to 32.
    pub prefix: u8,
}

impl Cidr {
    /// The bits of the network, set.
    fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0)
    }

    /// Whether `other` is in the same network.
    pub fn contains(self, other: Ipv4Addr) -> bool {
        (u32::from(self.address) ^ u32::from(other)) & self.mask() == 0
    }

    /// Whether a host can have this address: not of the network as a whole, not broadcast, multicast, loopback or
    /// unspecified.
    fn usable(self) -> bool {
        let a = self.address;
        let host = u32::from(a) & !self.mask();
        let edge = self.prefix < 31 && (host == 0 || host == !self.mask());
        !(edge || a.is_unspecified() || a.is_multicast() || a.is_broadcast() || a.is_loopback())
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((address, prefix)) = text.split_once('/') else {
            return Err(format!("{text:?} has no prefix length"));
        };
        if address.contains(':') {
            return Err(format!("{text:?} is an IPv6 address, and only IPv4 is supported"));
        }
        let address = address.parse().map_err(|_| format!("{address:?} is not an IPv4 address"))?;
        let prefix = prefix
            .parse()
            .ok()
            .filter(|p| (1..=32).contains(p))
            .ok_or_else(|| format!("the prefix length {prefix:?} is not a number from 1 to 32"))?;
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
    pub network: Ipv4Addr,
    /// Bits of the network, 0 to 32.
    pub prefix: u8,
    /// The router, in our own network.
    pub via: Ipv4Addr,
}

impl FromStr for Route {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a route");
        let (network, via) = text.split_once(" via ").ok_or_else(wrong)?;
        let (network, prefix) = network.trim().split_once('/').ok_or_else(wrong)?;
        let network: Ipv4Addr = network.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().ok().filter(|p| *p <= 32).ok_or_else(wrong)?;
        let host_bits = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
        if u32::from(network) & host_bits != 0 {
            return Err(format!("{text:?} has bits behind its prefix length"));
        }
        Ok(Route { network, prefix, via: via.trim().parse().map_err(|_| wrong())? })
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
    /// The locally administered address that belongs to an IPv4 address when none is set.
    pub fn for_address(address: Ipv4Addr) -> Mac {
        let [a, b, c, d] = address.octets();
        Mac([0x02, 0x75, a, b, c, d])
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
            return Err(format!("{text:?} is no station's address"));
        }
        Ok(Mac(octets))
    }
}

/// Where an Ethernet address comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MacSource {
    /// Locally administered, derived from the IP address: the kernel's stack ignores what is sent to it.
    #[default]
    Derived,
    /// That of the network interface or NIC: for networks that let no other through.
    Interface,
    /// This one.
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
