//! The engine's TCP on a port, without RDMA, in a child process.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use urnic_config::{Mac, PortSpec};
use urnic_dataplane::{BURST, Clock, Eal, EalConfig, Mbuf, Port, PortOptions, TxQueue};
use urnic_tcp::{
    BindId, Buffers, Claim, CloseReason, ConnId, Emit, Frame, Handler, LocalPorts, Payload, Stack,
    StackConfig, Time, Transmit,
};

use super::child;

/// The ports on which the engine and the kernel listen.
pub const SERVER_PORT: u16 = 5001;
pub const CLIENT_PORT: u16 = 5002;

/// The content of a stream, which is known at every offset, and the hash of the content so far.
pub struct Content {
    block: Vec<u8>,
    pub at: u64,
    crc: u32,
}

impl Content {
    /// Bytes after which the content repeats. This is a multiple of no other size in these tests.
    const PERIOD: usize = 1_000_003;

    pub fn new(seed: u64) -> Self {
        Self { block: super::node::pattern(seed, Self::PERIOD), at: 0, crc: urnic_crc::INIT }
    }

    /// Returns the next bytes, up to offset `end`, but at most `most` bytes.
    pub fn next(&mut self, end: u64, most: usize) -> Vec<u8> {
        let from = (self.at % Self::PERIOD as u64) as usize;
        let len = (end - self.at).min(most as u64).min((Self::PERIOD - from) as u64) as usize;
        let bytes = self.block[from..from + len].to_vec();
        self.take(&bytes);
        bytes
    }

    /// Checks that `bytes` are the next bytes of the content.
    pub fn check(&mut self, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            let at = ((self.at + i as u64) % Self::PERIOD as u64) as usize;
            assert_eq!(*byte, self.block[at], "wrong data at byte {}", self.at + i as u64);
        }
        self.take(bytes);
    }

    fn take(&mut self, bytes: &[u8]) {
        self.crc = urnic_crc::crc32c(self.crc, bytes);
        self.at += bytes.len() as u64;
    }

    pub fn hash(&self) -> u32 {
        urnic_crc::finish(self.crc)
    }
}

struct Plain;

impl Buffers for Plain {
    type Frame = Received;
    type Payload = Octets;
}

struct Received(Mbuf);

impl Frame for Received {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn checksum_trusted(&self) -> bool {
        self.0.checksum_trusted()
    }
}

#[derive(Clone)]
struct Octets(std::rc::Rc<[u8]>);

impl Payload for Octets {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn sum(&self, range: Range<usize>) -> u16 {
        urnic_crc::sum(&self.0[range])
    }
}

struct Wire {
    port: Port,
    queue: TxQueue,
}

impl Transmit<Octets> for Wire {
    fn room(&self) -> usize {
        self.queue.room()
    }

    fn emit(&mut self, emit: Emit<'_, Octets>) {
        let mut frame = emit.headers.to_vec();
        for piece in emit.payload {
            frame.extend_from_slice(&piece.payload.0[piece.range.clone()]);
        }
        // If the port has no buffer, the frame is lost, as on a wire.
        if let Some(frame) = self.port.frame(&frame, &[], false) {
            let _ = self.queue.push(frame);
        }
    }
}

/// The connection, and the state of its received data.
#[derive(Default)]
struct Seen {
    conn: Option<ConnId>,
    content: Option<Content>,
    closed: Option<CloseReason>,
    /// Offset beyond which the connection takes no octets for now; `None`: it takes all.
    takes_until: Option<u64>,
}

impl Handler<Received> for Seen {
    fn accepted(&mut self, _: BindId, conn: ConnId, _: SocketAddr) -> u64 {
        (self.conn, self.content) = (Some(conn), Some(Content::new(1)));
        0
    }

    fn connected(&mut self, conn: ConnId, _: u64) {
        (self.conn, self.content) = (Some(conn), Some(Content::new(1)));
    }

    fn data(
        &mut self,
        _: ConnId,
        _: u64,
        frame: Received,
        range: Range<usize>,
    ) -> Option<(Received, Range<usize>)> {
        let content = self.content.as_mut().expect("a connection");
        let until = self.takes_until.map_or(u64::MAX, |end| end - content.at);
        let rest = range.start + until.min(range.len() as u64) as usize..range.end;
        content.check(&frame.0[range.start..rest.start]);
        (!rest.is_empty()).then_some((frame, rest))
    }

    fn acked(&mut self, _: ConnId, _: u64, _: u64) {}

    fn finished(&mut self, _: ConnId, _: u64) {}

    fn closed(&mut self, _: ConnId, _: u64, reason: CloseReason) {
        self.closed = Some(reason);
    }
}

/// Serves connections one after the other, opens a connection when told to, and sends and receives on each. Our address
/// may be `autoconf`: the address that routers offer.
pub fn run() {
    let spec: PortSpec = child::arg(0);
    let (ours, kernel, mtu): (String, IpAddr, u16) = (child::arg(1), child::arg(2), child::arg(3));
    let (bytes, vlan): (u64, u16) = (child::arg(4), child::arg(5));
    // After each `stops_every` octets, the connection stops reading until the kernel has probed the shut window; 0:
    // never.
    let stops_every: u64 = child::arg(6);
    let eal = Eal::start(&EalConfig { memory_mb: 256, ..EalConfig::default() }).expect("EAL");
    let port = Port::open(&eal, &spec, &PortOptions { mtu, ..PortOptions::default() }).expect("the port");
    let mut wire = Wire { port, queue: TxQueue::new() };
    let clock = Clock::calibrate();
    let autoconf = ours == "autoconf";
    let ours: IpAddr = if autoconf { super::OURS6.parse() } else { ours.parse() }.expect("an address");
    let prefix_len = if ours.is_ipv4() { 24 } else { 64 };
    let vlan = Some(vlan).filter(|vlan| *vlan > 0);
    let mut config = StackConfig {
        mtu,
        vlan,
        autoconf,
        ..StackConfig::new(Mac::for_address(ours).0, ours, prefix_len, 99)
    };
    if autoconf {
        config.addresses.clear();
    }
    let ports = Box::new(LocalPorts::new(7));
    let mut stack = Stack::<Plain>::new(config, ports, Time(clock.now())).expect("a stack");
    stack.listen_on(SERVER_PORT, 4).expect("a listener");
    stack.claim_address(Time(clock.now()));

    let orders = child::orders();
    let (mut seen, mut sent, mut claimed) = (Seen::default(), Content::new(2), false);
    let mut progress = Instant::now();
    let mut probed = 0;
    seen.takes_until = (stops_every > 0).then_some(stops_every);
    loop {
        let now = Time(clock.now());
        match stack.claim() {
            // With `autoconf`, the stack must also have an address that a router has offered, beside the link-local
            // address.
            Claim::Held if !claimed && (!autoconf || stack.addresses().len() > 1) => {
                claimed = true;
                let ours: Vec<String> = stack.addresses().iter().map(|a| a.ip.to_string()).collect();
                child::say("open");
                if autoconf {
                    child::say(&ours.join(" "));
                }
            }
            Claim::Conflict(_) => {
                child::say(&format!("conflict about {}", stack.contested().expect("an address")));
                return;
            }
            _ => {}
        }
        match orders.try_recv() {
            Ok(_) => {
                let to = SocketAddr::new(kernel, CLIENT_PORT);
                stack.connect(now, to, 1, &mut wire).expect("a connection");
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
        let mut frames = ArrayVec::<Mbuf, BURST>::new();
        let mut busy = wire.port.rx_burst(&mut frames) > 0;
        for frame in frames {
            stack.receive(now, Received(frame), &mut seen, &mut wire);
        }
        if let Some(conn) = seen.conn {
            while sent.at < bytes && wire.room() > 0 && stack.room(conn) > 0 {
                let record = sent.next(bytes, stack.mss(conn).min(stack.room(conn)));
                stack.send(conn, Octets(record.into())).expect("room");
                stack.output(now, conn, &mut wire);
                busy = true;
                if sent.at == bytes {
                    stack.close(now, conn, &mut wire);
                }
            }
        }
        if let (Some(conn), Some(until), Some(content)) = (seen.conn, &mut seen.takes_until, &seen.content) {
            let shut = stack.info(conn).is_some_and(|info| info.rcv_wnd == 0);
            // Each probe of a shut window gets a challenge ACK, so `challenge_acks` counts the probes.
            if !shut {
                probed = stack.counters().challenge_acks;
            }
            let finished = content.at + stops_every >= bytes;
            if shut && stack.counters().challenge_acks >= probed + 2 || content.at == *until && finished {
                *until += stops_every;
                stack.resume(now, conn, &mut seen, &mut wire);
                busy = true;
            }
        }
        stack.advance(now, &mut seen, &mut wire);
        stack.flush(now, &mut wire);
        wire.port.tx_burst(&mut wire.queue);
        if let Some(reason) = seen.closed.take() {
            let received = seen.content.take().expect("a connection");
            assert_eq!(received.at, bytes, "bytes received");
            if stops_every > 0 {
                let c = stack.counters();
                assert!(c.windows_shut > 0 && c.windows_reopened > 0, "no window of ours was shut: {c:?}");
                assert!(c.window_probes > 0, "no window of the kernel's was shut: {c:?}");
            }
            let (out, back) = (sent.hash(), received.hash());
            child::say(&format!("{reason}: {bytes} bytes, sent {out:08x}, received {back:08x}"));
            let takes_until = (stops_every > 0).then_some(stops_every);
            (seen, sent) = (Seen { takes_until, ..Seen::default() }, Content::new(2));
        }
        if busy {
            progress = Instant::now();
        } else {
            assert!(progress.elapsed() < child::PATIENCE, "nothing happens: {:?}", stack.counters());
            if progress.elapsed() > Duration::from_millis(1) {
                std::thread::yield_now();
            }
        }
    }
}
