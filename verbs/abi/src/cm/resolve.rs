//! Binds identifiers to addresses of the device, and finds the route to a peer's address.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use super::hub::hub;
use super::id::{Id, complete, id_of};
use crate::call::{Errno, errno_of, zero};
use crate::ffi::*;
use crate::log;
use crate::rnic::rnic;

/// Converts a C socket address, whose fields are in network order. An IPv4-mapped IPv6 address becomes the IPv4
/// address.
///
/// # Safety
/// `addr` is null, or a socket address of the length that its family requires.
pub unsafe fn address(addr: *const libc::sockaddr) -> Result<SocketAddr, Errno> {
    // SAFETY: as the caller promises.
    unsafe {
        match i32::from(crate::call::deref(addr)?.sa_family) {
            libc::AF_INET => {
                let sin = &*addr.cast::<libc::sockaddr_in>();
                let ip = Ipv4Addr::from(u32::from_be(sin.sin_addr.s_addr));
                Ok(SocketAddr::new(ip.into(), u16::from_be(sin.sin_port)))
            }
            libc::AF_INET6 => {
                let sin6 = &*addr.cast::<libc::sockaddr_in6>();
                let (ip, port) = (Ipv6Addr::from(sin6.sin6_addr.s6_addr), u16::from_be(sin6.sin6_port));
                Ok(match ip.to_canonical() {
                    IpAddr::V4(ip) => (ip, port).into(),
                    IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, sin6.sin6_scope_id).into(),
                })
            }
            _ => Err(libc::EAFNOSUPPORT),
        }
    }
}

/// Converts an address to a C socket address, with fields in network order.
pub fn sockaddr(addr: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: zeros are valid for all members.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let scope = if let SocketAddr::V6(addr) = addr { addr.scope_id() } else { 0 };
    match addr.ip().to_canonical() {
        IpAddr::V4(ip) => {
            let sin = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: addr.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(ip).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger, and aligned for all families.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(sin) };
        }
        IpAddr::V6(ip) => {
            let sin6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: addr.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
                sin6_scope_id: scope,
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(sin6) };
        }
    }
    storage
}

/// Returns our address. If it is link-local, it gets the zone (link) of the peer's address (RFC 4007 §6).
fn on_the_link_of(peer: SocketAddr, own: SocketAddr) -> SocketAddr {
    match (peer, own) {
        (SocketAddr::V6(peer), SocketAddr::V6(mut own)) if own.ip().is_unicast_link_local() => {
            own.set_scope_id(peer.scope_id());
            own.into()
        }
        _ => own,
    }
}

/// Writes an address into an identifier.
pub fn place(at: &mut libc::sockaddr_storage, addr: &libc::sockaddr_storage) {
    *at = *addr;
}

/// Binds to an address of the device, or to the unspecified address.
fn bind(id: *mut rdma_cm_id, to: SocketAddr) -> Result<(), Errno> {
    let rnic = rnic()?;
    // SAFETY: null or an identifier.
    let this = unsafe { id_of(id) }?;
    let (bound, reuse, v6only) = {
        let state = this.state();
        (state.address.is_some(), state.reuse, state.v6only)
    };
    if bound {
        return Err(libc::EINVAL);
    }
    let shared = if reuse { hub().shared(to, v6only) } else { None };
    let bound = match shared {
        Some(bound) => bound,
        None => {
            let bound = rnic.device.bind(to, v6only).inspect_err(log::refused);
            Arc::new(bound.map_err(|e| errno_of(&e))?)
        }
    };
    if reuse {
        hub().share(v6only, &bound);
    }
    let address = bound.address();
    {
        let mut state = this.state();
        (state.address, state.bound) = (Some(address), Some(bound));
    }
    // SAFETY: no other thread uses the identifier during this call, as the program promises.
    unsafe {
        place(&mut (*id).route.src_addr, &sockaddr(address));
        // Listeners on the unspecified address have no device.
        if !rnic.is_any(to.ip()) {
            Id::settle(id.cast())?;
        }
    }
    Ok(())
}

/// Binds to the unspecified address and a free port, unless the identifier is bound.
pub fn bind_to_any(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: null or an identifier.
    if unsafe { id_of(id) }?.state().address.is_some() {
        return Ok(());
    }
    bind(id, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))
}

#[inline(never)] // not into functions in which a thread can be cancelled
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int {
    // SAFETY: null or the program's address.
    zero(|| bind(id, unsafe { address(addr) }?))
}

fn resolve(id: *mut rdma_cm_id, src: *const libc::sockaddr, dst: *const libc::sockaddr) -> Result<(), Errno> {
    let rnic = rnic()?;
    // SAFETY: null or an identifier.
    let this = unsafe { id_of(id) }?;
    // SAFETY: null or the program's address.
    let to = unsafe { address(dst) }?;
    // As with sockets, the unspecified address as a destination means this host.
    let to = if to.ip().is_unspecified() { SocketAddr::new(rnic.attributes.ip, to.port()) } else { to };
    if !src.is_null() && this.state().address.is_none() {
        // SAFETY: the program's address.
        bind(id, unsafe { address(src) }?)?;
    }
    let to = rnic.source_beyond_loopback(to).map_or(to, |own| SocketAddr::new(own, to.port()));
    let routed = rnic.source_for(to)?;
    let bound = this.state().address;
    let own = bound.map(|bound| bound.ip()).filter(|own| !rnic.is_any(*own)).unwrap_or(routed);
    let port = bound.map_or(0, |address| address.port());
    let own = on_the_link_of(to, (own, port).into());
    // SAFETY: no other thread uses the identifier during this call, as the program promises.
    unsafe {
        Id::settle(id.cast())?;
        place(&mut (*id).route.src_addr, &sockaddr(own));
        place(&mut (*id).route.dst_addr, &sockaddr(to));
    }
    this.tell(RDMA_CM_EVENT_ADDR_RESOLVED);
    Ok(())
}

#[inline(never)]
extern "C" fn start_to_resolve(
    id: *mut rdma_cm_id,
    src: *const libc::sockaddr,
    dst: *const libc::sockaddr,
) -> c_int {
    zero(|| resolve(id, src, dst))
}

/// Resolves a peer's address. Does not check that the host exists, because connecting checks it. A cancellation point
/// if the identifier is synchronous.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    match start_to_resolve(id, src, dst) {
        // SAFETY: an identifier, as the previous call has checked.
        0 => unsafe { complete(id) },
        failed => failed,
    }
}

fn route(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: null or an identifier.
    let this = unsafe { id_of(id) }?;
    if this.base.verbs.is_null() {
        return Err(libc::EINVAL);
    }
    this.tell(RDMA_CM_EVENT_ROUTE_RESOLVED);
    Ok(())
}

#[inline(never)]
extern "C" fn start_to_route(id: *mut rdma_cm_id) -> c_int {
    zero(|| route(id))
}

/// Raises the event and does nothing else, because [`rdma_resolve_addr`] has found the route already. A
/// cancellation point if the identifier is synchronous.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    match start_to_route(id) {
        // SAFETY: an identifier, as the previous call has checked.
        0 => unsafe { complete(id) },
        failed => failed,
    }
}

/// Returns the port of an address, in network order.
fn port_of(addr: &libc::sockaddr_storage) -> u16 {
    // SAFETY: the storage has room for any address.
    unsafe { address(std::ptr::from_ref(addr).cast()) }.map_or(0, |a| a.port().to_be())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: null or an identifier.
    unsafe { id_of(id) }.map_or(0, |id| port_of(&id.base.route.src_addr))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: null or an identifier.
    unsafe { id_of(id) }.map_or(0, |id| port_of(&id.base.route.dst_addr))
}

#[cfg(test)]
mod tests;
