//! ICMPv6: echo, errors about packets that we sent, and errors that we send (RFC 4443).

use super::ipv6::Complaint;
use super::*;
use crate::ipv6::{self, Ip6, MIN_MTU, is_no_host, next, problem};
use crate::nd::message::{self, Envelope, kind, pseudo_sum};
use crate::nd::{Arrival, message::HOP_LIMIT};
use crate::seq::Seq;
use crate::sum;
use core::net::Ipv6Addr;

/// Code of an unreachable message: port unreachable.
const PORT: u8 = 4;

impl<B: Buffers, H: Handler<B::Frame>, T: Transmit<B::Payload>> Call<'_, B, H, T> {
    pub fn receive_icmp6(&mut self, frame: &B::Frame, ip: &Ip6) {
        let net = &mut self.stack.net;
        let bytes = frame.bytes();
        let message = bytes.get(ip.payload.clone()).unwrap_or(&[]);
        let pseudo = pseudo_sum(ip.src, ip.dst, next::ICMP, message.len());
        if message.len() < 8 || sum::add(pseudo, sum::sum(message)) != 0xffff {
            net.counters.malformed += 1;
            return;
        }
        // While an address is tentative, only duplicate address detection may use it.
        let tentative = !ip.dst.is_multicast() && !net.inet6.is_own(ip.dst);
        match message[0] {
            kind::LISTENER_QUERY
            | kind::ROUTER_ADVERTISEMENT
            | kind::NEIGHBOUR_SOLICITATION
            | kind::NEIGHBOUR_ADVERTISEMENT
            | kind::REDIRECT => {
                let Some(src_mac) = bytes.get(6..12).and_then(|m| m.try_into().ok()) else { return };
                let arrival = Arrival { src_mac, src: ip.src, dst: ip.dst, hop_limit: ip.hop_limit, message };
                let resolved = net.inet6.receive(self.now, &arrival);
                net.counters.nd_in += u64::from(ip.hop_limit == HOP_LIMIT);
                net.counters.nd_conflicts = net.inet6.conflicts().0;
                if let Some(resolved) = resolved {
                    self.wake_waiters(resolved);
                }
                self.tell_others(frame);
            }
            _ if tentative || is_no_host(ip.src) || ip.dst.is_multicast() => {}
            kind::ECHO_REQUEST if self.leaves_to_speaker(frame) => {}
            kind::ECHO_REQUEST => self.reply_echo6(bytes, ip, message),
            kind::UNREACHABLE | kind::TOO_BIG | kind::PROBLEM | kind::TIME_EXCEEDED
                if let Some((sender, receiver, _)) = quote6(message)
                    && self.leaves_to_quoted(sender, receiver, frame) => {}
            kind::UNREACHABLE => {
                self.stack.net.counters.unreachables_in += 1;
                if let Some(q) = self.stack.quote6(message) {
                    self.unreachable6(message[1], &q);
                }
            }
            kind::TOO_BIG => {
                if let Some(q) = self.stack.quote6(message) {
                    let mtu = u32::from_be_bytes([message[4], message[5], message[6], message[7]]);
                    self.too_big(&q, u16::try_from(mtu).unwrap_or(u16::MAX));
                }
            }
            // The peer's host does not know TCP. In IPv4 this error is called protocol unreachable.
            kind::PROBLEM if message[1] == problem::NEXT_HEADER => {
                if let Some(q) = self.stack.quote6(message) {
                    self.unreachable6(PORT, &q);
                }
            }
            kind::TIME_EXCEEDED | kind::PROBLEM => {
                if let Some(q) = self.stack.quote6(message) {
                    self.with_sender_of(&q, |c, _| {
                        c.cold.soft_error = true;
                        Fate::Keep
                    });
                }
            }
            _ => {}
        }
    }

    fn reply_echo6(&mut self, frame: &[u8], ip: &Ip6, request: &[u8]) {
        let net = &mut self.stack.net;
        let fits = ipv6::HEADER + request.len() <= usize::from(net.inet6.mtu);
        let Some(dst_mac) = frame.get(6..12).and_then(|m| m.try_into().ok()) else { return };
        if self.tx.room() == 0 || !fits || request[1] != 0 || !net.may_reply(self.now) {
            return;
        }
        net.counters.echo_replies += 1;
        let mut reply = request.to_vec();
        reply[0] = kind::ECHO_REPLY;
        reply[2..4].fill(0);
        self.send_icmp6(dst_mac, ip, &reply);
    }

    /// Answers a packet with an ICMPv6 message, to the MAC address `dst_mac`.
    fn send_icmp6(&mut self, dst_mac: [u8; 6], ip: &Ip6, message: &[u8]) {
        let net = &mut self.stack.net;
        let own = net.inet6.is_own(ip.dst).then_some(ip.dst);
        let Some(src) = own.or_else(|| net.inet6.source_for(ip.src)) else { return };
        let envelope =
            Envelope { dst_mac, src_mac: net.cfg.mac, src, dst: ip.src, hop_limit: net.inet6.hop_limit };
        let loopback = net.inet6.is_own(ip.src);
        net.emit_frame(self.tx, &message::frame(&envelope, message), loopback);
    }

    /// Reports a fault of a packet to the packet's sender. Stays silent if the message could cause a loop or reach
    /// many hosts (RFC 4443 §2.4 e).
    pub fn complain6(&mut self, frame: &B::Frame, ip: &Ip6, c: Complaint) {
        if self.leaves_to_speaker(frame) {
            return;
        }
        let frame = frame.bytes();
        let group = ip.dst.is_multicast() || frame.first().is_some_and(|b| b & 1 != 0);
        // The packet is an ICMP error or a redirect, or too short to tell.
        let about_error = match ipv6::upper_layer(frame, ip) {
            Some((next::ICMP, at)) => {
                frame.get(at).is_none_or(|kind| *kind < kind::ECHO_REQUEST || *kind == kind::REDIRECT)
            }
            Some(_) => false,
            None => true,
        };
        if is_no_host(ip.src) || group && !c.even_group || about_error {
            return;
        }
        let Some(dst_mac) = frame.get(6..12).and_then(|m| m.try_into().ok()) else { return };
        if self.tx.room() == 0 || !self.stack.net.may_complain(self.now) {
            return;
        }
        let quoted = frame.get(ip.packet.clone()).unwrap_or(&[]);
        let most = usize::from(MIN_MTU) - ipv6::HEADER - 8;
        let mut m = message::header(c.kind, c.code, c.pointer.to_be_bytes());
        m.extend(quoted.iter().take(most));
        self.stack.net.counters.icmp_errors_out += 1;
        self.send_icmp6(dst_mac, ip, &m);
    }

    /// Like `unreachable` of IPv4: a permanent error closes a connection only while it is being opened.
    fn unreachable6(&mut self, code: u8, q: &Quote6) {
        const PROHIBITED: u8 = 1;
        const POLICY: u8 = 5;
        const REJECTED: u8 = 6;
        self.with_sender_of(q, |c, _| {
            let opening = c.state == State::SynSent;
            match code {
                PORT if opening => return Fate::Closed(CloseReason::Refused),
                PROHIBITED | POLICY | REJECTED if opening => return Fate::Closed(CloseReason::Unreachable),
                _ => c.cold.soft_error = true,
            }
            Fate::Keep
        });
    }

    /// Lowers the path MTU (RFC 8201 §4). A value below [`MIN_MTU`], which every link carries, counts as [`MIN_MTU`].
    fn too_big(&mut self, q: &Quote6, mtu: u16) {
        self.with_sender_of(q, |c, cx| {
            c.lower_mtu(mtu, cx.now);
            cx.net.path_shrank(q.key, mtu.max(MIN_MTU), cx.now);
            Fate::Keep
        });
    }

    /// Calls into the connection whose segment an error quotes, as [`with`](Self::with) does.
    fn with_sender_of(&mut self, q: &Quote6, f: impl FnOnce(&mut Connection<B>, &mut Cx<'_, T>) -> Fate) {
        if let Some(index) = self.stack.sender_of(q.key, q.seq) {
            self.with(index, |c, cx, _| f(c, cx));
        }
    }
}

impl<B: Buffers> Stack<B> {
    /// Returns the quoted segment of an error; `None` if it is not a TCP segment between addresses in use.
    fn quote6(&self, message: &[u8]) -> Option<Quote6> {
        let (sender, receiver, seq) = quote6(message)?;
        let path = match (sender.ip(), receiver.ip()) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => self.net.paths.find(src, dst)?,
            _ => return None,
        };
        Some(Quote6 { key: Key::v6(path, receiver.port(), sender.port()), seq })
    }
}

/// Returns the source, destination and sequence number of the TCP segment that an error quotes; `None` if it quotes
/// none.
fn quote6(message: &[u8]) -> Option<(SocketAddr, SocketAddr, Seq)> {
    let packet = message.get(8..)?;
    let header: &[u8; ipv6::HEADER] = packet.first_chunk()?;
    // We send no extension headers.
    if header[0] >> 4 != 6 || header[6] != PROTO_TCP {
        return None;
    }
    let src = Ipv6Addr::from(*header[8..24].first_chunk::<16>()?);
    let dst = Ipv6Addr::from(*header[24..40].first_chunk::<16>()?);
    let &[s0, s1, d0, d1, q0, q1, q2, q3] = packet.get(ipv6::HEADER..)?.first_chunk()?;
    let sender = SocketAddr::new(src.into(), u16::from_be_bytes([s0, s1]));
    let receiver = SocketAddr::new(dst.into(), u16::from_be_bytes([d0, d1]));
    Some((sender, receiver, Seq(u32::from_be_bytes([q0, q1, q2, q3]))))
}

/// The content of an error about a TCP segment.
struct Quote6 {
    key: Key,
    seq: Seq,
}
