//! Asynchronous events: an event about an object goes to the context of the object, and an event about the
//! device or its port to all contexts.

use std::ffi::{c_int, c_void};

use urnic::AsyncEvent;

use super::context::{Context, context_of, tell_all};
use super::{channel, qp, srq};
use crate::call::{fails, number, quiet};
use crate::ffi::*;
use crate::inbox::read_count;
use crate::log;
use crate::rnic::PORT;

/// Queues an event for the contexts that it concerns. The engine calls this with each event as it happens.
pub fn dispatch(event: AsyncEvent) {
    if let AsyncEvent::QpFatal(fault) | AsyncEvent::QpRequestError(fault) | AsyncEvent::QpAccessError(fault) =
        &event
    {
        log::failed(fault);
    }
    match event {
        AsyncEvent::QpFatal(fault) => of_qp(fault.qpn, IBV_EVENT_QP_FATAL),
        AsyncEvent::QpRequestError(fault) => of_qp(fault.qpn, IBV_EVENT_QP_REQ_ERR),
        AsyncEvent::QpAccessError(fault) => of_qp(fault.qpn, IBV_EVENT_QP_ACCESS_ERR),
        AsyncEvent::SendQueueDrained { qpn } => of_qp(qpn, IBV_EVENT_SQ_DRAINED),
        AsyncEvent::LastWqeReached { qpn } => of_qp(qpn, IBV_EVENT_QP_LAST_WQE_REACHED),
        AsyncEvent::CqError { cqn } => {
            channel::with_queue(cqn, |queue| {
                tell(queue.base.base.context, queue.as_ptr().cast(), IBV_EVENT_CQ_ERR)
            });
        }
        AsyncEvent::SrqLimitReached { srqn } => srq::limit_reached(srqn),
        AsyncEvent::PortActive => of_device(IBV_EVENT_PORT_ACTIVE),
        AsyncEvent::PortError => of_device(IBV_EVENT_PORT_ERR),
        AsyncEvent::DeviceFatal => of_device(IBV_EVENT_DEVICE_FATAL),
        _ => {}
    }
}

fn of_device(event_type: c_int) {
    tell_all(ibv_async_event { element: usize::from(PORT) as *mut c_void, event_type });
}

fn of_qp(qpn: u32, event_type: c_int) {
    qp::with_pair(qpn, |pair| tell(pair.base.qp_base.context, pair.as_ptr().cast(), event_type));
}

/// Queues an event for a context.
pub fn tell(context: *mut ibv_context, element: *mut c_void, event_type: c_int) {
    // SAFETY: the context's memory stays while objects hold it.
    if let Ok(context) = unsafe { context_of(context) } {
        context.events.push(ibv_async_event { element, event_type });
    }
}

/// Returns whether an event is about an object rather than about the device or its port.
fn is_of_object(event_type: c_int) -> bool {
    !matches!(event_type, IBV_EVENT_PORT_ACTIVE | IBV_EVENT_PORT_ERR | IBV_EVENT_DEVICE_FATAL)
}

/// Removes the unread events about an object that is being destroyed.
pub fn withdraw(context: &Context, element: *mut c_void) {
    context.events.take_out(|event| is_of_object(event.event_type) && event.element == element);
}

#[inline(never)]
unsafe extern "C" fn take(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    number(|| {
        // SAFETY: an open context, as the caller has checked.
        let context = unsafe { context_of(context) }?;
        let give = |next: &ibv_async_event| ledger(next, |ledger| ledger.give());
        let Some(next) = context.events.take_counting(give) else { return Ok(0) };
        // SAFETY: the program's place for the answer.
        unsafe { event.write(next) };
        Ok(1)
    })
}

/// Returns 0, or -1 and errno in a forked child, because the descriptor is shared with the parent.
#[inline(never)]
extern "C" fn is_ours() -> c_int {
    number(|| Ok(0))
}

/// Blocks in a read of the context's descriptor, unless the program has made the descriptor non-blocking. A
/// cancellation point.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    if context.is_null() || event.is_null() {
        return fails(libc::EINVAL);
    }
    // SAFETY: nothing is held here, and callees unwind only by cancellation (see the crate's documentation).
    unsafe {
        loop {
            if is_ours() < 0 || read_count((*context).async_fd) < 0 {
                return -1;
            }
            match take(context, event) {
                0 => {}
                1 => return 0,
                _ => return -1,
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    quiet(|| {
        // SAFETY: null or an event that the program was given; its object waits for the acknowledgement.
        if let Some(event) = unsafe { event.as_ref() } {
            ledger(event, |ledger| ledger.settle(1));
        }
    });
}

/// Calls `with` with the ledger of the object that an event is about.
fn ledger(event: &ibv_async_event, with: impl FnOnce(&crate::ledger::Ledger)) {
    if !is_of_object(event.event_type) {
        return;
    }
    // SAFETY: objects wait until events about them are acknowledged.
    unsafe {
        match event.event_type {
            IBV_EVENT_CQ_ERR => super::cq::queue(event.element.cast()).map(|cq| with(&cq.asynchronous)),
            IBV_EVENT_SRQ_LIMIT_REACHED => {
                srq::shared(event.element.cast()).map(|srq| with(&srq.asynchronous))
            }
            _ => qp::pair(event.element.cast()).map(|qp| with(&qp.asynchronous)),
        }
        .ok();
    }
}
