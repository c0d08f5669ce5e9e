//! The border between C and Rust.

use std::cell::Cell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use urnic::{Error, NotConvertible, PostError};

/// An error number of `errno.h`.
pub type Errno = c_int;

/// Sets this thread's errno.
pub fn set_errno(errno: Errno) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns this thread's errno, as its last failed call set it.
#[inline(never)]
pub extern "C" fn last_errno() -> Errno {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() }
}

/// Writes an error to standard error. Standard error may be closed, so a failed write is ignored. Takes no lock,
/// because in a forked child the thread that holds it may not exist.
pub fn complain(message: &str) {
    let line = format!("urnic: {message}\n");
    // SAFETY: `line.len()` readable bytes.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Returns the errno of a call in a forked child; explains it on standard error once.
#[cold]
pub fn none_in_child() -> Errno {
    static SAID: Once = Once::new();
    SAID.call_once(|| complain(&urnic::Error::Forked.to_string()));
    libc::ENODEV
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// While this lives, `pthread_cancel` does not end the thread. Many system calls are cancellation points, including
/// calls that DPDK makes, and a thread cancelled there would never release the locks and memory that Rust code holds.
struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    fn begin() -> Self {
        let mut before = 0;
        // SAFETY: concerns only this thread, and returns a number.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
        Self { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(self.before, &mut ours) };
    }
}

/// Returns whether this is the program's first thread. No program cancels its first thread, so calls that must be
/// fast do without [`Uncancelled`] there, and save 20 ns.
fn is_first_thread() -> bool {
    thread_local! {
        static FIRST: Cell<Option<bool>> = const { Cell::new(None) };
    }
    FIRST.with(|first| {
        first.get().unwrap_or_else(|| {
            // SAFETY: no pointers are passed.
            let is = unsafe { libc::gettid() == libc::getpid() };
            first.set(Some(is));
            is
        })
    })
}

/// Runs `body`, and turns a panic into EIO. A panic is a bug of ours; its message is on standard error.
fn caught<R>(body: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(libc::EIO))
}

/// Runs a call at the border: no panic gets out, and no cancellation gets in. Fails in a forked child of a process
/// that has used the device: the child has no device, and threads that exist only in the parent may have held any
/// lock.
pub fn guarded<R>(body: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    if urnic::in_forked_child() {
        return Err(none_in_child());
    }
    guarded_anywhere(body)
}

/// Runs a call as [`guarded`] does, but also in a forked child: for calls that need no device.
pub fn guarded_anywhere<R>(body: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    let _uncancelled = Uncancelled::begin();
    caught(body)
}

/// Runs a call as [`guarded_anywhere`] does, for calls that must be fast.
#[inline]
pub fn guarded_fast<R>(body: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    let _uncancelled = (!is_first_thread()).then(Uncancelled::begin);
    caught(body)
}

/// Runs `body` for a function that returns a pointer, or null and errno.
pub fn pointer<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    as_pointer(guarded(body))
}

pub fn as_pointer<T>(answer: Result<*mut T, Errno>) -> *mut T {
    answer.unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// Runs `body` for a verb that returns 0 or an errno.
pub fn status(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    as_status(guarded(body))
}

/// Runs `body` as [`status`] does, for calls that must be fast.
#[inline]
pub fn status_fast(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    if urnic::in_forked_child() {
        return as_status(Err(none_in_child()));
    }
    as_status(guarded_fast(body))
}

fn as_status(answer: Result<(), Errno>) -> c_int {
    match answer {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            errno
        }
    }
}

/// Runs `body` for a function that returns a number, or -1 and errno.
pub fn number(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    as_number(guarded(body))
}

/// Runs `body` as [`number`] does, for calls that must be fast. Also runs in a forked child: a call that needs
/// the device must check that itself.
#[inline]
pub fn number_fast(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    as_number(guarded_fast(body))
}

pub fn as_number(answer: Result<c_int, Errno>) -> c_int {
    answer.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// Returns -1 and sets errno, for functions in which a thread can be cancelled: see the crate's documentation.
#[inline(never)]
pub extern "C" fn fails(errno: Errno) -> c_int {
    set_errno(errno);
    -1
}

/// Runs `body` for a function that returns 0, or -1 and errno.
pub fn zero(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    number(|| body().map(|()| 0))
}

/// Runs `body` for a function that cannot fail.
pub fn quiet(body: impl FnOnce()) {
    let _ = guarded(|| {
        body();
        Ok(())
    });
}

/// Runs `body` as [`quiet`] does, for calls that must be fast. Also runs in a forked child.
#[inline]
pub fn quiet_fast(body: impl FnOnce()) {
    let _ = guarded_fast(|| {
        body();
        Ok(())
    });
}

/// Returns the object that a pointer from C refers to, or EINVAL if it is null.
///
/// # Safety
/// `pointer` is null, or its target lives and is not mutably borrowed for `'a`.
pub unsafe fn deref<'a, T>(pointer: *const T) -> Result<&'a T, Errno> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_ref() }.ok_or(libc::EINVAL)
}

/// Returns the errno of a refused control verb.
pub fn errno_of(error: &Error) -> Errno {
    match error {
        Error::Exhausted(_) | Error::NoMemory(_) => libc::ENOMEM,
        Error::NoDescriptor => libc::EMFILE,
        Error::Fault { .. } => libc::EFAULT,
        Error::WindowsBound(_) => libc::EBUSY,
        Error::PortInUse(_) => libc::EADDRINUSE,
        Error::NotOurAddress(_) => libc::EADDRNOTAVAIL,
        Error::PortForbidden(_) => libc::EACCES,
        Error::NoRoute { .. } => libc::ENETUNREACH,
        Error::Forbidden(_) => libc::EPERM,
        Error::Forked | Error::Open(_) => libc::ENODEV,
        Error::Interrupted => libc::EDEADLK,
        Error::NoConversion => libc::EOPNOTSUPP,
        Error::NotConvertible(why) => match why {
            NotConvertible::NoSocket => libc::ENOTSOCK,
            NotConvertible::NotTcp => libc::EPROTONOSUPPORT,
            NotConvertible::NotConnected => libc::ENOTCONN,
            NotConvertible::ShutDown => libc::EPIPE,
            _ => libc::EINVAL,
        },
        Error::Os { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        _ => libc::EINVAL,
    }
}

/// Returns the errno of a refused work request.
pub fn post_errno(error: PostError) -> Errno {
    match error {
        PostError::QueueFull => libc::ENOMEM,
        PostError::SendImm => libc::EOPNOTSUPP,
        _ => libc::EINVAL,
    }
}
