//! Queue pairs.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use urnic::{Qp, QpInit, QpState};

use super::context::{Context, context_of};
use super::cq::queue;
use super::pd::domain;
use super::qp_ex::Collector;
use super::srq::Shared;
use crate::call::{Errno, deref, errno_of, pointer, status};
use crate::ffi::*;
use crate::ledger::Ledger;
use crate::live::{self, Kind};
use crate::rnic::PORT;

/// Minimum number of inline bytes that a request of any queue pair can carry.
const LEAST_INLINE: u32 = 64;
/// Inline bytes for each request of a short send queue, if the program did not ask for more.
const SHORT_INLINE: u32 = 512;
/// Inline bytes that the requests of a longer send queue share, as long as each gets [`LEAST_INLINE`]. The memory is
/// allocated with the first inline request.
const ALL_INLINE: u32 = 64 << 10;

/// Returns the inline bytes that each request can carry even if the program did not ask for them, because some programs
/// post a few bytes inline without asking for room. libfabric makes a queue pair of one request, asks for two bytes,
/// and takes the answer as the largest message that it can inject.
fn unasked_inline(max_send_wr: u32) -> u32 {
    (ALL_INLINE / max_send_wr.max(1)).clamp(LEAST_INLINE, SHORT_INLINE)
}

/// Functions of the connection manager, called when a queue pair ends.
pub struct Ends {
    /// Ends the queue pair's connection gracefully, if it has one.
    pub close: fn(u32),
    /// Destroys the queue pair by calling the function passed.
    pub destroy: fn(u32, &mut dyn FnMut()),
}

static ENDS: OnceLock<Ends> = OnceLock::new();

/// Registers the functions to call for all queue pairs that end from now on. Only the first call has an effect.
pub fn set_end_hooks(ends: Ends) {
    let _ = ENDS.set(ends);
}

/// The structure that the program's `*mut ibv_qp` and `*mut ibv_qp_ex` point to.
#[repr(C)]
pub struct Pair {
    pub base: ibv_qp_ex,
    pub qp: Qp,
    pub asynchronous: Ledger,
    /// The requests that the extended interface is collecting.
    pub collector: Collector,
    signal_all: bool,
}

/// # Safety
/// `qp` is null, or a queue pair that is not destroyed.
pub unsafe fn pair<'a>(qp: *mut ibv_qp) -> Result<&'a Pair, Errno> {
    // SAFETY: as the caller promises; the program's structure is the first member of ours.
    unsafe { deref(qp.cast::<Pair>()) }
}

/// Returns the queue pairs by number.
fn known() -> MutexGuard<'static, HashMap<u32, usize>> {
    static KNOWN: LazyLock<Mutex<HashMap<u32, usize>>> = LazyLock::new(Mutex::default);
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `with` on the queue pair with number `qpn`, if it exists; the queue pair is not destroyed meanwhile.
pub fn with_pair<R>(qpn: u32, with: impl FnOnce(&Pair) -> R) -> Option<R> {
    let known = known();
    let pair = *known.get(&qpn)? as *const Pair;
    // SAFETY: listed queue pairs exist, and are removed under the lock.
    Some(with(unsafe { &*pair }))
}

/// Returns the queue pair with number `qpn`. It is valid until the program destroys it.
pub fn by_number(qpn: u32) -> Option<*mut ibv_qp> {
    known().get(&qpn).map(|pair| *pair as *mut ibv_qp)
}

impl Pair {
    pub fn as_ptr(&self) -> *mut ibv_qp {
        (&raw const self.base.qp_base).cast_mut()
    }

    /// Returns the state by its C name. A new queue pair of an RNIC is in INIT.
    fn state(&self) -> c_int {
        match self.qp.state() {
            QpState::Idle => IBV_QPS_INIT,
            QpState::Rts => IBV_QPS_RTS,
            QpState::Closing => IBV_QPS_SQD,
            QpState::Terminate => IBV_QPS_SQE,
            QpState::Error => IBV_QPS_ERR,
        }
    }

    fn cap(&self) -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: self.qp.max_send_wr(),
            max_recv_wr: self.qp.max_recv_wr(),
            max_send_sge: self.qp.max_send_sge().into(),
            max_recv_sge: self.qp.max_recv_sge().into(),
            max_inline_data: self.qp.max_inline(),
        }
    }
}

/// Creates a queue pair, and writes the capabilities that it got to `init.cap`.
pub fn create(pd: *mut ibv_pd, init: &mut ibv_qp_init_attr) -> Result<*mut Pair, Errno> {
    live::check(Kind::Cq, init.send_cq)?;
    live::check(Kind::Cq, init.recv_cq)?;
    if !init.srq.is_null() {
        live::check(Kind::Srq, init.srq)?;
    }
    // SAFETY: null, or objects that are not destroyed.
    let (domain, send_cq, recv_cq) = unsafe { (domain(pd)?, queue(init.send_cq)?, queue(init.recv_cq)?) };
    if init.qp_type != IBV_QPT_RC {
        return Err(libc::EOPNOTSUPP);
    }
    let sges = |n: u32| u8::try_from(n).map_err(|_| libc::EINVAL);
    let asked = QpInit {
        send_cq: &send_cq.cq,
        recv_cq: &recv_cq.cq,
        max_send_wr: init.cap.max_send_wr,
        max_recv_wr: init.cap.max_recv_wr,
        max_send_sge: sges(init.cap.max_send_sge)?,
        max_recv_sge: sges(init.cap.max_recv_sge)?,
        max_inline: init.cap.max_inline_data.max(unasked_inline(init.cap.max_send_wr)),
        signal_all: init.sq_sig_all != 0,
    };
    // SAFETY: null or a shared queue.
    let shared = unsafe { init.srq.cast::<Shared>().as_ref() };
    let qp = match shared {
        Some(shared) => domain.pd.create_qp_with_srq(&asked, &shared.srq),
        None => domain.pd.create_qp(&asked),
    };
    let qp = qp.map_err(|e| errno_of(&e))?;
    // SAFETY: null pointers and zeros are valid for all members.
    let mut base: ibv_qp_ex = unsafe { std::mem::zeroed() };
    let context = domain.context();
    base.qp_base = ibv_qp {
        context: context.as_ptr(),
        qp_context: init.qp_context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: qp.qpn(),
        qp_num: qp.qpn(),
        state: IBV_QPS_RESET,
        qp_type: init.qp_type,
        ..base.qp_base
    };
    context.hold();
    domain.users.fetch_add(1, Ordering::SeqCst);
    send_cq.users.fetch_add(1, Ordering::SeqCst);
    recv_cq.users.fetch_add(1, Ordering::SeqCst);
    if let Some(shared) = shared {
        shared.users.fetch_add(1, Ordering::SeqCst);
    }
    let qpn = qp.qpn();
    let made = Pair {
        base,
        qp,
        asynchronous: Ledger::default(),
        collector: Collector::default(),
        signal_all: asked.signal_all,
    };
    init.cap = made.cap();
    let made = live::enter(Kind::Qp, Box::into_raw(Box::new(made)));
    known().insert(qpn, made as usize);
    Ok(made)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: null or the program's structure.
        let init = unsafe { init.as_mut() }.ok_or(libc::EINVAL)?;
        Ok(create(pd, init)?.cast())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    status(|| {
        live::take(Kind::Qp, qp.cast::<Pair>())?;
        // SAFETY: a queue pair, which is ours from here on.
        let this = unsafe { pair(qp) }?;
        let qpn = this.qp.qpn();
        known().remove(&qpn);
        let base = &this.base.qp_base;
        // SAFETY: the context's memory stays while objects hold it.
        let context = unsafe { context_of(base.context) }?;
        super::async_event::withdraw(context, qp.cast());
        this.asynchronous.wait();
        let (pd, send_cq, recv_cq, srq) = (base.pd, base.send_cq, base.recv_cq, base.srq);
        // SAFETY: made by `Box::into_raw`; the program gives it up, and events no longer find it.
        let mut destroy = || drop(unsafe { Box::from_raw(qp.cast::<Pair>()) });
        match ENDS.get() {
            Some(ends) => (ends.destroy)(qpn, &mut destroy),
            None => destroy(),
        }
        // SAFETY: these objects exist while they are counted as used.
        unsafe {
            queue(send_cq)?.users.fetch_sub(1, Ordering::SeqCst);
            queue(recv_cq)?.users.fetch_sub(1, Ordering::SeqCst);
            domain(pd)?.users.fetch_sub(1, Ordering::SeqCst);
            if let Some(shared) = srq.cast::<Shared>().as_ref() {
                shared.users.fetch_sub(1, Ordering::SeqCst);
            }
        }
        // SAFETY: the queue pair held the context.
        unsafe { Context::release(context) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    status(|| {
        live::check(Kind::Qp, qp)?;
        // SAFETY: a queue pair.
        let this = unsafe { pair(qp) }?;
        if attr.is_null() || init.is_null() {
            return Err(libc::EINVAL);
        }
        let base = &this.base.qp_base;
        // SAFETY: the program's places for the answers, for which zeros are valid.
        let (attr, init) = unsafe {
            std::ptr::write_bytes(attr, 0, 1);
            (&mut *attr, &mut *init)
        };
        attr.qp_state = this.state();
        attr.cur_qp_state = attr.qp_state;
        attr.port_num = PORT;
        attr.cap = this.cap();
        attr.path_mtu = 3; // IBV_MTU_1024, nominal: TCP decides the size of segments
        attr.qp_access_flags = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_ATOMIC
            | IBV_ACCESS_MW_BIND;
        *init = ibv_qp_init_attr {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap: this.cap(),
            qp_type: base.qp_type,
            sq_sig_all: this.signal_all.into(),
        };
        if mask & IBV_QP_STATE != 0 {
            // SAFETY: the program may read the state meanwhile, as with any device.
            unsafe { (&raw mut (*qp).state).write_volatile(attr.qp_state) };
        }
        Ok(())
    })
}

/// Changes the state. A program may close the queue pair or move it to the error state. Only the connection manager
/// moves a queue pair to RTS: a program may ask for the states on the way there, and for RTS, but that changes no more
/// than `ibv_qp::state`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    status(|| {
        live::check(Kind::Qp, qp)?;
        // SAFETY: a queue pair, and null or the program's attributes.
        let (this, attr) = unsafe { (pair(qp)?, deref(attr)?) };
        // Only InfiniBand addresses a peer by number and path: a program that asks for that would wait for its peer
        // for ever.
        if mask & (IBV_QP_AV | IBV_QP_DEST_QPN) != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if mask & IBV_QP_STATE == 0 {
            return Ok(());
        }
        let now = this.qp.state();
        match attr.qp_state {
            IBV_QPS_ERR => this.qp.to_error(),
            IBV_QPS_SQD => {
                if let Some(ends) = ENDS.get() {
                    (ends.close)(this.qp.qpn());
                }
            }
            IBV_QPS_RESET | IBV_QPS_INIT if now == QpState::Idle => {}
            IBV_QPS_RTR | IBV_QPS_RTS if matches!(now, QpState::Idle | QpState::Rts) => {}
            _ => return Err(libc::EINVAL),
        }
        // SAFETY: the program may read the state meanwhile, as with any device.
        unsafe { (&raw mut (*qp).state).write_volatile(attr.qp_state) };
        Ok(())
    })
}

/// Returns whether the engine places payload in ascending order, the last byte last. It does so for RDMA Writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: c_int, flags: u32) -> c_int {
    (!qp.is_null() && flags == 0 && op == IBV_WR_RDMA_WRITE).into()
}
