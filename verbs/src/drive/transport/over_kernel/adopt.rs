//! Takes over connected TCP sockets of the program. The program may have exchanged data of its own protocol on them
//! (RFC 5044 §7.1).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use socket2::{Protocol, SockRef, Type};
use urnic_tcp::Time;

use super::OverKernel;
use super::info::TcpInfo;
use super::socket::Socket;
use super::stream::Received;
use crate::drive::transport::Adopted;
use crate::shared::convert::NotConvertible;
use crate::shared::error::{Error, Result};

impl OverKernel {
    /// Makes a connection from a connected socket, with a second descriptor of that socket. A failure leaves the
    /// socket unchanged, because the socket's options are changed last, and errors of that step are ignored. The
    /// caller keeps `theirs`, and closes it after success.
    pub(super) fn take_over(
        &mut self,
        now: Time,
        theirs: &OwnedFd,
        already_read: &[u8],
        tag: u64,
    ) -> Result<Adopted> {
        let info = check(theirs)?;
        let socket = Socket::duplicate(theirs.as_fd()).map_err(failed)?;
        let gone = Error::NotConvertible(NotConvertible::NotConnected);
        let (Some(local), Some(peer)) = (socket.local(), socket.peer()) else { return Err(gone) };
        if self.home.is_some_and(|home| home != local.ip()) {
            return Err(Error::NotOurAddress(local.ip()));
        }
        let conn = self.add(socket, peer).map_err(failed)?;
        let patience = self.patience;
        if let Some(stream) = self.stream_mut(conn) {
            stream.tag = tag;
            stream.progress = (info.bytes_acked, now);
            // All data of the peer waits until the engine resumes the connection.
            stream.stopped = true;
            stream.waiting = (!already_read.is_empty()).then(|| Received::of(already_read));
            stream.socket.make_ours();
            stream.measure();
            let _ = stream.socket.set_keepalive(patience.keepalive);
        }
        self.counters.adopted += 1;
        Ok(Adopted { conn, peer })
    }
}

/// Checks that a descriptor is a TCP connection, and returns its figures.
fn check(fd: &OwnedFd) -> Result<TcpInfo> {
    let unfit = |why| Err(Error::NotConvertible(why));
    let socket = SockRef::from(fd);
    match socket.r#type() {
        Ok(Type::STREAM) => {}
        Ok(_) => return unfit(NotConvertible::NotTcp),
        Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => return unfit(NotConvertible::NoSocket),
        Err(error) => return Err(failed(error)),
    }
    let is_ip = matches!(socket.domain(), Ok(socket2::Domain::IPV4 | socket2::Domain::IPV6));
    if !is_ip || !matches!(socket.protocol(), Ok(Some(Protocol::TCP))) {
        return unfit(NotConvertible::NotTcp);
    }
    let info = TcpInfo::of(fd.as_fd()).ok_or_else(|| failed(io::Error::last_os_error()))?;
    info.unfit().map_or(Ok(info), unfit)
}

fn failed(source: io::Error) -> Error {
    Error::os("taking a socket over", source)
}
