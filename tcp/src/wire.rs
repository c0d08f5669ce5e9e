//! Ethernet, IPv4 and TCP headers of the hot path, parsed and written in place. ARP and ICMP for IPv4 go through
//! `smoltcp::wire`, except packets that ICMP errors quote. [`crate::ipv6`] and [`crate::nd`] parse IPv6 and ICMPv6.

use crate::buffers::Frame;
use crate::reassembly::{Block, MAX_SACK_BLOCKS};
use crate::seq::Seq;
use crate::sum;
use crate::table::Key;
use arrayvec::ArrayVec;
use core::ops::Range;

/// Octets of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;
/// Octets of an IPv4 header without options.
pub(crate) const IPV4: usize = 20;
/// Octets of a TCP header without options.
pub(crate) const TCP: usize = 20;
/// Octets of a VLAN tag (IEEE 802.1Q), which precedes the EtherType.
pub(crate) const TAG: usize = 4;

/// EtherType of IPv4 (RFC 894).
pub(crate) const TYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6 (RFC 2464).
pub(crate) const TYPE_IPV6: u16 = 0x86dd;
/// EtherType of a VLAN tag (IEEE 802.1Q).
pub(crate) const TYPE_TAG: u16 = 0x8100;
/// EtherType of ARP (RFC 826).
pub(crate) const TYPE_ARP: u16 = 0x0806;

/// IP protocol numbers.
pub(crate) const PROTO_ICMP: u8 = 1;
pub(crate) const PROTO_TCP: u8 = 6;

/// TCP control bits (RFC 9293 §3.1).
pub(crate) mod flag {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
    /// ECN-Echo (RFC 3168 §6.1).
    pub const ECE: u8 = 0x40;
    /// Congestion Window Reduced (RFC 3168 §6.1).
    pub const CWR: u8 = 0x80;
}

/// Why a frame is not processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Malformed,
    BadChecksum,
    Fragment,
}

#[inline]
fn be16(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*b.get(at..)?.first_chunk()?))
}

#[inline]
fn be32(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*b.get(at..)?.first_chunk()?))
}

/// Returns the EtherType of a frame; `None` if the frame is too short.
#[inline]
pub(crate) fn ether_type(frame: &[u8]) -> Option<u16> {
    be16(frame, 12)
}

/// Returns the VLAN and the EtherType after a tag; `None` if the frame is too short.
pub(crate) fn tagged(frame: &[u8]) -> Option<(u16, u16)> {
    Some((be16(frame, ETHERNET)? & 0x0fff, be16(frame, ETHERNET + 2)?))
}

/// A parsed IPv4 header.
#[derive(Clone, Debug)]
pub(crate) struct Ip {
    pub src: u32,
    pub dst: u32,
    pub protocol: u8,
    /// The ECN codepoint.
    pub ecn: u8,
    /// Range of the payload in the frame.
    pub payload: Range<usize>,
}

/// Parses the IPv4 header at `at` of an Ethernet frame (RFC 791, RFC 1122 §3.2.1). Octets after the packet are
/// Ethernet padding.
#[inline(always)]
pub(crate) fn parse_ipv4(frame: &impl Frame, at: usize) -> Result<Ip, Refused> {
    let h = frame.bytes().get(at..).ok_or(Refused::Malformed)?;
    let first: &[u8; IPV4] = h.first_chunk().ok_or(Refused::Malformed)?;
    let header = usize::from(first[0] & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([first[2], first[3]]));
    if first[0] >> 4 != 4 || header < IPV4 || total < header || at + total > frame.len() {
        return Err(Refused::Malformed);
    }
    if !frame.checksum_trusted() {
        let sum = if header == IPV4 { sum::sum_of(first) } else { frame.sum(at..at + header) };
        if sum != 0xffff {
            return Err(Refused::BadChecksum);
        }
    }
    // The more-fragments flag, or a fragment offset.
    if u16::from_be_bytes([first[6], first[7]]) & 0x3fff != 0 {
        return Err(Refused::Fragment);
    }
    Ok(Ip {
        src: u32::from_be_bytes([first[12], first[13], first[14], first[15]]),
        dst: u32::from_be_bytes([first[16], first[17], first[18], first[19]]),
        protocol: first[9],
        ecn: first[1] & 3,
        payload: at + header..at + total,
    })
}

/// A timestamps option (RFC 7323 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timestamps {
    pub value: u32,
    pub echo: u32,
}

/// Options that have a meaning only with SYN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SynOptions {
    pub mss: Option<u16>,
    pub window_scale: Option<u8>,
    pub sack_permitted: bool,
    /// Whether a SYN offers ECN, or a SYN-ACK accepts it (RFC 3168 §6.1.1). The flags ECE and CWR carry this, not an
    /// option.
    pub ecn: bool,
}

/// A TCP segment with a correct checksum.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segment {
    pub remote_port: u16,
    pub local_port: u16,
    pub seq: Seq,
    pub ack: Seq,
    pub flags: u8,
    /// ECN codepoint of the packet.
    pub ecn: u8,
    /// The window field as received, without scaling.
    pub window: u16,
    pub timestamps: Option<Timestamps>,
    pub syn: SynOptions,
    pub sack: ArrayVec<Block, MAX_SACK_BLOCKS>,
    /// Range of the data in the frame.
    pub payload: Range<usize>,
}

impl Segment {
    #[inline]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the options of a SYN or SYN-ACK, with ECN.
    pub fn syn_options(&self) -> SynOptions {
        let agreed = if self.has(flag::ACK) { flag::ECE } else { flag::ECE | flag::CWR };
        SynOptions { ecn: self.flags & (flag::ECE | flag::CWR) == agreed, ..self.syn }
    }

    /// Returns SEG.LEN: data, SYN and FIN (RFC 9293 §3.4).
    #[inline]
    pub fn len(&self) -> u32 {
        self.payload.len() as u32 + u32::from(self.has(flag::SYN)) + u32::from(self.has(flag::FIN))
    }
}

impl Ip {
    /// Returns the sum of the pseudo-header of a TCP segment of `len` octets.
    #[inline]
    pub fn pseudo_sum(&self, len: usize) -> u16 {
        sum::pseudo_header_v4(self.src.to_be_bytes(), self.dst.to_be_bytes(), PROTO_TCP, len)
    }
}

/// Parses the TCP segment at `place` of a frame into `segment`, which must have its default value. Checks the
/// checksum (RFC 9293 §3.1), unless the frame vouches for it. `pseudo_sum` returns the sum of the pseudo-header for a
/// segment of the given length.
#[inline(always)]
pub(crate) fn parse_tcp(
    frame: &impl Frame,
    place: &Range<usize>,
    pseudo_sum: impl FnOnce(usize) -> u16,
    segment: &mut Segment,
) -> Result<(), Refused> {
    // Only the headers need to be in private memory.
    let bytes = frame.bytes();
    let h = bytes.get(place.start..place.end.min(bytes.len())).ok_or(Refused::Malformed)?;
    let first: &[u8; TCP] = h.first_chunk().ok_or(Refused::Malformed)?;
    let header = usize::from(first[12] >> 4) * 4;
    let options = h.get(TCP..header).ok_or(Refused::Malformed)?;
    if !frame.checksum_trusted() && sum::add(pseudo_sum(place.len()), frame.sum(place.clone())) != 0xffff {
        return Err(Refused::BadChecksum);
    }
    segment.remote_port = u16::from_be_bytes([first[0], first[1]]);
    segment.local_port = u16::from_be_bytes([first[2], first[3]]);
    segment.seq = Seq(u32::from_be_bytes([first[4], first[5], first[6], first[7]]));
    segment.ack = Seq(u32::from_be_bytes([first[8], first[9], first[10], first[11]]));
    segment.flags = first[13];
    segment.window = u16::from_be_bytes([first[14], first[15]]);
    segment.payload = place.start + header..place.end;
    // The usual case: only timestamps, in the layout of RFC 7323 appendix A.
    match options.split_first_chunk::<4>() {
        None => {}
        Some(([1, 1, 8, 10], rest)) if rest.len() == 8 => segment.timestamps = timestamps(rest),
        Some(_) => parse_options(options, segment),
    }
    Ok(())
}

/// Returns whether the checksum field holds only the sum of the pseudo-header. Such a segment comes from a host that
/// left the checksum to an interface, which did not fill it in.
pub(crate) fn is_unfilled(
    frame: &impl Frame,
    place: &Range<usize>,
    pseudo_sum: impl FnOnce(usize) -> u16,
) -> bool {
    let at = place.start + 16;
    let field = frame.bytes().get(at..at + 2).filter(|_| place.len() >= TCP);
    field.is_some_and(|field| field == pseudo_sum(place.len()).to_be_bytes())
}

#[inline]
fn timestamps(b: &[u8]) -> Option<Timestamps> {
    Some(Timestamps { value: be32(b, 0)?, echo: be32(b, 4)? })
}

/// Parses options in any order. Skips unknown ones; a malformed length ends the list (RFC 9293 §3.1, MUST-7).
fn parse_options(mut b: &[u8], s: &mut Segment) {
    loop {
        let (kind, len) = match *b {
            [] | [0, ..] => return,
            [1, ref rest @ ..] => {
                b = rest;
                continue;
            }
            [kind, len, ..] if len >= 2 => (kind, usize::from(len)),
            _ => return,
        };
        let Some(body) = b.get(2..len) else { return };
        match (kind, body.len()) {
            (2, 2) => s.syn.mss = be16(body, 0),
            (3, 1) => s.syn.window_scale = body.first().map(|&v| v.min(14)), // RFC 7323 §2.3
            (4, 0) => s.syn.sack_permitted = true,
            (5, 8..) if body.len() % 8 == 0 => {
                for block in body.chunks_exact(8) {
                    if let (Some(start), Some(end)) = (be32(block, 0), be32(block, 4)) {
                        let _ = s.sack.try_push(Block::new(Seq(start), Seq(end)));
                    }
                }
            }
            (8, 8) => s.timestamps = timestamps(body),
            _ => {}
        }
        b = b.get(len..).unwrap_or(&[]);
    }
}

/// Options to write: at most 40 octets, a multiple of four.
pub(crate) type Options = ArrayVec<u8, 40>;

/// Appends `NOP NOP TS`.
#[inline]
pub(crate) fn put_timestamps(o: &mut Options, t: Timestamps) {
    let (v, e) = (t.value.to_be_bytes(), t.echo.to_be_bytes());
    let _ = o.try_extend_from_slice(&[1, 1, 8, 10, v[0], v[1], v[2], v[3], e[0], e[1], e[2], e[3]]);
}

/// Appends `NOP NOP SACK` with the given blocks.
pub(crate) fn put_sack(o: &mut Options, blocks: &[Block]) {
    let _ = o.try_extend_from_slice(&[1, 1, 5, 2 + 8 * blocks.len() as u8]);
    for b in blocks {
        let _ = o.try_extend_from_slice(&b.start.0.to_be_bytes());
        let _ = o.try_extend_from_slice(&b.end.0.to_be_bytes());
    }
}

/// Appends the options of a SYN or SYN-ACK.
pub(crate) fn put_syn(o: &mut Options, syn: SynOptions, t: Option<Timestamps>) {
    if let Some(mss) = syn.mss {
        let m = mss.to_be_bytes();
        let _ = o.try_extend_from_slice(&[2, 4, m[0], m[1]]);
    }
    if syn.sack_permitted {
        let _ = o.try_extend_from_slice(&[1, 1, 4, 2]);
    }
    if let Some(t) = t {
        put_timestamps(o, t);
    }
    if let Some(shift) = syn.window_scale {
        let _ = o.try_extend_from_slice(&[1, 3, 3, shift]);
    }
}

/// The fields of a segment's headers that differ between segments.
#[derive(Clone, Debug)]
pub(crate) struct TcpFields<'a> {
    pub dst_mac: [u8; 6],
    /// Addresses and ports of the segment.
    pub key: Key,
    pub seq: Seq,
    pub ack: Seq,
    pub flags: u8,
    /// ECN codepoint of the packet.
    pub ecn: u8,
    pub window: u16,
    pub options: &'a [u8],
}

impl TcpFields<'_> {
    /// Returns the fields that differ within a volley, a series of segments that are sent one after the other.
    #[inline]
    pub fn own(&self) -> Own {
        Own { seq: self.seq, flags: self.flags }
    }
}

mod template;

pub(crate) use template::{Common, HeaderTemplate, HeaderTemplate6, Own};

#[cfg(test)]
mod tests;
