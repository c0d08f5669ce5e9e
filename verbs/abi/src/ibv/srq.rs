//! Shared receive queues.

use std::ffi::{c_int, c_uint};

use urnic::{DeviceAttr, Qp, QpInit};

use super::pd::Domain;
use crate::call::{Errno, pointer, status};
use crate::ffi::*;
use crate::ledger::Ledger;

pub const CAPABILITIES: c_uint = 0;

/// Shared queues, work requests and elements of those that a device has.
pub fn limits(_: &DeviceAttr) -> (c_int, c_int, c_int) {
    (0, 0, 0)
}

pub struct Shared {
    pub asynchronous: Ledger,
}

pub unsafe fn shared<'a>(_srq: *mut ibv_srq) -> Result<&'a Shared, Errno> {
    Err(libc::EINVAL)
}

pub fn limit_reached(_srqn: u32) {}

pub fn create_qp(domain: &Domain, srq: *mut ibv_srq, init: &QpInit<'_>) -> urnic::Result<Qp> {
    if !srq.is_null() {
        return Err(urnic::Error::Invalid("no shared receive queues"));
    }
    domain.pd.create_qp(init)
}

pub fn join(_srq: *mut ibv_srq) {}
pub fn part(_srq: *mut ibv_srq) {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(_pd: *mut ibv_pd, _init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    pointer(|| Err(libc::EOPNOTSUPP))
}

pub unsafe extern "C" fn create_srq_ex(_c: *mut ibv_context, _init: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
    pointer(|| Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(_srq: *mut ibv_srq, _attr: *mut ibv_srq_attr, _mask: c_int) -> c_int {
    status(|| Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(_srq: *mut ibv_srq, _attr: *mut ibv_srq_attr) -> c_int {
    status(|| Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(_srq: *mut ibv_srq) -> c_int {
    status(|| Err(libc::EOPNOTSUPP))
}

pub unsafe extern "C" fn get_srq_num(_srq: *mut ibv_srq, _num: *mut u32) -> c_int {
    status(|| Err(libc::EOPNOTSUPP))
}

pub unsafe extern "C" fn post_srq_recv(
    _srq: *mut ibv_srq,
    _wr: *mut ibv_recv_wr,
    _bad: *mut *mut ibv_recv_wr,
) -> c_int {
    status(|| Err(libc::EOPNOTSUPP))
}
