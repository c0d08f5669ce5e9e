//! Receives or sends a number of full segments and does nothing else. `scripts/instructions` and `scripts/bench`
//! count its instructions. Usage: `bulk urnic|urnic-copying|smoltcp receive|send SEGMENTS`.
//!
//! Both stacks talk to the same peer, whose frames are made in advance. Timestamps, SACK and window scaling are
//! negotiated. A segment carries 1448 octets. Each stack computes and verifies checksums with its own portable code.
//!
//! **Receiving**: the segments arrive in bursts of 32, and the stack answers each burst with one ACK. urnic hands on
//! each frame with the range of new octets. smoltcp copies the octets into its socket buffer and hands on slices of
//! the buffer. Neither program reads the octets.
//!
//! **Sending**: the peer's frames are ACKs, each for two segments, in bursts of 16. urnic queues references to the
//! program's octets, and passes headers with these references to the link, as for a port that gathers the pieces of a
//! frame. With smoltcp, the program copies its octets into the socket buffer, and smoltcp copies them from there into
//! the link's frame. In addition, urnic maintains a congestion window (CUBIC) and the times of sending (RACK).
//! smoltcp, as configured by default, has no congestion control.
//!
//! `urnic-copying` copies payload once, as smoltcp does when it receives: into a buffer of the program, or into the
//! frame.

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr,
    HardwareAddress, IpAddress, IpCidr, IpProtocol, Ipv4Packet, Ipv4Repr, TcpControl, TcpPacket, TcpRepr,
    TcpSeqNumber, TcpTimestampRepr,
};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use urnic_tcp::{
    BindId, Buffers, CloseReason, ConnId, Emit, Frame, Handler, LocalPorts, Piece, Stack, StackConfig, Time,
    Transmit,
};

/// Segments that are made in every run, so that making them costs the same each time.
const MOST: u32 = 8192;
/// Frames that a pass takes.
const BURST: usize = 32;
/// Octets of data in a segment: an MSS of 1460, less 12 for the timestamps option.
const DATA: usize = 1448;
/// The peer's window in segments, and its window scale.
const WINDOW: u32 = 64;
const SCALE: u8 = 7;
/// Octets of each stack's window.
const BUFFER: usize = 1 << 20;
/// Time between two passes.
const PASS: Duration = Duration::from_micros(50);

const PORT: u16 = 7;
const PEER_PORT: u16 = 5000;
const PEER_ISS: u32 = 77;
const PEER_TIMESTAMP: u32 = 1000;

fn ip(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, host)
}

fn mac(host: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, host]
}

/// Makes a frame of the peer, host 2.
fn ethernet(to: EthernetAddress, ethertype: EthernetProtocol, payload: &[u8]) -> &'static [u8] {
    let mut bytes = vec![0; 14 + payload.len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    EthernetRepr { src_addr: EthernetAddress(mac(2)), dst_addr: to, ethertype }.emit(&mut frame);
    frame.payload_mut().copy_from_slice(payload);
    bytes.leak()
}

fn arp() -> &'static [u8] {
    let repr = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: EthernetAddress(mac(2)),
        source_protocol_addr: ip(2),
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: ip(1),
    };
    let mut packet = vec![0; repr.buffer_len()];
    repr.emit(&mut ArpPacket::new_unchecked(&mut packet));
    ethernet(EthernetAddress::BROADCAST, EthernetProtocol::Arp, &packet)
}

/// Makes a segment of the peer.
fn segment(syn: bool, seq: u32, ack: Option<u32>, echo: u32, payload: &[u8]) -> &'static [u8] {
    let tcp = TcpRepr {
        src_port: PEER_PORT,
        dst_port: PORT,
        control: if syn { TcpControl::Syn } else { TcpControl::None },
        seq_number: TcpSeqNumber(seq as i32),
        ack_number: ack.map(|a| TcpSeqNumber(a as i32)),
        window_len: if syn { u16::MAX } else { ((WINDOW * DATA as u32) >> SCALE) as u16 },
        window_scale: syn.then_some(SCALE),
        max_seg_size: syn.then_some(1460),
        sack_permitted: syn,
        sack_ranges: [None; 3],
        timestamp: Some(TcpTimestampRepr { tsval: PEER_TIMESTAMP, tsecr: echo }),
        payload,
    };
    let ipv4 = Ipv4Repr {
        src_addr: ip(2),
        dst_addr: ip(1),
        next_header: IpProtocol::Tcp,
        payload_len: tcp.buffer_len(),
        hop_limit: 64,
    };
    let mut bytes = vec![0; ipv4.buffer_len() + tcp.buffer_len()];
    let caps = ChecksumCapabilities::default();
    let mut packet = Ipv4Packet::new_unchecked(&mut bytes[..]);
    ipv4.emit(&mut packet, &caps);
    let (src, dst) = (IpAddress::Ipv4(ip(2)), IpAddress::Ipv4(ip(1)));
    let bytes_of_tcp = packet.payload_mut();
    tcp.emit(&mut TcpPacket::new_unchecked(&mut *bytes_of_tcp), &src, &dst, &caps);
    if !syn {
        // Timestamps in the layout of almost all hosts (RFC 7323 appendix A): after two NOPs.
        let (value, echo) = (PEER_TIMESTAMP.to_be_bytes(), echo.to_be_bytes());
        let options = [&[1, 1, 8, 10], &value[..], &echo[..]].concat();
        bytes_of_tcp[20..32].copy_from_slice(&options);
        TcpPacket::new_unchecked(bytes_of_tcp).fill_checksum(&src, &dst);
    }
    ethernet(EthernetAddress(mac(1)), EthernetProtocol::Ipv4, &bytes)
}

/// The way out for a stack's frames. Each frame overwrites the one before.
struct Link {
    frame: [u8; 1514],
    /// Octets of the last frame.
    len: usize,
    frames: u64,
}

impl Link {
    fn new() -> Self {
        Link { frame: [0; 1514], len: 0, frames: 0 }
    }

    fn sent(&mut self, len: usize) {
        self.len = len;
        self.frames += 1;
    }

    /// Returns sequence number and timestamp of the SYN-ACK, which was the last frame.
    fn syn_ack(&self) -> (u32, u32) {
        let packet = Ipv4Packet::new_checked(&self.frame[14..self.len]).expect("IPv4");
        let tcp = TcpPacket::new_checked(packet.payload()).expect("TCP");
        let (src, dst) = (IpAddress::Ipv4(ip(1)), IpAddress::Ipv4(ip(2)));
        assert!(tcp.syn() && tcp.ack() && tcp.verify_checksum(&src, &dst));
        let repr = TcpRepr::parse(&tcp, &src, &dst, &ChecksumCapabilities::default()).expect("options");
        (repr.seq_number.0 as u32, repr.timestamp.expect("timestamps").tsval)
    }
}

/// A stack under measurement.
trait Subject {
    /// Runs one pass: takes frames that have arrived, and sends everything that is due.
    fn pass(&mut self, frames: &[&'static [u8]]);
    /// Runs a pass with `frames`, then queues at least as much of the program's data as the windows allow, and sends
    /// it.
    fn send(&mut self, frames: &[&'static [u8]]);
    fn link(&self) -> &Link;
    /// Returns the octets that arrived in order.
    fn received(&self) -> u64;
}

// ---- urnic ----

struct Kinds;

impl Buffers for Kinds {
    type Frame = Fixed;
    type Payload = Record;
}

struct Fixed(&'static [u8]);

impl Frame for Fixed {
    fn bytes(&self) -> &[u8] {
        self.0
    }
}

type Record = Rc<[u8]>;

struct App<const COPIES: bool> {
    conn: Option<ConnId>,
    received: u64,
    /// Buffer that data is copied into, if it is copied.
    buffer: Vec<u8>,
}

impl<const COPIES: bool> Handler<Fixed> for App<COPIES> {
    fn accepted(&mut self, _: BindId, conn: ConnId, _: SocketAddr) -> u64 {
        self.conn = Some(conn);
        0
    }

    fn connected(&mut self, _: ConnId, _: u64) {}

    fn data(
        &mut self,
        _: ConnId,
        _: u64,
        frame: Fixed,
        range: Range<usize>,
    ) -> Option<(Fixed, Range<usize>)> {
        let data = std::hint::black_box(&frame.0[range]);
        if COPIES {
            // The buffer is a ring of whole segments.
            let at = self.received as usize % (BUFFER / DATA * DATA);
            self.buffer[at..at + data.len()].copy_from_slice(data);
        }
        self.received += data.len() as u64;
        None
    }

    fn acked(&mut self, _: ConnId, _: u64, _: u64) {}

    fn finished(&mut self, _: ConnId, _: u64) {}

    fn closed(&mut self, _: ConnId, _: u64, reason: CloseReason) {
        panic!("{reason}");
    }
}

/// The way out for frames, which copies payload or only refers to it.
struct Out<const COPIES: bool>(Link);

impl<const COPIES: bool> Transmit<Record> for Out<COPIES> {
    fn room(&self) -> usize {
        BURST
    }

    fn emit(&mut self, e: Emit<'_, Record>) {
        let mut len = e.headers.len();
        self.0.frame[..len].copy_from_slice(e.headers);
        for Piece { payload, range } in e.payload {
            if COPIES {
                self.0.frame[len..len + range.len()].copy_from_slice(&payload[range.clone()]);
            }
            len += range.len();
        }
        self.0.sent(len);
    }
}

struct Urnic<const COPIES: bool> {
    stack: Stack<Kinds>,
    app: App<COPIES>,
    out: Out<COPIES>,
    now: Time,
    data: Record,
}

impl<const COPIES: bool> Urnic<COPIES> {
    fn new() -> Self {
        let now = Time::from_secs(1);
        let mut config = StackConfig::new(mac(1), ip(1), 24, 7);
        config.tcp.recv_window = BUFFER as u32;
        let mut stack = Stack::new(config, Box::new(LocalPorts::new(7)), now).expect("valid configuration");
        stack.listen_on(PORT, 1).expect("listen");
        let data = Record::from(vec![7; DATA]);
        let app = App { conn: None, received: 0, buffer: vec![0; BUFFER] };
        Urnic { stack, app, out: Out(Link::new()), now, data }
    }
}

impl<const COPIES: bool> Subject for Urnic<COPIES> {
    fn pass(&mut self, frames: &[&'static [u8]]) {
        self.now += PASS;
        let burst = frames.iter().map(|f| Fixed(f));
        self.stack.receive_burst(self.now, burst, &mut self.app, &mut self.out);
        self.stack.advance(self.now, &mut self.app, &mut self.out);
        self.stack.flush(self.now, &mut self.out);
    }

    fn send(&mut self, frames: &[&'static [u8]]) {
        self.pass(frames);
        let conn = self.app.conn.expect("connected");
        let records = self.stack.room(conn).div_ceil(DATA);
        for _ in 0..records {
            self.stack.send(conn, self.data.clone()).expect("room");
        }
        self.stack.output(self.now, conn, &mut self.out);
    }

    fn link(&self) -> &Link {
        &self.out.0
    }

    fn received(&self) -> u64 {
        self.app.received
    }
}

// ---- smoltcp ----

struct Wire {
    rx: VecDeque<&'static [u8]>,
    link: Link,
}

struct Rx(&'static [u8]);
struct Tx<'a>(&'a mut Link);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let r = f(&mut self.0.frame[..len]);
        self.0.sent(len);
        r
    }
}

impl Device for Wire {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Rx, Tx<'_>)> {
        self.rx.pop_front().map(|f| (Rx(f), Tx(&mut self.link)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Tx<'_>> {
        Some(Tx(&mut self.link))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut c = DeviceCapabilities::default();
        c.medium = Medium::Ethernet;
        c.max_transmission_unit = 1514;
        c
    }
}

struct Smoltcp {
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    now: Instant,
    received: u64,
    data: [u8; DATA],
}

impl Smoltcp {
    fn new() -> Self {
        let now = Instant::from_secs(1);
        let mut wire = Wire { rx: VecDeque::new(), link: Link::new() };
        let config = Config::new(HardwareAddress::Ethernet(EthernetAddress(mac(1))));
        let mut interface = Interface::new(config, &mut wire, now);
        interface.update_ip_addrs(|a| {
            a.push(IpCidr::new(IpAddress::Ipv4(ip(1)), 24)).expect("one address");
        });
        let mut sockets = SocketSet::new(vec![]);
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_tsval_generator(Some(|| 5));
        socket.listen(PORT).expect("listen");
        let socket = sockets.add(socket);
        Smoltcp { wire, interface, sockets, socket, now, received: 0, data: [7; DATA] }
    }

    fn poll(&mut self) {
        self.interface.poll(self.now, &mut self.wire, &mut self.sockets);
    }
}

impl Subject for Smoltcp {
    fn pass(&mut self, frames: &[&'static [u8]]) {
        self.now += PASS.into();
        self.wire.rx.extend(frames);
        self.poll();
        let socket = self.sockets.get_mut::<tcp::Socket>(self.socket);
        while socket.can_recv() {
            let taken = socket.recv(|data| {
                let n = std::hint::black_box(data).len();
                (n, n)
            });
            self.received += taken.expect("can receive") as u64;
        }
    }

    fn send(&mut self, frames: &[&'static [u8]]) {
        self.pass(frames);
        let socket = self.sockets.get_mut::<tcp::Socket>(self.socket);
        while socket.send_queue() < (2 * WINDOW) as usize * DATA {
            socket.send_slice(&self.data).expect("room");
        }
        self.poll();
    }

    fn link(&self) -> &Link {
        &self.wire.link
    }

    fn received(&self) -> u64 {
        self.received
    }
}

// ---- the same for both ----

/// Lets all of the prepared `frames` arrive, in bursts.
#[inline(never)]
fn receive(subject: &mut impl Subject, frames: &[&'static [u8]]) {
    for burst in frames.chunks(BURST) {
        subject.pass(burst);
    }
}

/// Sends segments until all of `acks` have arrived. Each acknowledges two segments.
#[inline(never)]
fn send(subject: &mut impl Subject, acks: &[&'static [u8]], before: u64) {
    let mut next = 0;
    subject.send(&[]);
    while next < acks.len() {
        let outstanding = (subject.link().frames - before) as usize - 2 * next;
        let n = (outstanding / 2).min(BURST / 2).min(acks.len() - next);
        assert!(n > 0, "{next} ACKs came, and nothing is outstanding");
        subject.send(&acks[next..next + n]);
        next += n;
    }
}

fn run(mut subject: impl Subject, direction: &str, segments: u32) -> Result<(), String> {
    subject.pass(&[arp()]);
    subject.pass(&[segment(true, PEER_ISS, None, 0, &[])]);
    let (iss, echo) = subject.link().syn_ack();
    subject.pass(&[segment(false, PEER_ISS + 1, Some(iss + 1), echo, &[])]);
    let before = subject.link().frames;
    let data = [7; DATA];
    match direction {
        "receive" => {
            let seq = |i: u32| PEER_ISS + 1 + i * DATA as u32;
            let frames: Vec<_> =
                (0..MOST).map(|i| segment(false, seq(i), Some(iss + 1), echo, &data)).collect();
            receive(&mut subject, &frames[..segments as usize]);
            assert_eq!(subject.received(), u64::from(segments) * DATA as u64);
            assert_eq!(subject.link().frames - before, u64::from(segments) / BURST as u64);
        }
        "send" => {
            let ack = |i: u32| iss.wrapping_add(1 + i * 2 * DATA as u32);
            let acks: Vec<_> =
                (1..=MOST / 2).map(|i| segment(false, PEER_ISS + 1, Some(ack(i)), echo, &[])).collect();
            send(&mut subject, &acks[..segments as usize / 2], before);
            let sent = subject.link().frames - before;
            assert_eq!(subject.link().len, 14 + 20 + 32 + DATA, "full segments");
            assert!((u64::from(segments)..=u64::from(segments + 2 * WINDOW)).contains(&sent), "{sent}");
        }
        other => return Err(format!("{other:?} is neither receive nor send")),
    }
    Ok(())
}

fn main() -> Result<(), String> {
    const USAGE: &str = "usage: bulk urnic|urnic-copying|smoltcp receive|send SEGMENTS";
    let arguments: Vec<String> = std::env::args().collect();
    let [_, stack, direction, segments] = arguments.as_slice() else { return Err(USAGE.into()) };
    let segments: u32 = segments.parse().map_err(|_| USAGE)?;
    if segments > MOST || !(segments as usize).is_multiple_of(BURST) {
        return Err(format!(
            "{segments} segments: the number must be a multiple of {BURST}, and at most {MOST}"
        ));
    }
    match stack.as_str() {
        "urnic" => run(Urnic::<false>::new(), direction, segments),
        "urnic-copying" => run(Urnic::<true>::new(), direction, segments),
        "smoltcp" => run(Smoltcp::new(), direction, segments),
        other => Err(format!("{other:?} is none of urnic, urnic-copying, smoltcp")),
    }
}
