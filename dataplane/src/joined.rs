//! Joins an EAL that the program around us started, as SPDK does: checks it before a port of ours uses it, and calls a
//! function of ours before the program cleans it up.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use dpdk_sys as sys;

use crate::got;

/// Memory regions that a vhost-user peer can map (VHOST_MEMORY_MAX_NREGIONS of DPDK).
const VHOST_REGIONS: usize = 8;

/// Returns whether an EAL runs in this process. A running EAL has chosen between virtual and physical addresses.
pub(crate) fn is_running() -> bool {
    // SAFETY: reads a variable, which is allowed even before EAL starts.
    unsafe { sys::rte_eal_iova_mode() != sys::rte_iova_mode_RTE_IOVA_DC }
}

/// Returns the file that defines DPDK's functions in this process; `None` if that file is one of DPDK's libraries. A
/// program that is linked with DPDK's archives and exports their symbols replaces the functions that urnic was built
/// for.
pub(crate) fn replaced_by() -> Option<String> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    let function: unsafe extern "C" fn(c_int, *mut *mut std::ffi::c_char) -> c_int = sys::rte_eal_init;
    // SAFETY: an address of this process; `info` has room for the answer.
    let found = unsafe { libc::dladdr(function as *const c_void, info.as_mut_ptr()) } != 0;
    // SAFETY: zeroed, which is valid, or written by dladdr.
    let name = unsafe { info.assume_init() }.dli_fname;
    if !found || name.is_null() {
        return None;
    }
    // SAFETY: the loader's string, which lives as long as the object.
    let path = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let file = path.rsplit('/').next().unwrap_or(&path);
    (!file.starts_with("librte_")).then_some(path)
}

/// Returns whether all of these bytes are EAL memory, allocated by urnic or by the program around it. Every
/// port can send from EAL memory. Takes none of EAL's locks.
pub(crate) fn holds(base: *const u8, len: usize) -> bool {
    // SAFETY: EAL runs, and looks the address up in tables of its own.
    unsafe { sys::dpdk_sys_holds(base.cast(), len) != 0 }
}

/// Returns why the peer of a vhost-user link cannot map the memory of this EAL; `None` if it can.
pub(crate) fn cannot_be_shared() -> Option<String> {
    let mut files = BTreeSet::<c_int>::new();
    // SAFETY: EAL runs; `count` takes the pointer that is passed here, which is valid during the call.
    unsafe { sys::rte_memseg_walk(Some(count), (&raw mut files).cast()) };
    if files.first().is_some_and(|&fd| fd < 0) {
        Some("its memory has no descriptors to share, as with DPDK's option --legacy-mem".to_owned())
    } else {
        (files.len() > VHOST_REGIONS).then(|| {
            format!(
                "its memory consists of {} files, but a vhost-user peer maps at most {VHOST_REGIONS}",
                files.len()
            )
        })
    }
}

/// Adds the descriptor behind one piece of memory to the set.
unsafe extern "C" fn count(
    list: *const sys::rte_memseg_list,
    segment: *const sys::rte_memseg,
    files: *mut c_void,
) -> c_int {
    // SAFETY: EAL passes its own pointers, and the set of `cannot_be_shared`.
    let (fd, files) =
        unsafe { (sys::dpdk_sys_memory_fd(list, segment), &mut *files.cast::<BTreeSet<c_int>>()) };
    // INT_MAX stands for memory from outside that the program has added to EAL's. Drivers do not share such memory.
    if fd != c_int::MAX {
        files.insert(fd);
    }
    0
}

/// The function to call before the program cleans up EAL, and DPDK's own cleanup function.
static GOODBYE: OnceLock<(fn(), unsafe extern "C" fn() -> c_int)> = OnceLock::new();

/// Set just before EAL is cleaned up. From then on, EAL's memory may be gone, and no function of EAL may be called.
static GONE: AtomicBool = AtomicBool::new(false);

/// Returns whether the program has cleaned up, or is cleaning up, the EAL that it had started.
pub(crate) fn is_gone() -> bool {
    GONE.load(Ordering::Acquire)
}

/// Registers `goodbye` to be called before the program cleans up the EAL that it has started (by `rte_eal_cleanup`, as
/// SPDK does when it ends). The cleanup frees the memory and closes the devices, even while they are in use, so
/// `goodbye` must stop all threads that poll ports. DPDK has no callback for this. Therefore, in all objects that are
/// loaded by now, calls of `rte_eal_cleanup` are bound to a function of ours. Only the first `goodbye` counts.
pub fn before_cleanup(goodbye: fn()) {
    if GOODBYE.set((goodbye, sys::rte_eal_cleanup)).is_ok() {
        // SAFETY: `each` does not use its last argument, which is null here.
        unsafe { libc::dl_iterate_phdr(Some(each), std::ptr::null_mut()) };
    }
}

unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _size: usize, _: *mut c_void) -> c_int {
    let ours = |name: &CStr| (name == c"rte_eal_cleanup").then_some(cleanup as *const c_void);
    // SAFETY: the dynamic linker passes a loaded object. If the object is unloaded later, its tables go with it; no
    // other object is loaded into their place while this runs.
    unsafe { got::bind(&*info, ours) };
    0
}

/// Takes the place of `rte_eal_cleanup`.
unsafe extern "C" fn cleanup() -> c_int {
    let Some((goodbye, original)) = GOODBYE.get() else { return 0 };
    if !GONE.load(Ordering::Acquire) {
        // A panic must not cross into C.
        let _ = std::panic::catch_unwind(goodbye);
        GONE.store(true, Ordering::Release);
    }
    // SAFETY: DPDK's own function, called because the program asked for it.
    unsafe { original() }
}
