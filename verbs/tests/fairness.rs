//! Queue pairs send in turns. Short messages on one queue pair do not wait for the end of a long message on another.

mod common;
#[path = "common/peer.rs"]
mod peer;

use common::raw::{self, Raw, until};
use common::*;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use urnic::simulation::{Options, Simulation, TcpConfig};
use urnic::*;
use urnic_tcp::ConnId;

const LONG: usize = 8 << 20;

/// Returns options for a network of 1 Gbit/s, on which 8 MiB take at least 70 ms. No connection has more than 64 KiB in
/// flight, which take 0.5 ms. So the network loses nothing, and only the turns of the queue pairs decide the order.
fn slow() -> Options {
    let tcp = TcpConfig { recv_window: 64 << 10, ..TcpConfig::default() };
    Options { network: "delay=10us,rate=1gbit,queue=1000".parse().unwrap(), tcp, ..Options::default() }
}

#[test]
fn short_writes_pass_a_long_one() {
    let (mut simulation, server, client) = connected(&slow());
    let (mut other_server, mut other_client) =
        (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    connect(&mut simulation, &mut other_server, &mut other_client);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let (long, short) =
        (server.pd.alloc_mr(LONG, access).unwrap(), other_server.pd.alloc_mr(8, access).unwrap());
    let source = client.pd.alloc_mr(LONG, Access::empty()).unwrap();
    source.write_at(0, &pattern(LONG, 5)).unwrap();
    source.store_u8(LONG as u64 - 1, 0xA5).unwrap();
    let word = other_client.pd.alloc_mr(8, Access::empty()).unwrap();

    let start = simulation.now();
    client.post(
        1,
        SendOp::Write { addr: long.addr(), rkey: long.rkey() },
        &[Sge::of(&source, 0, LONG as u32)],
    );
    let is_done = || long.load_u8(LONG as u64 - 1).unwrap() == 0xA5;
    let mut latencies = Vec::new();
    for i in 1..=u64::MAX {
        if is_done() {
            break;
        }
        let value = i.to_be_bytes();
        word.write_at(0, &value).unwrap();
        let before = simulation.now();
        let op = SendOp::Write { addr: short.addr(), rkey: short.rkey() };
        other_client.post(i, op, &[Sge::of(&word, 0, 8)]);
        let arrived = simulation.run(LIMIT, || content(&short) == value);
        assert!(arrived, "Write {i} does not arrive");
        latencies.push(simulation.now() - before);
        other_client.completions();
    }
    let took = simulation.now() - start;
    latencies.sort();
    let median = latencies[latencies.len() / 2];
    assert!(latencies.len() > 50, "only {} short Writes in {took:?}", latencies.len());
    assert!(median < Duration::from_millis(1), "median {median:?}");
    assert!(took < Duration::from_millis(400), "the long Write takes {took:?}");
}

/// Responses to the peer's Reads and our own requests take turns too.
#[test]
fn short_writes_pass_reads_of_the_peer() {
    let (mut simulation, server, client) = connected(&slow());
    let long = server.pd.alloc_mr(64 << 10, Access::REMOTE_READ).unwrap();
    let sink = client.pd.alloc_mr(64 << 10, Access::LOCAL_WRITE).unwrap();
    let target = client.pd.alloc_mr(8, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let word = server.pd.alloc_mr(8, Access::empty()).unwrap();
    word.write_at(0, &[7; 8]).unwrap();
    for i in 0..60 {
        let op = SendOp::Read { addr: long.addr(), rkey: long.rkey() };
        client.post(i, op, &[Sge::of(&sink, 0, 64 << 10)]);
    }
    // When the first Read has completed, the responses of the other Reads wait.
    assert_eq!(client.next(&mut simulation).wr_id, 0);
    let before = simulation.now();
    server.post(1, SendOp::Write { addr: target.addr(), rkey: target.rkey() }, &[Sge::of(&word, 0, 8)]);
    assert!(simulation.run(LIMIT, || content(&target) == [7; 8]));
    let took = simulation.now() - before;
    // All 60 responses would take 31 ms.
    assert!(took < Duration::from_millis(8), "{took:?}");
}

/// Queue pairs of the same kind get about the same rate.
/// SEC-19: no queue pair has more than a fair share of the engine.
#[test]
fn equal_streams_progress_equally() {
    const STREAMS: usize = 8;
    const EACH: usize = 1 << 20;
    let (mut simulation, first_server, first_client) = connected(&slow());
    let mut pairs = vec![(first_server, first_client)];
    while pairs.len() < STREAMS {
        let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
        connect(&mut simulation, &mut server, &mut client);
        pairs.push((server, client));
    }
    let memory: Vec<(Mr, Mr)> = pairs
        .iter()
        .map(|(server, client)| {
            let target = server.pd.alloc_mr(EACH, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
            let source = client.pd.alloc_mr(EACH, Access::empty()).unwrap();
            source.write_at(0, &[0xFF; EACH]).unwrap();
            client.post(
                1,
                SendOp::Write { addr: target.addr(), rkey: target.rkey() },
                &[Sge::of(&source, 0, EACH as u32)],
            );
            (target, source)
        })
        .collect();
    let done = |target: &Mr| target.load_u8(EACH as u64 - 1).unwrap() == 0xFF;
    assert!(simulation.run(LIMIT, || memory.iter().any(|(target, _)| done(target))));
    let placed: Vec<usize> =
        memory.iter().map(|(target, _)| content(target).iter().filter(|b| **b == 0xFF).count()).collect();
    let least = placed.iter().min().unwrap();
    assert!(*least > EACH / 8, "when the first is done: {placed:?}");
    assert!(simulation.run(LIMIT, || memory.iter().all(|(target, _)| done(target))));
}

/// Maximum number of segments of a turn, according to docs/security.md.
const TURN_SEGMENTS: usize = 64;
/// Maximum number of FPDUs of a turn, according to docs/security.md.
const TURN_FPDUS: usize = 128;
/// Octets of a full segment.
const MSS: usize = 1448;

fn long_queue(pd: &Pd, cq: &Cq) -> Qp {
    let init = QpInit {
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: 1024,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
        signal_all: false,
    };
    pd.create_qp(&init).unwrap()
}

/// Queue pairs of one RNIC. Their peers are on one node, which acknowledges all data and notes the connection on which
/// each piece arrived. Windows and the link set no limits, so only the turns determine when data leaves.
struct Turns {
    simulation: Simulation,
    raw: Rc<RefCell<Raw>>,
    ends: Vec<(End, ConnId)>,
    source: Mr,
}

impl Turns {
    fn new(count: usize) -> Turns {
        Turns::with(count, options())
    }

    fn with(count: usize, options: Options) -> Turns {
        let (raw, host) = raw::node(1);
        let options = Options { devices: 1, ..options };
        let mut simulation = Simulation::with_hosts(&options, vec![host]).unwrap();
        let mut first = End::new(&simulation.device(0));
        let source = first.pd.alloc_mr(1 << 20, Access::empty()).unwrap();
        first.qp = long_queue(&first.pd, &first.cq);
        let mut ends = vec![first];
        while ends.len() < count {
            let mut next = ends[0].sibling(&simulation.device(0));
            next.qp = long_queue(&next.pd, &next.cq);
            ends.push(next);
        }
        let connect = |mut end: End| {
            let conn = peer::establish(&mut simulation, &raw, &mut end);
            (end, conn)
        };
        let ends = ends.into_iter().map(connect).collect();
        let mut turns = Turns { simulation, raw, ends, source };
        // This opens the congestion windows.
        for i in 0..count {
            turns.post(i, 900 << 10);
            turns.sent_by(i, 900 << 10);
        }
        turns.raw.borrow_mut().seen.order.clear();
        turns
    }

    /// Posts a Write of `len` octets to queue pair number `i`.
    fn post(&self, i: usize, len: usize) {
        let op = SendOp::Write { addr: 0, rkey: 1 };
        let wr =
            SendWr { wr_id: 1, op, sges: &[Sge::of(&self.source, 0, len as u32)], flags: SendFlags::empty() };
        self.ends[i].0.qp.post_send(&wr).unwrap();
    }

    /// Runs until the peer of queue pair number `i` has received `len` octets since the start of the measurement.
    fn sent_by(&mut self, i: usize, len: usize) {
        let Turns { simulation, raw, ends, .. } = self;
        let conn = ends[i].1;
        until(simulation, "Writes arrive", || {
            let raw = raw.borrow();
            raw.seen.order.iter().filter(|(c, _)| *c == conn).map(|(_, n)| n).sum::<usize>() >= len
        });
    }

    /// Splits the received octets into runs, in order of arrival. Adjacent octets of the same queue pair are one run.
    /// Returns for each run the number of its queue pair, and the number of its octets.
    fn runs(&self) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (conn, len) in &self.raw.borrow().seen.order {
            let who = self.ends.iter().position(|(_, c)| c == conn).unwrap();
            match runs.last_mut() {
                Some(last) if last.0 == who => last.1 += len,
                _ => runs.push((who, *len)),
            }
        }
        runs
    }
}

/// SEC-19: while several queue pairs have data to send, each gets one turn of [`TURN_SEGMENTS`] in each round, always
/// in the same order. The first queue pair may have had two turns in a row while it was alone.
#[test]
fn turns_are_of_one_size_and_go_round() {
    const EACH: usize = 600 << 10;
    for count in [2, 3, 8] {
        let mut turns = Turns::new(count);
        (0..count).for_each(|i| turns.post(i, EACH));
        (0..count).for_each(|i| turns.sent_by(i, EACH));
        let runs = turns.runs();
        assert!(runs[0].1 <= 2 * TURN_SEGMENTS * MSS, "{count}: {:?}", runs[0]);
        // The rounds in which all queue pairs take part.
        let contested = runs.len() - count.min(runs.len());
        let last = (1..contested).take_while(|&i| runs[i].1 >= (TURN_SEGMENTS - 1) * MSS).last().unwrap();
        assert!(last > count * 5, "{count}: only {last} full turns: {runs:?}");
        for (i, &(who, octets)) in runs[..last].iter().enumerate().skip(1) {
            assert!(octets <= TURN_SEGMENTS * MSS, "{count}: turn {i} of {octets} octets");
            let before = runs[i.saturating_sub(count)..i].iter().filter(|run| run.0 == who).count();
            assert!(i < 2 * count || before == 1, "{count}: turn {i} is out of turn: {:?}", &runs[..=i]);
        }
    }
}

/// SEC-19: turns have equal numbers of FPDUs if messages are so small that the limit on FPDUs ends a turn.
#[test]
fn turns_of_small_messages_go_round() {
    const EACH: usize = 1000;
    const FPDU: usize = 28;
    let mut turns = Turns::new(3);
    for _ in 0..EACH {
        (0..3).for_each(|i| turns.post(i, 8));
    }
    (0..3).for_each(|i| turns.sent_by(i, EACH * FPDU));
    let runs = turns.runs();
    let full = runs.iter().filter(|run| run.1 == TURN_FPDUS * FPDU).count();
    assert!(full >= 3 * (EACH / TURN_FPDUS - 1), "{runs:?}");
    assert!(runs.iter().all(|run| run.1 <= TURN_FPDUS * FPDU), "{runs:?}");
}

/// SEC-19: a queue pair begins to send while another has the engine to itself. It waits for the turn under way, and
/// then for one turn of normal length, because the other queue pair is already queued again.
#[test]
fn a_newcomer_waits_for_its_turn_only() {
    let mut turns = Turns::new(2);
    turns.post(0, 900 << 10);
    turns.post(1, 8);
    turns.sent_by(0, 900 << 10);
    let runs = turns.runs();
    let [(0, before), (1, 28), (0, _)] = runs[..] else { panic!("{runs:?}") };
    assert!(before <= 2 * TURN_SEGMENTS * MSS, "{runs:?}");
}

/// The RNIC answers a peer's Read between two of its own messages, however many messages are posted (SEC-19).
#[test]
fn reads_of_the_peer_pass_our_requests() {
    const WRITES: u64 = 60;
    let (mut simulation, server, client) = connected(&slow());
    let sink = client.pd.alloc_mr(64 << 10, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let source = server.pd.alloc_mr(64 << 10, Access::REMOTE_READ).unwrap();
    works(&mut simulation, &server, &client);
    let op = SendOp::Write { addr: sink.addr(), rkey: sink.rkey() };
    for i in 0..WRITES {
        server.post(i, op, &[Sge::of(&source, 0, 64 << 10)]);
    }
    simulation.wait(Duration::from_micros(100));
    let before = simulation.now();
    client.post(99, SendOp::Read { addr: source.addr(), rkey: source.rkey() }, &[Sge::of(&sink, 0, 8)]);
    assert_eq!(client.next(&mut simulation).wr_id, 99);
    let took = simulation.now() - before;
    // All Writes would take 31 ms.
    assert!(took < Duration::from_millis(4), "{took:?}");
}

/// Answers go between two requests of one FPDU too: those to Atomics, which take another way than the requests, and
/// those to Reads.
#[test]
fn answers_pass_short_requests() {
    const WRITES: u64 = 60;
    let options = slow();
    let tcp = TcpConfig { recv_window: 8 << 10, ..options.tcp };
    let options = Options { tcp, ..options };
    for atomic in [true, false] {
        let (mut simulation, server, client) = connected(&options);
        let sink = client.pd.alloc_mr(1024, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let source = server.pd.alloc_mr(1024, access).unwrap();
        works(&mut simulation, &server, &client);
        let write = SendOp::Write { addr: sink.addr(), rkey: sink.rkey() };
        for i in 0..WRITES {
            server.post(i, write, &[Sge::of(&source, 0, 1024)]);
        }
        let (addr, rkey) = (source.addr(), source.rkey());
        let ask = if atomic { SendOp::FetchAdd { addr, rkey, add: 1 } } else { SendOp::Read { addr, rkey } };
        client.post(99, ask, &[Sge::of(&sink, 0, 8)]);
        assert_eq!(client.next(&mut simulation).wr_id, 99);
        let done = server.completions().len();
        // Some 7 Writes are in flight at a time.
        assert!((1..30).contains(&done), "{done} Writes were done before the answer to {ask:?}");
    }
}

/// Number of full segments that the turns of one pass send: a turn already reaches the limits of a pass.
const PASS_SEGMENTS: usize = TURN_SEGMENTS;

impl Turns {
    /// Returns the number of segments that the RNIC has sent. Like every verb, this call makes the RNIC run a pass.
    fn segments_before_a_pass(&self) -> usize {
        let counters = self.simulation.device(0).attributes().unwrap().counters;
        counters.iter().find(|(name, _)| *name == "tcp_segments_out").unwrap().1 as usize
    }
}

/// SEC-19: a short message passes queue pairs that always have more to send, and does not wait for a turn of each.
#[test]
fn a_short_message_passes_those_that_are_never_done() {
    const COUNT: usize = 12;
    let turns = &mut Turns::new(COUNT);
    let start = turns.segments_before_a_pass();
    (1..COUNT).for_each(|i| turns.post(i, 600 << 10));
    // Runs until each queue pair has had a turn that did not send all its data. The windows are not full by then.
    while turns.segments_before_a_pass() < start + (COUNT + 2) * TURN_SEGMENTS {}
    let before = turns.segments_before_a_pass() - start + PASS_SEGMENTS;
    turns.post(0, 8);
    turns.sent_by(0, 28);
    let order = &turns.raw.borrow().seen.order;
    let at = order.iter().position(|(conn, _)| *conn == turns.ends[0].1).unwrap();
    assert!(at <= before + TURN_SEGMENTS, "after {before} segments it is number {at}");
}

/// A pass ends before every queue pair has had its turn, so that the engine can receive frames and let verbs in.
#[test]
fn a_pass_ends_after_some_segments() {
    for (mtu, segments) in [(1500, PASS_SEGMENTS), (576, 64)] {
        let turns = Turns::with(12, Options { mtu, ..options() });
        (0..12).for_each(|i| turns.post(i, 600 << 10));
        let sent = [(); 3].map(|()| turns.segments_before_a_pass());
        assert_eq!([sent[1] - sent[0], sent[2] - sent[1]], [segments; 2], "MTU {mtu}");
    }
}
