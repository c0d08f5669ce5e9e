//! Hostile peers in virtual time. Many connections make the same attack, and an honest client beside them must see no
//! delays except those of the network. `scripts/siege` does the same in real time, with other peers, which share no
//! code with this test.

#[path = "../common/allocated.rs"]
mod allocated;
#[path = "../common/mod.rs"]
mod common;
mod floods;
mod host;
#[path = "../common/peer.rs"]
mod peer;
mod strange;
mod streams;

use common::*;
use host::{By, Camp, Kind, LISTENER};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use urnic::simulation::{Options, Simulation};
use urnic::*;

/// Numbers of the nodes.
const SERVER: usize = 0;
const CLIENT: usize = 1;
const THEIRS: usize = 2;
/// Number of send buffers of each device; fewer than the peers of the test `thousands`.
const BUFFERS: usize = 1536;
/// Octets of the hall: the memory of the server that all peers may read.
const HALL: usize = 1 << 20;
/// Octets that the honest client transfers in each operation.
const LONG: usize = 100_000;
/// Maximum number of steps of a run, more than any run needs.
const STEPS: u32 = 3_000_000;
/// Size and number of the buffers of a program's connections.
const SLOT: usize = 128;
const SLOTS: u32 = 8192;

/// The server's program: accepts every connection, and echoes.
struct Door {
    pd: Pd,
    cq: Cq,
    events: EventChannel,
    _listener: Listener,
    hall: Mr,
    inbox: Mr,
    qps: Vec<Option<Qp>>,
    open: usize,
    /// Number of connections that the program itself must open.
    dials: usize,
    dialled: usize,
}

impl Door {
    fn new(device: &Device) -> Self {
        let pd = device.alloc_pd();
        let events = device.create_event_channel().unwrap();
        Door {
            cq: device.create_cq(65_536, None).unwrap(),
            _listener: events.listen(PORT, 128).unwrap(),
            events,
            hall: pd.alloc_mr(HALL, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap(),
            inbox: pd.alloc_mr(SLOT * SLOTS as usize, Access::LOCAL_WRITE).unwrap(),
            pd,
            qps: Vec::new(),
            open: 0,
            dials: 0,
            dialled: 0,
        }
    }

    fn slot(&self, qpn: u32, len: u32) -> [Sge; 1] {
        [Sge::of(&self.inbox, u64::from(qpn % SLOTS) * SLOT as u64, len)]
    }

    fn qp(&mut self) -> Qp {
        let init = QpInit {
            send_cq: &self.cq,
            recv_cq: &self.cq,
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: true,
        };
        let qp = self.pd.create_qp(&init).unwrap();
        for _ in 0..2 {
            qp.post_recv(&RecvWr { wr_id: 1, sges: &self.slot(qp.qpn(), SLOT as u32) }).unwrap();
        }
        qp
    }

    fn keep(&mut self, qp: Qp) {
        let at = qp.qpn() as usize;
        if self.qps.len() <= at {
            self.qps.resize_with(at + 1, || None);
        }
        self.qps[at] = Some(qp);
        self.open += 1;
    }

    fn drop(&mut self, qpn: u32) {
        let qp = self.qps.get_mut(qpn as usize).and_then(Option::take);
        self.open -= usize::from(qp.is_some());
    }

    fn attend(&mut self) {
        while self.dialled < self.dials {
            let qp = self.qp();
            let param = ConnParam { timeout: Duration::from_secs(2), ..ConnParam::default() };
            // This may fail, because all connections may be in use at this moment.
            let to = std::net::SocketAddr::new(LISTENER.0.into(), LISTENER.1);
            if self.events.connect(&qp, to, &param).is_ok() {
                self.keep(qp);
            }
            self.dialled += 1;
        }
        while let Some(event) = self.events.poll() {
            match event {
                CmEvent::ConnectRequest(request) => {
                    let qp = self.qp();
                    // The peer may have left already.
                    if request.accept(&qp, &ConnParam::default()).is_ok() {
                        self.keep(qp);
                    }
                }
                CmEvent::Disconnected { qpn, .. } | CmEvent::ConnectError { qpn, .. } => self.drop(qpn),
                _ => {}
            }
        }
        let mut found = [Wc::default(); 64];
        loop {
            let count = self.cq.poll(&mut found);
            for wc in &found[..count] {
                let Some(Some(qp)) = self.qps.get(wc.qpn as usize) else { continue };
                if wc.opcode == WcOpcode::Recv && wc.status == WcStatus::Success {
                    let echo = self.slot(wc.qpn, wc.byte_len);
                    let sent = qp.post_send(&SendWr {
                        wr_id: 2,
                        op: SendOp::Send,
                        sges: &echo,
                        flags: SendFlags::empty(),
                    });
                    // The receive is posted again only if the echo could be posted, so that a peer that takes no echoes
                    // gets no receives.
                    if sent.is_ok() {
                        let _ = qp.post_recv(&RecvWr { wr_id: 1, sges: &self.slot(wc.qpn, SLOT as u32) });
                    }
                }
            }
            if count < found.len() {
                return;
            }
        }
    }
}

/// The honest client's waits: for an echo, a Write, a Read, and a connect.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Waits([Duration; 4]);

impl Waits {
    fn longest(self, other: Self) -> Self {
        Waits(std::array::from_fn(|i| self.0[i].max(other.0[i])))
    }
}

/// A server, an honest client, and the camp of hostile peers.
struct Field {
    simulation: Simulation,
    camp: Rc<RefCell<Camp>>,
    server: End,
    client: End,
    memory: [Mr; 2],
    door: Door,
}

impl Field {
    fn new() -> Self {
        let (camp, host) = host::camp();
        let options = Options { devices: 2, prefix: 8, ipv6: true, send_buffers: BUFFERS, ..defaults() };
        let mut simulation = Simulation::with_hosts(&options, vec![host]).unwrap();
        let [mut server, mut client] = [SERVER, CLIENT].map(|i| End::new(&simulation.device(i)));
        connect(&mut simulation, &mut server, &mut client);
        let door = Door::new(&simulation.device(SERVER));
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let memory = [&server, &client].map(|end| end.pd.alloc_mr(LONG, all).unwrap());
        Field { simulation, camp, server, client, memory, door }
    }

    /// Lets the server work for `time`, or until `done` returns `true`.
    fn run(&mut self, time: Duration, mut done: impl FnMut(&End, &End) -> bool) -> bool {
        let limit = self.simulation.now() + time;
        let Field { simulation, door, server, client, .. } = self;
        let mut steps = 0;
        simulation.run(limit, || {
            steps += 1;
            assert!(steps < STEPS, "an engine spins");
            door.attend();
            done(server, client)
        })
    }

    /// Runs until the client has another completion, and with `both` until the server has one too. Returns how long
    /// that took.
    fn completes(&mut self, both: bool) -> Duration {
        let before = self.simulation.now();
        let mut found = [None, None];
        let done = self.run(Duration::from_secs(60), |server, client| {
            for (found, end) in found.iter_mut().zip([server, client]) {
                let mut wc = [Wc::default()];
                if end.cq.poll(&mut wc) > 0 {
                    assert_eq!(wc[0].status, WcStatus::Success);
                    *found = Some(wc[0].wr_id);
                }
            }
            found[1].is_some() && (found[0].is_some() || !both)
        });
        assert!(done, "an honest request does not complete: {found:?}");
        self.simulation.now() - before
    }

    /// Checks that the honest client's old connection works, and that a new connection works. Returns how long each
    /// operation took.
    fn honest(&mut self, round: usize) -> Waits {
        let text = pattern(LONG, round);
        self.memory[1].write_at(0, &text).unwrap();
        let [there, here] = [0, 1].map(|i| Sge::of(&self.memory[i], 0, 64));
        self.server.post_recv(1, &[there]);
        self.client.post(2, SendOp::Send, &[here]);
        let send = self.completes(true);
        let place = (self.memory[0].addr(), self.memory[0].rkey());
        let all = [Sge::of(&self.memory[1], 0, LONG as u32)];
        self.client.post(3, SendOp::Write { addr: place.0, rkey: place.1 }, &all);
        let write = self.completes(false);
        // The Read returns the written octets, because it follows the Write.
        self.client.post(4, SendOp::Read { addr: place.0, rkey: place.1 }, &all);
        // Spoils the client's last octet, which the Read must restore.
        self.memory[1].write_at(LONG as u64 - 1, &[!text[LONG - 1]]).unwrap();
        let read = self.completes(false);
        assert!(content(&self.memory[1]) == text && content(&self.memory[0]) == text, "wrong data");

        let before = self.simulation.now();
        let newcomer = End::new(&self.simulation.device(CLIENT));
        let connection =
            newcomer.events.connect(&newcomer.qp, address(SERVER), &ConnParam::default()).unwrap();
        let mut event = None;
        self.run(LIMIT, |_, _| {
            event = event.take().or_else(|| newcomer.events.poll());
            event.is_some()
        });
        assert!(matches!(event, Some(CmEvent::Established { .. })), "a newcomer is told {event:?}");
        let took = self.simulation.now() - before;
        connection.disconnect().unwrap();
        self.run(LIMIT, |_, _| matches!(newcomer.events.poll(), Some(CmEvent::Disconnected { .. })));
        Waits([send, write, read, took])
    }

    /// Runs a round after each of `pauses`. Returns the longest wait of each kind.
    fn rounds(&mut self, pauses: &[u64]) -> Waits {
        let mut longest = Waits::default();
        for (round, pause) in pauses.iter().enumerate() {
            self.run(Duration::from_micros(*pause), |_, _| false);
            longest = longest.longest(self.honest(round));
        }
        longest
    }

    /// Returns the names and numbers of the resources that the server holds.
    fn held(&self) -> [(&'static str, u64); 5] {
        let device = self.simulation.device(SERVER);
        let counters = device.attributes().unwrap().counters;
        let count = |name| counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, count)| *count);
        [
            ("connections", device.connections().unwrap().len() as u64),
            ("queue pairs of the program", self.door.open as u64),
            ("octets of incomplete FPDUs", count("incomplete_octets")),
            // An engine always holds two send buffers.
            ("send buffers in use", (BUFFERS as u64 - count("send_buffers_free")).saturating_sub(2)),
            ("connections that wait for buffers", count("waiting_for_buffers")),
        ]
    }

    /// Lets `count` peers of a kind attack, and leave again.
    fn besiege(&mut self, kind: Kind, count: u32, pauses: &[u64]) -> Waits {
        let hall = (self.door.hall.rkey(), self.door.hall.addr());
        self.camp.borrow_mut().attack(kind, count, hall);
        if matches!(kind.by, By::Listen | By::Accept) {
            (self.door.dials, self.door.dialled) = (count as usize, 0);
        }
        let longest = self.rounds(pauses);
        {
            let camp = self.camp.borrow();
            match kind.by {
                By::Frames(_) => assert!(camp.sent >= count as usize, "{} frames", camp.sent),
                _ => {
                    assert!(camp.opened >= count as usize, "{}: {} connections", kind.name, camp.opened);
                    // Peers that use up what the server grants to one source keep each other out.
                    let least = if kind.crowds { count.min(10) } else { count - count / 10 };
                    assert!(camp.begun() >= least as usize, "{}: {} of {count}", kind.name, camp.begun());
                }
            }
        }
        self.camp.borrow_mut().leaves = true;
        self.door.dials = 0;
        longest
    }
}

/// Pauses before each round of the honest client, in microseconds. The first round is at once.
const PAUSES: [u64; 7] = [0, 100, 1000, 10_000, 100_000, 1_000_000, 6_000_000];
/// Pauses for attacks that send many frames in a short time.
const SHORT: [u64; 6] = [0, 100, 1000, 10_000, 30_000, 100_000];

/// Pauses for thousands of peers.
const MOMENTS: [u64; 4] = [0, 100, 1000, 30_000];
/// Number of attacks of each kind. The server may need more memory for the first ones than for the last.
const ATTACKS: usize = 3;
/// Octets that the server may keep after one more attack. It keeps entries for neighbours until other neighbours need
/// their places.
const CACHED: isize = 50_000;

/// Attacks with `count` peers of a kind, and returns what the server did wrong.
fn findings(kind: &Kind, count: u32, attacks: usize, pauses: &[u64]) -> Vec<String> {
    let name = format!("{count} of {}", kind.name);
    let mut findings = Vec::new();
    let mut field = Field::new();
    let peace = field.rounds(pauses);
    field.run(Duration::from_secs(60), |_, _| false);
    let start = field.held();
    let mut live = vec![allocated::live()];
    for _ in 0..attacks {
        let war = field.besiege(*kind, count, pauses);
        if war.longest(peace) != peace {
            findings.push(format!("{name}: {war:?} instead of {peace:?}"));
        }
        // In this time, keep-alive and the user timeout find dead peers.
        field.run(Duration::from_secs(60), |_, _| false);
        if field.held() != start {
            findings.push(format!("{name}: {:?} stay", field.held()));
        }
        live.push(allocated::live());
    }
    if attacks > 1 && live[attacks] > live[attacks - 1] + CACHED {
        findings.push(format!("{name}: memory grows: {live:?}"));
    }
    findings
}

fn siege(kinds: &[Kind]) {
    let mut all = Vec::new();
    for kind in kinds {
        let pauses = if kind.is_quick() { &SHORT[..] } else { &PAUSES };
        for count in [1, 100] {
            all.extend(findings(kind, count, ATTACKS, pauses));
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// Runs every kind of attack with two thousand peers, all of which send frames or open connections. The pauses are
/// short, to limit the time of the test.
#[test]
fn thousands() {
    let all = [
        &floods::FLOODS[..],
        &streams::START_UPS,
        &streams::LISTENERS,
        &streams::STREAMS,
        &streams::ANSWERS,
        &strange::STRANGE,
    ]
    .concat();
    let mut found = Vec::new();
    for kind in &all {
        found.extend(findings(kind, 2000, 1, &MOMENTS));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn floods() {
    siege(&floods::FLOODS);
}

#[test]
fn listeners() {
    siege(&streams::LISTENERS);
}

#[test]
fn start_ups() {
    siege(&streams::START_UPS);
}

#[test]
fn streams() {
    siege(&streams::STREAMS);
}

#[test]
fn answers() {
    siege(&streams::ANSWERS);
}

#[test]
fn strange_tcp() {
    siege(&strange::STRANGE);
}
