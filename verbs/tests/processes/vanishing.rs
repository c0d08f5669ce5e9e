//! Ends that take memory away under traffic, as soon as its deregistration has returned. With progress
//! `adaptive`, the engine's own thread and the program's thread drive the engine alternately. A thread that
//! accesses the memory later ends the process. At a `vhost` end, payload in the program's own memory is lent to
//! TCP and to frames.

use std::time::{Duration, Instant};

use urnic::*;

use super::Link;
use super::child::{PATIENCE, alone, arg, say};
use super::node::{ALL, Node, PORT, Place, Wait, receive, send};
use super::pages::Pages;

const ROUNDS: u64 = 40;
const LEN: usize = 256 << 10;
const MESSAGE: u32 = 64 << 10;
const SMALL: u32 = 4096;
/// Number of receives, which is also the number of the peer's Sends.
const RECEIVES: u64 = 16;
/// Maximum number of requests under way at a time.
const WINDOW: usize = 24;
/// Upper bound on the number of requests that succeed at an end before it takes its memory away.
const LIFE: u64 = 80;
/// Maximum time after these requests for which the memory stays, while only the engine's own thread works.
const PAUSE: Duration = Duration::from_micros(300);
/// The value with which the program fills its memory after the deregistration. All sent data is zero.
const SECRET: u8 = 0xEE;

fn vanishes(kinds: [&'static str; 2], progress: &str) {
    let settings = format!("[engine]\nprogress = \"{progress}\"\n");
    let link = Link::new(kinds);
    println!("{kinds:?} {progress}");
    let mut server = link.server("vanisher", "server 1", &settings);
    server.expect("open");
    let mut client = link.client("vanisher", "client 2", &settings);
    client.expect("open");
    for end in [&mut client, &mut server] {
        end.expect("done");
    }
    for end in [&mut client, &mut server] {
        end.finish();
    }
}

/// SEC-7, between two processes: a process that accessed unmapped memory would die, and the peer must not see data that
/// the program put into the memory later.
#[test]
fn deregistered_memory_is_not_touched() {
    let _alone = alone();
    for progress in ["adaptive", "dedicated"] {
        vanishes(Link::VIRTIO, progress);
        vanishes(Link::VHOST, progress);
        vanishes(Link::KERNEL, progress);
    }
}

/// One end of a connection.
struct Round {
    qp: Qp,
    /// The regions: the source of messages and of the peer's Reads, the target of the peer's Writes and of Responses,
    /// and the memory of receives.
    regions: Vec<Mr>,
    pages: Vec<Pages>,
    /// Id of the next request. Ids of receives are smaller than ids of requests.
    next: u64,
    /// Number of requests, and of receives, that have not completed.
    requests: usize,
    receives: usize,
    sends: u64,
    completed: u64,
    /// The octet that all of the memory must hold; `None`: the memory is inaccessible.
    holds: Option<u8>,
}

impl Round {
    fn new(node: &Node) -> Self {
        let pages: Vec<Pages> = (0..3).map(|_| Pages::new(LEN)).collect();
        let regions: Vec<Mr> = pages.iter().map(|pages| pages.register(&node.pd, ALL)).collect();
        let qp = node.qp();
        for i in 0..RECEIVES {
            receive(&qp, i, Sge::of(&regions[2], i * u64::from(SMALL), SMALL));
        }
        Self {
            qp,
            regions,
            pages,
            next: RECEIVES,
            requests: 0,
            receives: RECEIVES as usize,
            sends: 0,
            completed: 0,
            holds: Some(0),
        }
    }

    /// Returns the private data for the peer: the places that the peer may read and write.
    fn hello(&self) -> Vec<u8> {
        self.regions[..2].iter().flat_map(|region| Place::of(region).encode()).collect()
    }

    /// Fills the queue with every kind of work.
    fn post(&mut self, theirs: &[Place; 2]) {
        let [source, target] = *theirs;
        let from = |at, len| Sge::of(&self.regions[0], at, len);
        while self.requests < WINDOW {
            let at = self.next % 3 * u64::from(MESSAGE);
            let write = |addr| SendOp::Write { addr, rkey: target.rkey };
            match self.next % 4 {
                0 => send(&self.qp, self.next, write(target.addr + at), from(at, MESSAGE)),
                1 => {
                    let op = SendOp::Read { addr: source.addr + at, rkey: source.rkey };
                    send(&self.qp, self.next, op, Sge::of(&self.regions[1], at, MESSAGE));
                }
                2 if self.sends < RECEIVES => {
                    send(&self.qp, self.next, SendOp::Send, from(at, SMALL));
                    self.sends += 1;
                }
                _ => send(&self.qp, self.next, write(target.addr + 8), from(at, 8)),
            }
            self.next += 1;
            self.requests += 1;
        }
    }

    fn take(&mut self, node: &Node) {
        let mut found = [Wc::default(); 32];
        let taken = node.cq.poll(&mut found);
        for wc in &found[..taken] {
            let of = if wc.wr_id < RECEIVES { &mut self.receives } else { &mut self.requests };
            *of -= 1;
            self.completed += u64::from(wc.wr_id >= RECEIVES && wc.status == WcStatus::Success);
        }
    }

    /// Deregisters all memory, and at once reuses it (with `reuses`) or makes it inaccessible.
    fn vanish(&mut self, reuses: bool) {
        for region in self.regions.drain(..) {
            assert!(region.deregister().is_ok());
        }
        if reuses {
            self.pages.iter().for_each(|pages| pages.fill(&vec![SECRET; pages.len()]));
        } else {
            self.pages.iter().for_each(Pages::take_away);
        }
        self.holds = reuses.then_some(SECRET);
    }

    /// Checks that the peer has not seen data that was put into the memory after the deregistration, and that the
    /// engine has placed nothing there.
    fn check(&self, number: u64) {
        let Some(octet) = self.holds else { return };
        for (i, pages) in self.pages.iter().enumerate() {
            let wrong = pages.content().iter().position(|found| *found != octet);
            assert_eq!(wrong, None, "round {number}: not {octet:#x} in region {i}");
        }
    }
}

pub fn end() {
    let is_server = arg::<String>(0) == "server";
    let node = Node::open(Wait::Poll);
    let _listener = is_server.then(|| node.events.listen(PORT, 16).unwrap());
    let mut random = fastrand::Rng::with_seed(arg(1));
    let mut waiting: Option<ConnRequest> = None;
    say("open");
    for number in 0..ROUNDS {
        let mut round = Round::new(&node);
        let hello = ConnParam { private_data: round.hello(), ..ConnParam::default() };
        let said = if is_server {
            let request = waiting.take().unwrap_or_else(|| match node.event("a request") {
                CmEvent::ConnectRequest(request) => request,
                other => panic!("{other:?}"),
            });
            let said = request.private_data().to_vec();
            request.accept(&round.qp, &hello).unwrap();
            said
        } else {
            node.connect(&round.qp, &hello.private_data)
        };
        let (source, target) = said.split_at(said.len() / 2);
        let theirs = [Place::decode(source), Place::decode(target)];
        let loses = (number % 2 == 0) == is_server;
        let start = Instant::now();
        let (life, pause) = (random.u64(1..LIFE), PAUSE.mul_f64(random.f64()));
        loop {
            match node.events.poll() {
                Some(CmEvent::ConnectRequest(request)) => waiting = Some(request),
                Some(CmEvent::Disconnected { qpn, .. }) if qpn == round.qp.qpn() => break,
                Some(CmEvent::Established { .. }) | None => {}
                Some(other) => panic!("{other:?}"),
            }
            round.take(&node);
            if !round.regions.is_empty() {
                round.post(&theirs);
                if loses && round.completed >= life {
                    let since = Instant::now();
                    while since.elapsed() < pause {
                        std::hint::spin_loop();
                    }
                    assert!(round.requests > 0, "work is under way");
                    round.vanish(number % 4 >= 2);
                }
            }
            assert!(start.elapsed() < PATIENCE, "round {number} does not end");
        }
        while round.requests + round.receives > 0 {
            round.take(&node);
            let left = (round.requests, round.receives);
            assert!(
                start.elapsed() < PATIENCE,
                "round {number}: {left:?} requests and receives never complete"
            );
        }
        round.check(number);
    }
    say("done");
}
