//! Frames of a link on which every station sends what it likes: ARP, ICMP, neighbour discovery, extension headers.

use super::{STACK_IP, STACK_IP6, STACK_MAC};
use crate::input::Input;
use std::net::{Ipv4Addr, Ipv6Addr};
use urnic_tcp::sum;

const ICMP6: u8 = 58;
const FRAGMENT: u8 = 44;

/// Returns an Ethernet address: the stack's, a special one, or one of another station of the link.
pub fn mac(input: &mut Input) -> [u8; 6] {
    match input.u8() {
        0 => STACK_MAC,
        1 => [0xff; 6],
        2 => [0; 6],
        3 => [0x33, 0x33, 0, 0, 0, 1],
        n => [2, 0, 0, 0, 1, n],
    }
}

pub fn ip4(input: &mut Input) -> Ipv4Addr {
    match input.u8() {
        0 => STACK_IP,
        1 => Ipv4Addr::UNSPECIFIED,
        2 => Ipv4Addr::BROADCAST,
        3 => Ipv4Addr::new(224, 0, 0, 1),
        4 => Ipv4Addr::from_bits(input.u32()),
        n => Ipv4Addr::new(10, 0, 0, n),
    }
}

/// Returns an address: ours, a neighbour's, one of another network, a group's, or any.
pub fn ip6(input: &mut Input, known: &[Ipv6Addr]) -> Ipv6Addr {
    let n = input.u8();
    let low = u16::from(n & 15);
    match n >> 4 {
        0 => STACK_IP6,
        1..=3 => known.get(usize::from(low) % known.len().max(1)).copied().unwrap_or(STACK_IP6),
        4 | 5 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x100 + low),
        6 | 7 => Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x100 + low),
        8 => Ipv6Addr::new(0x2001, 0xdb8, low, 0, 0, 0, 0, 1),
        9 => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, low),
        10 => Ipv6Addr::UNSPECIFIED,
        11 => solicited(known.get(usize::from(low) % known.len().max(1)).copied().unwrap_or(STACK_IP6)),
        12 => Ipv4Addr::new(10, 0, 0, n).to_ipv6_mapped(),
        _ => Ipv6Addr::from_bits(u128::from(input.u32()) << 96 | u128::from(input.u32())),
    }
}

/// Returns the group that solicitations for an address are sent to.
fn solicited(ip: Ipv6Addr) -> Ipv6Addr {
    let base = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0);
    Ipv6Addr::from_bits(base.to_bits() | ip.to_bits() & 0xff_ffff)
}

/// Returns the destination Ethernet address of frames to an IP address.
fn station(ip: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = ip.octets();
    if ip.is_multicast() { [0x33, 0x33, a, b, c, d] } else { STACK_MAC }
}

pub fn arp(input: &mut Input) -> Vec<u8> {
    let how = input.u8();
    let (from, to) = (mac(input), if how & 1 == 0 { STACK_MAC } else { [0xff; 6] });
    let claimed = if how & 2 == 0 { from } else { mac(input) };
    let mut f = [to, from].concat();
    f.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1 + (how >> 2 & 1)]);
    f.extend(claimed);
    f.extend(ip4(input).octets());
    f.extend(mac(input));
    f.extend(if how & 8 == 0 { STACK_IP } else { ip4(input) }.octets());
    f
}

/// Makes a frame with an IPv4 packet, sometimes a fragment or with options.
pub fn packet4(input: &mut Input, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let how = input.u8();
    let options = if how & 1 == 0 { 0 } else { usize::from(how >> 4 & 7) * 4 };
    let mut ip = vec![0x45 + options as u8 / 4, 0];
    ip.extend(((20 + options + payload.len()) as u16).to_be_bytes());
    ip.extend([0, 0]);
    ip.extend(if how & 2 == 0 { [0x40, 0] } else { [input.u8() & 0x3f, input.u8()] });
    ip.extend([64, protocol, 0, 0]);
    ip.extend(if how & 4 == 0 { Ipv4Addr::new(10, 0, 0, 2) } else { ip4(input) }.octets());
    ip.extend(if how & 8 == 0 { STACK_IP } else { ip4(input) }.octets());
    ip.extend((0..options).map(|_| input.u8()));
    let checksum = sum::checksum(sum::sum(&ip));
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    [&STACK_MAC[..], &[2, 0, 0, 0, 1, 2, 8, 0], &ip, payload].concat()
}

/// Makes a frame with an ICMP message for IPv4: an echo request, or a message that quotes a packet of ours or arbitrary
/// octets.
pub fn icmp4(input: &mut Input, sent: &[Vec<u8>]) -> Vec<u8> {
    let kind = [8, 3, 3, 11, 12, 0, 5, 4][usize::from(input.u8() & 7)];
    let mut m = vec![kind, input.u8() % 16, 0, 0];
    m.extend(input.take(4));
    m.resize(8, 0);
    if kind == 8 {
        m.resize(8 + usize::from(input.u8()), 0x11);
    } else {
        m.extend(quote(input, sent));
    }
    let checksum = sum::checksum(sum::sum(&m));
    m[2..4].copy_from_slice(&checksum.to_be_bytes());
    packet4(input, 1, &m)
}

/// Returns the beginning of a packet that we have sent, sometimes altered.
fn quote(input: &mut Input, sent: &[Vec<u8>]) -> Vec<u8> {
    let n = usize::from(input.u8());
    let Some(frame) = sent.get(n % sent.len().max(1)) else { return input.take(40).to_vec() };
    let mut packet = frame.get(14..).unwrap_or(&[]).to_vec();
    packet.truncate(200);
    if input.u8() & 3 == 0 {
        let (at, with) = (usize::from(input.u8()), input.u8());
        if let Some(b) = packet.get_mut(at) {
            *b ^= with;
        }
        packet.truncate(usize::from(input.u8()));
    }
    packet
}

/// Makes a frame with an ICMPv6 message: neighbour discovery, listener discovery, an error, or an echo.
pub fn icmp6(input: &mut Input, known: &[Ipv6Addr], sent: &[Vec<u8>]) -> Vec<u8> {
    let kind = [135, 136, 134, 137, 130, 128, 2, 1, 3, 4, 133, 129, 143, 135, 136, 134]
        [usize::from(input.u8() & 15)];
    let how = input.u8();
    let mut m = vec![kind, if how & 1 == 0 { 0 } else { input.u8() }, 0, 0];
    let target = ip6(input, known);
    match kind {
        135 | 136 => {
            m.extend([if kind == 136 { input.u8() } else { 0 }, 0, 0, 0]);
            m.extend(target.octets());
            options(input, &mut m);
        }
        134 => {
            m.extend([input.u8(), input.u8()]);
            m.extend((input.magnitude() as u16).to_be_bytes());
            m.extend(input.magnitude().to_be_bytes());
            m.extend(input.magnitude().to_be_bytes());
            options(input, &mut m);
        }
        137 => {
            m.extend([0; 4]);
            m.extend(target.octets());
            m.extend(ip6(input, known).octets());
            options(input, &mut m);
        }
        130 => {
            m.extend(input.u16().to_be_bytes());
            m.extend([0; 2]);
            m.extend(target.octets());
            m.extend([0; 4]);
        }
        128 | 129 => m.resize(8 + usize::from(input.u8()) * 6, 0x11),
        _ => {
            m.extend(input.u32().to_be_bytes());
            m.extend(quote(input, sent));
        }
    }
    let hop_limit = match kind {
        130 => 1,
        133..=137 => 255,
        _ => 64,
    };
    let hop_limit = if how & 2 == 0 { hop_limit } else { input.u8() };
    let src = match kind {
        130 | 134 | 137 => Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x100 + u16::from(how >> 5)),
        135 if how & 4 != 0 => Ipv6Addr::UNSPECIFIED,
        _ => ip6(input, known),
    };
    let dst = match kind {
        135 => solicited(target),
        130 | 134 => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
        _ => ip6(input, known),
    };
    let dst = if how & 8 == 0 { dst } else { ip6(input, known) };
    let extended = how & 16 != 0;
    packet6(input, (src, dst, hop_limit), ICMP6, &mut m, 2, extended)
}

/// Appends options of neighbour discovery, valid and invalid ones.
fn options(input: &mut Input, m: &mut Vec<u8>) {
    for _ in 0..input.u8() % 5 {
        match input.u8() % 6 {
            kind @ 0..=1 => {
                m.extend([1 + kind, 1]);
                m.extend(mac(input));
            }
            2 => {
                let flags = input.u8();
                m.extend([3, 4, if flags & 3 == 3 { input.u8() } else { 64 }, flags]);
                m.extend(input.magnitude().to_be_bytes());
                m.extend(input.magnitude().to_be_bytes());
                m.extend([0; 4]);
                m.extend(Ipv6Addr::new(0xfd00 + u16::from(input.u8()), 0, 0, 0, 0, 0, 0, 0).octets());
            }
            3 => {
                m.extend([5, 1, 0, 0]);
                m.extend(input.magnitude().to_be_bytes());
            }
            4 => {
                m.extend([14, 1]);
                m.extend(input.u32().to_be_bytes());
                m.extend([0; 2]);
            }
            _ => {
                let n = input.u8();
                m.extend(input.take(usize::from(n % 40)));
            }
        }
    }
}

/// Makes a frame with an IPv6 packet. Fills in the checksum at offset `checksum` of the message. `extended` permits
/// extension headers.
pub fn packet6(
    input: &mut Input,
    (src, dst, hop_limit): (Ipv6Addr, Ipv6Addr, u8),
    protocol: u8,
    message: &mut [u8],
    checksum: usize,
    extended: bool,
) -> Vec<u8> {
    let addresses = [src.octets(), dst.octets()].concat();
    let [l0, l1] = (message.len() as u16).to_be_bytes();
    let pseudo = [&addresses[..], &[0, 0, l0, l1, 0, 0, 0, protocol]].concat();
    let value = !sum::add(sum::sum(&pseudo), sum::sum(message));
    if let Some(field) = message.get_mut(checksum..checksum + 2) {
        field.copy_from_slice(&value.to_be_bytes());
    }
    let (first, extensions) = if extended { extensions(input, protocol) } else { (protocol, Vec::new()) };
    let [l0, l1] = ((extensions.len() + message.len()) as u16).to_be_bytes();
    let mut f = [&station(dst)[..], &[2, 0, 0, 0, 1, 2, 0x86, 0xdd, 0x60, 0, 0, 0, l0, l1, first, hop_limit]]
        .concat();
    f.extend(addresses);
    f.extend(extensions);
    f.extend_from_slice(message);
    f
}

/// Makes extension headers before a header of kind `last`. Returns the kind of the first header, and the headers.
fn extensions(input: &mut Input, last: u8) -> (u8, Vec<u8>) {
    let kinds: Vec<u8> = (0..input.u8() % 11)
        .map(|_| [0, 43, FRAGMENT, 60, 59, 51, 60, 60][usize::from(input.u8() & 7)])
        .collect();
    let mut all = Vec::new();
    for (i, &kind) in kinds.iter().enumerate() {
        let next = kinds.get(i + 1).copied().unwrap_or(last);
        if kind == FRAGMENT {
            let field = if input.u8() & 1 == 0 { 0 } else { input.u16() };
            let [f0, f1] = field.to_be_bytes();
            all.extend([next, 0, f0, f1, 0, 0, 0, 7]);
        } else {
            let eights = usize::from(input.u8() & 1);
            let mut body = vec![next, eights as u8];
            let n = usize::from(input.u8() & 15);
            body.extend(input.take(n));
            body.resize(8 + 8 * eights, 0);
            if kind == 43 && body[3] & 1 == 0 {
                body[3] = 0;
            }
            all.extend(body);
        }
    }
    (kinds.first().copied().unwrap_or(last), all)
}

/// Makes a frame with a TCP segment over IPv6.
pub fn tcp6(input: &mut Input, known: &[Ipv6Addr]) -> Vec<u8> {
    let how = input.u8();
    let mut tcp = vec![0x13, 0x88 + (how & 3), 0, 7 + (how >> 2 & 1)];
    tcp.extend(input.u32().to_be_bytes());
    tcp.extend(input.u32().to_be_bytes());
    tcp.extend([0x50, if how & 8 == 0 { 2 } else { input.u8() }, 0x20, 0, 0, 0, 0, 0]);
    tcp.resize(20 + usize::from(input.u8() & 31), 0x22);
    let (src, dst) = (ip6(input, known), if how & 16 == 0 { STACK_IP6 } else { ip6(input, known) });
    packet6(input, (src, dst, 64), 6, &mut tcp, 16, how & 32 != 0)
}
