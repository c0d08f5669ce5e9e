//! Doors: reserved addresses, which the engines of a device share. All engines accept connections at the same socket.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use urnic_tcp::{BindId, Scope};

use super::socket::Socket;

/// A reserved address, and the socket that reserves it.
pub(super) struct Door {
    pub(super) socket: Socket,
    /// The address that the program asked for.
    pub(super) address: SocketAddr,
    /// The address that the socket reserves. It differs from `address` if the device may use only one address, and
    /// the program asked for an unspecified or loopback address: the device's address then replaces it. On a host
    /// without IPv6, this is still the unspecified IPv6 address, although the socket is bound to the unspecified IPv4
    /// address.
    pub(super) real: SocketAddr,
    pub(super) v6only: bool,
}

/// The reservations of a device. Control verbs use them: to reserve, to end a reservation, and to connect. In a pass,
/// an engine uses them only for a [`Claim`]: it drops the claim when a connection from a reserved address has ended,
/// and makes one when it tries such a connection a second time (with MPA revision 1).
#[derive(Default)]
pub(super) struct Doors {
    open: Mutex<HashMap<BindId, Arc<Door>>>,
    /// Number of connections from each reserved address.
    taken: Mutex<HashMap<SocketAddr, usize>>,
}

/// A mark that a connection comes from a reserved address. While it exists, the address counts as taken.
pub(super) struct Claim {
    doors: Arc<Doors>,
    address: SocketAddr,
}

impl Doors {
    fn open(&self) -> MutexGuard<'_, HashMap<BindId, Arc<Door>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<SocketAddr, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a reservation under the id that it has at all engines.
    pub(super) fn enter(&self, id: BindId, door: Arc<Door>) {
        self.open().insert(id, door);
    }

    /// Returns a reservation; `None` if no reservation has this id.
    pub(super) fn find(&self, id: BindId) -> Option<Arc<Door>> {
        self.open().get(&id).cloned()
    }

    /// Forgets a reservation. Its socket is closed when no engine has the reservation any longer.
    pub(super) fn leave(&self, id: BindId) {
        self.open().remove(&id);
    }

    /// Returns whether a reservation, or a connection from a reserved address, uses `port` at an address in `scope`.
    /// The kernel does not check this: our sockets set `SO_REUSEADDR`, so two of them may have the same port if
    /// neither listens.
    pub(super) fn have(&self, scope: Scope, port: u16) -> bool {
        let overlaps = |door: &Arc<Door>| {
            door.real.port() == port && Scope::of(door.real.ip(), door.v6only).overlaps(scope)
        };
        let covers = |taken: &SocketAddr| taken.port() == port && scope.covers(taken.ip());
        self.open().values().any(overlaps) || self.taken().keys().any(covers)
    }

    /// Notes a connection from a reserved address.
    pub(super) fn claim(self: &Arc<Self>, address: SocketAddr) -> Claim {
        *self.taken().entry(address).or_default() += 1;
        Claim { doors: self.clone(), address }
    }
}

impl Door {
    /// Returns whether this is an IPv6 address at which connections to all IPv4 addresses also come in.
    pub(super) fn is_for_both(&self) -> bool {
        matches!(self.real.ip(), IpAddr::V6(ip) if ip.is_unspecified()) && !self.v6only
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut taken = self.doors.taken();
        if let Some(count) = taken.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.address);
            }
        }
    }
}
