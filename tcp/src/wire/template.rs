//! Headers of segments to send: one buffer for each family, in which constant fields stay from frame to frame.
//!
//! The packet begins at the same offset with and without a VLAN tag. The tag, if there is one, lies before it.

use super::{ETHERNET, IPV4, PROTO_TCP, TAG, TCP, TYPE_IPV4, TYPE_IPV6, TYPE_TAG, TcpFields};
use crate::ipv6;
use crate::paths::Path;
use crate::seq::Seq;
use crate::sum;

/// Offset of the packet.
const START: usize = TAG + ETHERNET;
/// Most octets of a TCP header.
const TCP_MAX: usize = TCP + 40;

/// Writes the constant part of the Ethernet header before a packet. Returns where the header begins.
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

/// The common part of the headers of one volley, a series of segments that are sent one after the other: all fields
/// except sequence numbers, flags, lengths and checksums.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    /// Octets of the TCP header.
    header: usize,
    /// Sum of the pseudo-header without the length.
    pseudo: u64,
    /// Sum of the common fields of the TCP header.
    tcp: u64,
    /// Sum of the common fields of the IPv4 header.
    ip: u64,
}

/// The fields that each segment of a volley has of its own, besides the payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    pub seq: Seq,
    pub flags: u8,
}

/// Writes the common fields into the TCP header at the start of `b`. Returns its length and sum.
#[inline(always)]
fn begin_tcp(b: &mut [u8; TCP_MAX], t: &TcpFields<'_>) -> (usize, u64) {
    let (remote_port, local_port) = (t.key.remote_port(), t.key.local_port());
    b[0..2].copy_from_slice(&local_port.to_be_bytes());
    b[2..4].copy_from_slice(&remote_port.to_be_bytes());
    b[8..12].copy_from_slice(&t.ack.0.to_be_bytes());
    b[14..16].copy_from_slice(&t.window.to_be_bytes());
    // Usually timestamps, which are copied with a constant length.
    let options = match <&[u8; 12]>::try_from(t.options) {
        Ok(timestamps) => {
            b[20..32].copy_from_slice(timestamps);
            sum::sum_of(timestamps)
        }
        Err(_) => {
            b[20..].iter_mut().zip(t.options).for_each(|(to, from)| *to = *from);
            sum::sum(t.options)
        }
    };
    let sum = u64::from(remote_port)
        + u64::from(local_port)
        + u64::from(t.ack.0)
        + u64::from(t.window)
        + u64::from(options);
    (TCP + t.options.len().min(40), sum)
}

/// Completes the TCP header of a segment. `len` counts the octets of header and data. `payload_sum` is the sum of the
/// data; with `None`, the port computes the checksum.
#[inline]
fn finish_tcp(b: &mut [u8; TCP_MAX], c: &Common, own: Own, len: usize, payload_sum: Option<u16>) {
    let offset_flags = (c.header as u16 / 4) << 12 | u16::from(own.flags);
    let pseudo = c.pseudo + len as u64;
    let checksum = match payload_sum {
        Some(payload) => {
            let rest = u64::from(own.seq.0) + u64::from(offset_flags) + u64::from(payload);
            !sum::fold(pseudo + c.tcp + rest)
        }
        None => sum::fold(pseudo),
    };
    b[4..8].copy_from_slice(&own.seq.0.to_be_bytes());
    b[12..14].copy_from_slice(&offset_flags.to_be_bytes());
    b[16..18].copy_from_slice(&checksum.to_be_bytes());
}

/// Template of Ethernet, IPv4 and TCP headers.
pub(crate) struct HeaderTemplate {
    bytes: [u8; START + IPV4 + TCP_MAX],
    /// Offset of the frame in `bytes`. With a VLAN tag the frame begins earlier.
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
        b[6] = 0x40; // don't fragment; the identification may then have any value (RFC 6864 §4.1)
        b[8] = 64; // time to live
        b[9] = PROTO_TCP;
        b[12..16].copy_from_slice(&ip.to_be_bytes());
        let ip_sum = u32::from(sum::sum(&b[..IPV4]));
        let address = (ip >> 16) + (ip & 0xffff);
        HeaderTemplate { bytes, begin, ip_sum, pseudo_sum: address + u32::from(PROTO_TCP) }
    }

    /// Begins a series of segments that differ from `t` only in sequence number and flags. The last segment of the
    /// series must be finished before another series begins, because all series use one buffer.
    #[inline(always)]
    pub fn begin(&mut self, t: &TcpFields<'_>) -> Common {
        let remote_ip = t.key.remote_ip();
        let b = &mut self.bytes;
        set_destination(b, self.begin, t.dst_mac);
        b[START + 1] = t.ecn;
        b[START + 16..START + 20].copy_from_slice(&remote_ip.to_be_bytes());
        let (header, tcp) = b.last_chunk_mut().map_or((TCP, 0), |b| begin_tcp(b, t));
        let pseudo = u64::from(self.pseudo_sum) + u64::from(remote_ip);
        Common { header, pseudo, tcp, ip: u64::from(self.ip_sum) + u64::from(remote_ip) + u64::from(t.ecn) }
    }

    /// Completes the headers of a segment with `payload_len` octets of data. `payload_sum` is their sum; with `None`,
    /// the port computes the checksum.
    #[inline]
    pub fn finish(&mut self, c: &Common, own: Own, payload_len: usize, payload_sum: Option<u16>) -> &[u8] {
        let segment = c.header + payload_len;
        let total = (IPV4 + segment) as u16;
        let ip_sum = sum::fold(c.ip + u64::from(total));
        let b = &mut self.bytes;
        b[START + 2..START + 4].copy_from_slice(&total.to_be_bytes());
        b[START + 10..START + 12].copy_from_slice(&(!ip_sum).to_be_bytes());
        if let Some(b) = b.last_chunk_mut() {
            finish_tcp(b, c, own, segment, payload_sum);
        }
        self.bytes.get(self.begin..START + IPV4 + c.header).unwrap_or(&self.bytes)
    }
}

/// Writes the neighbour's MAC address at the start of the frame, which is at offset 0 of `b` with a VLAN tag, and at
/// [`TAG`] without one.
#[inline(always)]
fn set_destination<const N: usize>(b: &mut [u8; N], begin: usize, mac: [u8; 6]) {
    let at = if begin == 0 { 0 } else { TAG };
    b[at..at + 6].copy_from_slice(&mac);
}

/// Template of Ethernet, IPv6 and TCP headers.
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

    /// Like [`HeaderTemplate::begin`], for the addresses of `path`.
    #[inline]
    pub fn begin(&mut self, t: &TcpFields<'_>, path: &Path, hop_limit: u8) -> Common {
        const SRC: usize = START + 8;
        const DST: usize = START + 24;
        let b = &mut self.bytes;
        set_destination(b, self.begin, t.dst_mac);
        // Version, traffic class and flow label. Routers that spread load tell connections apart by the flow label
        // (RFC 6437).
        let flow = path.label(t.key);
        let first = 6 << 28 | u32::from(t.ecn) << 20 | flow;
        b[START..START + 4].copy_from_slice(&first.to_be_bytes());
        b[START + 7] = hop_limit;
        b[SRC..SRC + 16].copy_from_slice(&path.local.octets());
        b[DST..DST + 16].copy_from_slice(&path.remote.octets());
        let (header, tcp) = b.last_chunk_mut().map_or((TCP, 0), |b| begin_tcp(b, t));
        Common { header, pseudo: u64::from(path.sum), tcp, ip: 0 }
    }

    /// Like [`HeaderTemplate::finish`].
    #[inline]
    pub fn finish(&mut self, c: &Common, own: Own, payload_len: usize, payload_sum: Option<u16>) -> &[u8] {
        let segment = c.header + payload_len;
        let b = &mut self.bytes;
        b[START + 4..START + 6].copy_from_slice(&(segment as u16).to_be_bytes());
        if let Some(b) = b.last_chunk_mut() {
            finish_tcp(b, c, own, segment, payload_sum);
        }
        self.bytes.get(self.begin..START + ipv6::HEADER + c.header).unwrap_or(&self.bytes)
    }
}
