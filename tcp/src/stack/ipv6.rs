//! Arriving IPv6 packets, and the upkeep of IPv6 on the link.

use super::*;
use crate::ipv6::{self, Ip6, Refused6, is_no_host, next, problem};
use crate::nd::message::pseudo_sum;
use core::net::Ipv6Addr;

/// Maximum number of unused address pairs that arriving segments may leave until the next flush.
const MAX_IDLE_PATHS: usize = 256;

impl<B: Buffers, H: Handler<B::Frame>, T: Transmit<B::Payload>> Call<'_, B, H, T> {
    pub fn receive_ipv6(&mut self, mut frame: B::Frame, at: usize) {
        let Some(mut ip) = ipv6::parse(&frame, at) else {
            self.stack.net.counters.malformed += 1;
            return;
        };
        let to_station = frame.bytes().first().is_some_and(|b| b & 1 == 0);
        if ip.protocol == next::TCP
            && to_station
            && let Some(path) = self.stack.net.paths.find(ip.dst, ip.src)
        {
            return self.receive_tcp6(frame, &ip, path);
        }
        self.settle_acks();
        frame.keep();
        // The address pairs in `paths` were checked when they were added. All other pairs are checked here.
        let net = &mut self.stack.net;
        let inet = &net.inet6;
        let group = ip.dst.is_multicast();
        if !(if group { inet.hears(ip.dst) } else { inet.is_own(ip.dst) || inet.is_tentative(ip.dst) }) {
            net.counters.not_for_us += 1;
            return;
        }
        if ip.src.is_multicast() || ip.src.is_loopback() {
            net.counters.malformed += 1;
            return;
        }
        if let Err(refused) = ipv6::skip_extensions(frame.bytes(), &mut ip) {
            return self.refuse_ipv6(&frame, &ip, refused);
        }
        match ip.protocol {
            next::ICMP => self.receive_icmp6(&frame, &ip),
            // TCP ignores groups. A packet to a unicast address must come in a frame to our MAC address.
            _ if group || !to_station || !net.inet6.is_own(ip.dst) => net.counters.not_for_us += 1,
            _ if is_no_host(ip.src) => net.counters.malformed += 1,
            next::TCP => {
                let own = net.inet6.is_own(ip.src);
                if let Some(path) = net.paths.intern(ip.dst, ip.src, own) {
                    self.receive_tcp6(frame, &ip, path);
                }
                let paths = &mut self.stack.net.paths;
                if paths.idle() > MAX_IDLE_PATHS {
                    paths.collect();
                }
            }
            next::UDP => {
                net.counters.unknown_protocol += 1;
                self.complain6(&frame, &ip, Complaint::PORT);
            }
            _ => {
                net.counters.unknown_protocol += 1;
                let complaint = Complaint::problem(problem::NEXT_HEADER, ip.named_at);
                self.complain6(&frame, &ip, complaint);
            }
        }
    }

    fn receive_tcp6(&mut self, frame: B::Frame, ip: &Ip6, path: u32) {
        let pseudo = |len| pseudo_sum(ip.src, ip.dst, PROTO_TCP, len);
        let mut segment = Segment { ecn: ip.ecn, ..Segment::default() };
        if let Err(refused) = wire::parse_tcp(&frame, &ip.payload, pseudo, &mut segment) {
            let unfilled = wire::is_unfilled(&frame, &ip.payload, pseudo);
            return self.stack.refuse_segment(refused, unfilled);
        }
        let key = Key::v6(path, segment.remote_port, segment.local_port);
        // RFC 4861 §7.3.1: an ACK of our data confirms that the neighbour is reachable.
        let sender = match self.stack.find(key) {
            Some(Place::Connection(i)) => self.stack.connections.get(i).map(|c| (i, c.generation, c.snd_una)),
            _ => None,
        };
        self.dispatch(Incoming { key, segment: &segment, frame });
        if let Some((i, generation, una)) = sender
            && let Some(c) = self.stack.connections.get(i).filter(|c| c.generation == generation)
            && c.snd_una != una
            && c.neighbour.is_v6()
        {
            self.stack.net.inet6.confirm(c.neighbour, self.now);
        }
    }

    fn refuse_ipv6(&mut self, frame: &B::Frame, ip: &Ip6, refused: Refused6) {
        let counters = &mut self.stack.net.counters;
        match refused {
            Refused6::Malformed => counters.malformed += 1,
            Refused6::Ignore => counters.unknown_protocol += 1,
            Refused6::Fragment { first } => {
                counters.fragments += 1;
                // We never reassemble fragments, so the report does not wait for the reassembly timeout of a minute.
                if first {
                    self.complain6(frame, ip, Complaint::REASSEMBLY);
                }
            }
            Refused6::Problem { code, at, even_group } => {
                counters.malformed += 1;
                let complaint = Complaint { even_group, ..Complaint::problem(code, at) };
                self.complain6(frame, ip, complaint);
            }
        }
    }

    /// Runs the timers of IPv6.
    #[inline]
    pub fn run_inet6_timers(&mut self) {
        if !self.stack.net.inet6.is_enabled() {
            return;
        }
        self.stack.net.inet6.advance(self.now);
        while let Some(resolved) = self.stack.net.inet6.advance_neighbours(self.now) {
            if let Some(resolved) = resolved {
                self.wake_waiters(resolved);
            }
        }
    }
}

impl<B: Buffers> Stack<B> {
    /// Returns the number of the address pair for packets to `ip`.
    pub(super) fn path_to(&mut self, ip: Ipv6Addr) -> Result<u32, ConnectError> {
        let source = self.net.inet6.source_for(ip).ok_or(ConnectError::Unreachable(ip.into()))?;
        self.path_from(source, ip)
    }

    /// Returns the number of the address pair for packets from `source` to `ip`.
    pub(super) fn path_from(&mut self, source: Ipv6Addr, ip: Ipv6Addr) -> Result<u32, ConnectError> {
        let own = self.net.inet6.is_own(ip);
        self.net.paths.intern(source, ip, own).ok_or(ConnectError::TooMany)
    }

    /// Returns whether [`flush_inet6`](Self::flush_inet6) has anything to do.
    #[inline]
    pub(super) fn has_for_link(&self) -> bool {
        self.net.inet6.is_enabled() && (self.net.inet6.has_frames() || self.net.paths.idle() > 0)
    }

    /// Sends the frames that IPv6 has for the link, and removes address pairs that are no longer in use.
    pub(super) fn flush_inet6(&mut self, tx: &mut impl Transmit<B::Payload>) {
        while self.net.inet6.has_frames() && tx.room() > 0 {
            if let Some(frame) = self.net.inet6.next_frame() {
                self.net.counters.nd_out += 1;
                self.net.emit_frame(tx, &frame, false);
            }
        }
        if self.net.paths.idle() > 0 {
            self.net.paths.collect();
        }
    }
}

/// An error to report about a packet (RFC 4443 §3).
#[derive(Clone, Copy, Debug)]
pub(super) struct Complaint {
    pub kind: u8,
    pub code: u8,
    /// Offset of the faulty octet from the start of the packet.
    pub pointer: u32,
    /// Whether the report is also sent if the packet was for a group.
    pub even_group: bool,
}

impl Complaint {
    /// Port unreachable.
    const PORT: Complaint =
        Complaint { kind: crate::nd::message::kind::UNREACHABLE, code: 4, pointer: 0, even_group: false };
    /// The packet was not reassembled in time.
    const REASSEMBLY: Complaint =
        Complaint { kind: crate::nd::message::kind::TIME_EXCEEDED, code: 1, pointer: 0, even_group: false };

    fn problem(code: u8, at: usize) -> Complaint {
        let kind = crate::nd::message::kind::PROBLEM;
        Complaint { kind, code, pointer: at as u32, even_group: false }
    }
}
