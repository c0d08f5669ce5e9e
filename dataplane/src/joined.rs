//! An EAL that the program around us has started (SPDK): what there is to know of it before a port of ours uses it.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;

use dpdk_sys as sys;
use urnic_config::PortSpec;

use crate::port::PortError;

/// Descriptors of memory that a vhost-user peer takes (VHOST_MEMORY_BASELINE_NREGIONS of the kernel and of DPDK).
const VHOST_REGIONS: usize = 8;

/// Whether an EAL runs in this process: one that does has chosen between virtual and physical addresses.
pub(crate) fn is_running() -> bool {
    // SAFETY: reads a variable, before EAL starts as well.
    unsafe { sys::rte_eal_iova_mode() != sys::rte_iova_mode_RTE_IOVA_DC }
}

/// The file that DPDK's functions are taken from, if it is none of DPDK's libraries: a program that was linked with
/// DPDK's archives and exports their symbols puts its own functions in the place of those that we were built for.
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

/// Whether all of these bytes are EAL's memory, whoever has allocated them there: every port can send from it. Takes
/// none of EAL's locks.
pub(crate) fn holds(base: *const u8, len: usize) -> bool {
    // SAFETY: EAL runs, and looks the address up in tables of its own.
    unsafe { sys::dpdk_sys_holds(base.cast(), len) != 0 }
}

/// Refuses a port whose peer could not map the memory of this EAL.
pub(crate) fn check(spec: &PortSpec) -> Result<(), PortError> {
    if !matches!(spec, PortSpec::VirtioUser { .. }) {
        return Ok(());
    }
    let mut files = BTreeSet::<c_int>::new();
    // SAFETY: EAL runs; `count` takes what is given here, which lives through the call.
    unsafe { sys::rte_memseg_walk(Some(count), (&raw mut files).cast()) };
    let reason = if files.first().is_some_and(|&fd| fd < 0) {
        "its memory has no descriptors to share (option --legacy-mem)".to_owned()
    } else if files.len() > VHOST_REGIONS {
        format!("its memory is {} files, and a vhost-user peer maps {VHOST_REGIONS}", files.len())
    } else {
        return Ok(());
    };
    Err(PortError::ForeignMemory { port: spec.to_string(), reason })
}

/// Enters the descriptor behind one piece of memory.
unsafe extern "C" fn count(
    list: *const sys::rte_memseg_list,
    segment: *const sys::rte_memseg,
    files: *mut c_void,
) -> c_int {
    // SAFETY: EAL passes its own, and the set of `check`.
    let (fd, files) =
        unsafe { (sys::dpdk_sys_memory_fd(list, segment), &mut *files.cast::<BTreeSet<c_int>>()) };
    // Memory that the program has added to EAL's is not shared.
    if fd != c_int::MAX {
        files.insert(fd);
    }
    0
}
