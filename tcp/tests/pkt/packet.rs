//! Packets in three forms: in a script, on the wire, and as text for people.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use urnic_tcp::sum;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;
pub const URG: u8 = 0x20;
pub const ECE: u8 = 0x40;
pub const CWR: u8 = 0x80;

/// Letters of the control bits in a script.
pub const FLAGS: [(char, u8); 8] =
    [('S', SYN), ('F', FIN), ('R', RST), ('P', PSH), ('A', ACK), ('U', URG), ('E', ECE), ('C', CWR)];

/// Words for the ECN field of the IP header in a script (RFC 3168 §5).
pub const ECN: [(&str, u8); 4] = [("not-ect", 0), ("ect1", 1), ("ect0", 2), ("ce", 3)];

/// A TCP option. Sequence numbers are those of the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opt {
    Mss(u16),
    Scale(u8),
    SackOk,
    Sack(Vec<(u32, u32)>),
    Ts(u32, u32),
    Nop,
    Eol,
    Other(u8, Vec<u8>),
    Raw(Vec<u8>),
}

/// A TCP segment in an IP packet in an Ethernet frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub dst_mac: [u8; 6],
    pub src_mac: [u8; 6],
    pub src: (IpAddr, u16),
    pub dst: (IpAddr, u16),
    pub ecn: u8,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub urgent: u16,
    pub options: Vec<Opt>,
    pub payload: Vec<u8>,
}

/// A frame that the stack sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    Tcp(Segment),
    Arp(Arp),
    Echo {
        reply: bool,
        data: Vec<u8>,
    },
    /// A neighbour solicitation (RFC 4861 §4.3).
    Solicitation {
        target: Ipv6Addr,
        from: Ipv6Addr,
    },
    /// Other messages of IPv6 on the link.
    Housekeeping,
}

const ICMPV6: u8 = 58;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    pub request: bool,
    pub dst_mac: [u8; 6],
    pub sender_mac: [u8; 6],
    pub sender: Ipv4Addr,
    pub target_mac: [u8; 6],
    pub target: Ipv4Addr,
}

fn put(out: &mut Vec<u8>, options: &[Opt]) {
    for o in options {
        match o {
            Opt::Mss(m) => out.extend([2, 4].into_iter().chain(m.to_be_bytes())),
            Opt::Scale(s) => out.extend([3, 3, *s]),
            Opt::SackOk => out.extend([4, 2]),
            Opt::Sack(blocks) => {
                out.extend([5, 2 + 8 * blocks.len() as u8]);
                for (start, end) in blocks {
                    out.extend(start.to_be_bytes().into_iter().chain(end.to_be_bytes()));
                }
            }
            Opt::Ts(v, e) => out.extend([8, 10].into_iter().chain(v.to_be_bytes()).chain(e.to_be_bytes())),
            Opt::Nop => out.push(1),
            Opt::Eol => out.push(0),
            Opt::Raw(octets) => out.extend(octets),
            Opt::Other(kind, body) => {
                out.extend([*kind, 2 + body.len() as u8]);
                out.extend(body);
            }
        }
    }
    while !out.len().is_multiple_of(4) {
        out.push(1);
    }
}

impl Segment {
    /// Returns the whole frame, with correct checksums.
    pub fn frame(&self) -> Result<Vec<u8>, String> {
        let mut options = Vec::new();
        put(&mut options, &self.options);
        if options.len() > 40 {
            return Err(format!("the options need {} octets; a segment has room for 40", options.len()));
        }
        let header = 20 + options.len();
        let mut tcp = Vec::with_capacity(header + self.payload.len());
        tcp.extend(self.src.1.to_be_bytes().into_iter().chain(self.dst.1.to_be_bytes()));
        tcp.extend(self.seq.to_be_bytes().into_iter().chain(self.ack.to_be_bytes()));
        tcp.extend([(header << 2) as u8, self.flags]);
        tcp.extend(self.window.to_be_bytes().into_iter().chain([0, 0]).chain(self.urgent.to_be_bytes()));
        tcp.extend(options);
        tcp.extend(&self.payload);
        let check = !sum::add(pseudo(self.src.0, self.dst.0, 6, tcp.len()), sum::sum(&tcp));
        tcp[16..18].copy_from_slice(&check.to_be_bytes());
        Ok(ip(self.dst_mac, self.src_mac, self.src.0, self.dst.0, 6, self.ecn, &tcp))
    }
}

fn pseudo(from: IpAddr, to: IpAddr, protocol: u8, len: usize) -> u16 {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            sum::pseudo_header_v4(from.octets(), to.octets(), protocol, len)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let tail = [0, 0, (len >> 8) as u8, len as u8, 0, 0, 0, protocol];
            sum::sum(&[&from.octets()[..], &to.octets(), &tail].concat())
        }
        _ => panic!("addresses of two families"),
    }
}

/// Returns an IP packet in an Ethernet frame.
pub fn ip(
    dst: [u8; 6],
    src: [u8; 6],
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    ecn: u8,
    body: &[u8],
) -> Vec<u8> {
    let mut f = [&dst[..], &src].concat();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = (20 + body.len()) as u16;
            f.extend([8, 0, 0x45, ecn]);
            f.extend(total.to_be_bytes());
            f.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
            f.extend(from.octets().into_iter().chain(to.octets()));
            let check = !sum::sum(&f[14..34]);
            f[24..26].copy_from_slice(&check.to_be_bytes());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            f.extend([0x86, 0xdd, 0x60, ecn << 4, 0, 0]);
            f.extend((body.len() as u16).to_be_bytes());
            f.extend([protocol, 255]);
            f.extend(from.octets().into_iter().chain(to.octets()));
        }
        _ => panic!("addresses of two families"),
    }
    f.extend(body);
    f
}

/// Returns an ICMP message in an IP packet in an Ethernet frame.
pub fn icmp(dst: [u8; 6], src: [u8; 6], from: IpAddr, to: IpAddr, head: [u8; 8], body: &[u8]) -> Vec<u8> {
    let mut message = [&head[..], body].concat();
    message[2..4].fill(0);
    let protocol = if from.is_ipv4() { 1 } else { ICMPV6 };
    let start = if from.is_ipv4() { 0 } else { pseudo(from, to, ICMPV6, message.len()) };
    let check = !sum::add(start, sum::sum(&message));
    message[2..4].copy_from_slice(&check.to_be_bytes());
    ip(dst, src, from, to, protocol, 0, &message)
}

/// Returns a neighbour's answer to a solicitation (RFC 4861 §4.4).
pub fn neighbour(dst: [u8; 6], mac: [u8; 6], target: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let option = [&[2, 1][..], &mac].concat();
    let body = [&target.octets()[..], &option].concat();
    icmp(dst, mac, target.into(), to.into(), [136, 0, 0, 0, 0x60, 0, 0, 0], &body)
}

impl Arp {
    pub fn frame(&self) -> Vec<u8> {
        let mut f = [&self.dst_mac[..], &self.sender_mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0]].concat();
        f.push(if self.request { 1 } else { 2 });
        f.extend(self.sender_mac.into_iter().chain(self.sender.octets()));
        f.extend(self.target_mac.into_iter().chain(self.target.octets()));
        f
    }
}

fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn mac_at(b: &[u8], at: usize) -> [u8; 6] {
    b[at..at + 6].try_into().expect("six octets")
}

/// Parses a frame of the stack, and checks all fields that scripts leave out, such as checksums.
pub fn parse(f: &[u8]) -> Result<Packet, String> {
    if f.len() < 34 {
        return Err(format!("a frame of {} octets", f.len()));
    }
    match be16(f, 12) {
        0x0806 => {
            if f.len() < 42 || f[14..20] != [0, 1, 8, 0, 6, 4] {
                return Err("an ARP packet that is not of Ethernet and IPv4".into());
            }
            let ip = |at| Ipv4Addr::from_bits(be32(f, at));
            Ok(Packet::Arp(Arp {
                request: be16(f, 20) == 1,
                dst_mac: mac_at(f, 0),
                sender_mac: mac_at(f, 22),
                sender: ip(28),
                target_mac: mac_at(f, 32),
                target: ip(38),
            }))
        }
        0x0800 => parse_ipv4(f),
        0x86dd => parse_ipv6(f),
        other => Err(format!("a frame of type {other:#06x}")),
    }
}

fn parse_ipv4(f: &[u8]) -> Result<Packet, String> {
    let total = usize::from(be16(f, 16));
    if f[14] != 0x45 || total + 14 != f.len() {
        return Err(format!("an IP packet of {total} octets in a frame of {}", f.len()));
    }
    if sum::sum(&f[14..34]) != 0xffff {
        return Err("a wrong IP header checksum".into());
    }
    let body = &f[34..];
    match f[23] {
        1 => {
            if body.len() < 8 || sum::sum(body) != 0xffff {
                return Err("a wrong ICMP checksum".into());
            }
            match body[0] {
                kind @ (0 | 8) => Ok(Packet::Echo { reply: kind == 0, data: body[8..].to_vec() }),
                kind => Err(format!("an ICMP message of type {kind}")),
            }
        }
        6 if be16(f, 20) & 0x4000 == 0 => Err("a TCP segment that may be fragmented".into()),
        6 => parse_tcp(f, f[15] & 3, ip4(f, 26), ip4(f, 30), body).map(Packet::Tcp),
        other => Err(format!("an IP packet of protocol {other}")),
    }
}

fn ip4(f: &[u8], at: usize) -> IpAddr {
    Ipv4Addr::from_bits(be32(f, at)).into()
}

fn ip6(f: &[u8], at: usize) -> Ipv6Addr {
    Ipv6Addr::from(<[u8; 16]>::try_from(&f[at..at + 16]).expect("sixteen octets"))
}

fn parse_ipv6(f: &[u8]) -> Result<Packet, String> {
    if f.len() < 54 || f[14] >> 4 != 6 || usize::from(be16(f, 18)) + 54 != f.len() {
        return Err(format!("an IPv6 packet that is not as long as its frame of {}", f.len()));
    }
    let (from, to, body) = (ip6(f, 22), ip6(f, 38), &f[54..]);
    match f[20] {
        6 => parse_tcp(f, f[15] >> 4 & 3, from.into(), to.into(), body).map(Packet::Tcp),
        // Reports of listeners begin with a hop-by-hop header (RFC 3810 §5).
        0 => Ok(Packet::Housekeeping),
        ICMPV6 => {
            let check = sum::add(pseudo(from.into(), to.into(), ICMPV6, body.len()), sum::sum(body));
            if body.len() < 8 || check != 0xffff {
                return Err("a wrong ICMPv6 checksum".into());
            }
            match body[0] {
                kind @ (128 | 129) => Ok(Packet::Echo { reply: kind == 129, data: body[8..].to_vec() }),
                135 if body.len() >= 24 => Ok(Packet::Solicitation { target: ip6(f, 62), from }),
                133..=137 => Ok(Packet::Housekeeping),
                kind => Err(format!("an ICMPv6 message of type {kind}")),
            }
        }
        other => Err(format!("an IPv6 packet of protocol {other}")),
    }
}

fn parse_tcp(f: &[u8], ecn: u8, from: IpAddr, to: IpAddr, t: &[u8]) -> Result<Segment, String> {
    if t.len() < 20 || sum::add(pseudo(from, to, 6, t.len()), sum::sum(t)) != 0xffff {
        return Err("a wrong TCP checksum".into());
    }
    let header = usize::from(t[12] >> 4) * 4;
    if header < 20 || header > t.len() {
        return Err(format!("a TCP header of {header} octets"));
    }
    Ok(Segment {
        dst_mac: mac_at(f, 0),
        src_mac: mac_at(f, 6),
        src: (from, be16(t, 0)),
        dst: (to, be16(t, 2)),
        ecn,
        seq: be32(t, 4),
        ack: be32(t, 8),
        flags: t[13],
        window: be16(t, 14),
        urgent: be16(t, 18),
        options: options(&t[20..header])?,
        payload: t[header..].to_vec(),
    })
}

fn options(mut b: &[u8]) -> Result<Vec<Opt>, String> {
    let mut out = Vec::new();
    while let [kind, rest @ ..] = b {
        let len = match kind {
            0 | 1 => 1,
            _ => usize::from(*rest.first().ok_or("an option without a length")?),
        };
        let body = b.get(2.min(len)..len).ok_or("an option that is longer than the header")?;
        match (kind, body.len()) {
            (0, _) => break,
            (1, _) => {}
            (2, 2) => out.push(Opt::Mss(be16(body, 0))),
            (3, 1) => out.push(Opt::Scale(body[0])),
            (4, 0) => out.push(Opt::SackOk),
            (5, n) if n > 0 && n % 8 == 0 => {
                out.push(Opt::Sack(body.chunks(8).map(|c| (be32(c, 0), be32(c, 4))).collect()));
            }
            (8, 8) => out.push(Opt::Ts(be32(body, 0), be32(body, 4))),
            (2..=5 | 8, n) => return Err(format!("option {kind} with {n} octets")),
            (k, _) => out.push(Opt::Other(*k, body.to_vec())),
        }
        b = &b[len..];
    }
    Ok(out)
}

/// Returns the control bits as letters.
pub fn flag_letters(flags: u8) -> String {
    FLAGS.iter().filter(|(_, bit)| flags & bit != 0).map(|(c, _)| *c).collect()
}

/// Origins of the relative numbers of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin {
    /// Initial sequence number of the sender, and that of its peer.
    pub seq: u32,
    pub ack: u32,
    /// Timestamp of the sender at the start of the script.
    pub ts: u32,
}

/// Returns a distance, which may be negative.
pub fn relative(n: u32, origin: u32) -> i64 {
    let d = n.wrapping_sub(origin);
    if d > 0xf000_0000 { i64::from(d) - (1 << 32) } else { i64::from(d) }
}

/// Returns a segment of the stack in the language of scripts.
pub fn show(s: &Segment, o: Origin) -> String {
    let mut t = format!("> {} {}", flag_letters(s.flags), relative(s.seq, o.seq));
    if !s.payload.is_empty() {
        let _ = write!(t, "+{}", s.payload.len());
    }
    if s.flags & ACK != 0 {
        let _ = write!(t, " ack {}", relative(s.ack, o.ack));
    }
    let _ = write!(t, " win {}", s.window);
    for option in &s.options {
        let _ = match option {
            Opt::Mss(m) => write!(t, " mss {m}"),
            Opt::Scale(n) => write!(t, " ws {n}"),
            Opt::SackOk => write!(t, " sackok"),
            Opt::Sack(blocks) => {
                let blocks: Vec<String> = blocks
                    .iter()
                    .map(|(a, b)| format!("{}:{}", relative(*a, o.ack), relative(*b, o.ack)))
                    .collect();
                write!(t, " sack {}", blocks.join(" "))
            }
            Opt::Ts(v, e) => write!(t, " ts {}/{e}", relative(*v, o.ts)),
            Opt::Nop | Opt::Eol | Opt::Raw(_) => Ok(()),
            Opt::Other(k, body) => {
                let hex: String = body.iter().map(|b| format!("{b:02x}")).collect();
                write!(t, " opt {k}:{hex}")
            }
        };
    }
    if s.ecn != 0 {
        let _ = write!(t, " {}", ECN.iter().find(|(_, v)| *v == s.ecn).map_or("", |(w, _)| w));
    }
    t
}
