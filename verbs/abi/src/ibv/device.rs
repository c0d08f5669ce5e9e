//! The list of devices, and its one device.

use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

use crate::call::{Errno, as_pointer, deref, guarded_anywhere, pointer, set_errno};
use crate::ffi::*;
use crate::rnic::{self, NAME};

/// The structure of the one device; it lives as long as the process.
struct Shared(*mut ibv_device);

// SAFETY: the structure never changes.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Returns the device, if the settings describe one.
pub fn the_device() -> Result<*mut ibv_device, Errno> {
    static DEVICE: OnceLock<Shared> = OnceLock::new();
    rnic::config().ok_or(libc::ENODEV)?;
    Ok(DEVICE.get_or_init(|| Shared(Box::into_raw(Box::new(describe())))).0)
}

fn describe() -> ibv_device {
    ibv_device {
        _ops: [std::ptr::null(); 2],
        node_type: IBV_NODE_RNIC,
        transport_type: IBV_TRANSPORT_IWARP,
        name: text(NAME),
        dev_name: text("uverbs0"),
        dev_path: text("/sys/class/infiniband_verbs/uverbs0"),
        ibdev_path: text("/sys/class/infiniband/urnic0"),
    }
}

/// Returns a string as a C character array.
pub fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    array
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    as_pointer(guarded_anywhere(|| {
        let found = the_device().ok();
        // SAFETY: the program passes null or a place for a number.
        if let Some(count) = unsafe { num_devices.as_mut() } {
            *count = found.is_some().into();
        }
        // SAFETY: room for two pointers, null to begin with; the first is written.
        unsafe {
            let list: *mut *mut ibv_device = libc::calloc(2, size_of::<*mut ibv_device>()).cast();
            if list.is_null() {
                return Err(libc::ENOMEM);
            }
            *list = found.unwrap_or(std::ptr::null_mut());
            Ok(list)
        }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: null, or from `ibv_get_device_list`.
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: null or a device of the list.
    unsafe { device.as_ref() }.map_or(std::ptr::null(), |d| d.name.as_ptr())
}

/// Returns -1: only the kernel's devices have an index.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}

/// Returns the GUID in network order.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    let guid = guarded_anywhere(|| match rnic::config() {
        Some(config) if !device.is_null() => Ok(u64::from_ne_bytes(rnic::guid(config))),
        _ => Ok(0),
    });
    guid.unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer(|| {
        // SAFETY: null or a device of the list.
        unsafe { deref(device) }?;
        super::context::open()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    if context.is_null() {
        set_errno(libc::EINVAL);
        return -1;
    }
    crate::call::zero(|| super::context::close(context))
}
