//! The application above the fuzzed stack: checks that what it is told makes sense.

use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpAddress, IpProtocol, Ipv4Packet, TcpPacket};
use std::cell::Cell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use urnic_tcp::{
    Buffers, CloseReason, ConnId, Emit, Frame, Handler, ListenerId, MAX_PIECES, Payload, Transmit, sum,
};

/// Counts the frames that are alive.
#[derive(Default)]
pub struct Held(Rc<Cell<usize>>);

impl Held {
    pub fn frame(&self, bytes: Vec<u8>, trusted: bool) -> Bytes {
        self.0.set(self.0.get() + 1);
        Bytes { bytes, trusted, alive: self.0.clone() }
    }

    pub fn count(&self) -> usize {
        self.0.get()
    }
}

pub struct Bytes {
    bytes: Vec<u8>,
    trusted: bool,
    alive: Rc<Cell<usize>>,
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.alive.set(self.alive.get() - 1);
    }
}

impl Frame for Bytes {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn checksum_trusted(&self) -> bool {
        self.trusted
    }
}

#[derive(Clone)]
pub struct Shared(Rc<[u8]>);

impl Shared {
    pub fn new(len: usize) -> Self {
        Shared(vec![0xa5; len].into())
    }
}

impl Payload for Shared {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn sum(&self, range: Range<usize>) -> u16 {
        sum::sum(&self.0[range])
    }
}

pub struct Vectors;

impl Buffers for Vectors {
    type Frame = Bytes;
    type Payload = Shared;
}

/// Takes frames and checks each.
pub struct Out {
    pub frames: Vec<Vec<u8>>,
    pub loopback: Vec<Vec<u8>>,
    pub limit: usize,
    mtu: usize,
    offload: bool,
}

impl Out {
    pub fn new(mtu: usize, offload: bool) -> Self {
        Out { frames: Vec::new(), loopback: Vec::new(), limit: 64, mtu, offload }
    }

    fn check(&self, frame: &[u8]) {
        let eth = EthernetFrame::new_checked(frame).expect("an Ethernet frame");
        assert!(eth.payload().len() <= self.mtu, "longer than the MTU");
        if eth.ethertype() != EthernetProtocol::Ipv4 {
            return;
        }
        let ip = Ipv4Packet::new_checked(eth.payload()).expect("an IPv4 packet");
        assert!(ip.verify_checksum());
        if ip.next_header() == IpProtocol::Tcp {
            let tcp = TcpPacket::new_checked(ip.payload()).expect("a TCP segment");
            let (src, dst) = (IpAddress::Ipv4(ip.src_addr()), IpAddress::Ipv4(ip.dst_addr()));
            assert!(self.offload || tcp.verify_checksum(&src, &dst));
        }
    }
}

impl Transmit<Shared> for Out {
    fn room(&self) -> usize {
        self.limit.saturating_sub(self.frames.len() + self.loopback.len())
    }

    fn emit(&mut self, e: Emit<'_, Shared>) {
        assert!(self.room() > 0, "emitted without room");
        assert!(e.payload.len() <= MAX_PIECES);
        let mut frame = e.headers.to_vec();
        for p in e.payload {
            frame.extend_from_slice(&p.payload.0[p.range.clone()]);
        }
        self.check(&frame);
        if e.loopback { self.loopback.push(frame) } else { self.frames.push(frame) }
    }
}

#[derive(Default)]
struct Conn {
    established: bool,
    finished: bool,
    queued: u64,
    acked: u64,
}

/// Connections that live.
#[derive(Default)]
pub struct App {
    conns: HashMap<ConnId, Conn>,
    order: Vec<ConnId>,
}

impl App {
    pub fn opened(&mut self, conn: ConnId) {
        assert!(self.conns.insert(conn, Conn::default()).is_none(), "an id that is in use");
        self.order.push(conn);
    }

    pub fn queued(&mut self, conn: ConnId, n: u64) {
        self.of(conn).queued += n;
    }

    pub fn nth(&self, n: usize) -> Option<ConnId> {
        if self.order.is_empty() { None } else { self.order.get(n % self.order.len()).copied() }
    }

    pub fn all(&self) -> Vec<ConnId> {
        self.order.clone()
    }

    fn forget(&mut self, conn: ConnId) {
        self.conns.remove(&conn);
        self.order.retain(|c| *c != conn);
    }

    fn of(&mut self, conn: ConnId) -> &mut Conn {
        self.conns.get_mut(&conn).expect("a connection that lives")
    }
}

impl Handler<Bytes> for App {
    fn accepted(&mut self, _: ListenerId, conn: ConnId, _: SocketAddr) {
        self.opened(conn);
        self.of(conn).established = true;
    }

    fn connected(&mut self, conn: ConnId, tag: u64) {
        assert_eq!(tag, 5);
        let c = self.of(conn);
        assert!(!c.established);
        c.established = true;
    }

    fn data(&mut self, conn: ConnId, _: u64, frame: Bytes, range: Range<usize>) {
        let c = self.of(conn);
        assert!(c.established && !c.finished, "data before the handshake or after the FIN");
        assert!(!range.is_empty() && frame.bytes.get(range).is_some(), "a range outside of the frame");
    }

    fn acked(&mut self, conn: ConnId, _: u64, bytes: u64) {
        let c = self.of(conn);
        c.acked += bytes;
        assert!(c.acked <= c.queued, "more ACKed than sent");
    }

    fn finished(&mut self, conn: ConnId, _: u64) {
        let c = self.of(conn);
        assert!(!c.finished);
        c.finished = true;
    }

    fn closed(&mut self, conn: ConnId, _: u64, _: CloseReason) {
        assert!(self.conns.contains_key(&conn), "closed twice");
        self.forget(conn);
    }
}
