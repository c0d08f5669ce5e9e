//! Identifiers: the program's handles for listeners and connections.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use urnic::{Bound, ConnRequest, Connection, EventChannel, Listener};

use super::addrinfo::Resolution;
use super::channel::{self, Channel};
use super::hub::{Pending, What, connector, hub};
use crate::call::{Errno, deref, number, pointer, zero};
use crate::ffi::*;
use crate::ibv::context;
use crate::inbox::Inbox;
use crate::ledger::Ledger;
use crate::live::{self, Kind};
use crate::rnic::{PORT, prospect, rnic};

/// The structure that the program's `*mut rdma_cm_id` points to.
///
/// librdmacm's rsockets read two members after the public part: a pointer, which is null here, and a number that says
/// whether the identifier is synchronous.
#[repr(C)]
pub struct Id {
    pub base: rdma_cm_id,
    shadow: Shadow,
    /// Events given to the program and not yet acknowledged.
    pub events: Ledger,
    state: Mutex<State>,
}

#[repr(C)]
struct Shadow {
    device: *mut c_void,
    _unused: [u64; 3],
    sync: c_int,
    _rest: [u32; 37],
}

const _: () = assert!(std::mem::offset_of!(Id, shadow) == 416);
const _: () = assert!(std::mem::offset_of!(Shadow, sync) == 32);
const _: () = assert!(std::mem::offset_of!(Id, events) >= 600);

#[derive(Default)]
pub struct State {
    /// The identifier's address and TCP port; `None` until it is bound.
    pub address: Option<SocketAddr>,
    /// The reservation of the address, which a listener takes over. Several identifiers may share it on request.
    pub bound: Option<Arc<Bound>>,
    pub reuse: bool,
    /// Whether `::` stands for IPv6 alone.
    pub v6only: bool,
    /// The listener and its event channel. The listener is dropped first.
    pub listener: Option<(Listener, EventChannel)>,
    pub request: Option<ConnRequest>,
    /// Limits from the peer's request, used if the program accepts without parameters: on inbound Reads (the peer's
    /// outbound ones), then on outbound Reads.
    pub wishes: (u8, u8),
    /// The connection, until its queue pair is destroyed.
    pub connection: Option<Connection>,
    /// Whether there was a connection, or an attempt to make one.
    pub was_connected: bool,
    /// Whether the program has fetched the event of the connection's end.
    pub end_told: bool,
    /// The template for queue pairs of a passive endpoint's requests.
    pub template: Option<Template>,
    /// Data from an address entry, sent before the program's private data.
    pub connect_data: Vec<u8>,
    pub resolution: Resolution,
}

impl State {
    pub fn connected(&mut self, connection: Connection) {
        self.connection = Some(connection);
        self.was_connected = true;
    }

    /// Forgets a destroyed queue pair, because its number may soon belong to another queue pair.
    pub fn lose(&mut self, qpn: u32) {
        self.connection.take_if(|connection| connection.qpn() == qpn);
    }
}

pub struct Template(pub ibv_qp_init_attr);

// SAFETY: the pointers are the program's, and are only returned to it.
unsafe impl Send for Template {}

/// # Safety
/// `id` is null, or an identifier that is not destroyed meanwhile.
pub unsafe fn id_of<'a>(id: *mut rdma_cm_id) -> Result<&'a Id, Errno> {
    live::check(Kind::Id, id)?;
    // SAFETY: the identifier is listed; otherwise as the caller promises. The program's structure is the first member
    // of ours.
    unsafe { deref(id.cast::<Id>()) }
}

impl Id {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn as_ptr(&self) -> *mut Id {
        std::ptr::from_ref(self).cast_mut()
    }

    pub fn is_sync(&self) -> bool {
        self.shadow.sync != 0
    }

    /// Makes an identifier. Without a channel the identifier is synchronous: it gets a channel of its own, and calls
    /// wait for their outcome.
    pub fn create(
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        ps: c_int,
    ) -> Result<*mut Self, Errno> {
        let sync = channel.is_null();
        let channel = if sync { Channel::create()?.cast() } else { channel };
        let inbox = channel::inbox(channel)?;
        // SAFETY: null pointers and zeros are valid for all members.
        let mut base: rdma_cm_id = unsafe { std::mem::zeroed() };
        base.channel = channel;
        base.context = context;
        base.ps = ps;
        base.qp_type = IBV_QPT_RC;
        let shadow =
            Shadow { device: std::ptr::null_mut(), _unused: [0; 3], sync: sync.into(), _rest: [0; 37] };
        let id = Box::new(Self { base, shadow, events: Ledger::default(), state: Mutex::default() });
        let id = live::enter(Kind::Id, Box::into_raw(id));
        hub().add_id(id, inbox);
        Ok(id)
    }

    /// Ties the identifier to the device.
    ///
    /// # Safety
    /// No other thread uses the identifier meanwhile.
    pub unsafe fn settle(id: *mut Self) -> Result<(), Errno> {
        let (verbs, pd) = home()?;
        // SAFETY: as the caller promises.
        unsafe {
            (*id).base.verbs = verbs;
            (*id).base.pd = pd;
            (*id).base.port_num = PORT;
        }
        Ok(())
    }

    /// Puts an event of our own into the identifier's channel.
    pub fn tell(&self, event: c_int) {
        hub().tell(self.as_ptr(), What::plain(event, 0));
    }
}

/// Returns the context and the protection domain that all identifiers share.
pub fn home() -> Result<(*mut ibv_context, *mut ibv_pd), Errno> {
    static HOME: Mutex<Option<(usize, usize)>> = Mutex::new(None);
    rnic()?;
    let mut home = HOME.lock().unwrap_or_else(PoisonError::into_inner);
    let (context, pd) = match *home {
        Some(made) => made,
        None => {
            let context = context::open()?;
            // SAFETY: just opened.
            let pd = unsafe { crate::ibv::pd::ibv_alloc_pd(context) };
            if pd.is_null() {
                return Err(crate::call::last_errno());
            }
            *home.insert((context as usize, pd as usize))
        }
    };
    Ok((context as *mut ibv_context, pd as *mut ibv_pd))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: c_int,
) -> c_int {
    zero(|| {
        if id.is_null() || ps != RDMA_PS_TCP {
            return Err(if ps == RDMA_PS_TCP { libc::EINVAL } else { libc::EOPNOTSUPP });
        }
        prospect()?;
        // SAFETY: the program's place for the answer.
        unsafe { id.write(Id::create(channel, context, ps)?.cast()) };
        Ok(())
    })
}

/// Rejects the connection requests among events that the program has not fetched. Dropping a request rejects it, but
/// only after `adopt`.
fn discard(pending: Vec<Pending>) {
    for pending in pending {
        if let (What::Request(mut request), Ok(connector)) = (pending.what, connector()) {
            connector.adopt(&mut request);
        }
    }
}

/// Destroys an identifier, once all its fetched events are acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    zero(|| {
        live::take(Kind::Id, id.cast::<Id>())?;
        // SAFETY: an identifier, which is ours from here on.
        let this = unsafe { &*id.cast::<Id>() };
        let pending = hub().remove_id(this.as_ptr());
        discard(pending);
        let State { bound, listener, request, connection, .. } = std::mem::take(&mut *this.state());
        drop((listener, request, bound));
        if let Some(connection) = connection {
            let _ = connection.disconnect();
        }
        if this.is_sync() {
            // SAFETY: null, or the event that the identifier has kept.
            unsafe { channel::rdma_ack_cm_event(this.base.event) };
        }
        this.events.wait();
        let channel = this.is_sync().then_some(this.base.channel);
        // SAFETY: made by `Box::into_raw`; the program gives it up, and events no longer find it.
        drop(unsafe { Box::from_raw(id.cast::<Id>()) });
        if let Some(channel) = channel {
            // SAFETY: the identifier's own channel.
            unsafe { channel::rdma_destroy_event_channel(channel) };
        }
        Ok(())
    })
}

/// Moves an identifier to another channel, with the events that were not fetched. Waits until the fetched events are
/// acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> c_int {
    zero(|| {
        // SAFETY: null or an identifier.
        let this = unsafe { id_of(id) }?;
        let (was_sync, old) = (this.is_sync(), this.base.channel);
        let sync = to.is_null();
        let to = if sync { Channel::create()?.cast() } else { to };
        let inbox: Arc<Inbox<Pending>> = channel::inbox(to)?;
        if was_sync {
            // SAFETY: null, or the event that the identifier has kept.
            unsafe {
                channel::rdma_ack_cm_event(this.base.event);
                (*id).event = std::ptr::null_mut();
            }
        }
        hub().migrate(this.as_ptr(), inbox);
        this.events.wait();
        // SAFETY: no other thread uses the identifier during this call, as the program promises.
        unsafe {
            (*id).channel = to;
            (*id.cast::<Id>()).shadow.sync = sync.into();
        }
        if was_sync {
            // SAFETY: the identifier's own channel.
            unsafe { channel::rdma_destroy_event_channel(old) };
        }
        Ok(())
    })
}

/// Returns the contexts of all devices, and their number.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    pointer(|| {
        let found = home();
        // SAFETY: null or a place for a number.
        if let Some(count) = unsafe { count.as_mut() } {
            *count = found.is_ok().into();
        }
        let (context, _) = found?;
        // SAFETY: room for two pointers, null to begin with; the first is written.
        unsafe {
            let list: *mut *mut ibv_context = libc::calloc(2, size_of::<*mut ibv_context>()).cast();
            if list.is_null() {
                return Err(libc::ENOMEM);
            }
            *list = context;
            Ok(list)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: null, or from `rdma_get_devices`.
    unsafe { libc::free(list.cast()) };
}

/// Waits for the event that completes a call, if the identifier is synchronous. A cancellation point.
///
/// # Safety
/// `id` is an identifier that is not destroyed meanwhile.
#[inline(never)]
pub unsafe extern "C" fn complete(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: nothing is held here, and callees unwind only by cancellation (see the crate's documentation).
    unsafe {
        if (*id.cast::<Id>()).shadow.sync == 0 {
            return 0;
        }
        if !(*id).event.is_null() {
            channel::rdma_ack_cm_event((*id).event);
            (*id).event = std::ptr::null_mut();
        }
        if channel::rdma_get_cm_event((*id).channel, &raw mut (*id).event) != 0 {
            return -1;
        }
        outcome((*id).event)
    }
}

/// Converts an event into the result of a synchronous call.
#[inline(never)]
unsafe extern "C" fn outcome(event: *mut rdma_cm_event) -> c_int {
    number(|| {
        // SAFETY: an event just fetched.
        let event = unsafe { deref(event) }?;
        match event.status {
            0 => Ok(0),
            _ if event.event == RDMA_CM_EVENT_REJECTED => Err(libc::ECONNREFUSED),
            status => Err(status.abs()),
        }
    })
}
