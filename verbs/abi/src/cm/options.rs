//! Options of identifiers, and the attributes of their queue pairs.

use std::ffi::{c_int, c_void};

use super::id::id_of;
use crate::call::{number, zero};
use crate::ffi::*;
use crate::rnic::PORT;

const TOS: c_int = 0;
const REUSEADDR: c_int = 1;
const AFONLY: c_int = 2;
const ACK_TIMEOUT: c_int = 3;

/// Sets an option of an identifier. The type of service and the acknowledgement timeout are accepted, but change
/// nothing.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    zero(|| {
        // SAFETY: null or an identifier.
        let this = unsafe { id_of(id) }?;
        let size = match (level, name) {
            (RDMA_OPTION_ID, TOS | ACK_TIMEOUT) => 1,
            (RDMA_OPTION_ID, REUSEADDR | AFONLY) => size_of::<c_int>(),
            _ => return Err(libc::EOPNOTSUPP),
        };
        if value.is_null() || len != size {
            return Err(libc::EINVAL);
        }
        if name == REUSEADDR || name == AFONLY {
            // SAFETY: the program's number, of the size that it states.
            let on = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
            let mut state = this.state();
            // As in the kernel, which fails with EINVAL if the identifier is bound.
            if name == AFONLY && state.address.is_some() {
                return Err(libc::EINVAL);
            }
            *(if name == AFONLY { &mut state.v6only } else { &mut state.reuse }) = on;
        }
        Ok(())
    })
}

/// Returns the attributes that a change of state must set, for programs that change the states of their queue pair
/// themselves.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    number(|| {
        // SAFETY: null or an identifier.
        let this = unsafe { id_of(id) }?;
        if this.base.verbs.is_null() || attr.is_null() || mask.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the program's places for the answers.
        let (attr, mask) = unsafe { (&mut *attr, &mut *mask) };
        attr.port_num = PORT;
        attr.pkey_index = 0;
        attr.qp_access_flags = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_ATOMIC;
        *mask = match attr.qp_state {
            IBV_QPS_INIT => IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT,
            IBV_QPS_RTR => IBV_QP_STATE | IBV_QP_ACCESS_FLAGS,
            IBV_QPS_RTS => IBV_QP_STATE,
            _ => return Err(libc::EINVAL),
        };
        Ok(0)
    })
}
