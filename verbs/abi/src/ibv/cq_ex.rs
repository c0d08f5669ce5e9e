//! The extended interface of completion queues: a batch is started, looked at one by one, and ended.

use std::ffi::c_int;

use urnic::Wc;

use super::context::context_of;
use super::cq::{Queue, extra_of, flags_of, opcode_of, status_of};
use crate::call::{deref, guarded_fast, pointer};
use crate::ffi::*;

/// The completion in hand.
#[derive(Default)]
pub struct Cursor {
    wc: Wc,
}

pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer(|| {
        // SAFETY: null or an open context.
        let context = unsafe { context_of(context) }?;
        // SAFETY: null or the program's.
        let attr = unsafe { deref(attr) }?;
        // Time stamps, VLANs, flow tags and tag matching are not for this device; losing completions quietly neither.
        if attr.wc_flags & !IBV_WC_STANDARD_FLAGS != 0 || attr.comp_mask & !3 != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if attr.comp_mask & 1 != 0 && attr.flags & !1 != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let made = Queue::create(context, attr.cqe, attr.cq_context, attr.channel, attr.comp_vector)?;
        // SAFETY: just made, and nobody else knows it.
        let ex = unsafe { &mut (*made).base };
        ex.start_poll = Some(start_poll);
        ex.next_poll = Some(next_poll);
        ex.end_poll = Some(end_poll);
        ex.read_opcode = Some(read_opcode);
        ex.read_vendor_err = Some(read_nothing);
        ex.read_byte_len = Some(read_byte_len);
        ex.read_imm_data = Some(read_imm_data);
        ex.read_qp_num = Some(read_qp_num);
        ex.read_src_qp = Some(read_nothing);
        ex.read_wc_flags = Some(read_wc_flags);
        ex.read_slid = Some(read_nothing);
        ex.read_sl = Some(read_no_byte);
        ex.read_dlid_path_bits = Some(read_no_byte);
        Ok(made.cast())
    })
}

/// The completion in hand.
///
/// # Safety
/// A queue with a batch under way, used by one thread at a time, as the interface demands.
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a Wc {
    // SAFETY: the caller's promise.
    unsafe { &(*(*cq.cast::<Queue>()).cursor.get()).wc }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: null or the program's.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return libc::EINVAL;
    }
    // SAFETY: as for the next one.
    unsafe { next_poll(cq) }
}

/// 0, or ENOENT if there is none.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let queue = cq.cast::<Queue>();
    let answer = guarded_fast(|| {
        // SAFETY: a queue of ours, polled by one thread at a time.
        unsafe {
            let wc = &mut (*(*queue).cursor.get()).wc;
            if (*queue).cq.poll(std::slice::from_mut(wc)) == 0 {
                return Err(libc::ENOENT);
            }
            (*cq).wr_id = wc.wr_id;
            (*cq).status = status_of(wc.status);
        }
        Ok(())
    });
    answer.err().unwrap_or(0)
}

unsafe extern "C" fn end_poll(_cq: *mut ibv_cq_ex) {}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: called between the start and the end of a batch.
    opcode_of(unsafe { current(cq) }) as u32
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: called between the start and the end of a batch.
    unsafe { current(cq) }.byte_len
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: called between the start and the end of a batch.
    extra_of(unsafe { current(cq) })
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: called between the start and the end of a batch.
    unsafe { current(cq) }.qpn
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: called between the start and the end of a batch.
    flags_of(unsafe { current(cq) })
}

/// What only InfiniBand has.
unsafe extern "C" fn read_nothing(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_no_byte(_cq: *mut ibv_cq_ex) -> u8 {
    0
}
