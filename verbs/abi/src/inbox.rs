//! Queues of events for a program, each with a descriptor that counts them.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::call::Errno;
use crate::log;

/// A queue whose descriptor, an eventfd in semaphore mode, is readable while the queue has items. A thread that has
/// read 8 bytes from the descriptor may take one item; the read blocks unless the program set `O_NONBLOCK`.
pub struct Inbox<T> {
    items: Mutex<VecDeque<T>>,
    fd: OwnedFd,
}

impl<T> Inbox<T> {
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(log::refused_call());
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(Self { items: Mutex::default(), fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    pub fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    fn items(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, item: T) {
        let mut items = self.items();
        items.push_back(item);
        let one = 1u64.to_ne_bytes();
        // SAFETY: the buffer is 8 readable bytes.
        unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes the item that a read of the descriptor counted; `None` if it was taken out meanwhile.
    pub fn take_after_read(&self) -> Option<T> {
        self.take_counting(|_| {})
    }

    /// Takes an item as [`take_after_read`](Self::take_after_read) does. `count` notes that the program holds the
    /// item. It runs before another thread can look for the item in vain, so that a thread which destroys the object
    /// of the item either takes the item out or finds it counted.
    pub fn take_counting(&self, count: impl FnOnce(&T)) -> Option<T> {
        let mut items = self.items();
        let item = items.pop_front()?;
        count(&item);
        Some(item)
    }

    /// Takes out all items for which `unwanted` returns `true`.
    pub fn take_out(&self, unwanted: impl Fn(&T) -> bool) -> Vec<T> {
        let mut items = self.items();
        let (out, kept): (Vec<T>, VecDeque<T>) = {
            let all = std::mem::take(&mut *items);
            let (out, kept): (Vec<T>, Vec<T>) = all.into_iter().partition(|item| unwanted(item));
            (out, kept.into())
        };
        *items = kept;
        for _ in &out {
            self.uncount();
        }
        out
    }

    /// Takes one from the descriptor's count. If a reader has taken it first, that reader finds no item and reads
    /// again.
    fn uncount(&self) {
        let mut count = [0u8; 8];
        let buffer = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        // SAFETY: one buffer of 8 writable bytes.
        unsafe { libc::preadv2(self.fd(), &buffer, 1, -1, libc::RWF_NOWAIT) };
    }
}

/// Reads one count of a descriptor. Blocks unless the descriptor is non-blocking. Returns 0, or -1 and errno. A
/// cancellation point that holds nothing.
///
/// # Safety
/// None; any descriptor will do.
#[inline(never)]
pub unsafe extern "C" fn read_count(fd: c_int) -> c_int {
    let mut count = 0u64;
    // SAFETY: the buffer is 8 writable bytes.
    if unsafe { libc::read(fd, (&raw mut count).cast(), 8) } == 8 { 0 } else { -1 }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// A thread that destroys the object of an event finds the event in the queue, or counted as held by the program.
    #[test]
    fn an_item_is_counted_before_a_search_can_miss_it() {
        let inbox = Inbox::new().expect("an eventfd");
        inbox.push(7);
        let (searching, missed) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            let taken = inbox.take_counting(|_| {
                scope.spawn(|| {
                    searching.store(true, Ordering::SeqCst);
                    assert!(inbox.take_out(|item| *item == 7).is_empty());
                    missed.store(true, Ordering::SeqCst);
                });
                while !searching.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                thread::sleep(Duration::from_millis(50));
                assert!(
                    !missed.load(Ordering::SeqCst),
                    "the search has ended, and the item is not counted yet"
                );
            });
            assert_eq!(taken, Some(7));
        });
        assert!(missed.load(Ordering::SeqCst));
    }
}
