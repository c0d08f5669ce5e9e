//! A node that speaks TCP, and sends over it whatever the test chooses.

use super::{End, LIMIT, address, frames};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use urnic::simulation::{Host, Options, Simulation};
use urnic_tcp::{
    BindId, Buffers, CloseReason, ConnId, Emit, Frame, Handler, LocalPorts, Payload, Stack, StackConfig,
    Time, Transmit,
};

pub struct Plain;

impl Buffers for Plain {
    type Frame = Octets;
    type Payload = Octets;
}

#[derive(Clone)]
pub struct Octets(Rc<[u8]>);

impl Frame for Octets {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Payload for Octets {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn sum(&self, range: Range<usize>) -> u16 {
        urnic_crc::sum(&self.0[range])
    }
}

/// Frames to be sent.
#[derive(Default)]
pub struct Out(Vec<Vec<u8>>);

impl Transmit<Octets> for Out {
    fn room(&self) -> usize {
        4096usize.saturating_sub(self.0.len())
    }

    fn emit(&mut self, emit: Emit<'_, Octets>) {
        let mut frame = emit.headers.to_vec();
        for piece in emit.payload {
            frame.extend_from_slice(&piece.payload.0[piece.range.clone()]);
        }
        self.0.push(frame);
    }
}

/// The events of the node's connections.
#[derive(Default)]
pub struct Seen {
    pub accepted: Vec<ConnId>,
    pub connected: Vec<ConnId>,
    pub finished: Vec<ConnId>,
    pub closed: Vec<(ConnId, CloseReason)>,
    pub data: HashMap<ConnId, Vec<u8>>,
    /// Lengths of the pieces in which data arrived. If no segment was lost, the pieces are the segments.
    pub pieces: HashMap<ConnId, Vec<usize>>,
    /// The pieces of all connections in order of arrival: the connection and the length of each piece.
    pub order: Vec<(ConnId, usize)>,
    /// Whether the node takes no data, so that its windows shut.
    pub full: bool,
}

impl Handler<Octets> for Seen {
    fn accepted(&mut self, _: BindId, conn: ConnId, _: SocketAddr) -> u64 {
        self.accepted.push(conn);
        0
    }

    fn connected(&mut self, conn: ConnId, _: u64) {
        self.connected.push(conn);
    }

    fn data(
        &mut self,
        conn: ConnId,
        _: u64,
        frame: Octets,
        range: Range<usize>,
    ) -> Option<(Octets, Range<usize>)> {
        if self.full {
            return Some((frame, range));
        }
        self.pieces.entry(conn).or_default().push(range.len());
        self.order.push((conn, range.len()));
        self.data.entry(conn).or_default().extend_from_slice(&frame.0[range]);
        None
    }

    fn acked(&mut self, _: ConnId, _: u64, _: u64) {}

    fn finished(&mut self, conn: ConnId, _: u64) {
        self.finished.push(conn);
    }

    fn closed(&mut self, conn: ConnId, _: u64, reason: CloseReason) {
        self.closed.push((conn, reason));
    }
}

/// The node's stack, for the test to use between steps.
pub struct Raw {
    pub stack: Stack<Plain>,
    pub seen: Seen,
    out: Out,
    now: Time,
    listener: Option<BindId>,
    /// A time beyond which the simulation must not advance in one step, even if nothing else happens until then;
    /// `None`: no such time.
    pub wake: Option<Duration>,
    /// Whether the node ignores all frames.
    pub deaf: bool,
    /// Whether the node drops its own segments that only acknowledge.
    pub keeps_acks: bool,
}

/// Makes node number `node` of a simulation, and the test's handle to this node.
pub fn node(node: usize) -> (Rc<RefCell<Raw>>, Box<dyn Host>) {
    node_of_mtu(node, 1500)
}

fn node_of_mtu(node: usize, mtu: u16) -> (Rc<RefCell<Raw>>, Box<dyn Host>) {
    let (mac, ip) = (Simulation::mac(node), Simulation::address(node));
    let config = StackConfig { mtu, ..StackConfig::new(mac, ip, 24, 77 + node as u64) };
    let stack = Stack::new(config, Box::new(LocalPorts::new(node as u64)), Time(0)).unwrap();
    let raw = Rc::new(RefCell::new(Raw {
        stack,
        seen: Seen::default(),
        out: Out::default(),
        now: Time(0),
        listener: None,
        wake: None,
        deaf: false,
        keeps_acks: false,
    }));
    (raw.clone(), Box::new(Shared(raw)))
}

/// Makes a simulation of one device, number 0, and a node that speaks TCP, number 1.
pub fn with_raw(options: &Options) -> (Simulation, End, Rc<RefCell<Raw>>) {
    let (raw, host) = node_of_mtu(1, options.mtu);
    let simulation = Simulation::with_hosts(&Options { devices: 1, ..options.clone() }, vec![host]).unwrap();
    let end = End::new(&simulation.device(0));
    (simulation, end, raw)
}

/// The path to the raw node.
pub struct Path {
    /// The largest packet that the path carries, in octets.
    pub mtu: Cell<usize>,
    /// Whether the sender of a larger packet gets an ICMP message.
    pub tells: bool,
    /// Number of packets that were too large.
    pub refused: Cell<usize>,
}

/// Makes a simulation as [`with_raw`] does. Frames to the raw node take the returned path.
pub fn with_path(options: &Options, tells: bool) -> (Simulation, End, Rc<RefCell<Raw>>, Rc<Path>) {
    let (raw, host) = node_of_mtu(1, options.mtu);
    let path = Rc::new(Path { mtu: Cell::new(usize::MAX), tells, refused: Cell::new(0) });
    let host = Box::new(Behind(host, path.clone()));
    let simulation = Simulation::with_hosts(&Options { devices: 1, ..options.clone() }, vec![host]).unwrap();
    let end = End::new(&simulation.device(0));
    (simulation, end, raw, path)
}

struct Behind(Box<dyn Host>, Rc<Path>);

impl Host for Behind {
    fn turn(
        &mut self,
        now: Duration,
        arrived: &mut VecDeque<Vec<u8>>,
        send: &mut Vec<Vec<u8>>,
    ) -> Option<Duration> {
        let mtu = self.1.mtu.get();
        arrived.retain(|frame| {
            let fits = frame.len() - 14 <= mtu;
            if !fits {
                self.1.refused.set(self.1.refused.get() + 1);
                send.extend(self.1.tells.then(|| too_big(frame, mtu as u16)));
            }
            fits
        });
        self.0.turn(now, arrived, send)
    }
}

/// Returns whether a frame is a TCP segment over IPv4 that only acknowledges.
fn only_acknowledges(frame: &[u8]) -> bool {
    frames::heard(frame).is_some_and(|heard| heard.flags == frames::ACK && heard.payload.is_empty())
}

/// Makes a router's message about an IPv4 packet that it cannot forward (RFC 1191 §4).
fn too_big(frame: &[u8], mtu: u16) -> Vec<u8> {
    let packet = &frame[14..];
    let message = frames::icmp(3, 4, mtu.into(), &packet[..28]);
    let address = |at: usize| <[u8; 4]>::try_from(&packet[at..at + 4]).unwrap().into();
    let answer = frames::ipv4(address(16), address(12), frames::ICMP, 0, &message);
    frames::ethernet(&frame[6..12], frame[..6].try_into().unwrap(), frames::IPV4, &answer)
}

/// Runs until `done` returns `true`.
pub fn until(simulation: &mut Simulation, what: &str, done: impl FnMut() -> bool) {
    let limit = simulation.now() + LIMIT;
    assert!(simulation.run(limit, done), "{what}: not within {LIMIT:?}");
}

/// Makes a TCP connection from the raw node to the device.
pub fn raw_connection(simulation: &mut Simulation, raw: &Rc<RefCell<Raw>>) -> ConnId {
    let conn = raw.borrow_mut().connect(address(0));
    until(simulation, "TCP handshake", || raw.borrow().seen.connected.contains(&conn));
    conn
}

pub fn closed(raw: &Rc<RefCell<Raw>>, conn: ConnId) -> Option<CloseReason> {
    raw.borrow().seen.closed.iter().find(|(c, _)| *c == conn).map(|(_, reason)| *reason)
}

pub fn finished(raw: &Rc<RefCell<Raw>>, conn: ConnId) -> bool {
    raw.borrow().seen.finished.contains(&conn)
}

impl Raw {
    pub fn connect(&mut self, to: SocketAddr) -> ConnId {
        self.stack.connect(self.now, to, 1, &mut self.out).unwrap()
    }

    pub fn listen(&mut self, port: u16, backlog: usize) {
        self.listener = Some(self.stack.listen_on(port, backlog).unwrap());
    }

    pub fn unlisten(&mut self) {
        if let Some(listener) = self.listener.take() {
            self.stack.unbind(listener);
        }
    }

    pub fn send(&mut self, conn: ConnId, octets: &[u8]) {
        self.stack.send(conn, Octets(octets.into())).unwrap();
        self.stack.output(self.now, conn, &mut self.out);
    }

    /// Sends `octets` and closes, in one segment if they fit.
    pub fn send_last(&mut self, conn: ConnId, octets: &[u8]) {
        self.stack.send(conn, Octets(octets.into())).unwrap();
        self.close(conn);
    }

    pub fn close(&mut self, conn: ConnId) {
        self.stack.close(self.now, conn, &mut self.out);
    }

    pub fn abort(&mut self, conn: ConnId) {
        self.stack.abort(self.now, conn, &mut self.out);
    }

    /// Takes no data from now on if `full`, so that the windows shut; otherwise takes data again, first the
    /// data that waits on `conn`.
    pub fn fill(&mut self, conn: ConnId, full: bool) {
        self.seen.full = full;
        if !full {
            self.stack.resume(self.now, conn, &mut self.seen, &mut self.out);
        }
    }

    /// Returns the octets that have arrived on `conn`.
    pub fn heard(&self, conn: ConnId) -> Vec<u8> {
        self.seen.data.get(&conn).cloned().unwrap_or_default()
    }
}

struct Shared(Rc<RefCell<Raw>>);

impl Host for Shared {
    fn turn(
        &mut self,
        now: Duration,
        arrived: &mut VecDeque<Vec<u8>>,
        send: &mut Vec<Vec<u8>>,
    ) -> Option<Duration> {
        let Raw { stack, seen, out, now: last, wake, deaf, keeps_acks, .. } = &mut *self.0.borrow_mut();
        *last = Time(now.as_nanos() as u64);
        if *deaf {
            arrived.clear();
        }
        for frame in arrived.drain(..) {
            stack.receive(*last, Octets(frame.into()), seen, out);
        }
        stack.advance(*last, seen, out);
        stack.flush(*last, out);
        if *keeps_acks {
            out.0.retain(|frame| !only_acknowledges(frame));
        }
        send.append(&mut out.0);
        wake.take_if(|at| *at <= now);
        stack.next_deadline().map(|at| Duration::from_nanos(at.0)).into_iter().chain(*wake).min()
    }
}
