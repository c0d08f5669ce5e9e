//! Parses arriving IPv6 headers: the fixed header, and extension headers as far as a host must examine them (RFC
//! 8200).
//!
//! Routing headers with segments left are refused, so type 0 never routes (RFC 5095). Fragments are refused unless they
//! are whole packets (RFC 6946). A packet may have at most eight extension headers.

use crate::buffers::Frame;
use crate::ecn;
use core::net::Ipv6Addr;
use core::ops::Range;

/// Octets of the fixed header.
pub(crate) const HEADER: usize = 40;
/// Smallest MTU of a link, in octets (RFC 8200 §5).
pub(crate) const MIN_MTU: u16 = 1280;
/// Most extension headers of a packet.
const MAX_EXTENSIONS: usize = 8;

/// Next header values (IANA).
pub(crate) mod next {
    pub const HOP_BY_HOP: u8 = 0;
    pub const TCP: u8 = 6;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const ICMP: u8 = 58;
    pub const NONE: u8 = 59;
    pub const DESTINATION: u8 = 60;
    pub const UDP: u8 = 17;
}

/// The parsed headers of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ip6 {
    pub src: Ipv6Addr,
    pub dst: Ipv6Addr,
    pub hop_limit: u8,
    /// The ECN codepoint (RFC 3168 §5).
    pub ecn: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Offset of the octet that names this protocol, from the start of the packet.
    pub named_at: usize,
    /// Range of the payload in the frame.
    pub payload: Range<usize>,
    /// Range of the packet in the frame.
    pub packet: Range<usize>,
}

/// Why a packet is not processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused6 {
    /// The packet is malformed.
    Malformed,
    /// A fragment. `first`: the first one of its packet.
    Fragment { first: bool },
    /// A parameter problem, to be reported to the sender (RFC 4443 §3.4).
    Problem {
        /// Code of the problem.
        code: u8,
        /// Offset of the problem from the start of the packet.
        at: usize,
        /// The report is also sent if the packet was for a group.
        even_group: bool,
    },
    /// The packet is dropped without a report.
    Ignore,
}

/// Codes of parameter problems (RFC 4443 §3.4).
pub(crate) mod problem {
    pub const FIELD: u8 = 0;
    pub const NEXT_HEADER: u8 = 1;
    pub const OPTION: u8 = 2;
}

/// Parses the fixed header of the packet that starts at octet `at` of a frame; extension headers are left to
/// [`skip_extensions`]. Octets after the packet are Ethernet padding. `None`: the version is not 6, or the packet is
/// cut short.
#[inline]
pub(crate) fn parse(frame: &impl Frame, at: usize) -> Option<Ip6> {
    let h = frame.bytes().get(at..)?;
    let first: &[u8; HEADER] = h.first_chunk()?;
    let end = at + HEADER + usize::from(u16::from_be_bytes([first[4], first[5]]));
    if first[0] >> 4 != 6 || end > frame.len() {
        return None;
    }
    Some(Ip6 {
        src: Ipv6Addr::from(*first[8..24].first_chunk::<16>()?),
        dst: Ipv6Addr::from(*first[24..40].first_chunk::<16>()?),
        hop_limit: first[7],
        ecn: (first[1] >> 4) & ecn::MASK,
        protocol: first[6],
        named_at: 6,
        payload: at + HEADER..end,
        packet: at..end,
    })
}

/// Parses the extension headers, if there are any, up to the payload.
pub(crate) fn skip_extensions(frame: &[u8], ip: &mut Ip6) -> Result<(), Refused6> {
    let start = ip.packet.start;
    for n in 0..=MAX_EXTENSIONS {
        let extension = match ip.protocol {
            next::HOP_BY_HOP if n > 0 => {
                // Allowed only directly after the fixed header (RFC 8200 §4.1).
                return Err(problem_at(problem::NEXT_HEADER, ip.named_at));
            }
            next::HOP_BY_HOP | next::DESTINATION | next::ROUTING | next::FRAGMENT => ip.protocol,
            next::NONE => return Err(Refused6::Ignore),
            _ => return Ok(()),
        };
        if n == MAX_EXTENSIONS {
            return Err(Refused6::Malformed);
        }
        let rest = frame.get(ip.payload.clone()).unwrap_or(&[]);
        let &[following, octets, b2, b3, ..] = rest else { return Err(Refused6::Malformed) };
        let here = ip.payload.start - start;
        let len = if extension == next::FRAGMENT { 8 } else { (usize::from(octets) + 1) * 8 };
        let Some(body) = rest.get(..len) else { return Err(Refused6::Malformed) };
        match extension {
            // A fragment has an offset or the more-fragments flag. An atomic fragment has neither and is a packet
            // like any other (RFC 6946).
            next::FRAGMENT => {
                let field = u16::from_be_bytes([b2, b3]);
                if field & 0xfff9 != 0 {
                    return Err(Refused6::Fragment { first: field & 0xfff8 == 0 });
                }
            }
            // If segments are left, we would have to forward the packet (RFC 8200 §4.4, RFC 5095).
            next::ROUTING if b3 != 0 => return Err(problem_at(problem::FIELD, here + 2)),
            next::ROUTING => {}
            _ => options(body.get(2..).unwrap_or(&[]), here + 2)?,
        }
        (ip.protocol, ip.named_at) = (following, here);
        ip.payload.start += len;
    }
    Ok(())
}

/// Returns the protocol of the upper layer, and the offset of its header in the frame, without checking the extension
/// headers that are left. `None`: the packet ends before that header, or has too many extension headers.
pub(crate) fn upper_layer(frame: &[u8], ip: &Ip6) -> Option<(u8, usize)> {
    let packet = frame.get(..ip.payload.end)?;
    let (mut protocol, mut at) = (ip.protocol, ip.payload.start);
    for _ in 0..=MAX_EXTENSIONS {
        let units = match protocol {
            next::HOP_BY_HOP | next::DESTINATION | next::ROUTING => usize::from(*packet.get(at + 1)?),
            next::FRAGMENT => 0,
            _ => return Some((protocol, at)),
        };
        protocol = *packet.get(at)?;
        at += (units + 1) * 8;
    }
    None
}

fn problem_at(code: u8, at: usize) -> Refused6 {
    Refused6::Problem { code, at, even_group: false }
}

/// Checks the options of a hop-by-hop or destination options header (RFC 8200 §4.2). Padding and router alerts are
/// known, and mean nothing to hosts.
fn options(mut rest: &[u8], mut at: usize) -> Result<(), Refused6> {
    const PAD1: u8 = 0;
    const PAD_N: u8 = 1;
    const ROUTER_ALERT: u8 = 5;
    loop {
        let step = match *rest {
            [] => return Ok(()),
            [PAD1, ..] => 1,
            [kind, len, ..] => {
                // The two highest bits tell what to do with an unknown option.
                match kind {
                    PAD_N | ROUTER_ALERT => {}
                    _ if kind >> 6 == 0 => {}
                    _ if kind >> 6 == 1 => return Err(Refused6::Ignore),
                    _ => {
                        let even_group = kind >> 6 == 2;
                        return Err(Refused6::Problem { code: problem::OPTION, at, even_group });
                    }
                }
                2 + usize::from(len)
            }
            _ => return Err(Refused6::Malformed),
        };
        let Some(behind) = rest.get(step..) else { return Err(Refused6::Malformed) };
        (rest, at) = (behind, at + step);
    }
}

/// Returns whether no host on a network can have this address: it is unspecified, loopback, multicast or IPv4-mapped.
pub(crate) fn is_no_host(ip: Ipv6Addr) -> bool {
    ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.to_ipv4_mapped().is_some()
}

/// Returns the lower half of a station's addresses (RFC 4291 appendix A).
pub(crate) fn interface_id(mac: [u8; 6]) -> u128 {
    let [a, b, c, d, e, f] = mac;
    u128::from(u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]))
}

/// Returns the link-local address that a station makes for itself.
pub(crate) fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xfe80_u128 << 112 | interface_id(mac))
}

/// Returns whether an address is link-local.
pub(crate) fn is_link_local(ip: Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}

/// The group of all nodes of a link.
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// The group of all routers of a link.
pub(crate) const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// Returns the group that the owner of an address joins (RFC 4291 §2.7.1).
pub(crate) fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let base = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0);
    Ipv6Addr::from_bits(base.to_bits() | ip.to_bits() & 0xff_ffff)
}

/// Returns the Ethernet address of a group (RFC 2464 §7).
pub(crate) fn group_mac(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

#[cfg(test)]
mod tests;
