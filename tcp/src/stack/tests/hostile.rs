//! Frames that no honest peer sends.

use crate::testing::*;
use crate::*;
use std::net::SocketAddrV4;
use std::time::Duration;

/// Random octets, and honest frames with changed or missing octets: nothing panics and nothing grows.
#[test]
fn random_frames() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut p = Pair::new(|_| {});
    let (c, s) = p.connect();
    let mut honest = Vec::new();
    p.transfer(c, s, &pattern(20_000), 700, Duration::from_secs(1), |_, f| {
        honest.push(f.bytes.clone());
        Act::Pass
    });
    for round in 0..30_000 {
        let mut frame = match round % 3 {
            0 => (0..rng.usize(0..200)).map(|_| rng.u8(..)).collect(),
            _ => honest[rng.usize(..honest.len())].clone(),
        };
        for _ in 0..rng.usize(0..4) {
            if !frame.is_empty() {
                let i = rng.usize(..frame.len().min(80));
                frame[i] = rng.u8(..);
            }
        }
        if rng.u8(..) < 20 {
            frame.truncate(rng.usize(..=frame.len()));
        }
        if round % 3 == 0 && frame.len() > 14 {
            frame[..6].copy_from_slice(&p.b.stack.config().mac);
            frame[12..14].copy_from_slice(if rng.bool() { &[8, 0] } else { &[8, 6] });
        }
        let trusted = Trusted(frame);
        // Half of the frames get correct checksums, so that the stack processes them further.
        if rng.bool() {
            p.b.receive(p.now, trusted.fixed());
        } else {
            p.b.receive(p.now, trusted.0);
        }
        p.b.flush(p.now);
        p.b.out.frames.clear();
        p.now += Duration::from_micros(rng.u64(0..1000));
        p.b.advance(p.now);
    }
    let (connections, embryos, _) = p.b.stack.census();
    assert!(connections <= 64 && embryos <= 64);
}

/// A frame whose checksums can be corrected.
struct Trusted(Vec<u8>);

impl Trusted {
    fn fixed(mut self) -> Vec<u8> {
        let f = &mut self.0;
        if f.len() < 54 || f[14] != 0x45 {
            return self.0;
        }
        let total = usize::from(u16::from_be_bytes([f[16], f[17]])).clamp(40, f.len() - 14);
        f[24..26].fill(0);
        let ip = !sum::sum(&f[14..34]);
        f[24..26].copy_from_slice(&ip.to_be_bytes());
        f[50..52].fill(0);
        let pseudo = sum::pseudo_header_v4(
            f[26..30].try_into().unwrap(),
            f[30..34].try_into().unwrap(),
            6,
            total - 20,
        );
        let tcp = !sum::add(pseudo, sum::sum(&f[34..14 + total]));
        f[50..52].copy_from_slice(&tcp.to_be_bytes());
        self.0
    }
}

/// A flood of SYNs fills only the backlog, and an honest peer still gets in.
#[test]
fn syn_flood() {
    let mut p = Pair::new(|c| {
        c.tcp.max_syn_backlog = 64;
        c.addresses[0].prefix_len = 8;
    });
    p.b.stack.listen_on(PORT, 32).unwrap();
    for i in 0..5000u32 {
        let src = std::net::Ipv4Addr::from(0x0a01_0000 + i);
        let mut node = Node::new(config(src));
        let mut b = config(B);
        b.addresses[0].prefix_len = 8;
        let mut template = crate::wire::HeaderTemplate::new(node.stack.config().mac, None, src.to_bits());
        let fields = crate::wire::TcpFields {
            dst_mac: b.mac,
            key: crate::table::Key::new(B.to_bits(), PORT, 999),
            seq: Seq(i),
            ack: Seq(0),
            flags: 2,
            ecn: 0,
            window: 1000,
            options: &crate::wire::Options::new(),
        };
        let common = template.begin(&fields);
        let frame = template.finish(&common, fields.own(), 0, Some(0)).to_vec();
        p.b.receive(p.now, frame);
        node.out.frames.clear();
        assert!(p.b.stack.census().1 <= 32);
    }
    p.b.out.frames.clear();
    assert!(p.b.stack.counters().syn_backlog_full > 4900);
    let to = SocketAddrV4::new(B, PORT);
    let c = p.a.stack.connect(p.now, to, 77, &mut p.a.out).unwrap();
    p.settle_with(|_, _| Act::Pass);
    assert!(p.a.seen.events.contains(&Event::Connected(c, 77)));
    // Half-open connections end by themselves.
    p.run_with(Duration::from_secs(300), |_, _| Act::Drop);
    assert_eq!(p.b.stack.census().1, 0);
}

#[test]
fn fragments_are_refused() {
    let mut p = Pair::new(|_| {});
    let (c, s) = p.connect();
    p.a.stack.send(c, Shared::new(b"data")).unwrap();
    p.a.stack.output(p.now, c, &mut p.a.out);
    let sent = p.a.out.frames.pop_front().unwrap().bytes;
    for (offset, flags) in [(20, 0x20), (20, 0x00), (21, 0x01)] {
        let mut f = sent.clone();
        f[20] = 0;
        f[offset] |= if flags == 0 { 0x01 } else { flags };
        f[24..26].fill(0);
        let ip = !sum::sum(&f[14..34]);
        f[24..26].copy_from_slice(&ip.to_be_bytes());
        p.b.receive(p.now, f);
    }
    assert_eq!(p.b.stack.counters().fragments, 3);
    assert!(p.b.data(s).is_empty());
    p.b.receive(p.now, sent);
    assert_eq!(p.b.data(s), b"data");
}

/// Each single flipped bit of a segment is detected.
#[test]
fn corruption_is_noticed() {
    let mut p = Pair::new(|_| {});
    let (c, s) = p.connect();
    p.a.stack.send(c, Shared::new(&pattern(100))).unwrap();
    p.a.stack.output(p.now, c, &mut p.a.out);
    let sent = p.a.out.frames.pop_front().unwrap().bytes;
    for bit in 14 * 8..sent.len() * 8 {
        let mut f = sent.clone();
        f[bit / 8] ^= 1 << (bit % 8);
        p.b.receive(p.now, f);
    }
    assert!(p.b.data(s).is_empty());
    let k = p.b.stack.counters();
    assert_eq!(k.segments_in, 2, "the handshake alone: {k:?}");
    p.b.receive(p.now, sent);
    assert_eq!(p.b.data(s), pattern(100));
}

/// Connections to absent hosts do not accumulate.
#[test]
fn absent_neighbours_leave_nothing() {
    let mut p = Pair::new(|_| {});
    for i in 3..250 {
        let to = SocketAddrV4::new([10, 0, 0, i].into(), 1);
        p.a.stack.connect(p.now, to, 0, &mut p.a.out).unwrap();
    }
    p.run(Duration::from_secs(10));
    assert_eq!(p.a.stack.census(), (0, 0, 0));
    assert_eq!(p.a.stack.next_deadline(), None);
}

/// A segment whose sender left the checksum to an interface is dropped, and counted as a wrong checksum. A
/// second counter shows how many of these there were, because hosts on the same machine send such segments.
#[test]
fn an_unfilled_checksum_is_told_from_a_wrong_one() {
    let mut p = Pair::new(|_| {});
    let (c, _) = p.connect();
    p.a.stack.send(c, Shared::new(b"data")).unwrap();
    p.a.stack.output(p.now, c, &mut p.a.out);
    let right = p.a.out.frames.pop_front().unwrap().bytes;
    let mut wrong = right.clone();
    wrong[50] ^= 1;
    p.b.receive(p.now, wrong);
    let mut unfilled = right.clone();
    let ends = |from: usize| [right[from], right[from + 1], right[from + 2], right[from + 3]];
    let pseudo = sum::pseudo_header_v4(ends(26), ends(30), 6, right.len() - 34);
    unfilled[50..52].copy_from_slice(&pseudo.to_be_bytes());
    p.b.receive(p.now, unfilled);
    let counters = p.b.stack.counters();
    assert_eq!((counters.bad_tcp_checksum, counters.unfilled_tcp_checksum), (2, 1));
}
