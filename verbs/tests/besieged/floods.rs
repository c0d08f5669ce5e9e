//! Floods of frames.

use crate::common::PORT;
use crate::common::frames::*;
use crate::host::{By, Kind, MSS};
use crate::{CLIENT, SERVER, THEIRS};
use std::net::{Ipv4Addr, Ipv6Addr};
use urnic::simulation::Simulation;

const fn flood(name: &'static str, frame: fn(&mut fastrand::Rng, u32) -> Vec<u8>) -> Kind {
    Kind::new(name, By::Frames(frame))
}

pub const FLOODS: [Kind; 16] = [
    flood("syn-flood", |r, _| segment(anybody(r), r, SYN, &[])),
    flood("syn-flood-honest", |r, _| segment(honest(), r, SYN, &[])),
    flood("fin-flood", |r, _| segment(anybody(r), r, FIN | ACK, &[])),
    flood("rst-flood", |r, _| segment(honest(), r, RST | ACK, &[])),
    flood("ack-flood", |r, _| segment(honest(), r, ACK | PSH, &[0; 200])),
    flood("flag-flood", |r, n| segment(anybody(r), r, if n % 2 == 0 { 63 } else { 0 }, b"x")),
    flood("fragments", |r, _| {
        let fragment = 0x2000 | r.u16(1..1000);
        v4(&ipv4(anybody(r), server(), TCP, fragment, &[0; 1000]))
    }),
    flood("icmp-errors", |r, _| {
        let quoted = [PORT.to_be_bytes(), r.u16(1024..65_000).to_be_bytes()].concat();
        let quoted = ipv4(server(), honest(), TCP, 0, &[quoted, r.u32(..).to_be_bytes().into()].concat());
        let code = r.choice([0, 1, 2, 3, 4, 13]).unwrap();
        v4(&ipv4(anybody(r), server(), ICMP, 0, &icmp(3, code, if code == 4 { 68 } else { 0 }, &quoted)))
    }),
    flood("pings", |r, _| v4(&ipv4(anybody(r), server(), ICMP, 0, &icmp(8, 0, r.u32(..), &[0; 1392])))),
    flood("udp-flood", |r, _| {
        let ports = [r.u16(1024..).to_be_bytes(), r.u16(1..).to_be_bytes(), [0, 108], [0, 0]].concat();
        v4(&ipv4(anybody(r), server(), UDP, 0, &[ports, vec![0; 100]].concat()))
    }),
    flood("arp-requests", |r, _| claim(true, (mac(r), anybody(r)), ([0; 6], server()))),
    flood("arp-claims", |r, n| claim(n % 2 == 0, (mac(r), honest()), (Simulation::mac(SERVER), server()))),
    flood("arp-conflicts", |r, n| claim(n % 2 == 0, (mac(r), server()), ([0; 6], server()))),
    flood("nd-flood", |r, n| {
        let to = Simulation::address6(SERVER);
        let from = Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(r.u64(..)));
        let link_local = Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(r.u64(..)));
        let mut target = |of: Ipv6Addr, option| [&of.octets()[..], &[option, 1], &mac(r)].concat();
        let (from, message) = match n % 3 {
            0 => (from, icmp6(from, to, 135, &[&[0; 4][..], &target(to, 1)].concat())),
            1 => (from, icmp6(from, to, 136, &[&[0x60, 0, 0, 0][..], &target(from, 2)].concat())),
            _ => {
                let prefix = [&[3, 4, 64, 0xc0][..], &[0xff; 8], &[0; 4], &r.u64(..).to_be_bytes(), &[0; 8]];
                let head = [&[64, 0, 7, 8][..], &[0; 8]].concat();
                (link_local, icmp6(link_local, to, 134, &[head, prefix.concat()].concat()))
            }
        };
        frame(IPV6, &ipv6(from, to, ICMP6, &message))
    }),
    flood("vlans", |r, n| {
        let plain = segment(anybody(r), r, SYN, &[]);
        let tag = [VLAN.to_be_bytes(), (n as u16 % 4096).to_be_bytes()].concat();
        [&plain[..12], &tag.repeat(1 + n as usize % 3), &plain[12..]].concat()
    }),
    flood("garbage", |r, n| {
        let mut plain = segment(anybody(r), r, ACK, &[0; 64]);
        match n % 4 {
            0 => plain.truncate(r.usize(15..plain.len())),
            1 => plain[r.usize(14..118)] ^= 1 << r.u8(..8),
            2 => r.fill(&mut plain[12..14]),
            _ => r.fill(&mut plain[14..]),
        }
        plain
    }),
];

fn server() -> Ipv4Addr {
    Simulation::address(SERVER)
}

fn honest() -> Ipv4Addr {
    Simulation::address(CLIENT)
}

/// Returns an address of the server's network that no host has.
fn anybody(r: &mut fastrand::Rng) -> Ipv4Addr {
    Ipv4Addr::new(10, 2, r.u8(..), r.u8(1..))
}

fn mac(r: &mut fastrand::Rng) -> [u8; 6] {
    [2, 9, r.u8(..), r.u8(..), r.u8(..), r.u8(..)]
}

fn frame(kind: u16, packet: &[u8]) -> Vec<u8> {
    ethernet(&Simulation::mac(SERVER), Simulation::mac(THEIRS), kind, packet)
}

fn v4(packet: &[u8]) -> Vec<u8> {
    frame(IPV4, packet)
}

fn claim(request: bool, from: ([u8; 6], Ipv4Addr), to: ([u8; 6], Ipv4Addr)) -> Vec<u8> {
    frame(ARP, &arp(request, from, to))
}

/// Makes a segment to the server's port, with guessed sequence numbers.
fn segment(from: Ipv4Addr, r: &mut fastrand::Rng, flags: u8, payload: &[u8]) -> Vec<u8> {
    let (number, acknowledges, port) = (r.u32(..), r.u32(..), r.u16(1024..));
    let options = if flags == SYN { MSS } else { &[] };
    let segment = Segment { number, acknowledges, flags, window: 65_000, options, payload, urgent: 0 };
    v4(&tcp((from, port), (server(), PORT), &segment))
}
