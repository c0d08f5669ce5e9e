//! The extended interface of queue pairs: requests are collected between `wr_start` and `wr_complete`, then posted.

use std::ffi::{c_int, c_void};

use urnic::{SendOp, SendWr, Sge};

use super::post;
use super::qp::{self, Pair};
use crate::call::{Errno, deref, pointer, quiet, status_fast};
use crate::ffi::*;

/// The requests collected so far.
#[derive(Default)]
pub struct Builder {
    requests: Vec<Request>,
    /// The first mistake; `wr_complete` tells it.
    wrong: Option<Errno>,
}

struct Request {
    wr_id: u64,
    op: SendOp,
    flags: u32,
    sges: Vec<Sge>,
    inline: Option<Vec<u8>>,
}

/// What this device's queue pairs can be asked for: all but segmentation offload, flushes and atomic writes. Programs ask for
/// Send with immediate data by habit; iWARP has none, so that it is refused when it is posted.
const OPS: u64 = 0x3ff;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    let ex = qp.cast::<ibv_qp_ex>();
    // SAFETY: null or a queue pair.
    match unsafe { ex.as_ref() } {
        Some(it) if it.wr_start.is_some() => ex,
        _ => std::ptr::null_mut(),
    }
}

/// Whether the queue pair that is asked for has the extended interface.
pub fn is_extended(init: &ibv_qp_init_attr_ex) -> Result<bool, Errno> {
    const KNOWN: u32 = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let flagged = init.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && init.create_flags != 0;
    let extended = init.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    if init.comp_mask & !KNOWN != 0 || flagged || extended && init.send_ops_flags & !OPS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(extended)
}

/// Gives a queue pair the extended interface.
///
/// # Safety
/// A queue pair of ours that nobody uses yet.
pub unsafe fn extend(qp: *mut ibv_qp) {
    // SAFETY: the caller's promise.
    fill(unsafe { &mut (*qp.cast::<Pair>()).base });
}

pub unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    pointer(|| {
        let plain = init.cast::<ibv_qp_init_attr>();
        // SAFETY: null or the program's.
        let init = unsafe { deref(init) }?;
        if context.is_null() || init.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
            return Err(libc::EINVAL);
        }
        let extended = is_extended(init)?;
        // SAFETY: it begins like the plain one, of which only members are read and written.
        let made = qp::create(init.pd, unsafe { &mut *plain })?.cast();
        if extended {
            // SAFETY: just made.
            unsafe { extend(made) };
        }
        Ok(made)
    })
}

fn fill(ex: &mut ibv_qp_ex) {
    ex.wr_start = Some(start);
    ex.wr_complete = Some(complete);
    ex.wr_abort = Some(abort);
    ex.wr_send = Some(send);
    ex.wr_send_imm = Some(send_imm); // refused when posted
    ex.wr_send_inv = Some(send_inv);
    ex.wr_rdma_write = Some(rdma_write);
    ex.wr_rdma_write_imm = Some(rdma_write_imm);
    ex.wr_rdma_read = Some(rdma_read);
    ex.wr_atomic_cmp_swp = Some(atomic_cmp_swp);
    ex.wr_atomic_fetch_add = Some(atomic_fetch_add);
    ex.wr_local_inv = Some(local_inv);
    ex.wr_bind_mw = Some(bind_mw);
    ex.wr_set_sge = Some(set_sge);
    ex.wr_set_sge_list = Some(set_sge_list);
    ex.wr_set_inline_data = Some(set_inline_data);
    ex.wr_set_inline_data_list = Some(set_inline_data_list);
}

/// The requests in the making.
///
/// # Safety
/// A queue pair of ours between `wr_start` and its end; the program keeps other threads away meanwhile.
unsafe fn builder<'a>(qp: *mut ibv_qp_ex) -> &'a mut Builder {
    // SAFETY: the caller's promise.
    unsafe { &mut *(*qp.cast::<Pair>()).builder.get() }
}

/// Begins a request with the id and the flags that the program has put into the queue pair.
///
/// # Safety
/// As for [`builder`].
unsafe fn begin(qp: *mut ibv_qp_ex, op: Result<SendOp, Errno>) {
    // SAFETY: the caller's promise.
    let (builder, wr_id, flags) = unsafe { (builder(qp), (*qp).wr_id, (*qp).wr_flags) };
    match op {
        Ok(op) => builder.requests.push(Request { wr_id, op, flags, sges: Vec::new(), inline: None }),
        Err(errno) => _ = builder.wrong.get_or_insert(errno),
    }
}

/// Changes the request begun last.
///
/// # Safety
/// As for [`builder`].
unsafe fn last(qp: *mut ibv_qp_ex, change: impl FnOnce(&mut Request)) {
    // SAFETY: the caller's promise.
    let builder = unsafe { builder(qp) };
    if let Some(request) = builder.requests.last_mut() {
        change(request);
    }
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    quiet(|| {
        // SAFETY: the program begins to collect.
        let builder = unsafe { builder(qp) };
        builder.requests.clear();
        builder.wrong = None;
    });
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the program ends to collect.
    unsafe { start(qp) };
}

/// All or nothing, up to what only the queue itself can refuse.
unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    status_fast(|| {
        // SAFETY: the program ends to collect.
        let (builder, pair) = unsafe { (builder(qp), &*qp.cast::<Pair>()) };
        let requests = std::mem::take(&mut builder.requests);
        if let Some(errno) = builder.wrong.take() {
            return Err(errno);
        }
        for Request { wr_id, op, flags, sges, inline } in &requests {
            let wr = SendWr { wr_id: *wr_id, op: *op, sges, flags: post::flags(*flags) };
            match inline {
                Some(bytes) => pair.qp.post_send_inline(&wr, bytes).map_err(crate::call::post_errno)?,
                None => post::post(pair, &wr)?,
            }
        }
        Ok(())
    })
}

macro_rules! begins {
    ($($name:ident($($arg:ident: $type:ty),*) => $op:expr;)+) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $($arg: $type),*) {
            // SAFETY: the program is collecting.
            quiet(|| unsafe { begin(qp, $op) });
        }
    )+};
}

begins! {
    send() => Ok(SendOp::Send);
    send_imm(imm: u32) => Ok(SendOp::SendImm(u32::from_be(imm)));
    send_inv(rkey: u32) => Ok(SendOp::SendInv(rkey));
    rdma_write(rkey: u32, addr: u64) => Ok(SendOp::Write { addr, rkey });
    rdma_write_imm(rkey: u32, addr: u64, imm: u32) => Ok(SendOp::WriteImm { addr, rkey, imm: u32::from_be(imm) });
    rdma_read(rkey: u32, addr: u64) => Ok(SendOp::Read { addr, rkey });
    atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) => Ok(SendOp::CmpSwap { addr, rkey, compare, swap });
    atomic_fetch_add(rkey: u32, addr: u64, add: u64) => Ok(SendOp::FetchAdd { addr, rkey, add });
    local_inv(rkey: u32) => Ok(SendOp::LocalInv(rkey));
    bind_mw(_mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) =>
        info.as_ref().ok_or(libc::EINVAL).and_then(|info| post::bind(rkey, info));
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, len: u32) {
    // SAFETY: the program is collecting.
    quiet(|| unsafe { last(qp, |request| request.sges = vec![Sge { addr, len, lkey }]) });
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, num: usize, list: *const ibv_sge) {
    // SAFETY: the program is collecting, and has that many elements there.
    quiet(|| unsafe {
        let mut room = [const { std::mem::MaybeUninit::uninit() }; _];
        let sges = post::sges(list, c_int::try_from(num).unwrap_or(-1), &mut room);
        match sges {
            Ok(sges) => last(qp, |request| request.sges = sges.to_vec()),
            Err(errno) => _ = builder(qp).wrong.get_or_insert(errno),
        }
    });
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let one = ibv_data_buf { addr, length };
    // SAFETY: the program is collecting, and lends the bytes.
    unsafe { set_inline_data_list(qp, 1, &one) };
}

unsafe extern "C" fn set_inline_data_list(qp: *mut ibv_qp_ex, num: usize, list: *const ibv_data_buf) {
    // SAFETY: the program is collecting, and lends the bytes.
    quiet(|| unsafe {
        let mut bytes = Vec::new();
        if num > 0 && !list.is_null() {
            let bufs = (0..num).map(|i| list.add(i).read_unaligned());
            for buf in bufs.filter(|buf| buf.length > 0 && !buf.addr.is_null()) {
                bytes.extend_from_slice(std::slice::from_raw_parts(buf.addr.cast::<u8>(), buf.length));
            }
        }
        last(qp, |request| request.inline = Some(bytes));
    });
}
