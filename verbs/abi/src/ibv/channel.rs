//! Completion channels and the events in them.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use urnic::CompChannel;

use super::context::{Context, context_of};
use super::cq::{Queue, queue};
use crate::call::{Errno, errno_of, fails, number, pointer, quiet, status};
use crate::ffi::*;
use crate::inbox::read_count;
use crate::live::{self, Kind};
use crate::log;

/// The structure that the program's `*mut ibv_comp_channel` points to. `refcnt` counts the queues that use it.
#[repr(C)]
pub struct Channel {
    base: ibv_comp_channel,
    pub channel: CompChannel,
}

/// The existing channels, and the completion queues by number. A thread looks its channel up here after each wait,
/// because another thread may have destroyed the channel meanwhile.
#[derive(Default)]
struct Known {
    channels: HashMap<usize, CompChannel>,
    queues: HashMap<u32, usize>,
}

fn known() -> MutexGuard<'static, Known> {
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer(|| {
        // SAFETY: null or an open context.
        let context = unsafe { context_of(context) }?;
        context.rnic.now()?; // a forked child has no device
        let channel =
            context.rnic.device.create_comp_channel().inspect_err(log::refused).map_err(|e| errno_of(&e))?;
        let fd = channel.as_fd().as_raw_fd();
        context.hold();
        let base = ibv_comp_channel { context: context.as_ptr(), fd, refcnt: 0 };
        let made = Box::new(Channel { base, channel: channel.clone() });
        let made = live::enter(Kind::Channel, Box::into_raw(made));
        known().channels.insert(made as usize, channel);
        Ok(made.cast())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    status(|| {
        // Queues are added and removed under the lock that is taken here.
        let stays = |this: &Channel| if this.base.refcnt > 0 { Err(libc::EBUSY) } else { Ok(()) };
        {
            let mut known = known();
            live::leave(Kind::Channel, channel.cast::<Channel>(), stays)?;
            known.channels.remove(&(channel as usize));
        }
        // SAFETY: made by `Box::into_raw`; the program gives it up, and waiters no longer find it.
        let this = unsafe { Box::from_raw(channel.cast::<Channel>()) };
        let context = this.base.context;
        drop(this);
        // SAFETY: the channel held the context.
        unsafe { Context::release(context_of(context)?) };
        Ok(())
    })
}

/// Adds a new completion queue.
pub fn enter(cqn: u32, queue: *mut Queue, channel: *mut ibv_comp_channel) {
    let mut known = known();
    known.queues.insert(cqn, queue as usize);
    // SAFETY: null or a channel; the count is accessed only under the lock.
    if let Some(channel) = unsafe { channel.as_mut() } {
        channel.refcnt += 1;
    }
}

/// Removes a completion queue: no event names it from now on.
pub fn leave(cqn: u32, channel: *mut ibv_comp_channel) {
    let mut known = known();
    known.queues.remove(&cqn);
    // SAFETY: null or a channel; the count is accessed only under the lock.
    if let Some(channel) = unsafe { channel.as_mut() } {
        channel.refcnt -= 1;
    }
}

/// Runs `with` on the queue with number `cqn`, if it exists; the queue is not destroyed meanwhile.
pub fn with_queue<R>(cqn: u32, with: impl FnOnce(&Queue) -> R) -> Option<R> {
    let known = known();
    let queue = *known.queues.get(&cqn)? as *const Queue;
    // SAFETY: listed queues exist, and are removed under the lock.
    Some(with(unsafe { &*queue }))
}

/// Returns the channel's descriptor, or -1 and errno.
#[inline(never)]
unsafe extern "C" fn descriptor(channel: *mut ibv_comp_channel) -> c_int {
    number(|| {
        let known = known();
        let channel = known.channels.get(&(channel as usize)).ok_or(libc::EBADF)?;
        Ok(channel.as_fd().as_raw_fd())
    })
}

/// Takes the event that the caller has claimed by a read of the descriptor, and writes its queue and that queue's
/// context. Returns 1; 0 if the event was removed meanwhile; or -1 and errno.
#[inline(never)]
unsafe extern "C" fn take(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    number(|| {
        let found = known().channels.get(&(channel as usize)).cloned().ok_or(libc::EBADF)?;
        let Some(event) = found.event_after_read() else { return Ok(0) };
        let given = with_queue(event.cqn(), |queue| {
            queue.completions.give();
            (queue.as_ptr(), queue.cq_context())
        });
        let Some((queue, context)) = given else { return Ok(0) };
        // SAFETY: the program's places for the answer.
        unsafe {
            cq.write(queue);
            if !cq_context.is_null() {
                cq_context.write(context);
            }
        }
        Ok(1)
    })
}

/// Blocks in a read of the channel's descriptor, unless the program has made the descriptor non-blocking. A
/// cancellation point.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    if cq.is_null() {
        return fails(libc::EINVAL);
    }
    // SAFETY: nothing is held here, and callees unwind only by cancellation (see the crate's documentation).
    unsafe {
        loop {
            let fd = descriptor(channel);
            if fd < 0 || read_count(fd) < 0 {
                return -1;
            }
            match take(channel, cq, cq_context) {
                0 => {}
                1 => return 0,
                _ => return -1,
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    quiet(|| {
        // SAFETY: null or a completion queue.
        let cq: Result<&Queue, Errno> = unsafe { queue(cq) };
        if let Ok(cq) = cq {
            cq.completions.settle(events.into());
        }
    });
}
