//! The extended interface of queue pairs: requests are collected between `wr_start` and `wr_complete`, then posted
//! together.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{hint, ptr, thread};

use urnic::{SendOp, SendWr, Sge};

use super::post;
use super::qp::{self, Pair};
use crate::call::{Errno, deref, pointer, post_errno, quiet_fast, status_fast};
use crate::ffi::*;

/// Collects the requests of a queue pair, for one thread at a time.
#[derive(Default)]
pub struct Collector {
    /// The [id](this_thread) of the thread that has called `wr_start` and has not ended its batch; 0 if there is
    /// none.
    by: AtomicUsize,
    builder: UnsafeCell<Builder>,
}

/// Number of spins after which a thread that waits for another thread yields its core.
const SPINS: u32 = 64;

/// Returns a number that no other living thread has; not 0.
#[inline]
fn this_thread() -> usize {
    std::thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| ptr::from_ref(place).addr())
}

impl Collector {
    /// Begins a new batch once no other thread collects. A batch that this thread began before and did not end is
    /// lost.
    fn start(&self) {
        // In a forked child: a thread of the parent may have been collecting, and never ends its batch in the child.
        if urnic::in_forked_child() {
            return;
        }
        let (me, mut spins) = (this_thread(), 0);
        while let Err(by) = self.by.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed) {
            if by == me {
                break;
            }
            spins += 1;
            if spins < SPINS { hint::spin_loop() } else { thread::yield_now() }
        }
        if let Some(builder) = self.builder() {
            builder.clear();
        }
    }

    /// Returns the batch that this thread collects; `None` if it collects none.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "one thread at a time, and one call at a time of it")]
    fn builder(&self) -> Option<&mut Builder> {
        let mine = self.by.load(Ordering::Relaxed) == this_thread();
        // SAFETY: only the thread that `by` names gets here, and functions of this module do not call each other
        // while they hold the builder.
        mine.then(|| unsafe { &mut *self.builder.get() })
    }

    /// Allows other threads to begin, if this one is collecting.
    fn end(&self) {
        if self.by.load(Ordering::Relaxed) == this_thread() {
            self.by.store(0, Ordering::Release);
        }
    }
}

/// The requests collected so far. Its memory is reused by later batches.
#[derive(Default)]
struct Builder {
    requests: Vec<Request>,
    /// The scatter-gather elements of all requests.
    sges: Vec<Sge>,
    /// The inline bytes of all requests.
    bytes: Vec<u8>,
    /// The first error, which `wr_complete` returns.
    wrong: Option<Errno>,
}

struct Request {
    wr_id: u64,
    op: SendOp,
    flags: u32,
    source: Source,
}

/// The place of a request's payload in the builder.
enum Source {
    Listed(Range<usize>),
    Inline(Range<usize>),
}

impl Builder {
    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.bytes.clear();
        self.wrong = None;
    }

    /// Records an error; the first one counts.
    fn note(&mut self, errno: Errno) {
        self.wrong.get_or_insert(errno);
    }

    /// Sets the payload of the latest request.
    fn provide(&mut self, source: Source) {
        if let Some(request) = self.requests.last_mut() {
            request.source = source;
        }
    }

    /// Sets the scatter-gather list of the latest request.
    fn list(&mut self, sges: &[Sge]) {
        let start = self.sges.len();
        self.sges.extend_from_slice(sges);
        self.provide(Source::Listed(start..self.sges.len()));
    }

    /// Sets the inline payload of the latest request. More than any queue takes is refused before it is copied.
    ///
    /// # Safety
    /// `num` elements are at `list`, which need not be aligned, and their bytes are readable.
    unsafe fn inline(&mut self, num: usize, list: *const ibv_data_buf) {
        let start = self.bytes.len();
        if num > 0 && list.is_null() {
            return self.note(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        let bufs = (0..num).map(|i| unsafe { list.add(i).read_unaligned() });
        for buf in bufs.filter(|buf| buf.length > 0) {
            if buf.addr.is_null() || buf.length > post::GATHER - (self.bytes.len() - start) {
                return self.note(libc::EINVAL);
            }
            // SAFETY: as the caller promises.
            let bytes = unsafe { std::slice::from_raw_parts(buf.addr.cast::<u8>(), buf.length) };
            self.bytes.extend_from_slice(bytes);
        }
        self.provide(Source::Inline(start..self.bytes.len()));
    }

    /// Posts all requests, or none.
    fn post(&self, pair: &Pair) -> Result<(), Errno> {
        if let Some(errno) = self.wrong {
            return Err(errno);
        }
        let mut batch = pair.qp.send_batch();
        for Request { wr_id, op, flags, source } in &self.requests {
            let wr = |sges| SendWr { wr_id: *wr_id, op: *op, sges, flags: post::flags(*flags) };
            match source {
                Source::Listed(range) => post::push(&mut batch, &wr(&self.sges[range.clone()]))?,
                Source::Inline(range) => {
                    batch.push_inline(&wr(&[]), &self.bytes[range.clone()]).map_err(post_errno)?;
                }
            }
        }
        batch.post();
        Ok(())
    }
}

/// The operations that this device's queue pairs accept: all but segmentation offload, flushes and atomic writes.
/// Many programs ask for Send with immediate data without using it. iWARP has no such operation, so a request for it
/// is refused when it is posted.
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

/// Returns whether the program asks for a queue pair with the extended interface.
pub fn is_extended(init: &ibv_qp_init_attr_ex) -> Result<bool, Errno> {
    const KNOWN: u32 = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let flagged = init.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && init.create_flags != 0;
    let extended = init.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    if init.comp_mask & !KNOWN != 0 || flagged || extended && init.send_ops_flags & !OPS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(extended)
}

/// Adds the extended interface to a queue pair.
///
/// # Safety
/// `qp` is a queue pair of ours that is not in use yet.
pub unsafe fn extend(qp: *mut ibv_qp) {
    // SAFETY: as the caller promises.
    fill(unsafe { &mut (*qp.cast::<Pair>()).base });
}

pub unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    pointer(|| {
        let plain = init.cast::<ibv_qp_init_attr>();
        // SAFETY: null or the program's structure.
        let init = unsafe { deref(init) }?;
        if context.is_null() || init.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
            return Err(libc::EINVAL);
        }
        let extended = is_extended(init)?;
        // SAFETY: the program's structure begins with the members of `ibv_qp_init_attr`, and `create` accesses no
        // others.
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

/// # Safety
/// `qp` is a queue pair of ours.
#[inline]
unsafe fn collector<'a>(qp: *mut ibv_qp_ex) -> &'a Collector {
    // SAFETY: as the caller promises.
    unsafe { &(*qp.cast::<Pair>()).collector }
}

/// Changes the batch that this thread collects, if there is one.
///
/// # Safety
/// `qp` is a queue pair of ours.
#[inline]
unsafe fn change(qp: *mut ibv_qp_ex, change: impl FnOnce(&mut Builder)) {
    // SAFETY: as the caller promises.
    quiet_fast(|| unsafe { collector(qp) }.builder().map_or((), change));
}

/// Begins a request with the id and the flags that the program has written into the queue pair.
///
/// # Safety
/// `qp` is a queue pair of ours.
#[inline]
unsafe fn begin(qp: *mut ibv_qp_ex, op: Result<SendOp, Errno>) {
    // SAFETY: as the caller promises.
    unsafe {
        let (wr_id, flags) = ((*qp).wr_id, (*qp).wr_flags);
        change(qp, |builder| match op {
            Ok(op) => builder.requests.push(Request { wr_id, op, flags, source: Source::Listed(0..0) }),
            Err(errno) => builder.note(errno),
        });
    }
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: a queue pair of ours.
    quiet_fast(|| unsafe { collector(qp) }.start());
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: a queue pair of ours.
    quiet_fast(|| unsafe { collector(qp) }.end());
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    let answer = status_fast(|| {
        // SAFETY: a queue pair of ours.
        let pair = unsafe { &*qp.cast::<Pair>() };
        pair.collector.builder().map_or(Ok(()), |builder| builder.post(pair))
    });
    // SAFETY: a queue pair of ours.
    quiet_fast(|| unsafe { collector(qp) }.end());
    answer
}

macro_rules! begins {
    ($($name:ident($($arg:ident: $type:ty),*) => $op:expr;)+) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $($arg: $type),*) {
            // SAFETY: a queue pair of ours, and arguments of the program.
            unsafe { begin(qp, $op) };
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
    // SAFETY: a queue pair of ours.
    unsafe { change(qp, |builder| builder.list(&[Sge { addr, len, lkey }])) };
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, num: usize, list: *const ibv_sge) {
    let mut room = [const { std::mem::MaybeUninit::uninit() }; _];
    // SAFETY: a queue pair of ours, and `num` elements at `list`.
    unsafe {
        change(qp, |builder| match post::sges(list, c_int::try_from(num).unwrap_or(-1), &mut room) {
            Ok(sges) => builder.list(sges),
            Err(errno) => builder.note(errno),
        });
    }
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let one = ibv_data_buf { addr, length };
    // SAFETY: a queue pair of ours, and the program lends the bytes.
    unsafe { set_inline_data_list(qp, 1, &one) };
}

unsafe extern "C" fn set_inline_data_list(qp: *mut ibv_qp_ex, num: usize, list: *const ibv_data_buf) {
    // SAFETY: a queue pair of ours, `num` elements at `list`, and the program lends the bytes.
    unsafe { change(qp, |builder| builder.inline(num, list)) };
}

#[cfg(test)]
mod tests;
