//! Memory windows.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use urnic::{Mw, MwKind, SendWr};

use super::context::Context;
use super::pd::domain;
use super::post;
use super::qp::pair;
use crate::call::{deref, errno_of, pointer, post_errno, status};
use crate::ffi::*;
use crate::live::{self, Kind};

/// The structure that the program's `*mut ibv_mw` points to.
#[repr(C)]
struct Window {
    base: ibv_mw,
    mw: Mw,
}

pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    pointer(|| {
        // SAFETY: null or a domain.
        let domain = unsafe { domain(pd) }?;
        let mw = domain.pd.alloc_mw(match kind {
            IBV_MW_TYPE_1 => MwKind::One,
            IBV_MW_TYPE_2 => MwKind::Two,
            _ => return Err(libc::EINVAL),
        });
        let mw = mw.map_err(|e| errno_of(&e))?;
        let context = domain.context();
        context.hold();
        domain.users.fetch_add(1, Ordering::SeqCst);
        let base = ibv_mw { context: context.as_ptr(), pd, rkey: mw.rkey(), handle: mw.rkey(), type_: kind };
        Ok(live::enter(Kind::Window, Box::into_raw(Box::new(Window { base, mw }))).cast())
    })
}

pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    status(|| {
        live::take(Kind::Window, mw.cast::<Window>())?;
        // SAFETY: made by `Box::into_raw`; the program gives it up.
        let window = unsafe { Box::from_raw(mw.cast::<Window>()) };
        // SAFETY: the domain, and so the context, exists while it is counted as used.
        let domain = unsafe { domain(window.base.pd) }?;
        drop(window);
        let context: *const Context = domain.context();
        domain.users.fetch_sub(1, Ordering::SeqCst);
        // SAFETY: the window held the context.
        unsafe { Context::release(context) };
        Ok(())
    })
}

/// Binds a window of type 1. The caller is `ibv_bind_mw`, an inline function of `infiniband/verbs.h`, which has checked
/// the type.
pub unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    status(|| {
        // SAFETY: null, or a queue pair, a window and the program's parameters.
        let (pair, bind) = unsafe { (pair(qp)?, deref(bind)?) };
        if mw.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: no other thread binds the window during this call, as the program promises.
        let window = unsafe { &mut *mw.cast::<Window>() };
        let rkey = window.mw.fresh_rkey();
        // SAFETY: the region, if there is one, is registered.
        let op = unsafe { post::bind(rkey, &bind.bind_info) }?;
        let flags = post::flags(bind.send_flags);
        pair.qp.post_send(&SendWr { wr_id: bind.wr_id, op, sges: &[], flags }).map_err(post_errno)?;
        window.base.rkey = rkey;
        Ok(())
    })
}
