//! The ports of a device with several stacks.

use super::{LocalPorts, PortError, PortSpace, Scope};
use core::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

/// One stack's handle to ports that all stacks of a device share.
///
/// [`PortSpace::release`], which a stack calls while it works on frames, never waits: it leaves a note, and whoever takes
/// the lock next reads it. Everything else waits for the other handles' calls, which are short.
#[derive(Debug)]
pub struct SharedPorts {
    shared: Arc<Mutex<Shared>>,
    released: Sender<(u16, SocketAddr)>,
}

#[derive(Debug)]
struct Shared {
    ports: LocalPorts,
    /// What each stack has given back. One channel for each, because senders of one channel may wait for each other.
    released: Vec<Receiver<(u16, SocketAddr)>>,
}

impl SharedPorts {
    /// Returns a handle for each of `stacks` stacks, to ports none of which is taken. `seed` is secret.
    pub fn new(seed: u64, stacks: usize) -> Vec<SharedPorts> {
        let (senders, released): (Vec<_>, Vec<_>) = (0..stacks).map(|_| mpsc::channel()).unzip();
        let shared = Arc::new(Mutex::new(Shared { ports: LocalPorts::new(seed), released }));
        senders.into_iter().map(|released| SharedPorts { shared: shared.clone(), released }).collect()
    }

    pub(super) fn with<R>(&self, f: impl FnOnce(&mut LocalPorts) -> R) -> R {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let Shared { ports, released } = &mut *shared;
        for (port, remote) in released.iter().flat_map(Receiver::try_iter) {
            ports.release(port, remote);
        }
        f(ports)
    }
}

impl PortSpace for SharedPorts {
    fn bind(&mut self, scope: Scope, port: u16) -> Result<u16, PortError> {
        self.with(|ports| ports.bind(scope, port))
    }

    fn unbind(&mut self, scope: Scope, port: u16) {
        self.with(|ports| ports.unbind(scope, port));
    }

    fn connect(&mut self, remote: SocketAddr, fits: &dyn Fn(u16) -> bool) -> Result<u16, PortError> {
        self.with(|ports| ports.connect(remote, fits))
    }

    fn connect_from(&mut self, port: u16, remote: SocketAddr) -> Result<(), PortError> {
        self.with(|ports| ports.connect_from(port, remote))
    }

    fn release(&mut self, port: u16, remote: SocketAddr) {
        // The receiver lives as long as any handle.
        let _ = self.released.send((port, remote));
    }
}
