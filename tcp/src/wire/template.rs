//! Headers of segments that are sent: a buffer for each family, whose constant fields stay in place from frame to frame.
//!
//! The packet begins at the same place with and without a VLAN tag; in front of it the tag or nothing.

use super::{ETHERNET, IPV4, PROTO_TCP, TAG, TCP, TYPE_IPV4, TYPE_IPV6, TYPE_TAG, TcpFields};
use crate::ipv6;
use crate::paths::Path;
use crate::sum;

/// Where packets begin.
const START: usize = TAG + ETHERNET;
/// The most octets of TCP's header.
const TCP_MAX: usize = TCP + 40;

/// Puts the constant part of Ethernet's header in front of a packet; answers where the header begins.
fn ethernet(before: &mut [u8; START], mac: [u8; 6], vlan: Option<u16>, kind: u16) -> usize {
    before[16..18].copy_from_slice(&kind.to_be_bytes());
    match vlan {
        None => {
            before[10..16].copy_from_slice(&mac);
            TAG
        }
        Some(vlan) => {
            before[6..12].copy_from_slice(&mac);
            before[12..14].copy_from_slice(&TYPE_TAG.to_be_bytes());
            before[14..16].copy_from_slice(&vlan.to_be_bytes());
            0
        }
    }
}

/// Writes TCP's header at the start of `b`. `pseudo` is the sum of the pseudo-header, and `payload_sum` that of the data;
/// with `None` the checksum is left to the port.
#[inline]
fn tcp(b: &mut [u8; TCP_MAX], t: &TcpFields<'_>, header: usize, pseudo: u64, payload_sum: Option<u16>) {
    let (remote_port, local_port) = (t.key.remote_port(), t.key.local_port());
    let offset_flags = (header as u16 / 4) << 12 | u16::from(t.flags);
    let mut tcp_sum = pseudo;
    if let Some(payload) = payload_sum {
        tcp_sum += u64::from(remote_port)
            + u64::from(local_port)
            + (u64::from(t.seq.0 >> 16) + u64::from(t.seq.0 & 0xffff))
            + (u64::from(t.ack.0 >> 16) + u64::from(t.ack.0 & 0xffff))
            + u64::from(offset_flags)
            + u64::from(t.window)
            + u64::from(sum::sum(t.options))
            + u64::from(payload);
    }
    let tcp_sum = sum::fold(tcp_sum);
    let checksum = if payload_sum.is_some() { !tcp_sum } else { tcp_sum };
    b[0..2].copy_from_slice(&local_port.to_be_bytes());
    b[2..4].copy_from_slice(&remote_port.to_be_bytes());
    b[4..8].copy_from_slice(&t.seq.0.to_be_bytes());
    b[8..12].copy_from_slice(&t.ack.0.to_be_bytes());
    b[12..14].copy_from_slice(&offset_flags.to_be_bytes());
    b[14..16].copy_from_slice(&t.window.to_be_bytes());
    b[16..18].copy_from_slice(&checksum.to_be_bytes());
    // Mostly timestamps: a copy of known length.
    match <&[u8; 12]>::try_from(t.options) {
        Ok(timestamps) => b[20..32].copy_from_slice(timestamps),
        Err(_) => b[20..].iter_mut().zip(t.options).for_each(|(to, from)| *to = *from),
    }
}

/// Ethernet, IPv4 and TCP.
pub(crate) struct HeaderTemplate {
    bytes: [u8; START + IPV4 + TCP_MAX],
    /// Where the frame begins: at the tag if there is one.
    begin: usize,
    /// Sum of the constant part of the IPv4 header.
    ip_sum: u32,
    /// Sum of our address and the protocol number, for the pseudo-header.
    pseudo_sum: u32,
}

impl HeaderTemplate {
    pub fn new(mac: [u8; 6], vlan: Option<u16>, ip: u32) -> Self {
        let mut bytes = [0; START + IPV4 + TCP_MAX];
        let begin = bytes.first_chunk_mut().map_or(0, |b| ethernet(b, mac, vlan, TYPE_IPV4));
        let b = &mut bytes[START..];
        b[0] = 0x45;
        b[6] = 0x40; // don't fragment: the identification may then be anything (RFC 6864 §4.1)
        b[8] = 64; // time to live
        b[9] = PROTO_TCP;
        b[12..16].copy_from_slice(&ip.to_be_bytes());
        let ip_sum = u32::from(sum::sum(&b[..IPV4]));
        let address = (ip >> 16) + (ip & 0xffff);
        HeaderTemplate { bytes, begin, ip_sum, pseudo_sum: address + u32::from(PROTO_TCP) }
    }

    /// Writes the headers of a segment with `payload_len` octets of data whose sum is `payload_sum`; with `None` the
    /// checksum is left to the port.
    #[inline]
    pub fn write(&mut self, t: &TcpFields<'_>, payload_len: usize, payload_sum: Option<u16>) -> &[u8] {
        let header = TCP + t.options.len().min(40);
        let segment = header + payload_len;
        let total = (IPV4 + segment) as u16;
        let remote_ip = t.key.remote_ip();
        let remote = (remote_ip >> 16) + (remote_ip & 0xffff);
        let ip_sum = sum::fold(u64::from(self.ip_sum + remote + u32::from(total) + u32::from(t.ecn)));

        let b = &mut self.bytes;
        if self.begin == 0 {
            b[0..6].copy_from_slice(&t.dst_mac);
        } else {
            b[TAG..TAG + 6].copy_from_slice(&t.dst_mac);
        }
        b[START + 1] = t.ecn;
        b[START + 2..START + 4].copy_from_slice(&total.to_be_bytes());
        b[START + 10..START + 12].copy_from_slice(&(!ip_sum).to_be_bytes());
        b[START + 16..START + 20].copy_from_slice(&remote_ip.to_be_bytes());
        if let Some(b) = b.last_chunk_mut() {
            tcp(b, t, header, u64::from(self.pseudo_sum + remote) + segment as u64, payload_sum);
        }
        self.bytes.get(self.begin..START + IPV4 + header).unwrap_or(&self.bytes)
    }
}

/// Ethernet, IPv6 and TCP.
pub(crate) struct HeaderTemplate6 {
    bytes: [u8; START + ipv6::HEADER + TCP_MAX],
    begin: usize,
}

impl HeaderTemplate6 {
    pub fn new(mac: [u8; 6], vlan: Option<u16>) -> Self {
        let mut bytes = [0; START + ipv6::HEADER + TCP_MAX];
        let begin = bytes.first_chunk_mut().map_or(0, |b| ethernet(b, mac, vlan, TYPE_IPV6));
        let b = &mut bytes[START..];
        b[0] = 0x60;
        b[6] = PROTO_TCP;
        HeaderTemplate6 { bytes, begin }
    }

    /// As [`HeaderTemplate::write`], between the addresses of `path`.
    #[inline]
    pub fn write(
        &mut self,
        t: &TcpFields<'_>,
        path: &Path,
        hop_limit: u8,
        payload_len: usize,
        payload_sum: Option<u16>,
    ) -> &[u8] {
        const SRC: usize = START + 8;
        const DST: usize = START + 24;
        let header = TCP + t.options.len().min(40);
        let segment = header + payload_len;
        let b = &mut self.bytes;
        if self.begin == 0 {
            b[0..6].copy_from_slice(&t.dst_mac);
        } else {
            b[TAG..TAG + 6].copy_from_slice(&t.dst_mac);
        }
        // Version, traffic class, and the flow label, by which routers that spread load know connections (RFC 6437).
        let flow = path.label(t.key);
        let first = 6 << 28 | u32::from(t.ecn) << 20 | flow;
        b[START..START + 4].copy_from_slice(&first.to_be_bytes());
        b[START + 4..START + 6].copy_from_slice(&(segment as u16).to_be_bytes());
        b[START + 7] = hop_limit;
        b[SRC..SRC + 16].copy_from_slice(&path.local.octets());
        b[DST..DST + 16].copy_from_slice(&path.remote.octets());
        if let Some(b) = b.last_chunk_mut() {
            tcp(b, t, header, u64::from(path.sum) + segment as u64, payload_sum);
        }
        self.bytes.get(self.begin..START + ipv6::HEADER + header).unwrap_or(&self.bytes)
    }
}
