//! ICMP: echo, and errors about packets that we sent (RFC 792, RFC 1122 §3.2.2, RFC 5927).

use super::*;
use crate::connection::pmtu::guess_mtu;
use crate::sabotage::{Rule, broken};
use crate::seq::Seq;
use crate::wire::ETHERNET;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet,
    Icmpv4Repr, IpProtocol, Ipv4Packet, Ipv4Repr,
};

/// Octets of an IPv4 header without options.
const IP_HEADER: usize = wire::IPV4;

impl<B: Buffers, H: Handler<B::Frame>, T: Transmit<B::Payload>> Call<'_, B, H, T> {
    pub fn receive_icmp(&mut self, frame: &B::Frame, ip: &Ip) {
        let body = frame.bytes().get(ip.payload.clone()).unwrap_or(&[]);
        let sums = ChecksumCapabilities::default();
        let Ok(packet) = Icmpv4Packet::new_checked(body) else {
            self.stack.net.counters.malformed += 1;
            return;
        };
        let is_error = matches!(
            packet.msg_type(),
            Icmpv4Message::DstUnreachable | Icmpv4Message::TimeExceeded | Icmpv4Message::ParamProblem
        );
        if is_error
            && packet.verify_checksum()
            && let Some(quote) = Quote::parse(body)
            && self.leaves_to_quoted(quote.sender(), quote.receiver(), frame)
        {
            return;
        }
        match packet.msg_type() {
            // `Quote` parses errors, because an error quotes only the beginning of a packet, and smoltcp's parser of
            // errors refuses that.
            Icmpv4Message::DstUnreachable if packet.verify_checksum() => {
                self.stack.net.counters.unreachables_in += 1;
                if let Some(quote) = Quote::parse(body) {
                    self.unreachable(&quote);
                }
            }
            // RFC 9293 §3.9.2.2: soft errors.
            Icmpv4Message::TimeExceeded | Icmpv4Message::ParamProblem if packet.verify_checksum() => {
                if let Some(index) = Quote::parse(body).and_then(|q| self.stack.quoted(&q)) {
                    self.with(index, |c, _, _| {
                        c.cold.soft_error = true;
                        Fate::Keep
                    });
                }
            }
            Icmpv4Message::EchoRequest => match Icmpv4Repr::parse(&packet, &sums) {
                Ok(Icmpv4Repr::EchoRequest { ident, seq_no, data }) => {
                    if !self.leaves_to_speaker(frame) {
                        let reply = Icmpv4Repr::EchoReply { ident, seq_no, data };
                        self.reply_echo(frame.bytes(), ip, &reply);
                    }
                }
                _ => self.stack.net.counters.malformed += 1,
            },
            _ => {}
        }
    }

    /// Returns whether another stack of the device owns the connection between `sender` and `receiver` of a
    /// quoted segment. If so, hands the frame to that stack.
    pub(super) fn leaves_to_quoted(
        &mut self,
        sender: SocketAddr,
        receiver: SocketAddr,
        frame: &B::Frame,
    ) -> bool {
        let Some(owner) = self.stack.net.cfg.steering.other_owner(sender, receiver) else { return false };
        if !broken(Rule::ErrorsReachOwners) {
            self.hand_over(Elsewhere::Stack(owner), frame);
        }
        true
    }

    fn reply_echo(&mut self, frame: &[u8], ip: &Ip, reply: &Icmpv4Repr<'_>) {
        let len = reply.buffer_len();
        let Stack { net, scratch, .. } = &mut *self.stack;
        let Some(source) = frame.get(6..12) else { return };
        if self.tx.room() == 0 || IP_HEADER + len > usize::from(net.cfg.mtu) || !net.may_reply(self.now) {
            return;
        }
        scratch.clear();
        scratch.resize(ETHERNET + IP_HEADER + len, 0);
        let mut ethernet = EthernetFrame::new_unchecked(&mut scratch[..]);
        ethernet.set_dst_addr(EthernetAddress::from_bytes(source));
        ethernet.set_src_addr(EthernetAddress(net.cfg.mac));
        ethernet.set_ethertype(EthernetProtocol::Ipv4);
        let mut packet = Ipv4Packet::new_unchecked(ethernet.payload_mut());
        let sums = ChecksumCapabilities::default();
        Ipv4Repr {
            src_addr: net.ip,
            dst_addr: Ipv4Addr::from_bits(ip.src),
            next_header: IpProtocol::Icmp,
            payload_len: len,
            hop_limit: 64,
        }
        .emit(&mut packet, &sums);
        reply.emit(&mut Icmpv4Packet::new_unchecked(packet.payload_mut()), &sums);
        net.counters.echo_replies += 1;
        let loopback = ip.src == net.ip.to_bits();
        net.emit_frame(self.tx, scratch, loopback);
    }

    /// Takes the report that a segment of ours could not be delivered. If the segment was too large, lowers the path
    /// MTU. A permanent error closes a connection only while it is being opened. In all other cases the connection
    /// remembers the error, and reports it as the reason if the peer stays silent (RFC 9293 §3.9.2.2, RFC 5461, RFC
    /// 5927 §5.2).
    fn unreachable(&mut self, q: &Quote) {
        let Some(index) = self.stack.quoted(q) else { return };
        self.with(index, |c, cx, _| {
            let opening = c.state == State::SynSent;
            match Icmpv4DstUnreachable::from(q.code) {
                Icmpv4DstUnreachable::FragRequired => {
                    let mtu = match q.mtu {
                        0 => {
                            let known = cx.net.path_mtu(q.key, cx.now);
                            guess_mtu(q.length, q.header, known).min(known)
                        }
                        told => told,
                    };
                    c.lower_mtu(mtu, cx.now);
                    // A reported value below 576 counts as 576, as in `lower_mtu`.
                    cx.net.path_shrank(q.key, mtu.max(576), cx.now);
                }
                Icmpv4DstUnreachable::PortUnreachable | Icmpv4DstUnreachable::ProtoUnreachable if opening => {
                    return Fate::Closed(CloseReason::Refused);
                }
                Icmpv4DstUnreachable::NetProhibited
                | Icmpv4DstUnreachable::HostProhibited
                | Icmpv4DstUnreachable::CommProhibited
                    if opening =>
                {
                    return Fate::Closed(CloseReason::Unreachable);
                }
                _ => c.cold.soft_error = true,
            }
            Fate::Keep
        });
    }
}

impl<B: Buffers> Stack<B> {
    /// Returns the connection whose segment an error quotes; `None` if the error is not believed.
    fn quoted(&self, q: &Quote) -> Option<u32> {
        if q.src == self.net.ip.to_bits() { self.sender_of(q.key, q.seq) } else { None }
    }

    /// Returns the connection that sent the segment which an error quotes. `None` if the quoted octets are not in
    /// flight, because such an error may be forged (RFC 5927 §4.1).
    pub(super) fn sender_of(&self, key: Key, seq: Seq) -> Option<u32> {
        let Some(Place::Connection(index)) = self.table.get(key).map(Place::unpack) else { return None };
        let c = self.connections.get(index)?;
        (seq.ge(c.snd_una) && seq.lt(c.snd_nxt)).then_some(index)
    }
}

/// The content of an ICMP error about a TCP segment (RFC 792). The MTU has a meaning only in a destination-unreachable
/// message with the code for fragmentation needed (RFC 1191 §4).
struct Quote {
    code: u8,
    /// Zero if the router does not tell it.
    mtu: u16,
    /// Lengths of the packet and of its IP header, in octets.
    length: u16,
    header: u16,
    /// Address that the segment was sent from.
    src: u32,
    /// The connection, as the sender of the segment sees it.
    key: Key,
    seq: Seq,
}

impl Quote {
    fn sender(&self) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::from_bits(self.src).into(), self.key.local_port())
    }

    fn receiver(&self) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::from_bits(self.key.remote_ip()).into(), self.key.remote_port())
    }

    fn parse(body: &[u8]) -> Option<Quote> {
        let &[_, code, _, _, _, _, m0, m1, ref packet @ ..] = body else { return None };
        let ip: &[u8; IP_HEADER] = packet.first_chunk()?;
        let header = usize::from(ip[0] & 0x0f) * 4;
        if ip[0] >> 4 != 4 || header < IP_HEADER || ip[9] != PROTO_TCP {
            return None;
        }
        let &[s0, s1, d0, d1, q0, q1, q2, q3] = packet.get(header..)?.first_chunk()?;
        let dst = u32::from_be_bytes([ip[16], ip[17], ip[18], ip[19]]);
        Some(Quote {
            code,
            mtu: u16::from_be_bytes([m0, m1]),
            length: u16::from_be_bytes([ip[2], ip[3]]),
            header: header as u16,
            src: u32::from_be_bytes([ip[12], ip[13], ip[14], ip[15]]),
            key: Key::new(dst, u16::from_be_bytes([d0, d1]), u16::from_be_bytes([s0, s1])),
            seq: Seq(u32::from_be_bytes([q0, q1, q2, q3])),
        })
    }
}
