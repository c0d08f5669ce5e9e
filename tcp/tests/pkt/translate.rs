//! Translates packets for stacks with only IPv6 or with a VLAN, because scripts are written for IPv4. For IPv6, the
//! address a.b.c.d in a script stands for fd00::a.b.c.d, ARP stands for neighbour discovery, and ICMP stands for
//! ICMPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use urnic_tcp::sum;

/// Differences between the frames of a script and the frames on the wire.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wire {
    pub v6: bool,
    pub vlan: Option<u16>,
}

/// Returns the IPv6 address that a script's IPv4 address stands for.
pub fn v6(ip: Ipv4Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(ip.to_bits()))
}

/// Returns the IPv4 address that stands for an IPv6 address in a script.
pub fn v4(ip: IpAddr) -> Ipv4Addr {
    match ip {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(ip) => Ipv4Addr::from_bits(ip.to_bits() as u32),
    }
}

/// Returns a peer's address as scripts write it. An IPv6 address that no IPv4 address stands for stays as it is.
pub fn script_address(peer: SocketAddr) -> SocketAddr {
    match peer.ip() {
        IpAddr::V6(ip) if ip.to_bits() as u32 >> 24 != 0 => {
            SocketAddr::new(v4(ip.into()).into(), peer.port())
        }
        _ => peer,
    }
}

fn ip_at(b: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(b[at], b[at + 1], b[at + 2], b[at + 3])
}

fn pseudo(src: [u8; 16], dst: [u8; 16], protocol: u8, body: &[u8]) -> u16 {
    let head = [&src[..], &dst, &(body.len() as u32).to_be_bytes(), &[0, 0, 0, protocol]].concat();
    sum::add(sum::sum(&head), sum::sum(body))
}

/// Returns an IPv6 packet. Its checksum is at offset `at` of the body, and is filled in here.
fn packet(src: Ipv6Addr, dst: Ipv6Addr, head: (u8, u8, u8), body: &[u8], at: usize) -> Vec<u8> {
    let (protocol, hops, ecn) = head;
    let mut body = body.to_vec();
    body[at..at + 2].fill(0);
    let check = !pseudo(src.octets(), dst.octets(), protocol, &body);
    body[at..at + 2].copy_from_slice(&check.to_be_bytes());
    let mut p = vec![0x60, ecn << 4, 0, 0];
    p.extend((body.len() as u16).to_be_bytes());
    p.extend([protocol, hops]);
    p.extend(src.octets());
    p.extend(dst.octets());
    p.extend(body);
    p
}

/// Returns an IPv4 packet.
fn packet4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, ecn: u8, body: &[u8]) -> Vec<u8> {
    let mut p = vec![0x45, ecn];
    p.extend((20 + body.len() as u16).to_be_bytes());
    p.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    p.extend(src.octets());
    p.extend(dst.octets());
    let check = !sum::sum(&p);
    p[10..12].copy_from_slice(&check.to_be_bytes());
    p.extend(body);
    p
}

fn ethernet(like: &[u8], kind: u16, packet: &[u8]) -> Vec<u8> {
    [&like[..12], &kind.to_be_bytes(), packet].concat()
}

impl Wire {
    /// Returns a peer's address as the stack uses it.
    pub fn address(self, peer: SocketAddr) -> SocketAddr {
        match peer.ip() {
            IpAddr::V4(ip) if self.v6 => SocketAddr::new(v6(ip).into(), peer.port()),
            _ => peer,
        }
    }

    /// Returns the frame that the stack receives for a frame of the script; `None` if IPv6 has no equivalent.
    pub fn inward(self, frame: Vec<u8>) -> Option<Vec<u8>> {
        let mut frame = if self.v6 { to_v6(&frame)? } else { frame };
        if let Some(vlan) = self.vlan {
            frame.splice(12..12, [0x81, 0, (vlan >> 8) as u8, vlan as u8]);
        }
        Some(frame)
    }

    /// Returns the frame that a script sees for a frame of the stack; `None` if the frame does not concern scripts.
    pub fn outward(self, mut frame: Vec<u8>) -> Result<Option<Vec<u8>>, String> {
        if let Some(vlan) = self.vlan {
            if frame.get(12..16) != Some(&[0x81, 0, (vlan >> 8) as u8, vlan as u8]) {
                return Err("a frame without its VLAN's tag".into());
            }
            frame.drain(12..16);
        }
        if self.v6 { to_v4(&frame) } else { Ok(Some(frame)) }
    }
}

fn to_v6(f: &[u8]) -> Option<Vec<u8>> {
    if f[12..14] == [8, 6] {
        return Some(arp_to_nd(f));
    }
    let (src, dst, body) = (v6(ip_at(f, 26)), v6(ip_at(f, 30)), &f[34..]);
    let inner = match f[23] {
        6 => {
            let head = [&f[26..34], &[0, 6], &(body.len() as u16).to_be_bytes()].concat();
            let right = sum::add(sum::sum(&head), sum::sum(body)) == 0xffff;
            let mut p = packet(src, dst, (6, f[22], f[15] & 3), body, 16);
            if !right {
                p[40 + 16] ^= 0x55;
            }
            p
        }
        1 => {
            let mut m = body.to_vec();
            let mtu = u32::from(u16::from_be_bytes([m[6], m[7]])) + 20;
            let (kind, code, word) = match (m[0], m[1]) {
                (8, _) => (128, 0, None),
                (0, _) => (129, 0, None),
                (3, 3) => (1, 4, Some(0)),
                (3, 4) => (2, 0, Some(mtu)),
                (3, 9 | 10 | 13) => (1, 1, Some(0)),
                // The pointer is the offset of the next-header field.
                (3, 2) => (4, 1, Some(6)),
                (3, _) => (1, 3, Some(0)),
                (11, code) => (3, code, Some(0)),
                (12, _) => (4, 0, Some(0)),
                _ => return None,
            };
            (m[0], m[1]) = (kind, code);
            if let Some(word) = word {
                m[4..8].copy_from_slice(&word.to_be_bytes());
                // The quoted packet was sent over IPv6.
                let quoted = &body[8..];
                let mut q = vec![0x60, 0, 0, 0];
                q.extend((u16::from_be_bytes([quoted[2], quoted[3]]) - 20).to_be_bytes());
                q.extend([quoted[9], quoted[8]]);
                q.extend(v6(ip_at(quoted, 12)).octets());
                q.extend(v6(ip_at(quoted, 16)).octets());
                q.extend(&quoted[20..]);
                m.truncate(8);
                m.extend(q);
            }
            packet(src, dst, (58, 64, 0), &m, 2)
        }
        _ => return None,
    };
    Some(ethernet(f, 0x86dd, &inner))
}

/// Turns a request into a solicitation, and a reply into a solicited advertisement.
fn arp_to_nd(f: &[u8]) -> Vec<u8> {
    let (sender, target, mac) = (ip_at(f, 28), ip_at(f, 38), &f[22..28]);
    let request = f[21] == 1;
    let about = v6(if request { target } else { sender });
    let mut m = vec![if request { 135 } else { 136 }, 0, 0, 0, if request { 0 } else { 0x60 }, 0, 0, 0];
    m.extend(about.octets());
    let probe = request && sender.is_unspecified();
    if !probe {
        m.extend([if request { 1 } else { 2 }, 1]);
        m.extend(mac);
    }
    let src = if probe { Ipv6Addr::UNSPECIFIED } else { v6(sender) };
    let group = Ipv6Addr::from_bits(0xff02 << 112 | 0x1_ff00_0000 | about.to_bits() & 0xff_ffff);
    let dst = match request {
        true => group,
        false => v6(target),
    };
    let mut like = f.to_vec();
    if request {
        let [.., a, b, c, d] = group.octets();
        like[..6].copy_from_slice(&[0x33, 0x33, a, b, c, d]);
    }
    ethernet(&like, 0x86dd, &packet(src, dst, (58, 255, 0), &m, 2))
}

fn to_v4(f: &[u8]) -> Result<Option<Vec<u8>>, String> {
    if f.get(12..14) != Some(&[0x86, 0xdd]) {
        return Err("a frame that is not of IPv6".into());
    }
    let body = &f[54..];
    if usize::from(u16::from_be_bytes([f[18], f[19]])) != body.len() {
        return Err("an IPv6 packet in a frame of another length".into());
    }
    let addresses = (
        Ipv6Addr::from(<[u8; 16]>::try_from(&f[22..38]).expect("16")),
        Ipv6Addr::from(<[u8; 16]>::try_from(&f[38..54]).expect("16")),
    );
    let (src, dst) = (v4(addresses.0.into()), v4(addresses.1.into()));
    let protocol = f[20];
    // Of the stack's packets, only MLD reports have an extension header. They do not concern scripts.
    if protocol == 0 {
        return Ok(None);
    }
    if pseudo(addresses.0.octets(), addresses.1.octets(), protocol, body) != 0xffff {
        return Err("a wrong checksum".into());
    }
    let ecn = f[15] >> 4 & 3;
    let out = |body: &[u8], protocol| ethernet(f, 0x0800, &packet4(src, dst, protocol, ecn, body));
    let mut body = body.to_vec();
    match (protocol, body[0]) {
        (6, _) => {
            body[16..18].fill(0);
            let head =
                [&src.octets()[..], &dst.octets(), &[0, 6], &(body.len() as u16).to_be_bytes()].concat();
            let check = !sum::add(sum::sum(&head), sum::sum(&body));
            body[16..18].copy_from_slice(&check.to_be_bytes());
            Ok(Some(out(&body, 6)))
        }
        (58, 128 | 129) => {
            body[0] = if body[0] == 128 { 8 } else { 0 };
            body[2..4].fill(0);
            let check = !sum::sum(&body);
            body[2..4].copy_from_slice(&check.to_be_bytes());
            Ok(Some(out(&body, 1)))
        }
        (58, kind @ (135 | 136)) => {
            let about = Ipv6Addr::from(<[u8; 16]>::try_from(&body[8..24]).expect("16"));
            let unasked = kind == 136 && body[4] & 0x40 == 0;
            // Scripts see neither messages about the link-local address nor unsolicited advertisements.
            if about.segments()[0] == 0xfe80 || unasked {
                return Ok(None);
            }
            let (about, mac) = (v4(about.into()), &f[6..12]);
            let (sender, target) = if kind == 135 { (src, about) } else { (about, dst) };
            let like = match f[0] {
                0x33 => [&[0xff; 6][..], mac].concat(),
                _ => f[..12].to_vec(),
            };
            let mut a = vec![0, 1, 8, 0, 6, 4, 0, if kind == 135 { 1 } else { 2 }];
            a.extend(mac.iter().chain(&sender.octets()));
            a.extend(if kind == 135 { [0; 6] } else { f[..6].try_into().expect("six") });
            a.extend(target.octets());
            Ok(Some(ethernet(&like, 0x0806, &a)))
        }
        (58, kind) => Err(format!("an ICMPv6 message of type {kind}")),
        (other, _) => Err(format!("an IPv6 packet of protocol {other}")),
    }
}
