//! Makes and parses frames octet by octet. Except for the Internet checksum, the stack shares no code with this
//! module.

use std::net::{Ipv4Addr, Ipv6Addr};

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;
pub const URG: u8 = 32;

pub const IPV4: u16 = 0x0800;
pub const ARP: u16 = 0x0806;
pub const IPV6: u16 = 0x86DD;
pub const VLAN: u16 = 0x8100;

pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMP6: u8 = 58;

/// An address and a port.
pub type Place = (Ipv4Addr, u16);

pub fn ethernet(to: &[u8], from: [u8; 6], kind: u16, payload: &[u8]) -> Vec<u8> {
    [to, &from, &kind.to_be_bytes(), payload].concat()
}

/// Makes an ARP message. With `request`, the message asks which host has the address of `to`. Without `request`, it is
/// an answer to `to`.
pub fn arp(request: bool, from: ([u8; 6], Ipv4Addr), to: ([u8; 6], Ipv4Addr)) -> Vec<u8> {
    let operation = if request { 1 } else { 2 };
    let head = [0, 1, 8, 0, 6, 4, 0, operation];
    [&head[..], &from.0, &from.1.octets(), &to.0, &to.1.octets()].concat()
}

/// Makes an IPv4 packet. `fragment` is the field of flags and offset.
pub fn ipv4(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let length = 20 + payload.len() as u16;
    let mut packet = [&[0x45, 0][..], &length.to_be_bytes(), &[0, 0], &fragment.to_be_bytes()].concat();
    packet.extend([64, protocol, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    seal(&mut packet, 10);
    packet.extend(payload);
    packet
}

/// The fields of a TCP segment that a test chooses. All other fields have the values of a well-behaved peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment<'a> {
    pub number: u32,
    pub acknowledges: u32,
    pub flags: u8,
    pub window: u16,
    pub urgent: u16,
    /// The TCP options; padded with zeroes.
    pub options: &'a [u8],
    pub payload: &'a [u8],
}

/// Makes an IPv4 packet with this segment.
pub fn tcp(from: Place, to: Place, segment: &Segment<'_>) -> Vec<u8> {
    let mut options = segment.options.to_vec();
    options.resize(options.len().next_multiple_of(4).min(40), 0);
    let mut octets = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    octets.extend(segment.number.to_be_bytes());
    octets.extend(segment.acknowledges.to_be_bytes());
    octets.extend([(5 + options.len() as u8 / 4) << 4, segment.flags]);
    octets.extend(segment.window.to_be_bytes());
    octets.extend([0, 0]);
    octets.extend(segment.urgent.to_be_bytes());
    octets.extend(options);
    octets.extend(segment.payload);
    let pseudo = [&from.0.octets()[..], &to.0.octets(), &[0, TCP], &(octets.len() as u16).to_be_bytes()];
    let sum = !urnic_crc::sum(&[&pseudo.concat()[..], &octets].concat());
    octets[16..18].copy_from_slice(&sum.to_be_bytes());
    ipv4(from.0, to.0, TCP, 0x4000, &octets)
}

pub fn icmp(kind: u8, code: u8, rest: u32, payload: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, code, 0, 0][..], &rest.to_be_bytes(), payload].concat();
    seal(&mut message, 2);
    message
}

pub fn ipv6(from: Ipv6Addr, to: Ipv6Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u16).to_be_bytes();
    [&[0x60, 0, 0, 0][..], &length, &[protocol, 255], &from.octets(), &to.octets(), payload].concat()
}

/// Makes an ICMPv6 message with code 0.
pub fn icmp6(from: Ipv6Addr, to: Ipv6Addr, kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0][..], payload].concat();
    let length = (message.len() as u32).to_be_bytes();
    let pseudo = [&from.octets()[..], &to.octets(), &length, &[0, 0, 0, ICMP6]].concat();
    let sum = !urnic_crc::sum(&[&pseudo[..], &message].concat());
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// Puts the checksum of all octets into the field at offset `at`.
fn seal(octets: &mut [u8], at: usize) {
    let sum = !urnic_crc::sum(octets);
    octets[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// The parts of a received IPv4 segment that a node needs.
pub struct Heard<'a> {
    pub from: Place,
    pub to: Place,
    pub number: u32,
    pub acknowledges: u32,
    pub flags: u8,
    pub window: u16,
    pub payload: &'a [u8],
}

/// Returns the TCP segment in a frame; `None` if there is none.
pub fn heard(frame: &[u8]) -> Option<Heard<'_>> {
    let packet = &frame[14..];
    if frame[12..14] != IPV4.to_be_bytes() || packet[9] != TCP {
        return None;
    }
    let half = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let word = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap());
    let start = 20 + usize::from(packet[32] >> 4) * 4;
    Some(Heard {
        from: (word(12).into(), half(20)),
        to: (word(16).into(), half(22)),
        number: word(24),
        acknowledges: word(28),
        flags: packet[33],
        window: half(34),
        payload: &packet[start..usize::from(half(2))],
    })
}

/// Returns the answer to an ARP request for an address for which `has` returns `true`; `None` for other frames.
pub fn arp_answer(frame: &[u8], mac: [u8; 6], has: impl Fn(Ipv4Addr) -> bool) -> Option<Vec<u8>> {
    if frame[12..14] != ARP.to_be_bytes() || frame[21] != 1 {
        return None;
    }
    let octets = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&frame[at..at + 4]).unwrap());
    let wanted = octets(38);
    let asker: ([u8; 6], _) = (frame[22..28].try_into().unwrap(), octets(28));
    has(wanted).then(|| ethernet(&asker.0, mac, ARP, &arp(false, (mac, wanted), asker)))
}
