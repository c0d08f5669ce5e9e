//! Finds where the layers of a frame begin: Ethernet with or without a VLAN tag, IPv4 or IPv6, and the payload of IP.

/// Length of an Ethernet header without a tag.
pub(crate) const ETHERNET: usize = 14;
const TAG: usize = 4;
const IPV4: usize = 20;
const IPV6: usize = 40;

/// The layers of a packet that is not a fragment of IPv4. Extension headers of IPv6 count as payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layers {
    /// Offset of the IP header.
    pub ip: usize,
    /// Offset of IP's payload.
    pub payload: usize,
    pub v6: bool,
    /// Number of the protocol that follows the IP header: IPv4's Protocol, or IPv6's Next Header.
    pub protocol: u8,
    /// Octets of the payload, by IP's length field.
    pub len: usize,
}

impl Layers {
    /// Parses the headers of a frame, which may be cut off after them. Returns `None` if the frame holds no IP packet,
    /// or a fragment of an IPv4 packet.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
        let (ip, kind) = match word(12)? {
            0x8100 => (ETHERNET + TAG, word(16)?),
            kind => (ETHERNET, kind),
        };
        let first = *frame.get(ip)?;
        match (kind, first >> 4) {
            (0x0800, 4) => {
                let header = usize::from(first & 0xf) * 4;
                let total = usize::from(word(ip + 2)?);
                let fragment = word(ip + 6)? & 0x3fff != 0;
                let protocol = *frame.get(ip + 9)?;
                let len = total.checked_sub(header).filter(|_| header >= IPV4 && !fragment)?;
                Some(Layers { ip, payload: ip + header, v6: false, protocol, len })
            }
            (0x86dd, 6) => {
                let (len, protocol) = (usize::from(word(ip + 4)?), *frame.get(ip + 6)?);
                Some(Layers { ip, payload: ip + IPV6, v6: true, protocol, len })
            }
            _ => None,
        }
    }

    /// Returns the range of both IP addresses.
    pub fn addresses(&self) -> std::ops::Range<usize> {
        if self.v6 { self.ip + 8..self.ip + 40 } else { self.ip + 12..self.ip + 20 }
    }
}
