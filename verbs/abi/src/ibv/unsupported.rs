//! Verbs that this device does not support. They are defined so that no program calls another library's code with our
//! objects.

use std::ffi::{c_char, c_int, c_void};

use crate::call::{pointer, set_errno, status};
use crate::ffi::*;

/// Defines verbs that fail and return an errno.
macro_rules! refused {
    ($($name:ident($($type:ty),*) = $errno:ident;)+) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($(_: $type),*) -> c_int {
            status(|| Err(libc::$errno))
        }
    )+};
}

/// Defines verbs that fail, return null and set errno.
macro_rules! absent {
    ($($name:ident($($type:ty),*) = $errno:ident;)+) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($(_: $type),*) -> *mut c_void {
            pointer(|| Err(libc::$errno))
        }
    )+};
}

/// Defines functions without a result, which do nothing because their objects do not exist here.
macro_rules! ignored {
    ($($name:ident($($type:ty),*);)+) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($(_: $type),*) {}
    )+};
}

type Any = *mut c_void;

refused! {
    // Datagrams and multicast.
    ibv_attach_mcast(Any, Any, u16) = EOPNOTSUPP;
    ibv_detach_mcast(Any, Any, u16) = EOPNOTSUPP;
    ibv_destroy_ah(Any) = EOPNOTSUPP;
    ibv_resolve_eth_l2_from_gid(Any, Any, Any, Any) = EOPNOTSUPP;
    // Connection establishment without a connection manager.
    ibv_set_ece(Any, Any) = EOPNOTSUPP;
    // DMA handles: hints about the path that a device's DMA takes through the machine.
    ibv_dealloc_dmah(Any) = EOPNOTSUPP;
    // Counters of completions.
    _ibv_query_comp_cntr_caps(Any, Any, usize) = EOPNOTSUPP;
    ibv_destroy_comp_cntr(Any) = EOPNOTSUPP;
    ibv_set_comp_cntr(Any, u64) = EOPNOTSUPP;
    ibv_set_err_comp_cntr(Any, u64) = EOPNOTSUPP;
    ibv_inc_comp_cntr(Any, u64) = EOPNOTSUPP;
    ibv_inc_err_comp_cntr(Any, u64) = EOPNOTSUPP;
    ibv_read_comp_cntr(Any, Any) = EOPNOTSUPP;
    ibv_read_err_comp_cntr(Any, Any) = EOPNOTSUPP;
    ibv_qp_attach_comp_cntr(Any, Any, Any) = EOPNOTSUPP;
    // The port's measured speed; `ibv_query_port` reports a nominal one.
    ibv_query_port_speed(Any, u32, Any) = EOPNOTSUPP;
}

absent! {
    ibv_create_ah(Any, Any) = EOPNOTSUPP;
    ibv_create_ah_from_wc(Any, Any, Any, u8) = EOPNOTSUPP;
    // Objects of other processes.
    ibv_import_device(c_int) = EOPNOTSUPP;
    ibv_import_pd(Any, u32) = EOPNOTSUPP;
    ibv_import_mr(Any, u32) = EOPNOTSUPP;
    ibv_import_dm(Any, u32) = EOPNOTSUPP;
    ibv_alloc_dmah(Any, Any) = EOPNOTSUPP;
    ibv_create_comp_cntr(Any, Any) = EOPNOTSUPP;
}

ignored! {
    ibv_unimport_pd(Any);
    ibv_unimport_mr(Any);
    ibv_unimport_dm(Any);
    ibv_register_driver(Any, Any);
    // Conversions of the kernel's structures, which this library does not use.
    ibv_copy_ah_attr_from_kern(Any, Any);
    ibv_copy_path_rec_from_kern(Any, Any);
    ibv_copy_path_rec_to_kern(Any, Any);
    ibv_copy_qp_attr_from_kern(Any, Any);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(_: Any, _: u8, _: Any, _: Any, _: Any) -> c_int {
    set_errno(libc::EOPNOTSUPP);
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dm_export_dmabuf_fd(_: Any) -> c_int {
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// Reports that no options were negotiated.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    status(|| {
        if qp.is_null() || ece.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the program's place for the answer.
        unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
        Ok(())
    })
}

/// Returns 0: registered memory is ordinary memory in a forked child, and the child does not use the device.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Returns `IBV_FORK_UNNEEDED`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dontfork_range(_base: Any, _size: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dofork_range(_base: Any, _size: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Fails: this device has no such file.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    _: *const c_char,
    _: *const c_char,
    _: *mut c_char,
    _: usize,
) -> c_int {
    set_errno(libc::ENOENT);
    -1
}
