//! Functions that this device does not support: multicast, and InfiniBand's negotiated options.

use std::ffi::{c_int, c_void};

use super::id::id_of;
use crate::call::zero;
use crate::ffi::*;

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_join_multicast(
    _: *mut rdma_cm_id,
    _: *mut libc::sockaddr,
    _: *mut c_void,
) -> c_int {
    zero(|| Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_join_multicast_ex(_: *mut rdma_cm_id, _: *mut c_void, _: *mut c_void) -> c_int {
    zero(|| Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_leave_multicast(_: *mut rdma_cm_id, _: *mut libc::sockaddr) -> c_int {
    zero(|| Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_local_ece(_: *mut rdma_cm_id, _: *mut ibv_ece) -> c_int {
    zero(|| Err(libc::EOPNOTSUPP))
}

/// Reports that the peer sent no options.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    zero(|| {
        // SAFETY: null or an identifier.
        unsafe { id_of(id) }?;
        if ece.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the program's place for the answer.
        unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
        Ok(())
    })
}
