//! Tests which passes of an engine hold the requests of a busy poster back, and that the requests leave in the end. A
//! device is connected with itself, so frames arrive as soon as a pass receives them, in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use urnic_config::Progress;

use super::*;
use crate::api::cq::Cq;
use crate::api::device::Device;
use crate::api::mr::Mr;
use crate::api::pd::Pd;
use crate::api::qp::{Qp, QpInit};
use crate::api::simulation::{Options, Simulation, alone_on};
use crate::api::srq::{Srq, SrqInit};
use crate::drive::engine::CLOCK_EVERY;
use crate::drive::engine::turns::TURNS_PER_PASS;
use crate::drive::port::BURST;
use crate::drive::shard::{EngineOps, Occasion};
use crate::shared::cm::{CmEvent, ConnParam};
use crate::shared::wc::{Wc, WcStatus};
use crate::shared::wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};
use crate::{Access, Connection, EventChannel};

/// Number of queue pairs to which the poster posts in turn, so that none has much unacknowledged data.
const QPS: usize = 120;
/// Number of requests that a test may post.
const POSTS: usize = 1024;
const SEND: SendWr<'static> = SendWr { wr_id: 0, op: SendOp::Send, sges: &[], flags: SendFlags::SIGNALED };

/// A clock that moves only when a test moves it, at once or after it is read the next time.
#[derive(Clone, Default)]
struct Hand(Arc<[AtomicU64; 2]>);

impl Hand {
    fn advance(&self, time: Duration) {
        self.0[0].fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    fn advance_when_read(&self, time: Duration) {
        self.0[1].store(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for Hand {
    fn now(&self) -> Time {
        Time(self.0[0].fetch_add(self.0[1].swap(0, Ordering::Relaxed), Ordering::Relaxed))
    }
}

/// A poster whose requests each write one octet to memory of the peer.
struct Poster {
    clock: Hand,
    device: Device,
    events: EventChannel,
    pd: Pd,
    /// Completion queue of the requests.
    cq: Cq,
    /// Completion queue of the peers, and of all receives.
    far: Cq,
    memory: Mr,
    qps: Vec<Qp>,
    peers: Vec<Qp>,
    connections: Vec<Connection>,
    /// Number of requests that were posted, and of those that have completed because they have left.
    posted: usize,
    left: usize,
}

impl Poster {
    fn new() -> Self {
        let clock = Hand::default();
        clock.advance(Duration::from_secs(1));
        let device = alone_on(clock.clone(), &Options::default(), Progress::Inline).unwrap();
        let pd = device.alloc_pd();
        let [cq, far] = [(); 2].map(|()| device.create_cq(2 * POSTS as u32, None).unwrap());
        let memory =
            pd.alloc_mr(POSTS, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
        let events = device.create_event_channel().unwrap();
        let (qps, peers, connections) = (Vec::new(), Vec::new(), Vec::new());
        let mut poster =
            Self { clock, device, events, pd, cq, far, memory, qps, peers, connections, posted: 0, left: 0 };
        (0..QPS).for_each(|_| poster.add(None));
        for _ in 0..QPS {
            poster.post();
            poster.pass();
        }
        poster.settle();
        assert_eq!((poster.waiting(), poster.arrived()), (0, QPS));
        poster
    }

    /// Makes a poster whose requests wait from now on.
    fn busy() -> Self {
        let mut poster = Self::new();
        assert_eq!(poster.polls_until_busy(), RUN);
        poster
    }

    /// Connects another queue pair with a peer, which takes its receives from `srq` if there is one.
    fn add(&mut self, srq: Option<&Srq>) {
        let init = |cq| QpInit {
            max_send_wr: 64,
            max_inline: 8,
            signal_all: true,
            ..crate::api::qp::tests::init(cq)
        };
        let qp = self.pd.create_qp(&QpInit { recv_cq: &self.far, ..init(&self.cq) }).unwrap();
        let peer = match srq {
            Some(srq) => self.pd.create_qp_with_srq(&init(&self.far), srq),
            None => self.pd.create_qp(&init(&self.far)),
        };
        let peer = peer.unwrap();
        let listener = self.events.listen(7000, 1).unwrap();
        let to = std::net::SocketAddr::new(Simulation::address(0).into(), listener.port());
        let param = ConnParam::default();
        self.connections.push(self.events.connect(&qp, to, &param).unwrap());
        let CmEvent::ConnectRequest(request) = self.event() else { panic!("no request") };
        request.accept(&peer, &param).unwrap();
        for _ in 0..2 {
            assert!(matches!(self.event(), CmEvent::Established { .. }));
        }
        self.qps.push(qp);
        self.peers.push(peer);
    }

    fn event(&self) -> CmEvent {
        (0..100).find_map(|_| self.events.poll()).expect("an event")
    }

    /// Calls `verb` while no pass is under way, and runs no pass.
    fn with_engine<R>(&self, verb: impl FnOnce(&mut dyn EngineOps) -> R) -> R {
        self.device.shared.shards.first().arrange(|engine| Ok(verb(engine))).unwrap()
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.with_engine(|engine| engine.attributes()).counters;
        counters.iter().find(|(of, _)| *of == name).unwrap().1
    }

    /// Runs a pass of a poll. Returns whether the pass has held requests back.
    fn poll(&self) -> bool {
        let before = self.counter("waited_for_bursts");
        let worked = self.with_engine(|engine| engine.pass(Occasion::Poll));
        let held = self.counter("waited_for_bursts") > before;
        assert!(worked || !held, "the program must go on polling, and without pauses");
        held
    }

    /// Runs a pass of the engine's own thread.
    fn pass(&self) {
        self.with_engine(|engine| engine.pass(Occasion::Other));
    }

    /// Runs passes until all requests have arrived and are acknowledged.
    fn settle(&self) {
        for _ in 0..100 {
            self.pass();
        }
        self.clock.advance(Duration::from_millis(1));
        for _ in 0..100 {
            self.pass();
        }
    }

    /// Posts the next request, to a queue pair of its own.
    fn post(&mut self) {
        self.post_to(self.posted % QPS);
    }

    fn post_to(&mut self, qp: usize) {
        let addr = self.memory.addr() + self.posted as u64;
        let op = SendOp::Write { addr, rkey: self.memory.rkey() };
        self.qps[qp].post_send_inline(&SendWr { op, ..SEND }, &[1]).unwrap();
        self.posted += 1;
    }

    /// Posts the next request while another thread seems to drive the engine.
    fn post_while_locked(&mut self) {
        let device = self.device.clone();
        let locked = device.shared.shards.first().arrange(|_| {
            self.post();
            Ok(())
        });
        locked.unwrap();
    }

    /// Posts another request to queue pair `qp`.
    fn post_also(&mut self, qp: usize, op: SendOp, sges: &[Sge]) {
        self.qps[qp].post_send(&SendWr { op, sges, ..SEND }).unwrap();
        self.posted += 1;
    }

    /// Returns how many requests have not left.
    fn waiting(&mut self) -> usize {
        let mut wcs = [Wc::default(); 16];
        loop {
            let n = self.cq.shared.take(&mut self.cq.shared.polls.poller.lock(), &mut wcs, 0);
            assert!(wcs[..n].iter().all(|wc| wc.status == WcStatus::Success));
            self.left += n;
            if n == 0 {
                return self.posted - self.left;
            }
        }
    }

    /// Returns how many requests have arrived.
    fn arrived(&self) -> usize {
        let mut octets = [0; POSTS];
        self.memory.read_at(0, &mut octets).unwrap();
        octets.iter().filter(|octet| **octet == 1).count()
    }

    /// Posts and polls until a request waits. Returns how many polls this took.
    fn polls_until_busy(&mut self) -> u32 {
        for polls in 0..POSTS as u32 {
            self.post();
            if self.waiting() > 0 {
                self.pass();
                return polls;
            }
            assert!(!self.poll());
        }
        panic!("no request waits");
    }

    /// Posts and polls until one more request makes the burst full.
    fn almost_fill_burst(&mut self) {
        for posts in 1..FULL as usize {
            self.post();
            assert!(self.poll());
            assert_eq!(self.waiting(), posts);
        }
    }
}

#[test]
fn polls_hold_requests_back_until_the_burst_is_full() {
    let mut poster = Poster::busy();
    for _ in 0..5 {
        poster.almost_fill_burst();
        poster.post();
        assert!(!poster.poll());
        assert_eq!(poster.waiting(), 0);
    }
    assert_eq!(poster.arrived(), poster.posted);
}

#[test]
fn passes_that_are_not_of_polls_hold_nothing_back() {
    let mut poster = Poster::busy();
    poster.post();
    assert!(poster.poll());
    poster.post();
    poster.pass();
    assert_eq!(poster.waiting(), 0);
}

/// A request to a queue pair that already waits is news too.
#[test]
fn requests_that_join_others_wait_with_them() {
    for further in 0..5 {
        let mut poster = Poster::busy();
        poster.post_to(0);
        assert!(poster.poll());
        for _ in 0..further {
            poster.post_to(0);
            assert!(poster.poll());
        }
        assert_eq!(poster.waiting(), 1 + further);
        assert!(!poster.poll(), "nothing was posted");
        assert_eq!(poster.waiting(), 0);
    }
}

/// Requests that joined others before a poll are no news at the poll after it.
#[test]
fn requests_that_join_others_are_news_only_once() {
    let mut poster = Poster::busy();
    poster.post_to(0);
    poster.post_to(0);
    assert!(poster.poll());
    assert!(!poster.poll(), "nothing was posted");
    assert_eq!(poster.waiting(), 0);
}

/// Another thread's post finds the engine's lock taken, so only its doorbell tells of it. Its requests must not wait,
/// because that thread may be no busy poster.
#[test]
fn doorbells_of_other_threads_are_not_held_back() {
    let mut poster = Poster::busy();
    for _ in 0..5 {
        poster.post();
        assert!(poster.poll());
        poster.post();
        poster.post_while_locked();
        assert!(!poster.poll());
        assert_eq!(poster.waiting(), 0);
    }
}

/// Requests wait for no burst while an endpoint waits for its turn, because the endpoint must not wait with them.
#[test]
fn posts_are_not_held_back_while_an_endpoint_waits_for_its_turn() {
    let mut poster = Poster::busy();
    poster.almost_fill_burst();
    let (addr, rkey) = (poster.memory.addr(), poster.memory.rkey());
    let sink = Sge::of(&poster.memory, POSTS as u64 - 8, 8);
    // The Read Request arrives at the end of the pass, and then the peer has to answer.
    poster.post_also(0, SendOp::Read { addr, rkey }, &[sink]);
    assert!(!poster.poll());
    assert_eq!(poster.waiting(), 1, "the Read");
    poster.post();
    assert!(!poster.poll());
    assert_eq!(poster.waiting(), 0, "the answer has arrived too");
    poster.pass();
    poster.post();
    assert!(poster.poll());
}

/// A Send that begins to wait for a receive makes the engine look for receives once more, without delay.
#[test]
fn posts_are_not_held_back_while_receives_may_be_found() {
    let mut poster = Poster::busy();
    poster.almost_fill_burst();
    poster.post_also(0, SendOp::Send, &[]);
    assert!(!poster.poll());
    poster.post();
    assert!(!poster.poll());
    poster.post();
    assert!(poster.poll());
}

#[test]
fn receives_of_shared_queues_are_not_held_back() {
    let mut poster = Poster::new();
    let srq = poster.pd.create_srq(&SrqInit { max_wr: 8, max_sge: 1, limit: 0 }).unwrap();
    poster.add(Some(&srq));
    poster.post_also(QPS, SendOp::Send, &[]);
    poster.settle();
    poster.polls_until_busy();
    poster.post();
    assert!(poster.poll());
    srq.post_recv(&RecvWr { wr_id: 0, sges: &[] }).unwrap();
    poster.post();
    assert!(!poster.poll());
    assert_eq!(
        poster.far.shared.take(&mut poster.far.shared.polls.poller.lock(), &mut [Wc::default()], 0),
        1
    );
}

/// A receive for which a Send waits is found at once, even if requests of its queue pair wait.
#[test]
fn receives_of_queue_pairs_that_wait_are_not_held_back() {
    let mut poster = Poster::busy();
    // The peers send, so that the poster's own queue pairs are short of receives.
    poster.peers[0].post_send(&SEND).unwrap();
    poster.settle();
    poster.polls_until_busy();
    poster.post_to(0);
    assert!(poster.poll());
    poster.qps[0].post_recv(&RecvWr { wr_id: 0, sges: &[] }).unwrap();
    poster.post_to(1);
    assert!(!poster.poll());
    assert_eq!(poster.waiting(), 0);
}

/// Frames are received although requests wait.
#[test]
fn passes_that_hold_requests_back_receive() {
    let mut poster = Poster::new();
    for _ in 1..RUN {
        poster.post();
        assert!(!poster.poll());
    }
    // More frames than one pass receives.
    let before = poster.posted;
    while poster.posted < before + BURST + 8 {
        poster.post();
    }
    assert_eq!(poster.waiting(), 0);
    assert!(!poster.poll());
    assert_eq!(poster.arrived(), before + BURST);
    poster.post();
    assert!(poster.poll());
    assert_eq!(poster.arrived(), poster.posted - 1);
}

/// Timers fire although requests wait: a delayed ACK leaves.
#[test]
fn passes_that_hold_requests_back_acknowledge() {
    let mut poster = Poster::busy();
    let acknowledges = |_| {
        poster.clock.advance(SWIFT);
        poster.post();
        let before = poster.counter("tcp_segments_out");
        poster.poll() && poster.counter("tcp_segments_out") > before
    };
    assert!((0..20).any(acknowledges));
}

#[test]
fn requests_wait_for_a_limited_time() {
    let mut poster = Poster::busy();
    for _ in 0..3 {
        for _ in 0..PATIENCE.as_nanos().div_ceil(SWIFT.as_nanos()) {
            poster.post();
            assert!(poster.poll());
            poster.clock.advance(SWIFT);
        }
        poster.post();
        assert!(!poster.poll());
        assert_eq!(poster.waiting(), 0);
    }
}

/// Passes of the engine's own thread meanwhile do not hide that the poster has paused.
#[test]
fn after_a_pause_of_the_poster_requests_leave_at_once() {
    let mut poster = Poster::busy();
    poster.clock.advance(SWIFT + PROMPT);
    (0..=CLOCK_EVERY).for_each(|_| poster.pass());
    poster.post();
    assert_eq!(poster.waiting(), 0);
}

/// The time that a pass takes does not count as a pause.
#[test]
fn long_passes_do_not_end_the_run() {
    let mut poster = Poster::new();
    for _ in 0..RUN {
        poster.post();
        poster.clock.advance_when_read(2 * SWIFT);
        assert!(!poster.poll());
    }
    poster.post();
    assert_eq!(poster.waiting(), 1);
}

/// If the engine's own thread must send what the poster has left behind, more is required of the poster.
#[test]
fn requests_that_are_left_to_the_engines_thread_count_against_waiting() {
    let mut poster = Poster::busy();
    poster.post();
    assert!(poster.poll());
    poster.clock.advance(LATE + PROMPT);
    poster.pass();
    assert_eq!(poster.waiting(), 0);
    poster.settle();
    assert_eq!(poster.polls_until_busy(), 2 * RUN);
}

/// Posts alone let requests leave, as many as in a pass.
#[test]
fn posts_to_many_queue_pairs_leave_without_a_poll() {
    let mut poster = Poster::busy();
    for _ in 1..MOST {
        poster.post();
    }
    assert_eq!(poster.waiting(), MOST as usize - 1);
    poster.post();
    assert_eq!(poster.waiting(), MOST as usize - TURNS_PER_PASS);
    assert!(!poster.poll());
    assert_eq!(poster.waiting(), 0);
}

/// The same for posts that wait for the next poll because the program posts batches.
#[test]
fn batches_leave_with_the_poll() {
    let mut poster = Poster::new();
    for batch in 0..3 * BATCHES {
        poster.post();
        assert_eq!(poster.waiting(), usize::from(batch >= BATCHES), "batch {batch}");
        (0..2).for_each(|_| poster.post());
        assert!(!poster.poll());
        assert_eq!(poster.waiting(), 0);
    }
}

/// Whatever the program does, requests that wait leave at once.
#[test]
fn verbs_let_requests_leave() {
    type Verb = fn(&mut Poster);
    let verbs: [Verb; 6] = [
        |poster| drop(poster.qps.pop()),
        |poster| poster.qps[QPS - 1].to_error(),
        |poster| poster.qps[QPS - 1].drain().unwrap(),
        |poster| poster.connections[QPS - 1].disconnect().unwrap(),
        |poster| drop(poster.device.attributes().unwrap()),
        |poster| drop(poster.events.listen(7001, 1).unwrap()),
    ];
    for (number, verb) in verbs.into_iter().enumerate() {
        let mut poster = Poster::busy();
        for qp in 0..3 {
            poster.post_to(qp);
            assert!(poster.poll());
        }
        verb(&mut poster);
        assert_eq!(poster.waiting(), 0, "verb {number}");
        poster.pass();
        assert_eq!(poster.arrived(), poster.posted, "verb {number}");
    }
}

/// Requests that wait at a queue pair leave before its connection is closed.
#[test]
fn closing_a_connection_lets_its_requests_leave() {
    for drains in [false, true] {
        let mut poster = Poster::busy();
        for _ in 0..3 {
            poster.post_to(0);
            assert!(poster.poll());
        }
        if drains {
            poster.qps[0].drain().unwrap();
        } else {
            poster.connections[0].disconnect().unwrap();
        }
        poster.settle();
        assert_eq!((poster.waiting(), poster.arrived()), (0, poster.posted));
    }
}
