//! The device: its attributes, the objects that it creates, and the state that these share.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use urnic_config::{Cidr, Config, Progress};
use urnic_dataplane::Capabilities;

use crate::api::channel::CompChannel;
use crate::api::cm::{Bound, EventChannel};
use crate::api::cq::{Cq, CqInit};
use crate::api::events::AsyncEvents;
use crate::api::inspect::Inspector;
use crate::api::neighbours::Neighbours;
use crate::api::pd::{Pd, PdShared};
use crate::drive::clock::Clock;
use crate::drive::engine::{Berth, Engine, MpaConfig};
use crate::drive::open::{Opened, choose_kernel, secret};
use crate::drive::shard::{EngineAttr, EngineOps, Shards, Ties, Undriven, linger_at_exit};
use crate::drive::transport::Transport;
use crate::shared::channel::ChannelShared;
use crate::shared::clock::DeviceClock;
use crate::shared::cm::EventSink;
use crate::shared::connection::ConnectionAttr;
use crate::shared::cq::{CqShared, check_depth};
use crate::shared::doorbell::Doorbells;
use crate::shared::engines::{Commons, EngineNumber};
use crate::shared::error::{Error, Result};
use crate::shared::events::{AsyncQueue, AsyncSink};
use crate::shared::figures::EngineFigures;
use crate::shared::memory::{Allocate, MrTable, PageAllocator, Regions};
use crate::shared::numbers::{
    MAX_CQE, MAX_CQS, MAX_INLINE, MAX_QPS, MAX_SGE, MAX_SRQS, MAX_WR, Number, Numbers,
};
use crate::shared::qp::QpMemory;
use crate::shared::quiet::forked;
use crate::shared::scope::UsedScopes;

/// State that all objects of a device share.
pub(crate) struct DeviceShared {
    pub(crate) shards: Shards,
    /// Serialises reservations and listeners. All engines must make reservations in the same order, so that a
    /// reservation has the same id at each engine.
    pub(crate) reservations: Reservations,
    pub(crate) commons: Arc<Commons>,
    /// Memory regions and windows.
    pub(crate) table: Arc<MrTable>,
    pub(crate) events: Arc<AsyncQueue>,
    clock: DeviceClock,
    pub(crate) memory: Arc<dyn Allocate>,
    pub(crate) qpns: Numbers,
    // Shared, because completion queues may outlive the device.
    cqns: Arc<Numbers>,
    pub(crate) srqns: Arc<Numbers>,
    pub(crate) scopes: UsedScopes,
    pub(crate) qp_memory: QpMemory,
    /// Whether the end of the device waits until its connections have sent their data. False in
    /// [`World::Simulation`], where time may stand still.
    lingers: bool,
    /// Answers other processes that ask about this device; `None` in [`World::Simulation`], or if the inspector
    /// could not start.
    inspector: Option<Inspector>,
    /// Addresses of the DPDK ports of this host's processes, which this device cannot reach. `None` unless the
    /// device is on the host's own sockets.
    pub(crate) neighbours: Option<Neighbours>,
}

/// The lock for making and giving back reservations.
#[derive(Default)]
pub(crate) struct Reservations(Mutex<()>);

impl Reservations {
    /// Takes the lock. Waits while another thread makes or gives back a reservation.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The world that a device belongs to.
pub(crate) enum World<'a> {
    /// A simulation, or transports of the program: time may stand still, and other processes do not see the device.
    Simulation,
    /// The host: the device has the host's addresses.
    Host,
    /// A network: the device has a port, whose addresses (listed here) the host's kernel does not have.
    Network(&'a [Cidr]),
}

impl Drop for DeviceShared {
    fn drop(&mut self) {
        self.inspector = None;
        // Stops the threads first, because they keep the shards alive.
        self.shards.stop();
        if self.lingers {
            self.shards.linger();
        }
    }
}

/// Facts and limits of a device: see [`Device::attributes`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Ethernet address.
    pub mac: [u8; 6],
    /// The main IP address; 0.0.0.0 if the device has none.
    pub ip: IpAddr,
    /// Prefix length of the main address, in bits.
    pub prefix_len: u8,
    /// All present addresses, the main one first.
    pub addresses: Vec<Cidr>,
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Kind of port, as the configuration names it.
    pub port: String,
    /// Whether the link is up.
    pub link_up: bool,
    /// Port capabilities; `None` without a port of DPDK: on the kernel's sockets, in a simulation, or on transports of
    /// the program.
    pub capabilities: Option<Capabilities>,
    /// Maximum payload of a frame that carries several TCP segments, in bytes; 0 if a frame can carry only one
    /// segment. The value may change when another peer comes to the other end of the link.
    pub gso_max: usize,
    /// Maximum number of queue pairs.
    pub max_qp: u32,
    /// Maximum number of work requests in a queue.
    pub max_qp_wr: u32,
    /// Maximum number of scatter-gather elements of a work request.
    pub max_sge: u8,
    /// Maximum number of scatter-gather elements of a Read. On the wire there is one Read, whatever the number of its
    /// elements.
    pub max_sge_rd: u8,
    /// Maximum inline data of a work request, in bytes.
    pub max_inline: u32,
    /// Maximum number of completion queues.
    pub max_cq: u32,
    /// Maximum number of entries of a completion queue.
    pub max_cqe: u32,
    /// Maximum number of shared receive queues.
    pub max_srq: u32,
    /// Maximum number of receives in a shared receive queue.
    pub max_srq_wr: u32,
    /// Maximum number of scatter-gather elements of a receive in a shared receive queue.
    pub max_srq_sge: u8,
    /// Maximum number of protection domains.
    pub max_pd: u32,
    /// Maximum number of the peer's Reads that may be outstanding at a queue pair (IRD).
    pub max_ird: u16,
    /// Maximum number of a queue pair's Reads that may be outstanding at the peer (ORD).
    pub max_ord: u16,
    /// Maximum number of memory regions and windows together.
    pub max_mr: u32,
    /// Maximum number of memory windows, reached only without memory regions.
    pub max_mw: u32,
    /// Whether this device supports Atomics and Writes with immediate data (RFC 7306). Nothing on the wire tells
    /// whether the peer supports them, so the programs must agree on their use.
    pub extensions: bool,
    /// Number of engines, which is the number of completion vectors. Different threads can drive the engines at
    /// the same time.
    pub engines: u32,
    /// Counters by name, each the sum over all engines.
    pub counters: Vec<(&'static str, u64)>,
    /// Load of each engine, in the order of engine numbers.
    pub per_engine: Vec<EngineFigures>,
}

/// Waiting for the engines' passes (a pass is one turn of an engine). A pass under way may still use a region or window
/// that was taken out of `table`.
impl DeviceShared {
    /// Waits for the end of all passes that are under way. If the wait for one engine fails, the wait for the other
    /// engines goes on.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if a pass cannot end before the caller returns (the caller is a signal handler that
    /// interrupted it); [`Error::Forked`].
    pub(crate) fn await_passes(&self) -> Result<()> {
        self.shards.iter().map(|shard| shard.await_pass()).fold(Ok(()), Result::and)
    }

    /// Waits like [`await_passes`](Self::await_passes), and makes every engine stop reading memory within the addresses
    /// `range`. The caller has revoked the STags of this memory before. Afterwards, no data that an engine has lent to
    /// its transport is in `range`. The engines are locked one after the other, never two at once.
    ///
    /// # Errors
    /// As for [`await_passes`](Self::await_passes).
    pub(crate) fn take_back(&self, range: &Range<usize>) -> Result<()> {
        let take_back = |engine: &mut dyn EngineOps| {
            engine.take_back(range);
            Ok(())
        };
        self.shards.iter().map(|shard| shard.control(take_back)).fold(Ok(()), Result::and)
    }
}

/// An RNIC inside this process.
///
/// Clones are handles to the same device. The device lives as long as any object made from it. When the last object
/// is dropped, or the process exits, the device closes its connections gracefully, within five seconds.
#[derive(Clone)]
pub struct Device {
    pub(crate) shared: Arc<DeviceShared>,
}

impl Device {
    /// Returns the Ethernet address of a device that `config` describes, without opening the device. Only an open port
    /// knows its hardware address; if the device will use that one, returns an address derived from the device's IP
    /// address instead.
    pub fn mac_of(config: &Config) -> [u8; 6] {
        crate::drive::open::mac_of(config)
    }

    /// Returns the index (`if_nametoindex`) of the host's interface that carries `address` of a device that
    /// `config` describes. `None` if there is no such interface, as for a NIC that the kernel does not drive.
    pub fn interface_of(config: &Config, address: IpAddr) -> Option<u32> {
        crate::drive::open::interface_of(config, address)
    }

    /// Opens a device: starts DPDK's EAL if the configuration asks for a port and EAL does not run yet, opens
    /// the port, and starts the engines' threads if `progress` asks for them. Without a port, the device uses
    /// the kernel's TCP sockets.
    ///
    /// # Errors
    /// [`Error::Open`] with the reason, if DPDK or the system refuses the configuration; [`Error::Invalid`] if
    /// the configuration lacks something or contradicts itself; [`Error::NoDescriptor`]; [`Error::Os`], for
    /// example if no thread can be started; [`Error::Forked`] in a forked child of a process that has opened a
    /// device.
    pub fn open(config: &Config) -> Result<Self> {
        if forked() {
            return Err(Error::Forked);
        }
        let Opened { first, others, memory } = crate::drive::open::open(config)?;
        let ties = first.engine.ties();
        let shards = Shards::new(first, others, config.engine.progress, &config.engine.cores)?;
        shards.iter().for_each(linger_at_exit);
        let world = match config.port.spec {
            None => World::Host,
            Some(_) => World::Network(&config.ip.addresses),
        };
        Ok(Self::new(shards, ties, memory, &world))
    }

    /// Opens a device whose connections `transport` carries. Of `config`, only the sections `engine` and `mpa` have an
    /// effect, and two others supply facts for [`attributes`](Self::attributes): `ip` the addresses if the transport
    /// reports none, and `port` the MTU. At its end the device does not wait until its connections have sent their
    /// data.
    ///
    /// # Errors
    /// [`Error::Open`] if this processor cannot run the configured CRC kernel; [`Error::NoDescriptor`];
    /// [`Error::Os`], for example if no thread can be started; [`Error::Forked`].
    pub fn over<T: Transport + 'static>(transport: T, clock: impl Clock, config: &Config) -> Result<Self> {
        Self::over_each([transport], clock, config)
    }

    /// Opens a device as [`over`](Self::over) does, with one engine on each of `transports`. An address that one
    /// transport reserves is [entered](Transport::enter_binding) at the others. If the program accepts a request of one
    /// engine with a queue pair of another, the connection moves to the queue pair's engine, provided that the
    /// connection's transport can [part with it](Transport::part_with). Otherwise the queue pair moves to the
    /// connection's engine.
    ///
    /// # Errors
    /// As for [`over`](Self::over); [`Error::Invalid`] if there are no transports, or more than
    /// [`MAX_ENGINES`](urnic_config::MAX_ENGINES).
    pub fn over_each<T: Transport + 'static>(
        transports: impl IntoIterator<Item = T>,
        clock: impl Clock,
        config: &Config,
    ) -> Result<Self> {
        choose_kernel(config.engine.crc_kernel)?;
        let mpa = MpaConfig::of(config);
        let attributes = EngineAttr {
            mac: [0; 6],
            addresses: config.ip.addresses.clone(),
            mtu: config.port.mtu,
            port: "transport".to_owned(),
            link_up: false,
            capabilities: None,
            gso_max: 0,
            ird: mpa.ird,
            ord: mpa.ord,
            counters: Vec::new(),
        };
        let commons = Commons::new()?;
        let mut engines = Vec::new();
        for (index, transport) in transports.into_iter().enumerate() {
            let number = EngineNumber::new(index).ok_or(Error::Invalid("a device has at most 64 engines"))?;
            let doorbells = Arc::new(Doorbells::new(MAX_QPS as usize));
            let berth = Berth { number, commons: commons.clone(), doorbells: doorbells.clone() };
            let engine =
                Engine::new(transport, clock.clone(), secret()?, mpa.clone(), berth, attributes.clone());
            engines.push(Undriven { engine: Box::new(engine), doorbells, node: None });
        }
        let mut engines = engines.into_iter();
        let first = engines.next().ok_or(Error::Invalid("a device needs at least one transport"))?;
        let memory = Arc::new(PageAllocator);
        Self::from_engines(first, engines, memory, config.engine.progress, &config.engine.cores)
    }

    /// Makes a device on engines that are simulated, or that run on transports of the program. Its end waits for
    /// nothing, because time may stand still.
    pub(crate) fn from_engines(
        first: Undriven,
        others: impl IntoIterator<Item = Undriven>,
        memory: Arc<dyn Allocate>,
        progress: Progress,
        cores: &[usize],
    ) -> Result<Self> {
        let ties = first.engine.ties();
        Ok(Self::new(Shards::new(first, others, progress, cores)?, ties, memory, &World::Simulation))
    }

    pub(crate) fn new(shards: Shards, ties: Ties, memory: Arc<dyn Allocate>, world: &World<'_>) -> Self {
        let inspector = match world {
            World::Simulation => None,
            World::Host => Inspector::start(&shards, &[]),
            World::Network(own) => Inspector::start(&shards, own),
        };
        let shared = DeviceShared {
            inspector,
            neighbours: matches!(world, World::Host).then(Neighbours::default),
            shards,
            reservations: Reservations::default(),
            events: ties.commons.events.clone(),
            commons: ties.commons,
            table: ties.table,
            clock: ties.clock,
            memory,
            qpns: Numbers::new(MAX_QPS),
            cqns: Arc::new(Numbers::new(MAX_CQS)),
            srqns: Arc::new(Numbers::new(MAX_SRQS)),
            scopes: UsedScopes::default(),
            qp_memory: QpMemory::default(),
            lingers: !matches!(world, World::Simulation),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the facts and limits of the device.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::Interrupted`].
    pub fn attributes(&self) -> Result<DeviceAttr> {
        let engine = self.shared.shards.first().arrange(|engine| Ok(engine.attributes()))?;
        let per_engine = self.shared.shards.figures()?;
        let main = engine.addresses.first().copied();
        Ok(DeviceAttr {
            mac: engine.mac,
            ip: main.map_or(IpAddr::from([0; 4]), |a| a.address),
            prefix_len: main.map_or(0, |a| a.prefix),
            addresses: engine.addresses,
            mtu: engine.mtu,
            port: engine.port,
            link_up: engine.link_up,
            capabilities: engine.capabilities,
            gso_max: engine.gso_max,
            max_qp: MAX_QPS,
            max_qp_wr: MAX_WR,
            max_sge: MAX_SGE,
            max_sge_rd: MAX_SGE,
            max_inline: MAX_INLINE,
            max_cq: MAX_CQS,
            max_cqe: MAX_CQE,
            max_srq: MAX_SRQS,
            max_srq_wr: MAX_WR,
            max_srq_sge: MAX_SGE,
            max_pd: u32::MAX,
            max_ird: engine.ird,
            max_ord: engine.ord,
            max_mr: crate::shared::memory::MAX_REGIONS as u32,
            max_mw: crate::shared::memory::MAX_REGIONS as u32,
            extensions: true,
            engines: self.shared.shards.count() as u32,
            counters: EngineFigures::sum(&per_engine),
            per_engine,
        })
    }

    /// Returns whether this process is a forked child of the process that opened the device. Such a child cannot use
    /// the device.
    pub fn is_forked(&self) -> bool {
        forked()
    }

    /// Returns the TCP connections of the device, including those that are not in RDMA mode.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::Interrupted`].
    pub fn connections(&self) -> Result<Vec<ConnectionAttr>> {
        self.shared.shards.connections()
    }

    /// Creates a protection domain.
    pub fn alloc_pd(&self) -> Pd {
        let scope = self.shared.scopes.take();
        Pd { shared: Arc::new(PdShared { scope, regions: Regions::default(), device: self.shared.clone() }) }
    }

    /// Creates a completion channel.
    ///
    /// # Errors
    /// [`Error::NoDescriptor`].
    pub fn create_comp_channel(&self) -> Result<CompChannel> {
        Ok(CompChannel { shared: ChannelShared::new()?, device: self.shared.clone() })
    }

    /// Creates a completion queue for at least `depth` completions. `channel` receives its events; `None`: the
    /// queue has no events.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a depth of 0 or beyond [`DeviceAttr::max_cqe`], or a channel of another device;
    /// [`Error::Exhausted`] if the device already has [`DeviceAttr::max_cq`] completion queues.
    pub fn create_cq(&self, depth: u32, channel: Option<&CompChannel>) -> Result<Cq> {
        self.create_cq_with(&CqInit { depth, channel, timestamps: false, vector: 0 })
    }

    /// Creates a completion queue with all options of [`CqInit`].
    ///
    /// # Errors
    /// As for [`create_cq`](Self::create_cq); [`Error::Invalid`] if the vector is no engine's number.
    pub fn create_cq_with(&self, init: &CqInit<'_>) -> Result<Cq> {
        check_depth(init.depth)?;
        let channel = init.channel;
        let device = &self.shared;
        let home =
            EngineNumber::new(init.vector as usize).filter(|home| home.index() < device.shards.count());
        let home = home.ok_or(Error::Invalid(
            "there is no such completion vector: each engine has one, numbered from 0",
        ))?;
        if channel.is_some_and(|channel| !Arc::ptr_eq(&channel.device, device)) {
            return Err(Error::Invalid("the completion channel belongs to another device"));
        }
        let channel = channel.map(|channel| channel.shared.clone());
        let cqn = Number::take(&device.cqns).ok_or(Error::Exhausted("completion queues"))?;
        let clock = init.timestamps.then(|| device.clock.clone());
        let shared = CqShared::new(cqn, home, init.depth, channel, device.events.clone(), clock);
        Ok(Cq { shared, device: device.clone() })
    }

    /// Returns the local address that a connection to `to` would come from. The port of `to` is not used. `None` if
    /// no route leads to `to`.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Interrupted`], [`Error::NoDescriptor`], [`Error::Forbidden`].
    pub fn source_for(&self, to: SocketAddr) -> Result<Option<IpAddr>> {
        self.shared.shards.first().control(|engine| engine.source_for(to))
    }

    /// Returns the device's clock in nanoseconds from an arbitrary origin. Time stamps
    /// ([`Completion::timestamp`](crate::Completion::timestamp)) are of this clock.
    pub fn raw_clock(&self) -> u64 {
        (self.shared.clock)()
    }

    /// Returns a handle to the asynchronous events of the device.
    pub fn async_events(&self) -> AsyncEvents {
        AsyncEvents::new(&self.shared)
    }

    /// Reserves a TCP port (0: any free one) of a local address, for a listener or for connections. An unspecified
    /// address stands for all addresses of its family, and `::` stands for all IPv4 addresses as well unless
    /// `v6only`. The same port may be reserved at several addresses at once.
    ///
    /// # Errors
    /// [`Error::NotOurAddress`], [`Error::PortInUse`], [`Error::PortForbidden`], [`Error::Exhausted`],
    /// [`Error::NoDescriptor`].
    pub fn bind(&self, address: impl Into<SocketAddr>, v6only: bool) -> Result<Bound> {
        Bound::new(&self.shared, address.into(), v6only)
    }

    /// Creates a channel for connection events.
    ///
    /// # Errors
    /// [`Error::NoDescriptor`].
    pub fn create_event_channel(&self) -> Result<EventChannel> {
        EventChannel::new(&self.shared, None)
    }

    /// Creates a channel that does not queue its events: the thread that drives the engine calls `sink` with each
    /// event as it happens. `sink` must return quickly and must not use the device. A connection request can be
    /// answered only after [`EventChannel::adopt`].
    ///
    /// # Errors
    /// As for [`create_event_channel`](Self::create_event_channel).
    pub fn create_event_sink(&self, sink: EventSink) -> Result<EventChannel> {
        EventChannel::new(&self.shared, Some(sink))
    }

    /// Calls `deed` once `time` has passed by the device's clock, in the thread that drives the engine at that
    /// moment. `deed` must return quickly and must not use the device. If the device ends before, `deed` is never
    /// called.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::Interrupted`].
    pub fn after(&self, time: Duration, deed: impl FnOnce() + Send + 'static) -> Result<()> {
        self.shared.shards.first().control(|engine| {
            engine.after(time, Box::new(deed));
            Ok(())
        })
    }

    /// Passes asynchronous events to `sink` as they happen, instead of queueing them for
    /// [`async_events`](Self::async_events). Events that are still unread go to `sink` at once. `sink` must return
    /// quickly and must not use the device. Only the first call of this method has an effect.
    pub fn sink_async_events(&self, sink: AsyncSink) {
        self.shared.events.divert(sink);
    }
}

#[cfg(test)]
mod tests;
