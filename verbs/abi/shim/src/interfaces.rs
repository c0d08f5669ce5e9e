//! Adds the device's addresses to this host's addresses, as programs see them. Some programs choose their device by
//! the addresses of interfaces, and the kernel does not know ours.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The name of the interface that we show for the device.
pub const NAME: &CStr = c"urnic0";
/// The interface's state, as `IFF_` flags.
pub const FLAGS: c_int = libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_BROADCAST | libc::IFF_MULTICAST;

/// An entry of ours in a list of `getifaddrs`. Our entries come before those of the kernel.
#[repr(C)]
struct Entry {
    base: libc::ifaddrs,
    address: libc::sockaddr_storage,
    mask: libc::sockaddr_storage,
    broadcast: libc::sockaddr_storage,
}

/// Returns the device's addresses and prefix lengths, as `urnic run` sets them.
pub fn addresses() -> Vec<(IpAddr, u8)> {
    let text = std::env::var("URNIC_IP").unwrap_or_default();
    let one = |text: &str| {
        let (ip, prefix) = text.split_once('/')?;
        let ip: IpAddr = ip.parse().ok()?;
        let width = if ip.is_ipv4() { 32 } else { 128 };
        Some((ip, prefix.parse().ok().filter(|p| *p <= width)?))
    };
    text.split(',').filter_map(one).collect()
}

fn sockaddr(ip: IpAddr) -> libc::sockaddr_storage {
    // SAFETY: zeros are values of all members.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match ip {
        IpAddr::V4(ip) => {
            let sin = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: 0,
                sin_addr: libc::in_addr { s_addr: u32::from(ip).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger, and aligned for all kinds.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(sin) };
        }
        IpAddr::V6(ip) => {
            let sin6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: 0,
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
                sin6_scope_id: 0,
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(sin6) };
        }
    }
    storage
}

/// Returns the next definition of a function after ours; if there is none, the C library's own.
pub fn next(name: &CStr, cache: &Cache) -> *mut c_void {
    cached(cache, || {
        // SAFETY: a NUL-terminated string.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        if next.is_null() { of_libc(name) } else { next }
    })
}

/// Returns the C library's own definition of a function.
pub fn of_libc(name: &CStr) -> *mut c_void {
    // SAFETY: NUL-terminated strings. The C library is always loaded.
    unsafe {
        let libc = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        libc::dlsym(libc, name.as_ptr())
    }
}

/// Returns the cached function. Calls `find` and caches its result while none is cached.
pub fn cached(cache: &Cache, find: impl FnOnce() -> *mut c_void) -> *mut c_void {
    let known = cache.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let found = find();
    cache.store(found, Ordering::Release);
    found
}

/// The address of a function, once it has been looked up; null before.
pub type Cache = AtomicPtr<c_void>;

/// Returns an empty cache.
pub const fn unknown() -> Cache {
    AtomicPtr::new(ptr::null_mut())
}

type GetIfAddrs = unsafe extern "C" fn(*mut *mut libc::ifaddrs) -> c_int;
type FreeIfAddrs = unsafe extern "C" fn(*mut libc::ifaddrs);
type GetAddrInfo = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    *const libc::addrinfo,
    *mut *mut libc::addrinfo,
) -> c_int;

/// Calls `real`, another definition of `getifaddrs`, and adds our entries to its list. Adds nothing if the list has
/// our entries already, because the call has passed through a drop-in library as well.
///
/// # Safety
/// `real` is null or a function of that name; `list` is the program's pointer.
unsafe fn getifaddrs_by(real: *mut c_void, list: *mut *mut libc::ifaddrs) -> c_int {
    if real.is_null() {
        return -1;
    }
    // SAFETY: as the caller promises.
    unsafe {
        let real: GetIfAddrs = std::mem::transmute(real);
        let answer = real(list);
        if answer == 0 && !is_ours(*list) {
            for (ip, prefix) in addresses().into_iter().rev() {
                *list = Box::into_raw(entry(ip, prefix, *list)).cast();
            }
        }
        answer
    }
}

/// Returns the mask of an IPv4 prefix.
pub fn mask4(prefix: u8) -> Ipv4Addr {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0).into()
}

fn entry(ip: IpAddr, prefix: u8, next: *mut libc::ifaddrs) -> Box<Entry> {
    let (mask, broadcast) = match ip {
        IpAddr::V4(ip) => {
            let mask = mask4(prefix);
            (IpAddr::V4(mask), Some(IpAddr::V4(ip | !mask)))
        }
        IpAddr::V6(_) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            (IpAddr::V6(mask.into()), None)
        }
    };
    // SAFETY: null pointers and zeros are values of all members.
    let base: libc::ifaddrs = unsafe { std::mem::zeroed() };
    let address = sockaddr(ip);
    let mut entry = Box::new(Entry {
        base,
        address,
        mask: sockaddr(mask),
        broadcast: broadcast.map_or(address, sockaddr),
    });
    entry.base.ifa_next = next;
    entry.base.ifa_name = NAME.as_ptr().cast_mut();
    entry.base.ifa_flags = FLAGS as u32;
    entry.base.ifa_addr = (&raw mut entry.address).cast();
    entry.base.ifa_netmask = (&raw mut entry.mask).cast();
    if broadcast.is_some() {
        entry.base.ifa_ifu = (&raw mut entry.broadcast).cast();
    }
    entry
}

/// Returns whether an entry of a list is one of ours.
///
/// # Safety
/// `entry` is null or an entry.
unsafe fn is_ours(entry: *const libc::ifaddrs) -> bool {
    // SAFETY: as the caller promises.
    unsafe { entry.as_ref() }.is_some_and(|entry| ptr::eq(entry.ifa_name, NAME.as_ptr()))
}

/// Frees our entries, and passes the rest of the list to `real`, another definition of `freeifaddrs`.
///
/// # Safety
/// `real` is null or a function of that name; `list` is null or a list of `getifaddrs`.
unsafe fn freeifaddrs_by(real: *mut c_void, list: *mut libc::ifaddrs) {
    // SAFETY: as the caller promises; the list begins with our entries if it has any.
    unsafe {
        let mut rest = list;
        while is_ours(rest) {
            let ours = rest.cast::<Entry>();
            rest = (*rest).ifa_next;
            drop(Box::from_raw(ours));
        }
        if !real.is_null() {
            let real: FreeIfAddrs = std::mem::transmute(real);
            real(rest);
        }
    }
}

/// Calls `real`, another definition of `getaddrinfo`, without the flag `AI_ADDRCONFIG`. With that flag, the C library
/// leaves out addresses of a family that no interface of the kernel has; but the device may have that family.
///
/// # Safety
/// `real` is null or a function of that name; the other pointers are the program's.
unsafe fn getaddrinfo_by(
    real: *mut c_void,
    node: *const c_char,
    service: *const c_char,
    hints: *const libc::addrinfo,
    found: *mut *mut libc::addrinfo,
) -> c_int {
    if real.is_null() {
        return libc::EAI_FAIL;
    }
    // SAFETY: as the caller promises.
    unsafe {
        let real: GetAddrInfo = std::mem::transmute(real);
        // Without hints, the C library would set AI_ADDRCONFIG. Zeros are valid hints, and set no flag.
        let mut own: libc::addrinfo = hints.as_ref().copied().unwrap_or_else(|| std::mem::zeroed());
        own.ai_flags &= !libc::AI_ADDRCONFIG;
        real(node, service, &own, found)
    }
}

/// The functions behind the symbols of the drop-in libraries. They call the C library directly: the next definition
/// after `liburnic.so` may be a sanitizer's, which would call these functions again.
pub mod drop_in {
    use super::*;

    static GETIFADDRS: Cache = unknown();
    static FREEIFADDRS: Cache = unknown();
    static GETADDRINFO: Cache = unknown();

    pub unsafe extern "C" fn getifaddrs(list: *mut *mut libc::ifaddrs) -> c_int {
        // SAFETY: a function of that name; otherwise as the caller promises.
        unsafe { getifaddrs_by(cached(&GETIFADDRS, || of_libc(c"getifaddrs")), list) }
    }

    pub unsafe extern "C" fn freeifaddrs(list: *mut libc::ifaddrs) {
        // SAFETY: as above.
        unsafe { freeifaddrs_by(cached(&FREEIFADDRS, || of_libc(c"freeifaddrs")), list) }
    }

    pub unsafe extern "C" fn getaddrinfo(
        node: *const c_char,
        service: *const c_char,
        hints: *const libc::addrinfo,
        found: *mut *mut libc::addrinfo,
    ) -> c_int {
        let real = cached(&GETADDRINFO, || of_libc(c"getaddrinfo"));
        // SAFETY: as above.
        unsafe { getaddrinfo_by(real, node, service, hints, found) }
    }
}

/// The symbols of `liburnic.so`, which call the next definition in the process.
mod symbols {
    use super::*;

    static GETIFADDRS: Cache = unknown();
    static FREEIFADDRS: Cache = unknown();
    static GETADDRINFO: Cache = unknown();

    #[unsafe(no_mangle)]
    unsafe extern "C" fn getifaddrs(list: *mut *mut libc::ifaddrs) -> c_int {
        // SAFETY: a function of that name; otherwise as the caller promises.
        unsafe { getifaddrs_by(next(c"getifaddrs", &GETIFADDRS), list) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn freeifaddrs(list: *mut libc::ifaddrs) {
        // SAFETY: as above.
        unsafe { freeifaddrs_by(next(c"freeifaddrs", &FREEIFADDRS), list) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn getaddrinfo(
        node: *const c_char,
        service: *const c_char,
        hints: *const libc::addrinfo,
        found: *mut *mut libc::addrinfo,
    ) -> c_int {
        // SAFETY: as above.
        unsafe { getaddrinfo_by(next(c"getaddrinfo", &GETADDRINFO), node, service, hints, found) }
    }
}
