//! Local TCP ports and their owners.

use crate::secret::Secret;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::collections::{HashMap, HashSet};
use thiserror::Error;

mod shared;

pub use shared::SharedPorts;

/// Hands out local ports, to one stack ([`LocalPorts`]) or to all stacks of a device ([`SharedPorts`]).
pub trait PortSpace {
    /// Reserves `port` of the addresses in `scope`, for a listener or for connections that must come from it. Zero
    /// asks for any free port. Returns the port.
    ///
    /// # Errors
    /// The port is taken, or no port is free.
    fn bind(&mut self, scope: Scope, port: u16) -> Result<u16, PortError>;

    /// Ends a reservation. While connections use the port, it cannot be reserved again.
    fn unbind(&mut self, scope: Scope, port: u16);

    /// Chooses and claims a port for a connection to `remote`, among the ports for which `fits` returns true. The
    /// choice is random, so that an attacker cannot easily guess the port (RFC 6056).
    ///
    /// # Errors
    /// No port that fits is free.
    fn connect(&mut self, remote: SocketAddr, fits: &dyn Fn(u16) -> bool) -> Result<u16, PortError>;

    /// Claims a reserved port for a connection to `remote`.
    ///
    /// # Errors
    /// The port has a connection to `remote` already.
    fn connect_from(&mut self, port: u16, remote: SocketAddr) -> Result<(), PortError>;

    /// Releases a port that `connect` or `connect_from` claimed for `remote`.
    fn release(&mut self, port: u16, remote: SocketAddr);
}

/// The local addresses for which a port is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All addresses of both families, including addresses that are added later.
    All,
    /// All IPv4 addresses.
    V4,
    /// All IPv6 addresses.
    V6,
    /// One address.
    One(IpAddr),
}

impl Scope {
    /// Returns the scope of a socket that is bound to `ip`. An unspecified address stands for its family, and `::`
    /// for both families unless `v6only` (RFC 3493 §5.3). IPv4-mapped addresses count as IPv4.
    pub fn of(ip: IpAddr, v6only: bool) -> Self {
        match ip.to_canonical() {
            IpAddr::V6(ip) if ip.is_unspecified() && !v6only => Scope::All,
            IpAddr::V6(ip) if ip.is_unspecified() => Scope::V6,
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Scope::V4,
            ip => Scope::One(ip),
        }
    }

    /// Returns whether the address is in this scope.
    pub fn covers(self, ip: IpAddr) -> bool {
        self.overlaps(Scope::One(ip))
    }

    /// Returns whether both scopes have an address in common.
    pub fn overlaps(self, other: Scope) -> bool {
        match (self, other) {
            (Scope::All, _) | (_, Scope::All) => true,
            (Scope::One(a), Scope::One(b)) => a == b,
            (Scope::One(ip), family) | (family, Scope::One(ip)) => ip.is_ipv4() == (family == Scope::V4),
            (a, b) => a == b,
        }
    }
}

/// Why a port is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PortError {
    /// The port is in use.
    #[error("port in use")]
    InUse,
    /// No port of the ephemeral range is free and fits.
    #[error("no port is free")]
    Exhausted,
}

/// First and last port that may be chosen if the user names none.
const EPHEMERAL: core::ops::RangeInclusive<u16> = 32_768..=60_999;

/// Returns each port of the ephemeral range once, in an order whose start and step are random (RFC 6056 §3.3).
///
/// With a step of one, a port after a long run of unfit ports would be chosen more often than others. The peer
/// would then more probably still have that port's last connection in TIME-WAIT.
fn in_random_order(random: &mut Secret) -> impl Iterator<Item = u16> + use<> {
    let (first, last) = (u32::from(*EPHEMERAL.start()), u32::from(*EPHEMERAL.end()));
    let count = last - first + 1;
    let start = random.below(count);
    let mut step = 1 + random.below(count - 1);
    while gcd(step, count) != 1 {
        step += 1;
    }
    (0..u64::from(count)).map(move |i| {
        let offset = (u64::from(start) + i * u64::from(step)) % u64::from(count);
        (first + offset as u32) as u16
    })
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The ports of one stack, which shares them with no other stack.
#[derive(Debug)]
pub struct LocalPorts {
    random: Secret,
    bound: HashMap<u16, Vec<Scope>>,
    connected: HashSet<(u16, SocketAddr)>,
    uses: HashMap<u16, u32>,
}

impl LocalPorts {
    /// Creates a port space in which no port is taken. `seed` is secret.
    pub fn new(seed: u64) -> Self {
        LocalPorts {
            random: Secret::new(seed ^ 0x706f_7274),
            bound: HashMap::new(),
            connected: HashSet::new(),
            uses: HashMap::new(),
        }
    }

    /// Returns the first port in a random order for which `free` holds.
    fn choose(&mut self, free: impl Fn(&Self, u16) -> bool) -> Result<u16, PortError> {
        in_random_order(&mut self.random).find(|&p| free(self, p)).ok_or(PortError::Exhausted)
    }

    /// Returns whether `port` can be reserved for `scope`: no reservation overlaps it, and no connection uses the
    /// port.
    fn is_free(&self, scope: Scope, port: u16) -> bool {
        !self.uses.contains_key(&port)
            && self.bound.get(&port).is_none_or(|bound| !bound.iter().any(|other| other.overlaps(scope)))
    }
}

impl PortSpace for LocalPorts {
    fn bind(&mut self, scope: Scope, port: u16) -> Result<u16, PortError> {
        let port = match port {
            0 => self.choose(|s, p| s.is_free(scope, p))?,
            p if self.is_free(scope, p) => p,
            _ => return Err(PortError::InUse),
        };
        self.bound.entry(port).or_default().push(scope);
        Ok(port)
    }

    fn unbind(&mut self, scope: Scope, port: u16) {
        if let Some(bound) = self.bound.get_mut(&port) {
            bound.retain(|other| *other != scope);
            if bound.is_empty() {
                self.bound.remove(&port);
            }
        }
    }

    fn connect(&mut self, remote: SocketAddr, fits: &dyn Fn(u16) -> bool) -> Result<u16, PortError> {
        let port =
            self.choose(|s, p| fits(p) && !s.bound.contains_key(&p) && !s.connected.contains(&(p, remote)))?;
        self.connect_from(port, remote)?;
        Ok(port)
    }

    fn connect_from(&mut self, port: u16, remote: SocketAddr) -> Result<(), PortError> {
        if !self.connected.insert((port, remote)) {
            return Err(PortError::InUse);
        }
        *self.uses.entry(port).or_insert(0) += 1;
        Ok(())
    }

    fn release(&mut self, port: u16, remote: SocketAddr) {
        if !self.connected.remove(&(port, remote)) {
            return;
        }
        if let Some(n) = self.uses.get_mut(&port) {
            *n -= 1;
            if *n == 0 {
                self.uses.remove(&port);
            }
        }
    }
}

#[cfg(test)]
mod tests;
