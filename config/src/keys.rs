//! The table of keys: name, environment variable, expected value, and the field that it sets.

use crate::value::{Value, Wrong};
use crate::{Cidr, Config, IRD_ORD_MAX, KernelAddresses, MAX_ENGINES, MAX_PROBES, MTU_MAX, MTU_MIN};
use std::net::IpAddr;
use std::time::Duration;

/// A setting: its key in files, its environment variable, and how a value is stored in a [`Config`].
pub(crate) struct Key {
    pub section: &'static str,
    pub name: &'static str,
    pub env: &'static str,
    /// The correct values, as an instruction to the user: the remedy in errors that concern no other key.
    pub write: &'static str,
    pub set: fn(&mut Config, &Value) -> Result<(), Wrong>,
}

impl Key {
    /// Returns `section.name`.
    pub fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }
}

/// The names of the sections.
pub(crate) const SECTIONS: [&str; 6] = ["port", "ip", "engine", "tcp", "mpa", "memory"];

/// Returns the key called `name` in `section`; `None` if there is none.
pub(crate) fn find(section: &str, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.section == section && key.name == name)
}

/// Returns the environment variable that sets `key` (in the form `section.name`); `None` if there is no such key.
pub fn variable(key: &str) -> Option<&'static str> {
    let (section, name) = key.split_once('.')?;
    find(section, name).map(|key| key.env)
}

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

fn put<T>(place: &mut T, value: Result<T, Wrong>) -> Result<(), Wrong> {
    *place = value?;
    Ok(())
}

/// Returns `None` if `none` is `true`, otherwise the value.
fn unless<T>(none: bool, value: impl FnOnce() -> Result<T, Wrong>) -> Result<Option<T>, Wrong> {
    if none { Ok(None) } else { value().map(Some) }
}

/// The maximum number of addresses of a node.
const MAX_ADDRESSES: usize = 16;

/// Checks a list of addresses: from one to [`MAX_ADDRESSES`] addresses, at most one IPv4 address, no address twice.
fn addresses(list: Vec<Cidr>) -> Result<Vec<Cidr>, Wrong> {
    let v4 = list.iter().filter(|a| a.address.is_ipv4()).count();
    let twice =
        |(i, a): (usize, &Cidr)| list[..i].iter().any(|b| b.address == a.address).then_some(a.address);
    match list.iter().enumerate().find_map(twice) {
        _ if list.is_empty() => Err("no address is given".to_string()),
        _ if list.len() > MAX_ADDRESSES => {
            Err(format!("{} addresses are given, and at most {MAX_ADDRESSES} are supported", list.len()))
        }
        _ if v4 > 1 => Err(format!("{v4} IPv4 addresses are given, and one is supported")),
        Some(address) => Err(format!("{address} is given twice")),
        None => Ok(list),
    }
}

/// Checks a list of routers: at most one for IPv4 and one for IPv6.
fn gateways(list: Vec<IpAddr>) -> Result<Vec<IpAddr>, Wrong> {
    let v4 = list.iter().filter(|a| a.is_ipv4()).count();
    if v4 > 1 || list.len() - v4 > 1 {
        return Err("more than one router is given for IPv4 or for IPv6".to_string());
    }
    Ok(list)
}

/// All keys.
pub(crate) static KEYS: [Key; 37] = [
    Key {
        section: "port",
        name: "port",
        env: "URNIC_PORT",
        write: "write kernel, kernel:ADDRESS or kernel:INTERFACE for the host's own addresses, or KIND:ARG[,key=value...], \
                where the kinds are virtio_user:PATH, vhost:PATH, memif:PATH, ring:NAME, af_packet:INTERFACE, \
                af_xdp:INTERFACE, tap:NAME, pci:ADDRESS and vdev:DEVICE",
        set: |c, v| {
            let text = v.string("a port")?;
            (c.port.spec, c.port.kernel) = match KernelAddresses::parse(&text) {
                Some(addresses) => (None, addresses?),
                None => (Some(text.parse()?), KernelAddresses::All),
            };
            Ok(())
        },
    },
    Key {
        section: "port",
        name: "mtu",
        env: "URNIC_MTU",
        write: "write the largest IP packet in bytes, a number from 576 to 9000",
        set: |c, v| put(&mut c.port.mtu, v.number(MTU_MIN..=MTU_MAX)),
    },
    Key {
        section: "port",
        name: "mac",
        env: "URNIC_MAC",
        write: "write six octets such as \"02:00:00:00:00:01\", \"interface\" for the address of the interface or NIC, \
                or \"derived\" for one made of the IP address",
        set: |c, v| put(&mut c.port.mac, v.parsed("an Ethernet address")),
    },
    Key {
        section: "port",
        name: "fault",
        env: "URNIC_FAULT",
        write: "write the faults to inject, such as \"loss=0.01,seed=7\"",
        set: |c, v| {
            put(&mut c.port.fault, v.string("a list of faults").map(|f| Some(f).filter(|f| !f.is_empty())))
        },
    },
    Key {
        section: "port",
        name: "capture",
        env: "URNIC_CAPTURE",
        write: "write the name of a file, such as \"urnic.pcapng\"",
        set: |c, v| {
            let path =
                v.string("the name of a file").map(|f| Some(f).filter(|f| !f.is_empty()).map(Into::into));
            put(&mut c.port.capture, path)
        },
    },
    Key {
        section: "ip",
        name: "ip",
        env: "URNIC_IP",
        write: "write addresses of a host with their prefix lengths, such as \"10.0.0.1/24\", or \
                [\"10.0.0.1/24\", \"fd00::1/64\"] in a file and 10.0.0.1/24,fd00::1/64 elsewhere",
        set: |c, v| put(&mut c.ip.addresses, v.list("an address with a prefix length").and_then(addresses)),
    },
    Key {
        section: "ip",
        name: "autoconf",
        env: "URNIC_AUTOCONF",
        write: "write true or false",
        set: |c, v| put(&mut c.ip.autoconf, v.boolean()),
    },
    Key {
        section: "ip",
        name: "vlan",
        env: "URNIC_VLAN",
        write: "write the number of a VLAN, from 1 to 4094, or \"off\"",
        set: |c, v| put(&mut c.ip.vlan, unless(v.is_off(), || v.number(1..=4094u16))),
    },
    Key {
        section: "ip",
        name: "gateway",
        env: "URNIC_GATEWAY",
        write: "write a router's address in the device's network, such as \"10.0.0.254\", or one for IPv4 and one for \
                IPv6, [\"10.0.0.254\", \"fd00::fe\"] in a file and 10.0.0.254,fd00::fe elsewhere",
        set: |c, v| put(&mut c.ip.gateways, v.ips().and_then(gateways)),
    },
    Key {
        section: "ip",
        name: "routes",
        env: "URNIC_ROUTES",
        write: "write routes such as [\"10.1.0.0/16 via 10.0.0.2\"] in a file, or 10.1.0.0/16 via 10.0.0.2,... elsewhere",
        set: |c, v| put(&mut c.ip.routes, v.list("a route")),
    },
    Key {
        section: "engine",
        name: "cores",
        env: "URNIC_CORES",
        write: "write core numbers from 0 to 1023, such as [2, 3] in a file or 2,3 elsewhere",
        set: |c, v| put(&mut c.engine.cores, v.cores()),
    },
    Key {
        section: "engine",
        name: "engines",
        env: "URNIC_ENGINES",
        write: "write a number of engines from 1 to 64, or \"auto\" for one on each core of engine.cores",
        set: |c, v| {
            put(
                &mut c.engine.engines,
                unless(v.is_auto(), || v.number(1..=MAX_ENGINES as u64).map(|n| n as usize)),
            )
        },
    },
    Key {
        section: "engine",
        name: "progress",
        env: "URNIC_PROGRESS",
        write: "write \"inline\", \"dedicated\" or \"adaptive\"",
        set: |c, v| put(&mut c.engine.progress, v.choice()),
    },
    Key {
        section: "engine",
        name: "crc_kernel",
        env: "URNIC_CRC_KERNEL",
        write: "write \"auto\", \"portable\", \"sse4.2\", \"avx2\" or \"vpclmul\"",
        set: |c, v| put(&mut c.engine.crc_kernel, v.choice()),
    },
    Key {
        section: "tcp",
        name: "rto_min",
        env: "URNIC_TCP_RTO_MIN",
        write: "write a time from 1ms to 60s, such as \"200ms\"",
        set: |c, v| put(&mut c.tcp.rto_min, v.duration(MS..=Duration::from_secs(60))),
    },
    Key {
        section: "tcp",
        name: "recv_window",
        env: "URNIC_TCP_RECV_WINDOW",
        write: "write a number of bytes from 8KiB to 1GiB, such as 1048576 or \"1MiB\"",
        set: |c, v| put(&mut c.tcp.recv_window, v.bytes(8 << 10..=1u32 << 30)),
    },
    Key {
        section: "tcp",
        name: "sack",
        env: "URNIC_TCP_SACK",
        write: "write true or false",
        set: |c, v| put(&mut c.tcp.sack, v.boolean()),
    },
    Key {
        section: "tcp",
        name: "timestamps",
        env: "URNIC_TCP_TIMESTAMPS",
        write: "write true or false",
        set: |c, v| put(&mut c.tcp.timestamps, v.boolean()),
    },
    Key {
        section: "tcp",
        name: "window_scale",
        env: "URNIC_TCP_WINDOW_SCALE",
        write: "write true or false",
        set: |c, v| put(&mut c.tcp.window_scale, v.boolean()),
    },
    Key {
        section: "tcp",
        name: "congestion",
        env: "URNIC_TCP_CONGESTION",
        write: "write \"cubic\", \"reno\" or \"dctcp\"",
        set: |c, v| put(&mut c.tcp.congestion, v.choice()),
    },
    Key {
        section: "tcp",
        name: "ecn",
        env: "URNIC_TCP_ECN",
        write: "write \"off\", \"accept\" or \"offer\"",
        set: |c, v| put(&mut c.tcp.ecn, v.choice()),
    },
    Key {
        section: "tcp",
        name: "pacing",
        env: "URNIC_TCP_PACING",
        write: "write true or false",
        set: |c, v| put(&mut c.tcp.pacing, v.boolean()),
    },
    Key {
        section: "tcp",
        name: "keepalive_idle",
        env: "URNIC_TCP_KEEPALIVE_IDLE",
        write: "write a time from 10ms to 24h, such as \"10s\", or \"off\"",
        set: |c, v| put(&mut c.tcp.keepalive_idle, unless(v.is_off(), || v.duration(10 * MS..=24 * HOUR))),
    },
    Key {
        section: "tcp",
        name: "keepalive_interval",
        env: "URNIC_TCP_KEEPALIVE_INTERVAL",
        write: "write a time from 10ms to 24h, such as \"1s\"",
        set: |c, v| put(&mut c.tcp.keepalive_interval, v.duration(10 * MS..=24 * HOUR)),
    },
    Key {
        section: "tcp",
        name: "keepalive_count",
        env: "URNIC_TCP_KEEPALIVE_COUNT",
        write: "write the number of unanswered probes, from 1 to 100",
        set: |c, v| put(&mut c.tcp.keepalive_count, v.number(1..=MAX_PROBES)),
    },
    Key {
        section: "tcp",
        name: "user_timeout",
        env: "URNIC_TCP_USER_TIMEOUT",
        write: "write a time from 10ms to 24h, such as \"30s\", or \"off\"",
        set: |c, v| put(&mut c.tcp.user_timeout, unless(v.is_off(), || v.duration(10 * MS..=24 * HOUR))),
    },
    Key {
        section: "tcp",
        name: "queue_delay",
        env: "URNIC_TCP_QUEUE_DELAY",
        write: "write a time from 1us to 1s, such as \"16us\", or \"off\"",
        set: |c, v| put(&mut c.tcp.queue_delay, unless(v.is_off(), || v.duration(MS / 1000..=1000 * MS))),
    },
    Key {
        section: "mpa",
        name: "rev",
        env: "URNIC_MPA_REV",
        write: "write 1 (RFC 5044) or 2 (RFC 6581)",
        set: |c, v| put(&mut c.mpa.rev, v.number(1..=2u8)),
    },
    Key {
        section: "mpa",
        name: "crc",
        env: "URNIC_MPA_CRC",
        write: "write true or false",
        set: |c, v| put(&mut c.mpa.crc, v.boolean()),
    },
    Key {
        section: "mpa",
        name: "markers",
        env: "URNIC_MPA_MARKERS",
        write: "write true or false",
        set: |c, v| put(&mut c.mpa.markers, v.boolean()),
    },
    Key {
        section: "mpa",
        name: "rtr",
        env: "URNIC_MPA_RTR",
        write: "write \"off\", \"any\", \"write\", \"read\" or \"send\"",
        set: |c, v| put(&mut c.mpa.rtr, v.choice()),
    },
    Key {
        section: "mpa",
        name: "ird",
        env: "URNIC_MPA_IRD",
        write: "write a number of RDMA Reads from 0 to 16382",
        set: |c, v| put(&mut c.mpa.ird, v.number(0..=IRD_ORD_MAX)),
    },
    Key {
        section: "mpa",
        name: "ord",
        env: "URNIC_MPA_ORD",
        write: "write a number of RDMA Reads from 0 to 16382",
        set: |c, v| put(&mut c.mpa.ord, v.number(0..=IRD_ORD_MAX)),
    },
    Key {
        section: "mpa",
        name: "startup_timeout",
        env: "URNIC_MPA_STARTUP_TIMEOUT",
        write: "write a time from 10ms to 1h, such as \"5s\"",
        set: |c, v| put(&mut c.mpa.startup_timeout, v.duration(10 * MS..=HOUR)),
    },
    Key {
        section: "memory",
        name: "mb",
        env: "URNIC_MEMORY_MB",
        write: "write a number of MiB from 32 to 1048576, or \"auto\"",
        set: |c, v| put(&mut c.memory.mb, unless(v.is_auto(), || v.number(32..=1u32 << 20))),
    },
    Key {
        section: "memory",
        name: "hugepages",
        env: "URNIC_MEMORY_HUGEPAGES",
        write: "write \"auto\", \"off\" or \"required\"",
        set: |c, v| put(&mut c.memory.hugepages, v.choice()),
    },
    Key {
        section: "memory",
        name: "lend",
        env: "URNIC_MEMORY_LEND",
        write: "write \"auto\" or \"off\"",
        set: |c, v| put(&mut c.memory.lend, v.choice()),
    },
];
