//! The device.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
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
use crate::shared::quiet::forked;
use crate::shared::scope::Scope;

/// What all objects of a device share.
pub(crate) struct DeviceShared {
    pub(crate) shards: Shards,
    /// Reservations and listeners are made in the same order at all engines, so that they have the same names there.
    pub(crate) reservations: Reservations,
    pub(crate) commons: Arc<Commons>,
    /// Memory regions and windows.
    pub(crate) table: Arc<MrTable>,
    pub(crate) events: Arc<AsyncQueue>,
    clock: DeviceClock,
    pub(crate) memory: Arc<dyn Allocate>,
    pub(crate) qpns: Numbers,
    // Queues may outlive the device.
    cqns: Arc<Numbers>,
    pub(crate) srqns: Arc<Numbers>,
    scopes: AtomicU32,
    /// Whether the connections' data is waited for at the end; not where time is simulated.
    lingers: bool,
    /// Tells other processes.
    inspector: Option<Inspector>,
    /// Addresses that look as if the host had them, and cannot be reached from here.
    pub(crate) neighbours: Option<Neighbours>,
}

/// Who makes or gives back reservations, one at a time.
#[derive(Default)]
pub(crate) struct Reservations(Mutex<()>);

impl Reservations {
    /// Waits for the turn.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a device is a part of.
pub(crate) enum World<'a> {
    /// A simulation: time may stand still, and nobody else knows of it.
    Simulation,
    /// The host, whose addresses it has.
    Host,
    /// A network, by a port with addresses that the host's kernel does not have.
    Network(&'a [Cidr]),
}

impl DeviceShared {
    /// A number for a new protection domain or queue pair.
    pub(crate) fn next_scope(&self) -> Scope {
        Scope(self.scopes.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for DeviceShared {
    fn drop(&mut self) {
        self.inspector = None;
        // The threads first: they keep the shards alive.
        self.shards.stop();
        if self.lingers {
            self.shards.linger();
        }
    }
}

/// Facts and limits of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Ethernet address.
    pub mac: [u8; 6],
    /// The main IP address.
    pub ip: IpAddr,
    /// Bits of the network's part of it.
    pub prefix_len: u8,
    /// All addresses at this moment, the main one first.
    pub addresses: Vec<Cidr>,
    /// Bytes of an IP packet.
    pub mtu: u16,
    /// Kind of port, as in the configuration.
    pub port: String,
    /// Whether the link is up.
    pub link_up: bool,
    /// What the port can do; none of a simulated one.
    pub capabilities: Option<Capabilities>,
    /// Bytes of payload that one frame may carry to the peer that is there now as several TCP segments; zero if none.
    pub gso_max: usize,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests of a queue.
    pub max_qp_wr: u32,
    /// Scatter-gather elements of a work request.
    pub max_sge: u8,
    /// Scatter-gather elements of a Read, which is one on the wire whatever their number.
    pub max_sge_rd: u8,
    /// Inline bytes of a work request.
    pub max_inline: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Receives of a shared receive queue.
    pub max_srq_wr: u32,
    /// Scatter-gather elements of a receive of a shared receive queue.
    pub max_srq_sge: u8,
    /// Protection domains.
    pub max_pd: u32,
    /// Reads of the peer that may be outstanding at a queue pair (IRD).
    pub max_ird: u16,
    /// Reads of a queue pair that may be outstanding at the peer (ORD).
    pub max_ord: u16,
    /// Memory regions and windows together.
    pub max_mr: u32,
    /// Memory windows, if there are no regions.
    pub max_mw: u32,
    /// Atomics and Writes with immediate data (RFC 7306) are there; whether a peer has them, it has to tell.
    pub extensions: bool,
    /// Engines, each of which runs on a core of its own where there are enough: completion vectors.
    pub engines: u32,
    /// Counters by name, of all engines together.
    pub counters: Vec<(&'static str, u64)>,
    /// How busy each engine is, in the order of their numbers.
    pub per_engine: Vec<EngineFigures>,
}

/// What was taken back from the engines' table goes on being used by passes that are under way.
impl DeviceShared {
    /// Waits for the end of the passes that are under way, also of those engines behind one that fails.
    ///
    /// # Errors
    /// [`Error::Interrupted`]: one of them does not end before the caller returns; [`Error::Forked`].
    pub(crate) fn await_passes(&self) -> Result<()> {
        self.shards.iter().map(|shard| shard.await_pass()).fold(Ok(()), Result::and)
    }

    /// The same, and from then on nothing that any engine has lent reads memory within `range` (addresses), which has been
    /// taken from the table. One engine after the other: no two are held at once.
    ///
    /// # Errors
    /// As those of [`Self::await_passes`].
    pub(crate) fn take_back(&self, range: &Range<usize>) -> Result<()> {
        let take_back = |engine: &mut dyn EngineOps| {
            engine.take_back(range);
            Ok(())
        };
        self.shards.iter().map(|shard| shard.control(take_back)).fold(Ok(()), Result::and)
    }
}

/// An RNIC. Clones are handles to the same device; it lives as long as anything made from it, and ends
/// its connections gracefully, within five seconds, when the last is dropped or the process exits.
#[derive(Clone)]
pub struct Device {
    pub(crate) shared: Arc<DeviceShared>,
}

impl Device {
    /// Returns the Ethernet address by which a device as `config` describes it is known before it is open; of a port with
    /// an address of its own, one that serves as well.
    pub fn mac_of(config: &Config) -> [u8; 6] {
        crate::drive::open::mac_of(config)
    }

    /// Returns the number (`if_nametoindex`) of the host's interface that an address of a device as `config` describes it is
    /// on; `None` where there is none, as on a NIC that the kernel does not drive.
    pub fn interface_of(config: &Config, address: IpAddr) -> Option<u32> {
        crate::drive::open::interface_of(config, address)
    }

    /// Opens a device: starts EAL if it does not run yet, opens the port, and starts the engine's thread if
    /// `progress` asks for one.
    ///
    /// # Errors
    /// [`Error::Open`] says what DPDK or the configuration refuses; [`Error::Invalid`] what the configuration
    /// lacks.
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

    /// A device whose connections are carried by `transport`. Of `config` the sections `engine`, `mpa` and `ip` count; the last
    /// only says which addresses are shown where the transport does not tell its own.
    ///
    /// # Errors
    /// [`Error::Open`] if there are no descriptors or threads left; [`Error::Forked`].
    pub fn over<T: Transport + 'static>(transport: T, clock: impl Clock, config: &Config) -> Result<Self> {
        Self::over_each([transport], clock, config)
    }

    /// The same with an engine on each of `transports`, which know of each other: what one reserves the others
    /// [enter](Transport::bind_too), and connections that one has taken in can go to another
    /// ([`part_with`](Transport::part_with)), or queue pairs go to theirs.
    ///
    /// # Errors
    /// As those of [`over`](Self::over); [`Error::Invalid`] without transports, or with more than [`MAX_ENGINES`](urnic_config::MAX_ENGINES).
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
            let number = EngineNumber::new(index).ok_or(Error::Invalid("so many engines"))?;
            let doorbells = Arc::new(Doorbells::new(MAX_QPS as usize));
            let berth = Berth { number, commons: commons.clone(), doorbells: doorbells.clone() };
            let engine =
                Engine::new(transport, clock.clone(), secret()?, mpa.clone(), berth, attributes.clone());
            engines.push(Undriven { engine: Box::new(engine), doorbells, node: None });
        }
        let mut engines = engines.into_iter();
        let first = engines.next().ok_or(Error::Invalid("a device without engines"))?;
        let memory = Arc::new(PageAllocator);
        Self::from_engines(first, engines, memory, config.engine.progress, &config.engine.cores)
    }

    /// A device on simulated engines; when it ends it waits for nothing, because time may stand still.
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
            scopes: AtomicU32::new(0),
            lingers: !matches!(world, World::Simulation),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Facts and limits.
    ///
    /// # Errors
    /// [`Error::Forked`].
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

    /// Whether this process is a forked child of the one that opened the device, and cannot use it.
    pub fn is_forked(&self) -> bool {
        forked()
    }

    /// The TCP connections of the device, also those that are not in RDMA mode.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn connections(&self) -> Result<Vec<ConnectionAttr>> {
        self.shared.shards.connections()
    }

    /// Creates a protection domain.
    pub fn alloc_pd(&self) -> Pd {
        let scope = self.shared.next_scope();
        Pd { shared: Arc::new(PdShared { scope, regions: Regions::default(), device: self.shared.clone() }) }
    }

    /// Creates a completion channel.
    ///
    /// # Errors
    /// [`Error::NoDescriptor`].
    pub fn create_comp_channel(&self) -> Result<CompChannel> {
        Ok(CompChannel { shared: ChannelShared::new()?, device: self.shared.clone() })
    }

    /// Creates a completion queue for at least `depth` completions, with a channel for its events if wanted.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a depth of 0 or beyond the device's limit, a channel of another device, or a vector beyond its engines,
    /// [`Error::Exhausted`] if there are too many completion queues.
    pub fn create_cq(&self, depth: u32, channel: Option<&CompChannel>) -> Result<Cq> {
        self.create_cq_with(&CqInit { depth, channel, timestamps: false, vector: 0 })
    }

    /// The same with all there is to choose.
    ///
    /// # Errors
    /// As for [`create_cq`](Self::create_cq).
    pub fn create_cq_with(&self, init: &CqInit<'_>) -> Result<Cq> {
        check_depth(init.depth)?;
        let channel = init.channel;
        let device = &self.shared;
        let home =
            EngineNumber::new(init.vector as usize).filter(|home| home.index() < device.shards.count());
        let home = home.ok_or(Error::Invalid("the completion vector: the device has fewer engines"))?;
        if channel.is_some_and(|channel| !Arc::ptr_eq(&channel.device, device)) {
            return Err(Error::Invalid("the completion channel belongs to another device"));
        }
        let channel = channel.map(|channel| channel.shared.clone());
        let cqn = Number::take(&device.cqns).ok_or(Error::Exhausted("completion queues"))?;
        let clock = init.timestamps.then(|| device.clock.clone());
        let shared = CqShared::new(cqn, home, init.depth, channel, device.events.clone(), clock);
        Ok(Cq { shared, device: device.clone() })
    }

    /// Returns the address of the device's that a connection to `to`, of which the port does not matter, comes from; `None`
    /// if there is no way to it.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Interrupted`], [`Error::NoDescriptor`], [`Error::Forbidden`].
    pub fn source_for(&self, to: SocketAddr) -> Result<Option<IpAddr>> {
        self.shared.shards.first().control(|engine| engine.source_for(to))
    }

    /// The device's clock in nanoseconds, from an arbitrary origin: that of time stamps
    /// ([`Completion::timestamp`](crate::Completion::timestamp)).
    pub fn raw_clock(&self) -> u64 {
        (self.shared.clock)()
    }

    /// What happens to the device and its objects.
    pub fn async_events(&self) -> AsyncEvents {
        AsyncEvents::new(&self.shared)
    }

    /// Reserves a TCP port (zero: any free one) of a local address, for a listener or for connections. An unspecified
    /// address stands for all addresses of its family, and `::` for those of both unless `v6only`. Reservations of a
    /// port for different addresses stand side by side.
    ///
    /// # Errors
    /// [`Error::NotOurAddress`], [`Error::PortInUse`], [`Error::Exhausted`].
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

    /// Creates a channel whose events do not wait in it: `sink` is given each as it happens, by whichever thread drives the
    /// engine. It must be quick and must not use the device. [`EventChannel::adopt`] makes requests answerable.
    ///
    /// # Errors
    /// As for [`create_event_channel`](Self::create_event_channel).
    pub fn create_event_sink(&self, sink: EventSink) -> Result<EventChannel> {
        EventChannel::new(&self.shared, Some(sink))
    }

    /// Does `deed` once `time` has passed by the device's clock, in whichever thread drives the engine then, or never if the
    /// device ends before. It must be quick and must not use the device.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn after(&self, time: Duration, deed: impl FnOnce() + Send + 'static) -> Result<()> {
        self.shared.shards.first().control(|engine| {
            engine.after(time, Box::new(deed));
            Ok(())
        })
    }

    /// Gives asynchronous events to `sink` as they happen, and those that nobody has read now, instead of keeping them for
    /// [`async_events`](Self::async_events). It must be quick and must not use the device. Only the first sink counts.
    pub fn sink_async_events(&self, sink: AsyncSink) {
        self.shared.events.divert(sink);
    }
}

#[cfg(test)]
mod tests;
