//! One stack against hand-written segments.

use crate::seq::Seq;
use crate::testing::*;
use crate::wire::{HeaderTemplate, Options, TcpFields, flag};
use crate::*;
use std::net::SocketAddrV4;
use std::time::Duration;

const ACK: u8 = flag::ACK;
const SYN: u8 = flag::SYN;
const RST: u8 = flag::RST;
const FIN: u8 = flag::FIN;

/// A connection of a real stack A with a peer B that the test plays. B's SYN has an MSS of 1460. Its other
/// segments have only the options that a test adds.
pub struct Script {
    pub a: Node,
    pub conn: ConnId,
    pub now: Time,
    header: HeaderTemplate,
    port: u16,
    /// Sequence number that B sends next, and the one that it expects.
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
}

impl Script {
    /// Opens a connection that A accepts.
    pub fn new(window: u16, change: impl Fn(&mut StackConfig)) -> Script {
        let mut cfg = config(A);
        cfg.tcp.ack_delay = Duration::ZERO;
        change(&mut cfg);
        let b = config(B);
        let mut s = Script {
            a: Node::new(cfg),
            conn: ConnId { index: 0, generation: 0 },
            now: Time::from_secs(1),
            header: HeaderTemplate::new(b.mac, None, B.to_bits()),
            port: 40_000,
            seq: 1000,
            ack: 0,
            window,
        };
        s.a.stack.listen_on(PORT, 8).unwrap();
        s.arp();
        let reply = s.exchange(SYN, &[], &[2, 4, 5, 180]);
        assert_eq!(reply.len(), 1);
        assert_eq!((reply[0].flags, reply[0].ack), (SYN | ACK, 1001));
        s.seq = 1001;
        s.ack = reply[0].seq.wrapping_add(1);
        assert!(s.exchange(ACK, &[], &[]).is_empty());
        s.conn = s.a.accepted().unwrap();
        s
    }

    /// Lets A learn our MAC address in the usual way, from our request for its own.
    fn arp(&mut self) {
        let mut b = Node::new(config(B));
        b.stack.connect(self.now, SocketAddrV4::new(A, 1), 0, &mut b.out).unwrap();
        b.flush(self.now);
        self.a.receive(self.now, b.out.frames.pop_front().unwrap().bytes);
        self.a.out.frames.clear();
    }

    pub fn frame(&mut self, seq: u32, ack: u32, flags: u8, data: &[u8], options: &[u8]) -> Vec<u8> {
        let fields = TcpFields {
            dst_mac: self.a.stack.config().mac,
            key: crate::table::Key::new(A.to_bits(), PORT, self.port),
            seq: Seq(seq),
            ack: Seq(ack),
            flags,
            ecn: 0,
            window: self.window,
            options: &Options::try_from(options).unwrap(),
        };
        let common = self.header.begin(&fields);
        let mut frame = self.header.finish(&common, fields.own(), data.len(), Some(sum::sum(data))).to_vec();
        frame.extend_from_slice(data);
        frame
    }

    /// Passes a segment to A and returns its answers.
    pub fn inject(&mut self, seq: u32, ack: u32, flags: u8, data: &[u8], options: &[u8]) -> Vec<View> {
        let frame = self.frame(seq, ack, flags, data, options);
        self.now += Duration::from_micros(10);
        self.a.receive(self.now, frame);
        self.answers()
    }

    pub fn exchange(&mut self, flags: u8, data: &[u8], options: &[u8]) -> Vec<View> {
        self.inject(self.seq, self.ack, flags, data, options)
    }

    pub fn answers(&mut self) -> Vec<View> {
        self.a.flush(self.now);
        let sent = std::mem::take(&mut self.a.out.frames);
        sent.iter().filter_map(|s| View::of(&s.bytes)).collect()
    }

    pub fn send(&mut self, data: &[u8]) -> Vec<View> {
        self.a.stack.send(self.conn, Shared::new(data)).unwrap();
        self.a.stack.output(self.now, self.conn, &mut self.a.out);
        self.answers()
    }

    /// Lets `d` pass. Returns what A sends meanwhile.
    pub fn wait(&mut self, d: Duration) -> Vec<(Time, View)> {
        let end = self.now + d;
        let mut out = Vec::new();
        while let Some(next) = self.a.stack.next_deadline().filter(|&t| t <= end) {
            self.now = self.now.max(next);
            self.a.advance(self.now);
            let now = self.now;
            out.extend(self.answers().into_iter().map(|v| (now, v)));
        }
        self.now = end;
        out
    }

    fn state(&self) -> Option<State> {
        self.a.stack.info(self.conn).map(|i| i.state)
    }
}

// ---- RFC 5961 ----

/// §3.2: a RST counts only with exactly the next number. Inside the window it is challenged, outside it is ignored.
#[test]
fn rst_must_be_exact() {
    let mut s = Script::new(65_535, |_| {});
    for (seq, answers) in [(1002, 1), (1001 + 60_000, 1), (1000, 0), (1001 + 70_000_000, 0)] {
        let out = s.inject(seq, 0, RST, &[], &[]);
        assert_eq!(out.len(), answers, "{seq}");
        assert!(out.iter().all(|v| v.flags == ACK && v.ack == 1001));
        assert_eq!(s.state(), Some(State::Established));
    }
    s.inject(1001, 0, RST, &[], &[]);
    assert_eq!(s.a.closed(s.conn), Some(CloseReason::Reset));
}

/// §4.2: a SYN is challenged whatever its sequence number.
#[test]
fn syn_is_challenged() {
    let mut s = Script::new(65_535, |_| {});
    for seq in [1000, 1001, 5000, 900_000_000] {
        let out = s.inject(seq, 0, SYN, &[], &[]);
        assert_eq!(out.len(), 1, "{seq}");
        assert_eq!((out[0].flags, out[0].seq, out[0].ack), (ACK, s.ack, 1001));
    }
    assert_eq!(s.state(), Some(State::Established));
}

/// §5.2: data with an ACK of octets never sent, or of long ago, is not taken.
#[test]
fn acks_out_of_range_are_challenged() {
    let mut s = Script::new(1000, |_| {});
    let ack = s.ack;
    for wrong in [ack.wrapping_add(1), ack.wrapping_sub(1001), ack.wrapping_add(1 << 31)] {
        let out = s.inject(s.seq, wrong, ACK, b"evil", &[]);
        assert_eq!(out.len(), 1);
        assert!(s.a.data(s.conn).is_empty());
    }
    s.inject(s.seq, ack.wrapping_sub(1000), ACK, b"good", &[]);
    assert_eq!(s.a.data(s.conn), b"good");
}

/// §7: challenges are limited in number.
#[test]
fn challenges_are_limited() {
    let mut s = Script::new(65_535, |_| {});
    let n: usize = (0..1000).map(|_| s.inject(1001, 0, SYN, &[], &[]).len()).sum();
    assert_eq!(n, 10);
    s.wait(Duration::from_secs(2));
    assert_eq!(s.inject(1001, 0, SYN, &[], &[]).len(), 1);
}

// ---- windows ----

/// RFC 9293 §3.8.6.1: a closed window is probed at growing intervals, and the connection lives while probes are
/// answered. The record goes out whole when the window opens.
#[test]
fn zero_window_probes() {
    let mut s = Script::new(0, |c| c.tcp.data_retries = 3);
    assert!(s.send(&pattern(1000)).is_empty());
    let mut times = Vec::new();
    while times.len() < 7 {
        let next = s.a.stack.next_deadline().unwrap();
        for (t, v) in s.wait(next - s.now) {
            assert!(v.payload.is_empty() && v.seq == s.ack.wrapping_sub(1), "{v:?}");
            times.push(t);
            assert!(s.exchange(ACK, &[], &[]).is_empty());
        }
    }
    assert!(times.windows(3).all(|t| t[2] - t[1] >= t[1] - t[0]), "{times:?}");
    s.window = 1000;
    let out = s.exchange(ACK, &[], &[]);
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].payload, pattern(1000));
    assert_eq!(s.a.closed(s.conn), None);
}

/// Unanswered probes end the connection.
#[test]
fn unanswered_probes_give_up() {
    let mut s = Script::new(0, |c| c.tcp.data_retries = 3);
    s.send(b"x");
    s.wait(Duration::from_secs(120));
    assert_eq!(s.a.closed(s.conn), Some(CloseReason::TimedOut));
}

/// RFC 9293 §3.8.6.2.1: a record that does not fit the window waits. Then the part that fits goes, and the next
/// record is whole again.
#[test]
fn a_small_window_holds_a_record_for_the_override_time() {
    let mut s = Script::new(1500, |_| {});
    assert_eq!(s.send(&pattern(1000)).len(), 1);
    assert!(s.send(&pattern(1000)).is_empty(), "500 octets of window are left");
    assert!(s.send(&pattern(300)).is_empty(), "nothing overtakes");
    let held = s.now;
    let out = s.wait(Duration::from_millis(150));
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].1.payload, pattern(1000)[..500]);
    assert!(out[0].0 - held >= Duration::from_millis(99));
    s.ack = s.ack.wrapping_add(1500);
    let out = s.exchange(ACK, &[], &[]);
    let payloads: Vec<_> = out.iter().map(|v| v.payload.len()).collect();
    assert_eq!(payloads, [500, 300], "the rest of the record alone, then whole ones");
}

/// If a record never fits the window, it is still sent, and faster than one piece per override time.
#[test]
fn a_tiny_window_still_moves() {
    let mut s = Script::new(500, |_| {});
    let mut out = s.send(&pattern(1400));
    let (mut got, from) = (Vec::new(), s.now);
    while got.len() < 1400 {
        for v in std::mem::take(&mut out) {
            got.extend_from_slice(&v.payload);
            s.ack = v.seq.wrapping_add(v.payload.len() as u32);
        }
        out = s.exchange(ACK, &[], &[]);
        if out.is_empty() {
            out = s.wait(Duration::from_millis(150)).into_iter().map(|(_, v)| v).collect();
        }
    }
    assert_eq!(got, pattern(1400));
    assert!(s.now - from < Duration::from_millis(200));
}

/// The right edge of the window that we advertise never moves left, whatever arrives (RFC 9293 §3.8.6).
#[test]
fn our_right_edge_never_moves_left() {
    let mut s = Script::new(65_535, |_| {});
    let mut rng = fastrand::Rng::with_seed(1);
    let mut edge = Seq(1001);
    for _ in 0..2000 {
        let seq = s.seq.wrapping_add(rng.u32(0..50_000));
        let n = rng.usize(1..1400);
        let mut out = s.inject(seq, s.ack, ACK, &pattern(n), &[]);
        if rng.bool() {
            let n = rng.u32(1..1400);
            out.extend(s.inject(s.seq, s.ack, ACK, &pattern(n as usize), &[]));
        }
        for v in out {
            let right = Seq(v.ack) + u32::from(v.window);
            assert!(right.ge(edge));
            edge = right;
            s.seq = v.ack;
        }
    }
}

// ---- receiving ----

/// Octets arrive once and in order, however segments overlap.
#[test]
fn overlaps_are_delivered_once() {
    for seed in 0..200 {
        let mut s = Script::new(65_535, |c| c.tcp.sack = seed % 2 == 0);
        let mut rng = fastrand::Rng::with_seed(seed);
        let data = pattern(20_000);
        while s.a.data(s.conn).len() < data.len() {
            let have = s.a.data(s.conn).len();
            let from = (have + rng.usize(0..6000)).saturating_sub(3000).min(data.len() - 1);
            let to = (from + rng.usize(1..3000)).min(data.len());
            s.inject(1001 + from as u32, s.ack, ACK, &data[from..to], &[]);
            assert!(data.starts_with(s.a.data(s.conn)), "seed {seed}");
        }
    }
}

/// Each out-of-order segment of a burst gets its own ACK. The segment that fills the gap is acknowledged at
/// once as well (RFC 5681 §4.2). In-order segments share one ACK.
#[test]
fn out_of_order_is_acknowledged_at_once() {
    let mut s = Script::new(65_535, |_| {});
    let burst = |s: &mut Script, segments: &[u32]| {
        for &n in segments {
            let f = s.frame(1001 + n * 100, s.ack, ACK, &pattern(100), &[]);
            s.a.receive(s.now, f);
        }
        s.answers()
    };
    let out = burst(&mut s, &[1, 2, 3]);
    assert_eq!(out.iter().map(|v| v.ack).collect::<Vec<_>>(), [1001; 3]);
    let out = burst(&mut s, &[0]);
    assert_eq!(out.iter().map(|v| v.ack).collect::<Vec<_>>(), [1401]);
    let out = burst(&mut s, &[4, 5, 6, 7]);
    assert_eq!(out.iter().map(|v| v.ack).collect::<Vec<_>>(), [1801]);
}

/// A FIN that comes too early counts when its turn comes.
#[test]
fn fin_out_of_order() {
    let mut s = Script::new(65_535, |_| {});
    s.inject(1101, s.ack, ACK | FIN, &pattern(100), &[]);
    assert!(!s.a.finished(s.conn));
    let out = s.inject(1001, s.ack, ACK, &pattern(100), &[]);
    assert!(s.a.finished(s.conn));
    assert_eq!(out.last().unwrap().ack, 1202);
    assert_eq!(s.a.data(s.conn).len(), 200);
    assert_eq!(s.state(), Some(State::CloseWait));
    // Octets after the FIN are not part of the stream.
    s.inject(1202, s.ack, ACK, b"ghost", &[]);
    assert_eq!(s.a.data(s.conn).len(), 200);
}

/// Under pressure, no more out-of-order frames are held. When nothing else helps, held frames are dropped. In-order
/// data still flows.
#[test]
fn pressure_gives_frames_back() {
    let mut s = Script::new(65_535, |_| {});
    for seq in [1101, 1301, 1501, 1701, 1901] {
        s.inject(seq, s.ack, ACK, &pattern(100), &[]);
    }
    s.a.stack.set_pressure(true);
    assert_eq!(s.a.stack.counters().out_of_order_dropped, 0);
    for dropped in [3, 4, 5, 5] {
        s.a.stack.give_back_held();
        assert_eq!(s.a.stack.counters().out_of_order_dropped, dropped);
    }
    s.a.stack.set_pressure(false);
    s.inject(1101, s.ack, ACK, &pattern(100), &[]);
    s.a.stack.set_pressure(true);
    s.inject(2101, s.ack, ACK, &pattern(100), &[]);
    assert_eq!(s.a.stack.counters().out_of_order_dropped, 6);
    s.a.stack.give_back_held();
    assert_eq!(s.a.stack.counters().out_of_order_dropped, 7);
    s.inject(1101, s.ack, ACK, &pattern(100), &[]);
    let out = s.inject(1001, s.ack, ACK, &pattern(100), &[]);
    assert_eq!(out.last().unwrap().ack, 1101);
    s.a.stack.set_pressure(false);
    s.inject(1201, s.ack, ACK, &pattern(100), &[]);
    let out = s.inject(1101, s.ack, ACK, &pattern(100), &[]);
    assert_eq!(out.last().unwrap().ack, 1301);
}

/// One connection holds at most half of the out-of-order frames that all connections together may hold.
#[test]
fn held_frames_are_bounded() {
    let mut s = Script::new(65_535, |c| c.tcp.max_held_frames = 10);
    let data = pattern(400);
    for i in 0..100 {
        let at = 2 + 2 * i as usize;
        s.inject(1003 + 2 * i, s.ack, ACK, &data[at..at + 1], &[]);
    }
    assert_eq!(s.a.stack.counters().out_of_order_dropped, 95);
    s.inject(1001, s.ack, ACK, &data, &[]);
    assert_eq!(s.a.data(s.conn).len(), 400);
}

// ---- timers ----

#[test]
fn retransmissions_back_off_and_end() {
    let mut s = Script::new(65_535, |c| c.tcp.data_retries = 4);
    s.send(b"hello");
    let from = s.now;
    let out = s.wait(Duration::from_secs(60));
    let data: Vec<_> = out.iter().filter(|(_, v)| v.payload == b"hello").map(|&(t, _)| t - from).collect();
    assert_eq!(data.len(), 4, "{out:?}");
    assert!(data.windows(2).all(|w| w[1] >= w[0] * 19 / 10), "doubling: {data:?}");
    assert_eq!(s.a.closed(s.conn), Some(CloseReason::TimedOut));
    assert_eq!(out.last().unwrap().1.flags & RST, RST);
}

#[test]
fn user_timeout() {
    let mut s = Script::new(65_535, |c| c.tcp.user_timeout = Some(Duration::from_secs(3)));
    s.send(b"hello");
    s.wait(Duration::from_millis(2_900));
    assert_eq!(s.a.closed(s.conn), None);
    s.wait(Duration::from_millis(200));
    assert_eq!(s.a.closed(s.conn), Some(CloseReason::TimedOut));
}

#[test]
fn keepalive() {
    let keepalive = Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(1), count: 3 };
    let mut s = Script::new(65_535, |c| c.tcp.keepalive = Some(keepalive));
    let out = s.wait(Duration::from_millis(10_500));
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].1.seq, s.ack.wrapping_sub(1));
    s.exchange(ACK, &[], &[]);
    // An answered probe restarts the count. Without an answer there are three probes, and then the end.
    let out = s.wait(Duration::from_secs(20));
    assert_eq!(out.iter().filter(|(_, v)| v.flags == ACK).count(), 3);
    assert_eq!(s.a.closed(s.conn), Some(CloseReason::TimedOut));
}

/// Time in which the stack is not driven, as when the process is stopped, does not count against the peer.
#[test]
fn a_pause_of_ours_is_not_the_peers() {
    let keepalive = Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(1), count: 3 };
    let mut s = Script::new(65_535, |c| {
        c.tcp.keepalive = Some(keepalive);
        c.tcp.user_timeout = Some(Duration::from_secs(3));
    });
    s.now += Duration::from_secs(20);
    assert_eq!(
        s.wait(Duration::from_millis(900)).len(),
        1,
        "one probe, and the peer has a second for its answer"
    );
    s.exchange(ACK, &[], &[]);
    s.send(b"hello");
    s.now += Duration::from_secs(10);
    let out = s.wait(Duration::from_millis(2_900));
    assert!(out.iter().any(|(_, v)| v.payload == b"hello"), "{out:?}");
    assert_eq!(s.a.closed(s.conn), None);
    s.wait(Duration::from_millis(200));
    assert_eq!(s.a.closed(s.conn), Some(CloseReason::TimedOut));
}

/// A pause between two keep-alive probes does not count either: probes are not sent in a row, and each has its
/// interval for an answer.
#[test]
fn a_pause_between_probes_is_not_the_peers() {
    let keepalive = Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(1), count: 3 };
    let mut s = Script::new(65_535, |c| c.tcp.keepalive = Some(keepalive));
    assert_eq!(s.wait(Duration::from_millis(10_500)).len(), 1);
    s.now += Duration::from_secs(20);
    assert_eq!(s.wait(Duration::from_millis(900)).len(), 1);
    assert_eq!(s.wait(Duration::from_millis(200)).len(), 1);
    s.wait(Duration::from_millis(800));
    assert_eq!(s.a.closed(s.conn), None);
    s.wait(Duration::from_millis(200));
    assert_eq!(s.a.closed(s.conn), Some(CloseReason::TimedOut));
}

/// However often the stack is not driven in time, it goes on probing: the number of probes has an end, but no overflow.
#[test]
fn pauses_without_end_are_not_the_peers() {
    let keepalive = Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(1), count: 3 };
    let mut s = Script::new(65_535, |c| c.tcp.keepalive = Some(keepalive));
    for _ in 0..300 {
        s.now += Duration::from_secs(20);
        s.wait(Duration::from_millis(100));
        assert_eq!(s.state(), Some(State::Established));
    }
    s.wait(Duration::from_secs(1));
    assert!(s.a.closed(s.conn).is_some(), "now the peer has had its time");
}

/// A peer that shuts its window and dies is detected as soon as an idle one, although window probes become rare. A
/// peer that answers is kept.
#[test]
fn keepalive_counts_while_the_window_is_shut() {
    let keepalive = Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(1), count: 3 };
    let mut s = Script::new(0, |c| c.tcp.keepalive = Some(keepalive));
    s.send(b"hello");
    // Only 50 s, because B does not answer when A asks for its address again.
    for _ in 0..50 {
        if !s.wait(Duration::from_secs(1)).is_empty() {
            s.exchange(ACK, &[], &[]);
        }
    }
    assert_eq!(s.a.closed(s.conn), None);
    s.exchange(ACK, &[], &[]);
    s.wait(Duration::from_secs(12));
    assert_eq!(s.a.closed(s.conn), None);
    s.wait(Duration::from_secs(2));
    assert_eq!(s.a.closed(s.conn), Some(CloseReason::TimedOut));
}

/// A connection may have time limits of its own, which take effect at once.
#[test]
fn connections_have_their_own_patience() {
    let keepalive = Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(1), count: 3 };
    let short = Keepalive { idle: Duration::from_secs(1), ..keepalive };
    for (patience, after) in [
        (Some(Patience { keepalive: Some(short), user_timeout: None }), Some(4)),
        (Some(Patience { keepalive: None, user_timeout: None }), None),
        (None, Some(13)),
    ] {
        let mut s = Script::new(65_535, |c| c.tcp.keepalive = Some(keepalive));
        s.a.stack.set_patience(s.conn, Some(Patience { keepalive: None, user_timeout: None }));
        s.a.stack.set_patience(s.conn, patience);
        let closed = (1..=60).find(|_| {
            s.wait(Duration::from_secs(1));
            s.a.closed(s.conn).is_some()
        });
        // The timer wheel may be late by a tick.
        assert!(closed == after || closed == after.map(|a| a + 1), "{patience:?}: {closed:?}");
    }
}

/// A keep-alive of the peer is answered (RFC 9293 §3.8.4).
#[test]
fn keepalives_are_answered() {
    let mut s = Script::new(65_535, |_| {});
    for probe in [&[][..], &[0][..]] {
        let out = s.inject(1000, s.ack, ACK, probe, &[]);
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].ack, 1001);
    }
    assert!(s.a.data(s.conn).is_empty());
}

// ---- loss ----

/// RFC 3042: each of the first two duplicate ACKs lets one new segment go; the third repairs (RFC 5681 §3.2).
#[test]
fn limited_transmit_then_fast_retransmit() {
    let mut s = Script::new(65_535, |_| {});
    let mut sent = Vec::new();
    for _ in 0..16 {
        sent.extend(s.send(&pattern(1460)));
    }
    assert_eq!(sent.len(), 10, "the initial window");
    let first = sent[0].seq;
    for n in 1..=3 {
        let out = s.exchange(ACK, &[], &[]);
        assert_eq!(out.len(), 1, "duplicate ACK {n}");
        assert_eq!(out[0].seq == first, n == 3);
    }
}

/// An ACK that acknowledges nothing new but has another window is a window update and no duplicate (RFC 5681 §2).
#[test]
fn window_updates_are_no_duplicates() {
    let mut s = Script::new(30_000, |_| {});
    s.send(&pattern(1460));
    for w in 1..6 {
        s.window = 30_000 + w;
        assert!(s.exchange(ACK, &[], &[]).is_empty());
    }
    assert_eq!(s.a.stack.counters().duplicate_acks, 0);
}

// ---- timestamps ----

#[test]
fn paws() {
    let mut s = Script::new(65_535, |_| {});
    // A connection with timestamps, from another port.
    s.port = 40_001;
    let ts = |v: u32| {
        let b = v.to_be_bytes();
        [1, 1, 8, 10, b[0], b[1], b[2], b[3], 0, 0, 0, 0]
    };
    s.seq = 1000;
    let out = s.inject(1000, 0, SYN, &[], &ts(5000));
    s.ack = out[0].seq.wrapping_add(1);
    s.inject(1001, s.ack, ACK, b"one", &ts(5001));
    s.conn = s.a.accepted().unwrap();
    assert_eq!(s.a.data(s.conn), b"one");
    // An old timestamp: an old duplicate, which is answered and dropped.
    let out = s.inject(1004, s.ack, ACK, b"old", &ts(4999));
    assert_eq!(out.len(), 1);
    // Without a timestamp: dropped (RFC 7323 §3.2).
    assert!(s.inject(1004, s.ack, ACK, b"none", &[]).is_empty());
    assert_eq!(s.a.data(s.conn), b"one");
    s.inject(1004, s.ack, ACK, b"two", &ts(5001));
    assert_eq!(s.a.data(s.conn), b"onetwo");
    // A RST needs no timestamp.
    s.inject(1007, 0, RST, &[], &[]);
    assert_eq!(s.a.closed(s.conn), Some(CloseReason::Reset));
}

// ---- events for users ----

/// A handler that takes a limited number of octets, counts them, and records the calls of `acked`.
#[derive(Default)]
struct User {
    takes: usize,
    taken: usize,
    acked: Vec<u64>,
}

impl Handler<Vec<u8>> for User {
    fn accepted(&mut self, _: BindId, _: ConnId, _: std::net::SocketAddr) -> u64 {
        0
    }
    fn connected(&mut self, _: ConnId, _: u64) {}
    fn data(
        &mut self,
        _: ConnId,
        _: u64,
        frame: Vec<u8>,
        range: std::ops::Range<usize>,
    ) -> Option<(Vec<u8>, std::ops::Range<usize>)> {
        let n = range.len().min(self.takes);
        (self.takes, self.taken) = (self.takes - n, self.taken + n);
        (n < range.len()).then_some((frame, range.start + n..range.end))
    }
    fn acked(&mut self, _: ConnId, _: u64, bytes: u64) {
        self.acked.push(bytes);
    }
    fn finished(&mut self, _: ConnId, _: u64) {}
    fn closed(&mut self, _: ConnId, _: u64, _: CloseReason) {}
}

impl Script {
    /// Passes a segment to A, with `user` as the handler.
    fn inject_to(&mut self, user: &mut User, data: &[u8]) {
        let frame = self.frame(self.seq, self.ack, ACK, data, &[]);
        self.a.stack.receive(self.now, frame, user, &mut self.a.out);
        self.answers();
    }
}

/// Octets that are dropped for lack of a buffer do not count as received (RFC 9293 §3.8.6).
#[test]
fn octets_without_a_buffer_are_not_received() {
    let mut s = Script::new(65_535, |_| {});
    let mut user = User { takes: 300, ..User::default() };
    s.a.stack.set_pressure(true);
    s.inject_to(&mut user, &pattern(1000));
    let received = |s: &Script| s.a.stack.info(s.conn).unwrap().received;
    assert_eq!((user.taken, received(&s), s.a.stack.counters().bytes_in), (300, 300, 300));
    s.a.stack.set_pressure(false);
    user.takes = 200;
    s.inject_to(&mut user, &pattern(1000));
    assert_eq!((user.taken, received(&s), s.a.stack.counters().bytes_in), (500, 1000, 1000));
}

/// After the user has left octets, all later octets wait until the user resumes, even if the user could take them
/// earlier (`Handler::data`).
#[test]
fn nothing_overtakes_what_the_user_has_left() {
    let mut s = Script::new(65_535, |_| {});
    let mut user = User { takes: 300, ..User::default() };
    s.inject_to(&mut user, &pattern(1000));
    user.takes = 1 << 20;
    for _ in 0..3 {
        s.seq += 1000;
        s.inject_to(&mut user, &pattern(1000));
        assert_eq!(user.taken, 300);
    }
    s.a.stack.resume(s.now, s.conn, &mut user, &mut s.a.out);
    assert_eq!(user.taken, 4000);
    // The short path is open again.
    s.seq += 1000;
    s.inject_to(&mut user, &pattern(1000));
    assert_eq!(user.taken, 5000);
}

/// The user is told of each octet that is acknowledged. While the user may send, it is also told of a window that has
/// grown. It is told of nothing else.
#[test]
fn users_hear_of_room() {
    let mut s = Script::new(1000, |_| {});
    let mut user = User::default();
    s.send(&pattern(1500)[..1000]);
    s.inject_to(&mut user, b"no news");
    s.seq += 7;
    assert_eq!(user.acked, []);
    s.window = 2000;
    s.inject_to(&mut user, &[]);
    assert_eq!(user.acked, [0]);
    s.ack = s.ack.wrapping_add(1000);
    s.window = 1000; // the right edge stays
    s.inject_to(&mut user, &[]);
    assert_eq!(user.acked, [0, 1000]);
    s.window = 500;
    s.inject_to(&mut user, b"less");
    s.seq += 4;
    assert_eq!(user.acked, [0, 1000]);
    s.a.stack.close(s.now, s.conn, &mut s.a.out);
    s.answers();
    s.window = 5000;
    s.inject_to(&mut user, &[]);
    assert_eq!(user.acked, [0, 1000], "it has said that it sends no more");
}

/// RFC 9293 §3.8.4: after some unanswered probes, the connection gets an interval without end.
#[test]
fn keepalive_interval_without_end() {
    let second = Duration::from_secs(1);
    let limits = |interval| Some(Keepalive { idle: second, interval, count: 9 });
    let mut s = Script::new(65_535, |c| c.tcp.keepalive = limits(second));
    assert_eq!(s.wait(Duration::from_secs(4)).len(), 3);
    let patience = Patience { keepalive: limits(Duration::MAX), user_timeout: None };
    s.a.stack.set_patience(s.conn, Some(patience));
    assert_eq!(s.wait(Duration::from_secs(1000)).len(), 0);
    assert_eq!(s.state(), Some(State::Established));
}
