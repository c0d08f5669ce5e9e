//! Connections that have carried more octets than the range in which sequence numbers can be compared.

use crate::harness::{Record, ip, mac};
use crate::peer::{Seg, arp};
use smoltcp::wire::ArpOperation;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;
use urnic_tcp::{
    BindId, Buffers, CloseReason, ConnId, Emit, Frame, Handler, LocalPorts, Stack, StackConfig, Time,
    Transmit,
};

const PEER: u8 = 9;
const ROUND_TRIP: Duration = Duration::from_millis(10);
/// Octets that may be queued or in flight.
const SEND_BUFFER: u32 = 128 << 20;
const ECE: u8 = 0x40;
const ECN_SYN: u8 = 0xc0;

struct Kinds;

impl Buffers for Kinds {
    type Frame = Trusted;
    type Payload = Record;
}

/// A frame whose checksums the link has verified.
struct Trusted(Vec<u8>);

impl Frame for Trusted {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn checksum_trusted(&self) -> bool {
        true
    }
}

#[derive(Default)]
struct App {
    conn: Option<ConnId>,
}

impl Handler<Trusted> for App {
    fn accepted(&mut self, _: BindId, conn: ConnId, _: SocketAddr) -> u64 {
        self.conn = Some(conn);
        0
    }

    fn connected(&mut self, _: ConnId, _: u64) {}

    fn data(&mut self, _: ConnId, _: u64, _: Trusted, _: Range<usize>) -> Option<(Trusted, Range<usize>)> {
        None
    }

    fn acked(&mut self, _: ConnId, _: u64, _: u64) {}

    fn finished(&mut self, _: ConnId, _: u64) {}

    fn closed(&mut self, _: ConnId, _: u64, reason: CloseReason) {
        panic!("closed: {reason:?}");
    }
}

/// The sent data: sequence number of the SYN, and the number of octets after it. Also the headers of the last segment
/// without data.
#[derive(Default)]
struct Out {
    first: u32,
    octets: u64,
    bare: Vec<u8>,
}

impl Transmit<Record> for Out {
    fn room(&self) -> usize {
        usize::MAX
    }

    fn emit(&mut self, e: Emit<'_, Record>) {
        if let Some(seq) = e.headers.get(38..42).filter(|_| self.octets == 0) {
            self.first = u32::from_be_bytes([seq[0], seq[1], seq[2], seq[3]]);
        }
        if e.payload.is_empty() {
            self.bare = e.headers.to_vec();
        }
        if e.retransmit {
            return;
        }
        self.octets += e.payload.iter().map(|p| p.range.len() as u64).sum::<u64>();
    }
}

struct Far {
    stack: Stack<Kinds>,
    app: App,
    out: Out,
    now: Time,
    iss: u32,
    /// Octets queued so far.
    queued: u64,
    /// Octets acknowledged.
    acked: u64,
    record: Record,
}

impl Far {
    /// Returns a new connection. `flags` are the TCP flags that the peer's SYN has besides SYN.
    fn open(sack: bool, flags: u8) -> Self {
        let mut config = StackConfig::new(mac(1), ip(1), 24, 7);
        config.checksum_offload_tx = true;
        config.tcp.send_buffer = SEND_BUFFER;
        config.tcp.timestamps = false;
        let now = Time::from_secs(1);
        let mut stack = Stack::new(config, Box::new(LocalPorts::new(7)), now).expect("a valid configuration");
        stack.set_gso_max(60_000);
        stack.listen_on(7, 1).expect("listen");
        let record = Record::from(vec![7; 58_400]);
        let (app, out) = (App::default(), Out::default());
        let mut far = Far { stack, app, out, now, iss: 0, queued: 0, acked: 0, record };
        far.receive(arp(ArpOperation::Request, PEER, 1));
        let syn = Seg { syn: true, mss: Some(1460), scale: Some(14), sack_permitted: sack, ..Seg::default() };
        far.send(&syn, flags);
        far.iss = far.out.first;
        far.send(&far.ack(&[]), 0);
        far
    }

    /// Returns a connection that has sent a little more than half of all sequence numbers, without losses or marks.
    fn new(sack: bool, flags: u8) -> Self {
        let mut far = Self::open(sack, flags);
        far.go((1 << 31) + (1 << 28));
        far.round();
        let c = far.stack.counters();
        assert_eq!((c.retransmitted_segments, c.congestion_reductions), (0, 0));
        far
    }

    /// Sends until the peer has acknowledged this many octets.
    fn go(&mut self, octets: u64) {
        while self.acked < octets {
            self.round();
            self.acked = self.out.octets;
            self.send(&self.ack(&[]), 0);
            self.check_unacked();
        }
    }

    fn receive(&mut self, frame: Vec<u8>) {
        self.stack.receive(self.now, Trusted(frame), &mut self.app, &mut self.out);
        self.stack.flush(self.now, &mut self.out);
    }

    /// Sends a segment from the peer, with additional `flags`.
    fn send(&mut self, seg: &Seg, flags: u8) {
        let mut frame = seg.frame(PEER, 1);
        frame[47] |= flags;
        self.receive(frame);
    }

    fn ack(&self, sacks: &[(u32, u32)]) -> Seg {
        let number = |octets: u64| self.iss.wrapping_add(1).wrapping_add(octets as u32);
        let sacks =
            sacks.iter().map(|&(a, b)| (number(self.acked + a as u64), number(self.acked + b as u64)));
        Seg {
            seq: 1,
            ack: Some(number(self.acked)),
            window: 0xffff,
            sacks: sacks.collect(),
            ..Seg::default()
        }
    }

    /// Queues a record, if it fits.
    fn queue(&mut self) -> bool {
        let conn = self.app.conn.expect("a connection");
        let fits = self.stack.send(conn, self.record.clone()).is_ok();
        self.queued += if fits { self.record.len() as u64 } else { 0 };
        fits
    }

    /// Sends what the windows allow, and waits for a round trip.
    fn round(&mut self) {
        let conn = self.app.conn.expect("a connection");
        while self.stack.room(conn) > 0 {
            assert!(self.queue(), "there is room");
            self.stack.output(self.now, conn, &mut self.out);
        }
        self.now += ROUND_TRIP;
    }

    fn check_unacked(&self) {
        let conn = self.app.conn.expect("a connection");
        assert_eq!(self.stack.unacked(conn), self.queued - self.acked, "after {} octets", self.acked);
    }
}

/// RFC 6582 §3.2 step 2: `recover`, now far behind, must not appear to lie ahead.
#[test]
fn three_duplicates_tell_of_a_loss() {
    let mut far = Far::new(false, 0);
    for _ in 0..3 {
        far.send(&far.ack(&[]), 0);
    }
    assert_eq!(far.stack.counters().fast_recoveries, 1);
}

/// RFC 8985 §6.2 step 3: the first arrival after more than 2^31 octets does not count as reordering.
#[test]
fn a_loss_is_no_reordering() {
    let mut far = Far::new(true, 0);
    far.send(&far.ack(&[(1460, 6 * 1460)]), 0);
    assert_eq!(far.stack.counters().sack_recoveries, 1);
    let conn = far.app.conn.expect("a connection");
    assert!(!far.stack.info(conn).expect("it lives").reordering);
}

/// RFC 3168 §6.1.2: the first mark after more than 2^31 octets reduces the window.
#[test]
fn a_mark_is_heard() {
    let mut far = Far::new(true, ECN_SYN);
    far.acked += 1460;
    far.send(&far.ack(&[]), ECE);
    assert_eq!(far.stack.counters().congestion_reductions, 1);
}

/// What is queued or in flight is counted, so the send buffer is bounded, and the owner of lent payload knows when the
/// peer has it.
#[test]
fn unacknowledged_octets_are_counted() {
    let mut far = Far::new(true, 0);
    for octets in [1 << 31, (1 << 32) + (1 << 28), (1 << 32) + (1 << 31) + (1 << 28)] {
        far.go(octets);
        while far.queue() {
            assert!(
                far.queued - far.acked <= SEND_BUFFER.into(),
                "{} octets are queued",
                far.queued - far.acked
            );
        }
        far.check_unacked();
        assert!(far.queued - far.acked > u64::from(SEND_BUFFER) - far.record.len() as u64);
    }
}

/// RFC 9293 §3.10.7.4, fifth: after far more than 2^31 octets, all of them received, a window update counts.
#[test]
fn a_receiver_hears_of_windows() {
    let mut far = Far::open(true, 0);
    let conn = far.app.conn.expect("a connection");
    let mut window = 1000;
    let mut data = Seg { data: vec![7; 60_000], window, ..far.ack(&[]) };
    let mut received = 0u64;
    while received < (1 << 32) + (1 << 31) {
        far.send(&data, 0);
        received += data.data.len() as u64;
        data.seq = data.seq.wrapping_add(data.data.len() as u32);
        // More than 2^31 octets pass between two updates.
        if (received / 60_000).is_multiple_of(40_000) {
            window += 1;
            far.send(&Seg { data: Vec::new(), window, ..data.clone() }, 0);
            assert_eq!(far.stack.info(conn).expect("it lives").snd_wnd, u32::from(window) << 14);
            data.window = window;
        }
    }
    assert_eq!(far.stack.info(conn).expect("it lives").received, received);
    assert_eq!(window, 1002);
}

/// RFC 6298 §3: after more than 2^31 octets without a round trip that can be measured, the next one is measured. None
/// can be measured while the first segment of each burst is sent again, without timestamps, because it was late.
#[test]
fn a_round_trip_is_measured_after_many_that_could_not_be() {
    let mut far = Far::open(true, 0);
    let conn = far.app.conn.expect("a connection");
    while far.acked < (1 << 31) + (1 << 28) {
        far.round();
        far.receive(arp(ArpOperation::Request, PEER, 1)); // the address would not stay known for so long
        let (before, flight) = (far.acked, far.out.octets - far.acked);
        far.send(&far.ack(&[(1460, flight as u32)]), 0);
        far.now += Duration::from_millis(1);
        far.stack.advance(far.now, &mut far.app, &mut far.out);
        far.acked = far.out.octets;
        let first = far.iss.wrapping_add(1).wrapping_add(before as u32);
        far.send(&Seg { sacks: vec![(first, first.wrapping_add(1460))], ..far.ack(&[]) }, 0);
    }
    let srtt = |far: &Far| far.stack.info(conn).expect("it lives").srtt;
    let before = srtt(&far);
    assert!(before < Some(ROUND_TRIP / 2), "the handshake took no time: {before:?}");
    for _ in 0..20 {
        far.round();
        far.acked = far.out.octets;
        far.send(&far.ack(&[]), 0);
    }
    assert!(srtt(&far) > Some(ROUND_TRIP / 2), "{:?}", srtt(&far));
}

/// RFC 2883 §4 (1): a duplicate of long ago is not reported, because its numbers seem to name octets that have yet to
/// come. All our ACKs since then went with data, which carries no SACK option.
#[test]
fn an_old_duplicate_is_not_reported() {
    let mut far = Far::open(true, 0);
    let conn = far.app.conn.expect("a connection");
    let mut data = Seg { data: vec![7; 60_000], ..far.ack(&[]) };
    far.send(&data, 0);
    // Half of the next segment was received before.
    data.seq = data.seq.wrapping_add(30_000);
    for _ in 0..(1u64 << 32) / 60_000 {
        far.stack.receive(far.now, Trusted(data.frame(PEER, 1)), &mut far.app, &mut far.out);
        data.seq = data.seq.wrapping_add(60_000);
        assert!(far.queue());
        far.stack.output(far.now, conn, &mut far.out);
        far.acked = far.out.octets;
        data.ack = far.ack(&[]).ack;
    }
    let (reports, left) = (far.stack.counters().dsacks_out, u32::MAX - data.seq);
    assert!(left < 60_000, "the old numbers lie within the window again");
    far.send(&data, 0);
    assert_eq!(far.out.bare[42..46], data.seq.wrapping_add(60_000).to_be_bytes(), "an ACK without data");
    assert_eq!(far.out.bare[46] >> 4, 5, "and without options");
    assert_eq!(far.stack.counters().dsacks_out, reports);
}

/// RFC 4821 §7.7: once larger segments have arrived, the trial of their size is over. After more than 2^31 octets, it does
/// not seem to be under way again, so that a timeout would end it.
#[test]
fn a_trial_of_long_ago_is_over() {
    let mut far = Far::open(true, 0);
    let conn = far.app.conn.expect("a connection");
    let wait = |far: &mut Far, seconds| {
        far.now += Duration::from_secs(seconds);
        far.receive(arp(ArpOperation::Request, PEER, 1)); // so that the address stays known
        far.stack.advance(far.now, &mut far.app, &mut far.out);
    };
    far.round();
    (0..4).for_each(|_| wait(&mut far, 2)); // a loss probe and three timeouts
    assert_eq!((far.stack.mss(conn), far.stack.counters().path_mtu_black_holes), (1240, 1));
    far.acked = far.out.octets;
    far.send(&far.ack(&[]), 0);
    wait(&mut far, 700);
    far.go((1 << 31) + (1 << 28));
    assert_eq!(far.stack.mss(conn), 1460);
    far.round();
    let timeouts = far.stack.counters().rto_recoveries;
    (0..2).for_each(|_| wait(&mut far, 1)); // a loss probe and a timeout
    assert_eq!(far.stack.counters().rto_recoveries, timeouts + 1);
    assert_eq!((far.stack.mss(conn), far.stack.counters().path_mtu_black_holes), (1460, 1));
}
