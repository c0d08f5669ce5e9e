//! Messages of neighbour and listener discovery: writing and parsing (RFC 4861 §4, RFC 3810 §5.2).

use crate::ipv6::{self, next};
use crate::sum;
use crate::wire::TYPE_IPV6;
use core::net::Ipv6Addr;

/// Types of ICMPv6 messages (IANA).
pub(crate) mod kind {
    pub const UNREACHABLE: u8 = 1;
    pub const TOO_BIG: u8 = 2;
    pub const TIME_EXCEEDED: u8 = 3;
    pub const PROBLEM: u8 = 4;
    pub const ECHO_REQUEST: u8 = 128;
    pub const ECHO_REPLY: u8 = 129;
    pub const LISTENER_QUERY: u8 = 130;
    pub const ROUTER_SOLICITATION: u8 = 133;
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    pub const REDIRECT: u8 = 137;
    pub const LISTENER_REPORT: u8 = 143;
}

/// Types of options of neighbour discovery (RFC 4861 §4.6, RFC 7527 §4.2).
pub(crate) mod option {
    pub const SOURCE: u8 = 1;
    pub const TARGET: u8 = 2;
    pub const PREFIX: u8 = 3;
    pub const MTU: u8 = 5;
    pub const NONCE: u8 = 14;
}

/// Flags of a neighbour advertisement.
pub(crate) mod advert {
    pub const ROUTER: u8 = 0x80;
    pub const SOLICITED: u8 = 0x40;
    pub const OVERRIDE: u8 = 0x20;
}

/// Hop limit of messages of neighbour discovery. Only packets from this link can have it (RFC 4861 §3.1). Messages of
/// listener discovery have 1.
pub(crate) const HOP_LIMIT: u8 = 255;
/// The group of all routers with version 2 of listener discovery (RFC 3810 §5.2.14).
const REPORTS_TO: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);

/// Addresses of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub dst_mac: [u8; 6],
    pub src_mac: [u8; 6],
    pub src: Ipv6Addr,
    pub dst: Ipv6Addr,
    pub hop_limit: u8,
}

/// Returns the sum of a pseudo-header over IPv6 (RFC 8200 §8.1).
pub(crate) fn pseudo_sum(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, len: usize) -> u16 {
    let addresses = crate::paths::sum(src) + crate::paths::sum(dst);
    sum::fold(u64::from(addresses) + u64::from(protocol) + len as u64)
}

/// Returns a frame with an ICMPv6 message and fills in its checksum. `extension`: an extension header between the fixed
/// header and the message, or empty. `first`: the next-header value of what follows the fixed header.
fn frame_with(e: &Envelope, first: u8, extension: &[u8], message: &[u8]) -> Vec<u8> {
    let len = extension.len() + message.len();
    let mut f = Vec::with_capacity(14 + ipv6::HEADER + len);
    f.extend(e.dst_mac);
    f.extend(e.src_mac);
    f.extend(TYPE_IPV6.to_be_bytes());
    f.extend([0x60, 0, 0, 0]);
    f.extend((len as u16).to_be_bytes());
    f.extend([first, e.hop_limit]);
    f.extend(e.src.octets());
    f.extend(e.dst.octets());
    f.extend(extension);
    let at = f.len() + 2;
    f.extend(message);
    let pseudo = pseudo_sum(e.src, e.dst, next::ICMP, message.len());
    let checksum = !sum::add(pseudo, sum::sum(message));
    if let Some(field) = f.get_mut(at..at + 2) {
        field.copy_from_slice(&checksum.to_be_bytes());
    }
    f
}

/// Returns a frame with an ICMPv6 message, whose checksum field must be zero and is filled in.
pub(crate) fn frame(e: &Envelope, message: &[u8]) -> Vec<u8> {
    frame_with(e, next::ICMP, &[], message)
}

/// Returns type, code, a zero checksum, and four more octets.
pub(crate) fn header(kind: u8, code: u8, rest: [u8; 4]) -> Vec<u8> {
    let [a, b, c, d] = rest;
    vec![kind, code, 0, 0, a, b, c, d]
}

fn link_layer(kind: u8, mac: [u8; 6]) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac;
    [kind, 1, a, b, c, d, e, f]
}

/// Returns a solicitation for a neighbour, sent to the group of its address or to its last known MAC address.
pub(crate) fn solicitation(
    mac: [u8; 6],
    src: Ipv6Addr,
    target: Ipv6Addr,
    directly: Option<[u8; 6]>,
) -> Vec<u8> {
    let group = ipv6::solicited_node(target);
    let e = Envelope {
        dst_mac: directly.unwrap_or(ipv6::group_mac(group)),
        src_mac: mac,
        src,
        dst: if directly.is_some() { target } else { group },
        hop_limit: HOP_LIMIT,
    };
    let mut m = header(kind::NEIGHBOUR_SOLICITATION, 0, [0; 4]);
    m.extend(target.octets());
    m.extend(link_layer(option::SOURCE, mac));
    frame(&e, &m)
}

/// Returns a probe that asks whether another host has the address that we want (RFC 4862 §5.4.2). The nonce
/// identifies our own probe if it comes back (RFC 7527).
pub(crate) fn probe(mac: [u8; 6], target: Ipv6Addr, nonce: [u8; 6]) -> Vec<u8> {
    let group = ipv6::solicited_node(target);
    let src = Ipv6Addr::UNSPECIFIED;
    let e = Envelope { dst_mac: ipv6::group_mac(group), src_mac: mac, src, dst: group, hop_limit: HOP_LIMIT };
    let mut m = header(kind::NEIGHBOUR_SOLICITATION, 0, [0; 4]);
    m.extend(target.octets());
    m.extend(link_layer(option::NONCE, nonce));
    frame(&e, &m)
}

/// Returns an advertisement with the MAC address of one of our addresses.
pub(crate) fn advertisement(e: &Envelope, target: Ipv6Addr, flags: u8) -> Vec<u8> {
    let mut m = header(kind::NEIGHBOUR_ADVERTISEMENT, 0, [flags, 0, 0, 0]);
    m.extend(target.octets());
    m.extend(link_layer(option::TARGET, e.src_mac));
    frame(e, &m)
}

/// Returns a router solicitation.
pub(crate) fn router_solicitation(mac: [u8; 6], src: Ipv6Addr) -> Vec<u8> {
    let dst = ipv6::ALL_ROUTERS;
    let e = Envelope { dst_mac: ipv6::group_mac(dst), src_mac: mac, src, dst, hop_limit: HOP_LIMIT };
    let mut m = header(kind::ROUTER_SOLICITATION, 0, [0; 4]);
    m.extend(link_layer(option::SOURCE, mac));
    frame(&e, &m)
}

/// Returns a report of the groups that we are in; switches listen to it (RFC 3810 §5.2). `changed`: we have just
/// joined.
pub(crate) fn listener_report(mac: [u8; 6], src: Ipv6Addr, groups: &[Ipv6Addr], changed: bool) -> Vec<u8> {
    const IS_EXCLUDE: u8 = 2;
    const TO_EXCLUDE: u8 = 4;
    /// The router alert option for listener discovery, and padding.
    const ALERT: [u8; 8] = [next::ICMP, 0, 5, 2, 0, 0, 1, 0];
    let e =
        Envelope { dst_mac: ipv6::group_mac(REPORTS_TO), src_mac: mac, src, dst: REPORTS_TO, hop_limit: 1 };
    let [n0, n1] = (groups.len() as u16).to_be_bytes();
    let mut m = header(kind::LISTENER_REPORT, 0, [0, 0, n0, n1]);
    for group in groups {
        m.extend([if changed { TO_EXCLUDE } else { IS_EXCLUDE }, 0, 0, 0]);
        m.extend(group.octets());
    }
    frame_with(&e, next::HOP_BY_HOP, &ALERT, &m)
}

/// Returns the options of a message. `None`: one has length zero or exceeds the message, and the message must be
/// ignored (RFC 4861 §4.6).
pub(crate) fn options(mut rest: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let mut found = Vec::new();
    while let &[kind, units, ..] = rest {
        let len = usize::from(units) * 8;
        let body = rest.get(..len).filter(|b| !b.is_empty())?;
        found.push((kind, &body[2..]));
        rest = rest.get(len..)?;
    }
    rest.is_empty().then_some(found)
}

/// Returns the Ethernet address in an option of the given kind; `None` if the option is missing or its address is not
/// a unicast address.
pub(crate) fn mac_in(options: &[(u8, &[u8])], kind: u8) -> Option<[u8; 6]> {
    let (_, body) = options.iter().find(|(k, _)| *k == kind)?;
    let mac: [u8; 6] = *body.first_chunk()?;
    (mac[0] & 1 == 0 && mac != [0; 6]).then_some(mac)
}

/// Returns the address at `at` of a message; `None` if the message is too short.
pub(crate) fn address_at(message: &[u8], at: usize) -> Option<Ipv6Addr> {
    Some(Ipv6Addr::from(*message.get(at..)?.first_chunk::<16>()?))
}
