//! Makes engines that use the kernel's sockets, from a configuration.

use super::{Opened, choose_kernel, secret};
use crate::drive::clock::Watch;
use crate::drive::engine::{Berth, Engine, MpaConfig};
use crate::drive::shard::{EngineAttr, Undriven};
use crate::drive::transport::over_kernel::{OverKernel, host};
use crate::shared::doorbell::Doorbells;
use crate::shared::engines::{Commons, EngineNumber};
use crate::shared::error::{Error, Result};
use crate::shared::memory::{Allocate, HugepageAllocator, PageAllocator};
use crate::shared::numbers::MAX_QPS;
use std::sync::Arc;
use urnic_config::{Cidr, Config, Hugepages, KernelAddresses, Lend};
use urnic_tcp::{Address, Keepalive, Patience};

/// Makes the engines that `config` describes.
pub(super) fn open(config: &Config) -> Result<Opened> {
    if config.ip.is_configured() {
        return Err(Error::Invalid(
            "an IP address of the device's own (ip.ip, ip.autoconf) needs a DPDK port: the kernel's sockets use the \
             host's addresses; set port.port to a DPDK port, or leave the section [ip] out",
        ));
    }
    if config.port.fault.is_some() || config.port.capture.is_some() {
        return Err(Error::Invalid(
            "port.fault and port.capture need a DPDK port: the kernel's sockets support neither; set port.port to a \
             DPDK port, or remove them",
        ));
    }
    choose_kernel(config.engine.crc_kernel)?;
    let t = &config.tcp;
    let keepalive = t.keepalive_idle.map(|idle| Keepalive {
        idle,
        interval: t.keepalive_interval,
        count: t.keepalive_count,
    });
    let patience = Patience { keepalive, user_timeout: t.user_timeout };
    let transport = OverKernel::new(config.port.kernel.clone(), patience)?;
    let transport = match config.memory.lend {
        Lend::Auto => transport,
        Lend::Off => transport.copying(),
    };
    let mpa = MpaConfig::of(config);
    let attributes = attributes(&config.port.kernel, &mpa)?;
    let (commons, clock) = (Commons::new()?, Watch::new());
    let undriven = |number, transport| -> Result<Undriven> {
        let doorbells = Arc::new(Doorbells::new(MAX_QPS as usize));
        let berth = Berth { number, commons: commons.clone(), doorbells: doorbells.clone() };
        let engine = Engine::new(transport, clock.clone(), secret()?, mpa.clone(), berth, attributes.clone());
        Ok(Undriven { engine: Box::new(engine), doorbells, node: None })
    };
    let others = (1..config.engine.count()).filter_map(EngineNumber::new);
    let others = others.map(|number| undriven(number, transport.beside()?)).collect::<Result<_>>()?;
    let first = undriven(EngineNumber::FIRST, transport)?;
    let memory: Arc<dyn Allocate> = match config.memory.hugepages {
        Hugepages::Off => Arc::new(PageAllocator),
        wanted => Arc::new(HugepageAllocator::new(wanted == Hugepages::Required)?),
    };
    Ok(Opened { first, others, memory })
}

fn attributes(addresses: &KernelAddresses, mpa: &MpaConfig) -> Result<EngineAttr> {
    let found = host::addresses(addresses)?;
    Ok(EngineAttr {
        mac: host::mac(),
        addresses: found.iter().map(|a: &Address| Cidr { address: a.ip, prefix: a.prefix_len }).collect(),
        mtu: found.first().map_or(0, |main| host::mtu(main.ip)),
        port: addresses.to_string(),
        link_up: true,
        capabilities: None,
        gso_max: 0,
        ird: mpa.ird,
        ord: mpa.ord,
        counters: Vec::new(),
    })
}
