//! Protection domains.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use urnic::Pd;

use super::context::{Context, context_of};
use crate::call::{Errno, deref, pointer, status};
use crate::ffi::*;
use crate::live::{self, Kind};

/// The structure that the program's `*mut ibv_pd` points to.
#[repr(C)]
pub struct Domain {
    base: ibv_pd,
    pub pd: Pd,
    /// The number of regions, windows, queue pairs, shared receive queues and parent domains in this domain.
    pub users: AtomicU32,
    /// The domain that a parent domain wraps; null if this domain is not a parent domain.
    inner: *mut Domain,
    /// The context, kept here because the program can change members of `base`.
    owner: *const Context,
}

/// # Safety
/// `pd` is null, or a domain that is not deallocated meanwhile.
pub unsafe fn domain<'a>(pd: *mut ibv_pd) -> Result<&'a Domain, Errno> {
    live::check(Kind::Domain, pd)?;
    // SAFETY: the domain is listed; otherwise as the caller promises. The program's structure is the first member of
    // ours.
    unsafe { deref(pd.cast::<Domain>()) }
}

/// Returns EBUSY while an object is in use.
pub fn unused(users: &AtomicU32) -> Result<(), Errno> {
    if users.load(Ordering::SeqCst) > 0 { Err(libc::EBUSY) } else { Ok(()) }
}

impl Domain {
    pub fn context<'a>(&self) -> &'a Context {
        // SAFETY: the context's memory stays while objects hold it.
        unsafe { &*self.owner }
    }

    fn create(context: &Context, pd: Pd, inner: *mut Domain) -> *mut ibv_pd {
        context.hold();
        let base = ibv_pd { context: context.as_ptr(), handle: 0 };
        let made = Self { base, pd, users: AtomicU32::new(0), inner, owner: context };
        live::enter(Kind::Domain, Box::into_raw(Box::new(made))).cast()
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: null or an open context.
        let context = unsafe { context_of(context) }?;
        context.rnic.now()?; // a forked child has no device
        Ok(Domain::create(context, context.rnic.device.alloc_pd(), std::ptr::null_mut()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    status(|| {
        live::leave(Kind::Domain, pd.cast::<Domain>(), |this| unused(&this.users))?;
        // SAFETY: made by `Box::into_raw`; the program gives it up.
        let this = unsafe { Box::from_raw(pd.cast::<Domain>()) };
        // SAFETY: the inner domain exists while it is counted as used.
        if let Some(inner) = unsafe { this.inner.as_ref() } {
            inner.users.fetch_sub(1, Ordering::SeqCst);
        }
        let context = this.owner;
        drop(this);
        // SAFETY: the domain held the context.
        unsafe { Context::release(context) };
        Ok(())
    })
}

/// Makes a parent domain, which acts like the domain that it wraps. This device ignores thread domains, and does not
/// use the program's allocators.
pub unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: null or the program's structure.
        let attr = unsafe { deref(attr) }?;
        // SAFETY: null or an open context.
        let context = unsafe { context_of(context) }?;
        // SAFETY: null or a domain.
        let inner = unsafe { domain(attr.pd) }?;
        if attr.comp_mask & !3 != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        inner.users.fetch_add(1, Ordering::SeqCst);
        Ok(Domain::create(context, inner.pd.clone(), attr.pd.cast()))
    })
}

pub unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    pointer(|| {
        // SAFETY: null or an open context.
        let context = unsafe { context_of(context) }?;
        // SAFETY: null or the program's structure.
        if unsafe { deref(attr) }?.comp_mask != 0 {
            return Err(libc::EINVAL);
        }
        context.hold();
        let made = Box::into_raw(Box::new(ibv_td { context: context.as_ptr() }));
        Ok(live::enter(Kind::ThreadDomain, made))
    })
}

pub unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    status(|| {
        live::take(Kind::ThreadDomain, td)?;
        // SAFETY: made by `Box::into_raw`; the program gives it up.
        let td = unsafe { Box::from_raw(td) };
        // SAFETY: the thread domain held the context.
        unsafe { Context::release(context_of(td.context)?) };
        Ok(())
    })
}
