//! Ports of other processes on this host. They have addresses of their own, of which the host's kernel knows nothing: what
//! it sends to one leaves the host, or goes nowhere, and whoever connects waits in vain.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::inspect::PREFIX;
use crate::drive::open::has_address;

/// How long what was seen counts: a program may ask for thousands of connections at once.
const FRESH: Duration = Duration::from_secs(1);

/// Ports that were seen.
#[derive(Default)]
pub(crate) struct Neighbours(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    at: Option<Instant>,
    ports: Vec<Port>,
    /// Those that were told of.
    told: Vec<Port>,
}

/// Who has which address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Port {
    address: IpAddr,
    pid: u32,
}

impl Neighbours {
    /// Warns, once, of an address that the kernel of this host cannot reach, because a port on this host has it.
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
                "{} is the address of a port of process {} on this host, which the kernel's sockets of the same host do not \
                 reach: give this program a port, too, or connect from another host",
                port.address,
                port.pid
            );
        }
    }
}

/// The ports in a list of Unix sockets (`/proc/net/unix`).
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
