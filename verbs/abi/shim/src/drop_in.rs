//! Finds the functions that the drop-in libraries jump to. A symbol of these libraries asks at its first call,
//! and remembers the answer.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use crate::{engine, interfaces, leave, netdevice};

/// Folders in which distributions put librdmacm.
const FOLDERS: [&str; 5] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib64", "/usr/lib", "/usr/local/lib"];

/// Returns the function for a symbol of a drop-in library; `name` is the library's own string.
#[unsafe(no_mangle)]
unsafe extern "C" fn urnic_find(name: *const c_char) -> *const c_void {
    // SAFETY: a NUL-terminated string.
    let name = unsafe { CStr::from_ptr(name) };
    match name.to_bytes() {
        b"getifaddrs" => interfaces::drop_in::getifaddrs as *const c_void,
        b"freeifaddrs" => interfaces::drop_in::freeifaddrs as *const c_void,
        b"getaddrinfo" => interfaces::drop_in::getaddrinfo as *const c_void,
        b"ioctl" => netdevice::drop_in::ioctl as *const c_void,
        b"if_nametoindex" => netdevice::drop_in::if_nametoindex as *const c_void,
        b"if_indextoname" => netdevice::drop_in::if_indextoname as *const c_void,
        b"if_nameindex" => netdevice::drop_in::if_nameindex as *const c_void,
        b"if_freenameindex" => netdevice::drop_in::if_freenameindex as *const c_void,
        b"_exit" | b"_Exit" => leave::our_exit as *const c_void,
        b"daemon" => leave::our_daemon as *const c_void,
        _ if engine::forwards(name) => engine::function(name),
        _ => rsocket(name),
    }
}

/// Returns a function of rsockets from the system's librdmacm. The functions of rsockets call our `rdma_*` and
/// `ibv_*` functions.
fn rsocket(name: &CStr) -> *const c_void {
    let Some(library) = rdmacm() else { return unavailable as *const c_void };
    // SAFETY: a library that stays loaded, and a NUL-terminated string.
    let function = unsafe { libc::dlsym(library, name.as_ptr()) };
    if function.is_null() { unavailable as *const c_void } else { function }
}

/// Returns the handle of this system's librdmacm; `None` if there is none.
fn rdmacm() -> Option<*mut c_void> {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    let handle = *HANDLE.get_or_init(|| {
        be_global();
        let found = FOLDERS.iter().map(|folder| Path::new(folder).join("librdmacm.so.1"));
        let mut opened = found.filter(|path| path.exists()).filter_map(|path| open(&path, libc::RTLD_LOCAL));
        opened.next().unwrap_or_else(|| {
            engine::complain(&format!(
                "rsockets are functions of librdmacm.so.1, which is not found in {}; install librdmacm \
                 (Debian: librdmacm1)",
                FOLDERS.join(", ")
            ));
            0
        })
    });
    (handle != 0).then_some(handle as *mut c_void)
}

/// Makes our symbols global, because librdmacm must find them before its own. The program may have loaded us with
/// local scope.
fn be_global() {
    if let Some(own) = engine::own_path() {
        open(&own, libc::RTLD_GLOBAL | libc::RTLD_NOLOAD);
    }
}

fn open(path: &Path, flags: c_int) -> Option<usize> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: a NUL-terminated string; librdmacm's constructors only initialise memory.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | flags) };
    (!handle.is_null()).then_some(handle as usize)
}

/// Takes the place of a function of rsockets if there is no librdmacm, or if the librdmacm is too old to have
/// the function.
extern "C" fn unavailable() -> isize {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}
