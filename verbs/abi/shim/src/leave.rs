//! The end of a process by `_exit`, which runs no exit handlers: fio's jobs end so. A kernel would deliver what their
//! connections hold; here the engine does it before.

use std::ffi::c_int;

use crate::engine;

/// May be called in a signal handler, and in a child that shares its parent's memory: the engine sees to that.
pub unsafe extern "C" fn our_exit(status: c_int) -> ! {
    engine::before_exit();
    loop {
        // SAFETY: ends the process, with all its threads.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// The symbols: see those of [`interfaces`](crate::interfaces).
mod symbols {
    use super::*;

    #[unsafe(no_mangle)]
    unsafe extern "C" fn _exit(status: c_int) -> ! {
        // SAFETY: as said there.
        unsafe { our_exit(status) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn _Exit(status: c_int) -> ! {
        // SAFETY: as said there.
        unsafe { our_exit(status) }
    }
}
