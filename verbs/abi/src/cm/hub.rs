//! Maps the engine's events to identifiers, and to the channels in which the program waits for them.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use urnic::{Bound, CmEvent, ConnRequest, ConnectFailure, DisconnectReason, EventChannel};

use super::id::Id;
use super::resolve::address;
use crate::call::{Errno, errno_of};
use crate::ffi::*;
use crate::ibv::qp::{self, Ends};
use crate::inbox::Inbox;
use crate::log;
use crate::rnic::rnic;

/// An event that the program has not fetched.
pub struct Pending {
    pub id: *mut Id,
    pub what: What,
}

// SAFETY: the pointer is only followed while the identifier is registered in the hub.
unsafe impl Send for Pending {}

pub enum What {
    Plain {
        event: c_int,
        status: c_int,
        private_data: Vec<u8>,
        ird: u16,
        ord: u16,
    },
    Request(ConnRequest),
    /// An event made by the program.
    User {
        status: c_int,
        arg: u64,
    },
}

impl What {
    pub fn plain(event: c_int, status: c_int) -> Self {
        Self::Plain { event, status, private_data: Vec::new(), ird: 0, ord: 0 }
    }

    /// Returns whether the event is the end of a connection.
    pub fn ends(&self) -> bool {
        matches!(self, Self::Plain { event: RDMA_CM_EVENT_DISCONNECTED, .. })
    }
}

/// The hub's record of an identifier.
struct Registered {
    /// Number that distinguishes the identifier from earlier and later ones at the same memory address.
    serial: u64,
    /// The event queue of the identifier's channel.
    inbox: Arc<Inbox<Pending>>,
    /// Numbers of the queue pairs whose events go to the identifier: one, unless the program replaces its queue pair.
    qpns: Vec<u32>,
    /// The identifier's number as a listener; `None` if it does not listen.
    listener: Option<u64>,
}

/// The identifiers and channels that exist. The lock is never held while the engine is called, because the code that
/// receives the engine's events takes it.
#[derive(Default)]
pub struct Hub {
    ids: HashMap<usize, Registered>,
    by_qpn: HashMap<u32, usize>,
    by_serial: HashMap<u64, usize>,
    listeners: HashMap<u64, usize>,
    channels: HashMap<usize, Arc<Inbox<Pending>>>,
    next_listener: u64,
    last_serial: u64,
    /// Addresses that several identifiers may share. The flag in the key says whether `::` stands for IPv6 alone.
    shared: HashMap<(SocketAddr, bool), Weak<Bound>>,
}

pub fn hub() -> MutexGuard<'static, Hub> {
    static HUB: LazyLock<Mutex<Hub>> = LazyLock::new(Mutex::default);
    HUB.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    pub fn add_channel(&mut self, channel: usize, inbox: Arc<Inbox<Pending>>) {
        self.channels.insert(channel, inbox);
    }

    pub fn remove_channel(&mut self, channel: usize) -> Option<Arc<Inbox<Pending>>> {
        self.channels.remove(&channel)
    }

    pub fn channel(&self, channel: usize) -> Option<Arc<Inbox<Pending>>> {
        self.channels.get(&channel).cloned()
    }

    pub fn add_id(&mut self, id: *mut Id, inbox: Arc<Inbox<Pending>>) {
        self.last_serial += 1;
        let serial = self.last_serial;
        self.by_serial.insert(serial, id as usize);
        self.ids.insert(id as usize, Registered { serial, inbox, qpns: Vec::new(), listener: None });
    }

    pub fn knows(&self, id: *mut Id) -> bool {
        self.ids.contains_key(&(id as usize))
    }

    /// Removes an identifier, and returns its events that were not fetched.
    pub fn remove_id(&mut self, id: *mut Id) -> Vec<Pending> {
        let Some(gone) = self.ids.remove(&(id as usize)) else { return Vec::new() };
        self.by_serial.remove(&gone.serial);
        for qpn in gone.qpns {
            self.by_qpn.remove(&qpn);
        }
        if let Some(number) = gone.listener {
            self.listeners.remove(&number);
        }
        gone.inbox.take_out(|pending| pending.id == id)
    }

    /// Sends an identifier's events to another channel from now on. Events that the program has not fetched move
    /// there.
    pub fn migrate(&mut self, id: *mut Id, to: Arc<Inbox<Pending>>) {
        if let Some(this) = self.ids.get_mut(&(id as usize)) {
            let from = std::mem::replace(&mut this.inbox, to);
            from.take_out(|pending| pending.id == id)
                .into_iter()
                .for_each(|pending| this.inbox.push(pending));
        }
    }

    /// Assigns the events of a queue pair to this identifier alone from now on.
    pub fn tie(&mut self, qpn: u32, id: *mut Id) {
        qp::set_end_hooks(Ends { close: super::connect::close_qp, destroy: destroy_qp });
        self.untie(qpn);
        if let Some(this) = self.ids.get_mut(&(id as usize)) {
            this.qpns.push(qpn);
            self.by_qpn.insert(qpn, id as usize);
        }
    }

    /// Removes a destroyed queue pair from the identifier. Does nothing if the number already belongs to a new queue
    /// pair of another identifier.
    pub fn untie_from(&mut self, qpn: u32, id: *mut Id) {
        if self.tied(qpn) == Some(id) {
            self.untie(qpn);
        }
    }

    fn untie(&mut self, qpn: u32) {
        if let Some(id) = self.by_qpn.remove(&qpn)
            && let Some(this) = self.ids.get_mut(&id)
        {
            this.qpns.retain(|other| *other != qpn);
        }
    }

    pub fn tied(&self, qpn: u32) -> Option<*mut Id> {
        self.by_qpn.get(&qpn).map(|id| *id as *mut Id)
    }

    /// Assigns a new listener number, by which requests find the identifier.
    pub fn listener(&mut self, id: *mut Id) -> u64 {
        self.next_listener += 1;
        if let Some(this) = self.ids.get_mut(&(id as usize)) {
            if let Some(before) = this.listener.replace(self.next_listener) {
                self.listeners.remove(&before);
            }
            self.listeners.insert(self.next_listener, id as usize);
        }
        self.next_listener
    }

    /// Returns the reservation of an address that other identifiers share; `None` if they do not share this address.
    pub fn shared(&self, address: SocketAddr, v6only: bool) -> Option<Arc<Bound>> {
        self.shared.get(&(address, v6only))?.upgrade()
    }

    /// Allows other identifiers to share a reserved address.
    pub fn share(&mut self, v6only: bool, bound: &Arc<Bound>) {
        self.shared.retain(|_, bound| bound.strong_count() > 0);
        self.shared.insert((bound.address(), v6only), Arc::downgrade(bound));
    }

    /// Puts an event into the identifier's channel.
    pub fn tell(&self, id: *mut Id, what: What) {
        if let Some(this) = self.ids.get(&(id as usize)) {
            this.inbox.push(Pending { id, what });
        }
    }

    /// Returns a serial number by which the identifier can be found later, if it still exists then.
    pub fn serial(&self, id: *mut Id) -> Option<u64> {
        self.ids.get(&(id as usize)).map(|this| this.serial)
    }

    /// Puts an event into the identifier's present channel, if the identifier still exists.
    pub fn tell_if_there(&self, serial: u64, what: What) {
        if let Some(id) = self.by_serial.get(&serial) {
            self.tell(*id as *mut Id, what);
        }
    }
}

/// Returns the engine's event channel for connections that this process requests, and for sockets that it
/// converts into connections. Events of accepted connections come through the channel of their listener.
pub fn connector() -> Result<&'static EventChannel, Errno> {
    static CONNECTOR: OnceLock<EventChannel> = OnceLock::new();
    if let Some(connector) = CONNECTOR.get() {
        return Ok(connector);
    }
    let made = rnic()?.device.create_event_sink(Box::new(dispatch));
    let made = made.inspect_err(log::refused).map_err(|e| errno_of(&e))?;
    Ok(CONNECTOR.get_or_init(|| made))
}

/// Destroys a queue pair by calling `destroy`, which may cause a last event of its connection.
fn destroy_qp(qpn: u32, destroy: &mut dyn FnMut()) {
    let owner = hub().tied(qpn);
    destroy();
    if let Some(id) = owner {
        let mut hub = hub();
        if hub.tied(qpn) == Some(id) {
            // SAFETY: a tied identifier is registered, and is removed under the lock.
            unsafe { &*id }.state().lose(qpn);
        }
        hub.untie_from(qpn, id);
    }
}

/// Time from the event that a connection has ended to the event that its addresses are free again. Kernels send the
/// second event only for InfiniBand, once no packets can be in flight. Some programs give the connection up only at
/// the second event. Others crash if both events come at once.
const TIME_WAIT: Duration = Duration::from_secs(1);

/// Announces, after [`TIME_WAIT`], that the addresses of an identifier's connection are free again. Called when
/// the program has fetched the end of the connection. The identifier exists during this call. If it is gone
/// after [`TIME_WAIT`], nothing is announced.
pub fn ended(id: *mut Id) {
    let Some(serial) = hub().serial(id) else { return };
    let tell = move || hub().tell_if_there(serial, What::plain(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0));
    // If the device is gone, no event is needed.
    let _ = rnic().map(|rnic| rnic.device.after(TIME_WAIT, tell));
}

/// Takes an event of a listener from the engine. The engine itself refuses a request whose listener is gone.
pub fn dispatch_to(listener: u64, event: CmEvent) {
    match event {
        CmEvent::ConnectRequest(request) => {
            let hub = hub();
            if let Some(id) = hub.listeners.get(&listener) {
                hub.tell(*id as *mut Id, What::Request(request));
            }
        }
        other => dispatch(other),
    }
}

/// Takes an event of a connection from the engine.
fn dispatch(event: CmEvent) {
    let (qpn, what) = match event {
        CmEvent::Established { qpn, private_data, ird, ord, .. } => {
            (qpn, What::Plain { event: RDMA_CM_EVENT_ESTABLISHED, status: 0, private_data, ird, ord })
        }
        CmEvent::Rejected { qpn, private_data, .. } => {
            let event = RDMA_CM_EVENT_REJECTED;
            (qpn, What::Plain { event, status: -libc::ECONNRESET, private_data, ird: 0, ord: 0 })
        }
        CmEvent::ConnectError { qpn, reason } => {
            let (event, errno) = failure(reason);
            (qpn, What::plain(event, -errno))
        }
        CmEvent::Disconnected { qpn, reason } => {
            let terminate = qp::with_pair(qpn, |pair| pair.qp.terminate()).flatten();
            log::disconnected(qpn, peer_of(qpn), reason, terminate);
            let status = match reason {
                DisconnectReason::LinkLost | DisconnectReason::TimedOut => -libc::ETIMEDOUT,
                _ => 0,
            };
            (qpn, What::plain(RDMA_CM_EVENT_DISCONNECTED, status))
        }
        _ => return,
    };
    let hub = hub();
    if let Some(id) = hub.tied(qpn) {
        hub.tell(id, what);
    }
}

/// Returns the address that a queue pair is connected to.
fn peer_of(qpn: u32) -> Option<SocketAddr> {
    let hub = hub();
    let id = hub.tied(qpn)?;
    // SAFETY: tied identifiers are registered, and are removed under the lock.
    unsafe { address((&raw const (*id).base.route.dst_addr).cast()) }.ok()
}

/// Returns the event by which the kernel reports the failure of an iWARP connection, and the errno in its
/// status.
fn failure(reason: ConnectFailure) -> (c_int, c_int) {
    match reason {
        ConnectFailure::Refused => (RDMA_CM_EVENT_REJECTED, libc::ECONNREFUSED),
        ConnectFailure::Reset => (RDMA_CM_EVENT_REJECTED, libc::ECONNRESET),
        ConnectFailure::TimedOut => (RDMA_CM_EVENT_UNREACHABLE, libc::ETIMEDOUT),
        ConnectFailure::Unreachable => (RDMA_CM_EVENT_UNREACHABLE, libc::EHOSTUNREACH),
        _ => (RDMA_CM_EVENT_CONNECT_ERROR, libc::EPROTO),
    }
}
