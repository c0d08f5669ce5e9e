use crate::testing::*;
use crate::*;
use std::net::SocketAddrV4;
use std::time::Duration;

#[test]
fn three_ways() {
    let mut p = Pair::new(|_| {});
    let (c, s) = p.connect();
    assert_eq!(p.a.stack.info(c).unwrap().state, State::Established);
    let i = p.b.stack.info(s).unwrap();
    assert_eq!(i.state, State::Established);
    assert!(i.sack && i.timestamps);
    assert_eq!(p.a.stack.mss(c), 1448);
    assert_eq!(p.b.stack.mss(s), 1448);
    assert_eq!(p.a.stack.peer_addr(c), p.b.stack.local_addr(s));
    assert_eq!(p.a.stack.local_addr(c), p.b.stack.peer_addr(s));
    // One exchange of ARP messages and three segments, nothing more.
    assert_eq!(p.a.stack.counters().segments_out, 2);
    assert_eq!(p.b.stack.counters().segments_out, 1);
    assert_eq!(p.a.stack.counters().arp_requests_out, 1);
    assert_eq!(p.b.stack.counters().arp_requests_out, 0);
}

/// Options are used only if both ends offer them (RFC 7323 §1.3, RFC 2018 §2).
#[test]
fn options_take_two() {
    for bits in 0..8u8 {
        let mut p = Pair::new(|c| {
            if c.addresses[0].ip == B {
                c.tcp.sack = bits & 1 != 0;
                c.tcp.timestamps = bits & 2 != 0;
                c.tcp.window_scale = bits & 4 != 0;
            }
        });
        let (c, s) = p.connect();
        for i in [p.a.stack.info(c).unwrap(), p.b.stack.info(s).unwrap()] {
            assert_eq!((i.sack, i.timestamps), (bits & 1 != 0, bits & 2 != 0));
        }
        assert_eq!(p.a.stack.mss(c), if bits & 2 != 0 { 1448 } else { 1460 });
        let data = pattern(300_000);
        p.transfer(c, s, &data, 1400, Duration::from_secs(5), |_, _| Act::Pass);
        let window = if bits & 4 != 0 { 1 << 20 } else { 65_535 };
        assert_eq!(p.a.stack.info(c).unwrap().snd_wnd, window);
    }
}

/// With `wary`, an accepted connection has a window of two link MTUs, which is room for two segments, until the user
/// calls `welcome`. Until then it takes any amount of data, but at most one window at a time. This also holds for
/// connections that a SYN cookie opens.
#[test]
fn newcomers_have_room_for_two_segments_until_they_are_welcome() {
    for (scales, full_backlog) in [(true, false), (false, false), (true, true)] {
        let mut p = Pair::new(|c| {
            (c.tcp.wary, c.tcp.window_scale) = (true, scales);
            if full_backlog {
                c.tcp.max_syn_backlog = 1;
            }
        });
        if full_backlog {
            p.connect();
            // This connection stays half open, because the answer to its SYN is lost.
            let to = std::net::SocketAddr::from((B, PORT));
            p.a.stack.connect(p.now, to, 1, &mut p.a.out).unwrap();
            p.settle_with(|side, _| if side == Side::B { Act::Drop } else { Act::Pass });
        }
        let (c, s) = p.connect();
        assert_eq!(p.b.stack.counters().syn_cookies_in > 0, full_backlog);
        let narrow = if scales { 3008 } else { 3000 };
        let data = pattern(20_000);
        p.transfer(c, s, &data, 1400, Duration::from_secs(5), |_, _| Act::Pass);
        let info = p.a.stack.info(c).unwrap();
        assert_eq!((info.snd_wnd, p.b.stack.info(s).unwrap().rcv_wnd), (narrow, narrow));
        p.b.stack.welcome(p.now, s, &mut p.b.out);
        p.settle();
        let wide = if scales { 1 << 20 } else { 65_535 };
        assert_eq!(p.a.stack.info(c).unwrap().snd_wnd, wide, "told at once");
        // The end that opens the connection has its full window.
        assert_eq!(p.b.stack.info(s).unwrap().snd_wnd, wide);
        p.b.stack.welcome(p.now, s, &mut p.b.out);
        assert_eq!(p.settle(), 0, "the second call sends nothing");
    }
}

#[test]
fn a_closed_port_refuses() {
    let mut p = Pair::new(|_| {});
    let c =
        p.a.stack
            .connect(p.now, "10.0.0.2:9".parse::<std::net::SocketAddr>().unwrap(), 5, &mut p.a.out)
            .unwrap();
    p.settle();
    assert_eq!(p.a.closed(c), Some(CloseReason::Refused));
    assert_eq!(p.a.stack.info(c), None);
    assert_eq!(p.a.stack.census(), (0, 0, 0));
}

#[test]
fn an_absent_host_is_unreachable() {
    let mut p = Pair::new(|_| {});
    let c =
        p.a.stack
            .connect(p.now, "10.0.0.9:9".parse::<std::net::SocketAddr>().unwrap(), 5, &mut p.a.out)
            .unwrap();
    p.run(Duration::from_secs(4));
    assert_eq!(p.a.closed(c), Some(CloseReason::Unreachable));
    assert_eq!(p.a.stack.counters().arp_requests_out, 3);
}

#[test]
fn a_silent_host_times_out() {
    let mut p = Pair::new(|c| c.tcp.syn_retries = 2);
    p.connect();
    let c =
        p.a.stack
            .connect(p.now, "10.0.0.2:9".parse::<std::net::SocketAddr>().unwrap(), 5, &mut p.a.out)
            .unwrap();
    let mut syns = 0;
    p.run_with(Duration::from_secs(8), |_, s| {
        syns += usize::from(View::of(&s.bytes).is_some());
        Act::Drop
    });
    assert_eq!(syns, 3);
    assert_eq!(p.a.closed(c), Some(CloseReason::TimedOut));
}

/// Each frame of the handshake is lost once.
#[test]
fn any_frame_may_be_lost() {
    for lost in 0..6 {
        let mut p = Pair::new(|_| {});
        p.b.stack.listen_on(PORT, 16).unwrap();
        let to: std::net::SocketAddr = "10.0.0.2:7471".parse().unwrap();
        let c = p.a.stack.connect(p.now, to, 77, &mut p.a.out).unwrap();
        let mut n = 0;
        p.run_with(Duration::from_secs(9), |_, _| {
            n += 1;
            if n - 1 == lost { Act::Drop } else { Act::Pass }
        });
        assert_eq!(p.a.stack.info(c).map(|i| i.state), Some(State::Established), "lost {lost}");
        // If the last ACK of the handshake was lost, data opens B's side.
        p.a.stack.send(c, Shared::new(b"hello")).unwrap();
        p.a.stack.output(p.now, c, &mut p.a.out);
        p.run(Duration::from_secs(2));
        assert_eq!(p.b.data(p.b.accepted().unwrap()), b"hello");
    }
}

#[test]
fn simultaneous_open() {
    let mut p = Pair::new(|_| {});
    let (a_port, b_port) = (50_001, 50_002);
    p.a = Node::with_ports(config(A), Box::new(Fixed(a_port)));
    p.b = Node::with_ports(config(B), Box::new(Fixed(b_port)));
    let a = p.a.stack.connect(p.now, SocketAddrV4::new(B, b_port), 1, &mut p.a.out).unwrap();
    let b = p.b.stack.connect(p.now, SocketAddrV4::new(A, a_port), 2, &mut p.b.out).unwrap();
    p.settle();
    assert!(p.a.seen.events.contains(&Event::Connected(a, 1)), "{:?}", p.a.stack.info(a));
    assert!(p.b.seen.events.contains(&Event::Connected(b, 2)));
    let i = p.a.stack.info(a).unwrap();
    assert!(i.sack && i.timestamps && i.state == State::Established);
    p.transfer(a, b, &pattern(200_000), 1448, Duration::from_secs(1), |_, _| Act::Pass);
}

/// A connection to our own address: frames come back through `receive`.
#[test]
fn hairpin() {
    let mut p = Pair::new(|_| {});
    p.a.stack.listen_on(PORT, 4).unwrap();
    let c = p.a.stack.connect(p.now, SocketAddrV4::new(A, PORT), 3, &mut p.a.out).unwrap();
    p.settle();
    assert!(p.a.seen.events.contains(&Event::Connected(c, 3)));
    let s = p.a.accepted().unwrap();
    p.a.stack.send(c, Shared::new(b"to myself")).unwrap();
    p.a.stack.output(p.now, c, &mut p.a.out);
    p.settle();
    assert_eq!(p.a.data(s), b"to myself");
    assert_eq!(p.b.stack.counters().frames_in, 0);
}
