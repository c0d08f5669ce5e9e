//! Creates and destroys the queue pair and the shared receive queue of an identifier (`rdma_cm_id`).

use std::ffi::{c_int, c_void};

use super::hub::hub;
use super::id::{Id, id_of};
use crate::call::{Errno, deref, last_errno, quiet, zero};
use crate::ffi::*;
use crate::ibv::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::ibv::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::ibv::qp::{ibv_create_qp, ibv_destroy_qp};
use crate::ibv::qp_ex::{extend, is_extended};
use crate::ibv::srq::{ibv_create_srq, ibv_destroy_srq};
use crate::live::{self, Kind};

fn made<T>(pointer: *mut T) -> Result<*mut T, Errno> {
    if pointer.is_null() { Err(last_errno()) } else { Ok(pointer) }
}

/// Creates a completion queue with a channel of its own.
///
/// # Safety
/// `id` is a bound identifier, used only by this thread.
unsafe fn completions(id: *mut rdma_cm_id, cqe: u32) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    // SAFETY: as the caller promises.
    unsafe {
        let cqe = c_int::try_from(cqe).map_err(|_| libc::EINVAL)?;
        let channel = made(ibv_create_comp_channel((*id).verbs))?;
        let cq = ibv_create_cq((*id).verbs, cqe, id.cast::<c_void>(), channel, 0);
        made(cq).map(|cq| (channel, cq)).inspect_err(|_| _ = ibv_destroy_comp_channel(channel))
    }
}

/// Creates a queue pair in `pd`, and the completion queues and channels that the program does not supply.
///
/// # Safety
/// `id` is an identifier, and the other objects are not destroyed meanwhile.
pub unsafe fn create(id: *mut rdma_cm_id, pd: *mut ibv_pd, init: &mut ibv_qp_init_attr) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    unsafe {
        let this = id_of(id)?;
        let pd = if pd.is_null() { (*id).pd } else { pd };
        live::check(Kind::Domain, pd)?;
        if !(*id).qp.is_null() || (*id).verbs.is_null() || pd.is_null() || (*pd).context != (*id).verbs {
            return Err(libc::EINVAL);
        }
        let clash =
            |mine: *mut ibv_cq, theirs: *mut ibv_cq| !mine.is_null() && !theirs.is_null() && mine != theirs;
        if clash((*id).send_cq, init.send_cq) || clash((*id).recv_cq, init.recv_cq) {
            return Err(libc::EINVAL);
        }
        let result = (|| {
            if init.recv_cq.is_null() && (*id).recv_cq.is_null() {
                let (channel, cq) = completions(id, init.cap.max_recv_wr.max(1))?;
                ((*id).recv_cq_channel, (*id).recv_cq) = (channel, cq);
            }
            if init.send_cq.is_null() && (*id).send_cq.is_null() {
                let (channel, cq) = completions(id, init.cap.max_send_wr.max(1))?;
                ((*id).send_cq_channel, (*id).send_cq) = (channel, cq);
            }
            if init.recv_cq.is_null() {
                init.recv_cq = (*id).recv_cq;
            }
            if init.send_cq.is_null() {
                init.send_cq = (*id).send_cq;
            }
            if init.srq.is_null() {
                init.srq = (*id).srq;
            }
            made(ibv_create_qp(pd, init))
        })();
        match result {
            Ok(qp) => {
                (*qp).state = IBV_QPS_INIT;
                ((*id).pd, (*id).qp) = (pd, qp);
                hub().tie((*qp).qp_num, this.as_ptr());
                Ok(())
            }
            Err(errno) => {
                destroy_cqs(id);
                Err(errno)
            }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: null, or the program's objects.
    zero(|| unsafe { create(id, pd, init.as_mut().ok_or(libc::EINVAL)?) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, init: *mut ibv_qp_init_attr_ex) -> c_int {
    zero(|| {
        // SAFETY: null, or the program's objects.
        unsafe {
            let plain = init.cast::<ibv_qp_init_attr>();
            let init = deref(init)?;
            let extended = is_extended(init)?;
            let given = init.comp_mask & IBV_QP_INIT_ATTR_PD != 0;
            // The extended structure begins with the plain one.
            create(id, if given { init.pd } else { std::ptr::null_mut() }, &mut *plain)?;
            if extended {
                extend((*id).qp);
            }
            Ok(())
        }
    })
}

/// Destroys the completion queues and channels that the identifier holds, even if the program made them.
///
/// # Safety
/// `id` is an identifier without a queue pair.
unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: as the caller promises.
    unsafe {
        let (recv, send) = ((*id).recv_cq, (*id).send_cq);
        let (recv_channel, send_channel) = ((*id).recv_cq_channel, (*id).send_cq_channel);
        (*id).recv_cq = std::ptr::null_mut();
        (*id).send_cq = std::ptr::null_mut();
        (*id).recv_cq_channel = std::ptr::null_mut();
        (*id).send_cq_channel = std::ptr::null_mut();
        if !recv.is_null() {
            ibv_destroy_cq(recv);
        }
        if !send.is_null() && send != recv {
            ibv_destroy_cq(send);
        }
        if !recv_channel.is_null() {
            ibv_destroy_comp_channel(recv_channel);
        }
        if !send_channel.is_null() && send_channel != recv_channel {
            ibv_destroy_comp_channel(send_channel);
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    quiet(|| {
        // SAFETY: null or an identifier that no other thread uses during this call.
        unsafe {
            if id_of(id).is_err() || (*id).qp.is_null() {
                return;
            }
            ibv_destroy_qp((*id).qp);
            (*id).qp = std::ptr::null_mut();
            destroy_cqs(id);
        }
    });
}

/// Creates a shared receive queue for the identifier's queue pairs.
///
/// # Safety
/// `id` is an identifier, and the other objects are not destroyed meanwhile.
unsafe fn create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    unsafe {
        let _: &Id = id_of(id)?;
        let pd = if pd.is_null() { (*id).pd } else { pd };
        live::check(Kind::Domain, pd)?;
        if (*id).verbs.is_null() || pd.is_null() || (*pd).context != (*id).verbs {
            return Err(libc::EINVAL);
        }
        (*id).srq = made(ibv_create_srq(pd, init))?;
        if (*id).pd.is_null() {
            (*id).pd = pd;
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: null, or the program's objects.
    zero(|| unsafe { create_srq(id, pd, init) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, init: *mut ibv_srq_init_attr_ex) -> c_int {
    zero(|| {
        // SAFETY: null, or the program's objects.
        unsafe {
            let attr = init.as_ref().ok_or(libc::EINVAL)?;
            let basic = attr.comp_mask & 1 == 0 || attr.srq_type == 0;
            if !basic || attr.comp_mask & !3 != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            let given = attr.comp_mask & 2 != 0;
            // The extended structure begins with the plain one.
            create_srq(id, if given { attr.pd } else { std::ptr::null_mut() }, init.cast())
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    quiet(|| {
        // SAFETY: null or an identifier that no other thread uses during this call.
        unsafe {
            if id_of(id).is_ok() && !(*id).srq.is_null() {
                ibv_destroy_srq((*id).srq);
                (*id).srq = std::ptr::null_mut();
            }
        }
    });
}
