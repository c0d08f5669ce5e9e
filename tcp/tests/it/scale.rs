//! A hundred thousand connections: the cost of a segment does not depend on their number.

use crate::harness::{Record, ip, mac};
use crate::peer::Seg;
use arrayvec::ArrayVec;
use std::net::SocketAddr;
use std::ops::Range;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;
use urnic_tcp::{
    BindId, Buffers, CloseReason, ConnId, Emit, Frame, Handler, LocalPorts, Stack, StackConfig, Time,
    Transmit,
};

const MANY: u32 = 100_000;
const FEW: u32 = 100;
/// Frames that a pass takes from the port.
const BURST: usize = 32;
/// Time between two segments of a connection, whatever the number of connections.
const ROUND: Duration = Duration::from_millis(10);
/// Octets of a request and of its answer.
const SIZE: usize = 64;

struct Kinds;

impl Buffers for Kinds {
    type Frame = Fixed;
    type Payload = Record;

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn prefetch(start: *const u8, octets: usize) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for line in (0..octets).step_by(64) {
            // SAFETY: a prefetch never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast()) };
        }
    }
}

/// A frame that need not be freed, and whose checksums the port has verified.
struct Fixed(&'static [u8]);

impl Frame for Fixed {
    fn bytes(&self) -> &[u8] {
        self.0
    }

    fn checksum_trusted(&self) -> bool {
        true
    }
}

/// Connections that have a request to answer, and counts of events.
#[derive(Default)]
struct App {
    accepted: Vec<ConnId>,
    requests: Vec<ConnId>,
    received: u64,
    acked: u64,
    closed: u64,
}

impl Handler<Fixed> for App {
    fn accepted(&mut self, _: BindId, conn: ConnId, _: SocketAddr) -> u64 {
        self.accepted.push(conn);
        0
    }

    fn connected(&mut self, _: ConnId, _: u64) {}

    fn data(&mut self, conn: ConnId, _: u64, _: Fixed, range: Range<usize>) -> Option<(Fixed, Range<usize>)> {
        self.received += range.len() as u64;
        self.requests.push(conn);
        None
    }

    fn acked(&mut self, _: ConnId, _: u64, bytes: u64) {
        self.acked += bytes;
    }

    fn finished(&mut self, _: ConnId, _: u64) {}

    fn closed(&mut self, _: ConnId, _: u64, _: CloseReason) {
        self.closed += 1;
    }
}

/// Counts sent frames, and keeps the sequence numbers of SYN-ACKs, which are enough for the peers to go on.
#[derive(Default)]
struct Out {
    frames: u64,
    /// Addresses, ports and sequence numbers of SYN-ACKs.
    opened: Vec<(u32, u16, u32)>,
}

impl Transmit<Record> for Out {
    fn room(&self) -> usize {
        usize::MAX
    }

    fn emit(&mut self, e: Emit<'_, Record>) {
        self.frames += 1;
        let h = e.headers;
        if h.get(47).is_some_and(|flags| flags & 2 != 0) && h[12] == 8 && h[13] == 0 {
            let be32 = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
            self.opened.push((be32(30), u16::from_be_bytes([h[36], h[37]]), be32(38)));
        }
    }
}

/// A server, and the peers' ends of its connections.
struct Server {
    stack: Stack<Kinds>,
    app: App,
    out: Out,
    now: Time,
    peers: Vec<Peer>,
    answer: Rc<[u8]>,
}

struct Peer {
    address: u32,
    port: u16,
    seq: u32,
    ack: u32,
}

impl Server {
    /// Opens `n` connections, from the ports of as many addresses as are needed.
    fn new(n: u32) -> Server {
        let mut config = StackConfig::new(mac(1), ip(1), 16, 7);
        config.tcp.max_connections = 1 << 17;
        config.tcp.max_syn_backlog = 1 << 17;
        let stack = Stack::new(config, Box::new(LocalPorts::new(7)), Time::from_secs(1))
            .expect("valid configuration");
        let (app, out) = (App::default(), Out::default());
        let mut s = Server {
            stack,
            app,
            out,
            now: Time::from_secs(1),
            peers: Vec::new(),
            answer: vec![7; SIZE].into(),
        };
        s.stack.listen_on(7, 1 << 17).expect("listen");
        s.peers = (0..n)
            .map(|i| Peer {
                address: 0x0a00_0100 + i / 50_000,
                port: 1 + (i % 50_000) as u16,
                seq: 0,
                ack: 0,
            })
            .collect();
        for address in 0..=n / 50_000 {
            let mut request = crate::peer::arp(smoltcp::wire::ArpOperation::Request, 9, 1);
            request[28..32].copy_from_slice(&(0x0a00_0100 + address).to_be_bytes());
            s.give(vec![request]);
        }
        let syn = Seg { syn: true, mss: Some(1460), seq: u32::MAX, ..Seg::default() };
        s.everybody(&syn, 0);
        for (i, (address, port, iss)) in std::mem::take(&mut s.out.opened).into_iter().enumerate() {
            assert_eq!((s.peers[i].address, s.peers[i].port), (address, port));
            s.peers[i].ack = iss.wrapping_add(1);
        }
        s.now += ROUND;
        s.everybody(&Seg { ack: Some(0), ..Seg::default() }, 0);
        s.now += ROUND;
        assert_eq!(s.app.accepted.len(), n as usize);
        s
    }

    fn frame(peer: &Peer, template: &[u8], seq: u32) -> Vec<u8> {
        let mut f = template.to_vec();
        f[26..30].copy_from_slice(&peer.address.to_be_bytes());
        f[34..36].copy_from_slice(&peer.port.to_be_bytes());
        f[38..42].copy_from_slice(&seq.to_be_bytes());
        f[42..46].copy_from_slice(&peer.ack.to_be_bytes());
        f
    }

    /// Sends the same segment from every peer.
    fn everybody(&mut self, seg: &Seg, len: u32) {
        let template = seg.frame(9, 1);
        let frames = self.peers.iter_mut().map(|p| {
            let seq = p.seq.wrapping_add(seg.seq);
            p.seq = p.seq.wrapping_add(len);
            Server::frame(p, &template, seq)
        });
        let frames: Vec<_> = frames.collect();
        self.give(frames);
    }

    fn give(&mut self, frames: Vec<Vec<u8>>) {
        let frames: Vec<Fixed> = frames.into_iter().map(|f| Fixed(f.leak())).collect();
        self.measured(frames, Duration::ZERO);
    }

    /// Returns requests for all connections, in scattered order. Each acknowledges the last answer. There are
    /// `segments` in all.
    fn requests(&mut self, segments: usize) -> Vec<Fixed> {
        let template = Seg { ack: Some(0), data: vec![7; SIZE], ..Seg::default() }.frame(9, 1);
        let n = self.peers.len();
        // A step that is coprime to the number of connections visits all of them.
        let step = (n * 382 / 1000..).find(|s| gcd(*s, n) == 1).unwrap_or(1);
        let mut at = 0;
        (0..segments)
            .map(|_| {
                at = (at + step) % n;
                let p = &mut self.peers[at];
                let frame = Server::frame(p, &template, p.seq);
                p.seq = p.seq.wrapping_add(SIZE as u32);
                p.ack = p.ack.wrapping_add(SIZE as u32);
                Fixed(frame.leak())
            })
            .collect()
    }

    /// Runs the part whose instructions are counted: passes with a burst each, and the answers.
    #[inline(never)]
    fn measured(&mut self, frames: Vec<Fixed>, apart: Duration) {
        let mut frames = frames.into_iter();
        loop {
            let burst: ArrayVec<Fixed, BURST> = frames.by_ref().take(BURST).collect();
            if burst.is_empty() {
                return;
            }
            self.stack.foresee(&burst);
            for frame in burst {
                self.stack.receive(self.now, frame, &mut self.app, &mut self.out);
            }
            self.stack.advance(self.now, &mut self.app, &mut self.out);
            while let Some(conn) = self.app.requests.pop() {
                let _ = self.stack.send(conn, self.answer.clone());
                self.stack.output(self.now, conn, &mut self.out);
            }
            self.stack.flush(self.now, &mut self.out);
            self.now += apart;
        }
    }

    /// Sends requests at such intervals that each connection gets one per `ROUND`.
    fn serve(&mut self, segments: usize) {
        let apart = ROUND * BURST as u32 / self.peers.len() as u32;
        let frames = self.requests(segments);
        self.measured(frames, apart);
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[test]
fn a_hundred_thousand_connections() {
    let mut s = Server::new(MANY);
    s.serve(2 * MANY as usize);
    assert_eq!(s.app.received, 2 * u64::from(MANY) * SIZE as u64);
    // All answers are acknowledged, except those of the last round.
    assert_eq!(s.app.acked, u64::from(MANY) * SIZE as u64);
    assert_eq!(s.stack.census(), (MANY as usize, 0, 0));
    let c = *s.stack.counters();
    assert_eq!((c.retransmitted_segments, c.out_of_order, c.unacceptable), (0, 0, 0), "{c:?}");
    // All end at once.
    s.everybody(&Seg { rst: true, ..Seg::default() }, 0);
    assert_eq!((s.app.closed, s.stack.census().0), (u64::from(MANY), 0));
    assert!(s.stack.next_deadline().is_none_or(|t| t >= s.now));
}

/// Instructions of the whole stack per request and answer, with few connections and with many.
#[test]
#[ignore = "needs valgrind"]
fn needs_valgrind_instructions_per_segment() {
    const SEGMENTS: u64 = 100_000;
    let count = |connections: u32, segments: u64| -> u64 {
        let child = Command::new("valgrind")
            .args([
                "--tool=callgrind",
                "--callgrind-out-file=/dev/null",
                "--toggle-collect=*Server*measured*",
            ])
            .arg(std::env::current_exe().expect("this program"))
            .args(["--exact", "--ignored", "--nocapture", "scale::child_of_instructions_per_segment"])
            .env("URNIC_SCALE", format!("{connections} {segments}"))
            .output()
            .expect("valgrind runs");
        let told = String::from_utf8_lossy(&child.stderr);
        let line = told.lines().find(|l| l.contains("Collected"));
        let counted = line.and_then(|l| l.split_whitespace().last()?.parse().ok());
        counted.filter(|_| child.status.success()).unwrap_or_else(|| panic!("{told}"))
    };
    // The difference between a longer and a shorter run: both contain the cost of opening.
    let of = |connections| {
        (count(connections, 2 * SEGMENTS) - count(connections, SEGMENTS)) as f64 / SEGMENTS as f64
    };
    let (few, many) = (of(FEW), of(MANY));
    println!("instructions for a request and its answer: {few:.1} of {FEW} connections, {many:.1} of {MANY}");
    assert!((many - few).abs() <= 0.05 * few, "{few:.1} and {many:.1}");
}

#[test]
#[ignore = "run by needs_valgrind_instructions_per_segment"]
fn child_of_instructions_per_segment() {
    let Ok(how) = std::env::var("URNIC_SCALE") else { return };
    let numbers: Vec<u32> = how.split(' ').filter_map(|n| n.parse().ok()).collect();
    let mut s = Server::new(numbers[0]);
    s.serve(numbers[1] as usize);
    assert_eq!(s.app.received, u64::from(numbers[1]) * SIZE as u64);
}
