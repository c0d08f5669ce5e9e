//! Keeps sockets of DPDK's drivers from becoming rsockets. A driver asks the kernel about a network interface through
//! a socket while it opens the device. librspreload.so would turn that socket into an rsocket on the same device, and
//! the opening would wait for itself.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::AtomicPtr;

use crate::engine;
use crate::interfaces::next;

type Socket = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;

static SOCKET: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if engine::is_control_thread() {
        // SAFETY: takes only numbers; returns a descriptor, or -1.
        return unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as c_int };
    }
    let real = next(c"socket", &SOCKET);
    if real.is_null() {
        return -1;
    }
    // SAFETY: the function of that name, of the C library or of a library that overrides it.
    unsafe { std::mem::transmute::<*mut c_void, Socket>(real)(domain, kind, protocol) }
}
