//! The port below the stack, written as `KIND:ARG[,key=value...]`.

use crate::Choice;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A port, which carries Ethernet frames.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PortSpec {
    /// `virtio_user:PATH`: one end of a link between two processes; the other is `vhost:PATH`.
    VirtioUser {
        /// Path of the Unix socket.
        path: PathBuf,
        /// Whether this side creates the socket (`server=yes`, the default) or connects to it. Exactly one side must
        /// create it. With the defaults, both sides may restart in any order.
        server: bool,
        /// Descriptors per ring, a power of two from 64 to 4096.
        queue_size: u16,
    },
    /// `vhost:PATH`: the other end of a `virtio_user` link.
    Vhost {
        /// Path of the Unix socket.
        path: PathBuf,
        /// Whether this side creates the socket (`server=yes`) or connects to it (`server=no`, the default).
        server: bool,
    },
    /// `memif:PATH`: a link between two processes over a shared memory interface.
    Memif {
        /// Path of the Unix socket.
        path: PathBuf,
        /// The role of this process at the socket.
        role: MemifRole,
        /// Number of the first engine's interface, the same on both sides; further engines have the next numbers.
        /// Several links may share a socket.
        id: u32,
        /// Descriptors per ring, a power of two from 64 to 4096.
        queue_size: u16,
    },
    /// `ring:NAME`: a link between two devices in one process; the first device to open the name is one end, the
    /// second the other.
    Ring {
        /// Name of the link.
        name: String,
    },
    /// `af_packet:IFACE`: a network interface of the kernel, through packet sockets.
    AfPacket {
        /// Name of the interface.
        interface: String,
        /// Frames per ring, a power of two from 64 to 4096.
        queue_size: u16,
    },
    /// `af_xdp:IFACE`: queues of a network interface, one for each engine, taken from the kernel by XDP.
    AfXdp {
        /// Name of the interface.
        interface: String,
        /// The first of these queues, counted from 0.
        queue: u16,
    },
    /// `tap:NAME`: a network interface that the port creates, with the kernel's stack behind it.
    Tap {
        /// Name of the interface.
        interface: String,
    },
    /// `pci:ADDRESS[,offload=no]`: a NIC that DPDK drives itself.
    Pci {
        /// The NIC's PCI address, such as `0000:00:04.0`.
        address: String,
        /// Whether checksums are left to the NIC, if it supports that.
        offload: bool,
    },
    /// `vdev:NAME[,key=value...]`: any other virtual device of DPDK; its arguments are passed on unchanged.
    Vdev {
        /// The driver's name with an unused number, such as `net_pcap9`.
        name: String,
        /// The arguments for the driver.
        args: String,
    },
}

/// The side of a memif socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemifRole {
    /// Creates the socket.
    Server,
    /// Connects to the socket.
    Client,
}

/// The longest path of a Unix socket in bytes, without the final zero.
const PATH_MAX: usize = 107;
/// Descriptors per ring of a memory link without `queue_size`.
const QUEUE_DEFAULT: u16 = 256;
/// Frames in a ring of `af_packet` without `queue_size`: large, because the kernel fills it even while we do not
/// poll.
const PACKET_QUEUE_DEFAULT: u16 = 4096;
/// The longest name of a network interface, in bytes (`IFNAMSIZ` without the final zero).
const INTERFACE_MAX: usize = 15;

impl PortSpec {
    /// Names of the kinds, written before the colon.
    pub const KINDS: [&'static str; 9] =
        ["virtio_user", "vhost", "memif", "ring", "af_packet", "af_xdp", "tap", "pci", "vdev"];

    /// Returns the name of this port's kind.
    pub fn kind(&self) -> &'static str {
        match self {
            PortSpec::VirtioUser { .. } => "virtio_user",
            PortSpec::Vhost { .. } => "vhost",
            PortSpec::Memif { .. } => "memif",
            PortSpec::Ring { .. } => "ring",
            PortSpec::AfPacket { .. } => "af_packet",
            PortSpec::AfXdp { .. } => "af_xdp",
            PortSpec::Tap { .. } => "tap",
            PortSpec::Pci { .. } => "pci",
            PortSpec::Vdev { .. } => "vdev",
        }
    }

    /// Returns whether the port joins two devices through shared memory. Other ports lead to a network.
    pub fn is_memory_link(&self) -> bool {
        matches!(
            self,
            PortSpec::VirtioUser { .. }
                | PortSpec::Vhost { .. }
                | PortSpec::Memif { .. }
                | PortSpec::Ring { .. }
        )
    }

    /// Returns the name of the port's network interface; `None` if it has none.
    pub fn interface(&self) -> Option<&str> {
        match self {
            PortSpec::AfPacket { interface, .. }
            | PortSpec::AfXdp { interface, .. }
            | PortSpec::Tap { interface } => Some(interface),
            _ => None,
        }
    }

    /// Returns the path of the port's socket; `None` if it has none.
    pub fn path(&self) -> Option<&Path> {
        match self {
            PortSpec::VirtioUser { path, .. }
            | PortSpec::Vhost { path, .. }
            | PortSpec::Memif { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Returns the port that the other end of the same link must open. A port that leads to a network has no other
    /// end, and is returned itself.
    pub fn peer(&self) -> PortSpec {
        match self.clone() {
            PortSpec::VirtioUser { path, server, .. } => PortSpec::Vhost { path, server: !server },
            PortSpec::Vhost { path, server } => {
                PortSpec::VirtioUser { path, server: !server, queue_size: QUEUE_DEFAULT }
            }
            PortSpec::Memif { path, role, id, queue_size } => {
                let role = if role == MemifRole::Server { MemifRole::Client } else { MemifRole::Server };
                PortSpec::Memif { path, role, id, queue_size }
            }
            other => other,
        }
    }
}

/// The `key=value` list after the argument. An option that the kind of port does not take is an error.
struct Options<'a> {
    kind: &'a str,
    given: Vec<(&'a str, &'a str)>,
    known: Vec<&'static str>,
}

impl<'a> Options<'a> {
    fn new(kind: &'a str, text: Option<&'a str>) -> Result<Self, String> {
        let mut given: Vec<(&str, &str)> = Vec::new();
        for option in text.into_iter().flat_map(|t| t.split(',')) {
            let (key, value) = option
                .split_once('=')
                .ok_or_else(|| format!("the port option {option:?} is not of the form key=value"))?;
            if given.iter().any(|(k, _)| *k == key) {
                return Err(format!("the port option {key:?} is given twice"));
            }
            given.push((key, value));
        }
        Ok(Options { kind, given, known: Vec::new() })
    }

    fn take<T>(
        &mut self,
        key: &'static str,
        default: T,
        expects: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, String> {
        self.known.push(key);
        let Some(at) = self.given.iter().position(|(k, _)| *k == key) else { return Ok(default) };
        let (_, value) = self.given.swap_remove(at);
        parse(value).ok_or_else(|| format!("the port option {key}={value} is not {expects}"))
    }

    fn flag(&mut self, key: &'static str, default: bool) -> Result<bool, String> {
        self.take(key, default, "yes or no", |v| match v {
            "yes" | "on" | "true" | "1" => Some(true),
            "no" | "off" | "false" | "0" => Some(false),
            _ => None,
        })
    }

    fn queue_size(&mut self, default: u16) -> Result<u16, String> {
        self.take("queue_size", default, "a power of two from 64 to 4096", |v| {
            v.parse().ok().filter(|n: &u16| n.is_power_of_two() && (64..=4096).contains(n))
        })
    }

    fn end(self) -> Result<(), String> {
        let Some((key, _)) = self.given.first() else { return Ok(()) };
        let kind = self.kind;
        Err(match self.known.is_empty() {
            true => format!("a {kind} port has no options, but {key:?} is given"),
            false => {
                format!("a {kind} port has no option {key:?}; its options are {}", self.known.join(", "))
            }
        })
    }
}

fn socket(kind: &str, arg: &str) -> Result<PathBuf, String> {
    match arg.len() {
        0 => Err(format!("a {kind} port needs the path of a socket")),
        1..=PATH_MAX => Ok(PathBuf::from(arg)),
        n => Err(format!("the socket path has {n} bytes, and {PATH_MAX} is the most that the system takes")),
    }
}

fn interface(kind: &str, arg: &str) -> Result<String, String> {
    match arg.len() {
        0 => Err(format!("a {kind} port needs the name of a network interface")),
        1..=INTERFACE_MAX if arg != "." && arg != ".." && !arg.contains(['/', ' ', ':']) => {
            Ok(arg.to_string())
        }
        _ => Err(format!("{arg:?} cannot be the name of a network interface")),
    }
}

/// Parses `DOMAIN:BUS:DEVICE.FUNCTION`; the domain may be omitted.
fn pci_address(arg: &str) -> Result<String, String> {
    let wrong = || format!("{arg:?} is not the address of a PCI device, such as 0000:00:04.0");
    let hex = |text: &str, max: u32| {
        let digits = (1..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
        u32::from_str_radix(text, 16).ok().filter(|n| digits && *n <= max).ok_or_else(wrong)
    };
    let (rest, function) = arg.rsplit_once('.').ok_or_else(wrong)?;
    let mut parts = rest.rsplit(':');
    let device = hex(parts.next().unwrap_or(""), 0x1f)?;
    let bus = hex(parts.next().unwrap_or(""), 0xff)?;
    let domain = parts.next().map_or(Ok(0), |domain| hex(domain, 0xffff))?;
    if parts.next().is_some() {
        return Err(wrong());
    }
    Ok(format!("{domain:04x}:{bus:02x}:{device:02x}.{:x}", hex(function, 7)?))
}

/// Checks a driver's name with a number, such as `net_pcap9`.
fn device_name(arg: &str) -> Result<String, String> {
    let known = arg.starts_with("net_") && arg.ends_with(|c: char| c.is_ascii_digit());
    if !known || arg.len() > 63 || !arg.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(format!("{arg:?} is not a network driver of DPDK with a number, such as net_pcap9"));
    }
    Ok(arg.to_string())
}

impl FromStr for PortSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.bytes().any(|b| b.is_ascii_control()) {
            return Err("the port contains a control character".to_string());
        }
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let (arg, options) = match rest.split_once(',') {
            Some((arg, options)) => (arg, Some(options)),
            None => (rest, None),
        };
        if kind == "vdev" {
            return Ok(PortSpec::Vdev { name: device_name(arg)?, args: options.unwrap_or("").to_string() });
        }
        let mut options = Options::new(kind, options)?;
        let spec = match kind {
            "virtio_user" => PortSpec::VirtioUser {
                path: socket(kind, arg)?,
                server: options.flag("server", true)?,
                queue_size: options.queue_size(QUEUE_DEFAULT)?,
            },
            "vhost" => PortSpec::Vhost { path: socket(kind, arg)?, server: options.flag("server", false)? },
            "memif" => PortSpec::Memif {
                path: socket(kind, arg)?,
                role: options.take("role", MemifRole::Client, "server or client", MemifRole::from_word)?,
                id: options.take("id", 0, "a number", |v| v.parse().ok())?,
                queue_size: options.queue_size(QUEUE_DEFAULT)?,
            },
            "ring" if arg.is_empty() => return Err("a ring port needs a name".to_string()),
            "ring" => PortSpec::Ring { name: arg.to_string() },
            "af_packet" => PortSpec::AfPacket {
                interface: interface(kind, arg)?,
                queue_size: options.queue_size(PACKET_QUEUE_DEFAULT)?,
            },
            "af_xdp" => PortSpec::AfXdp {
                interface: interface(kind, arg)?,
                queue: options.take("queue", 0, "a number", |v| v.parse().ok())?,
            },
            "tap" => PortSpec::Tap { interface: interface(kind, arg)? },
            "pci" => PortSpec::Pci { address: pci_address(arg)?, offload: options.flag("offload", true)? },
            _ => return Err(format!("there is no kind of port {kind:?}")),
        };
        options.end()?;
        Ok(spec)
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.kind())?;
        match self {
            PortSpec::VirtioUser { path, server, queue_size } => {
                write!(f, "{}", path.display())?;
                if !server {
                    f.write_str(",server=no")?;
                }
                if *queue_size != QUEUE_DEFAULT {
                    write!(f, ",queue_size={queue_size}")?;
                }
            }
            PortSpec::Vhost { path, server } => {
                write!(f, "{}", path.display())?;
                if *server {
                    f.write_str(",server=yes")?;
                }
            }
            PortSpec::Memif { path, role, id, queue_size } => {
                write!(f, "{},role={role}", path.display())?;
                if *id != 0 {
                    write!(f, ",id={id}")?;
                }
                if *queue_size != QUEUE_DEFAULT {
                    write!(f, ",queue_size={queue_size}")?;
                }
            }
            PortSpec::Ring { name } => f.write_str(name)?,
            PortSpec::AfPacket { interface, queue_size } => {
                f.write_str(interface)?;
                if *queue_size != PACKET_QUEUE_DEFAULT {
                    write!(f, ",queue_size={queue_size}")?;
                }
            }
            PortSpec::AfXdp { interface, queue } => {
                f.write_str(interface)?;
                if *queue != 0 {
                    write!(f, ",queue={queue}")?;
                }
            }
            PortSpec::Tap { interface } => f.write_str(interface)?,
            PortSpec::Pci { address, offload } => {
                f.write_str(address)?;
                if !offload {
                    f.write_str(",offload=no")?;
                }
            }
            PortSpec::Vdev { name, args } => {
                f.write_str(name)?;
                if !args.is_empty() {
                    write!(f, ",{args}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
