//! Keeps the descriptors that DPDK opens out of the programs that this process starts, because packet sockets carry
//! privileges, and the files behind hugepages are the memory itself. DPDK opens nearly all of its descriptors without
//! close-on-exec, at any time and in threads of its own (for an accepted connection, for a descriptor that a peer
//! sends, for more memory). A later `fcntl` would leave a gap in which another thread may fork.
//!
//! So we change the tables through which DPDK's libraries call the C library ([`got`]): calls of functions that open
//! descriptors lead to functions of this module. Only the libraries in `LIBRARIES` are affected.

use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use libc::mode_t;

use crate::got;

/// Beginnings of the file names of the affected libraries: DPDK's own, and those through which DPDK drives AF_XDP.
const LIBRARIES: [&[u8]; 3] = [b"librte_", b"libxdp.", b"libbpf."];

/// Objects whose tables have already been changed, by their addresses.
static SEEN: Mutex<Option<HashSet<usize>>> = Mutex::new(None);

/// Makes DPDK open all descriptors from now on with close-on-exec. Must be called before EAL starts, or, if the program
/// has started EAL itself, before we use it. A library that DPDK loads later is changed when it is loaded.
pub(crate) fn close_on_exec() {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let seen: *mut HashSet<usize> = seen.get_or_insert_default();
    // SAFETY: `each` takes the pointer that is passed here, which is valid during the call.
    unsafe { libc::dl_iterate_phdr(Some(each), seen.cast()) };
}

/// Returns the function that takes the place of the C library's `name`; `None` if there is no substitute.
fn substitute(name: &CStr) -> Option<*const c_void> {
    Some(match name.to_bytes() {
        b"open" | b"open64" => open as *const c_void,
        b"openat" | b"openat64" => openat as *const c_void,
        b"fopen" | b"fopen64" => fopen as *const c_void,
        b"socket" => socket as *const c_void,
        b"accept" => accept as *const c_void,
        b"recvmsg" => recvmsg as *const c_void,
        b"eventfd" => eventfd as *const c_void,
        b"epoll_create" => epoll_create as *const c_void,
        b"epoll_create1" => epoll_create1 as *const c_void,
        b"timerfd_create" => timerfd_create as *const c_void,
        b"memfd_create" => memfd_create as *const c_void,
        b"pipe" => pipe as *const c_void,
        b"dup" => dup as *const c_void,
        b"dlopen" => dlopen as *const c_void,
        _ => return None,
    })
}

// Each function does what the C library's function of the same name does. Sockets are made by direct system calls,
// because a preloaded library (librspreload.so) may replace the C library's socket functions.

unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { libc::open64(path, flags | libc::O_CLOEXEC, mode) }
}

unsafe extern "C" fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { libc::openat64(folder, path, flags | libc::O_CLOEXEC, mode) }
}

unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    let mut closing = [0; 16];
    // SAFETY: as the caller promises: NUL-terminated strings. A mode that is too long for `closing` is passed on as
    // it is.
    unsafe {
        let given = CStr::from_ptr(mode).to_bytes();
        let Some(place) = closing.get_mut(..given.len() + 2) else { return libc::fopen64(path, mode) };
        place[..given.len()].copy_from_slice(given);
        place[given.len()] = b'e';
        libc::fopen64(path, closing.as_ptr().cast())
    }
}

unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: takes numbers; returns a descriptor, or -1.
    unsafe { libc::syscall(libc::SYS_socket, domain, kind | libc::SOCK_CLOEXEC, protocol) as c_int }
}

unsafe extern "C" fn accept(fd: c_int, address: *mut libc::sockaddr, len: *mut libc::socklen_t) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { libc::syscall(libc::SYS_accept4, fd, address, len, libc::SOCK_CLOEXEC) as c_int }
}

unsafe extern "C" fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
    // SAFETY: as the caller promises.
    unsafe { libc::syscall(libc::SYS_recvmsg, fd, message, flags | libc::MSG_CMSG_CLOEXEC) as isize }
}

unsafe extern "C" fn eventfd(count: c_uint, flags: c_int) -> c_int {
    // SAFETY: takes numbers.
    unsafe { libc::eventfd(count, flags | libc::EFD_CLOEXEC) }
}

unsafe extern "C" fn epoll_create(_size: c_int) -> c_int {
    // SAFETY: takes a number.
    unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }
}

unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: takes a number.
    unsafe { libc::epoll_create1(flags | libc::EPOLL_CLOEXEC) }
}

unsafe extern "C" fn timerfd_create(clock: c_int, flags: c_int) -> c_int {
    // SAFETY: takes numbers.
    unsafe { libc::timerfd_create(clock, flags | libc::TFD_CLOEXEC) }
}

unsafe extern "C" fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
    // SAFETY: as the caller promises, and a descriptor of ours.
    unsafe {
        let fd = libc::memfd_create(name, flags | libc::MFD_CLOEXEC);
        if fd >= 0 {
            // By default, the kernel lets every user open the file anew. A process that receives the descriptor can use
            // it without this right.
            libc::fchmod(fd, 0o600);
        }
        fd
    }
}

unsafe extern "C" fn pipe(ends: *mut c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { libc::pipe2(ends, libc::O_CLOEXEC) }
}

unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: takes numbers.
    unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) }
}

unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    // SAFETY: as the caller promises.
    let library = unsafe { libc::dlopen(path, flags) };
    if !library.is_null() {
        close_on_exec();
    }
    library
}

unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _size: usize, seen: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker passes a loaded object; the set is the one of `close_on_exec`.
    unsafe {
        let (info, seen) = (&*info, &mut *seen.cast::<HashSet<usize>>());
        if info.dlpi_name.is_null() {
            return 0;
        }
        let name = CStr::from_ptr(info.dlpi_name).to_bytes();
        let file = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if LIBRARIES.iter().any(|begins| file.starts_with(begins)) && seen.insert(info.dlpi_addr as usize) {
            got::bind(info, substitute);
        }
    }
    0
}
