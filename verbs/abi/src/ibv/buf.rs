//! Buffers that the library allocates for the program, and registration with a mask of attributes.

use std::ffi::{c_int, c_void};

use super::mr::register;
use super::pd::domain;
use crate::call::{Errno, number, pointer, quiet};
use crate::ffi::*;
use crate::live::{self, Kind};

/// The structure behind the program's handle of a buffer. The buffer is ordinary memory, aligned to pages.
struct Buffer {
    addr: *mut c_void,
    size: usize,
    /// The protection domain of the allocation; only compared, never dereferenced.
    pd: *mut ibv_pd,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: from `posix_memalign`.
        unsafe { libc::free(self.addr) };
    }
}

const PAGE: usize = 4096;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut c_void) -> *mut c_void {
    pointer(|| {
        // SAFETY: null or a domain.
        unsafe { domain(pd) }?;
        if buf.is_null() {
            return Err(libc::EINVAL);
        }
        let mut addr = std::ptr::null_mut();
        // SAFETY: a place for the answer. At least one byte, because an allocation of no bytes need not have an
        // address.
        match unsafe { libc::posix_memalign(&raw mut addr, PAGE, size.max(1)) } {
            0 => {}
            errno => return Err(errno),
        }
        let made = live::enter(Kind::Buffer, Box::into_raw(Box::new(Buffer { addr, size, pd })));
        // SAFETY: the program's place for the answer.
        unsafe { buf.write(made.cast()) };
        Ok(addr)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_buf(buf: *mut c_void) {
    quiet(|| {
        if live::take(Kind::Buffer, buf.cast::<Buffer>()).is_ok() {
            // SAFETY: made by `Box::into_raw`; the program gives it up.
            drop(unsafe { Box::from_raw(buf.cast::<Buffer>()) });
        }
    });
}

/// Fails: no buffer is backed by a DMA-buf.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut c_void) -> c_int {
    number(|| {
        live::check(Kind::Buffer, buf.cast::<Buffer>())?;
        Err(libc::ENODATA)
    })
}

/// Returns EINVAL unless the memory lies in the buffer and the buffer was allocated in the domain.
fn in_buffer(pd: *mut ibv_pd, buf: *mut c_void, addr: *mut c_void, length: usize) -> Result<(), Errno> {
    live::check(Kind::Buffer, buf.cast::<Buffer>())?;
    // SAFETY: the buffer is listed, and the program does not free it during this call.
    let buffer = unsafe { &*buf.cast::<Buffer>() };
    let offset = (addr as usize).checked_sub(buffer.addr as usize);
    let room = offset.and_then(|offset| buffer.size.checked_sub(offset));
    if pd == buffer.pd && room.is_some_and(|room| length <= room) { Ok(()) } else { Err(libc::EINVAL) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut c_void,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    pointer(|| {
        in_buffer(pd, buf, addr, length)?;
        register(pd, addr, length, None, access as u32)
    })
}

/// Registers memory by the attributes that the mask names. Supports only the attributes of the other registration
/// verbs, as rdma-core does for drivers that lack this function.
fn register_masked(pd: *mut ibv_pd, attr: *const ibv_mr_init_attr) -> Result<*mut ibv_mr, Errno> {
    if attr.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the program's structure; it has later members only if the mask names them.
    let (mask, length, access) = unsafe { ((*attr).comp_mask, (*attr).length, (*attr).access) };
    let has = |bit: u64| mask & bit != 0;
    let fd = has(IBV_REG_MR_MASK_FD) || has(IBV_REG_MR_MASK_FD_OFFSET);
    // SAFETY: as above.
    let addr = has(IBV_REG_MR_MASK_ADDR).then(|| unsafe { (*attr).addr });
    if has(IBV_REG_MR_MASK_BUF) {
        let addr = addr.filter(|_| !fd).ok_or(libc::EINVAL)?;
        // SAFETY: as above.
        in_buffer(pd, unsafe { (*attr).buf }, addr, length)?;
    }
    const KNOWN: u64 = IBV_REG_MR_MASK_IOVA
        | IBV_REG_MR_MASK_ADDR
        | IBV_REG_MR_MASK_FD
        | IBV_REG_MR_MASK_FD_OFFSET
        | IBV_REG_MR_MASK_BUF;
    if mask & !KNOWN != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if has(IBV_REG_MR_MASK_FD) {
        let whole = addr.is_none() && has(IBV_REG_MR_MASK_FD_OFFSET) && has(IBV_REG_MR_MASK_IOVA);
        return Err(if whole { libc::EOPNOTSUPP } else { libc::EINVAL });
    }
    let addr = addr.filter(|_| !fd).ok_or(libc::EINVAL)?;
    // SAFETY: as above.
    let iova = has(IBV_REG_MR_MASK_IOVA).then(|| unsafe { (*attr).iova });
    register(pd, addr, length, iova, access as u32)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    pointer(|| register_masked(pd, attr))
}
