//! Warns of addresses that belong to ports of processes on this host. The host's kernel does not know these
//! addresses: its packets to them leave the host, or go nowhere, so that a program on the kernel's sockets connects
//! to them in vain.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::inspect::PREFIX;
use crate::drive::open::has_address;

/// How long a list of ports stays valid. A program may start thousands of connections at once, and they must not each
/// read the list.
const FRESH: Duration = Duration::from_secs(1);

/// The ports of the host's processes, including this process, as last seen.
#[derive(Default)]
pub(crate) struct Neighbours(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    at: Option<Instant>,
    ports: Vec<Port>,
    /// The ports that a warning has named.
    told: Vec<Port>,
}

/// A port's address, and the process that has the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Port {
    address: IpAddr,
    pid: u32,
}

impl Neighbours {
    /// Warns, once for each port, if `to` is the address of a port on this host, because the host's kernel cannot
    /// reach the port. Does not warn if the kernel has the same address.
    pub(crate) fn warn(&self, to: IpAddr) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.at.is_none_or(|at| at.elapsed() >= FRESH) {
            seen.at = Some(Instant::now());
            seen.ports = ports(&std::fs::read_to_string("/proc/net/unix").unwrap_or_default());
        }
        let Some(port) = seen.ports.iter().find(|port| port.address == to.to_canonical()).copied() else {
            return;
        };
        if !seen.told.contains(&port) && !has_address(port.address) {
            seen.told.push(port);
            tracing::warn!(
                "{} is the address of a DPDK port of process {} on this host; the kernel's sockets on the same host \
                 cannot reach it: give this program a DPDK port too, or connect from another host",
                port.address,
                port.pid
            );
        }
    }
}

/// Returns the ports in a list of Unix sockets (`/proc/net/unix`).
fn ports(sockets: &str) -> Vec<Port> {
    let names = sockets.lines().filter_map(|line| line.split_whitespace().last()?.strip_prefix('@'));
    let ports = |name: &str| {
        let mut parts = name.strip_prefix(PREFIX).unwrap_or_default().split('/');
        let pid = parts.next().and_then(|pid| pid.parse().ok());
        let addresses = parts.skip(1).filter_map(|address| address.parse().ok());
        addresses.filter_map(|address| Some(Port { address, pid: pid? })).collect::<Vec<_>>()
    };
    names.flat_map(ports).collect()
}

#[cfg(test)]
mod tests;
