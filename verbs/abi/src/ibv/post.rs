//! Posting work requests: the fast path.

use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;

use urnic::{Qp, RecvBatch, RecvWr, SendBatch, SendFlags, SendOp, SendWr, Sge};

use super::mr::{access, region};
use super::qp::pair;
use crate::call::{Errno, post_errno, status_fast};
use crate::ffi::*;

/// The maximum number of elements of a list.
const MAX_SGE: usize = 32;
/// Size in bytes of the buffer in which inline payload from several pieces is gathered.
pub const GATHER: usize = 4096;

pub fn flags(send_flags: c_uint) -> SendFlags {
    const PAIRS: [(c_uint, SendFlags); 4] = [
        (IBV_SEND_SIGNALED, SendFlags::SIGNALED),
        (IBV_SEND_SOLICITED, SendFlags::SOLICITED),
        (IBV_SEND_FENCE, SendFlags::FENCE),
        (IBV_SEND_INLINE, SendFlags::INLINE),
    ];
    let mut flags = SendFlags::empty();
    for (bit, flag) in PAIRS {
        if send_flags & bit != 0 {
            flags |= flag;
        }
    }
    flags
}

/// Room for a copy of the longest list that a queue takes.
pub type SgeRoom = [MaybeUninit<Sge>; MAX_SGE];

/// Returns a list that the program passes. It need not be aligned, because libiscsi keeps lists in packed structures;
/// an unaligned list is copied to `room`.
///
/// # Safety
/// `num` elements are at `list`, if `num` is more than 0.
pub unsafe fn sges(list: *const ibv_sge, num: c_int, room: &mut SgeRoom) -> Result<&[Sge], Errno> {
    match usize::try_from(num) {
        Ok(0) => Ok(&[]),
        Ok(_) if list.is_null() => Err(libc::EINVAL),
        // No queue takes a longer list. Refused before its elements are read, because `num` may be a careless number.
        Ok(num) if num > MAX_SGE => Err(libc::EINVAL),
        // SAFETY: as the caller promises, and the list is aligned.
        Ok(num) if list.is_aligned() => Ok(unsafe { std::slice::from_raw_parts(list, num) }),
        // SAFETY: as the caller promises.
        Ok(num) => unsafe { aligned(list, num, room) },
        Err(_) => Err(libc::EINVAL),
    }
}

/// # Safety
/// `num` elements are at `list`.
#[cold]
unsafe fn aligned(list: *const ibv_sge, num: usize, room: &mut SgeRoom) -> Result<&[Sge], Errno> {
    let room = room.get_mut(..num).ok_or(libc::EINVAL)?;
    for (i, to) in room.iter_mut().enumerate() {
        // SAFETY: as the caller promises.
        to.write(unsafe { list.add(i).read_unaligned() });
    }
    // SAFETY: all elements were just written.
    Ok(unsafe { std::slice::from_raw_parts(room.as_ptr().cast(), num) })
}

/// Returns the structure at `at`, or a copy of it in `room` if it is not aligned; `None` if `at` is null.
///
/// # Safety
/// `at` is null, or points to a `T`.
#[inline]
unsafe fn at<T: Copy>(at: *const T, room: &mut MaybeUninit<T>) -> Option<&T> {
    if at.is_aligned() {
        // SAFETY: as the caller promises.
        return unsafe { at.as_ref() };
    }
    // SAFETY: null counts as aligned, so the pointer is not null.
    Some(room.write(unsafe { at.read_unaligned() }))
}

/// Returns the operation that binds a window as `info` describes.
///
/// # Safety
/// The region, if any, is registered.
pub unsafe fn bind(rkey: u32, info: &ibv_mw_bind_info) -> Result<SendOp, Errno> {
    let lkey = if info.mr.is_null() {
        0
    } else {
        // SAFETY: as the caller promises.
        unsafe { region(info.mr) }?.lkey()
    };
    Ok(SendOp::BindMw {
        rkey,
        lkey,
        addr: info.addr,
        len: info.length,
        access: access(info.mw_access_flags)?,
    })
}

/// # Safety
/// The members that the operation uses are set.
unsafe fn operation(wr: &ibv_send_wr) -> Result<SendOp, Errno> {
    // SAFETY: as the caller promises; all members of the unions are plain numbers and pointers.
    unsafe {
        let wr_rdma { remote_addr: addr, rkey } = wr.wr.rdma;
        Ok(match wr.opcode {
            IBV_WR_SEND => SendOp::Send,
            IBV_WR_RDMA_WRITE => SendOp::Write { addr, rkey },
            IBV_WR_RDMA_READ => SendOp::Read { addr, rkey },
            IBV_WR_SEND_WITH_INV => SendOp::SendInv(wr.imm_data),
            IBV_WR_LOCAL_INV => SendOp::LocalInv(wr.imm_data),
            IBV_WR_BIND_MW => bind(wr.bind_mw.rkey, &wr.bind_mw.bind_info)?,
            IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm { addr, rkey, imm: u32::from_be(wr.imm_data) },
            IBV_WR_SEND_WITH_IMM => SendOp::SendImm(u32::from_be(wr.imm_data)),
            IBV_WR_ATOMIC_CMP_AND_SWP => {
                let wr_atomic { remote_addr: addr, compare_add: compare, swap, rkey } = wr.wr.atomic;
                SendOp::CmpSwap { addr, rkey, compare, swap }
            }
            IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let wr_atomic { remote_addr: addr, compare_add: add, rkey, .. } = wr.wr.atomic;
                SendOp::FetchAdd { addr, rkey, add }
            }
            _ => return Err(libc::EINVAL),
        })
    }
}

/// Adds a request to a batch. Inline payload needs no registration.
#[inline]
pub fn push(batch: &mut SendBatch<'_>, wr: &SendWr<'_>) -> Result<(), Errno> {
    if wr.flags.contains(SendFlags::INLINE) {
        return push_inline(batch, wr);
    }
    batch.push(wr).map_err(post_errno)
}

/// Adds a request with inline payload. A function of its own, because other requests must not pay for `GATHER` bytes
/// of stack.
#[inline(never)]
fn push_inline(batch: &mut SendBatch<'_>, wr: &SendWr<'_>) -> Result<(), Errno> {
    let mut gathered = [0u8; GATHER];
    batch.push_inline(wr, inline_payload(wr, &mut gathered)?).map_err(post_errno)
}

/// Posts a request by itself.
#[inline]
fn post_one(qp: &Qp, wr: &SendWr<'_>) -> Result<(), Errno> {
    if wr.flags.contains(SendFlags::INLINE) {
        return post_one_inline(qp, wr);
    }
    qp.post_send(wr).map_err(post_errno)
}

/// As [`push_inline`].
#[inline(never)]
fn post_one_inline(qp: &Qp, wr: &SendWr<'_>) -> Result<(), Errno> {
    let mut gathered = [0u8; GATHER];
    qp.post_send_inline(wr, inline_payload(wr, &mut gathered)?).map_err(post_errno)
}

#[inline]
fn inline_payload<'a>(wr: &'a SendWr<'_>, gathered: &'a mut [u8; GATHER]) -> Result<&'a [u8], Errno> {
    match wr.sges {
        [] => Ok(&[]),
        // SAFETY: the program lends the bytes for the duration of the call.
        [one] if one.len > 0 && one.addr != 0 => unsafe {
            Ok(std::slice::from_raw_parts(one.addr as *const u8, one.len as usize))
        },
        many => gather(many, gathered),
    }
}

fn gather<'a>(sges: &[Sge], into: &'a mut [u8; GATHER]) -> Result<&'a [u8], Errno> {
    let mut len = 0;
    for sge in sges.iter().filter(|sge| sge.len > 0) {
        let to = into.get_mut(len..len + sge.len as usize).filter(|_| sge.addr != 0).ok_or(libc::EINVAL)?;
        // SAFETY: the program lends the bytes for the duration of the call.
        to.copy_from_slice(unsafe { std::slice::from_raw_parts(sge.addr as *const u8, sge.len as usize) });
        len += sge.len as usize;
    }
    Ok(&into[..len])
}

/// # Safety
/// The members that the operation uses are set, and `num_sge` elements are at `sg_list`.
#[inline]
unsafe fn request<'a>(wr: &ibv_send_wr, room: &'a mut SgeRoom) -> Result<SendWr<'a>, Errno> {
    // SAFETY: as the caller promises.
    let (op, sges) = unsafe { (operation(wr)?, sges(wr.sg_list, wr.num_sge, room)?) };
    Ok(SendWr { wr_id: wr.wr_id, op, sges, flags: flags(wr.send_flags) })
}

pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut next = wr;
    let answer = status_fast(|| {
        // SAFETY: null or a queue pair.
        let qp = &unsafe { pair(qp) }?.qp;
        let (mut room, mut list) = (MaybeUninit::uninit(), [MaybeUninit::uninit(); MAX_SGE]);
        // SAFETY: null or the program's list of requests.
        if let Some(wr) = unsafe { at(next, &mut room) }
            && wr.next.is_null()
        {
            // SAFETY: the request and its list are as the opcode requires.
            return post_one(qp, &unsafe { request(wr, &mut list) }?);
        }
        let mut batch = qp.send_batch();
        let mut outcome = Ok(());
        // SAFETY: as above.
        while let Some(wr) = unsafe { at(next, &mut room) } {
            // SAFETY: as above.
            outcome = unsafe { request(wr, &mut list) }.and_then(|wr| push(&mut batch, &wr));
            if outcome.is_err() {
                break;
            }
            next = wr.next;
        }
        batch.post();
        outcome
    });
    report_refused(answer, next, bad);
    answer
}

pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: null or a queue pair, and the program's pointers.
    unsafe {
        let begin = || pair(qp)?.qp.recv_batch().map_err(post_errno);
        receives(wr, bad, begin)
    }
}

/// Posts a list of receives together, up to the first one that is refused.
///
/// # Safety
/// `wr` is null or a list of requests; `bad` is null or a place for the refused one.
#[inline]
pub unsafe fn receives<'a>(
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    begin: impl FnOnce() -> Result<RecvBatch<'a>, Errno>,
) -> c_int {
    let mut next = wr;
    let answer = status_fast(|| {
        let mut batch = begin()?;
        let (mut room, mut list) = (MaybeUninit::uninit(), [MaybeUninit::uninit(); MAX_SGE]);
        let mut outcome = Ok(());
        // SAFETY: null or the program's list of requests.
        while let Some(wr) = unsafe { at(next, &mut room) } {
            // SAFETY: the program's list.
            let sges = unsafe { sges(wr.sg_list, wr.num_sge, &mut list) };
            let pushed = |sges| batch.push(&RecvWr { wr_id: wr.wr_id, sges }).map_err(post_errno);
            outcome = sges.and_then(pushed);
            if outcome.is_err() {
                break;
            }
            next = wr.next;
        }
        batch.post();
        outcome
    });
    report_refused(answer, next, bad);
    answer
}

/// Reports to the program which request was refused.
fn report_refused<T>(answer: c_int, culprit: *mut T, bad: *mut *mut T) {
    if answer != 0 && !bad.is_null() {
        // SAFETY: not null, so it is the program's place for the pointer to the refused request. It may be unaligned.
        unsafe { bad.write_unaligned(culprit) };
    }
}

#[cfg(test)]
mod tests;
