//! The peer of an RNIC: an ordinary program that speaks MPA, DDP and RDMAP over the kernel's TCP.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::Sender;

use urnic_iwarp::startup::{Initiator, Limits, Offer, Outcome, Progress, Request, Responder};
use urnic_iwarp::{Delivery, Negotiated, Op};

use super::node::{PORT, Place, SERVER, pattern};
use super::rdma::LEN;
use super::support::Node;
use super::{child, kernel};

const STAG: u32 = 0x1234_5678;
/// First tagged offset of the memory. It is not an address, because tagged offsets need not be addresses.
const BASE: u64 = 0xffff_0000_0000;
/// Octets of a ULPDU. The size does not match the segments, so that FPDUs begin at any place in a segment.
const MULPDU: usize = 3000;

const OURS: Place = Place { addr: BASE, rkey: STAG };

/// Connects to the RNIC as the initiator, and does the exchange.
pub fn initiate(rev: u8, crc: bool) {
    let to = SocketAddr::from((SERVER, PORT));
    let mut stream = TcpStream::connect_timeout(&to, child::PATIENCE).expect("a connection");
    limit(&stream);
    let private_data = OURS.encode();
    let offer = Offer { rev, crc, private_data: &private_data, ..Offer::default() };
    let (mut initiator, request) = Initiator::new(&offer).expect("an offer");
    stream.write_all(&request).expect("the request");
    let mut octet = [0];
    let (negotiated, said) = loop {
        stream.read_exact(&mut octet).expect("the reply");
        match initiator.receive(&octet).expect("a reply") {
            Progress::NeedMore { .. } => {}
            Progress::Done { outcome: Outcome::Accepted(negotiated, _, said), .. } => {
                break (negotiated, said);
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(negotiated.crc, crc);
    let mut peer = Peer::new(stream, &negotiated);
    peer.say(b"go");
    peer.exchange(Place::decode(&said), &[]);
}

/// Waits for the RNIC's connection as the responder, and does the exchange.
pub fn respond(ready: &Sender<()>) {
    let listener = TcpListener::bind((SERVER, PORT)).expect("a listener");
    ready.send(()).expect("the test waits");
    let mut stream = kernel::accept(&listener);
    limit(&stream);
    let mut responder = Responder::new(Limits::default());
    let mut octet = [0];
    let said = loop {
        stream.read_exact(&mut octet).expect("the request");
        match responder.receive(&octet).expect("a request") {
            Request::NeedMore => {}
            Request::Arrived(_, said) => break said,
        }
    };
    let private_data = OURS.encode();
    let (reply, negotiated) =
        responder.accept(&Offer { private_data: &private_data, ..Offer::default() }).expect("terms");
    stream.write_all(&reply).expect("the reply");
    Peer::new(stream, &negotiated).exchange(Place::decode(&said), &[b"go"]);
}

fn limit(stream: &TcpStream) {
    stream.set_read_timeout(Some(child::PATIENCE)).expect("an option");
    stream.set_write_timeout(Some(child::PATIENCE)).expect("an option");
}

struct Peer {
    stream: TcpStream,
    node: Node,
}

impl Peer {
    fn new(stream: TcpStream, negotiated: &Negotiated) -> Self {
        let mut node = Node::new(negotiated);
        let region = node.memory.add(STAG, BASE, 3 * LEN);
        region.data_mut()[LEN..2 * LEN].copy_from_slice(&pattern(3, LEN));
        (0..4).for_each(|_| node.memory.post_receive(64));
        Self { stream, node }
    }

    fn flush(&mut self) {
        let octets = self.node.take_out();
        self.stream.write_all(&octets).expect("sending");
    }

    fn say(&mut self, word: &[u8]) {
        self.node.send(Op::Send { solicited: false, invalidate: None }, word, MULPDU).expect("a Send");
        self.flush();
    }

    /// Receives, and answers Reads, until `done` returns `true`.
    fn until(&mut self, what: &str, done: impl Fn(&Node) -> bool) {
        let mut octets = vec![0; 64 << 10];
        while !done(&self.node) {
            let n = self.stream.read(&mut octets).expect("receiving");
            assert!(n > 0, "the connection ends before {what}");
            self.node.receive(&octets[..n]).expect("valid FPDUs");
            self.node.respond(MULPDU);
            self.flush();
        }
    }

    /// Does the peer's part of the exchange that the module `rdma` describes.
    fn exchange(mut self, theirs: Place, first: &[&[u8]]) {
        self.until("the first word", |node| node.memory.received.len() >= first.len());
        self.node
            .send(Op::Write { stag: theirs.rkey, to: theirs.addr }, &pattern(1, LEN), MULPDU)
            .expect("a Write");
        self.say(b"written");
        let words = first.len() + 1;
        self.until("the answer", |node| node.memory.received.len() >= words);
        let expected: Vec<&[u8]> = [first, &[b"answered"]].concat();
        assert_eq!(self.node.memory.received, expected);
        assert!(self.node.memory.region(STAG).data()[..LEN] == pattern(2, LEN), "what was written to us");
        let sink = (STAG, BASE + 2 * LEN as u64);
        self.node.read(LEN as u32, sink, (theirs.rkey, theirs.addr)).expect("a Read");
        self.flush();
        let read = |event: &Delivery| matches!(event, Delivery::ReadDone { .. });
        self.until("the Read Response", |node| node.memory.events.iter().any(read));
        assert!(self.node.memory.region(STAG).data()[2 * LEN..] == pattern(1, LEN), "what we read");
        self.say(b"bye");
        self.stream.shutdown(Shutdown::Write).expect("the end");
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).expect("their end");
        assert!(rest.is_empty() && self.node.memory.guards_intact());
    }
}
