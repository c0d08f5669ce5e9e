//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use urnic::{Access, Mr, Rereg};

use super::context::Context;
use super::pd::{Domain, domain};
use crate::call::{Errno, deref, errno_of, number, pointer, set_errno, status};
use crate::ffi::*;
use crate::live::{self, Kind};

/// The structure that the program's `*mut ibv_mr` points to.
#[repr(C)]
pub struct Region {
    base: ibv_mr,
    /// The registration; `None` only while it is being ended.
    mr: Option<Mr>,
}

/// # Safety
/// `mr` is null, or a region that is registered.
pub unsafe fn region<'a>(mr: *mut ibv_mr) -> Result<&'a Mr, Errno> {
    // SAFETY: as the caller promises; the program's structure is the first member of ours.
    unsafe { deref(mr.cast::<Region>()) }?.mr.as_ref().ok_or(libc::EINVAL)
}

/// Converts access flags from C. Ignores the flags for windows and huge pages, because windows can be bound to any
/// region, and huge pages need no hint. Ignores optional flags as well, such as the one for relaxed ordering.
pub fn access(flags: c_uint) -> Result<Access, Errno> {
    const PAIRS: [(c_uint, Access); 5] = [
        (IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        (IBV_ACCESS_ZERO_BASED, Access::ZERO_BASED),
    ];
    if flags & IBV_ACCESS_ON_DEMAND != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let known = PAIRS
        .iter()
        .fold(IBV_ACCESS_MW_BIND | IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE, |k, p| k | p.0);
    if flags & !known != 0 {
        return Err(libc::EINVAL);
    }
    Ok(PAIRS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, right)| *right).collect())
}

pub fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: Option<u64>,
    flags: c_uint,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: null or a domain.
    let pd_ = unsafe { domain(pd) }?;
    let access = access(flags)?;
    let iova = iova.filter(|iova| *iova != addr as u64);
    // SAFETY: the program promises to keep the memory mapped while it is registered, and no Rust reference points to
    // it.
    let mr = unsafe {
        match iova {
            Some(iova) => pd_.pd.reg_mr_iova(addr.cast(), length, iova, access),
            None => pd_.pd.reg_mr(addr.cast(), length, access),
        }
    };
    let mr = mr.map_err(|e| errno_of(&e))?;
    pd_.users.fetch_add(1, Ordering::SeqCst);
    let context = pd_.context();
    context.hold();
    let base = ibv_mr {
        context: context.as_ptr(),
        pd,
        addr,
        length,
        handle: mr.lkey(),
        lkey: mr.lkey(),
        rkey: mr.rkey(),
    };
    Ok(live::enter(Kind::Region, Box::into_raw(Box::new(Region { base, mr: Some(mr) }))).cast())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    pointer(|| register(pd, addr, length, None, access as c_uint))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    pointer(|| register(pd, addr, length, Some(iova), access as c_uint))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    pointer(|| register(pd, addr, length, Some(iova), access))
}

/// Returns 0, or -1 and errno. -1 is `IBV_REREG_MR_ERR_INPUT`, which says that the old registration stays
/// valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access_flags: c_int,
) -> c_int {
    const ALL: c_int = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    number(|| {
        live::check(Kind::Region, mr)?;
        if flags & !ALL != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: no other thread uses the region during this call, as the program promises.
        let this = unsafe { &mut *mr.cast::<Region>() };
        let moves = flags & IBV_REREG_MR_CHANGE_PD != 0;
        // SAFETY: null or a domain.
        let new = if moves { Some(unsafe { domain(pd) }?) } else { None };
        let access = (flags & IBV_REREG_MR_CHANGE_ACCESS != 0).then(|| access(access_flags as c_uint));
        let memory = (flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0).then_some((addr.cast::<u8>(), length));
        let change = Rereg { access: access.transpose()?, pd: new.map(|d| &d.pd), memory };
        // SAFETY: as for a registration.
        unsafe { this.mr.as_mut().ok_or(libc::EINVAL)?.rereg(&change) }.map_err(|e| errno_of(&e))?;
        if let Some(new) = new {
            new.users.fetch_add(1, Ordering::SeqCst);
            leave(this.base.pd);
            this.base.pd = pd;
        }
        if memory.is_some() {
            (this.base.addr, this.base.length) = (addr, length);
        }
        if let Some(mr) = &this.mr {
            (this.base.lkey, this.base.rkey) = (mr.lkey(), mr.rkey());
        }
        Ok(0)
    })
}

fn leave(pd: *mut ibv_pd) {
    // SAFETY: the domain exists while it is counted as used.
    let old: Result<&Domain, Errno> = unsafe { domain(pd) };
    if let Ok(old) = old {
        old.users.fetch_sub(1, Ordering::SeqCst);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    status(|| {
        live::take(Kind::Region, mr.cast::<Region>())?;
        // SAFETY: no other thread uses the region during this call, as the program promises.
        let slot = unsafe { &mut (*mr.cast::<Region>()).mr };
        let answer = match slot.take().map(Mr::deregister) {
            Some(Err((inner, error))) => {
                *slot = Some(inner);
                Err(errno_of(&error))
            }
            _ => Ok(()),
        };
        if answer.is_err() {
            live::enter(Kind::Region, mr.cast::<Region>());
            return answer;
        }
        // SAFETY: made by `Box::into_raw`; the program gives it up.
        let base = unsafe { Box::from_raw(mr.cast::<Region>()) }.base;
        // SAFETY: the domain, and so the context, exists while it is counted as used.
        let context: *const Context = unsafe { domain(base.pd) }?.context();
        leave(base.pd);
        // SAFETY: the region held the context.
        unsafe { Context::release(context) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    set_errno(libc::EOPNOTSUPP);
    std::ptr::null_mut()
}

/// Fails with EOPNOTSUPP: advice asks a device to prepare memory that is not pinned, and our regions need no
/// preparation.
pub unsafe extern "C" fn advise_mr(
    _pd: *mut ibv_pd,
    _advice: c_int,
    _flags: u32,
    _list: *mut ibv_sge,
    _num: u32,
) -> c_int {
    status(|| Err(libc::EOPNOTSUPP))
}
