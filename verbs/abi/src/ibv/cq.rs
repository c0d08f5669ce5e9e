//! Completion queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicU32;

use urnic::{Cq, CqInit, Wc, WcFlags, WcOpcode, WcStatus};

use super::channel::{self, Channel};
use super::context::{Context, context_of};
use super::cq_ex::Cursor;
use super::pd::unused;
use crate::call::{Errno, deref, errno_of, number_fast, pointer, status};
use crate::ffi::*;
use crate::ledger::Ledger;
use crate::live::{self, Kind};

/// The structure that the program's `*mut ibv_cq` and `*mut ibv_cq_ex` point to.
#[repr(C)]
pub struct Queue {
    pub base: ibv_cq_ex,
    pub cq: Cq,
    /// Events given to the program and not yet acknowledged.
    pub completions: Ledger,
    pub asynchronous: Ledger,
    /// The number of send and receive queues that complete here: a queue pair may count twice.
    pub users: AtomicU32,
    /// The completion that the extended interface is reading.
    pub cursor: UnsafeCell<Cursor>,
}

/// # Safety
/// `cq` is null, or a queue that is not destroyed.
pub unsafe fn queue<'a>(cq: *mut ibv_cq) -> Result<&'a Queue, Errno> {
    // SAFETY: as the caller promises; the program's structure is the first member of ours.
    unsafe { deref(cq.cast::<Queue>()) }
}

impl Queue {
    pub fn as_ptr(&self) -> *mut ibv_cq {
        (&raw const self.base.base).cast_mut()
    }

    pub fn cq_context(&self) -> *mut c_void {
        self.base.base.cq_context
    }

    pub fn create(
        context: &Context,
        cqe: u32,
        cq_context: *mut c_void,
        comp_channel: *mut ibv_comp_channel,
        vector: u32,
        timestamps: bool,
    ) -> Result<*mut Self, Errno> {
        context.rnic.now()?; // a forked child has no device
        // SAFETY: null or a channel.
        let channel = unsafe { comp_channel.cast::<Channel>().as_ref() }.map(|c| &c.channel);
        let init = CqInit { depth: cqe, channel, timestamps, vector };
        let cq = context.rnic.device.create_cq_with(&init).map_err(|e| errno_of(&e))?;
        // SAFETY: null pointers and zeros are valid for all members.
        let mut base: ibv_cq_ex = unsafe { std::mem::zeroed() };
        base.base.context = context.as_ptr();
        base.base.channel = comp_channel;
        base.base.cq_context = cq_context;
        base.base.handle = cq.cqn();
        base.base.cqe = c_int::try_from(cq.depth()).unwrap_or(c_int::MAX);
        context.hold();
        let cqn = cq.cqn();
        let made = Box::new(Self {
            base,
            cq,
            completions: Ledger::default(),
            asynchronous: Ledger::default(),
            users: AtomicU32::new(0),
            cursor: UnsafeCell::default(),
        });
        let made = live::enter(Kind::Cq, Box::into_raw(made));
        channel::enter(cqn, made, comp_channel);
        Ok(made)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    pointer(|| {
        // SAFETY: null or an open context.
        let context = unsafe { context_of(context) }?;
        let cqe = u32::try_from(cqe).map_err(|_| libc::EINVAL)?;
        let vector = u32::try_from(comp_vector).map_err(|_| libc::EINVAL)?;
        Ok(Queue::create(context, cqe, cq_context, channel, vector, false)?.cast())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    status(|| {
        live::leave(Kind::Cq, cq.cast::<Queue>(), |this| unused(&this.users))?;
        // SAFETY: a completion queue, which is ours from here on.
        let this = unsafe { queue(cq) }?;
        channel::leave(this.cq.cqn(), this.base.base.channel);
        // SAFETY: the context's memory stays while objects hold it.
        let context = unsafe { context_of(this.base.base.context) }?;
        super::async_event::withdraw(context, cq.cast());
        this.completions.wait();
        this.asynchronous.wait();
        // SAFETY: made by `Box::into_raw`; the program gives it up, and events no longer find it.
        drop(unsafe { Box::from_raw(cq.cast::<Queue>()) });
        // SAFETY: the queue held the context.
        unsafe { Context::release(context) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    status(|| {
        live::check(Kind::Cq, cq)?;
        // SAFETY: a completion queue.
        let this = unsafe { queue(cq) }?;
        let depth = u32::try_from(cqe).map_err(|_| libc::EINVAL)?;
        this.cq.resize(depth).map_err(|e| errno_of(&e))?;
        let cqe = c_int::try_from(this.cq.depth()).unwrap_or(c_int::MAX);
        // SAFETY: the program may read the size meanwhile, as with any device.
        unsafe { (&raw mut (*cq).cqe).write_volatile(cqe) };
        Ok(())
    })
}

/// Accepts moderation without effect. Moderation lets a device delay events; this device sends each event at once,
/// which every setting allows.
pub unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    status(|| {
        // SAFETY: null or the program's structure.
        let (_, attr) = unsafe { (queue(cq)?, deref(attr)?) };
        if attr.attr_mask & !1 != 0 { Err(libc::EINVAL) } else { Ok(()) }
    })
}

/// Arms the queue. Completions that already wait cause no event (§8.2.5 of the Verbs draft, which
/// docs/conformance.md names). perftest relies on that: it arms before it polls, and counts each event as a
/// completion.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    status(|| {
        // SAFETY: null or a completion queue.
        unsafe { queue(cq) }?.cq.arm(solicited_only != 0);
        Ok(())
    })
}

/// Number of completions that are moved at a time.
const BATCH: usize = 16;

/// Polls for completions. Drives the engine even if `num` is 0, because programs that wait for a peer's RDMA Writes
/// poll in that way.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num: c_int, wc: *mut ibv_wc) -> c_int {
    // Nothing completes in a forked child, and the thread that held the queue's lock may not exist there.
    if urnic::in_forked_child() {
        return 0;
    }
    number_fast(|| {
        // SAFETY: null or a completion queue.
        let this = unsafe { queue(cq) }?;
        let wanted = usize::try_from(num).map_err(|_| libc::EINVAL)?;
        if wc.is_null() && wanted > 0 {
            return Err(libc::EINVAL);
        }
        // A program that asks for one completion polls often, and usually gets none. Clearing a buffer for many
        // completions would slow down such polls. SAFETY: the program has room for `num`.
        let done = unsafe {
            match wanted {
                1 => poll_into::<1>(&this.cq, wc, wanted),
                _ => poll_into::<BATCH>(&this.cq, wc, wanted),
            }
        };
        Ok(done as c_int)
    })
}

/// Moves up to `wanted` completions, up to `N` at a time; returns the number moved.
///
/// # Safety
/// There is room for `wanted` at `wc`.
#[inline]
unsafe fn poll_into<const N: usize>(cq: &Cq, wc: *mut ibv_wc, wanted: usize) -> usize {
    let mut done = 0;
    let mut batch = [Wc::default(); N];
    loop {
        let room = (wanted - done).min(N);
        let taken = cq.poll(&mut batch[..room]);
        for from in &batch[..taken] {
            // SAFETY: as the caller promises, and `done` is less than `wanted`. Programs may keep completions in
            // packed structures.
            unsafe { wc.add(done).write_unaligned(completion(from)) };
            done += 1;
        }
        if taken < room || done == wanted {
            return done;
        }
    }
}

fn completion(wc: &Wc) -> ibv_wc {
    ibv_wc {
        wr_id: wc.wr_id,
        status: status_of(wc.status),
        opcode: opcode_of(wc),
        vendor_err: 0,
        byte_len: wc.byte_len,
        imm_data: extra_of(wc),
        qp_num: wc.qpn,
        src_qp: 0,
        wc_flags: flags_of(wc),
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

pub fn status_of(status: WcStatus) -> c_int {
    match status {
        WcStatus::Success => IBV_WC_SUCCESS,
        WcStatus::LocalLength => IBV_WC_LOC_LEN_ERR,
        WcStatus::LocalProtection => IBV_WC_LOC_PROT_ERR,
        WcStatus::LocalQpOp => IBV_WC_LOC_QP_OP_ERR,
        WcStatus::Flushed => IBV_WC_WR_FLUSH_ERR,
        WcStatus::RemoteAccess => IBV_WC_REM_ACCESS_ERR,
        WcStatus::RemoteOperation => IBV_WC_REM_OP_ERR,
        WcStatus::RemoteInvalidRequest | WcStatus::Invalidation => IBV_WC_REM_INV_REQ_ERR,
        WcStatus::MemoryManagement => IBV_WC_MW_BIND_ERR,
        WcStatus::Fatal => IBV_WC_FATAL_ERR,
    }
}

pub fn opcode_of(wc: &Wc) -> c_int {
    match wc.opcode {
        WcOpcode::Send => IBV_WC_SEND,
        WcOpcode::Write => IBV_WC_RDMA_WRITE,
        WcOpcode::Read => IBV_WC_RDMA_READ,
        WcOpcode::Recv => IBV_WC_RECV,
        WcOpcode::LocalInv => IBV_WC_LOCAL_INV,
        WcOpcode::BindMw => IBV_WC_BIND_MW,
        WcOpcode::RegMr => IBV_WC_DRIVER1,
        WcOpcode::RecvRdmaWithImm => IBV_WC_RECV_RDMA_WITH_IMM,
        WcOpcode::FetchAdd => IBV_WC_FETCH_ADD,
        WcOpcode::CmpSwap => IBV_WC_COMP_SWAP,
    }
}

/// Returns the immediate data in network order, or the invalidated key.
pub fn extra_of(wc: &Wc) -> u32 {
    if wc.flags.contains(WcFlags::WITH_IMM) { wc.imm_data().to_be() } else { wc.invalidated_rkey }
}

pub fn flags_of(wc: &Wc) -> u32 {
    let bit = |flag, bit| if wc.flags.contains(flag) { bit } else { 0 };
    bit(WcFlags::WITH_INV, IBV_WC_WITH_INV) | bit(WcFlags::WITH_IMM, IBV_WC_WITH_IMM)
}
