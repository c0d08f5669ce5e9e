//! Makes engines that use a DPDK port, from a configuration. Each engine has one queue of the port.

use super::{Opened, choose_kernel, secret};
use crate::drive::clock::Clock;
use crate::drive::engine::{Berth, Engine, MpaConfig};
use crate::drive::port::dpdk::DpdkPort;
use crate::drive::shard::{EngineAttr, Undriven, close_ports};
use crate::drive::transport::over_port::OverPort;
use crate::shared::doorbell::Doorbells;
use crate::shared::engines::{Commons, EngineNumber};
use crate::shared::error::{Error, Result};
use crate::shared::numbers::MAX_QPS;
use nix::ifaddrs::InterfaceAddress;
use std::net::IpAddr;
use std::sync::Arc;
use urnic_config::{Config, Lend, PortSpec};
use urnic_dataplane::{
    Arena, Capabilities, Capture, Eal, EalConfig, Machine, MemoryKind, PortError, PortOptions, TxChecksum,
    before_cleanup,
};
use urnic_sim::Impairment;
use urnic_tcp::{Address, Congestion, Ecn, Keepalive, Route, StackConfig, TcpConfig};

/// Makes the engines that `config` describes.
pub(super) fn open(config: &Config, spec: &PortSpec) -> Result<Opened> {
    if !config.ip.is_configured() {
        return Err(Error::Invalid("the port has no IP address: set ip.ip, or use --ip ADDR/LEN"));
    }
    let fault = match &config.port.fault {
        Some(text) => {
            let parsed = text.parse::<Impairment>();
            Some(parsed.map_err(|e| Error::Open(format!("port.fault {text:?}: {e}")))?)
        }
        None => None,
    };
    choose_kernel(config.engine.crc_kernel)?;
    let failed = |e: &dyn std::fmt::Display| Error::Open(e.to_string());

    if spec.interface().is_some() {
        config.ip.addresses.iter().try_for_each(|a| not_of_the_kernel(a.address))?;
    }
    let hugepages = match config.memory.hugepages {
        urnic_config::Hugepages::Auto => urnic_dataplane::Hugepages::Auto,
        urnic_config::Hugepages::Off => urnic_dataplane::Hugepages::Off,
        urnic_config::Hugepages::Required => urnic_dataplane::Hugepages::Required,
    };
    let machine = Machine::this();
    let node = machine.node_of(spec);
    let given = config.engine.cores.iter().copied().take(config.engine.count());
    if let Some(warning) = machine.warning(spec, node, &given.collect::<Vec<_>>()) {
        tracing::warn!("{warning}");
    }
    let eal = EalConfig {
        memory_mb: config.memory_mb(),
        hugepages,
        nic: match spec {
            PortSpec::Pci { address, .. } => Some(address.clone()),
            _ => None,
        },
        ..EalConfig::default()
    };
    let eal = Eal::start(&eal).map_err(|e| failed(&e))?;
    if eal.memory() == MemoryKind::Foreign {
        before_cleanup(close_ports);
    }
    let usual = PortOptions::default();
    // The buffers of memory links are large, so fewer suffice. A port on a network gets twice as many, because one
    // host may hold at most half of them (`engine::senders`).
    let tx_frames = if spec.is_memory_link() { usual.tx_frames } else { 2 * usual.tx_frames };
    let wanted = config.engine.count();
    let queues = u16::try_from(wanted).unwrap_or(u16::MAX);
    // All queues together get as many buffers as a port with one queue would get. But each queue gets at least
    // `LEAST_FRAMES`, so that a connection can fill its window.
    let tx_frames = (tx_frames / u32::from(queues)).max(LEAST_FRAMES);
    let rx_frames = receive_frames(config);
    let options = PortOptions { mtu: config.port.mtu, rx_frames, tx_frames, queues, node, ..usual };
    let mut ports = urnic_dataplane::Port::open_queues(&eal, spec, &options).map_err(|e| failed(&e))?;
    if ports.len() < wanted {
        tracing::warn!(
            "{spec}: {wanted} engines are configured, but the port has only {} queues, so the device has only as many \
             engines as the port has queues",
            ports.len()
        );
    }
    let Some(port) = ports.first_mut() else {
        return Err(Error::Open(format!("{spec}: the port has no queue")));
    };

    let mac = match config.mac() {
        Some(mac) => mac.0,
        None => port.mac().ok_or_else(|| {
            Error::Open(format!(
                "{spec}: the port has no Ethernet address; set port.mac to an address, or leave port.mac out"
            ))
        })?,
    };
    let stack = StackConfig {
        addresses: config
            .ip
            .addresses
            .iter()
            .map(|a| Address { ip: a.address, prefix_len: a.prefix })
            .collect(),
        vlan: config.ip.vlan,
        autoconf: config.ip.autoconf,
        gateways: config.ip.gateways.clone(),
        routes: config
            .ip
            .routes
            .iter()
            .map(|r| Route { network: r.network, prefix_len: r.prefix, via: r.via })
            .collect(),
        mtu: config.port.mtu,
        tcp: tcp(config),
        ..StackConfig::new(mac, [0; 4], 0, secret()?)
    };
    port.hold_addresses(&stack.own_addresses(), stack.vlan).map_err(|e| match e {
        PortError::AddressInUse { address, .. } if config.ip.addresses.iter().all(|a| a.address != address) => {
            Error::Open(format!(
                "{e}; {address} is made of the Ethernet address: set another port.mac, or set an address of fe80::/64 \
                 yourself (ip.ip) and turn ip.autoconf off"
            ))
        }
        e => failed(&e),
    })?;
    // With injected faults, nothing is lent, because faults change copies of complete frames.
    let lends = port.caps().lends.filter(|_| fault.is_none() && config.memory.lend == Lend::Auto);
    let mpa = MpaConfig::of(config);
    let attributes = EngineAttr {
        mac,
        addresses: config.ip.addresses.clone(),
        mtu: config.port.mtu,
        port: spec.kind().to_owned(),
        link_up: false,
        capabilities: Some(match fault {
            None => Capabilities { lends, ..*port.caps() },
            Some(_) => Capabilities { tx_checksum: TxChecksum::Software, lends, ..*port.caps() },
        }),
        gso_max: 0,
        ird: mpa.ird,
        ord: mpa.ord,
        counters: Vec::new(),
    };
    let clock = urnic_dataplane::Clock::calibrate();
    let queues = ports.len();
    let capture = config.port.capture.as_ref();
    let capture = capture.map(|path| Capture::start(path, &spec.to_string(), clock, queues)).transpose();
    let capture = capture.map_err(|e| failed(&e))?;
    let mut captures = capture.into_iter().flatten();
    let queue = |(number, port)| {
        // Each queue gets a seed of its own. With equal seeds, all queues would lose frames at the same positions.
        let fault = fault.map(|f| Impairment { seed: f.seed.wrapping_add(number), ..f });
        DpdkPort::new(port, fault.as_ref(), lends, captures.next())
    };
    let ports = (0..).zip(ports).map(queue).collect();
    let (commons, seed) = (Commons::new()?, stack.seed);
    let mut transports = OverPort::of_device(ports, &stack, &commons, Clock::now(&clock))?;
    if !spec.is_memory_link() {
        OverPort::claim_addresses(&mut transports, &clock)?;
    }
    let undriven = |(number, transport)| {
        let doorbells = Arc::new(Doorbells::new(MAX_QPS as usize));
        let berth = Berth { number, commons: commons.clone(), doorbells: doorbells.clone() };
        let engine = Engine::new(transport, clock, seed, mpa.clone(), berth, attributes.clone());
        Undriven { engine: Box::new(engine), doorbells, node }
    };
    let mut engines = (0..).map_while(EngineNumber::new).zip(transports).map(undriven);
    let first = engines.next().ok_or_else(|| Error::Open(format!("{spec}: the port has no queue")))?;
    let others = engines.collect();
    Ok(Opened { first, others, memory: Arc::new(Arena::new(&eal)) })
}

/// Minimum number of buffers of a queue in each direction, besides the buffers that the driver holds.
const LEAST_FRAMES: u32 = 384;

/// Name of the interface that `urnic run` shows to programs: it adds this interface, which the kernel does not have, to
/// the list of `getifaddrs`.
const SHOWN: &str = "urnic0";

/// Refuses an address that the kernel has on an interface, because the kernel and the device would both answer for
/// it.
fn not_of_the_kernel(ip: IpAddr) -> Result<()> {
    let has = |i: &InterfaceAddress| {
        let address = i.address.as_ref().and_then(|a| match ip {
            IpAddr::V4(_) => a.as_sockaddr_in().map(|a| IpAddr::from(a.ip())),
            IpAddr::V6(_) => a.as_sockaddr_in6().map(|a| IpAddr::from(a.ip())),
        });
        i.interface_name != SHOWN && address == Some(ip)
    };
    match nix::ifaddrs::getifaddrs().into_iter().flatten().find(has) {
        Some(InterfaceAddress { interface_name: name, .. }) => Err(Error::Open(format!(
            "address conflict: the kernel has {ip} on its interface {name}, and would answer for it too; choose \
             another address, or remove this one from the kernel with `ip address del`"
        ))),
        None => Ok(()),
    }
}

/// Returns the number of receive buffers of each queue, besides the driver's buffers. A third more than a window of
/// full segments is enough, because segments that wait for a lost segment may hold at most three quarters of the
/// buffers. Apart from a minimum number, the buffers occupy at most a quarter of the memory.
fn receive_frames(config: &Config) -> u32 {
    let mtu = u32::from(config.port.mtu).max(576);
    let window = config.tcp.recv_window.div_ceil(mtu - 60);
    let queues = config.engine.count() as u32;
    let affordable = (u64::from(config.memory_mb() / queues) << 18) / u64::from(mtu + 512);
    let wanted = u64::from(window + window / 3).min(affordable) as u32;
    wanted.max((PortOptions::default().rx_frames / queues).max(LEAST_FRAMES))
}

fn tcp(config: &Config) -> TcpConfig {
    let t = &config.tcp;
    // A limit on the queueing delay makes sense only on a memory link, which no other traffic uses.
    let alone = config.port.spec.as_ref().is_some_and(PortSpec::is_memory_link);
    TcpConfig {
        queue_delay: t.queue_delay.filter(|_| alone),
        rto_min: t.rto_min,
        recv_window: t.recv_window,
        sack: t.sack,
        timestamps: t.timestamps,
        window_scale: t.window_scale,
        congestion: match t.congestion {
            urnic_config::Congestion::Reno => Congestion::Reno,
            urnic_config::Congestion::Cubic => Congestion::Cubic,
            urnic_config::Congestion::Dctcp => Congestion::Dctcp,
        },
        ecn: match t.ecn {
            urnic_config::Ecn::Off => Ecn::Off,
            urnic_config::Ecn::Accept => Ecn::Accept,
            urnic_config::Ecn::Offer => Ecn::Offer,
        },
        pacing: t.pacing,
        keepalive: t.keepalive_idle.map(|idle| Keepalive {
            idle,
            interval: t.keepalive_interval,
            count: t.keepalive_count,
        }),
        user_timeout: t.user_timeout,
        ..TcpConfig::default()
    }
}
