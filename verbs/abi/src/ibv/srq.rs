//! Shared receive queues.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use urnic::{Srq, SrqInit};

use super::context::{Context, context_of};
use super::pd::{domain, unused};
use super::post::receives;
use crate::call::{Errno, deref, errno_of, pointer, status};
use crate::ffi::*;
use crate::ledger::Ledger;
use crate::live::{self, Kind};

/// The structure that the program's `*mut ibv_srq` points to.
#[repr(C)]
pub struct Shared {
    base: ibv_srq,
    pub srq: Srq,
    pub asynchronous: Ledger,
    /// The number of queue pairs that receive from this queue.
    pub users: AtomicU32,
}

/// # Safety
/// `srq` is null, or a queue that is not destroyed.
pub unsafe fn shared<'a>(srq: *mut ibv_srq) -> Result<&'a Shared, Errno> {
    // SAFETY: as the caller promises; the program's structure is the first member of ours.
    unsafe { deref(srq.cast::<Shared>()) }
}

/// Returns the shared receive queues by number.
fn known() -> MutexGuard<'static, HashMap<u32, usize>> {
    static KNOWN: LazyLock<Mutex<HashMap<u32, usize>>> = LazyLock::new(Mutex::default);
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Queues the event of a shared receive queue that has fewer receives than its limit.
pub fn limit_reached(srqn: u32) {
    let known = known();
    if let Some(srq) = known.get(&srqn) {
        let srq = *srq as *mut ibv_srq;
        // SAFETY: listed queues exist, and are removed under the lock.
        super::async_event::tell(unsafe { (*srq).context }, srq.cast(), IBV_EVENT_SRQ_LIMIT_REACHED);
    }
}

fn create(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: null, or a domain and the program's parameters.
    let (domain, init) = unsafe { (domain(pd)?, init.as_mut().ok_or(libc::EINVAL)?) };
    let asked = SrqInit {
        max_wr: init.attr.max_wr,
        max_sge: u8::try_from(init.attr.max_sge).map_err(|_| libc::EINVAL)?,
        // rdma-core specifies that only `ibv_modify_srq` sets the limit.
        limit: 0,
    };
    let srq = domain.pd.create_srq(&asked).map_err(|e| errno_of(&e))?;
    let got = srq.attributes();
    (init.attr.max_wr, init.attr.max_sge) = (got.max_wr, got.max_sge.into());
    let context = domain.context();
    context.hold();
    domain.users.fetch_add(1, Ordering::SeqCst);
    // SAFETY: null pointers and zeros are valid for all members.
    let mut base: ibv_srq = unsafe { std::mem::zeroed() };
    (base.context, base.srq_context, base.pd) = (context.as_ptr(), init.srq_context, pd);
    base.handle = srq.srqn();
    let srqn = srq.srqn();
    let made = Shared { base, srq, asynchronous: Ledger::default(), users: AtomicU32::new(0) };
    let made = live::enter(Kind::Srq, Box::into_raw(Box::new(made)));
    known().insert(srqn, made as usize);
    Ok(made.cast())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    pointer(|| create(pd, init))
}

/// Fails: the header sends requests for basic queues to [`ibv_create_srq`], and this device has no others.
pub unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    _init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    pointer(|| Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    status(|| {
        live::check(Kind::Srq, srq)?;
        // SAFETY: a queue, and null or the program's attributes.
        let (this, attr) = unsafe { (shared(srq)?, deref(attr)?) };
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(libc::EINVAL);
        }
        if mask & IBV_SRQ_MAX_WR != 0 && attr.max_wr > this.srq.attributes().max_wr {
            return Err(libc::EOPNOTSUPP);
        }
        if mask & IBV_SRQ_LIMIT != 0 {
            this.srq.set_limit(attr.srq_limit).map_err(|e| errno_of(&e))?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    status(|| {
        live::check(Kind::Srq, srq)?;
        // SAFETY: a queue.
        let got = unsafe { shared(srq) }?.srq.attributes();
        if attr.is_null() {
            return Err(libc::EINVAL);
        }
        let answer = ibv_srq_attr { max_wr: got.max_wr, max_sge: got.max_sge.into(), srq_limit: got.limit };
        // SAFETY: the program's place for the answer.
        unsafe { attr.write(answer) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    status(|| {
        live::leave(Kind::Srq, srq.cast::<Shared>(), |this| unused(&this.users))?;
        // SAFETY: a queue, which is ours from here on.
        let this = unsafe { shared(srq) }?;
        known().remove(&this.srq.srqn());
        // SAFETY: the domain, and so the context, exists while it is counted as used.
        let (domain, context) = unsafe { (domain(this.base.pd)?, context_of(this.base.context)?) };
        super::async_event::withdraw(context, srq.cast());
        this.asynchronous.wait();
        // SAFETY: made by `Box::into_raw`; the program gives it up, and events no longer find it.
        drop(unsafe { Box::from_raw(srq.cast::<Shared>()) });
        domain.users.fetch_sub(1, Ordering::SeqCst);
        // SAFETY: the queue held the context.
        unsafe { Context::release(context) };
        Ok(())
    })
}

pub unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, num: *mut u32) -> c_int {
    status(|| {
        // SAFETY: null or a queue.
        let this = unsafe { shared(srq) }?;
        if num.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the program's place for the answer.
        unsafe { num.write(this.srq.srqn()) };
        Ok(())
    })
}

pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: null or a queue, and the program's pointers.
    unsafe { receives(wr, bad, || Ok(shared(srq)?.srq.recv_batch())) }
}
