//! A stack in memory, the application above it, and the frames that the stack has sent.

use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpAddress, IpProtocol, Ipv4Packet, TcpPacket};
use std::rc::Rc;
use urnic_tcp::{
    Buffers, ConfigError, Emit, Frame, Handler, LocalPorts, MAX_PIECES, Stack, StackConfig, Time, Transmit,
};

/// A frame that is given to a host. The host counts how many of these frames are alive.
pub struct Bytes {
    bytes: Vec<u8>,
    trusted: bool,
    _alive: Rc<()>,
}

impl Frame for Bytes {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn checksum_trusted(&self) -> bool {
        self.trusted
    }
}

/// Octets that an application gives to the stack to send.
pub type Record = Rc<[u8]>;

/// The kinds of buffers of the stack: frames that arrive, and records to send.
pub struct Memory;

impl Buffers for Memory {
    type Frame = Bytes;
    type Payload = Record;
}

/// Takes frames from the stack, and checks each.
pub struct Out {
    pub frames: Vec<Vec<u8>>,
    pub loopback: Vec<Vec<u8>>,
    /// The maximum number of frames that `frames` and `loopback` hold together.
    pub limit: usize,
    mtu: usize,
    offload: bool,
}

impl Out {
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

impl Transmit<Record> for Out {
    fn room(&self) -> usize {
        self.limit.saturating_sub(self.frames.len() + self.loopback.len())
    }

    fn emit(&mut self, e: Emit<'_, Record>) {
        assert!(self.room() > 0, "emitted without room");
        assert!(e.payload.len() <= MAX_PIECES);
        let mut frame = e.headers.to_vec();
        for p in e.payload {
            assert!(!p.range.is_empty(), "empty piece");
            frame.extend_from_slice(&p.payload[p.range.clone()]);
        }
        self.check(&frame);
        if e.loopback { self.loopback.push(frame) } else { self.frames.push(frame) }
    }
}

pub struct Host<A> {
    pub stack: Stack<Memory>,
    pub app: A,
    pub out: Out,
    alive: Rc<()>,
}

impl<A: Handler<Bytes>> Host<A> {
    pub fn new(config: StackConfig, app: A) -> Result<Self, ConfigError> {
        let ports = Box::new(LocalPorts::new(config.seed));
        let out = Out {
            frames: Vec::new(),
            loopback: Vec::new(),
            limit: 64,
            mtu: config.mtu.into(),
            offload: config.checksum_offload_tx,
        };
        Ok(Host { stack: Stack::new(config, ports, Time::ZERO)?, app, out, alive: Rc::new(()) })
    }

    pub fn receive(&mut self, now: Time, bytes: Vec<u8>, trusted: bool) {
        let frame = Bytes { bytes, trusted, _alive: self.alive.clone() };
        self.stack.receive(now, frame, &mut self.app, &mut self.out);
    }

    pub fn pass(&mut self, now: Time) {
        self.stack.advance(now, &mut self.app, &mut self.out);
        self.flush(now);
    }

    pub fn flush(&mut self, now: Time) {
        self.stack.flush(now, &mut self.out);
    }

    /// Delivers the frames that this host sent to itself. Returns `false` if there were none.
    pub fn loop_back(&mut self, now: Time) -> bool {
        let frames = std::mem::take(&mut self.out.loopback);
        let some = !frames.is_empty();
        for frame in frames {
            self.receive(now, frame, true);
        }
        some
    }

    /// Returns how many received frames the stack still holds.
    pub fn held(&self) -> usize {
        Rc::strong_count(&self.alive) - 1
    }
}
