//! How a call from C crosses the border.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use urnic::{Error, PostError};

/// A number of `errno.h`.
pub type Errno = c_int;

/// Sets errno of this thread.
pub fn set_errno(errno: Errno) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// What the last system call of this thread complained of.
pub fn last_errno() -> Errno {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() }
}

/// A panic is a bug of ours; the program hears of it as an I/O error, after the message on standard error.
fn guarded<R>(body: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(libc::EIO))
}

/// For functions that answer with a pointer: null and errno if they fail.
pub fn pointer<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    guarded(body).unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// For verbs that answer with 0 or an errno.
pub fn status(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match guarded(body) {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            errno
        }
    }
}

/// For functions that answer with a number, or -1 and errno.
pub fn number(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    guarded(body).unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// For functions that answer with 0, or -1 and errno.
pub fn zero(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    number(|| body().map(|()| 0))
}

/// For functions that cannot fail.
pub fn quiet(body: impl FnOnce()) {
    let _ = guarded(|| {
        body();
        Ok(())
    });
}

/// What a pointer from C refers to, unless it is null.
///
/// # Safety
/// It is null, or what it points to lives and is not mutably borrowed for `'a`.
pub unsafe fn deref<'a, T>(pointer: *const T) -> Result<&'a T, Errno> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or(libc::EINVAL)
}

/// The errno of a refused control verb.
pub fn errno_of(error: &Error) -> Errno {
    match error {
        Error::Exhausted(_) | Error::NoMemory(_) => libc::ENOMEM,
        Error::Fault { .. } => libc::EFAULT,
        Error::WindowsBound(_) => libc::EBUSY,
        Error::PortInUse(_) => libc::EADDRINUSE,
        Error::NoRoute(_) => libc::ENETUNREACH,
        Error::Forked | Error::Open(_) => libc::ENODEV,
        Error::Os { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        _ => libc::EINVAL,
    }
}

/// The errno of a refused work request.
pub fn post_errno(error: PostError) -> Errno {
    match error {
        PostError::QueueFull => libc::ENOMEM,
        PostError::SendImm => libc::EOPNOTSUPP,
        _ => libc::EINVAL,
    }
}
