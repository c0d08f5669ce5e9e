//! Arriving frames: sorts them by protocol and destination.

use super::*;

/// A segment that arrived, with the frame that carried it.
pub(super) struct Incoming<'s, F> {
    /// The segment's addresses and ports.
    pub key: Key,
    pub segment: &'s Segment,
    pub frame: F,
}

impl<F: Frame> Incoming<'_, F> {
    /// Returns the MAC address that the frame came from; `None` if the frame is too short.
    pub fn source_mac(&self) -> Option<[u8; 6]> {
        self.frame.bytes().get(6..12)?.try_into().ok()
    }
}

impl<B: Buffers> Stack<B> {
    /// Returns the EtherType after a frame's VLAN tag, and the offset of the frame's payload. The EtherType is
    /// [`OTHER_VLAN`] if the tag is that of another VLAN, and `None` if the frame is too short. A tag of VLAN zero
    /// means only a priority (IEEE 802.1Q), so stacks without a VLAN accept it.
    fn untag(&self, frame: &[u8]) -> (Option<u16>, usize) {
        let at = wire::ETHERNET + wire::TAG;
        match wire::tagged(frame) {
            Some((vlan, kind)) if vlan == self.net.cfg.vlan.unwrap_or(0) => (Some(kind), at),
            Some(_) => (Some(OTHER_VLAN), at),
            None => (None, at),
        }
    }

    /// Counts a segment that cannot be used. `unfilled`: its checksum field holds only the sum of the pseudo-header.
    pub(super) fn refuse_segment(&mut self, refused: Refused, unfilled: bool) {
        if refused == Refused::BadChecksum {
            self.net.counters.bad_tcp_checksum += 1;
            self.net.counters.unfilled_tcp_checksum += u64::from(unfilled);
        } else {
            self.net.counters.malformed += 1;
        }
    }
}

impl<B: Buffers, H: Handler<B::Frame>, T: Transmit<B::Payload>> Call<'_, B, H, T> {
    /// Takes a frame. The fast path is an untagged IPv4 frame.
    #[inline]
    pub fn take(&mut self, frame: B::Frame) {
        let net = &mut self.stack.net;
        net.counters.frames_in += 1;
        let is_usual = frame.bytes().first_chunk().is_some_and(|h: &[u8; wire::ETHERNET]| {
            h.starts_with(&net.cfg.mac) && h.ends_with(&TYPE_IPV4.to_be_bytes())
        });
        if is_usual && net.cfg.vlan.is_none() {
            self.receive_ipv4(frame, wire::ETHERNET);
        } else {
            self.receive_other(frame);
        }
    }

    /// Takes a frame of any kind.
    #[inline(never)]
    fn receive_other(&mut self, mut frame: B::Frame) {
        let bytes = frame.bytes();
        let net = &mut self.stack.net;
        let for_us = bytes.starts_with(&net.cfg.mac)
            || bytes.starts_with(&[0xff; 6])
            || net.inet6.hears_frames_to(bytes);
        let (kind, at) = match wire::ether_type(bytes) {
            Some(TYPE_TAG) => self.stack.untag(bytes),
            kind if net.cfg.vlan.is_none() => (kind, wire::ETHERNET),
            _ => (Some(OTHER_VLAN), wire::ETHERNET),
        };
        let counters = &mut self.stack.net.counters;
        match kind {
            _ if !for_us => counters.not_for_us += 1,
            Some(TYPE_IPV4) => self.receive_ipv4(frame, at),
            Some(TYPE_IPV6) => self.receive_ipv6(frame, at),
            Some(TYPE_ARP) => {
                self.settle_acks();
                frame.keep();
                self.receive_arp(&frame, at);
            }
            Some(OTHER_VLAN) => counters.other_vlan += 1,
            Some(_) => counters.unknown_protocol += 1,
            None => counters.malformed += 1,
        }
    }

    #[inline(always)]
    fn receive_ipv4(&mut self, mut frame: B::Frame, at: usize) {
        let net = &mut self.stack.net;
        let ip = match wire::parse_ipv4(&frame, at) {
            Ok(ip) => ip,
            Err(refused) => {
                let c = &mut net.counters;
                *match refused {
                    Refused::Malformed => &mut c.malformed,
                    Refused::BadChecksum => &mut c.bad_ip_checksum,
                    Refused::Fragment => &mut c.fragments,
                } += 1;
                return;
            }
        };
        // TCP and echo ignore broadcasts and groups (RFC 1122 §3.2.2.6, §4.2.3.10).
        let group = frame.bytes().first().is_none_or(|b| b & 1 != 0);
        if ip.dst != net.ip.to_bits() || ip.dst == 0 || group {
            net.counters.not_for_us += 1;
            return;
        }
        let source = Ipv4Addr::from_bits(ip.src);
        let may_be_none = matches!(ip.src >> 24, 0 | 127 | 224..);
        if may_be_none
            && (source.octets()[0] == 0
                || source.is_broadcast()
                || source.is_multicast()
                || source.is_loopback())
        {
            net.counters.malformed += 1;
            return;
        }
        match ip.protocol {
            PROTO_TCP => self.receive_tcp(frame, &ip),
            PROTO_ICMP => {
                self.settle_acks();
                frame.keep();
                self.receive_icmp(&frame, &ip);
            }
            _ => net.counters.unknown_protocol += 1,
        }
    }

    #[inline(always)]
    fn receive_tcp(&mut self, frame: B::Frame, ip: &Ip) {
        let pseudo = |len| ip.pseudo_sum(len);
        let mut segment = Segment { ecn: ip.ecn, ..Segment::default() };
        if let Err(refused) = wire::parse_tcp(&frame, &ip.payload, pseudo, &mut segment) {
            let unfilled = wire::is_unfilled(&frame, &ip.payload, pseudo);
            return self.stack.refuse_segment(refused, unfilled);
        }
        let key = Key::new(ip.src, segment.remote_port, segment.local_port);
        self.dispatch(Incoming { key, segment: &segment, frame });
    }

    /// Passes a segment to the table entry `place` of its addresses; `None`: there is no entry. The frame has been
    /// [kept](Frame::keep). Segments that take the short path (`burst`) do not come here.
    #[inline(never)]
    pub fn arrive_at(&mut self, place: Option<Place>, incoming: Incoming<'_, B::Frame>) {
        match place {
            Some(Place::Connection(i)) => self.arrive(i, incoming),
            Some(Place::Embryo(i)) => self.arrive_embryo(i, incoming),
            Some(Place::TimeWait(i)) => self.arrive_timewait(i, incoming),
            None => self.arrive_new(incoming, None),
        }
    }

    /// Passes a segment to the connection at `index`.
    pub fn arrive(&mut self, index: u32, incoming: Incoming<'_, B::Frame>) {
        self.stack.last = index;
        self.with(index, |c, cx, h| c.arrive(cx, h, incoming.segment, incoming.frame));
    }

    fn receive_arp(&mut self, frame: &B::Frame, at: usize) {
        let net = &mut self.stack.net;
        let untagged = frame.bytes().get(at - wire::ETHERNET..).unwrap_or(&[]);
        let (resolved, reply) = net.arp.receive(untagged, self.now);
        net.counters.arp_conflicts = net.arp.conflicts().0;
        if let Some(reply) = reply
            && self.tx.room() > 0
        {
            net.counters.arp_replies_out += 1;
            net.emit_frame(self.tx, &reply, false);
        }
        if let Some(resolved) = resolved {
            self.wake_waiters(resolved);
        }
        self.tell_others(frame);
    }
}
