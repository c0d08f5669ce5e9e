//! ARP and ICMP.

use crate::testing::*;
use crate::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr,
    IpProtocol, Ipv4Packet, Ipv4Repr,
};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

fn icmp(from: &StackConfig, to: &StackConfig, repr: &Icmpv4Repr<'_>) -> Vec<u8> {
    let sums = ChecksumCapabilities::default();
    let mut bytes = vec![0; 34 + repr.buffer_len()];
    let mut e = EthernetFrame::new_unchecked(&mut bytes[..]);
    e.set_src_addr(EthernetAddress(from.mac));
    e.set_dst_addr(EthernetAddress(to.mac));
    e.set_ethertype(EthernetProtocol::Ipv4);
    let mut ip = Ipv4Packet::new_unchecked(e.payload_mut());
    Ipv4Repr {
        src_addr: from.ipv4().unwrap().0,
        dst_addr: to.ipv4().unwrap().0,
        next_header: IpProtocol::Icmp,
        payload_len: repr.buffer_len(),
        hop_limit: 64,
    }
    .emit(&mut ip, &sums);
    repr.emit(&mut Icmpv4Packet::new_unchecked(ip.payload_mut()), &sums);
    bytes
}

#[test]
fn echo_is_answered_and_limited() {
    let mut p = Pair::new(|_| {});
    let (a, b) = (config(A), config(B));
    let request = Icmpv4Repr::EchoRequest { ident: 1, seq_no: 2, data: b"are you there" };
    p.b.receive(p.now, icmp(&a, &b, &request));
    let reply = p.b.out.frames.pop_front().unwrap().bytes;
    assert_eq!(reply, {
        let reply = Icmpv4Repr::EchoReply { ident: 1, seq_no: 2, data: b"are you there" };
        icmp(&b, &a, &reply)
    });
    for _ in 0..100_000 {
        p.b.receive(p.now, icmp(&a, &b, &request));
    }
    assert!(p.b.out.frames.len() <= 1001, "{}", p.b.out.frames.len());
    assert!(p.b.out.frames.len() >= 900);
}

/// Returns an error about `frame` that quotes `data` of it.
fn quote<'a>(reason: Icmpv4DstUnreachable, frame: &[u8], data: &'a [u8]) -> Icmpv4Repr<'a> {
    let packet = Ipv4Packet::new_checked(&frame[14..]).unwrap();
    let header = Ipv4Repr::parse(&packet, &ChecksumCapabilities::default()).unwrap();
    Icmpv4Repr::DstUnreachable { reason, header, data }
}

/// An unreachable port ends a connection only while it is being opened (RFC 1122 §4.2.3.9, RFC 5461).
#[test]
fn unreachable_is_hard_only_for_a_syn() {
    for (reason, close) in [
        (Icmpv4DstUnreachable::PortUnreachable, CloseReason::Refused),
        (Icmpv4DstUnreachable::HostProhibited, CloseReason::Unreachable),
    ] {
        let mut p = Pair::new(|_| {});
        let (open, _) = p.connect();
        p.a.stack.send(open, Shared::new(b"data")).unwrap();
        p.a.stack.output(p.now, open, &mut p.a.out);
        let opening = p.a.stack.connect(p.now, SocketAddrV4::new(B, 9), 0, &mut p.a.out).unwrap();
        let sent: Vec<_> = p.a.out.frames.drain(..).map(|s| s.bytes).collect();
        let (a, b) = (config(A), config(B));
        for f in &sent {
            // RFC 5927 §4.1: a quote of octets that are not in flight is not believed.
            let mut forged = f[34..42].to_vec();
            forged[4] ^= 0x80;
            let forged = quote(reason, f, &forged);
            p.a.receive(p.now, icmp(&b, &a, &forged));
            assert!(p.a.seen.events.iter().all(|e| !matches!(e, Event::Closed(..))));
        }
        for f in &sent {
            p.a.receive(p.now, icmp(&b, &a, &quote(reason, f, &f[34..42])));
        }
        assert_eq!(p.a.closed(opening), Some(close));
        assert_eq!(p.a.closed(open), None);
    }
}

/// A changed MAC address of a neighbour is used once the neighbour no longer answers at the old one.
#[test]
fn a_moved_neighbour_is_followed() {
    let mut p = Pair::new(|_| {});
    let (c, _) = p.connect();
    let mut moved = config(B);
    moved.mac = [2, 9, 9, 9, 9, 9];
    let mut b = Node::new(moved);
    b.stack.connect(p.now, SocketAddrV4::new(A, 1), 0, &mut b.out).unwrap();
    b.flush(p.now);
    p.now += Duration::from_secs(2);
    p.a.receive(p.now, b.out.frames.pop_front().unwrap().bytes);
    p.run_with(Duration::from_millis(250), |_, _| Act::Drop);
    p.a.stack.send(c, Shared::new(b"x")).unwrap();
    p.a.stack.output(p.now, c, &mut p.a.out);
    assert_eq!(p.a.out.frames[0].bytes[..6], [2, 9, 9, 9, 9, 9]);
}

/// After a while, the stack asks a neighbour for its MAC address again, directly and without stopping traffic. If no
/// host answers, the stack forgets the MAC address, and asks by broadcast when it needs the address.
#[test]
fn neighbours_are_confirmed() {
    let mut p = Pair::new(|_| {});
    let (c, _) = p.connect();
    p.run(Duration::from_secs(61));
    let before = p.a.stack.counters().arp_requests_out;
    assert_eq!(before, 2, "one to everybody, one to B");
    p.run_with(Duration::from_secs(70), |_, _| Act::Drop);
    assert_eq!(p.a.stack.counters().arp_failures, 1);
    p.a.stack.send(c, Shared::new(b"x")).unwrap();
    p.a.stack.output(p.now, c, &mut p.a.out);
    assert!(p.a.out.frames.is_empty());
    p.run(Duration::from_millis(10));
    assert_eq!(p.a.stack.unacked(c), 0);
}

/// Packets to destinations that are not on our link go to the gateway. Without a gateway, these destinations are
/// unreachable.
#[test]
fn routes() {
    let far = SocketAddrV4::new(Ipv4Addr::new(192, 168, 1, 1), 80);
    let mut p = Pair::new(|_| {});
    let refused = p.a.stack.connect(p.now, far, 0, &mut p.a.out);
    assert_eq!(refused, Err(ConnectError::Unreachable((*far.ip()).into())));
    let mut p = Pair::new(|c| {
        if c.addresses[0].ip == A {
            c.gateways = vec![B.into()];
        }
    });
    p.connect();
    p.a.stack.connect(p.now, far, 0, &mut p.a.out).unwrap();
    let f = &p.a.out.frames[0].bytes;
    assert_eq!((&f[..6], &f[30..34]), (&config(B).mac[..], &far.ip().octets()[..]));
    // Static routes: the longest prefix decides, and may override our own network or the gateway.
    let via = |n| Ipv4Addr::new(10, 0, 0, n);
    let route =
        |network: [u8; 4], prefix_len, n| Route { network: network.into(), prefix_len, via: via(n).into() };
    let routed = StackConfig {
        gateways: vec![via(9).into()],
        routes: vec![
            route([192, 168, 0, 0], 16, 3),
            route([192, 168, 1, 0], 24, 4),
            route([10, 0, 0, 77], 32, 5),
        ],
        ..config(A)
    };
    let net = crate::net::Net::new(routed.clone(), Time::ZERO);
    for (to, hop) in [
        ([192, 168, 7, 7], 3),
        ([192, 168, 1, 7], 4),
        ([10, 0, 0, 77], 5),
        ([10, 0, 0, 78], 78),
        ([172, 16, 0, 1], 9),
    ] {
        assert_eq!(net.next_hop(std::net::IpAddr::from(to), Time::ZERO), Some(via(hop).into()), "{to:?}");
    }
    let elsewhere = Route { via: Ipv4Addr::new(10, 9, 0, 1).into(), ..routed.routes[0] };
    let wrong = StackConfig { routes: vec![elsewhere], ..config(A) };
    assert_eq!(wrong.check(), Err(ConfigError::Gateway(elsewhere.via)));
    for bad in ["10.0.0.255:1", "10.0.0.0:1", "255.255.255.255:1", "224.0.0.1:1", "10.0.0.2:0", "0.0.0.0:1"] {
        assert!(
            p.a.stack.connect(p.now, bad.parse::<std::net::SocketAddr>().unwrap(), 0, &mut p.a.out).is_err(),
            "{bad}"
        );
    }
}

/// A router's report that the path cannot carry a packet lowers the segment size (RFC 1191).
#[test]
fn path_mtu() {
    let mut p = Pair::new(|_| {});
    let (c, s) = p.connect();
    p.a.stack.send(c, Shared::new(&pattern(1448))).unwrap();
    p.a.stack.output(p.now, c, &mut p.a.out);
    let f = p.a.out.frames.pop_front().unwrap().bytes;
    let repr = quote(Icmpv4DstUnreachable::FragRequired, &f, &f[34..42]);
    let mut frame = icmp(&config(B), &config(A), &repr);
    frame[34 + 6..34 + 8].copy_from_slice(&1000u16.to_be_bytes());
    frame[36..38].fill(0);
    let sum = !sum::sum(&frame[34..]);
    frame[36..38].copy_from_slice(&sum.to_be_bytes());
    p.a.receive(p.now, frame);
    assert_eq!(p.a.stack.mss(c), 948);
    p.run_with(Duration::from_secs(3), |_, f| if f.bytes.len() > 1014 { Act::Drop } else { Act::Pass });
    assert_eq!(p.b.data(s), pattern(1448));
}
