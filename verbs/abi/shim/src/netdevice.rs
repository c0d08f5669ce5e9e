//! Shows the interface of [`interfaces`](crate::interfaces) to programs that ask through the requests of
//! `netdevice(7)`, `if_nametoindex` and related functions. Answers about the kernel's interfaces stay
//! unchanged; lists of interfaces contain ours as well.

use std::ffi::{CStr, c_char, c_int, c_short, c_uint, c_ulong, c_void};
use std::net::{IpAddr, Ipv4Addr};

use crate::engine;
use crate::interfaces::{self, Cache, FLAGS, NAME, cached, next, of_libc, unknown};

/// The index of the interface: "urn" and a zero byte, far above the indices of kernels. `liburnic_verbs.so` reports
/// it as the interface of its GIDs, if the kernel has no interface for them.
const INDEX: c_uint = 0x7572_6e00;

/// Ethernet, as `if_arp.h` numbers it.
const ARPHRD_ETHER: u16 = 1;

/// `struct ifreq`, with the members of its union that are used here.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    data: Data,
}

#[repr(C)]
union Data {
    address: libc::sockaddr_in,
    hardware: libc::sockaddr,
    flags: c_short,
    number: c_int,
    _size: [u64; 3],
}

const _: () = assert!(size_of::<Request>() == 40);

/// `struct ifconf`.
#[repr(C)]
struct Configuration {
    len: c_int,
    requests: *mut Request,
}

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;
type NameToIndex = unsafe extern "C" fn(*const c_char) -> c_uint;
type IndexToName = unsafe extern "C" fn(c_uint, *mut c_char) -> *mut c_char;
type NameIndex = unsafe extern "C" fn() -> *mut libc::if_nameindex;
type FreeNameIndex = unsafe extern "C" fn(*mut libc::if_nameindex);

fn set_errno(errno: c_int) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// The requests that [`tell`] answers.
const QUERIES: [c_ulong; 10] = [
    libc::SIOCGIFNAME,
    libc::SIOCGIFADDR,
    libc::SIOCGIFDSTADDR,
    libc::SIOCGIFNETMASK,
    libc::SIOCGIFBRDADDR,
    libc::SIOCGIFFLAGS,
    libc::SIOCGIFINDEX,
    libc::SIOCGIFMETRIC,
    libc::SIOCGIFMTU,
    libc::SIOCGIFHWADDR,
];

/// Returns whether we have an interface to show.
fn is_there() -> bool {
    !interfaces::addresses().is_empty()
}

/// Returns the IPv4 address and mask of the interface, which has at most one IPv4 address; `None` if it has
/// none.
fn ipv4() -> Option<(Ipv4Addr, Ipv4Addr)> {
    interfaces::addresses().into_iter().find_map(|(ip, prefix)| match ip {
        IpAddr::V4(ip) => Some((ip, interfaces::mask4(prefix))),
        IpAddr::V6(_) => None,
    })
}

fn sockaddr_in(ip: Ipv4Addr) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from(ip).to_be() },
        sin_zero: [0; 8],
    }
}

/// Returns `NAME` as requests contain it.
fn name() -> [u8; libc::IFNAMSIZ] {
    let mut name = [0; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(NAME.to_bytes()) {
        *to = *from;
    }
    name
}

/// Calls `real`, another definition of `ioctl`, and answers requests about our interface.
///
/// # Safety
/// `real` is null or a function of that name; `argument` is as the request requires.
unsafe fn ioctl_by(real: *mut c_void, fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if real.is_null() {
        set_errno(libc::ENOSYS);
        return -1;
    }
    // SAFETY: as the caller promises.
    unsafe {
        let real: Ioctl = std::mem::transmute(real);
        if request == libc::SIOCGIFCONF && !argument.is_null() && is_there() {
            return configuration(fd, argument.cast());
        }
        let answer = real(fd, request, argument);
        // ENODEV: the kernel has no interface of that name or index. The argument of a request outside `QUERIES`, such
        // as a driver's own request, may be anything.
        if answer != -1
            || errno() != libc::ENODEV
            || argument.is_null()
            || !QUERIES.contains(&request)
            || !is_there()
        {
            return answer;
        }
        match tell(request, &mut *argument.cast()) {
            Ok(()) => 0,
            Err(errno) => {
                set_errno(errno);
                -1
            }
        }
    }
}

/// Answers a request about the interface. Returns ENODEV if it is about another interface, or not one of the
/// queries below.
///
/// # Safety
/// The request is one of `netdevice(7)`, each of which takes a [`Request`].
unsafe fn tell(request: c_ulong, to: &mut Request) -> Result<(), c_int> {
    if request == libc::SIOCGIFNAME {
        // SAFETY: the request's argument is an index.
        if c_uint::try_from(unsafe { to.data.number }) != Ok(INDEX) {
            return Err(libc::ENODEV);
        }
        to.name = name();
        return Ok(());
    }
    let asked = to.name.split(|c| *c == 0).next().unwrap_or_default();
    if asked != NAME.to_bytes() {
        return Err(libc::ENODEV);
    }
    let (ip, mask) = ipv4().unzip();
    // The kernel's error for an interface without an IPv4 address.
    let (ip, mask) = (ip.ok_or(libc::EADDRNOTAVAIL), mask.ok_or(libc::EADDRNOTAVAIL));
    to.data = match request {
        libc::SIOCGIFADDR | libc::SIOCGIFDSTADDR => Data { address: sockaddr_in(ip?) },
        libc::SIOCGIFNETMASK => Data { address: sockaddr_in(mask?) },
        libc::SIOCGIFBRDADDR => Data { address: sockaddr_in(ip? | !mask?) },
        libc::SIOCGIFFLAGS => Data { flags: FLAGS as c_short },
        libc::SIOCGIFINDEX => Data { number: INDEX as c_int },
        libc::SIOCGIFMETRIC => Data { number: 0 },
        libc::SIOCGIFMTU => Data { number: engine::link().1 },
        libc::SIOCGIFHWADDR => {
            let mut hardware = libc::sockaddr { sa_family: ARPHRD_ETHER, sa_data: [0; 14] };
            for (to, from) in hardware.sa_data.iter_mut().zip(engine::link().0) {
                *to = from as c_char;
            }
            Data { hardware }
        }
        _ => return Err(libc::ENODEV),
    };
    Ok(())
}

/// Lists the interfaces with IPv4 addresses, ours before the kernel's, as far as there is room. Asks the kernel
/// itself: the next definition of `ioctl` may be the drop-in library's, which would add our interface a second time.
///
/// # Safety
/// `asked` is a structure as `SIOCGIFCONF` requires it.
unsafe fn configuration(fd: c_int, asked: *mut Configuration) -> c_int {
    // SAFETY: as the caller promises.
    let real = |list: *mut Configuration| unsafe {
        libc::syscall(libc::SYS_ioctl, fd, libc::SIOCGIFCONF, list) as c_int
    };
    let entry = size_of::<Request>() as c_int;
    // SAFETY: as the caller promises. The kernel writes after our entry, into the rest of the program's room.
    unsafe {
        let Configuration { len, requests } = asked.read();
        let own = ipv4().filter(|_| requests.is_null() || len >= entry);
        let Some((ip, _)) = own else { return real(asked) };
        let mut rest = match requests.is_null() {
            true => Configuration { len, requests },
            false => Configuration { len: len - entry, requests: requests.add(1) },
        };
        let answer = real(&raw mut rest);
        if answer == 0 {
            if !requests.is_null() {
                let mut ours = Request { name: name(), data: Data { _size: [0; 3] } };
                ours.data.address = sockaddr_in(ip);
                requests.write(ours);
            }
            (*asked).len = rest.len + entry;
        }
        answer
    }
}

/// Calls `real`, another definition of `if_nametoindex`. If that finds no interface, and the name is that of
/// ours, returns our index.
///
/// # Safety
/// `real` is null or a function of that name; `name` is a NUL-terminated string.
unsafe fn nametoindex_by(real: *mut c_void, name: *const c_char) -> c_uint {
    // SAFETY: as the caller promises.
    unsafe {
        if !real.is_null() {
            let index = std::mem::transmute::<*mut c_void, NameToIndex>(real)(name);
            if index != 0 {
                return index;
            }
        }
        if !name.is_null() && CStr::from_ptr(name) == NAME && is_there() { INDEX } else { 0 }
    }
}

/// Returns the name of our interface for its index; otherwise calls `real`, another definition of `if_indextoname`.
///
/// # Safety
/// `real` is null or a function of that name; `to` has room for a name.
unsafe fn indextoname_by(real: *mut c_void, index: c_uint, to: *mut c_char) -> *mut c_char {
    // SAFETY: as the caller promises.
    unsafe {
        if index == INDEX && is_there() {
            to.copy_from_nonoverlapping(NAME.as_ptr(), NAME.to_bytes_with_nul().len());
            return to;
        }
        if real.is_null() {
            set_errno(libc::ENXIO);
            return std::ptr::null_mut();
        }
        std::mem::transmute::<*mut c_void, IndexToName>(real)(index, to)
    }
}

/// Calls `real`, another definition of `if_nameindex`. Returns our entry and a copy of that function's list, in one
/// block of memory; `free` frees the original.
///
/// # Safety
/// `real` and `free` are null or functions of those names.
unsafe fn nameindex_by(real: *mut c_void, free: *mut c_void) -> *mut libc::if_nameindex {
    if real.is_null() || free.is_null() {
        set_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    }
    // SAFETY: as the caller promises; the list ends with an entry without an index and a name, and its names are
    // NUL-terminated.
    unsafe {
        let list = std::mem::transmute::<*mut c_void, NameIndex>(real)();
        if list.is_null() || is_ours(list) || !is_there() {
            return list;
        }
        let known = (0..).map(|i| &*list.add(i)).take_while(|e| e.if_index != 0 || !e.if_name.is_null());
        let known: Vec<&libc::if_nameindex> = known.collect();
        let names: usize = known.iter().map(|e| CStr::from_ptr(e.if_name).count_bytes() + 1).sum();
        let entries = (known.len() + 2) * size_of::<libc::if_nameindex>();
        let copy: *mut libc::if_nameindex = libc::malloc(entries + names).cast();
        if !copy.is_null() {
            let mut text: *mut c_char = copy.byte_add(entries).cast();
            copy.write(libc::if_nameindex { if_index: INDEX, if_name: NAME.as_ptr().cast_mut() });
            for (i, entry) in known.iter().enumerate() {
                let len = CStr::from_ptr(entry.if_name).count_bytes() + 1;
                text.copy_from_nonoverlapping(entry.if_name, len);
                copy.add(i + 1).write(libc::if_nameindex { if_index: entry.if_index, if_name: text });
                text = text.add(len);
            }
            let end = libc::if_nameindex { if_index: 0, if_name: std::ptr::null_mut() };
            copy.add(known.len() + 1).write(end);
        }
        std::mem::transmute::<*mut c_void, FreeNameIndex>(free)(list);
        copy
    }
}

/// Returns whether we have made a list. Even `real` may return such a list, if the call has passed through a drop-in
/// library as well.
///
/// # Safety
/// `list` is null or a list of `if_nameindex`.
unsafe fn is_ours(list: *const libc::if_nameindex) -> bool {
    // SAFETY: as the caller promises.
    unsafe { list.as_ref() }.is_some_and(|first| std::ptr::eq(first.if_name, NAME.as_ptr()))
}

/// Frees the list if it is ours; otherwise calls `real`, another definition of `if_freenameindex`.
///
/// # Safety
/// `real` is null or a function of that name; `list` is null or a list of `if_nameindex`.
unsafe fn freenameindex_by(real: *mut c_void, list: *mut libc::if_nameindex) {
    // SAFETY: as the caller promises.
    unsafe {
        if is_ours(list) {
            libc::free(list.cast());
        } else if !real.is_null() {
            std::mem::transmute::<*mut c_void, FreeNameIndex>(real)(list);
        }
    }
}

/// The functions behind the symbols of the drop-in libraries: see [`interfaces::drop_in`].
pub mod drop_in {
    use super::*;

    static IOCTL: Cache = unknown();
    static NAMETOINDEX: Cache = unknown();
    static INDEXTONAME: Cache = unknown();
    static NAMEINDEX: Cache = unknown();
    static FREENAMEINDEX: Cache = unknown();

    /// If the program passes no third argument, `argument` is whatever its register contains.
    pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        // SAFETY: a function of that name; otherwise as the caller promises.
        unsafe { ioctl_by(cached(&IOCTL, || of_libc(c"ioctl")), fd, request, argument) }
    }

    pub unsafe extern "C" fn if_nametoindex(name: *const c_char) -> c_uint {
        // SAFETY: as above.
        unsafe { nametoindex_by(cached(&NAMETOINDEX, || of_libc(c"if_nametoindex")), name) }
    }

    pub unsafe extern "C" fn if_indextoname(index: c_uint, to: *mut c_char) -> *mut c_char {
        // SAFETY: as above.
        unsafe { indextoname_by(cached(&INDEXTONAME, || of_libc(c"if_indextoname")), index, to) }
    }

    pub unsafe extern "C" fn if_nameindex() -> *mut libc::if_nameindex {
        let real = cached(&NAMEINDEX, || of_libc(c"if_nameindex"));
        // SAFETY: functions of these names.
        unsafe { nameindex_by(real, cached(&FREENAMEINDEX, || of_libc(c"if_freenameindex"))) }
    }

    pub unsafe extern "C" fn if_freenameindex(list: *mut libc::if_nameindex) {
        // SAFETY: as above.
        unsafe { freenameindex_by(cached(&FREENAMEINDEX, || of_libc(c"if_freenameindex")), list) }
    }
}

/// The symbols of `liburnic.so`, which call the next definition in the process.
mod symbols {
    use super::*;

    static IOCTL: Cache = unknown();
    static NAMETOINDEX: Cache = unknown();
    static INDEXTONAME: Cache = unknown();
    static NAMEINDEX: Cache = unknown();
    static FREENAMEINDEX: Cache = unknown();

    #[unsafe(no_mangle)]
    unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        // SAFETY: a function of that name; otherwise as the caller promises.
        unsafe { ioctl_by(next(c"ioctl", &IOCTL), fd, request, argument) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn if_nametoindex(name: *const c_char) -> c_uint {
        // SAFETY: as above.
        unsafe { nametoindex_by(next(c"if_nametoindex", &NAMETOINDEX), name) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn if_indextoname(index: c_uint, to: *mut c_char) -> *mut c_char {
        // SAFETY: as above.
        unsafe { indextoname_by(next(c"if_indextoname", &INDEXTONAME), index, to) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn if_nameindex() -> *mut libc::if_nameindex {
        let real = next(c"if_nameindex", &NAMEINDEX);
        // SAFETY: functions of these names.
        unsafe { nameindex_by(real, next(c"if_freenameindex", &FREENAMEINDEX)) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn if_freenameindex(list: *mut libc::if_nameindex) {
        // SAFETY: as above.
        unsafe { freenameindex_by(next(c"if_freenameindex", &FREENAMEINDEX), list) }
    }
}
