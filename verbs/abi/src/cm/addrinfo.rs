//! Resolves names and services to addresses.

use std::ffi::{c_char, c_int};

use super::id::{complete, id_of};
use crate::call::{Errno, as_number, guarded_anywhere, last_errno, set_errno, zero};
use crate::ffi::*;
use crate::live::{self, Kind};
use crate::rnic::config;

/// glibc's error number for a name without an address of the family.
const EAI_ADDRFAMILY: c_int = -9;

/// Returns the address family in which names are looked up first: the family of the configured addresses, or
/// AF_UNSPEC if they are of both families. Without configured addresses, as on the kernel's sockets, the family
/// is IPv4, because the host's own name has addresses of both families, and servers listen on IPv4 unless told
/// otherwise.
fn family() -> c_int {
    let own = config().map_or(&[][..], |config| &config.ip.addresses);
    let (v4, v6) = (own.iter().any(|a| a.address.is_ipv4()), own.iter().any(|a| a.address.is_ipv6()));
    match (v4, v6) {
        (true, true) => libc::AF_UNSPEC,
        (_, true) => libc::AF_INET6,
        _ => libc::AF_INET,
    }
}

/// Returns the hints for `getaddrinfo` that correspond to the program's.
fn wishes(hints: Option<&rdma_addrinfo>) -> libc::addrinfo {
    // SAFETY: null pointers and zeros are valid for all members.
    let mut ai: libc::addrinfo = unsafe { std::mem::zeroed() };
    ai.ai_family = family();
    ai.ai_socktype = libc::SOCK_STREAM;
    if let Some(hints) = hints {
        if hints.ai_flags & RAI_FAMILY != 0 {
            ai.ai_family = hints.ai_family;
        }
        if hints.ai_flags & RAI_PASSIVE != 0 {
            ai.ai_flags |= libc::AI_PASSIVE;
        }
        if hints.ai_flags & RAI_NUMERICHOST != 0 {
            ai.ai_flags |= libc::AI_NUMERICHOST;
        }
    }
    ai
}

/// Copies an address into memory that `free` releases.
///
/// # Safety
/// `len` bytes are at `addr`.
unsafe fn copy(addr: *const libc::sockaddr, len: libc::socklen_t) -> Result<*mut libc::sockaddr, Errno> {
    // SAFETY: as the caller promises; fresh memory.
    unsafe {
        let copy = libc::malloc(len as usize);
        if copy.is_null() {
            return Err(libc::ENOMEM);
        }
        libc::memcpy(copy, addr.cast(), len as usize);
        Ok(copy.cast())
    }
}

/// Makes the entry of one address.
///
/// # Safety
/// `ai` is an entry of `getaddrinfo`; the hints are the program's, if any.
unsafe fn entry(ai: &libc::addrinfo, hints: Option<&rdma_addrinfo>) -> Result<*mut rdma_addrinfo, Errno> {
    let mut made = Found::empty();
    let rai = made.entry();
    rai.ai_flags = hints.map_or(0, |h| h.ai_flags);
    rai.ai_family = ai.ai_family;
    // SAFETY: as the caller promises.
    unsafe {
        if rai.ai_flags & RAI_PASSIVE != 0 {
            rai.ai_src_len = ai.ai_addrlen;
            rai.ai_src_addr = copy(ai.ai_addr, ai.ai_addrlen)?;
        } else {
            rai.ai_dst_len = ai.ai_addrlen;
            rai.ai_dst_addr = copy(ai.ai_addr, ai.ai_addrlen)?;
            if !ai.ai_canonname.is_null() {
                rai.ai_dst_canonname = libc::strdup(ai.ai_canonname);
            }
            if let Some(hints) = hints.filter(|h| h.ai_src_len > 0 && !h.ai_src_addr.is_null()) {
                rai.ai_src_len = hints.ai_src_len;
                rai.ai_src_addr = copy(hints.ai_src_addr, hints.ai_src_len)?;
            }
        }
    }
    Ok(made.into_raw())
}

/// Resolves a name as `getaddrinfo` does. If the name cannot be resolved, returns the error number of `getaddrinfo`,
/// and sets errno to a corresponding error. Other failures return -1 and set errno.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    as_number(guarded_anywhere(|| {
        // SAFETY: null or the program's hints.
        let hints = unsafe { hints.as_ref() };
        let by_address = hints.is_some_and(|h| !h.ai_dst_addr.is_null() || !h.ai_src_addr.is_null());
        if res.is_null() || (node.is_null() && service.is_null() && !by_address) {
            return Err(libc::EINVAL);
        }
        // Ethernet has no subnet administrator.
        if hints.is_some_and(|h| h.ai_flags & RAI_SA != 0) {
            return Err(libc::EOPNOTSUPP);
        }
        let kinds = [IBV_QPT_RC, 0];
        let spaces = [RDMA_PS_TCP, 0];
        if hints.is_some_and(|h| !kinds.contains(&h.ai_qp_type) || !spaces.contains(&h.ai_port_space)) {
            return Err(libc::EOPNOTSUPP);
        }
        if node.is_null() && service.is_null() {
            // SAFETY: the program's place for the answer.
            unsafe { res.write(echo(hints.ok_or(libc::EINVAL)?)?) };
            return Ok(0);
        }
        let mut wishes = wishes(hints);
        let mut found: *mut libc::addrinfo = std::ptr::null_mut();
        // SAFETY: the program's strings.
        let mut answer = unsafe { libc::getaddrinfo(node, service, &wishes, &mut found) };
        let of_another = [libc::EAI_NONAME, libc::EAI_NODATA, EAI_ADDRFAMILY].contains(&answer);
        if of_another && hints.is_none_or(|h| h.ai_flags & RAI_FAMILY == 0) {
            wishes.ai_family = libc::AF_UNSPEC;
            // SAFETY: as above.
            answer = unsafe { libc::getaddrinfo(node, service, &wishes, &mut found) };
        }
        if answer != 0 {
            set_errno(match answer {
                libc::EAI_SYSTEM => last_errno(),
                libc::EAI_MEMORY => libc::ENOMEM,
                libc::EAI_AGAIN => libc::EAGAIN,
                _ => libc::ENODATA,
            });
            return Ok(answer);
        }
        // SAFETY: at least one entry was found.
        let made = unsafe { entry(&*found, hints) };
        // SAFETY: from `getaddrinfo`, and the program's place for the answer.
        unsafe {
            libc::freeaddrinfo(found);
            res.write(made?);
        }
        Ok(0)
    }))
}

/// Returns an entry with the addresses of the hints.
fn echo(hints: &rdma_addrinfo) -> Result<*mut rdma_addrinfo, Errno> {
    let mut made = Found::empty();
    let rai = made.entry();
    rai.ai_flags = hints.ai_flags;
    // SAFETY: the program's addresses, of the lengths that it states.
    unsafe {
        for (addr, len, to, to_len) in [
            (hints.ai_src_addr, hints.ai_src_len, &mut rai.ai_src_addr, &mut rai.ai_src_len),
            (hints.ai_dst_addr, hints.ai_dst_len, &mut rai.ai_dst_addr, &mut rai.ai_dst_len),
        ] {
            if !addr.is_null() && len > 0 {
                (*to, *to_len) = (copy(addr, len)?, len);
                rai.ai_family = i32::from((*addr).sa_family);
            }
        }
    }
    Ok(made.into_raw())
}

/// The result of `rdma_resolve_addrinfo`, until the program fetches it.
#[derive(Default)]
pub enum Resolution {
    #[default]
    None,
    UnderWay,
    Found(Found),
}

/// An entry that we own.
pub struct Found(*mut rdma_addrinfo);

// SAFETY: the entry has no other owner.
unsafe impl Send for Found {}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: null or an entry that has no other owner.
        unsafe { rdma_freeaddrinfo(self.0) };
    }
}

impl Found {
    /// Makes an entry without addresses.
    fn empty() -> Self {
        // SAFETY: null pointers and zeros are valid for all members.
        let mut rai: Box<rdma_addrinfo> = Box::new(unsafe { std::mem::zeroed() });
        rai.ai_qp_type = IBV_QPT_RC;
        rai.ai_port_space = RDMA_PS_TCP;
        Self(live::enter(Kind::AddrInfo, Box::into_raw(rai)))
    }

    fn entry(&mut self) -> &mut rdma_addrinfo {
        // SAFETY: the entry has no other owner, and is not null before `into_raw`.
        unsafe { &mut *self.0 }
    }

    fn into_raw(mut self) -> *mut rdma_addrinfo {
        std::mem::replace(&mut self.0, std::ptr::null_mut())
    }
}

#[inline(never)]
unsafe extern "C" fn start_to_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    zero(|| {
        // SAFETY: null or an identifier.
        let this = unsafe { id_of(id) }?;
        match &mut this.state().resolution {
            free @ Resolution::None => *free = Resolution::UnderWay,
            _ => return Err(libc::EBUSY),
        }
        let mut found = std::ptr::null_mut();
        // SAFETY: the program's strings and hints, and a place for the answer.
        let answer = unsafe { rdma_getaddrinfo(node, service, hints, &raw mut found) };
        let errno = last_errno();
        this.state().resolution =
            if answer == 0 { Resolution::Found(Found(found)) } else { Resolution::None };
        if answer != 0 {
            return Err(errno);
        }
        this.tell(RDMA_CM_EVENT_ADDRINFO_RESOLVED);
        Ok(())
    })
}

/// Resolves a name and raises the event before the call returns, as librdmacm does. A cancellation point if the
/// identifier is synchronous.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: the program's pointers; the first call has checked the identifier.
    unsafe {
        match start_to_resolve_addrinfo(id, node, service, hints) {
            0 => complete(id),
            failed => failed,
        }
    }
}

/// Stores at `info` the entry that `rdma_resolve_addrinfo` has found; from then on, the program owns the entry. Fails
/// with ENOENT if there is none.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int {
    zero(|| {
        // SAFETY: null or an identifier.
        let this = unsafe { id_of(id) }?;
        if info.is_null() {
            return Err(libc::EINVAL);
        }
        let mut state = this.state();
        let Resolution::Found(_) = &state.resolution else { return Err(libc::ENOENT) };
        if let Resolution::Found(found) = std::mem::take(&mut state.resolution) {
            // SAFETY: the program's place for the answer.
            unsafe { info.write(found.into_raw()) };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    let _ = guarded_anywhere(|| {
        let mut next = res;
        while !next.is_null() {
            live::take(Kind::AddrInfo, next)?;
            // SAFETY: an entry that we made, with memory from `malloc`; the program gives it up.
            unsafe {
                let rai = Box::from_raw(next);
                for memory in [rai.ai_src_addr.cast(), rai.ai_dst_addr.cast(), rai.ai_connect, rai.ai_route] {
                    libc::free(memory);
                }
                libc::free(rai.ai_src_canonname.cast());
                libc::free(rai.ai_dst_canonname.cast());
                next = rai.ai_next;
            }
        }
        Ok(())
    });
}
