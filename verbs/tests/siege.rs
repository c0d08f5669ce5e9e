//! Hostile peers in virtual time. Many connections make the same attack, and an honest client beside them must see no
//! delays except those of the network. `scripts/siege` does this and more in real time, with peers that share no code
//! with urnic.

mod common;

use common::raw::{self, Raw};
use common::*;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use urnic::simulation::{Host, MpaChange, Options, Simulation};
use urnic::*;
use urnic_iwarp::startup::{Initiator, Offer};
use urnic_tcp::ConnId;

/// Number of hostile connections.
const PEERS: usize = 400;
/// Default number of send buffers of each device.
const BUFFERS: usize = 1536;
/// Octets of the hall: the memory of the server that all peers may read.
const HALL: usize = 1 << 20;
/// Time limit of a round of two messages, and of a connect. Includes the way over the network and the turns of
/// other queue pairs.
const SHORT: Duration = Duration::from_millis(1);

/// Maximum number of steps of a run, more than any run needs.
const STEPS: u32 = 3_000_000;

/// A kind of attack.
#[derive(Clone, Copy)]
struct Kind {
    /// Number of hosts of the peers.
    hosts: usize,
    /// Whether a peer first sends an MPA Request, and waits for the Reply.
    starts_up: bool,
    /// Returns the octets that a peer sends after that; the arguments are the hall's STag and address. `None`: the peer
    /// sends nothing.
    says: Option<fn(u32, u64) -> Vec<u8>>,
    /// Whether the peers stop receiving frames after the start-up.
    deaf: bool,
    /// Number of hosts, the last ones, whose peers never stop.
    attentive: usize,
    /// Whether they stop already when they have sent the Request, so that they miss the Reply.
    misses_reply: bool,
    /// Number of send buffers of each device.
    buffers: usize,
    ends: Ending,
}

/// By default, the peers are on one host.
impl Default for Kind {
    fn default() -> Self {
        SILENT
    }
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Ending {
    #[default]
    Never,
    Fin,
    Reset,
}

/// A host that no frames reach while the flag is set.
struct Deaf(Box<dyn Host>, Rc<Cell<bool>>);

impl Host for Deaf {
    fn turn(
        &mut self,
        now: Duration,
        arrived: &mut VecDeque<Vec<u8>>,
        send: &mut Vec<Vec<u8>>,
    ) -> Option<Duration> {
        if self.1.get() {
            arrived.clear();
        }
        self.0.turn(now, arrived, send)
    }
}

/// A server that accepts every connection, an honest client, and the peers.
struct Field {
    simulation: Simulation,
    raws: Vec<Rc<RefCell<Raw>>>,
    deaf: Rc<Cell<bool>>,
    server: End,
    client: End,
    door: Door,
    /// Number of send buffers of each device.
    buffers: usize,
}

/// A connection of the peers: the index of its host, and its id.
type Peer = (usize, ConnId);

/// The server's program.
struct Door {
    pd: Pd,
    cq: Cq,
    events: EventChannel,
    _listener: Listener,
    hall: Mr,
    inbox: Mr,
    qps: Vec<Qp>,
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
            inbox: pd.alloc_mr(4096, Access::LOCAL_WRITE).unwrap(),
            pd,
            qps: Vec::new(),
        }
    }

    /// Accepts connections, and drops those that have ended.
    fn attend(&mut self) {
        while let Some(event) = self.events.poll() {
            match event {
                CmEvent::ConnectRequest(request) => {
                    let qp = create_qp(&self.pd, &self.cq);
                    qp.post_recv(&RecvWr { wr_id: 1, sges: &[Sge::of(&self.inbox, 0, 4096)] }).unwrap();
                    // The peer may have left already.
                    if request.accept(&qp, &ConnParam::default()).is_ok() {
                        self.qps.push(qp);
                    }
                }
                CmEvent::Disconnected { qpn, .. } | CmEvent::ConnectError { qpn, .. } => {
                    self.qps.retain(|qp| qp.qpn() != qpn);
                }
                _ => {}
            }
        }
        while self.cq.poll(&mut [Wc::default(); 64]) > 0 {}
    }
}

impl Field {
    fn new(kind: &Kind, change: MpaChange) -> Self {
        let deaf = Rc::new(Cell::new(false));
        let (raws, hosts) = (0..kind.hosts)
            .map(|i| {
                let (raw, host) = raw::node(2 + i);
                let attentive = i + kind.attentive >= kind.hosts;
                (raw, if attentive { host } else { Box::new(Deaf(host, deaf.clone())) as Box<dyn Host> })
            })
            .unzip();
        let options =
            Options { devices: 2, send_buffers: kind.buffers, exceptions: vec![(0, change)], ..options() };
        let mut simulation = Simulation::with_hosts(&options, hosts).unwrap();
        let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
        connect(&mut simulation, &mut server, &mut client);
        let door = Door::new(&simulation.device(0));
        Field { simulation, raws, deaf, server, client, door, buffers: kind.buffers }
    }

    /// Lets the server work for `time`, or until `done` returns `true`.
    fn run(&mut self, time: Duration, mut done: impl FnMut(&[Rc<RefCell<Raw>>]) -> bool) -> bool {
        let limit = self.simulation.now() + time;
        let Field { simulation, raws, door, .. } = self;
        let mut steps = 0;
        simulation.run(limit, || {
            steps += 1;
            assert!(steps < STEPS, "an engine spins");
            door.attend();
            done(raws)
        })
    }

    fn raw(&self, (host, _): Peer) -> RefMut<'_, Raw> {
        self.raws[host].borrow_mut()
    }

    /// Lets the peers connect and do what the kind requires. Returns the peers that the server has not refused.
    fn attack(&mut self, kind: &Kind) -> Vec<Peer> {
        let offer = Offer { rev: 1, crc: true, ird: 4, ord: 4, ..Offer::default() };
        let request = Initiator::new(&offer).unwrap().1;
        let peers: Vec<Peer> = (0..PEERS)
            .map(|i| i % kind.hosts)
            .map(|host| (host, self.raws[host].borrow_mut().connect(address(0))))
            .collect();
        let over = |raw: &Raw, conn: &ConnId| raw.seen.closed.iter().any(|(gone, _)| gone == conn);
        self.run(Duration::from_secs(1), |raws| {
            peers.iter().all(|(host, conn)| {
                let raw = raws[*host].borrow();
                raw.seen.connected.contains(conn) || over(&raw, conn)
            })
        });
        let there = |field: &Self| {
            let there = |peer: &&Peer| !over(&field.raw(**peer), &peer.1);
            peers.iter().filter(there).copied().collect::<Vec<_>>()
        };
        if kind.starts_up {
            for peer in there(self) {
                self.raw(peer).send(peer.1, &request);
            }
            self.deaf.set(kind.misses_reply);
            self.run(Duration::from_secs(1), |raws| {
                peers.iter().all(|(host, conn)| {
                    let raw = raws[*host].borrow();
                    raw.heard(*conn).len() >= 20 || over(&raw, conn)
                })
            });
        }
        self.deaf.set(kind.deaf);
        let open = there(self);
        assert!(open.len() > PEERS / 4, "{} peers are there to attack", open.len());
        for peer in &open {
            let mut raw = self.raw(*peer);
            if let Some(says) = kind.says {
                raw.send(peer.1, &says(self.door.hall.rkey(), self.door.hall.addr()));
            }
            match kind.ends {
                Ending::Never => {}
                Ending::Fin => raw.close(peer.1),
                Ending::Reset => raw.abort(peer.1),
            }
        }
        open
    }

    /// Returns the names and numbers of the resources that the server holds.
    fn held(&self) -> [(&'static str, u64); 6] {
        let connections = self.simulation.device(0).connections().unwrap().len() as u64;
        // An engine always holds two send buffers.
        let buffers = (self.buffers as u64 - self.counter("send_buffers_free")).saturating_sub(2);
        [
            ("connections", connections),
            ("queue pairs of the program", self.door.qps.len() as u64),
            ("octets of incomplete FPDUs", self.counter("incomplete_octets")),
            ("send buffers in use", buffers),
            ("connections that wait for buffers", self.counter("waiting_for_buffers")),
            ("octets put aside", self.counter("aside_octets")),
        ]
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.simulation.device(0).attributes().unwrap().counters;
        counters.iter().find(|(n, _)| *n == name).unwrap().1
    }

    /// Checks that the old connection and a new connection work, without a delay.
    fn honest(&mut self, what: &str) {
        let before = self.simulation.now();
        works(&mut self.simulation, &self.server, &self.client);
        let took = self.simulation.now() - before;
        assert!(took < SHORT, "{what}: a round takes {took:?}");

        let before = self.simulation.now();
        let newcomer = End::new(&self.simulation.device(1));
        let asked = newcomer.events.connect(&newcomer.qp, address(0), &ConnParam::default());
        let connection = asked.unwrap();
        let mut event = None;
        self.run(LIMIT, |_| {
            event = event.take().or_else(|| newcomer.events.poll());
            event.is_some()
        });
        assert!(matches!(event, Some(CmEvent::Established { .. })), "{what}: a newcomer is told {event:?}");
        let took = self.simulation.now() - before;
        assert!(took < SHORT, "{what}: a connect takes {took:?}");
        connection.disconnect().unwrap();
    }
}

fn besiege(what: &str, kind: &Kind) {
    besiege_with(what, kind, |_| {});
}

fn besiege_with(what: &str, kind: &Kind, change: MpaChange) {
    let mut field = Field::new(kind, change);
    field.honest("in peace");
    field.run(Duration::from_secs(60), |_| false);
    let start = field.held();
    let peers = field.attack(kind);
    // Together, these pauses take 36 seconds.
    for pause in [0, 1, 10, 100, 300, 1000, 5000, 10_000, 20_000] {
        field.run(Duration::from_millis(pause), |_| false);
        field.honest(what);
    }
    // The server gets back the resources that the peers took.
    for peer in peers {
        field.raw(peer).abort(peer.1);
    }
    field.run(Duration::from_secs(60), |_| false);
    field.honest(what);
    field.run(Duration::from_secs(60), |_| false);
    assert_eq!(field.held(), start, "{what}");
}

fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut fpdu = u16::try_from(ulpdu.len()).unwrap().to_be_bytes().to_vec();
    fpdu.extend(ulpdu);
    fpdu.resize(fpdu.len().next_multiple_of(4), 0);
    let crc = urnic_crc::finish(urnic_crc::crc32c(urnic_crc::INIT, &fpdu));
    fpdu.extend(crc.to_le_bytes());
    fpdu
}

/// Makes an untagged DDP segment, the last of its message.
fn untagged(opcode: u8, queue: u32, msn: u32, offset: u32, payload: &[u8]) -> Vec<u8> {
    let words = [0, queue, msn, offset].map(u32::to_be_bytes);
    [&[0x41, 0x40 | opcode], words.as_flattened(), payload].concat()
}

fn write(stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    [&[0xc1, 0x40][..], &stag.to_be_bytes(), &to.to_be_bytes(), payload].concat()
}

/// Makes `count` Reads of the hall.
fn reads(stag: u32, to: u64, count: u32) -> Vec<u8> {
    reads_of(stag, to, count, HALL as u32)
}

fn reads_of(stag: u32, to: u64, count: u32, size: u32) -> Vec<u8> {
    let read = |msn| {
        let size = size.to_be_bytes();
        let request = [&[0, 0, 0, 1][..], &[0; 8], &size, &stag.to_be_bytes(), &to.to_be_bytes()].concat();
        fpdu(&untagged(1, 1, msn, 0, &request))
    };
    (1..=count).flat_map(read).collect()
}

const SILENT: Kind = Kind {
    hosts: 1,
    starts_up: false,
    says: None,
    deaf: false,
    attentive: 0,
    misses_reply: false,
    buffers: BUFFERS,
    ends: Ending::Never,
};
const STARTED: Kind = Kind { starts_up: true, ..SILENT };

/// The events of many connections of one host do not delay a newcomer's request to the program.
#[test]
fn a_request_does_not_wait_behind_the_ends_of_others() {
    let mut field = Field::new(&STARTED, |_| {});
    let peers = field.attack(&STARTED);
    for peer in peers {
        field.raw(peer).abort(peer.1);
    }
    let wait = |field: &mut Field| {
        let limit = field.simulation.now() + Duration::from_millis(10);
        field.simulation.run(limit, || false);
    };
    wait(&mut field);
    let newcomer = End::new(&field.simulation.device(1));
    let _connection = newcomer.events.connect(&newcomer.qp, address(0), &ConnParam::default()).unwrap();
    wait(&mut field);
    let events: Vec<CmEvent> = std::iter::from_fn(|| field.door.events.poll()).collect();
    let request = |event: &CmEvent| matches!(event, CmEvent::ConnectRequest(_));
    assert!(events.len() > PEERS / 4, "{}", events.len());
    assert!(events.iter().position(request).is_some_and(|at| at <= 1), "{:?}", &events[..10]);
}

/// SEC-19: the peers of one host stop sending within an FPDU of 65,024 octets.
#[test]
fn fpdus_that_stop_inside() {
    besiege(
        "stop inside",
        &Kind { says: Some(|_, _| fpdu(&write(1, 0, &[0; 65_004]))[..60_000].into()), ..STARTED },
    );
}

/// Sent data occupies buffers until the peer acknowledges it. One host cannot occupy all of them.
#[test]
fn reads_that_nobody_acknowledges() {
    besiege("vanish", &Kind { says: Some(|stag, to| reads(stag, to, 8)), deaf: true, ..STARTED });
}

/// Many hosts cannot occupy all send buffers either, because the server puts aside data that they do not acknowledge:
/// it copies the data and frees the buffers.
#[test]
fn reads_that_nobody_acknowledges_from_many_hosts() {
    for hosts in [12, 100] {
        let kind = Kind { hosts, says: Some(|stag, to| reads(stag, to, 8)), deaf: true, ..STARTED };
        besiege(&format!("{hosts} hosts vanish"), &kind);
    }
}

/// Data that was put aside arrives when the peers can receive again.
#[test]
fn what_was_put_aside_is_not_lost() {
    const SIZE: usize = 32 << 10;
    let read = |stag, to| reads_of(stag, to, 1, SIZE as u32);
    let kind = Kind { hosts: 12, says: Some(read), deaf: true, ..STARTED };
    let mut field = Field::new(&kind, |_| {});
    let text = pattern(SIZE, 9);
    field.door.hall.write_at(0, &text).unwrap();
    let peers = field.attack(&kind);
    field.run(Duration::from_millis(50), |_| false);
    assert!(field.counter("aside_octets") > 1 << 20, "{}", field.counter("aside_octets"));
    field.deaf.set(false);
    field.run(Duration::from_secs(30), |_| false);
    for peer in peers {
        let heard = field.raw(peer).heard(peer.1);
        // The data follows the Reply.
        assert_eq!(payloads(&heard[20..]), text, "of {} octets", heard.len());
    }
    assert_eq!(field.counter("aside_octets"), 0);
}

/// Returns the payloads of tagged FPDUs, one after the other. Checks that each FPDU is whole and correct.
fn payloads(mut stream: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some((length, _)) = stream.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(*length));
        let (covered, rest) = stream.split_at((2 + length).next_multiple_of(4));
        let crc = urnic_crc::finish(urnic_crc::crc32c(urnic_crc::INIT, covered));
        assert_eq!(rest[..4], crc.to_le_bytes());
        all.extend_from_slice(&covered[16..2 + length]);
        stream = &rest[4..];
    }
    all
}

/// When the memory for data that is put aside is used up, peers that acknowledge nothing lose their connections after a
/// while. Other peers keep theirs.
#[test]
fn what_is_put_aside_is_bounded() {
    const MOST: usize = 256 << 10;
    let says: fn(u32, u64) -> Vec<u8> = |stag, to| reads(stag, to, 8);
    let kind = Kind { hosts: 40, attentive: 1, says: Some(says), deaf: true, ..STARTED };
    let mut field = Field::new(&kind, |mpa| mpa.aside_max = MOST);
    let peers = field.attack(&kind);
    let before = field.door.qps.len() as u64;
    let mut most = 0;
    for _ in 0..50 {
        field.run(Duration::from_millis(100), |_| false);
        most = most.max(field.counter("aside_octets"));
    }
    assert!(most > MOST as u64 / 2 && most < MOST as u64 + 2000, "{most} octets are put aside");
    let lost = before - field.door.qps.len() as u64;
    assert!(lost > 0 && lost < before, "{lost} of {before} connections end");
    assert_eq!(field.counter("aside_displaced"), lost);
    field.run(Duration::from_secs(10), |_| false);
    let attentive: Vec<_> = peers.into_iter().filter(|(host, _)| *host == kind.hosts - 1).collect();
    assert!(!attentive.is_empty());
    for peer in attentive {
        let raw = field.raw(peer);
        assert!(
            raw.seen.closed.iter().all(|(gone, _)| *gone != peer.1),
            "an attentive peer has lost its connection"
        );
        assert!(raw.heard(peer.1).len() > 8 * HALL, "an attentive peer has not got its data");
    }
    field.honest("others have gone");
}

/// The Replies to the Requests of a host that has become deaf occupy buffers too. There are fewer buffers than peers,
/// and the host cannot occupy all of them.
#[test]
fn start_ups_that_nobody_acknowledges() {
    let kind = Kind { deaf: true, misses_reply: true, buffers: 256, ..STARTED };
    besiege("start up, vanish", &kind);
}

#[test]
fn connections_without_a_word() {
    besiege("idle", &Kind::default());
}

#[test]
fn half_a_request() {
    besiege("half", &Kind { says: Some(|_, _| b"MPA ID R".into()), ..Kind::default() });
    besiege(
        "half, FIN",
        &Kind { says: Some(|_, _| b"MPA ID R".into()), ends: Ending::Fin, ..Kind::default() },
    );
}

#[test]
fn what_is_no_request() {
    besiege("garbage", &Kind { says: Some(|_, _| b"GET / HTTP/1.1\r\n\r\n".repeat(100)), ..Kind::default() });
}

#[test]
fn silence_and_half_closed_streams() {
    besiege("silent", &STARTED);
    besiege("half closed", &Kind { ends: Ending::Fin, ..STARTED });
    besiege("reset", &Kind { ends: Ending::Reset, ..STARTED });
}

#[test]
fn ends_within_an_fpdu() {
    for ends in [Ending::Fin, Ending::Reset] {
        besiege(
            "cut",
            &Kind { says: Some(|_, _| fpdu(&write(1, 0, &[0; 9000]))[..5000].into()), ends, ..STARTED },
        );
    }
}

/// A faulty FPDU (MPA-37, DDP-49, DDP-51, DDP-65) ends only its own stream.
#[test]
fn wrong_fpdus() {
    let wrong: [fn(u32, u64) -> Vec<u8>; 6] = [
        |stag, to| [fpdu(&write(stag, to, &[1; 64])), vec![0; 64]].concat(),
        |_, _| {
            let mut fpdu = fpdu(&write(1, 0, &[0; 500]));
            fpdu[100] ^= 1;
            fpdu
        },
        |_, _| fpdu(&untagged(3, 0, 1, 4095, b"x")),
        |_, _| fpdu(&untagged(3, 7, 1, 0, b"x")),
        |_, _| fpdu(&untagged(9, 0, 1, 0, b"x")),
        |_, _| fpdu(&untagged(7, 2, 1, 0, &[0; 4])),
    ];
    for says in wrong {
        besiege("wrong", &Kind { says: Some(says), ..STARTED });
    }
}

#[test]
fn reads_beyond_what_is_allowed() {
    besiege("reads beyond IRD", &Kind { says: Some(|stag, to| reads(stag, to, 500)), ..STARTED });
}

#[test]
fn sends_without_receives() {
    let sends: fn(u32, u64) -> Vec<u8> =
        |_, _| (1..200).flat_map(|msn| fpdu(&untagged(3, 0, msn, 0, &[7; 64]))).collect();
    besiege("sends", &Kind { says: Some(sends), ..STARTED });
}
