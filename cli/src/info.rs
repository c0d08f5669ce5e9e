//! `urnic info`: the device and the machine.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write;

use serde::Serialize;
use urnic::{Device, DeviceAttr, EngineFigures};
use urnic_config::{Choice, Config, Mac, PortSpec};
use urnic_dataplane::{Capabilities, ExternalMemory, RxChecksum, TxChecksum, allowed_cores, hugepage_status};

use crate::args::{InfoArgs, NodeArgs, Way};
use crate::connections;
use crate::failure::{Failure, print};
use crate::run::Libraries;
use crate::settings::Settings;

/// The output; its JSON form is a contract with scripts. Absent values are null.
#[derive(Serialize)]
struct Info {
    version: &'static str,
    /// DPDK's version; null if this command was built without it.
    dpdk: Option<&'static str>,
    /// Why ports cannot be used; null if they can.
    ports: Option<String>,
    /// Cores that this process may run on.
    cores: Vec<usize>,
    /// Cores that engine threads are pinned to; empty: any core.
    engine_cores: Vec<usize>,
    progress: &'static str,
    crc_kernel: &'static str,
    memory_mb: u32,
    hugepages: HugepageInfo,
    /// The configured port.
    port: String,
    mtu: u16,
    fault: Option<String>,
    offloads: Option<Offloads>,
    device: Option<DeviceInfo>,
    run: RunInfo,
}

/// The effect of the settings on `urnic run`.
#[derive(Serialize)]
struct RunInfo {
    /// The environment variables that `urnic run` sets.
    environment: BTreeMap<&'static str, String>,
    /// A known reason why `urnic run` would fail, such as missing libraries; null if none is known.
    missing: Option<String>,
}

#[derive(Serialize)]
struct HugepageInfo {
    setting: &'static str,
    page_bytes: u64,
    total: u64,
    free: u64,
}

/// The work that the port does for the stack; without an open device, the most that a port of this kind can do.
#[derive(Serialize)]
struct Offloads {
    /// Whether the stack may leave out the TCP checksums of sent segments.
    checksum: bool,
    /// Where checksums of sent segments are computed: `software` (the stack), `nic`, or `spared` (nowhere, because the
    /// link needs none).
    tx_checksum: &'static str,
    /// Where checksums of received segments are verified: `software`, `nic` (for segments that the NIC reports as
    /// right), or `link` (nowhere, if the peer states that a segment needs no check).
    rx_checksum: &'static str,
    /// Whether frames are sent in several pieces.
    scatter_gather: bool,
    /// The memory that is sent without a copy: `none`, `eal` (only DPDK's own) or `any`.
    zero_copy: &'static str,
    /// Whether the present peer accepts several TCP segments as one frame.
    tso: bool,
}

#[derive(Serialize)]
struct DeviceInfo {
    name: &'static str,
    transport: &'static str,
    node_guid: String,
    mac: String,
    ip: String,
    state: &'static str,
    max_qp: u32,
    max_qp_wr: u32,
    max_sge: u8,
    max_inline: u32,
    max_cqe: u32,
    max_mr: u32,
    engines: Vec<EngineInfo>,
}

/// How busy an engine of the device is.
#[derive(Serialize)]
struct EngineInfo {
    number: u32,
    /// The core that its thread is pinned to; null if it is not pinned.
    core: Option<usize>,
    passes: u64,
    busy_passes: u64,
    queue_pairs: u32,
    connections: u32,
}

pub fn run(args: &InfoArgs) -> Result<(), Failure> {
    if args.connections {
        return connections::run(args.json);
    }
    let settings = Settings::of_node(&args.node);
    let config = settings.load()?;
    let device = match (&config.port.spec, config.ip.is_configured()) {
        (Some(_), true) | (None, false) => Some(Device::open(&config)?.attributes()?),
        _ => None,
    };
    let info = Info::new(&config, device.as_ref(), RunInfo::of(&args.node));
    print(&match args.json {
        true => serde_json::to_string(&info).map_err(|error| Failure::Failed(error.to_string()))?,
        false => info.text(),
    })
}

/// Returns the version of DPDK; `None` if this command was built without it.
fn dpdk() -> Option<&'static str> {
    #[cfg(feature = "dpdk")]
    let version = Some(urnic_dataplane::Eal::version().trim_start_matches("DPDK "));
    #[cfg(not(feature = "dpdk"))]
    let version = None;
    version
}

/// Returns why ports cannot be used; `None` if they can.
fn no_ports() -> Option<String> {
    #[cfg(feature = "dpdk")]
    let why = None;
    #[cfg(not(feature = "dpdk"))]
    let why = crate::builds::find().err().map(|failure| failure.to_string());
    why
}

impl Info {
    fn new(config: &Config, device: Option<&DeviceAttr>, run: RunInfo) -> Self {
        let pages = hugepage_status();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            dpdk: dpdk(),
            ports: no_ports(),
            cores: allowed_cores(),
            engine_cores: config.engine.cores.clone(),
            progress: config.engine.progress.word(),
            crc_kernel: config.engine.crc_kernel.word(),
            memory_mb: config.memory_mb(),
            hugepages: HugepageInfo {
                setting: config.memory.hugepages.word(),
                page_bytes: pages.page_bytes,
                total: pages.total,
                free: pages.free,
            },
            port: config
                .port
                .spec
                .as_ref()
                .map_or_else(|| config.port.kernel.to_string(), ToString::to_string),
            mtu: config.port.mtu,
            fault: config.port.fault.clone(),
            offloads: config.port.spec.as_ref().map(|spec| Offloads::of(spec, device)),
            device: device.map(DeviceInfo::of),
            run,
        }
    }

    fn text(&self) -> String {
        let dpdk = match (self.dpdk, &self.ports) {
            (Some(version), _) => format!("DPDK {version}"),
            (None, None) => "with DPDK for ports".to_owned(),
            (None, Some(_)) => "without DPDK".to_owned(),
        };
        let mut text = format!("urnic {}, {dpdk}\n", self.version);
        let list = |cores: &[usize]| cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        // Writing to a string cannot fail.
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "  {name:<16}{value}");
        };
        line("cores", list(&self.cores));
        let engine =
            if self.engine_cores.is_empty() { "any core".to_owned() } else { list(&self.engine_cores) };
        line("engine", format!("{}, {engine}", self.progress));
        line("CRC kernel", self.crc_kernel.to_owned());
        line("memory", format!("{} MiB", self.memory_mb));
        let HugepageInfo { setting, page_bytes, total, free } = &self.hugepages;
        line("hugepages", format!("{setting}; {free} of {total} free, {} KiB each", page_bytes >> 10));
        line("port", self.port.clone());
        if self.offloads.is_none() {
            line(
                "transport",
                "the kernel's TCP; any host that reaches these addresses may connect".to_owned(),
            );
            line("faster", "a DPDK port: --port KIND:ARG --ip ADDR/LEN; see docs/urnic.md".to_owned());
            if let Some(why) = &self.ports {
                line("missing", why.clone());
            }
        } else {
            line("MTU", self.mtu.to_string());
        }
        if let Some(fault) = &self.fault {
            line("faults", fault.clone());
        }
        if let Some(o) = &self.offloads {
            let yes = |b: bool| if b { "yes" } else { "no" };
            line("checksums", format!("sent: {}, received: {}", o.tx_checksum, o.rx_checksum));
            line("scatter-gather", yes(o.scatter_gather).to_owned());
            line("zero copy", format!("{} memory", o.zero_copy));
            line("TSO", yes(o.tso).to_owned());
        }
        match &self.device {
            Some(device) => device.text(&mut text),
            None => text.push_str(
                "no device: --port and --ip go together: a port needs an address (--ip ADDR/LEN), and without a port \
                 the device has the host's addresses",
            ),
        }
        self.run.text(&mut text);
        text
    }
}

impl RunInfo {
    fn of(args: &NodeArgs) -> Self {
        let libraries = Libraries::find().and_then(|found| found.environment(Way::Both, false));
        let (libraries, missing) = match libraries {
            Ok(variables) => (variables, None),
            Err(failure) => (Vec::new(), Some(failure)),
        };
        let (settings, unset) = match Settings::of_node(args).into_environment() {
            Ok(variables) => (variables, None),
            Err(failure) => (Vec::new(), Some(failure)),
        };
        let text = |(name, value): (_, OsString)| (name, value.to_string_lossy().into_owned());
        Self {
            environment: settings.into_iter().chain(libraries).map(text).collect(),
            missing: missing.or(unset).map(|failure| failure.to_string()),
        }
    }

    fn text(&self, text: &mut String) {
        let _ = match &self.missing {
            Some(why) => write!(text, "\nurnic run: {why}"),
            None => write!(text, "\nurnic run sets for a program:"),
        };
        for (name, value) in &self.environment {
            let _ = write!(text, "\n  {name}={value}");
        }
    }
}

impl Offloads {
    fn of(spec: &PortSpec, device: Option<&DeviceAttr>) -> Self {
        let caps = device.and_then(|d| d.capabilities).unwrap_or_else(|| Capabilities::of(spec));
        Self {
            checksum: caps.tx_checksum != TxChecksum::Software,
            tx_checksum: match caps.tx_checksum {
                TxChecksum::Software => "software",
                TxChecksum::Spared => "spared",
                TxChecksum::Nic => "nic",
            },
            rx_checksum: match caps.rx_checksum {
                RxChecksum::Software => "software",
                RxChecksum::Link => "link",
                RxChecksum::Nic => "nic",
            },
            scatter_gather: caps.multi_segment_tx,
            zero_copy: match caps.lends {
                None => "none",
                Some(ExternalMemory::Eal) => "eal",
                Some(ExternalMemory::Any) => "any",
            },
            tso: device.is_some_and(|d| d.gso_max > 0),
        }
    }
}

impl EngineInfo {
    fn of(engine: &EngineFigures) -> Self {
        let &EngineFigures { number, core, passes, busy_passes, queue_pairs, connections, .. } = engine;
        Self { number, core, passes, busy_passes, queue_pairs, connections }
    }
}

impl DeviceInfo {
    fn of(device: &DeviceAttr) -> Self {
        let [a, b, c, d, e, f] = device.mac;
        Self {
            name: "urnic0",
            transport: "iWARP",
            // The EUI-64 of the Ethernet address, as RNICs use it.
            node_guid: format!("{:02x}{b:02x}:{c:02x}ff:fe{d:02x}:{e:02x}{f:02x}", a ^ 2),
            mac: Mac(device.mac).to_string(),
            ip: device.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            state: if device.link_up { "active" } else { "down" },
            max_qp: device.max_qp,
            max_qp_wr: device.max_qp_wr,
            max_sge: device.max_sge,
            max_inline: device.max_inline,
            max_cqe: device.max_cqe,
            max_mr: device.max_mr,
            engines: device.per_engine.iter().map(EngineInfo::of).collect(),
        }
    }

    /// Appends the device in the format of `ibv_devinfo`.
    fn text(&self, text: &mut String) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "hca_id: {}", self.name);
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            let _ = writeln!(text, "        {:<24}{value}", format!("{name}:"));
        };
        line("transport", &self.transport);
        line("node_guid", &self.node_guid);
        line("max_qp", &self.max_qp);
        line("max_qp_wr", &self.max_qp_wr);
        line("max_sge", &self.max_sge);
        line("max_inline", &self.max_inline);
        line("max_cqe", &self.max_cqe);
        line("max_mr", &self.max_mr);
        line("engines", &self.engines.len());
        for engine in &self.engines {
            let core = engine.core.map_or("any core".to_owned(), |core| format!("core {core}"));
            let EngineInfo { passes, busy_passes, queue_pairs, connections, .. } = engine;
            line(
                &format!("engine {}", engine.number),
                &format!(
                    "{core}; {passes} passes, {busy_passes} with work; {queue_pairs} queue pairs, {connections} connections"
                ),
            );
        }
        line("state", &self.state);
        line("mac", &self.mac);
        line("ip", &self.ip);
        text.truncate(text.trim_end().len());
    }
}
