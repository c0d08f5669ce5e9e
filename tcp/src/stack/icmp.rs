//! ICMP: echo, and errors about what we sent (RFC 792, RFC 1122 §3.2.2, RFC 5927).

use super::*;
use crate::seq::Seq;
use crate::wire::ETHERNET;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr,
    IpProtocol, Ipv4Packet, Ipv4Repr,
};

/// Octets of an IPv4 header as we write it.
const IP_HEADER: usize = wire::IPV4;

impl<B: Buffers> Stack<B> {
    pub(super) fn receive_icmp(
        &mut self,
        now: Time,
        frame: &[u8],
        ip: &Ip,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        let body = frame.get(ip.payload.clone()).unwrap_or(&[]);
        let parsed = Icmpv4Packet::new_checked(body)
            .and_then(|p| Icmpv4Repr::parse(&p, &ChecksumCapabilities::default()));
        match parsed {
            Ok(Icmpv4Repr::EchoRequest { ident, seq_no, data }) => {
                let reply = Icmpv4Repr::EchoReply { ident, seq_no, data };
                self.reply_echo(now, frame, ip, &reply, tx);
            }
            Ok(Icmpv4Repr::DstUnreachable { reason, header, data }) => {
                let mtu = body.get(6..8).map_or(0, |m| u16::from_be_bytes([m[0], m[1]]));
                self.net.counters.unreachables_in += 1;
                self.unreachable(now, reason, mtu, &header, data, h);
            }
            Ok(_) => {}
            Err(_) => self.net.counters.malformed += 1,
        }
    }

    fn reply_echo(
        &mut self,
        now: Time,
        frame: &[u8],
        ip: &Ip,
        reply: &Icmpv4Repr<'_>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        let len = reply.buffer_len();
        let Some(source) = frame.get(6..12) else { return };
        if tx.room() == 0 || IP_HEADER + len > usize::from(self.net.cfg.mtu) || !self.net.may_reply(now) {
            return;
        }
        self.scratch.clear();
        self.scratch.resize(ETHERNET + IP_HEADER + len, 0);
        let mut ethernet = EthernetFrame::new_unchecked(&mut self.scratch[..]);
        ethernet.set_dst_addr(EthernetAddress::from_bytes(source));
        ethernet.set_src_addr(EthernetAddress(self.net.cfg.mac));
        ethernet.set_ethertype(EthernetProtocol::Ipv4);
        let mut packet = Ipv4Packet::new_unchecked(ethernet.payload_mut());
        let sums = ChecksumCapabilities::default();
        Ipv4Repr {
            src_addr: self.net.cfg.ip,
            dst_addr: Ipv4Addr::from_bits(ip.src),
            next_header: IpProtocol::Icmp,
            payload_len: len,
            hop_limit: 64,
        }
        .emit(&mut packet, &sums);
        reply.emit(&mut Icmpv4Packet::new_unchecked(packet.payload_mut()), &sums);
        self.net.counters.echo_replies += 1;
        let loopback = ip.src == self.net.cfg.ip.to_bits();
        self.net.emit_frame(tx, &self.scratch, loopback);
    }

    /// Someone could not deliver a segment of ours. Believed only if it quotes octets that are in flight (RFC 5927
    /// §4.1); fatal only to a connection that is being opened (RFC 1122 §4.2.3.9, RFC 5461).
    fn unreachable(
        &mut self,
        now: Time,
        reason: Icmpv4DstUnreachable,
        mtu: u16,
        header: &Ipv4Repr,
        data: &[u8],
        h: &mut impl Handler<B::Frame>,
    ) {
        let &[s0, s1, d0, d1, q0, q1, q2, q3, ..] = data else { return };
        if header.next_header != IpProtocol::Tcp || header.src_addr != self.net.cfg.ip {
            return;
        }
        let (local, remote) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
        let key = Key::new(header.dst_addr.to_bits(), remote, local);
        let Some(Place::Connection(index)) = self.table.get(key).map(Place::unpack) else { return };
        let Some(id) = self.id(index) else { return };
        let Some(c) = self.connections.get_mut(index) else { return };
        let seq = Seq(u32::from_be_bytes([q0, q1, q2, q3]));
        if seq.lt(c.snd_una) || seq.ge(c.snd_nxt) {
            return;
        }
        let mut fate = Fate::Keep;
        match reason {
            Icmpv4DstUnreachable::FragRequired => c.lower_mtu(mtu),
            Icmpv4DstUnreachable::PortUnreachable | Icmpv4DstUnreachable::ProtoUnreachable
                if c.state == State::SynSent =>
            {
                fate = Fate::Closed(CloseReason::Refused);
            }
            _ if c.state == State::SynSent => fate = Fate::Closed(CloseReason::Unreachable),
            _ => c.cold.soft_error = true,
        }
        self.settle(now, id, fate, h);
    }
}
