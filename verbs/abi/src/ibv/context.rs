//! Contexts: a program's handles to the device. Several contexts of one process share the device.

use std::ffi::c_int;
use std::mem::{ManuallyDrop, offset_of};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{cq, cq_ex, device, mr, mw, pd, post, qp_ex, query, srq};
use crate::call::{Errno, deref};
use crate::ffi::*;
use crate::inbox::Inbox;
use crate::live::{self, Kind};
use crate::rnic::{Rnic, rnic};

/// The structure that the program's `*mut ibv_context` points into.
#[repr(C)]
pub struct Context {
    verbs: verbs_context,
    pub rnic: &'static Rnic,
    /// Asynchronous events that the program has not read.
    pub events: Inbox<ibv_async_event>,
    /// The number of objects that refer to this context, plus one while the program has it open.
    users: AtomicUsize,
}

/// The open contexts of the process, which get the device's events.
static OPEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The value by which headers recognise the extended context.
const EXTENDED: usize = usize::MAX;

pub fn open() -> Result<*mut ibv_context, Errno> {
    let rnic = rnic()?;
    // Only the first call has an effect. No context existed to receive earlier events.
    rnic.device.sink_async_events(Box::new(super::async_event::dispatch));
    let events = Inbox::new()?;
    let context = Box::new(Context {
        verbs: table(device::the_device()?, events.fd(), rnic.attributes.engines),
        rnic,
        events,
        users: AtomicUsize::new(1),
    });
    let context = live::enter(Kind::Context, Box::into_raw(context));
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).push(context as usize);
    // SAFETY: just made.
    Ok(unsafe { &raw mut (*context).verbs.context })
}

/// Closes a context. Its memory stays while the program still has objects of it.
pub fn close(context: *mut ibv_context) -> Result<(), Errno> {
    let whole = whole(context);
    live::take(Kind::Context, whole)?;
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).retain(|open| *open != whole as usize);
    // SAFETY: the context was open until now.
    unsafe { Context::release(whole) };
    Ok(())
}

fn whole(context: *mut ibv_context) -> *mut Context {
    let offset = offset_of!(Context, verbs) + offset_of!(verbs_context, context);
    context.wrapping_byte_sub(offset).cast()
}

/// Returns the context behind a pointer of the program.
///
/// # Safety
/// `context` is null, or a context that is not closed.
pub unsafe fn context_of<'a>(context: *mut ibv_context) -> Result<&'a Context, Errno> {
    if context.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: as the caller promises; the program's context lies inside ours.
    unsafe { deref(whole(context)) }
}

impl Context {
    pub fn as_ptr(&self) -> *mut ibv_context {
        (&raw const self.verbs.context).cast_mut()
    }

    /// Counts a new object of this context.
    pub fn hold(&self) {
        self.users.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts an object as gone. The last release frees the context.
    ///
    /// # Safety
    /// The object held the context, and no longer uses its reference.
    pub unsafe fn release(this: *const Self) {
        // SAFETY: the context exists while it is held.
        if unsafe { (*this).users.fetch_sub(1, Ordering::SeqCst) } == 1 {
            // SAFETY: made by `Box::into_raw`, and no longer referred to.
            drop(unsafe { Box::from_raw(this.cast_mut()) });
        }
    }
}

/// Queues an event of the device for all contexts, and removes an unread older one of its kind: links go up and down,
/// and many programs never read these events.
pub fn tell_all(event: ibv_async_event) {
    for context in OPEN.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        // SAFETY: listed contexts are open, and closing one waits for this lock.
        let events = unsafe { &(*(*context as *const Context)).events };
        events.take_out(|older| older.event_type == event.event_type);
        events.push(event);
    }
}

/// Makes the table of functions that inline code of the headers calls. A null entry makes that code return
/// EOPNOTSUPP.
fn table(device: *mut ibv_device, async_fd: i32, engines: u32) -> verbs_context {
    // SAFETY: null pointers and zeros are valid for all members.
    let mut verbs: ManuallyDrop<verbs_context> = ManuallyDrop::new(unsafe { std::mem::zeroed() });
    verbs.query_port = Some(query::query_port);
    verbs.query_device_ex = Some(query::query_device_ex);
    verbs.query_rt_values = Some(query::query_rt_values);
    verbs.advise_mr = Some(mr::advise_mr);
    verbs.alloc_parent_domain = Some(pd::alloc_parent_domain);
    verbs.alloc_td = Some(pd::alloc_td);
    verbs.dealloc_td = Some(pd::dealloc_td);
    verbs.modify_cq = Some(cq::modify_cq);
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
    verbs.create_qp_ex = Some(qp_ex::create_qp_ex);
    verbs.get_srq_num = Some(srq::get_srq_num);
    verbs.create_srq_ex = Some(srq::create_srq_ex);
    verbs.sz = size_of::<verbs_context>();
    let context = &mut verbs.context;
    context.device = device;
    context.ops.alloc_mw = Some(mw::alloc_mw);
    context.ops.bind_mw = Some(mw::bind_mw);
    context.ops.dealloc_mw = Some(mw::dealloc_mw);
    context.ops.poll_cq = Some(cq::poll_cq);
    context.ops.req_notify_cq = Some(cq::req_notify_cq);
    context.ops.post_srq_recv = Some(srq::post_srq_recv);
    context.ops.post_send = Some(post::post_send);
    context.ops.post_recv = Some(post::post_recv);
    context.cmd_fd = -1;
    context.async_fd = async_fd;
    context.num_comp_vectors = c_int::try_from(engines).unwrap_or(1);
    context.abi_compat = EXTENDED as *mut _;
    ManuallyDrop::into_inner(verbs)
}
