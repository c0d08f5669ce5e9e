//! The extended interface of completion queues: a program starts a batch, reads its completions one by one, and ends
//! it.

use std::ffi::c_int;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use urnic::Wc;

use super::context::context_of;
use super::cq::{Queue, extra_of, flags_of, opcode_of, status_of};
use crate::call::{Errno, deref, guarded_fast, none_in_child, pointer};
use crate::ffi::*;

/// The current completion of a batch.
#[derive(Default)]
pub struct Cursor {
    wc: Wc,
    /// Time of completion, in ns of the device's clock, if the queue records it.
    time: u64,
}

const STAMPS: u64 = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer(|| {
        // SAFETY: null or an open context.
        let context = unsafe { context_of(context) }?;
        // SAFETY: null or the program's structure.
        let attr = unsafe { deref(attr) }?;
        // Completions have no VLAN tag, flow tag or tag-matching data, and no queue ignores its overrun.
        if attr.wc_flags & !(IBV_WC_STANDARD_FLAGS | STAMPS) != 0 || attr.comp_mask & !3 != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if attr.comp_mask & 1 != 0 && attr.flags & !1 != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let stamped = attr.wc_flags & STAMPS != 0;
        let made =
            Queue::create(context, attr.cqe, attr.cq_context, attr.channel, attr.comp_vector, stamped)?;
        // SAFETY: just made, and no other code knows it.
        let ex = unsafe { &mut (*made).base };
        ex.start_poll = Some(if stamped { start_poll_stamped } else { start_poll });
        ex.next_poll = Some(if stamped { next_poll_stamped } else { next_poll });
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
        if stamped {
            ex.read_completion_ts = Some(read_completion_ts);
            ex.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
        }
        Ok(made.cast())
    })
}

/// Returns the current completion.
///
/// # Safety
/// `cq` is a queue with a started batch, used by one thread at a time, as the interface requires.
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a Wc {
    // SAFETY: as the caller promises.
    unsafe { &(*(*cq.cast::<Queue>()).cursor.get()).wc }
}

/// # Safety
/// `attr` is null, or the program's.
unsafe fn asks_for_nothing(attr: *mut ibv_poll_cq_attr) -> bool {
    // SAFETY: as the caller promises.
    unsafe { attr.as_ref() }.is_none_or(|attr| attr.comp_mask == 0)
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: as for `next_poll`.
    unsafe { if asks_for_nothing(attr) { next_poll(cq) } else { libc::EINVAL } }
}

/// Runs `body`, and returns 0 or its errno. Fails in a forked child: the completions are the parent's, and the thread
/// that held the queue's lock may not exist there.
#[inline]
fn step(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    if urnic::in_forked_child() {
        return none_in_child();
    }
    guarded_fast(body).err().unwrap_or(0)
}

/// Moves on to the next completion. Returns 0, or ENOENT if there is none.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let queue = cq.cast::<Queue>();
    step(|| {
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
    })
}

unsafe extern "C" fn start_poll_stamped(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: as for `next_poll_stamped`.
    unsafe { if asks_for_nothing(attr) { next_poll_stamped(cq) } else { libc::EINVAL } }
}

/// Moves on as [`next_poll`] does, and records the time of completion.
unsafe extern "C" fn next_poll_stamped(cq: *mut ibv_cq_ex) -> c_int {
    let queue = cq.cast::<Queue>();
    step(|| {
        // SAFETY: a queue of ours, polled by one thread at a time.
        unsafe {
            let cursor = &mut *(*queue).cursor.get();
            let mut batch = (*queue).cq.start_poll().ok_or(libc::ENOENT)?;
            let completion = batch.next().ok_or(libc::ENOENT)?;
            *cursor = Cursor { wc: *completion, time: completion.timestamp().unwrap_or(0) };
            (*cq).wr_id = cursor.wc.wr_id;
            (*cq).status = status_of(cursor.wc.status);
        }
        Ok(())
    })
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

/// Returns nanoseconds of the device's clock (`hca_core_clock`).
unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: called between the start and the end of a batch, by one thread.
    unsafe { (*(*cq.cast::<Queue>()).cursor.get()).time }
}

/// Returns nanoseconds since 1970, by the present setting of the wall clock.
unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: called between the start and the end of a batch, by one thread, on a queue whose context is open.
    let ago = unsafe {
        let now = context_of((*cq).base.context).map_or(0, |context| context.rnic.device.raw_clock());
        now.saturating_sub(read_completion_ts(cq))
    };
    let then = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(then.saturating_sub(Duration::from_nanos(ago)).as_nanos()).unwrap_or(u64::MAX)
}

/// Returns 0 for fields that only InfiniBand has, and for the vendor's error, of which there is none.
unsafe extern "C" fn read_nothing(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_no_byte(_cq: *mut ibv_cq_ex) -> u8 {
    0
}
