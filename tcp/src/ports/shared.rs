//! The ports of a device with several stacks.

use super::{EPHEMERAL, PortError, PortSpace, Scope, in_random_order};
use crate::secret::Secret;
use core::fmt;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

/// Bit that marks a reserved port. The other bits count the connections that use it.
const RESERVED: u32 = 1 << 31;

/// One stack's handle to the ports that all stacks of a device share.
///
/// Connections open and end while a stack works on frames, so claiming and releasing a port for a connection never
/// waits for a lock. A word for each port holds whether the port is reserved and how many connections use it. The
/// peers of a stack's connections are known to that stack only. This is enough, because every connection has one
/// owner, so no two stacks open the same connection. Reserving a port takes a lock.
#[derive(Debug)]
pub struct SharedPorts {
    pub(super) shared: Arc<Shared>,
    random: Secret,
    connected: HashSet<(u16, SocketAddr)>,
}

pub(super) struct Shared {
    /// Indexed by port.
    words: Box<[AtomicU32]>,
    bound: Mutex<HashMap<u16, Vec<Scope>>>,
}

impl SharedPorts {
    /// Returns one handle for each of `stacks` stacks. No port is taken yet. `seed` is secret.
    pub fn new(seed: u64, stacks: usize) -> Vec<SharedPorts> {
        let words = (0..=u16::MAX).map(|_| AtomicU32::new(0)).collect();
        let shared = Arc::new(Shared { words, bound: Mutex::default() });
        let mut seeds = Secret::new(seed ^ 0x706f_7274);
        let handle = |_| SharedPorts {
            shared: shared.clone(),
            random: Secret::new(seeds.random()),
            connected: HashSet::new(),
        };
        (0..stacks).map(handle).collect()
    }
}

impl Shared {
    pub(super) fn word(&self, port: u16) -> Option<&AtomicU32> {
        self.words.get(usize::from(port))
    }

    /// Counts one more connection that uses a port. Returns `false`, and counts nothing, if the port is reserved.
    pub(super) fn use_free(&self, port: u16) -> bool {
        let one_more = |word: u32| (word & RESERVED == 0).then_some(word + 1);
        let count = |word: &AtomicU32| word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        self.word(port).is_some_and(|word| count(word).is_ok())
    }

    /// Reserves a port, which may be reserved already. Returns `false`, and reserves nothing, if connections use it.
    fn reserve(&self, port: u16) -> bool {
        let free = |word: u32| (word & !RESERVED == 0).then_some(RESERVED);
        let reserve = |word: &AtomicU32| word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free);
        self.word(port).is_some_and(|word| reserve(word).is_ok())
    }
}

impl PortSpace for SharedPorts {
    fn bind(&mut self, scope: Scope, port: u16) -> Result<u16, PortError> {
        let shared = &*self.shared;
        let mut bound = shared.bound.lock().unwrap_or_else(PoisonError::into_inner);
        let overlaps = |scopes: &Vec<Scope>| scopes.iter().any(|other| other.overlaps(scope));
        let take = |port: &u16| !bound.get(port).is_some_and(overlaps) && shared.reserve(*port);
        let port = match port {
            0 => in_random_order(&mut self.random).find(take).ok_or(PortError::Exhausted)?,
            port => Some(port).filter(take).ok_or(PortError::InUse)?,
        };
        bound.entry(port).or_default().push(scope);
        Ok(port)
    }

    fn unbind(&mut self, scope: Scope, port: u16) {
        let mut bound = self.shared.bound.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(scopes) = bound.get_mut(&port) else { return };
        scopes.retain(|other| *other != scope);
        if scopes.is_empty() {
            bound.remove(&port);
            if let Some(word) = self.shared.word(port) {
                word.fetch_and(!RESERVED, Ordering::Relaxed);
            }
        }
    }

    fn connect(&mut self, remote: SocketAddr, fits: &dyn Fn(u16) -> bool) -> Result<u16, PortError> {
        let Self { shared, random, connected } = self;
        let takes =
            |port: &u16| !connected.contains(&(*port, remote)) && fits(*port) && shared.use_free(*port);
        let port = in_random_order(random).find(takes).ok_or(PortError::Exhausted)?;
        connected.insert((port, remote));
        Ok(port)
    }

    fn connect_from(&mut self, port: u16, remote: SocketAddr) -> Result<(), PortError> {
        if !self.connected.insert((port, remote)) {
            return Err(PortError::InUse);
        }
        if let Some(word) = self.shared.word(port) {
            word.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn release(&mut self, port: u16, remote: SocketAddr) {
        if self.connected.remove(&(port, remote))
            && let Some(word) = self.shared.word(port)
        {
            word.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for SharedPorts {
    fn drop(&mut self) {
        for (port, _) in self.connected.drain() {
            if let Some(word) = self.shared.word(port) {
                word.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = EPHEMERAL.filter(|port| self.word(*port).is_some_and(|w| w.load(Ordering::Relaxed) > 0));
        f.debug_struct("Shared").field("bound", &self.bound).field("used", &used.count()).finish()
    }
}
