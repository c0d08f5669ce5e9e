//! Runs whole RNICs against each other in one process, over a simulated network, in virtual time.
//!
//! Everything above the port is the real code: engine, TCP, iWARP, queues, connection manager. Only the network and
//! the clock are simulated. A run therefore depends on its seed alone, is repeatable, and takes only the time of
//! its computations.
//!
//! ```
//! use urnic::simulation::{Simulation, Options};
//!
//! let network = "delay=10us,loss=0.01,seed=1".parse().unwrap();
//! let mut simulation = Simulation::new(&Options { network, ..Options::default() }).unwrap();
//! let (a, b) = (simulation.device(0), simulation.device(1));
//! assert_ne!(a.attributes().unwrap().ip, b.attributes().unwrap().ip);
//! ```

use crate::api::device::Device;

use crate::drive::clock::Clock;
pub use crate::drive::engine::MpaConfig;
use crate::drive::engine::{Berth, Engine};
use crate::drive::open::choose_kernel;
use crate::drive::port::sim::{SimPort, SimWire, Steer};
use crate::drive::shard::{EngineAttr, Undriven};
use crate::drive::transport::over_port::OverPort;
use crate::shared::doorbell::Doorbells;
use crate::shared::engines::{Commons, EngineNumber};
use crate::shared::error::{Error, Result};
use crate::shared::memory::PageAllocator;
use crate::shared::numbers::MAX_QPS;
use fastrand::Rng;
use std::collections::VecDeque;
use std::iter;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;
use urnic_config::{Cidr, Progress};
pub use urnic_config::{CrcKernel, RtrChoice};
pub use urnic_sim::{Impairment, Network, SimClock};
use urnic_tcp::{Address, StackConfig};
pub use urnic_tcp::{Congestion, TcpConfig};

/// Changes the MPA settings of a device.
pub type MpaChange = fn(&mut MpaConfig);

/// Makes the device with this number, on a transport of its own.
pub type Carrier = fn(&Options, usize, &SimClock) -> Result<Device>;

/// What to simulate.
#[derive(Clone, Debug)]
pub struct Options {
    /// Makes the devices on another transport; the options for TCP and the network then have no effect. `None`: TCP
    /// over the simulated network.
    pub carrier: Option<Carrier>,
    /// Number of devices. The first one has the address 10.0.0.1.
    pub devices: usize,
    /// What the network does to frames, and the seed of the simulation.
    pub network: Impairment,
    /// Whether the devices also have IPv6 addresses. The first one has fd00::1.
    pub ipv6: bool,
    /// Prefix length of the IPv4 addresses, in bits.
    pub prefix: u8,
    /// Number of the node that is the gateway to other networks; `None`: there is none.
    pub gateway: Option<usize>,
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Payload bytes that one frame may carry as several TCP segments; 0: the network does not support this.
    pub gso_max: usize,
    /// Smallest payload, in bytes, that is not copied when it is sent: it is read from registered memory for
    /// each transmission.
    pub lends_from: usize,
    /// Whether only memory of the device's own allocator is read in place.
    pub lends_own_only: bool,
    /// Whether the peer may read lent payload after it was sent. Verbs that take memory back then wait for the peer's
    /// acknowledgement, so the clock must move by itself.
    pub reads_late: bool,
    /// Whether the port can copy lent payload whose memory is taken back; if not, its connection ends.
    pub copies_lent: bool,
    /// Number of send buffers of each engine; unlimited by default.
    pub send_buffers: usize,
    /// Settings of TCP.
    pub tcp: TcpConfig,
    /// Highest MPA revision that the devices speak.
    pub mpa_rev: u8,
    /// Whether the devices ask for CRCs.
    pub crc: bool,
    /// Whether the devices ask for markers.
    pub markers: bool,
    /// The ready-to-receive indication that a connecting device sends of its own accord.
    pub rtr: RtrChoice,
    /// Changes to the MPA settings of single devices, with the devices' numbers.
    pub exceptions: Vec<(usize, MpaChange)>,
    /// The CRC implementation that the process uses once the simulation is made. [`CrcKernel::Auto`] leaves the present
    /// one.
    pub crc_kernel: CrcKernel,
    /// Number of engines of each device. The last entry also counts for the devices beyond the list; an empty list
    /// means one.
    pub engines: Vec<usize>,
    /// How the network chooses the engine that a frame reaches.
    pub steering: Steering,
}

/// How the network chooses the engine of a device for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// The engine that has the frame's connection, as with a NIC that knows the device's hash.
    ToOwner,
    /// Any engine, chosen by the seed.
    Random,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            carrier: None,
            devices: 2,
            network: Impairment::default(),
            ipv6: false,
            prefix: 24,
            gateway: None,
            mtu: 1500,
            gso_max: 0,
            lends_from: usize::MAX,
            lends_own_only: false,
            reads_late: false,
            copies_lent: true,
            send_buffers: usize::MAX,
            tcp: TcpConfig::default(),
            mpa_rev: 2,
            crc: true,
            markers: false,
            rtr: RtrChoice::Off,
            exceptions: Vec::new(),
            crc_kernel: CrcKernel::Auto,
            engines: Vec::new(),
            steering: Steering::ToOwner,
        }
    }
}

/// A node of the network that is not an RNIC, and can send any frames.
pub trait Host {
    /// Takes the Ethernet frames in `arrived`, and puts frames to send into `send`. The simulation calls this at
    /// every step, with the time `now` since the start. Returns the time since the start at which the host wants
    /// another turn even if nothing arrives; `None`: never.
    fn turn(
        &mut self,
        now: Duration,
        arrived: &mut VecDeque<Vec<u8>>,
        send: &mut Vec<Vec<u8>>,
    ) -> Option<Duration>;
}

/// Devices on a simulated network.
pub struct Simulation {
    clock: SimClock,
    network: Network<Vec<u8>>,
    nodes: Vec<Node>,
    /// Hosts that are not RNICs, numbered after the devices.
    hosts: Vec<Guest>,
}

struct Guest {
    host: Box<dyn Host>,
    arrived: VecDeque<Vec<u8>>,
}

struct Node {
    device: Device,
    /// The device's end of the network; `None` if the device has a transport of its own.
    wire: Option<SimWire>,
}

impl Simulation {
    /// Makes the devices. Their links are up from the start.
    ///
    /// # Errors
    /// As for [`Device::over_each`].
    pub fn new(options: &Options) -> Result<Self> {
        Self::with_hosts(options, Vec::new())
    }

    /// Makes the devices, and other hosts on their network. The hosts are numbered after the devices.
    ///
    /// # Errors
    /// As for [`Device::over_each`].
    pub fn with_hosts(options: &Options, hosts: Vec<Box<dyn Host>>) -> Result<Self> {
        choose_kernel(options.crc_kernel)?;
        let clock = SimClock::default();
        let nodes = (0..options.devices)
            .map(|i| match options.carrier {
                Some(carrier) => carrier(options, i, &clock).map(|device| Node { device, wire: None }),
                None => Node::new(i, options, clock.clone(), Progress::Inline),
            })
            .collect::<Result<_>>()?;
        let network = Network::new(options.devices + hosts.len(), &options.network);
        let hosts = hosts.into_iter().map(|host| Guest { host, arrived: VecDeque::new() }).collect();
        Ok(Simulation { clock, network, nodes, hosts })
    }

    /// Returns device number `index`, from 0.
    ///
    /// # Panics
    /// Panics if there is no such device.
    pub fn device(&self, index: usize) -> Device {
        self.nodes[index].device.clone()
    }

    /// Returns the IPv4 address of node number `index`.
    pub fn address(index: usize) -> Ipv4Addr {
        Ipv4Addr::from_bits(0x0A00_0001 + index as u32)
    }

    /// Returns the IPv6 address of node number `index`, which it has if [`Options::ipv6`] is set.
    pub fn address6(index: usize) -> Ipv6Addr {
        Ipv6Addr::from_bits(0xfd00 << 112 | (1 + index as u128))
    }

    /// Returns the Ethernet address of node number `index`.
    pub fn mac(index: usize) -> [u8; 6] {
        [0x02, 0, 0, 0, (index >> 8) as u8, index as u8]
    }

    /// Returns the virtual time since the start.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.now())
    }

    /// Returns the network, for inspection or to change what it does.
    pub fn network(&mut self) -> &mut Network<Vec<u8>> {
        &mut self.network
    }

    /// Runs until `done` returns true, no event is left, or the next event is later than virtual time `limit` since the
    /// start. Returns whether `done` returned true.
    ///
    /// `done` is called whenever something may have happened, and may use the devices.
    pub fn run(&mut self, limit: Duration, mut done: impl FnMut() -> bool) -> bool {
        loop {
            if done() {
                return true;
            }
            if !self.step(limit) {
                return done();
            }
        }
    }

    /// Runs for `time`, whatever happens meanwhile.
    pub fn wait(&mut self, time: Duration) {
        let end = self.now() + time;
        while self.step(end) {}
        self.clock.advance_to(end.as_nanos() as u64);
        // Idle engines read the clock only in some of their passes, so one pass may miss the new time.
        for _ in 0..16 {
            while self.step(end) {}
        }
    }

    /// Lets time pass without running any device or host, as if all machines had been suspended meanwhile. What the
    /// devices had sent arrives.
    pub fn suspend(&mut self, time: Duration) {
        self.carry(self.sent());
        self.clock.advance_by(time.as_nanos() as u64);
        self.deliver();
    }

    /// Takes the link of device number `index` down or up. Does nothing if the device has a transport of its own.
    ///
    /// # Panics
    /// Panics if there is no such device.
    pub fn set_link(&mut self, index: usize, up: bool) {
        if let Some(wire) = &self.nodes[index].wire {
            wire.set_link(up);
        }
    }

    /// Runs a pass of every device and carries frames. If there is nothing to do now, advances time to the next
    /// event. Returns false if that event would be later than virtual time `limit` since the start, or if there
    /// is none.
    pub fn step(&mut self, limit: Duration) -> bool {
        let now = self.clock.now();
        self.deliver();
        let mut next: Option<u64> = None;
        for node in &self.nodes {
            node.device.shared.shards.iter().for_each(|shard| {
                let (worked, deadline) = shard.pass();
                if worked {
                    next = Some(now);
                } else if let Some(wait) = deadline {
                    let at = now.saturating_add(wait.as_nanos() as u64);
                    next = Some(next.map_or(at, |n| n.min(at)));
                }
            });
        }
        let mut sent = self.sent();
        for (i, Guest { host, arrived }) in self.hosts.iter_mut().enumerate() {
            let mut frames = Vec::new();
            if let Some(at) = host.turn(Duration::from_nanos(now), arrived, &mut frames) {
                let at = (at.as_nanos() as u64).max(now);
                next = Some(next.map_or(at, |n| n.min(at)));
            }
            sent.extend(frames.into_iter().map(|frame| (self.nodes.len() + i, frame)));
        }
        self.carry(sent);
        let next = match (next, self.network.next_arrival()) {
            (Some(a), Some(b)) => a.min(b),
            (Some(at), None) | (None, Some(at)) => at,
            (None, None) => return false,
        };
        if u128::from(next) > limit.as_nanos() {
            return false;
        }
        self.clock.advance_to(next);
        true
    }

    /// Delivers the frames that have arrived.
    fn deliver(&mut self) {
        let now = self.clock.now();
        while let Some(delivery) = self.network.pop(now) {
            if let Some(node) = self.nodes.get(delivery.to) {
                if let Some(wire) = &node.wire {
                    wire.deliver(delivery.frame);
                }
            } else if let Some(guest) = self.hosts.get_mut(delivery.to - self.nodes.len()) {
                guest.arrived.push_back(delivery.frame);
            }
        }
    }

    /// Takes the frames that the devices have sent, with the numbers of the devices.
    fn sent(&self) -> Vec<(usize, Vec<u8>)> {
        let wires =
            self.nodes.iter().enumerate().filter_map(|(from, node)| Some((from, node.wire.as_ref()?)));
        wires.flat_map(|(from, wire)| iter::from_fn(|| wire.take()).map(move |frame| (from, frame))).collect()
    }

    /// Puts frames on the network, which come from the nodes with these numbers.
    fn carry(&mut self, sent: Vec<(usize, Vec<u8>)>) {
        let (now, all) = (self.clock.now(), self.nodes.len() + self.hosts.len());
        for (from, frame) in sent {
            match destination(&frame, all) {
                Some(to) => self.network.push(now, from, to, frame),
                None => self.network.broadcast(now, from, &frame),
            }
        }
    }
}

impl Drop for Simulation {
    /// Takes the links down, because no frames are carried from now on. Time advances before the pass, so that the
    /// engines read the link state in it.
    fn drop(&mut self) {
        self.clock.advance_by(1_000_000_000);
        for node in &self.nodes {
            node.wire.iter().for_each(|wire| wire.set_link(false));
            node.device.shared.shards.iter().for_each(|shard| {
                shard.pass();
            });
        }
    }
}

impl Node {
    fn new<C: Clock + 'static>(
        index: usize,
        options: &Options,
        clock: C,
        progress: Progress,
    ) -> Result<Self> {
        let ip = Simulation::address(index);
        let seed = options.network.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(index as u64);
        let mut addresses = vec![Cidr { address: ip.into(), prefix: options.prefix }];
        if options.ipv6 {
            addresses.push(Cidr { address: Simulation::address6(index).into(), prefix: 64 });
        }
        let stack = StackConfig {
            addresses: addresses.iter().map(|a| Address { ip: a.address, prefix_len: a.prefix }).collect(),
            gateways: options.gateway.map(|node| Simulation::address(node).into()).into_iter().collect(),
            mtu: options.mtu,
            tcp: options.tcp.clone(),
            ..StackConfig::new(Simulation::mac(index), ip, 24, seed)
        };
        let mut mpa = MpaConfig {
            rev: options.mpa_rev,
            crc: options.crc,
            markers: options.markers,
            rtr: options.rtr,
            ird: 255,
            ord: 255,
            startup_timeout: Duration::from_secs(60),
            incomplete_max: crate::drive::engine::INCOMPLETE_MAX,
            aside_max: crate::drive::engine::ASIDE_MAX,
        };
        options.exceptions.iter().filter(|(i, _)| *i == index).for_each(|(_, change)| change(&mut mpa));
        let attributes = EngineAttr {
            mac: Simulation::mac(index),
            addresses,
            mtu: options.mtu,
            port: "simulation".to_owned(),
            link_up: true,
            capabilities: None,
            gso_max: 0,
            ird: mpa.ird,
            ord: mpa.ord,
            counters: Vec::new(),
        };
        let (queues, wire) = queues(options, index, seed);
        let commons = Commons::new()?;
        let mut engines = Vec::new();
        for transport in OverPort::of_device(queues, &stack, &commons, clock.now())? {
            let number = EngineNumber::new(engines.len()).ok_or(Error::Invalid("more than 64 engines"))?;
            let doorbells = Arc::new(Doorbells::new(MAX_QPS as usize));
            let berth = Berth { number, commons: commons.clone(), doorbells: doorbells.clone() };
            let engine = Engine::new(transport, clock.clone(), seed, mpa.clone(), berth, attributes.clone());
            engines.push(Undriven { engine: Box::new(engine), doorbells, node: None });
        }
        let mut engines = engines.into_iter();
        let first = engines.next().ok_or(Error::Invalid("a device needs at least one engine"))?;
        let device = Device::from_engines(first, engines, Arc::new(PageAllocator), progress, &[])?;
        Ok(Node { device, wire: Some(wire) })
    }
}

/// Makes the queues of a device's port on a simulated network, one for each engine.
fn queues(options: &Options, index: usize, seed: u64) -> (Vec<SimPort>, SimWire) {
    let engines = options.engines.get(index).or(options.engines.last()).copied().unwrap_or(1);
    let rng = Rng::with_seed(seed);
    let steer = match urnic_tcp::Steering::new(0, engines, seed) {
        Some(steering) if options.steering == Steering::ToOwner => Steer::ByOwner(steering, rng),
        _ => Steer::Random(rng),
    };
    let (mut queues, wire) = SimPort::several(options.mtu, engines, steer);
    for port in &mut queues {
        port.set_gso_max(options.gso_max);
        port.set_lends_from(options.lends_from);
        if options.lends_own_only {
            port.set_lends_own_only();
        }
        if options.reads_late {
            port.set_reads_late();
        }
        if !options.copies_lent {
            port.set_copies_no_lent();
        }
        port.set_send_buffers(options.send_buffers);
    }
    (queues, wire)
}

/// Makes a device on the real clock. The device can reach only itself, because nothing carries its frames.
#[cfg(test)]
pub(crate) fn alone(progress: Progress) -> Result<Device> {
    alone_on(crate::drive::clock::Watch::new(), &Options::default(), progress)
}

/// Makes such a device on another clock.
#[cfg(test)]
pub(crate) fn alone_on(clock: impl Clock, options: &Options, progress: Progress) -> Result<Device> {
    Node::new(0, options, clock, progress).map(|node| node.device)
}

/// Returns the node that a frame is addressed to; `None`: all nodes.
fn destination(frame: &[u8], nodes: usize) -> Option<usize> {
    let address: &[u8; 6] = frame.first_chunk()?;
    (0..nodes).find(|&i| Simulation::mac(i) == *address)
}
