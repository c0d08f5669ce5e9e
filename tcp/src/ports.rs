//! Local TCP ports: who owns which.

use crate::secret::Secret;
use core::net::SocketAddr;
use std::collections::{HashMap, HashSet};
use thiserror::Error;

/// Hands out local ports. In this process, or (another implementation) shared among processes.
pub trait PortSpace {
    /// Claims `port` for a listener; zero asks for any free port. Answers the port.
    ///
    /// # Errors
    /// The port is taken, or none is free.
    fn listen(&mut self, port: u16) -> Result<u16, PortError>;

    /// Gives a listener's port back.
    fn unlisten(&mut self, port: u16);

    /// Claims a port for a connection to `remote`, hard to guess from outside (RFC 6056).
    ///
    /// # Errors
    /// None is free.
    fn connect(&mut self, remote: SocketAddr) -> Result<u16, PortError>;

    /// Gives a port back that `connect` answered for `remote`.
    fn release(&mut self, port: u16, remote: SocketAddr);
}

/// No port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PortError {
    /// Someone has it.
    #[error("port in use")]
    InUse,
    /// All are taken.
    #[error("no free port")]
    Exhausted,
}

/// First and last port chosen for connections and for listeners that do not name one.
const EPHEMERAL: core::ops::RangeInclusive<u16> = 32_768..=60_999;

/// The ports of this process.
#[derive(Debug)]
pub struct LocalPorts {
    random: Secret,
    listening: HashSet<u16>,
    connected: HashSet<(u16, SocketAddr)>,
    uses: HashMap<u16, u32>,
}

impl LocalPorts {
    /// No port is taken. `seed` is secret.
    pub fn new(seed: u64) -> Self {
        LocalPorts {
            random: Secret::new(seed ^ 0x706f_7274),
            listening: HashSet::new(),
            connected: HashSet::new(),
            uses: HashMap::new(),
        }
    }

    /// The first port from a random start on for which `free` holds (RFC 6056 §3.3.1).
    fn choose(&mut self, free: impl Fn(&Self, u16) -> bool) -> Result<u16, PortError> {
        let (first, last) = (u32::from(*EPHEMERAL.start()), u32::from(*EPHEMERAL.end()));
        let count = last - first + 1;
        let start = self.random.below(count);
        (0..count)
            .map(|i| (first + (start + i) % count) as u16)
            .find(|&p| free(self, p))
            .ok_or(PortError::Exhausted)
    }
}

impl PortSpace for LocalPorts {
    fn listen(&mut self, port: u16) -> Result<u16, PortError> {
        let free = |s: &Self, p: u16| !s.listening.contains(&p) && !s.uses.contains_key(&p);
        let port = match port {
            0 => self.choose(free)?,
            p if free(self, p) => p,
            _ => return Err(PortError::InUse),
        };
        self.listening.insert(port);
        Ok(port)
    }

    fn unlisten(&mut self, port: u16) {
        self.listening.remove(&port);
    }

    fn connect(&mut self, remote: SocketAddr) -> Result<u16, PortError> {
        let port = self.choose(|s, p| !s.listening.contains(&p) && !s.connected.contains(&(p, remote)))?;
        self.connected.insert((port, remote));
        *self.uses.entry(port).or_insert(0) += 1;
        Ok(port)
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
