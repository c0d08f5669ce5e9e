//! Floods, with honest peers among them.

use crate::harness::{Host, Script, ip, mac, octet};
use crate::peer::{Bench, Seg, arp};
use smoltcp::wire::ArpOperation;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;
use urnic_tcp::{Address, StackConfig, Time, sum};

const VICTIM: u8 = 1;
const ATTACKER: u8 = 66;

/// One host under attack, and honest others, on a wire without delay.
struct Lan {
    now: Time,
    victim: Host,
    clients: Vec<Host>,
    /// Frames for hosts that are not here.
    to_others: u64,
}

impl Lan {
    fn new(clients: u8, tune: impl Fn(u8, &mut StackConfig)) -> Lan {
        let host = |n: u8| {
            let mut host = Host::new(n, |c| tune(n, c));
            host.out.limit = 1 << 20;
            host
        };
        let mut victim = host(VICTIM);
        victim.stack.listen_on(7, 128).expect("listen");
        let clients = (2..2 + clients).map(host).collect();
        Lan { now: Time::from_secs(100), victim, clients, to_others: 0 }
    }

    /// Lets the victim receive a frame and answer.
    fn attack(&mut self, frame: Vec<u8>) {
        receive(&mut self.victim, self.now, frame);
        self.settle();
    }

    fn pass(&mut self, d: Duration) {
        self.now += d;
        for host in self.clients.iter_mut().chain([&mut self.victim]) {
            host.stack.advance(self.now, &mut host.app, &mut host.out);
        }
        self.settle();
    }

    /// Moves frames until no host has any.
    fn settle(&mut self) {
        loop {
            let mut sent = Vec::new();
            for host in self.clients.iter_mut().chain([&mut self.victim]) {
                host.stack.flush(self.now, &mut host.out);
                sent.append(&mut host.out.frames);
            }
            if sent.is_empty() {
                return;
            }
            for frame in sent {
                let to: [u8; 6] = frame[..6].try_into().expect("a MAC address");
                let hosts = self.clients.iter_mut().chain([&mut self.victim]);
                let mut hosts: Vec<_> =
                    hosts.filter(|h| to[0] & 1 != 0 || to == h.stack.config().mac).collect();
                self.to_others += u64::from(hosts.is_empty());
                for host in &mut hosts {
                    receive(host, self.now, frame.clone());
                }
            }
        }
    }
}

fn receive(host: &mut Host, now: Time, frame: Vec<u8>) {
    host.stack.receive(now, frame, &mut host.app, &mut host.out);
    host.stack.flush(now, &mut host.out);
}

/// A frame whose source address, source port, sequence number and ACK change each time.
pub struct Forge(Vec<u8>);

impl Forge {
    pub fn new(seg: &Seg) -> Forge {
        Forge(seg.frame(ATTACKER, VICTIM))
    }

    pub fn frame(&mut self, from: Ipv4Addr, port: u16, seq: u32, ack: u32) -> Vec<u8> {
        let f = &mut self.0;
        f[26..30].copy_from_slice(&from.octets());
        f[34..36].copy_from_slice(&port.to_be_bytes());
        f[38..42].copy_from_slice(&seq.to_be_bytes());
        f[42..46].copy_from_slice(&ack.to_be_bytes());
        f[24..26].fill(0);
        let check = !sum::sum(&f[14..34]);
        f[24..26].copy_from_slice(&check.to_be_bytes());
        f[50..52].fill(0);
        let to = ip(VICTIM).octets();
        let pseudo = sum::pseudo_header_v4(from.octets(), to, 6, f.len() - 34);
        let check = !sum::add(pseudo, sum::sum(&f[34..]));
        f[50..52].copy_from_slice(&check.to_be_bytes());
        f.clone()
    }
}

/// RFC 4987: a million SYNs from anywhere, and a thousand connections of honest peers among them. All of these
/// connections open at the first try and carry data. The state that the flood leaves behind is bounded.
#[test]
fn a_thousand_connections_in_a_million_syns() {
    const SYNS: u32 = 1_000_000;
    const CONNECTIONS: u32 = 1000;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    // Some honest peers have timestamps, others do not.
    let mut lan = Lan::new(2, |n, c| {
        c.tcp.timestamps = n != 3;
        c.tcp.ack_delay = Duration::ZERO;
    });
    let mut syn = Forge::new(&Seg { syn: true, mss: Some(1460), ..Seg::default() });
    let limit = lan.victim.stack.config().tcp.max_syn_backlog as usize;
    for i in 0..SYNS {
        let from = Ipv4Addr::new(10, rng.u8(..), rng.u8(..), rng.u8(1..));
        if from == ip(VICTIM) || from == ip(2) || from == ip(3) {
            continue;
        }
        receive(&mut lan.victim, lan.now, syn.frame(from, rng.u16(1..), rng.u32(..), 0));
        if i % 64 == 0 {
            lan.pass(Duration::from_micros(640));
        }
        if i % (SYNS / CONNECTIONS) == 7 {
            let kind = (i / (SYNS / CONNECTIONS)) as usize % 2;
            let client = &mut lan.clients[kind];
            let session = client.connect(lan.now, SocketAddrV4::new(ip(VICTIM), 7), Script::send(0));
            lan.settle();
            let client = &mut lan.clients[kind];
            let s = &client.app.sessions[session];
            assert!(s.established, "connection {session} of kind {kind} is not open");
            let (conn, who) = (s.conn, s.who);
            let bytes = (0..100).map(|i| octet(who, i)).collect();
            client.app.sessions[session].queued = 100;
            client.stack.send(conn, bytes).expect("send");
            client.stack.output(lan.now, conn, &mut client.out);
            lan.settle();
            assert_eq!(lan.clients[kind].app.sessions[session].acked, 100);
        }
        assert!(lan.victim.stack.census().1 <= limit);
    }
    let c = *lan.victim.stack.counters();
    assert_eq!(lan.victim.app.accepted, CONNECTIONS as usize);
    assert!(lan.victim.app.sessions.iter().all(|s| s.received == 100 && s.closed.is_none()));
    for client in &lan.clients {
        assert_eq!(client.stack.counters().retransmitted_segments, 0);
    }
    assert!(c.syn_cookies_in > 900 && c.syn_cookies_failed == 0, "{c:?}");
    // A flood touches no neighbours except those that connected.
    assert!(c.arp_requests_out <= 4, "{c:?}");
    // Not more answers than frames, except for the repetitions of the backlog.
    let answers = lan.to_others;
    assert!(answers <= u64::from(SYNS) + 10 * limit as u64, "{answers}");
    // Afterwards, no state of the flood is left.
    for _ in 0..300 {
        lan.pass(Duration::from_secs(1));
    }
    assert_eq!(lan.victim.stack.census(), (CONNECTIONS as usize, 0, 0));
}

fn ip6(n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n))
}

/// Returns a SYN over IPv6 from any address.
fn syn6(from: Ipv6Addr, port: u16, seq: u32) -> Vec<u8> {
    let mut tcp = [port.to_be_bytes(), 7u16.to_be_bytes()].concat();
    tcp.extend(seq.to_be_bytes());
    tcp.extend([0, 0, 0, 0, 0x60, 2, 0xff, 0xff, 0, 0, 0, 0, 2, 4, 5, 0xa0]);
    let to = ip6(VICTIM);
    let pseudo = [&from.octets()[..], &to.octets(), &[0, 0, 0, tcp.len() as u8, 0, 0, 0, 6]].concat();
    let check = !sum::add(sum::sum(&pseudo), sum::sum(&tcp));
    tcp[16..18].copy_from_slice(&check.to_be_bytes());
    let mut f =
        [&mac(VICTIM)[..], &mac(ATTACKER), &[0x86, 0xdd, 0x60, 0, 0, 0, 0, tcp.len() as u8, 6, 64]].concat();
    f.extend(from.octets());
    f.extend(to.octets());
    f.extend(tcp);
    f
}

/// Connections in a flood of SYNs over IPv6, where every SYN can come from a new address.
#[test]
fn connections_in_a_flood_over_ipv6() {
    const SYNS: u32 = 200_000;
    const CONNECTIONS: u32 = 100;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut lan = Lan::new(1, |n, c| c.addresses.push(Address { ip: ip6(n).into(), prefix_len: 64 }));
    lan.settle();
    for i in 0..SYNS {
        let prefix = [0xfd00_0000_0000_0000, 0x2001_0db8_0000_0000][rng.usize(..2)];
        let from =
            Ipv6Addr::from_bits(u128::from(prefix | rng.u64(..1 << 32)) << 64 | u128::from(rng.u64(..)));
        receive(&mut lan.victim, lan.now, syn6(from, rng.u16(1..), rng.u32(..)));
        if i % 64 == 0 {
            lan.pass(Duration::from_micros(640));
        }
        if i % (SYNS / CONNECTIONS) == 7 {
            let to = SocketAddr::new(ip6(VICTIM).into(), 7);
            let client = &mut lan.clients[0];
            let conn = client.stack.connect(lan.now, to, 0, &mut client.out).expect("connect");
            let who = u64::from(client.stack.local_addr(conn).expect("is live").port());
            let session = client.app.add(conn, who, 1_000_000 + who, Script::silent(), false);
            lan.settle();
            assert!(lan.clients[0].app.sessions[session].established, "connection {session} is not open");
        }
    }
    let c = *lan.victim.stack.counters();
    assert_eq!(lan.victim.app.accepted, CONNECTIONS as usize);
    assert!(c.syn_cookies_in > 90 && c.syn_cookies_failed == 0, "{c:?}");
    assert!(lan.victim.stack.census().1 <= lan.victim.stack.config().tcp.max_syn_backlog as usize);
}

/// Blind ACKs open no connection, even while cookies are accepted: a million guesses.
#[test]
fn guessed_cookies() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut lan = Lan::new(0, |_, _| {});
    let mut syn = Forge::new(&Seg { syn: true, mss: Some(1460), ..Seg::default() });
    for i in 0..2000 {
        receive(&mut lan.victim, lan.now, syn.frame(Ipv4Addr::from_bits(0x0a01_0000 + i), 99, i, 0));
    }
    assert!(lan.victim.stack.counters().syn_cookies_out > 0);
    let mut ack = Forge::new(&Seg { ack: Some(0), ..Seg::default() });
    for i in 0..1_000_000 {
        let from = Ipv4Addr::from_bits(0x0a01_0000 + i % 5000);
        receive(&mut lan.victim, lan.now, ack.frame(from, 98, rng.u32(..), rng.u32(..)));
        lan.victim.out.frames.clear();
        if i % 1000 == 0 {
            lan.pass(Duration::from_millis(1));
        }
    }
    let c = lan.victim.stack.counters();
    // The chance of each guess is 2⁻²⁸.
    assert!(c.syn_cookies_failed >= 999_999 && lan.victim.app.accepted <= 1, "{c:?}");
    assert!(c.resets_out < 20_000, "and we are no source of resets: {c:?}");
}

/// RFC 5961: resets, SYNs and data from an attacker that knows the addresses but sees no frames.
#[test]
fn blind_segments() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut b = Bench::listening(|_| {}, Script::silent());
    let c = b.established(Seg { seq: 1000, mss: Some(1460), ..Seg::default() });
    let mut answers = 0;
    for i in 0..300_000u32 {
        // Half of the RSTs and SYNs, and all data, are in or near the window.
        let seq = if rng.bool() { c.nxt.wrapping_add(rng.u32(1..1 << 20)) } else { rng.u32(..) };
        if seq == c.nxt {
            continue;
        }
        let ack = Some(rng.u32(..)).filter(|a| a.wrapping_sub(c.una.wrapping_sub(1 << 20)) > 1 << 21);
        let seg = match i % 3 {
            0 => Seg { rst: true, seq, ack: rng.bool().then(|| rng.u32(..)), ..Seg::default() },
            1 => Seg { syn: true, seq, ack: rng.bool().then(|| rng.u32(..)), ..Seg::default() },
            // Without an ACK, or with one that the victim cannot accept.
            _ => Seg {
                seq: c.nxt.wrapping_add(rng.u32(0..1 << 20)),
                ack,
                data: vec![0xbd; 10],
                ..Seg::default()
            },
        };
        answers += b.send(&seg).len();
        if i % 30_000 == 0 {
            b.now += Duration::from_secs(2);
        }
    }
    let s = &b.host.app.sessions[0];
    assert!(s.closed.is_none() && s.received == 0, "{s:?}");
    // The limit is ten challenge ACKs per second and connection (RFC 5961 §7).
    assert!(answers <= 11 * 10, "{answers} answers");
    b.send(&c.data(0, 100));
    assert_eq!(b.host.app.sessions[0].received, 100);
}

/// A million segments with data outside of the window. Each is answered by at most one ACK, and nothing is
/// delivered or held. Afterwards the stream goes on.
#[test]
fn data_outside_of_the_window() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut lan = Lan::new(0, |_, c| c.tcp.recv_window = 65_535);
    let (nxt, una) = open_by_hand(&mut lan, 5000);
    let mut data = Forge::new(&Seg { from: 5000, ack: Some(una), data: vec![0xbd; 10], ..Seg::default() });
    for _ in 0..1_000_000 {
        let seq = nxt.wrapping_add(rng.u32(65_535..=u32::MAX - 10));
        receive(&mut lan.victim, lan.now, data.frame(ip(ATTACKER), 5000, seq, una));
        assert!(lan.victim.out.frames.len() <= 1);
        lan.victim.out.frames.clear();
    }
    let c = *lan.victim.stack.counters();
    assert_eq!((c.unacceptable, c.out_of_order, c.bytes_in), (1_000_000, 0, 0));
    receive(&mut lan.victim, lan.now, data.frame(ip(ATTACKER), 5000, nxt, una));
    assert_eq!(lan.victim.stack.counters().bytes_in, 10);
}

/// Opens the attacker's own connection, which is honest so far. Returns its next sequence number and the victim's.
fn open_by_hand(lan: &mut Lan, port: u16) -> (u32, u32) {
    lan.victim.app.unchecked = true;
    // An ARP request, so that the victim can answer.
    receive(&mut lan.victim, lan.now, arp(ArpOperation::Request, ATTACKER, VICTIM));
    lan.victim.out.frames.clear();
    let syn = Seg { from: port, syn: true, seq: 999, mss: Some(1460), ..Seg::default() };
    receive(&mut lan.victim, lan.now, syn.frame(ATTACKER, VICTIM));
    let reply = lan.victim.out.frames.pop().and_then(|f| Seg::parse(&f)).expect("a SYN-ACK");
    let una = reply.seq.wrapping_add(1);
    let ack = Seg { from: port, seq: 1000, ack: Some(una), ..Seg::default() };
    receive(&mut lan.victim, lan.now, ack.frame(ATTACKER, VICTIM));
    (1000, una)
}

/// Peers send with as many gaps as they may, on many connections. The frames that they pin are bounded in
/// total, and each connection leaves half of the free places to later ones.
#[test]
fn pinned_frames_are_bounded() {
    const LIMIT: u32 = 4096;
    let mut lan = Lan::new(0, |_, c| {
        c.tcp.max_held_frames = LIMIT;
        c.tcp.sack = false;
    });
    let open: Vec<_> = (0..64).map(|i| (5000 + i, open_by_hand(&mut lan, 5000 + i))).collect();
    for &(port, (nxt, una)) in &open {
        let mut data = Forge::new(&Seg { from: port, ack: Some(una), data: vec![0xbd; 1], ..Seg::default() });
        let dropped = lan.victim.stack.counters().out_of_order_dropped;
        for i in 0..3000u32 {
            let seq = nxt.wrapping_add(1 + 2 * i);
            receive(&mut lan.victim, lan.now, data.frame(ip(ATTACKER), port, seq, una));
            lan.victim.out.frames.clear();
        }
        let held = 3000 - (lan.victim.stack.counters().out_of_order_dropped - dropped);
        assert!(held <= u64::from(LIMIT) / 2, "{held} frames of one connection");
        // Each connection takes half of the frames that the others have left, so a few connections exhaust them.
        // RFC 2018 §8 allows dropping the rest.
        if port < 5005 {
            assert!(held >= 60, "{held} frames of the connection from port {port}");
        }
    }
    let c = *lan.victim.stack.counters();
    assert!(c.out_of_order - c.out_of_order_dropped <= u64::from(LIMIT));
    // All streams go on, and release the frames that they held.
    for &(port, (nxt, una)) in &open {
        let mut data =
            Forge::new(&Seg { from: port, ack: Some(una), data: vec![0xbd; 1000], ..Seg::default() });
        for i in 0..7u32 {
            let seq = nxt.wrapping_add(1000 * i);
            receive(&mut lan.victim, lan.now, data.frame(ip(ATTACKER), port, seq, una));
            lan.victim.out.frames.clear();
        }
    }
    assert!(lan.victim.app.sessions.iter().all(|s| s.received == 7000));
}

/// After forged data is accepted, two honest ends disagree about what was sent. They do not answer each other for
/// ever (RFC 5961 §7).
#[test]
fn ack_storm() {
    let mut lan = Lan::new(1, |_, c| c.tcp.timestamps = false);
    lan.victim.app.unchecked = true;
    let session = lan.clients[0].connect(lan.now, SocketAddrV4::new(ip(VICTIM), 7), Script::send(0));
    lan.settle();
    let port = lan.clients[0].app.sessions[session].who as u16;
    // The attacker sees the wire, so it takes the sequence numbers from a segment of the client.
    let client = &mut lan.clients[0];
    let conn = client.app.sessions[session].conn;
    let bytes = (0..10).map(|i| octet(u64::from(port), i)).collect();
    client.stack.send(conn, bytes).expect("send");
    client.app.sessions[session].queued = 10;
    client.stack.output(lan.now, conn, &mut client.out);
    let seen = client.out.frames.last().and_then(|f| Seg::parse(f)).expect("a segment");
    lan.settle();
    let (seq, ack) = (seen.seq.wrapping_add(10), seen.ack.expect("an ACK"));
    let forged = Seg { from: port, seq, ack: Some(ack), data: vec![0xbd; 100], ..Seg::default() };
    let before = lan.victim.stack.counters().frames_in;
    lan.attack(Forge::new(&forged).frame(ip(2), port, seq, ack));
    assert_eq!(lan.victim.app.sessions[0].received, 110);
    for _ in 0..100 {
        lan.pass(Duration::from_millis(100));
    }
    let frames = lan.victim.stack.counters().frames_in - before;
    assert!(frames <= 11 * 11, "{frames} frames in ten seconds");
}

/// A peer that opens its window by single octets, or keeps it shut, costs us few segments, however long it does so.
#[test]
fn tiny_windows() {
    for window in [0, 1, 2] {
        let mut b = Bench::listening(|_| {}, Script { close_first: false, ..Script::send(1_000_000) });
        let mut c = b.established(Seg { seq: 1000, mss: Some(1460), window, ..Seg::default() });
        let mut sent = 0;
        for _ in 0..600 {
            for (_, seg) in b.wait(Duration::from_millis(100)) {
                sent += 1;
                assert!(seg.data.len() <= usize::from(window));
                c.una = c.una.max(seg.seq.wrapping_add(seg.data.len() as u32));
            }
            // Two ACKs that leave the window as it is.
            sent += b.burst(&[c.seg(), c.seg()]).len();
        }
        assert!(b.host.app.sessions[0].closed.is_none());
        // The override time allows one segment per 0.1 s (RFC 9293 §3.8.6.2.1).
        assert!(sent <= 60 * 10 + 10, "{sent} segments in a minute with a window of {window}");
    }
}

/// A peer that asks for segments of one octet gets larger ones, because a transfer would otherwise cost us a thousand
/// times as many segments.
#[test]
fn tiny_segments() {
    for mss in [0, 1, 64, 215] {
        let mut b = Bench::listening(|_| {}, Script { close_first: false, ..Script::send(100_000) });
        let (mut c, _) = b.open(Seg { seq: 1000, mss: Some(mss), ..Seg::default() });
        let (mut segments, mut octets) = (0, 0);
        let mut sent = b.send(&c.seg());
        while octets < 100_000 {
            for seg in &sent {
                segments += 1;
                octets += seg.data.len();
                c.una = c.una.max(seg.seq.wrapping_add(seg.data.len() as u32));
            }
            assert!(!sent.is_empty());
            b.now += Duration::from_millis(1);
            sent = b.send(&c.seg());
        }
        assert!(segments <= 100_000 / 216 + 100, "{segments} segments with an MSS of {mss}");
    }
}

/// Requests for our address come from far more addresses than the neighbour cache can hold. The cache keeps its limit,
/// and connections keep their neighbours.
#[test]
fn neighbours_are_bounded() {
    let mut lan = Lan::new(1, |_, c| c.tcp.max_neighbours = 64);
    let session = lan.clients[0].connect(lan.now, SocketAddrV4::new(ip(VICTIM), 7), Script::send(0));
    lan.settle();
    for i in 0..100_000u32 {
        let mut request = arp(ArpOperation::Request, ATTACKER, VICTIM);
        request[28..32].copy_from_slice(&(0x0a00_0100 + i).to_be_bytes());
        receive(&mut lan.victim, lan.now, request);
        lan.victim.out.frames.clear();
    }
    lan.victim.stack.audit().expect("as many neighbours as the limit allows");
    // The client's address is still known: a frame to it leaves at once.
    let conn = lan.victim.app.sessions[0].conn;
    let requests = lan.victim.stack.counters().arp_requests_out;
    lan.victim.app.sessions[0].queued = 10;
    let who = lan.victim.app.sessions[0].who;
    let bytes = (0..10).map(|i| octet(who, i)).collect();
    lan.victim.stack.send(conn, bytes).expect("send");
    lan.victim.stack.output(lan.now, conn, &mut lan.victim.out);
    lan.settle();
    assert_eq!(lan.clients[0].app.sessions[session].received, 10);
    assert_eq!(lan.victim.stack.counters().arp_requests_out, requests);
    assert_eq!(lan.clients[0].stack.config().mac, mac(2));
}
