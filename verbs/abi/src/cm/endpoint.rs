//! Endpoints: identifiers that one call makes from an address entry. Passive endpoints receive connection requests.

use std::ffi::c_int;

use super::channel::{rdma_ack_cm_event, rdma_get_cm_event};
use super::id::{Id, Template, id_of, rdma_destroy_id};
use super::qp::{create, rdma_destroy_qp, rdma_destroy_srq};
use super::resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use crate::call::{Errno, deref, last_errno, number, set_errno, zero};
use crate::ffi::*;
use crate::rnic::prospect;

/// Makes a synchronous identifier of the kind that an address entry describes.
fn begin(res: *const rdma_addrinfo) -> Result<*mut Id, Errno> {
    // SAFETY: null or an entry of `rdma_getaddrinfo`.
    let res = unsafe { deref(res) }?;
    if res.ai_port_space != RDMA_PS_TCP || res.ai_qp_type != IBV_QPT_RC {
        return Err(libc::EOPNOTSUPP);
    }
    prospect()?;
    let id = Id::create(std::ptr::null_mut(), std::ptr::null_mut(), res.ai_port_space)?;
    if !res.ai_connect.is_null() {
        // SAFETY: the entry's data.
        let data = unsafe { std::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len) };
        // SAFETY: just made.
        unsafe { &*id }.state().connect_data = data.to_vec();
    }
    Ok(id)
}

/// Completes an endpoint: makes its queue pair or, for a passive one, stores the template for the queue pairs of
/// requests.
///
/// # Safety
/// `id` is an identifier, and the other objects are not destroyed meanwhile.
unsafe fn finish(
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    unsafe {
        let passive = res.ai_flags & RAI_PASSIVE != 0;
        if passive && !pd.is_null() {
            (*id).pd = pd;
        }
        let Some(init) = init.as_mut() else { return Ok(()) };
        init.qp_type = res.ai_qp_type;
        if passive {
            id_of(id)?.state().template = Some(Template(*init));
            return Ok(());
        }
        create(id, pd, init)
    }
}

#[inline(never)]
unsafe extern "C" fn start(
    id: *mut *mut rdma_cm_id,
    res: *const rdma_addrinfo,
    made: *mut *mut rdma_cm_id,
) -> c_int {
    zero(|| {
        if id.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's place for the answer.
        unsafe { made.write(begin(res)?.cast()) };
        Ok(())
    })
}

#[inline(never)]
unsafe extern "C" fn end(
    made: *mut rdma_cm_id,
    res: *const rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the identifier was just made, the entry is not null, and the other objects are the program's.
    zero(|| unsafe { finish(made, &*res, pd, init) })
}

/// Destroys an identifier, and keeps errno.
#[inline(never)]
unsafe extern "C" fn undo(made: *mut rdma_cm_id) {
    let errno = last_errno();
    // SAFETY: the program does not know the identifier yet.
    unsafe { rdma_destroy_id(made) };
    set_errno(errno);
}

/// Creates an endpoint. A cancellation point: if the thread is cancelled here, the identifier is never destroyed.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    let mut made: *mut rdma_cm_id = std::ptr::null_mut();
    // SAFETY: nothing is held here, and callees unwind only by cancellation (see the crate's documentation). The
    // identifier was just made, the entry is not null, and the other objects are the program's.
    unsafe {
        if start(id, res, &raw mut made) != 0 {
            return -1;
        }
        let mut answer;
        if (*res).ai_flags & RAI_PASSIVE != 0 {
            answer = rdma_bind_addr(made, (*res).ai_src_addr);
        } else {
            answer = rdma_resolve_addr(made, (*res).ai_src_addr, (*res).ai_dst_addr, 2000);
            if answer == 0 {
                answer = rdma_resolve_route(made, 2000);
            }
        }
        if answer == 0 {
            answer = end(made, res, pd, init);
        }
        if answer == 0 {
            id.write(made);
        } else {
            undo(made);
        }
        answer
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: null or an identifier that the program gives up.
    unsafe {
        rdma_destroy_qp(id);
        rdma_destroy_srq(id);
        rdma_destroy_id(id);
    }
}

/// Acknowledges the last event of a synchronous listener: the part of [`rdma_get_request`] before the wait.
#[inline(never)]
unsafe extern "C" fn acknowledge_last_event(listen: *mut rdma_cm_id) -> c_int {
    zero(|| {
        // SAFETY: null or an identifier that only this thread uses.
        unsafe {
            if !id_of(listen)?.is_sync() {
                return Err(libc::EINVAL);
            }
            if !(*listen).event.is_null() {
                rdma_ack_cm_event((*listen).event);
                (*listen).event = std::ptr::null_mut();
            }
        }
        Ok(())
    })
}

/// Creates the queue pair of the request: the part of [`rdma_get_request`] after the wait.
#[inline(never)]
unsafe extern "C" fn requested(
    listen: *mut rdma_cm_id,
    event: *mut rdma_cm_event,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    number(|| {
        // SAFETY: an event just fetched, of a listener that the program does not destroy meanwhile.
        unsafe {
            let refused = |errno| {
                (*listen).event = event;
                Err(errno)
            };
            if (*event).status != 0 {
                return refused((*event).status.abs());
            }
            if (*event).event != RDMA_CM_EVENT_CONNECT_REQUEST || id.is_null() {
                return refused(libc::EINVAL);
            }
            let made = (*event).id;
            let template = id_of(listen)?.state().template.as_ref().map(|t| t.0);
            if let Some(mut init) = template
                && let Err(errno) = create(made, (*listen).pd, &mut init)
            {
                return refused(errno);
            }
            (*made).event = event;
            id.write(made);
        }
        Ok(0)
    })
}

/// Waits for a request; a cancellation point.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: nothing is held here, and callees unwind only by cancellation (see the crate's documentation).
    unsafe {
        let mut event: *mut rdma_cm_event = std::ptr::null_mut();
        if acknowledge_last_event(listen) != 0 || rdma_get_cm_event((*listen).channel, &raw mut event) != 0 {
            return -1;
        }
        requested(listen, event, id)
    }
}
