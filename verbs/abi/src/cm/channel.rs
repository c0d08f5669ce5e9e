//! Event channels, and the events as the program sees them.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::hub::{self, Pending, What, connector, hub};
use super::id::Id;
use super::resolve::{place, sockaddr};
use crate::call::{Errno, fails, number, pointer, quiet, zero};
use crate::ffi::*;
use crate::inbox::{Inbox, read_count};
use crate::live::{self, Kind};
use crate::rnic::{config, prospect};

/// The structure that the program's `*mut rdma_event_channel` points to.
#[repr(C)]
pub struct Channel {
    base: rdma_event_channel,
}

impl Channel {
    pub fn create() -> Result<*mut Self, Errno> {
        let inbox = Arc::new(Inbox::new()?);
        let channel = Box::into_raw(Box::new(Self { base: rdma_event_channel { fd: inbox.fd() } }));
        hub().add_channel(channel as usize, inbox);
        Ok(channel)
    }
}

/// Returns the queue in which the events of a channel wait; EBADF if there is no such channel.
pub fn inbox(channel: *mut rdma_event_channel) -> Result<Arc<Inbox<Pending>>, Errno> {
    hub().channel(channel as usize).ok_or(libc::EBADF)
}

/// Creates a channel, on whose descriptor the program can wait at once. Opens no device, because a child process
/// cannot use a device that its parent has opened: a program may make channels and identifiers, fork, and use them in
/// the child. The device is opened when the first identifier is bound or resolved.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(|| {
        prospect()?;
        Ok(Channel::create()?.cast())
    })
}

thread_local! {
    /// The channel that this thread serves: the thread has blocked in this channel, and has not destroyed it since.
    static SERVES: Cell<*mut rdma_event_channel> = const { Cell::new(std::ptr::null_mut()) };
}

/// Destroys a channel. The channel's identifiers keep working, and keep their events. If another thread serves the
/// channel, that thread's present or next call of [`rdma_get_cm_event`] never returns, for the reason given there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    quiet(|| {
        if SERVES.get() == channel {
            SERVES.set(std::ptr::null_mut());
        }
        if hub().remove_channel(channel as usize).is_some() {
            // SAFETY: made by `Box::into_raw`, and registered until now.
            drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
        }
    });
}

/// The structure that the program's `*mut rdma_cm_event` points to.
#[repr(C)]
struct Event {
    base: rdma_cm_event,
    /// The identifier that waits for the acknowledgement.
    owner: *mut Id,
    private_data: Vec<u8>,
}

/// Returns the channel's descriptor, or -1 and errno.
#[inline(never)]
unsafe extern "C" fn descriptor(channel: *mut rdma_event_channel) -> c_int {
    number(|| Ok(inbox(channel)?.fd()))
}

/// Takes one event after a successful read of the descriptor. Returns 1 and writes the event, 0 if the event has been
/// removed since the read, or -1 and errno.
#[inline(never)]
unsafe extern "C" fn take(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int {
    number(|| {
        let pending = {
            let hub = hub();
            let inbox = hub.channel(channel as usize).ok_or(libc::EBADF)?;
            let Some(pending) = inbox.take_after_read() else { return Ok(0) };
            if !hub.knows(pending.id) {
                return Ok(0);
            }
            // From here on, destroying the identifier waits for us.
            // SAFETY: the identifier is registered, and is removed under the lock.
            unsafe { (*pending.id).events.give() };
            pending
        };
        let (owner, ends) = (pending.id, pending.what.ends());
        match present(pending) {
            Ok(made) => {
                if ends {
                    // SAFETY: the identifier waits until the event is acknowledged.
                    unsafe { &*owner }.state().end_told = true;
                    hub::ended(owner);
                }
                // SAFETY: the program's place for the answer.
                unsafe { event.write(live::enter(Kind::Event, Box::into_raw(made)).cast()) };
                Ok(1)
            }
            Err(errno) => {
                // SAFETY: the identifier waits until this event is settled.
                unsafe { (*owner).events.settle(1) };
                Err(errno)
            }
        }
    })
}

fn byte(n: u16) -> u8 {
    u8::try_from(n).unwrap_or(u8::MAX)
}

/// Converts an event into the form that the program sees.
fn present(pending: Pending) -> Result<Box<Event>, Errno> {
    let owner = pending.id;
    let (id, listen_id, event, status, mut private_data, ird, ord) = match pending.what {
        What::User { status, arg } => {
            let base = rdma_cm_event {
                id: owner.cast(),
                listen_id: std::ptr::null_mut(),
                event: RDMA_CM_EVENT_USER,
                status,
                param: rdma_param { arg },
            };
            return Ok(Box::new(Event { base, owner, private_data: Vec::new() }));
        }
        What::Plain { event, status, private_data, ird, ord } => {
            (owner.cast(), std::ptr::null_mut(), event, status, private_data, byte(ird), byte(ord))
        }
        What::Request(request) => {
            let private_data = request.private_data().to_vec();
            // The peer's limits, seen from our side: its outbound Reads are inbound here, and its inbound Reads are
            // outbound here. If the peer does not tell them, programs that accept with the values of this event get
            // what the device allows.
            let own = config().map_or((0, 0), |config| (config.mpa.ird, config.mpa.ord));
            let (resources, depth) =
                (byte(request.ord().unwrap_or(own.0)), byte(request.ird().unwrap_or(own.1)));
            // SAFETY: the listener waits for the event that is being made.
            let id = unsafe { child(owner, request, (resources, depth)) }?;
            (id.cast(), owner.cast(), RDMA_CM_EVENT_CONNECT_REQUEST, 0, private_data, resources, depth)
        }
    };
    private_data.truncate(u8::MAX.into());
    let data =
        if private_data.is_empty() { std::ptr::null() } else { private_data.as_ptr().cast::<c_void>() };
    let conn = rdma_conn_param {
        private_data: data,
        private_data_len: byte(private_data.len() as u16),
        responder_resources: ird,
        initiator_depth: ord,
        flow_control: 0,
        retry_count: 0,
        // iWARP does not transmit the peer's count. Programs copy this value into their answer, and then the peer's
        // Sends wait for receives as long as necessary.
        rnr_retry_count: urnic::RNR_WITHOUT_LIMIT,
        srq: 0,
        qp_num: 0,
    };
    let base = rdma_cm_event { id, listen_id, event, status, param: rdma_param { conn } };
    Ok(Box::new(Event { base, owner, private_data }))
}

/// Makes the identifier of a connection that a peer requests.
///
/// # Safety
/// The listener is not destroyed meanwhile.
unsafe fn child(
    listener: *mut Id,
    mut request: urnic::ConnRequest,
    wishes: (u8, u8),
) -> Result<*mut Id, Errno> {
    connector()?.adopt(&mut request);
    // SAFETY: as the caller promises.
    let from = unsafe { &*listener };
    let channel = if from.is_sync() { std::ptr::null_mut() } else { from.base.channel };
    let id = Id::create(channel, from.base.context, from.base.ps)?;
    // SAFETY: just made, and no other code knows it.
    unsafe {
        Id::settle(id)?;
        let route = &mut (*id).base.route;
        place(&mut route.dst_addr, &sockaddr(request.peer()));
        // A connection that has ended meanwhile has no local address. The program learns of the end later.
        let own = request.local().ok().or_else(|| from.state().address);
        if let Some(own) = own {
            place(&mut route.src_addr, &sockaddr(own));
        }
        let mut state = (*id).state();
        state.wishes = wishes;
        state.request = Some(request);
    }
    Ok(id)
}

/// Blocks in a read of the channel's descriptor, unless the program has made the descriptor non-blocking. A
/// cancellation point.
///
/// A thread that finds its channel destroyed by another thread waits for ever, as it would in a kernel. rping depends
/// on that: its main thread destroys the channel on its way out, as soon as its event thread has acknowledged the
/// last event, and the event thread would take any return for an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if event.is_null() {
        return fails(libc::EINVAL);
    }
    // SAFETY: nothing is held here, and callees unwind only by cancellation (see the crate's documentation).
    unsafe {
        loop {
            let fd = descriptor(channel);
            if fd < 0 {
                if crate::call::last_errno() != libc::EBADF {
                    return -1;
                }
                break;
            }
            let blocks = libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK == 0;
            SERVES.set(if blocks { channel } else { std::ptr::null_mut() });
            if read_count(fd) == 0 {
                match take(channel, event) {
                    0 => continue,
                    1 => return 0,
                    _ => {}
                }
            }
            if crate::call::last_errno() != libc::EBADF {
                return -1;
            }
            break;
        }
        if !channel.is_null() && SERVES.get() == channel {
            libc::pause();
        }
    }
    -1
}

#[inline(never)] // not into functions in which a thread can be cancelled
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    zero(|| {
        live::take(Kind::Event, event.cast::<Event>())?;
        // SAFETY: an event that the program was given and now returns; its owner waits for the acknowledgement.
        unsafe {
            let event = Box::from_raw(event.cast::<Event>());
            (*event.owner).events.settle(1);
        }
        Ok(())
    })
}
