//! Kernel sockets under the engines of a simulation. The octets pass through the kernel in real time, so the
//! engines poll for them, and the virtual clock advances in small steps, which grow while nothing arrives.

use std::any::Any;
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use urnic::config::{Config, KernelAddresses};
use urnic::simulation::{Options, SimClock, Simulation};
use urnic::transport::*;
use urnic::{Device, Patience, Progress};

/// Shortest step of the clock while nothing happens. The steps grow, because tests may wait for hours of virtual time.
const TICK: Duration = Duration::from_micros(20);
/// Longest step of the clock.
const LONGEST_TICK: Duration = Duration::from_secs(1);
/// Virtual time of a pass that has received something, in nanoseconds.
const PER_PASS: u64 = 20_000;
/// Maximum octets of one read. They are few, so that tests can find the engine in the middle of a message.
const READ: usize = 2 << 10;
/// Number of idle passes after which the step of the clock doubles.
const TICKS: u32 = 64;

/// Ports that tests name. The real port is `SHIFT` higher, because other programs may listen on the named port at all
/// addresses.
const FIXED: std::ops::Range<u16> = 1..10_000;
const SHIFT: u16 = 20_000;

/// The network of the simulation's devices, on the loopback: 127.N.N.0.
#[derive(Clone, Copy)]
struct Net([u8; 2]);

impl Net {
    /// Returns a network, and a socket that reserves it: as long as the socket is open, no other test of this or
    /// another process gets the same network.
    fn new() -> (Self, UdpSocket) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let first = std::process::id().wrapping_mul(97);
        let taken = (0..1000).find_map(|_| {
            let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            let net = [1 + (number >> 8) as u8 % 250, number as u8];
            let mark = UdpSocket::bind((Ipv4Addr::new(127, net[0], net[1], 254), SHIFT)).ok()?;
            Some((Self(net), mark))
        });
        taken.expect("a network that nobody has taken")
    }

    /// Returns the loopback address that stands for an address of a device.
    fn real(self, at: SocketAddr) -> SocketAddr {
        let first = Simulation::address(0).to_bits() - 1;
        match at.ip() {
            IpAddr::V4(ip) if (first..first + 255).contains(&ip.to_bits()) => {
                let host = (ip.to_bits() - first) as u8;
                let port = if FIXED.contains(&at.port()) { at.port() + SHIFT } else { at.port() };
                SocketAddr::new(Ipv4Addr::new(127, self.0[0], self.0[1], host).into(), port)
            }
            _ => at,
        }
    }

    /// Returns the device address that a loopback address stands for.
    fn shown(self, at: SocketAddr) -> SocketAddr {
        match at.ip() {
            IpAddr::V4(ip) if ip.is_loopback() => {
                let first = Simulation::address(0).to_bits() - 1;
                let shown = Ipv4Addr::from_bits(first + u32::from(ip.octets()[3]));
                let port = at.port().checked_sub(SHIFT).filter(|port| FIXED.contains(port));
                SocketAddr::new(shown.into(), port.unwrap_or(at.port()))
            }
            _ => at,
        }
    }
}

thread_local! {
    /// The network of the simulation that this thread makes.
    static NET: RefCell<(Net, UdpSocket)> = RefCell::new(Net::new());
}

/// Makes device number `index` of a simulation, with the prefix length, the CRC implementation and the MPA
/// settings of `options`, but without its exceptions.
pub fn device(options: &Options, index: usize, clock: &SimClock) -> urnic::Result<Device> {
    device_of(options, index, clock, 1)
}

/// Makes the same device as [`device`], but with several engines. Neighbouring devices have different numbers
/// of engines.
pub fn device_of_engines(options: &Options, index: usize, clock: &SimClock) -> urnic::Result<Device> {
    device_of(options, index, clock, 4 - index % 3)
}

fn device_of(options: &Options, index: usize, clock: &SimClock, engines: usize) -> urnic::Result<Device> {
    if index == 0 {
        NET.set(Net::new());
    }
    let ip = Simulation::address(index).into();
    let mut config = Config::default();
    config.engine.progress = Progress::Inline;
    config.engine.crc_kernel = options.crc_kernel;
    config.ip.addresses = vec![urnic::Cidr { address: ip, prefix: options.prefix }];
    config.mpa.rev = options.mpa_rev;
    config.mpa.crc = options.crc;
    config.mpa.markers = options.markers;
    config.mpa.rtr = options.rtr;
    (config.mpa.ird, config.mpa.ord) = (255, 255);
    let net = NET.with_borrow(|(net, _)| *net);
    let home = net.real((ip, 0).into()).ip();
    let patience = Patience { keepalive: None, user_timeout: None };
    let inner = OverKernel::new(KernelAddresses::One(home), patience)?.reading(READ);
    let own = Address { ip, prefix_len: options.prefix };
    let end = |inner| Sockets { inner, net, own, clock: clock.clone(), idle: 0 };
    let others = (1..engines).map(|_| inner.beside()).collect::<urnic::Result<Vec<_>>>()?;
    Device::over_each(std::iter::once(inner).chain(others).map(end), clock.clone(), &config)
}

/// The kernel sockets of a device whose addresses the host does not have.
struct Sockets {
    inner: OverKernel,
    net: Net,
    own: Address,
    clock: SimClock,
    /// Number of passes since something last arrived.
    idle: u32,
}

/// Passes events to an engine, with the device addresses that the loopback addresses stand for.
struct Shown<'a, E>(&'a mut E, Net);

impl<D, E: Events<D>> Events<D> for Shown<'_, E> {
    fn incoming(&mut self, listener: BindId, conn: ConnId, peer: SocketAddr) -> u64 {
        self.0.incoming(listener, conn, self.1.shown(peer))
    }

    fn connected(&mut self, conn: ConnId, tag: u64) {
        self.0.connected(conn, tag);
    }

    fn data(&mut self, conn: ConnId, tag: u64, data: D) -> Option<D> {
        self.0.data(conn, tag, data)
    }

    fn acked(&mut self, conn: ConnId, tag: u64, octets: u64) {
        self.0.acked(conn, tag, octets);
    }

    fn finished(&mut self, conn: ConnId, tag: u64) {
        self.0.finished(conn, tag);
    }

    fn closed(&mut self, conn: ConnId, tag: u64, reason: CloseReason) {
        self.0.closed(conn, tag, reason);
    }

    fn pinnable(&mut self, octets: usize) {
        self.0.pinnable(octets);
    }

    fn link(&mut self, up: bool) {
        self.0.link(up);
    }
}

impl Transport for Sockets {
    type Data = <OverKernel as Transport>::Data;
    type Draft = <OverKernel as Transport>::Draft;

    fn bind(&mut self, address: SocketAddr, v6only: bool) -> Result<Bound, BindError> {
        // The unspecified address stands for the device's own address.
        let own = if address.ip().is_unspecified() { self.own.ip } else { address.ip() };
        let bound = self.inner.bind(self.net.real((own, address.port()).into()), v6only);
        let bound = bound.map_err(|e| match e {
            BindError::NotOurs(_) => BindError::NotOurs(address.ip()),
            BindError::InUse(_) => BindError::InUse(address.port()),
            other => other,
        })?;
        let port = self.net.shown(bound.address).port();
        Ok(Bound { address: SocketAddr::new(address.ip(), port), ..bound })
    }

    fn enter_binding(&mut self, bound: Bound, v6only: bool) -> Result<(), BindError> {
        self.inner.enter_binding(bound, v6only)
    }

    fn can_part(&self) -> bool {
        self.inner.can_part()
    }

    fn part_with(&mut self, conn: ConnId) -> Option<Box<dyn Any + Send>> {
        self.inner.part_with(conn)
    }

    fn take_in(&mut self, now: Time, stream: Box<dyn Any + Send>, tag: u64) -> urnic::Result<ConnId> {
        self.inner.take_in(now, stream, tag)
    }

    fn unbind(&mut self, bound: BindId) {
        self.inner.unbind(bound);
    }

    fn listen(&mut self, at: BindId, backlog: usize) -> Result<(), ListenError> {
        self.inner.listen(at, backlog)
    }

    fn connect(
        &mut self,
        now: Time,
        from: Option<BindId>,
        to: SocketAddr,
        tag: u64,
    ) -> Result<ConnId, ConnectError> {
        self.inner.connect(now, from, self.net.real(to), tag)
    }

    fn welcome(&mut self, now: Time, conn: ConnId) {
        self.inner.welcome(now, conn);
    }

    fn set_patience(&mut self, conn: ConnId, patience: Option<Patience>) {
        self.inner.set_patience(conn, patience);
    }

    fn close(&mut self, now: Time, conn: ConnId) {
        self.inner.close(now, conn);
    }

    fn abort(&mut self, now: Time, conn: ConnId) {
        self.inner.abort(now, conn);
    }

    fn has_ended(&self, conn: ConnId) -> bool {
        self.inner.has_ended(conn)
    }

    fn local(&self, conn: ConnId) -> Option<SocketAddr> {
        Some(self.net.shown(self.inner.local(conn)?))
    }

    fn receive(&mut self, now: Time, events: &mut impl Events<Self::Data>) -> bool {
        let any = self.inner.receive(now, &mut Shown(events, self.net));
        self.idle = if any { 0 } else { self.idle.saturating_add(1) };
        if any {
            self.clock.advance_to(self.clock.now() + PER_PASS);
        }
        any
    }

    fn advance(&mut self, now: Time, events: &mut impl Events<Self::Data>) {
        self.inner.advance(now, &mut Shown(events, self.net));
    }

    /// Returns the next step of the clock, because data may arrive at any time.
    fn next_deadline(&self) -> Option<Time> {
        let tick = TICK.saturating_mul(1 << (self.idle / TICKS).min(16)).min(LONGEST_TICK);
        let soon = Time(self.clock.now()) + tick;
        Some(self.inner.next_deadline().map_or(soon, |at| at.min(soon)))
    }

    fn arm(&mut self) -> Option<Arc<dyn Wakeup>> {
        self.inner.arm()
    }

    fn sent(&self) -> Sent {
        self.inner.sent()
    }

    fn resume(&mut self, now: Time, conn: ConnId, events: &mut impl Events<Self::Data>) {
        self.inner.resume(now, conn, &mut Shown(events, self.net));
    }

    fn draft(&mut self) -> Option<Self::Draft> {
        self.inner.draft()
    }

    fn segment(&self, conn: ConnId) -> usize {
        self.inner.segment(conn)
    }

    fn record_max(&self, conn: ConnId) -> usize {
        self.inner.record_max(conn)
    }

    fn room(&self, conn: ConnId) -> usize {
        self.inner.room(conn)
    }

    fn send(&mut self, conn: ConnId, record: Self::Draft, sum: Option<u16>, unit: u16) {
        self.inner.send(conn, record, sum, unit);
    }

    fn output(&mut self, now: Time, conn: ConnId) {
        self.inner.output(now, conn);
    }

    fn unacked(&self, conn: ConnId) -> u64 {
        self.inner.unacked(conn)
    }

    fn lends_from(&self) -> usize {
        self.inner.lends_from()
    }

    unsafe fn lend(&mut self, record: &mut Self::Draft, at: *const u8, len: usize, ours: bool) -> bool {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.inner.lend(record, at, len, ours) }
    }

    fn take_back(&mut self, conn: ConnId, range: &Range<usize>) -> bool {
        self.inner.take_back(conn, range)
    }

    fn peers_notice_end(&self) -> bool {
        self.inner.peers_notice_end()
    }

    fn facts(&self) -> Facts {
        Facts { addresses: vec![self.own], ..self.inner.facts() }
    }

    fn connections(&self) -> Vec<StreamFacts> {
        let facts = |f: StreamFacts| StreamFacts {
            local: self.net.shown(f.local),
            peer: self.net.shown(f.peer),
            ..f
        };
        self.inner.connections().into_iter().map(facts).collect()
    }
}
