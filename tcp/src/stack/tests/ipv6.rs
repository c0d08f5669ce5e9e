//! IPv6: connections, neighbours, addresses, messages.

use crate::arp::Claim;
use crate::nd::message::{self, Envelope, advert, kind, option};
use crate::testing::*;
use crate::*;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x99);
const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x99];

fn pair() -> Pair {
    Pair::new(only_v6)
}

fn mac(n: &Node) -> [u8; 6] {
    n.stack.config().mac
}

/// Returns a message from B's station to A.
fn to_a(p: &Pair, src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8, m: &[u8]) -> Vec<u8> {
    let dst_mac = if dst.is_multicast() { ipv6::group_mac(dst) } else { mac(&p.a) };
    message::frame(&Envelope { dst_mac, src_mac: mac(&p.b), src, dst, hop_limit }, m)
}

/// Takes the ICMPv6 messages that a node has sent: kind, code, destination, and the message.
fn messages(n: &mut Node) -> Vec<(u8, u8, Ipv6Addr, Vec<u8>)> {
    let frames = std::mem::take(&mut n.out.frames);
    let icmp = frames.iter().map(|f| &f.bytes[..]).filter(|f| f[12..14] == [0x86, 0xdd] && f[20] == 58);
    icmp.map(|f| (f[54], f[55], message::address_at(f, 38).unwrap(), f[54..].to_vec())).collect()
}

fn advertisement(p: &Pair, target: Ipv6Addr, mac: [u8; 6], flags: u8) -> Vec<u8> {
    let dst = v6(A);
    let e = Envelope { dst_mac: p.a.stack.config().mac, src_mac: mac, src: target, dst, hop_limit: 255 };
    message::advertisement(&e, target, flags)
}

#[test]
fn a_connection() {
    let mut p = pair();
    let (c, s) = p.connect();
    // 1500 less 40, 20 and 12 for timestamps.
    assert_eq!(p.a.stack.mss(c), 1428);
    assert_eq!(p.a.stack.local_addr(c), p.b.stack.peer_addr(s));
    assert_eq!(p.a.stack.peer_addr(c).unwrap(), SocketAddr::new(v6(B).into(), PORT));
    let data = pattern(300_000);
    p.transfer(c, s, &data, 1428, Duration::from_secs(1), |_, _| Act::Pass);
    p.a.stack.close(p.now, c, &mut p.a.out);
    p.b.stack.close(p.now, s, &mut p.b.out);
    p.settle();
    assert_eq!(p.a.closed(c), Some(CloseReason::Graceful));
    assert_eq!(p.a.stack.counters().retransmitted_segments, 0);
}

/// Connections of both families go from one stack to the same port.
#[test]
fn both_families() {
    let mut p = Pair::new(|c| {
        let ip = v6(c.ipv4().unwrap().0);
        c.addresses.push(Address { ip: ip.into(), prefix_len: 64 });
    });
    let (c4, s4) = p.connect();
    let to = SocketAddr::new(v6(B).into(), PORT);
    let c6 = p.a.stack.connect(p.now, to, 78, &mut p.a.out).unwrap();
    p.settle();
    let s6 = p.b.accepted().unwrap();
    assert_eq!((p.a.stack.mss(c4), p.a.stack.mss(c6)), (1448, 1428));
    assert!(p.a.stack.peer_addr(c4).unwrap().is_ipv4() && p.a.stack.peer_addr(c6).unwrap().is_ipv6());
    for (c, s) in [(c4, s4), (c6, s6)] {
        p.transfer(c, s, &pattern(10_000), 1000, Duration::from_secs(1), |_, _| Act::Pass);
    }
}

#[test]
fn link_local_addresses_connect() {
    let mut p = pair();
    p.b.stack.listen_on(PORT, 4).unwrap();
    let to = p.b.stack.addresses().into_iter().find(|a| a.prefix_len == 64 && a.ip != v6(B)).unwrap().ip;
    let c = p.a.stack.connect(p.now, SocketAddr::new(to, PORT), 1, &mut p.a.out).unwrap();
    p.settle();
    assert!(p.a.seen.events.iter().any(|e| matches!(e, testing::Event::Connected(id, 1) if *id == c)));
    let own = p.a.stack.local_addr(c).unwrap().ip();
    assert!(matches!(own, IpAddr::V6(ip) if ipv6::is_link_local(ip)));
}

#[test]
fn to_oneself() {
    let mut p = pair();
    p.a.stack.listen_on(PORT, 4).unwrap();
    let c = p.a.stack.connect(p.now, SocketAddr::new(v6(A).into(), PORT), 1, &mut p.a.out).unwrap();
    p.settle();
    let s = p.a.accepted().unwrap();
    p.a.stack.send(c, Shared::new(b"hello")).unwrap();
    p.a.stack.output(p.now, c, &mut p.a.out);
    p.settle();
    assert_eq!(p.a.data(s), b"hello");
}

#[test]
fn lost_and_damaged() {
    let mut p = pair();
    let (c, s) = p.connect();
    let mut n = 0;
    p.transfer(c, s, &pattern(200_000), 1400, Duration::from_secs(60), |_, _| {
        n += 1;
        if n % 17 == 0 { Act::Drop } else { Act::Pass }
    });
    p.run_with(Duration::from_millis(1), |_, _| Act::Pass);
    let frame = {
        p.a.stack.send(c, Shared::new(b"x")).unwrap();
        p.a.stack.output(p.now, c, &mut p.a.out);
        p.a.out.frames.pop_front().unwrap().bytes
    };
    for i in 14..frame.len() {
        // No checksum covers the traffic class, the flow label and the hop limit.
        if (14..18).contains(&i) || i == 21 {
            continue;
        }
        let mut bad = frame.clone();
        bad[i] ^= 0x04;
        p.b.receive(p.now, bad);
        assert_eq!(p.b.data(s).len(), 200_000, "octet {i}");
    }
    p.b.receive(p.now, frame);
    assert_eq!(p.b.data(s).len(), 200_001);
}

#[test]
fn refusals() {
    let mut p = pair();
    let closed = SocketAddr::new(v6(B).into(), 9);
    let c = p.a.stack.connect(p.now, closed, 5, &mut p.a.out).unwrap();
    p.settle();
    assert_eq!(p.a.closed(c), Some(CloseReason::Refused));
    for bad in ["[::]:1", "[::1]:1", "[ff02::1]:1", "[fd00::2]:0"] {
        let bad: SocketAddr = bad.parse().unwrap();
        assert_eq!(p.a.stack.connect(p.now, bad, 0, &mut p.a.out), Err(ConnectError::Address(bad)));
    }
    for far in ["[2001:db8::1]:1", "10.0.0.2:1"] {
        let far: SocketAddr = far.parse().unwrap();
        let answer = p.a.stack.connect(p.now, far, 0, &mut p.a.out);
        assert_eq!(answer, Err(ConnectError::Unreachable(far.ip())));
    }
    // An IPv4-mapped address is an IPv4 address.
    let mapped: SocketAddr = "[::ffff:10.0.0.2]:1".parse().unwrap();
    assert!(matches!(
        p.a.stack.connect(p.now, mapped, 0, &mut p.a.out),
        Err(ConnectError::Unreachable(IpAddr::V4(_)))
    ));
}

#[test]
fn an_absent_host_is_unreachable() {
    let mut p = pair();
    let to = SocketAddr::new(v6([10, 0, 0, 9].into()).into(), 9);
    let c = p.a.stack.connect(p.now, to, 5, &mut p.a.out).unwrap();
    let mut asked = 0;
    p.run_with(Duration::from_secs(4), |_, f| {
        asked += usize::from(f.bytes[12..14] == [0x86, 0xdd] && f.bytes[54] == 135);
        Act::Pass
    });
    assert_eq!((p.a.closed(c), asked), (Some(CloseReason::Unreachable), 3));
}

/// RFC 4861 §7.3: a neighbour that TCP hears from is not solicited. A silent one is solicited three times by unicast,
/// and also by multicast.
#[test]
fn neighbours_are_watched() {
    let mut p = pair();
    let (c, s) = p.connect();
    let mut asked = 0;
    for _ in 0..20 {
        p.transfer(c, s, &pattern(100), 100, Duration::from_secs(1), |_, _| Act::Pass);
        p.run_with(Duration::from_secs(10), |side, f| {
            asked += usize::from(side == Side::A && f.bytes[54] == 135);
            Act::Pass
        });
    }
    assert_eq!(asked, 0);
    // After some silence the neighbour is stale. Frames still go to its known address, and later it is solicited.
    p.run(Duration::from_secs(40));
    p.a.stack.send(c, Shared::new(b"anybody there?")).unwrap();
    p.a.stack.output(p.now, c, &mut p.a.out);
    let (mut directly, mut group) = (0, 0);
    p.run_with(Duration::from_secs(30), |side, f| {
        if side == Side::A && f.bytes[54] == 135 && f.bytes[12..14] == [0x86, 0xdd] {
            *(if f.bytes[0] == 0x33 { &mut group } else { &mut directly }) += 1;
        }
        Act::Drop
    });
    assert!(directly == 3 && group >= 3, "{directly} {group}");
}

/// RFC 4861 §7.2.5: the changes that an advertisement may cause.
#[test]
fn advertisements() {
    let mut p = pair();
    let (c, _) = p.connect();
    let next_mac = |p: &mut Pair| {
        p.a.out.frames.clear();
        p.a.stack.send(c, Shared::new(b"x")).unwrap();
        p.a.stack.output(p.now, c, &mut p.a.out);
        <[u8; 6]>::try_from(&p.a.out.frames.pop_front().unwrap().bytes[..6]).unwrap()
    };
    let (right, other) = (mac(&p.b), [2, 9, 9, 9, 9, 9]);
    // Without the override flag, a known address stays.
    let frame = advertisement(&p, v6(B), other, advert::SOLICITED);
    p.a.receive(p.now, frame);
    assert_eq!(next_mac(&mut p), right);
    // With the override flag, the address changes, and changes back.
    let frame = advertisement(&p, v6(B), other, advert::OVERRIDE);
    p.a.receive(p.now, frame);
    assert_eq!(next_mac(&mut p), other);
    let frame = advertisement(&p, v6(B), right, advert::OVERRIDE | advert::SOLICITED);
    p.a.receive(p.now, frame);
    assert_eq!(next_mac(&mut p), right);
    // Ignored: from beyond a router, damaged, with a group's MAC address, with a code, or with an option of length
    // zero.
    let good = advertisement(&p, v6(B), other, advert::OVERRIDE);
    let mut far = good.clone();
    far[21] = 254;
    let mut damaged = good.clone();
    damaged[70] ^= 1;
    let grouped = advertisement(&p, v6(B), [3, 0, 0, 0, 0, 1], advert::OVERRIDE);
    let code = message::frame(
        &Envelope { dst_mac: mac(&p.a), src_mac: other, src: v6(B), dst: v6(A), hop_limit: 255 },
        &[&[136, 1, 0, 0, 0x20, 0, 0, 0][..], &v6(B).octets(), &[2, 1, 2, 9, 9, 9, 9, 9]].concat(),
    );
    let endless = message::frame(
        &Envelope { dst_mac: mac(&p.a), src_mac: other, src: v6(B), dst: v6(A), hop_limit: 255 },
        &[&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &v6(B).octets(), &[2, 0, 2, 9, 9, 9, 9, 9]].concat(),
    );
    for bad in [far, damaged, grouped, code, endless] {
        p.a.receive(p.now, bad);
        assert_eq!(next_mac(&mut p), right);
    }
}

/// Neither advertisements that we did not solicit nor solicitations from many hosts fill the cache: a new connection
/// still finds room.
#[test]
fn the_cache_cannot_be_flooded() {
    let mut p = Pair::new(|c| {
        only_v6(c);
        c.tcp.max_neighbours = 16;
    });
    let (c, s) = p.connect();
    for n in 0..5000u16 {
        let host = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, n);
        let station = [2, 7, 0, 0, (n >> 8) as u8, n as u8];
        let frame = advertisement(&p, host, station, advert::OVERRIDE | advert::SOLICITED);
        p.a.receive(p.now, frame);
        let mut ask = message::header(kind::NEIGHBOUR_SOLICITATION, 0, [0; 4]);
        ask.extend(v6(A).octets());
        ask.extend([option::SOURCE, 1]);
        ask.extend(station);
        let frame = to_a(&p, host, ipv6::solicited_node(v6(A)), 255, &ask);
        p.a.receive(p.now, frame);
        p.a.out.frames.clear();
        p.a.flush(p.now);
    }
    p.a.out.frames.clear();
    // The connection's neighbour is still known, and there is room for others.
    p.transfer(c, s, &pattern(5000), 1000, Duration::from_secs(5), |_, _| Act::Pass);
    let to = SocketAddr::new(v6([10, 0, 0, 77].into()).into(), 1);
    assert!(p.a.stack.connect(p.now, to, 0, &mut p.a.out).is_ok());
}

#[test]
fn echo() {
    let mut p = pair();
    let mut request = message::header(kind::ECHO_REQUEST, 0, [1, 2, 3, 4]);
    request.extend(b"hello");
    p.settle();
    let frame = to_a(&p, v6(B), v6(A), 64, &request);
    p.a.receive(p.now, frame);
    let replies = messages(&mut p.a);
    assert_eq!(replies.len(), 1);
    let (kind, code, to, m) = &replies[0];
    assert_eq!((*kind, *code, *to, &m[4..]), (129, 0, v6(B), &request[4..]));
    // A request gets no answer if it was sent to a group, or if its source is unspecified or a group.
    for (src, dst) in [(v6(B), ipv6::ALL_NODES), (Ipv6Addr::UNSPECIFIED, v6(A)), (ipv6::ALL_NODES, v6(A))] {
        let frame = to_a(&p, src, dst, 64, &request);
        p.a.receive(p.now, frame);
        assert_eq!(messages(&mut p.a).len(), 0, "{src} {dst}");
    }
}

/// Which errors are reported (RFC 4443 §3), and for which packets and how often (RFC 4443 §2.4).
#[test]
fn complaints() {
    let mut p = pair();
    p.settle();
    let packet = |p: &Pair, next: u8, body: &[u8], dst: Ipv6Addr| {
        let dst_mac = if dst.is_multicast() { ipv6::group_mac(dst) } else { mac(&p.a) };
        let mut f = [&dst_mac[..], &mac(&p.b), &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
        f.extend((body.len() as u16).to_be_bytes());
        f.extend([next, 64]);
        f.extend(v6(B).octets());
        f.extend(dst.octets());
        f.extend(body);
        f
    };
    let routing = [6, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for (next, body, answer, pointer) in [
        (17, &[0; 8][..], Some((1, 4)), 0),
        (132, &[0; 8], Some((4, 1)), 6),
        (43, &routing, Some((4, 0)), 42),
        (44, &[6, 0, 0, 1, 0, 0, 0, 1, 9, 9, 9, 9], Some((3, 1)), 0),
        (44, &[6, 0, 0, 8, 0, 0, 0, 1, 9, 9, 9, 9], None, 0),
        (60, &[6, 0, 0x82, 4, 0, 0, 0, 0], Some((4, 2)), 42),
        (59, &[], None, 0),
    ] {
        let frame = packet(&p, next, body, v6(A));
        p.a.receive(p.now, frame.clone());
        let told = messages(&mut p.a);
        assert_eq!(told.first().map(|(kind, code, ..)| (*kind, *code)), answer, "next header {next}");
        if let Some((_, _, to, m)) = told.first() {
            assert_eq!((*to, &m[4..8], &m[8..]), (v6(B), &[0, 0, 0, pointer][..], &frame[14..]));
        }
        // Of the packets to a group, only one with an option that demands a report causes a report.
        p.now += Duration::from_secs(1);
        let frame = packet(&p, next, body, ipv6::ALL_NODES);
        p.a.receive(p.now, frame);
        assert_eq!(messages(&mut p.a).len(), usize::from(next == 60));
        p.now += Duration::from_secs(1);
    }
    // An ICMP error or a redirect never causes an error, whatever headers precede it. An echo request behind the same
    // headers does.
    let unknown_option = |next| [next, 0, 0x82, 4, 0, 0, 0, 0];
    let (first_fragment, padding) = ([58, 0, 0, 1, 0, 0, 0, 1], [58, 0, 1, 4, 0, 0, 0, 0]);
    for (next, headers) in [
        (60, unknown_option(58).to_vec()),
        (60, [unknown_option(60), padding].concat()),
        (60, [padding.map(|b| if b == 58 { 60 } else { b }), unknown_option(58)].concat()),
        (44, first_fragment.to_vec()),
    ] {
        for (kind, reports) in [(kind::UNREACHABLE, 0), (kind::REDIRECT, 0), (kind::ECHO_REQUEST, 1)] {
            let message = [kind, 4, 0, 0, 0, 0, 0, 0];
            let frame = packet(&p, next, &[&headers[..], &message].concat(), v6(A));
            p.a.receive(p.now, frame);
            assert_eq!(messages(&mut p.a).len(), reports, "type {kind} behind {headers:?}");
            p.now += Duration::from_secs(1);
        }
    }
    // At most as many errors are sent at once as the limit allows in a tenth of a second.
    for _ in 0..1000 {
        let frame = packet(&p, 17, &[0; 8], v6(A));
        p.a.receive(p.now, frame);
    }
    assert_eq!(messages(&mut p.a).len(), 10);
}

/// RFC 4862 §5.4: the stack first probes for its address, which another host has.
#[test]
fn an_address_that_is_taken() {
    let mut p = pair();
    p.settle();
    p.a.stack.claim_address(p.now);
    assert_eq!(p.a.stack.claim(), Claim::Probing);
    // A has two addresses, the configured one and its link-local one. B also has the configured one and defends it.
    p.b = Node::new({
        let mut c = config(B);
        c.addresses = vec![Address { ip: v6(A).into(), prefix_len: 64 }];
        c
    });
    p.run(Duration::from_millis(300));
    assert_eq!(p.a.stack.claim(), Claim::Conflict(mac(&p.b)));
    assert_eq!(p.a.stack.rival(), Some(mac(&p.b)));
}

#[test]
fn an_address_that_is_free() {
    let mut p = pair();
    p.settle();
    p.a.stack.claim_address(p.now);
    let mut probes = 0;
    p.run_with(Duration::from_millis(300), |side, f| {
        let solicitation = side == Side::A && f.bytes[20] == 58 && f.bytes[54] == 135;
        probes += usize::from(solicitation && f.bytes[22..38] == [0; 16]);
        // The link delivers each solicitation to B twice, which must not disturb the claim.
        if solicitation { Act::Twice } else { Act::Pass }
    });
    assert_eq!((p.a.stack.claim(), probes), (Claim::Held, 6));
    p.connect();
}

/// Our own probes that come back from a loop in the network are no conflict. Probes of another host are a conflict.
#[test]
fn questions_at_the_same_time() {
    let mut p = pair();
    p.settle();
    p.a.stack.claim_address(p.now);
    p.a.flush(p.now);
    let own: Vec<_> = p.a.out.frames.drain(..).map(|f| f.bytes).collect();
    for frame in own {
        p.a.receive(p.now, frame);
    }
    // On a kernel's interface, the kernel and the stack share one Ethernet address. The kernel makes an IPv6 address
    // from it and probes for that address. Such a probe is no conflict.
    let of_our_station = message::probe(mac(&p.a), v6(A), [1; 6]);
    p.a.receive(p.now, of_our_station);
    assert_eq!(p.a.stack.claim(), Claim::Probing);
    let theirs = message::probe([2, 8, 8, 8, 8, 8], v6(A), [1; 6]);
    p.a.receive(p.now, theirs);
    assert_eq!(p.a.stack.claim(), Claim::Conflict([2, 8, 8, 8, 8, 8]));
}

fn router_advertisement(p: &Pair, lifetime: u16, prefix: &str, flags: u8, valid: u32) -> Vec<u8> {
    let mut m = message::header(kind::ROUTER_ADVERTISEMENT, 0, [33, 0, 0, 0]);
    m[6..8].copy_from_slice(&lifetime.to_be_bytes());
    m.extend([0; 8]);
    m.extend([option::SOURCE, 1]);
    m.extend(ROUTER_MAC);
    m.extend([option::MTU, 1, 0, 0]);
    m.extend(1400u32.to_be_bytes());
    m.extend([option::PREFIX, 4, 64, flags]);
    m.extend(valid.to_be_bytes());
    m.extend((valid / 2).to_be_bytes());
    m.extend([0; 4]);
    m.extend(prefix.parse::<Ipv6Addr>().unwrap().octets());
    let e = Envelope {
        dst_mac: ipv6::group_mac(ipv6::ALL_NODES),
        src_mac: ROUTER_MAC,
        src: ROUTER,
        dst: ipv6::ALL_NODES,
        hop_limit: 255,
    };
    let _ = p;
    message::frame(&e, &m)
}

/// RFC 4862 §5.5: a router gives addresses, routes and an MTU, and takes the addresses and routes back.
#[test]
fn routers_tell_addresses() {
    let mut p = Pair::new(|c| {
        c.addresses.clear();
        c.autoconf = true;
    });
    let mut solicitations = 0;
    p.run_with(Duration::from_secs(20), |side, f| {
        solicitations += usize::from(side == Side::A && f.bytes[54] == 133);
        Act::Pass
    });
    assert_eq!(solicitations, 3);
    let far: SocketAddr = "[2001:db8:9::1]:80".parse().unwrap();
    assert!(matches!(p.a.stack.connect(p.now, far, 0, &mut p.a.out), Err(ConnectError::Unreachable(_))));
    let frame = router_advertisement(&p, 1800, "2001:db8:1::", 0xc0, 100_000);
    p.a.receive(p.now, frame.clone());
    p.b.receive(p.now, frame);
    p.run(Duration::from_secs(1));
    let made: Vec<_> = p.a.stack.addresses();
    let of = |net: &str| {
        let net: Ipv6Addr = net.parse().unwrap();
        Address { ip: net.into(), prefix_len: 64 }
    };
    let own = made.iter().find(|a| of("2001:db8:1::").reaches(a.ip)).expect("an address of the prefix").ip;
    // EUI-64 of 02:00:0a:00:00:01.
    assert_eq!(own, "2001:db8:1::aff:fe00:1".parse::<Ipv6Addr>().unwrap());
    // Packets to far destinations go to the router's MAC address, with the MTU and hop limit that the router
    // advertised.
    p.a.out.frames.clear();
    let c = p.a.stack.connect(p.now, far, 0, &mut p.a.out).unwrap();
    let syn = &p.a.out.frames[0].bytes;
    assert_eq!(
        (&syn[..6], syn[21], &syn[22..38]),
        (
            &ROUTER_MAC[..],
            33,
            &match own {
                IpAddr::V6(own) => own.octets(),
                IpAddr::V4(_) => unreachable!(),
            }[..]
        )
    );
    assert_eq!(View::of(syn).unwrap().options[..4], [2, 4, 5, 0x3c]); // 1340
    p.a.stack.abort(p.now, c, &mut p.a.out);
    // Near destinations are reached directly.
    p.b.stack.listen_on(PORT, 1).unwrap();
    let near = p.b.stack.addresses().iter().find(|a| of("2001:db8:1::").reaches(a.ip)).unwrap().ip;
    p.a.stack.connect(p.now, SocketAddr::new(near, PORT), 5, &mut p.a.out).unwrap();
    p.settle();
    assert!(p.a.seen.events.iter().any(|e| matches!(e, testing::Event::Connected(_, 5))));
    // RFC 4862 §5.5.3 e: a message cannot take an address away before two hours have passed.
    let frame = router_advertisement(&p, 0, "2001:db8:1::", 0xc0, 0);
    p.a.receive(p.now, frame);
    p.run(Duration::from_secs(7100));
    assert!(p.a.stack.addresses().iter().any(|a| a.ip == own));
    assert!(matches!(p.a.stack.connect(p.now, far, 0, &mut p.a.out), Err(ConnectError::Unreachable(_))));
    p.run(Duration::from_secs(200));
    assert!(!p.a.stack.addresses().iter().any(|a| a.ip == own));
}

/// Without `autoconf`, all routers are ignored. A router's message that may come from beyond the link is always
/// ignored.
#[test]
fn routers_that_are_not_believed() {
    let mut p = pair();
    p.settle();
    let frame = router_advertisement(&p, 1800, "2001:db8:1::", 0xc0, 100_000);
    p.a.receive(p.now, frame.clone());
    assert_eq!(p.a.stack.addresses().len(), 2);
    let mut p = Pair::new(|c| c.autoconf = true);
    p.settle();
    let mut far = frame.clone();
    far[21] = 64;
    let mut from_a_host = frame.clone();
    from_a_host[22] = 0xfd;
    for bad in [far, from_a_host] {
        p.a.receive(p.now, bad);
        assert_eq!(p.a.stack.addresses().len(), 2);
    }
    // Prefixes from which no address may be made, and more prefixes than are useful.
    for (prefix, flags) in [("fe80::", 0xc0), ("ff00::", 0xc0), ("2001:db8:5::", 0x80)] {
        let frame = router_advertisement(&p, 0, prefix, flags, 1000);
        p.a.receive(p.now, frame);
        assert_eq!(p.a.stack.addresses().len(), 2);
    }
    for n in 0..100 {
        let frame = router_advertisement(&p, 0, &format!("2001:db8:{n}::"), 0xc0, 1000);
        p.a.receive(p.now, frame);
    }
    assert_eq!(p.a.stack.addresses().len(), 2 + 8);
}

/// RFC 3810: a group is reported twice when it is joined, and once when a router queries.
#[test]
fn listeners_report() {
    let mut p = pair();
    let mut reports = Vec::new();
    let mut collect = |p: &mut Pair, d| {
        reports.clear();
        p.run_with(d, |side, f| {
            if side == Side::A && f.bytes[20] == 0 {
                reports.push(f.bytes.clone());
            }
            Act::Pass
        });
        reports.clone()
    };
    let joined = collect(&mut p, Duration::from_secs(5));
    assert_eq!(joined.len(), 2);
    let r = &joined[0];
    assert_eq!(
        (&r[..6], r[21], &r[54..62]),
        (&[0x33, 0x33, 0, 0, 0, 0x16][..], 1, &[58, 0, 5, 2, 0, 0, 1, 0][..])
    );
    // A report of joining one group, because both addresses of A have the same solicited-node group.
    assert_eq!((r[62], &r[68..74]), (143, &[0, 1, 4, 0, 0, 0][..]));
    assert_eq!(message::address_at(r, 74).unwrap(), ipv6::solicited_node(v6(A)));
    let mut query = message::header(kind::LISTENER_QUERY, 0, [3, 0xe8, 0, 0]);
    query.extend([0; 20]);
    let frame = to_a(&p, ROUTER, ipv6::ALL_NODES, 1, &query);
    p.a.receive(p.now, frame);
    let answered = collect(&mut p, Duration::from_secs(2));
    assert_eq!((answered.len(), answered[0][70]), (1, 2));
    // A query that may come from beyond the link is ignored.
    let frame = to_a(&p, v6(B), ipv6::ALL_NODES, 64, &query);
    p.a.receive(p.now, frame);
    assert_eq!(collect(&mut p, Duration::from_secs(2)).len(), 0);
}

/// Errors about segments that we sent are believed if they quote octets in flight.
#[test]
fn errors_about_segments() {
    let mut p = pair();
    let (c, s) = p.connect();
    p.a.stack.send(c, Shared::new(&pattern(1428))).unwrap();
    p.a.stack.output(p.now, c, &mut p.a.out);
    let sent = p.a.out.frames.pop_front().unwrap().bytes;
    let about = |p: &Pair, kind: u8, code: u8, word: u32, quoted: &[u8]| {
        let mut m = message::header(kind, code, word.to_be_bytes());
        m.extend(quoted);
        to_a(p, ROUTER, v6(A), 64, &m)
    };
    let mut blind = sent[14..].to_vec();
    blind[44..48].copy_from_slice(&0x1234u32.to_be_bytes());
    let frame = about(&p, kind::TOO_BIG, 0, 1300, &blind);
    p.a.receive(p.now, frame);
    assert_eq!(p.a.stack.mss(c), 1428);
    // RFC 8201 §4: an MTU below 1280 octets, the minimum of every IPv6 link, counts as 1280.
    for (mtu, mss) in [(9000, 1428), (1400, 1328), (1350, 1278), (1400, 1278), (1000, 1208)] {
        let frame = about(&p, kind::TOO_BIG, 0, mtu, &sent[14..]);
        p.a.receive(p.now, frame);
        assert_eq!(p.a.stack.mss(c), mss, "MTU {mtu}");
    }
    p.run_with(Duration::from_secs(3), |_, f| if f.bytes.len() > 1294 { Act::Drop } else { Act::Pass });
    assert_eq!(p.b.data(s), pattern(1428));
    // Later connections to the same host begin with the known value, for ten minutes.
    let open = |p: &mut Pair| {
        let to = SocketAddr::new(v6(B).into(), PORT);
        let c = p.a.stack.connect(p.now, to, 9, &mut p.a.out).unwrap();
        p.settle();
        p.a.stack.mss(c)
    };
    assert_eq!(open(&mut p), 1208);
    p.run(Duration::from_secs(600));
    assert_eq!(open(&mut p), 1428);

    let closed = SocketAddr::new(v6(B).into(), 9);
    for (code, reason) in [(4, Some(CloseReason::Refused)), (1, Some(CloseReason::Unreachable)), (3, None)] {
        let c = p.a.stack.connect(p.now, closed, 5, &mut p.a.out).unwrap();
        let syn = p.a.out.frames.pop_front().unwrap().bytes;
        let frame = about(&p, kind::UNREACHABLE, code, 0, &syn[14..]);
        p.a.receive(p.now, frame);
        assert_eq!(p.a.closed(c), reason, "code {code}");
    }
}

/// No address pair (`paths`) remains after a flood of SYNs from many addresses, half of them to a port without a
/// listener.
#[test]
fn floods_leave_nothing() {
    let mut p = Pair::new(|c| {
        only_v6(c);
        c.tcp.max_syn_backlog = 64;
    });
    p.a.stack.listen_on(PORT, 32).unwrap();
    let mut template = crate::wire::HeaderTemplate6::new(mac(&p.b), None);
    for i in 0..5000u32 {
        let remote = Ipv6Addr::from_bits(v6(B).to_bits() ^ u128::from(i) << 16);
        let mut paths = crate::paths::Paths::new(1, 2);
        let n = paths.intern(remote, v6(A), false).unwrap();
        let fields = crate::wire::TcpFields {
            dst_mac: mac(&p.a),
            key: crate::table::Key::v6(n, PORT + (i % 2) as u16, 999),
            seq: Seq(i),
            ack: Seq(0),
            flags: 2,
            ecn: 0,
            window: 1000,
            options: &crate::wire::Options::new(),
        };
        let common = template.begin(&fields, paths.get(n).unwrap(), 64);
        let frame = template.finish(&common, fields.own(), 0, Some(0)).to_vec();
        p.a.receive(p.now, frame);
        assert!(p.a.stack.census().1 <= 32);
    }
    assert!(p.a.stack.net.paths.len() < 400);
    p.a.out.frames.clear();
    p.run_with(Duration::from_secs(300), |_, _| Act::Drop);
    assert_eq!((p.a.stack.census().1, p.a.stack.net.paths.len()), (0, 0));
}

/// IEEE 802.1Q: all our frames have our tag, and frames without it are not taken.
#[test]
fn vlan() {
    for v6 in [false, true] {
        let mut p = Pair::new(|c| {
            c.vlan = Some(100);
            if v6 {
                only_v6(c);
            }
        });
        p.b.stack.listen_on(PORT, 16).unwrap();
        let mut frames = 0;
        let to = SocketAddr::new(p.b.stack.config().addresses[0].ip, PORT);
        let c = p.a.stack.connect(p.now, to, 1, &mut p.a.out).unwrap();
        p.settle_with(|_, f| {
            frames += 1;
            assert_eq!(f.bytes[12..16], [0x81, 0, 0, 100]);
            Act::Pass
        });
        let s = p.b.accepted().expect("a connection");
        p.transfer(c, s, &pattern(10_000), 1000, Duration::from_secs(1), |_, _| Act::Pass);
        assert!(frames > 4);
        p.a.stack.send(c, Shared::new(b"x")).unwrap();
        p.a.stack.output(p.now, c, &mut p.a.out);
        let right = p.a.out.frames.pop_front().unwrap().bytes;
        let (mut other, mut none) = (right.clone(), right.clone());
        other[15] = 101;
        none.drain(12..16);
        for bad in [other, none] {
            p.b.receive(p.now, bad);
        }
        assert_eq!((p.b.data(s).len(), p.b.stack.counters().other_vlan), (10_000, 2));
        // A priority in the tag has no effect.
        let mut urgent = right;
        urgent[14] |= 0xe0;
        p.b.receive(p.now, urgent);
        assert_eq!(p.b.data(s).len(), 10_001);
    }
}

/// A tag of VLAN zero is only a priority. Stacks without a VLAN take no other tag.
#[test]
fn priority_tags() {
    let mut p = Pair::new(|_| {});
    let (c, s) = p.connect();
    p.a.stack.send(c, Shared::new(b"x")).unwrap();
    p.a.stack.output(p.now, c, &mut p.a.out);
    let mut frame = p.a.out.frames.pop_front().unwrap().bytes;
    frame.splice(12..12, [0x81, 0, 0, 7]);
    p.b.receive(p.now, frame.clone());
    assert_eq!(p.b.data(s).len(), 0);
    frame[15] = 0;
    frame[14] = 0xa0;
    p.b.receive(p.now, frame);
    assert_eq!(p.b.data(s).len(), 1);
}

#[test]
fn settings_that_cannot_work() {
    let good = |ip: Ipv6Addr| StackConfig::new([2, 0, 0, 0, 0, 1], ip, 64, 1);
    assert_eq!(good(v6(A)).check(), Ok(()));
    let with = |f: fn(&mut StackConfig)| {
        let mut c = good(v6(A));
        f(&mut c);
        c.check()
    };
    assert_eq!(with(|c| c.addresses[0].prefix_len = 129), Err(ConfigError::Prefix(129)));
    assert_eq!(with(|c| c.addresses.clear()), Err(ConfigError::Addresses));
    assert_eq!(with(|c| c.vlan = Some(4095)), Err(ConfigError::Vlan));
    assert_eq!(with(|c| c.mtu = 1279), Err(ConfigError::Mtu(1279)));
    assert_eq!(with(|c| c.gateways = vec!["fe80::9".parse().unwrap()]), Ok(()));
    assert!(with(|c| c.gateways = vec!["fd01::9".parse().unwrap()]).is_err());
    assert!(with(|c| c.addresses[0].ip = "ff02::1".parse().unwrap()).is_err());
}

/// Damaged messages with a corrected checksum break nothing, and no table grows.
#[test]
fn damaged_messages() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut p = Pair::new(|c| {
        only_v6(c);
        c.autoconf = true;
        c.tcp.max_neighbours = 32;
    });
    p.connect();
    let seeds = [
        router_advertisement(&p, 1800, "2001:db8:1::", 0xc0, 1000),
        advertisement(&p, v6(B), mac(&p.b), 0xe0),
        message::solicitation(mac(&p.b), v6(B), v6(A), None),
        message::probe(mac(&p.b), v6(A), [1; 6]),
        message::listener_report(mac(&p.b), v6(B), &[v6(A)], true),
        to_a(&p, v6(B), v6(A), 64, &[1, 4, 0, 0, 0, 0, 0, 0, 0x60, 0, 0, 0, 0, 20, 6, 64, 0xfd, 0]),
        to_a(&p, v6(B), v6(A), 64, &[128, 0, 0, 0, 1, 2, 3, 4]),
    ];
    for _ in 0..20_000 {
        let mut f = rng.choice(seeds.iter()).unwrap().clone();
        for _ in 0..rng.usize(0..4) {
            let at = rng.usize(14..f.len());
            f[at] = rng.u8(..);
        }
        if rng.bool() {
            f.truncate(rng.usize(54..=f.len()));
        }
        // A matching length and a correct checksum let the message pass the first checks.
        let len = f.len() - 54;
        f[18..20].copy_from_slice(&(len as u16).to_be_bytes());
        if len >= 4 && f[20] == 58 {
            f[56..58].fill(0);
            let (src, dst) = (message::address_at(&f, 22).unwrap(), message::address_at(&f, 38).unwrap());
            let check = !sum::add(message::pseudo_sum(src, dst, 58, len), sum::sum(&f[54..]));
            f[56..58].copy_from_slice(&check.to_be_bytes());
        }
        p.a.receive(p.now, f);
        p.now += Duration::from_micros(rng.u64(0..2000));
        p.a.advance(p.now);
        p.a.flush(p.now);
        assert!(p.a.out.frames.len() < 100);
        p.a.out.frames.clear();
        assert!(p.a.stack.addresses().len() <= 2 + 8 && p.a.stack.net.paths.len() < 300);
    }
}
