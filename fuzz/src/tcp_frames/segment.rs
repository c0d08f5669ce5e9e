//! Segments that answer the frames that the stack has sent. The input determines how well they fit.

use super::{PEER_IP, PEER_MAC, STACK_IP, STACK_MAC};
use crate::input::Input;
use urnic_tcp::sum;

/// A connection as seen from the wire.
#[derive(Clone, Copy)]
pub struct Flow {
    stack_port: u16,
    peer_port: u16,
    /// The next octet that the stack will send.
    stack_nxt: u32,
    /// The next octet that the stack expects.
    peer_nxt: u32,
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 16;

/// Updates the numbers of a connection from a frame that the stack has sent.
pub fn observe(frame: &[u8], flows: &mut Vec<Flow>) {
    let Some(tcp) = frame.get(34..) else { return };
    if frame[12..14] != [8, 0] || frame[23] != 6 || tcp.len() < 20 {
        return;
    }
    let word = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
    let (stack_port, peer_port) = ((word(0) >> 16) as u16, word(0) as u16);
    let len = tcp.len() - usize::from(tcp[12] >> 4) * 4
        + usize::from(tcp[13] & FIN)
        + usize::from(tcp[13] >> 1 & 1);
    let flow = Flow { stack_port, peer_port, stack_nxt: word(4).wrapping_add(len as u32), peer_nxt: word(8) };
    let full = flows.len() >= 64;
    match flows.iter_mut().find(|f| (f.stack_port, f.peer_port) == (stack_port, peer_port)) {
        Some(f) => {
            // A retransmission does not move `stack_nxt` back.
            if (flow.stack_nxt.wrapping_sub(f.stack_nxt) as i32) > 0 || tcp[13] & SYN != 0 {
                f.stack_nxt = flow.stack_nxt;
            }
            f.peer_nxt = flow.peer_nxt;
        }
        None if full => {}
        None => flows.push(flow),
    }
}

/// Reads a segment whose fields are given as offsets from the right values.
pub fn read(input: &mut Input, flows: &[Flow]) -> Vec<u8> {
    let which = usize::from(input.u8());
    let fresh = Flow { stack_port: 7, peer_port: 5000 + which as u16, stack_nxt: 0, peer_nxt: 1 };
    let flow = match flows.len() {
        0 => fresh,
        _ if which >= 192 => fresh,
        n => flows[which % n],
    };
    let shape = input.u8();
    let flags = match shape & 7 {
        0..=3 => ACK,
        4 => SYN,
        5 => ACK | FIN,
        6 => ACK | SYN,
        _ => input.u8(),
    };
    let offset = |input: &mut Input, wanted: bool| {
        let n = if wanted { input.magnitude() } else { 0 };
        if n & 1 == 1 { (n >> 1).wrapping_neg() } else { n >> 1 }
    };
    let seq = flow.peer_nxt.wrapping_add(offset(input, shape & 8 != 0));
    let ack = flow.stack_nxt.wrapping_add(offset(input, shape & 16 != 0));
    let window = if shape & 32 != 0 { input.u16() } else { 0x8000 };
    let mut options = Vec::new();
    if shape & 64 != 0 {
        let kind = input.u8();
        match kind % 6 {
            0 => options.extend([2, 4, input.u8(), input.u8()]),
            1 => options.extend([3, 3, input.u8()]),
            2 => options.extend([4, 2]),
            3 => {
                let blocks = kind / 6 % 4 + 1;
                options.extend([5, 2 + 8 * blocks]);
                for _ in 0..blocks {
                    // Near the outstanding octets.
                    let start = flow.stack_nxt.wrapping_sub(input.magnitude());
                    options.extend(start.to_be_bytes());
                    options.extend(start.wrapping_add(input.magnitude()).to_be_bytes());
                }
            }
            4 => {
                options.extend([8, 10]);
                options.extend(input.u32().to_be_bytes());
                options.extend(input.u32().to_be_bytes());
            }
            _ => options.extend_from_slice(input.take(usize::from(kind) % 40)),
        }
    }
    let len = if shape & 128 != 0 { input.magnitude() as usize % 1500 } else { 0 };
    build(flow, flags, seq, ack, window, &options, &vec![0x5a; len])
}

fn build(flow: Flow, flags: u8, seq: u32, ack: u32, window: u16, options: &[u8], data: &[u8]) -> Vec<u8> {
    let mut options = options[..options.len().min(40)].to_vec();
    options.resize(options.len().next_multiple_of(4), 1);
    let mut tcp = Vec::new();
    tcp.extend(flow.peer_port.to_be_bytes());
    tcp.extend(flow.stack_port.to_be_bytes());
    tcp.extend(seq.to_be_bytes());
    tcp.extend(ack.to_be_bytes());
    tcp.extend([((20 + options.len()) as u8 / 4) << 4, flags]);
    tcp.extend(window.to_be_bytes());
    tcp.extend([0; 4]);
    tcp.extend(options);
    tcp.extend(data);
    let pseudo = sum::pseudo_header_v4(PEER_IP.octets(), STACK_IP.octets(), 6, tcp.len());
    let checksum = sum::checksum(sum::add(pseudo, sum::sum(&tcp)));
    tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
    ip_frame(6, &tcp)
}

/// Makes an IPv4 frame for the stack with this protocol and payload.
pub fn ip_frame(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    ip[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    ip.extend(PEER_IP.octets());
    ip.extend(STACK_IP.octets());
    let checksum = sum::checksum(sum::sum(&ip));
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = Vec::new();
    frame.extend(STACK_MAC);
    frame.extend(PEER_MAC);
    frame.extend([8, 0]);
    frame.extend(ip);
    frame.extend(payload);
    frame
}

/// Makes an ARP frame of the peer: a request for our address, or a reply with its own.
pub fn arp(reply: bool) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend(STACK_MAC);
    frame.extend(PEER_MAC);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, if reply { 2 } else { 1 }]);
    frame.extend(PEER_MAC);
    frame.extend(PEER_IP.octets());
    frame.extend(STACK_MAC);
    frame.extend(STACK_IP.octets());
    frame
}

/// Returns inputs: programs that consist of segments, actions of the application, and passing time.
pub fn seeds() -> Vec<Vec<u8>> {
    const SEGMENT: [u8; 2] = [6, 255];
    let segment = |which: u8, shape: u8, rest: &[u8]| [&SEGMENT[..], &[which, shape], rest].concat();
    let syn = segment(200, 4, &[]);
    let ack = segment(0, 0, &[]);
    let data = segment(0, 128, &[11, 0xff, 0xff, 0, 0]);
    let ahead = segment(0, 128 | 8, &[13, 0x7f, 0xf0, 0, 0, 11, 0xff, 0xff, 0, 0]);
    let sack = segment(0, 64, &[3, 11, 0xff, 0, 0, 0, 9, 0xff, 0, 0, 0]);
    let fin = segment(0, 5, &[]);
    let send = vec![5, 1, 0, 15, 0xff, 0xff, 0, 0];
    let wait = vec![4];
    let close = vec![5, 5, 0];
    let connect = vec![5, 0, 0, 0];
    let synack = segment(0, 6, &[]);
    let options = segment(200, 4 | 64, &[4, 0, 0, 1, 0, 0, 0, 0, 0]);
    let icmp = vec![1, 16, 1, 8, 0, 0xf7, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let programs: [&[&Vec<u8>]; 8] = [
        &[&syn, &ack, &data, &data, &fin, &close, &ack],
        &[&syn, &ack, &send, &send, &ack, &sack, &sack, &wait, &wait, &ack, &close, &wait],
        &[&syn, &ack, &ahead, &data, &ahead, &data, &ahead, &fin],
        &[&connect, &synack, &send, &wait, &ack, &fin, &close, &ack],
        &[&options, &ack, &send, &wait, &ack],
        &[&connect, &syn, &ack, &data],
        &[&icmp, &syn, &wait, &wait, &wait, &ack],
        &[&syn, &ack, &close, &fin, &ack, &wait, &syn, &ack],
    ];
    let mut seeds = Vec::new();
    for flags in [0u8, 7, 0x0f, 0x5f, 0xff] {
        for program in &programs {
            let mut s = vec![flags];
            s.extend(program.iter().flat_map(|p| p.iter().copied()));
            seeds.push(s);
        }
    }
    seeds
}
