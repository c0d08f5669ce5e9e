//! Segments forged by a third party that knows the connection's addresses and guesses its numbers, well or badly.

use super::end::{address, mac};
use crate::input::Input;
use std::net::IpAddr;
use urnic_tcp::{Numbers, Seq, sum};

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// A forged segment, and its permitted effect.
pub struct Forged {
    pub frame: Vec<u8>,
    pub effect: Effect,
}

/// The changes that a segment may cause at an end that follows the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// None: the segment is refused.
    None,
    /// The sender's knowledge of the receiver, until the next genuine segment: windows and SACKed octets.
    Beliefs,
    /// The data of the streams, or the existence of the connection.
    Streams,
}

/// Returns a number near one of the anchors.
fn near(input: &mut Input, anchors: [Seq; 4]) -> Seq {
    let shape = input.u8();
    let anchor = anchors[usize::from(shape & 3)];
    let offset = match shape >> 2 & 3 {
        0 => 0,
        1 => u32::from(input.u8()),
        _ => input.magnitude(),
    };
    if shape & 0x80 == 0 { anchor + offset } else { anchor - offset }
}

/// Reads a segment for end `to`, whose sequence numbers are `n`. `peer`: the numbers of the other end; `None` if its
/// connection is gone. `ports`: source and destination.
pub fn segment(
    input: &mut Input,
    to: usize,
    v6: bool,
    ports: (u16, u16),
    n: &Numbers,
    peer: Option<&Numbers>,
) -> Forged {
    let shape = input.u8();
    let flags = match shape & 7 {
        0..=3 => ACK,
        4 => RST | ACK,
        5 => ACK | FIN,
        6 => SYN,
        _ => input.u8(),
    };
    let seq =
        if shape & 8 == 0 { n.rcv_nxt } else { near(input, [n.rcv_nxt, n.rcv_end, n.rcv_nxt, n.snd_una]) };
    let ack =
        if shape & 16 == 0 { n.snd_una } else { near(input, [n.snd_una, n.snd_nxt, n.queued, n.snd_una]) };
    let window = if shape & 32 == 0 { 0x8000 } else { input.u16() };
    let data = if shape & 64 == 0 { 0 } else { usize::from(input.u8()) };
    let mut options = Vec::new();
    let mut timestamp = n.ts_recent;
    if shape & 128 != 0 {
        let kind = input.u8();
        if kind & 1 != 0 {
            timestamp = if kind & 2 == 0 { None } else { timestamp.map(|t| near(input, [Seq(t); 4]).0) };
        }
        let blocks = kind >> 2 & 3;
        if blocks > 0 {
            options.extend([1, 1, 5, 2 + 8 * blocks]);
            for _ in 0..blocks {
                let start = near(input, [n.snd_una, n.snd_nxt, n.queued, n.snd_una]);
                options.extend(start.0.to_be_bytes());
                options.extend((start + input.magnitude() % 0x1_0000).0.to_be_bytes());
            }
        }
    }
    if let Some(t) = timestamp {
        options.extend([1, 1, 8, 10]);
        options.extend(t.to_be_bytes());
        options.extend([0; 4]);
    }
    let effect = effect(flags, seq, ack, data as u32, timestamp, n, peer);
    let mut tcp = Vec::new();
    tcp.extend(ports.0.to_be_bytes());
    tcp.extend(ports.1.to_be_bytes());
    tcp.extend(seq.0.to_be_bytes());
    tcp.extend(ack.0.to_be_bytes());
    tcp.extend([((20 + options.len()) as u8 / 4) << 4, flags]);
    tcp.extend(window.to_be_bytes());
    tcp.extend([0; 4]);
    tcp.extend(options);
    tcp.resize(tcp.len() + data, 0x66);
    Forged { frame: packet(to, v6, &tcp), effect }
}

/// Returns the effect that a segment may have. RFC 9293 §3.10.7.4, RFC 5961, RFC 7323 §5.3.
fn effect(
    flags: u8,
    seq: Seq,
    ack: Seq,
    data: u32,
    timestamp: Option<u32>,
    n: &Numbers,
    peer: Option<&Numbers>,
) -> Effect {
    let len = data + u32::from(flags & FIN) + u32::from(flags >> 1 & 1);
    // The number right after the window counts as well, because a peer that has filled the window has no other number
    // for its ACKs.
    let in_window = if len == 0 {
        n.rcv_nxt.le(seq) && seq.le(n.rcv_end)
    } else {
        seq.lt(n.rcv_end) && (seq + len).gt(n.rcv_nxt)
    };
    let old = n.ts_recent.is_some_and(|recent| timestamp.is_none_or(|t| Seq(t).lt(Seq(recent))));
    // A reset needs no timestamp.
    if !in_window || old && flags & RST == 0 {
        return Effect::None;
    }
    if flags & RST != 0 {
        return if seq == n.rcv_nxt { Effect::Streams } else { Effect::None };
    }
    if flags & SYN != 0 || flags & ACK == 0 || ack.lt(n.snd_una - n.max_snd_wnd) || ack.gt(n.snd_nxt) {
        return Effect::None;
    }
    let ahead = n.ts_recent.is_some() && timestamp != n.ts_recent;
    let stolen = ack.gt(n.snd_una) && peer.is_none_or(|p| ack.gt(p.rcv_nxt));
    // The window of a segment whose number is ahead of the peer's holds until the peer reaches that number
    // (SND.WL1).
    let lasting = seq != n.rcv_nxt;
    if len > 0 || ahead || stolen || lasting { Effect::Streams } else { Effect::Beliefs }
}

fn packet(to: usize, v6: bool, tcp: &[u8]) -> Vec<u8> {
    let mut tcp = tcp.to_vec();
    let mut frame = [mac(to), mac(1 - to)].concat();
    let len = tcp.len();
    match (address(1 - to, v6), address(to, v6)) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let pseudo = sum::pseudo_header_v4(from.octets(), to.octets(), 6, len);
            let checksum = sum::checksum(sum::add(pseudo, sum::sum(&tcp)));
            tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
            let [l0, l1] = (20 + len as u16).to_be_bytes();
            let mut ip = vec![0x45, 0, l0, l1, 0, 0, 0x40, 0, 64, 6, 0, 0];
            ip.extend(from.octets());
            ip.extend(to.octets());
            let checksum = sum::checksum(sum::sum(&ip));
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            frame.extend([8, 0]);
            frame.extend(ip);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let addresses = [from.octets(), to.octets()].concat();
            let [l0, l1] = (len as u16).to_be_bytes();
            let pseudo = [&addresses[..], &[0, 0, l0, l1, 0, 0, 0, 6]].concat();
            let checksum = !sum::add(sum::sum(&pseudo), sum::sum(&tcp));
            tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, l0, l1, 6, 64]);
            frame.extend(addresses);
        }
        _ => {}
    }
    frame.extend(tcp);
    frame
}
