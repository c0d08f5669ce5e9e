//! Process exits that run no exit handlers: `_exit`, by which fio's jobs end, and `daemon`, whose parent ends by the
//! C library's own `_exit`. A kernel would still deliver the data that the process's connections hold; here the
//! engine delivers it before the exit.

use std::ffi::c_int;

use crate::engine;

/// Takes the place of `_exit`. May be called in a signal handler, and in a child that shares its parent's memory; the
/// engine handles both.
pub unsafe extern "C" fn our_exit(status: c_int) -> ! {
    engine::before_exit();
    loop {
        // SAFETY: ends the process, with all its threads.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// Does the same as the C library's `daemon`, but lets the parent's engine deliver all data first. The child has no
/// device.
pub unsafe extern "C" fn our_daemon(stays: c_int, keeps_files: c_int) -> c_int {
    // SAFETY: the caller of `daemon` may fork; NUL-terminated strings, and numbers.
    unsafe {
        match libc::fork() {
            -1 => return -1,
            0 => {}
            _ => our_exit(0),
        }
        if libc::setsid() < 0 {
            return -1;
        }
        if stays == 0 {
            libc::chdir(c"/".as_ptr());
        }
        if keeps_files == 0 { to_dev_null() } else { 0 }
    }
}

/// Redirects standard input, output and error to `/dev/null`. Returns 0, or -1 and errno.
fn to_dev_null() -> c_int {
    /// The kernel's device number of `/dev/null`.
    const NULL: libc::dev_t = libc::makedev(1, 3);
    // SAFETY: a NUL-terminated string, a structure of our own, and numbers.
    unsafe {
        let fd = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if fd < 0 {
            return -1;
        }
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &raw mut stat) < 0
            || stat.st_mode & libc::S_IFMT != libc::S_IFCHR
            || stat.st_rdev != NULL
        {
            libc::close(fd);
            *libc::__errno_location() = libc::ENODEV;
            return -1;
        }
        for standard in 0..=2 {
            // `dup2` changes nothing if the descriptor already has this number, so it would stay close-on-exec.
            if fd == standard {
                libc::fcntl(fd, libc::F_SETFD, 0);
            } else {
                libc::dup2(fd, standard);
            }
        }
        if fd > 2 {
            libc::close(fd);
        }
        0
    }
}

/// The symbols of `liburnic.so`, as in [`interfaces`](crate::interfaces).
mod symbols {
    use super::*;

    #[unsafe(no_mangle)]
    unsafe extern "C" fn _exit(status: c_int) -> ! {
        // SAFETY: as in [`our_exit`].
        unsafe { our_exit(status) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn _Exit(status: c_int) -> ! {
        // SAFETY: as in [`our_exit`].
        unsafe { our_exit(status) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn daemon(stays: c_int, keeps_files: c_int) -> c_int {
        // SAFETY: as the caller promises.
        unsafe { our_daemon(stays, keeps_files) }
    }
}
