//! A peer that a test plays, segment by segment.

use crate::harness::{Host, Script, ip, mac};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr,
    IpAddress, IpProtocol, Ipv4Packet, Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
    TcpTimestampRepr,
};
use std::net::SocketAddrV4;
use std::time::Duration;
use urnic_tcp::{StackConfig, Time};

/// The peer's host number.
const PEER: u8 = 9;

/// One TCP segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seg {
    pub from: u16,
    pub to: u16,
    pub syn: bool,
    pub fin: bool,
    pub rst: bool,
    pub seq: u32,
    pub ack: Option<u32>,
    pub window: u16,
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub sack_permitted: bool,
    pub sacks: Vec<(u32, u32)>,
    pub timestamp: Option<(u32, u32)>,
    pub data: Vec<u8>,
}

impl Default for Seg {
    fn default() -> Self {
        Seg {
            from: 5000,
            to: 7,
            syn: false,
            fin: false,
            rst: false,
            seq: 0,
            ack: None,
            window: 0xffff,
            mss: None,
            scale: None,
            sack_permitted: false,
            sacks: Vec::new(),
            timestamp: None,
            data: Vec::new(),
        }
    }
}

impl Seg {
    pub fn frame(&self, src: u8, dst: u8) -> Vec<u8> {
        let mut sack_ranges = [None; 3];
        for (to, &from) in sack_ranges.iter_mut().zip(&self.sacks) {
            *to = Some(from);
        }
        let control = match (self.rst, self.syn, self.fin) {
            (true, _, _) => TcpControl::Rst,
            (_, true, _) => TcpControl::Syn,
            (_, _, true) => TcpControl::Fin,
            _ => TcpControl::None,
        };
        let tcp = TcpRepr {
            src_port: self.from,
            dst_port: self.to,
            control,
            seq_number: TcpSeqNumber(self.seq as i32),
            ack_number: self.ack.map(|a| TcpSeqNumber(a as i32)),
            window_len: self.window,
            window_scale: self.scale,
            max_seg_size: self.mss,
            sack_permitted: self.sack_permitted,
            sack_ranges,
            timestamp: self.timestamp.map(|(v, e)| TcpTimestampRepr { tsval: v, tsecr: e }),
            payload: &self.data,
        };
        let ipv4 = Ipv4Repr {
            src_addr: ip(src),
            dst_addr: ip(dst),
            next_header: IpProtocol::Tcp,
            payload_len: tcp.buffer_len(),
            hop_limit: 64,
        };
        let mut bytes = vec![0; 14 + ipv4.buffer_len() + tcp.buffer_len()];
        let mut eth = EthernetFrame::new_unchecked(&mut bytes[..]);
        EthernetRepr {
            src_addr: EthernetAddress(mac(src)),
            dst_addr: EthernetAddress(mac(dst)),
            ethertype: EthernetProtocol::Ipv4,
        }
        .emit(&mut eth);
        let caps = ChecksumCapabilities::default();
        let mut packet = Ipv4Packet::new_unchecked(eth.payload_mut());
        ipv4.emit(&mut packet, &caps);
        tcp.emit(
            &mut TcpPacket::new_unchecked(packet.payload_mut()),
            &IpAddress::Ipv4(ip(src)),
            &IpAddress::Ipv4(ip(dst)),
            &caps,
        );
        bytes
    }

    /// Parses a frame of a stack, and checks its lengths, checksums and options; `None` if it is not TCP over
    /// IPv4.
    pub fn parse(frame: &[u8]) -> Option<Seg> {
        let eth = EthernetFrame::new_checked(frame).expect("Ethernet");
        if eth.ethertype() != EthernetProtocol::Ipv4 {
            return None;
        }
        let packet = Ipv4Packet::new_checked(eth.payload()).expect("IPv4");
        assert!(packet.verify_checksum(), "IP checksum");
        assert_eq!(usize::from(packet.total_len()), eth.payload().len());
        if packet.next_header() != IpProtocol::Tcp {
            return None;
        }
        let tcp = TcpPacket::new_checked(packet.payload()).expect("TCP");
        let (src, dst) = (IpAddress::Ipv4(packet.src_addr()), IpAddress::Ipv4(packet.dst_addr()));
        assert!(tcp.verify_checksum(&src, &dst), "TCP checksum of {tcp}");
        let repr = TcpRepr::parse(&tcp, &src, &dst, &ChecksumCapabilities::default()).expect("TCP options");
        Some(Seg {
            from: tcp.src_port(),
            to: tcp.dst_port(),
            syn: tcp.syn(),
            fin: tcp.fin(),
            rst: tcp.rst(),
            seq: tcp.seq_number().0 as u32,
            ack: tcp.ack().then_some(tcp.ack_number().0 as u32),
            window: tcp.window_len(),
            mss: repr.max_seg_size,
            scale: repr.window_scale,
            sack_permitted: repr.sack_permitted,
            sacks: repr.sack_ranges.iter().flatten().copied().collect(),
            timestamp: repr.timestamp.map(|t| (t.tsval, t.tsecr)),
            data: tcp.payload().to_vec(),
        })
    }
}

/// A stack (host 1) that talks to the hand-written peer.
pub struct Bench {
    pub host: Host,
    pub now: Time,
}

impl Bench {
    pub fn new(tune: impl FnOnce(&mut StackConfig)) -> Self {
        let mut b = Bench { host: Host::new(1, tune), now: Time::from_secs(1) };
        // The stack knows the peer's MAC address from the start, because it answers this request.
        assert!(b.give(arp(ArpOperation::Request, PEER, 1)).is_empty());
        b
    }

    /// Returns a stack that listens on port 7, with its settings changed by `tune`. TCP options are in use only if
    /// the peer offers them too.
    pub fn listening(tune: impl FnOnce(&mut StackConfig), script: Script) -> Self {
        let mut b = Bench::new(tune);
        b.host.app.on_accept = Some(script);
        b.host.app.unchecked = true;
        b.host.stack.listen_on(7, 64).expect("listen");
        b
    }

    fn give(&mut self, frame: Vec<u8>) -> Vec<Seg> {
        self.host.inbox.push_back(frame);
        self.pass()
    }

    /// Runs one pass at the present time and answers ARP requests. Returns the segments that the stack sent.
    pub fn pass(&mut self) -> Vec<Seg> {
        let mut segments = Vec::new();
        loop {
            self.host.pass(self.now);
            let frames = std::mem::take(&mut self.host.out.frames);
            if frames.is_empty() && self.host.inbox.is_empty() {
                return segments;
            }
            for f in frames {
                match Seg::parse(&f) {
                    Some(s) => segments.push(s),
                    None if is_arp_request(&f) => {
                        self.host.inbox.push_back(arp(ArpOperation::Reply, PEER, 1))
                    }
                    None => {}
                }
            }
        }
    }

    /// Sends a segment from the peer. Returns the segments that the stack then sends.
    pub fn send(&mut self, seg: &Seg) -> Vec<Seg> {
        self.give(seg.frame(PEER, 1))
    }

    /// Sends several segments in one burst.
    pub fn burst(&mut self, segs: &[Seg]) -> Vec<Seg> {
        self.host.inbox.extend(segs.iter().map(|s| s.frame(PEER, 1)));
        self.pass()
    }

    /// Lets virtual time pass. Returns the segments that the stack sends meanwhile, with their times.
    pub fn wait(&mut self, span: Duration) -> Vec<(Time, Seg)> {
        let end = self.now + span;
        let mut sent: Vec<(Time, Seg)> = self.pass().into_iter().map(|s| (self.now, s)).collect();
        while let Some(t) = self.host.stack.next_deadline().filter(|t| *t <= end) {
            self.now = self.now.max(t);
            let now = self.now;
            sent.extend(self.pass().into_iter().map(|s| (now, s)));
        }
        self.now = end;
        sent
    }

    /// Opens a connection from the peer. `syn` has its options and sequence number. Returns the peer's end of the
    /// connection and the stack's SYN-ACK.
    pub fn open(&mut self, syn: Seg) -> (Conversation, Seg) {
        let syn = Seg { syn: true, ..syn };
        let reply = self.send(&syn);
        let [synack] = &reply[..] else { panic!("expected a SYN-ACK: {reply:?}") };
        assert!(synack.syn && synack.ack == Some(syn.seq.wrapping_add(1)), "{synack:?}");
        let c = Conversation {
            base: Seg {
                from: syn.from,
                to: syn.to,
                window: syn.window,
                timestamp: syn.timestamp.map(|(v, _)| (v + 1, synack.timestamp.map_or(0, |t| t.0))),
                ..Seg::default()
            },
            nxt: syn.seq.wrapping_add(1),
            una: synack.seq.wrapping_add(1),
        };
        (c, synack.clone())
    }

    /// Returns an established connection that the peer opened.
    pub fn established(&mut self, syn: Seg) -> Conversation {
        let (c, _) = self.open(syn);
        let before = self.host.app.sessions.len();
        let sent = self.send(&c.seg());
        assert_eq!(self.host.app.sessions.len(), before + 1, "not accepted; stack sent {sent:?}");
        c
    }

    /// Opens a connection from the stack to port 9 of the peer. Returns its SYN.
    pub fn connect(&mut self, script: Script) -> Seg {
        self.host.app.unchecked = true;
        self.host.connect(self.now, SocketAddrV4::new(ip(PEER), 9), script);
        let sent = self.pass();
        let [syn] = &sent[..] else { panic!("expected a SYN: {sent:?}") };
        assert!(syn.syn && syn.ack.is_none() && syn.data.is_empty());
        syn.clone()
    }
}

/// The peer's end of a connection. `base` has ports, window and timestamps.
#[derive(Clone)]
pub struct Conversation {
    pub base: Seg,
    /// The peer's next sequence number.
    pub nxt: u32,
    /// The next sequence number that the peer expects from the stack.
    pub una: u32,
}

impl Conversation {
    /// Returns a bare ACK.
    pub fn seg(&self) -> Seg {
        Seg { seq: self.nxt, ack: Some(self.una), ..self.base.clone() }
    }

    /// Returns a segment of `len` octets, `offset` octets beyond those sent.
    pub fn data(&self, offset: u32, len: usize) -> Seg {
        Seg { seq: self.nxt.wrapping_add(offset), data: vec![0xd7; len], ..self.seg() }
    }
}

fn is_arp_request(frame: &[u8]) -> bool {
    let eth = EthernetFrame::new_checked(frame).expect("Ethernet");
    eth.ethertype() == EthernetProtocol::Arp
        && ArpPacket::new_checked(eth.payload()).is_ok_and(|p| p.operation() == ArpOperation::Request)
}

/// Returns an ARP frame from one host to another.
pub fn arp(operation: ArpOperation, from: u8, to: u8) -> Vec<u8> {
    let known = operation == ArpOperation::Reply;
    let target = EthernetAddress(if known { mac(to) } else { [0; 6] });
    let repr = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(mac(from)),
        source_protocol_addr: ip(from),
        target_hardware_addr: target,
        target_protocol_addr: ip(to),
    };
    let mut bytes = vec![0; 14 + repr.buffer_len()];
    let mut eth = EthernetFrame::new_unchecked(&mut bytes[..]);
    EthernetRepr {
        src_addr: EthernetAddress(mac(from)),
        dst_addr: if known { target } else { EthernetAddress::BROADCAST },
        ethertype: EthernetProtocol::Arp,
    }
    .emit(&mut eth);
    repr.emit(&mut ArpPacket::new_unchecked(eth.payload_mut()));
    bytes
}
