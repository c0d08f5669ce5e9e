//! Listening, connecting, accepting, and ending connections.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use urnic::{ConnParam, RNR_WITHOUT_LIMIT};

use super::hub::{What, connector, dispatch_to, hub};
use super::id::{Id, complete, id_of};
use super::resolve::{address, bind_to_any};
use crate::call::{Errno, deref, errno_of, number, zero};
use crate::ffi::*;
use crate::ibv::qp::{Pair, by_number, pair};
use crate::live::{self, Kind};
use crate::log;
use crate::rnic::rnic;

/// Default and maximum backlog of a listener, as in the kernel.
const BACKLOG: u32 = 1024;
/// Time that a peer has to answer.
const PATIENCE: Duration = Duration::from_secs(10);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    zero(|| {
        bind_to_any(id)?;
        // SAFETY: an identifier, as the previous call has checked.
        let this = unsafe { id_of(id) }?;
        let device = &rnic()?.device;
        if this.state().listener.is_some() {
            return Err(libc::EINVAL);
        }
        let number = hub().listener(this.as_ptr());
        let sink = device.create_event_sink(Box::new(move |event| dispatch_to(number, event)));
        let sink = sink.inspect_err(log::refused).map_err(|e| errno_of(&e))?;
        let (bound, v6only) = {
            let mut state = this.state();
            // A listener cannot share its address.
            let bound = Arc::try_unwrap(state.bound.take().ok_or(libc::EINVAL)?).map_err(|shared| {
                state.bound = Some(shared);
                libc::EADDRINUSE
            })?;
            (bound, state.v6only)
        };
        let address = bound.address();
        let backlog = u32::try_from(backlog).ok().filter(|n| (1..BACKLOG).contains(n)).unwrap_or(BACKLOG);
        match sink.listen_at(bound, backlog).inspect_err(log::refused) {
            Ok(listener) => this.state().listener = Some((listener, sink)),
            Err(error) => {
                // That ended the reservation, but the identifier stays bound.
                let bound = device.bind(address, v6only).ok().map(Arc::new);
                let mut state = this.state();
                (state.address, state.bound) = (bound.as_ref().map(|_| address), bound);
                return Err(errno_of(&error));
            }
        }
        tracing::debug!("listening at {address}");
        Ok(())
    })
}

/// Returns the queue pair of a connection: the identifier's, or the queue pair whose number `param` contains.
///
/// # Safety
/// The queue pair is not destroyed while the result is used.
pub unsafe fn queue_pair<'a>(id: &Id, param: Option<&rdma_conn_param>) -> Result<&'a Pair, Errno> {
    let qp = match (id.base.qp.is_null(), param) {
        (false, _) => id.base.qp,
        (true, Some(param)) => by_number(param.qp_num).ok_or(libc::EINVAL)?,
        (true, None) => return Err(libc::EINVAL),
    };
    live::check(Kind::Qp, qp)?;
    // SAFETY: the queue pair is listed; otherwise as the caller promises.
    unsafe { pair(qp) }
}

/// Returns the program's private data.
///
/// # Safety
/// `len` bytes are at `data`, if it is not null.
unsafe fn bytes<'a>(data: *const c_void, len: u8) -> &'a [u8] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(data.cast(), len.into()) }
}

/// Returns the connection parameters that the program asks for.
///
/// # Safety
/// The private data is readable.
pub unsafe fn terms(id: &Id, param: Option<&rdma_conn_param>) -> ConnParam {
    let mut terms = ConnParam { timeout: PATIENCE, ..ConnParam::default() };
    terms.private_data.clone_from(&id.state().connect_data);
    if let Some(param) = param {
        // SAFETY: as the caller promises.
        terms.private_data.extend_from_slice(unsafe { bytes(param.private_data, param.private_data_len) });
        (terms.ird, terms.ord) = (param.responder_resources.into(), param.initiator_depth.into());
        terms.rnr_retry = rnr_retry(param);
    }
    terms
}

/// Returns the retry count that limits how long the peer's Sends wait for receives here. Like the kernel, uses three
/// bits of the program's value. 0 counts as 1, because some programs, such as fio, leave it at 0 and post the next
/// receive a moment after the last one was used. On InfiniBand the delay of acknowledgements usually hides this
/// delay; here the peer's next Send would arrive before the receive is posted.
fn rnr_retry(param: &rdma_conn_param) -> u8 {
    (param.rnr_retry_count & RNR_WITHOUT_LIMIT).max(1)
}

fn connect(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<(), Errno> {
    // SAFETY: null, or an identifier and the program's parameters.
    let (this, param) = unsafe { (id_of(id)?, param.as_ref()) };
    // SAFETY: the program does not destroy the queue pair meanwhile.
    let pair = unsafe { queue_pair(this, param) }?;
    // SAFETY: the program's data.
    let terms = unsafe { terms(this, param) };
    // SAFETY: the identifier's own storage.
    let to = unsafe { address((&raw const this.base.route.dst_addr).cast()) }.map_err(|_| libc::EINVAL)?;
    hub().tie(pair.qp.qpn(), this.as_ptr());
    tracing::debug!("connecting to {to}");
    let bound = this.state().bound.clone();
    let connection = match &bound {
        Some(bound) => connector()?.connect_from(bound, &pair.qp, to, &terms),
        None => connector()?.connect(&pair.qp, to, &terms),
    };
    let connection = connection.inspect_err(log::refused).map_err(|e| errno_of(&e))?;
    this.state().connected(connection);
    Ok(())
}

#[inline(never)]
extern "C" fn start_to_connect(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> c_int {
    zero(|| connect(id, param))
}

/// Connects to a peer. A cancellation point if the identifier is synchronous.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    match start_to_connect(id, param) {
        // SAFETY: an identifier, as the previous call has checked.
        0 => unsafe { complete(id) },
        failed => failed,
    }
}

fn accept(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<(), Errno> {
    // SAFETY: null, or an identifier and the program's parameters.
    let (this, param) = unsafe { (id_of(id)?, param.as_ref()) };
    // SAFETY: the program does not destroy the queue pair meanwhile.
    let pair = unsafe { queue_pair(this, param) }?;
    let (request, wishes) = {
        let mut state = this.state();
        (state.request.take().ok_or(libc::EINVAL)?, state.wishes)
    };
    let (resources, depth) = param.map_or(wishes, |p| (p.responder_resources, p.initiator_depth));
    let mut terms = ConnParam { ird: resources.into(), ord: depth.into(), ..ConnParam::default() };
    if let Some(param) = param {
        // SAFETY: the program's data.
        terms.private_data = unsafe { bytes(param.private_data, param.private_data_len) }.to_vec();
        terms.rnr_retry = rnr_retry(param);
    }
    hub().tie(pair.qp.qpn(), this.as_ptr());
    let connection = request.accept(&pair.qp, &terms).map_err(|e| errno_of(&e))?;
    this.state().connected(connection);
    Ok(())
}

#[inline(never)]
extern "C" fn start_to_accept(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> c_int {
    zero(|| accept(id, param))
}

/// Accepts a connection request. A cancellation point if the identifier is synchronous.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    match start_to_accept(id, param) {
        // SAFETY: an identifier, as the previous call has checked.
        0 => unsafe { complete(id) },
        failed => failed,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    zero(|| {
        // SAFETY: null or an identifier.
        let this = unsafe { id_of(id) }?;
        let request = this.state().request.take().ok_or(libc::EINVAL)?;
        // SAFETY: the program's data.
        request.reject(unsafe { bytes(data, len) }).map_err(|e| errno_of(&e))
    })
}

/// Does the same as [`rdma_reject`]. The reason that this call states, that the peer's ECE options are not
/// acceptable, exists on InfiniBand only.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the program's pointers.
    unsafe { rdma_reject(id, data, len) }
}

/// Ends a connection. Succeeds also for a connection that has already ended, as in the kernel.
fn disconnect(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: null or an identifier.
    let this = unsafe { id_of(id) }?;
    let connection = {
        let state = this.state();
        if !state.was_connected {
            return Err(libc::EINVAL);
        }
        state.connection.clone()
    };
    if let Some(connection) = connection {
        let _ = connection.disconnect();
    }
    Ok(())
}

/// Returns whether the program has not yet fetched the event of the connection's end.
#[inline(never)]
extern "C" fn awaits_end(id: *mut rdma_cm_id) -> bool {
    // SAFETY: null or an identifier.
    number(|| Ok((!unsafe { id_of(id) }?.state().end_told).into())) == 1
}

#[inline(never)]
extern "C" fn start_to_disconnect(id: *mut rdma_cm_id) -> c_int {
    zero(|| disconnect(id))
}

/// Ends a connection. A cancellation point if the identifier is synchronous.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    match start_to_disconnect(id) {
        // SAFETY: an identifier, as the previous call has checked.
        0 if awaits_end(id) => unsafe { complete(id) },
        answer => answer,
    }
}

/// Ends the connection of a queue pair gracefully, if it has one.
pub fn close_qp(qpn: u32) {
    let connection = {
        let hub = hub();
        // SAFETY: tied identifiers are registered, and are removed under the lock.
        hub.tied(qpn).and_then(|id| unsafe { &*id }.state().connection.clone())
    };
    if let Some(connection) = connection {
        let _ = connection.disconnect();
    }
}

/// Does nothing: a connection is established when its event says so.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    zero(|| {
        // SAFETY: null or an identifier.
        let this = unsafe { id_of(id) }?;
        if !this.base.qp.is_null() || this.state().connection.is_none() {
            return Err(libc::EINVAL);
        }
        Ok(())
    })
}

/// Puts an event made by the program into the identifier's channel.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: c_int,
    status: c_int,
    arg: u64,
) -> c_int {
    zero(|| {
        // SAFETY: null or an identifier.
        let this = unsafe { id_of(id) }?;
        if event != RDMA_CM_EVENT_USER {
            return Err(libc::EINVAL);
        }
        hub().tell(this.as_ptr(), What::User { status, arg });
        Ok(())
    })
}

/// Does nothing: only InfiniBand needs to be told that data arrived before the last step of the establishment.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, _event: c_int) -> c_int {
    // SAFETY: null or an identifier.
    zero(|| unsafe { deref(id) }.map(|_| ()))
}
