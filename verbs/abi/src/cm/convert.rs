//! Turns connected sockets of the program into RDMA connections, by functions of our own, which `include/urnic.h`
//! declares.

use std::ffi::{c_int, c_void};
use std::net::TcpStream;
use std::os::fd::{FromRawFd, OwnedFd};

use urnic::Role;

use super::connect::{queue_pair, terms};
use super::hub::{connector, hub};
use super::id::{Id, complete, id_of};
use super::resolve::{place, sockaddr};
use crate::call::{Errno, errno_of, last_errno, zero};
use crate::ffi::*;
use crate::log;

const INITIATOR: c_int = 0;
const RESPONDER: c_int = 1;

/// Makes a second descriptor of the program's socket.
fn duplicate(fd: c_int) -> Result<OwnedFd, Errno> {
    // SAFETY: no pointers are passed.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(last_errno());
    }
    // SAFETY: just made, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Ties an identifier to the device, and sets its addresses to those of a socket.
///
/// # Safety
/// `id` is an identifier that no other thread uses.
unsafe fn settle(id: *mut rdma_cm_id, fd: c_int) -> Result<(), Errno> {
    let socket = TcpStream::from(duplicate(fd)?);
    // Rust reports other address families without a kernel error number.
    let errno = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::EAFNOSUPPORT);
    let (own, peer) = (socket.local_addr().map_err(errno)?, socket.peer_addr().map_err(errno)?);
    // SAFETY: as the caller promises.
    unsafe {
        Id::settle(id.cast())?;
        place(&mut (*id).route.src_addr, &sockaddr(own));
        place(&mut (*id).route.dst_addr, &sockaddr(peer));
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn urnic_resolve_socket(id: *mut rdma_cm_id, fd: c_int) -> c_int {
    zero(|| {
        // SAFETY: null or an identifier.
        if unsafe { id_of(id) }?.state().address.is_some() {
            return Err(libc::EINVAL);
        }
        // SAFETY: no other thread uses the identifier during this call, as the program promises.
        unsafe { settle(id, fd) }
    })
}

/// Octets that the program has read from the socket already.
struct Octets(*const c_void, usize);

impl Octets {
    /// # Safety
    /// The octets, if any, are readable for `'a`.
    unsafe fn bytes<'a>(&self) -> Result<&'a [u8], Errno> {
        match *self {
            Octets(_, 0) => Ok(&[]),
            Octets(at, n) if !at.is_null() && isize::try_from(n).is_ok() => {
                // SAFETY: as the caller promises.
                Ok(unsafe { std::slice::from_raw_parts(at.cast(), n) })
            }
            _ => Err(libc::EINVAL),
        }
    }
}

fn convert(
    id: *mut rdma_cm_id,
    fd: c_int,
    role: c_int,
    octets: &Octets,
    param: *const rdma_conn_param,
) -> Result<(), Errno> {
    let role = match role {
        INITIATOR => Role::Initiator,
        RESPONDER => Role::Responder,
        _ => return Err(libc::EINVAL),
    };
    // SAFETY: null, or an identifier, its queue pair, and the program's parameters and octets, which stay valid
    // during the call.
    let (this, param, already_read) = unsafe { (id_of(id)?, param.as_ref(), octets.bytes()?) };
    // SAFETY: the program does not destroy the queue pair meanwhile.
    let pair = unsafe { queue_pair(this, param) }?;
    // SAFETY: the program's data.
    let terms = unsafe { terms(this, param) };
    hub().tie(pair.qp.qpn(), this.as_ptr());
    let begun = connector()?.convert(&pair.qp, duplicate(fd)?, role, already_read, &terms);
    let connection = begun.inspect_err(|e| log::refused(e.error())).map_err(|e| errno_of(e.error()))?;
    this.state().connected(connection);
    // The conversion has begun and cannot be undone, so a failure here is ignored: only the addresses may be
    // missing.
    // SAFETY: no other thread uses the identifier during this call, as the program promises.
    let _ = unsafe { settle(id, fd) };
    Ok(())
}

#[inline(never)]
extern "C" fn start_to_convert(
    id: *mut rdma_cm_id,
    fd: c_int,
    role: c_int,
    octets: &Octets,
    param: *const rdma_conn_param,
) -> c_int {
    zero(|| convert(id, fd, role, octets, param))
}

/// Converts a socket: see `include/urnic.h`. A cancellation point if the identifier is synchronous.
#[unsafe(no_mangle)]
unsafe extern "C" fn urnic_convert(
    id: *mut rdma_cm_id,
    fd: c_int,
    role: c_int,
    already_read: *const c_void,
    n: usize,
    param: *mut rdma_conn_param,
) -> c_int {
    match start_to_convert(id, fd, role, &Octets(already_read, n), param) {
        // SAFETY: an identifier, as the previous call has checked.
        0 => unsafe { complete(id) },
        failed => failed,
    }
}
