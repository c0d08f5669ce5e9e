//! One TCP socket of the kernel's. None of its calls waits.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Type};
use urnic_tcp::Keepalive;

use super::descriptors::Descriptor;
use super::info::TcpInfo;

/// Octets that the kernel keeps unsent, at most: what is posted later than them need not wait behind more.
const NOT_SENT_MAX: u32 = 256 << 10;

/// Octets that a peer may send ahead, at least, once it has sent much.
const WINDOW: libc::c_int = 1 << 20;

/// A socket; dropping it closes it.
pub(super) struct Socket {
    fd: Descriptor,
}

/// What a listener had.
pub(super) enum Accepted {
    /// A connection, and its peer.
    Connection(Socket, SocketAddr),
    /// One that is gone already. There may be others behind it, of which the kernel does not tell again.
    Gone,
    /// None.
    Nothing,
}

/// What a read has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// Octets, at least one.
    Octets(usize),
    /// Nothing is there now.
    Nothing,
    /// The peer has sent all that it will.
    End,
}

impl Socket {
    fn new(address: SocketAddr) -> io::Result<Self> {
        let domain = Domain::for_address(address);
        let socket = socket2::Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        Ok(Self { fd: Descriptor::new(OwnedFd::from(socket)) })
    }

    fn options(&self) -> SockRef<'_> {
        SockRef::from(self)
    }

    /// Reserves a local address. Whether another process listens there shows when this one wants to.
    pub(super) fn bind(address: SocketAddr, v6only: bool) -> io::Result<Self> {
        let socket = Self::new(address)?;
        let options = socket.options();
        options.set_reuse_address(true)?;
        if address.is_ipv6() {
            options.set_only_v6(v6only)?;
        }
        options.bind(&address.into())?;
        Ok(socket)
    }

    /// Lets connections come in, of which `backlog` may wait.
    pub(super) fn listen(&self, backlog: usize) -> io::Result<()> {
        self.options().listen(i32::try_from(backlog).unwrap_or(i32::MAX))
    }

    /// Starts to connect; the socket becomes writable when that is decided.
    pub(super) fn connect(from: Option<(SocketAddr, bool)>, to: SocketAddr) -> io::Result<Self> {
        let socket = match from {
            Some((address, v6only)) => Self::bind(address, v6only)?,
            None => Self::new(to)?,
        };
        socket.tune()?;
        match socket.options().connect(&to.into()) {
            Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => Err(e),
            _ => Ok(socket),
        }
    }

    /// Takes a connection that has come in.
    pub(super) fn accept(&self) -> io::Result<Accepted> {
        match self.options().accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
            Ok((socket, peer)) => {
                let socket = Self { fd: Descriptor::new(OwnedFd::from(socket)) };
                socket.tune()?;
                let peer = peer.as_socket().ok_or(ErrorKind::Unsupported)?;
                Ok(Accepted::Connection(socket, canonical(peer)))
            }
            Err(e) => match e.raw_os_error() {
                Some(libc::EAGAIN) => Ok(Accepted::Nothing),
                // accept(2): what has happened to the connection already, on Linux.
                Some(
                    libc::EINTR
                    | libc::ECONNABORTED
                    | libc::ENETDOWN
                    | libc::EPROTO
                    | libc::ENOPROTOOPT
                    | libc::EHOSTDOWN
                    | libc::ENONET
                    | libc::EHOSTUNREACH
                    | libc::EOPNOTSUPP
                    | libc::ENETUNREACH,
                ) => Ok(Accepted::Gone),
                _ => Err(e),
            },
        }
    }

    /// Has a socket of somebody else's, too.
    pub(super) fn duplicate(theirs: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self { fd: Descriptor::duplicate(theirs)? })
    }

    /// Undoes what the program may have set and what would stop, or end, a connection of ours: a `close` that waits, or
    /// resets; small messages that wait for more; readiness only for many octets; a time-out that kills living peers
    /// whose window is shut. Calls of ours never wait, whatever the program's do.
    pub(super) fn make_ours(&self) {
        let options = self.options();
        let _ = options.set_linger(None);
        let _ = options.set_tcp_cork(false);
        let _ = options.set_tcp_user_timeout(None);
        self.set_low_mark(1);
        let _ = self.tune();
    }

    /// Small messages leave at once, and what is queued is not far ahead of the wire.
    fn tune(&self) -> io::Result<()> {
        let options = self.options();
        options.set_tcp_nodelay(true)?;
        // Linux 4.x and later; an older one just queues more.
        let _ = options.set_tcp_notsent_lowat(NOT_SENT_MAX);
        Ok(())
    }

    /// Lets the kernel take `octets` more, however much of what it has is not sent: as far as the system's limit allows
    /// (sysctl net.core.wmem_max).
    pub(super) fn take_much(&self, octets: usize) {
        let options = self.options();
        let _ = options.set_tcp_notsent_lowat(u32::MAX);
        // The kernel counts its own needs in, and makes buffers as large as it likes unless it is told.
        let wanted = 2 * (self.outstanding() + octets);
        if options.send_buffer_size().is_ok_and(|size| size < wanted) {
            let _ = options.set_send_buffer_size(wanted);
        }
    }

    /// Opens the window by so much at once. The kernel does that by itself as it sees how much is read in a round trip, but
    /// hardly begins with that where one segment fills its first window (loopback: segments of 64 KiB). A mark so high makes
    /// the buffer large enough for it, and leaves it growing, which a size that is set does not (Linux 4.18 and later).
    pub(super) fn open_window(&self) {
        self.set_low_mark(WINDOW);
        self.set_low_mark(1);
    }

    /// Sets how many octets there must be for the socket to count as readable.
    fn set_low_mark(&self, octets: libc::c_int) {
        // SAFETY: one number, of the length that we say.
        unsafe {
            let len = size_of::<libc::c_int>() as libc::socklen_t;
            libc::setsockopt(
                self.raw(),
                libc::SOL_SOCKET,
                libc::SO_RCVLOWAT,
                (&raw const octets).cast(),
                len,
            );
        }
    }

    /// Sets when a silent peer counts as dead; `None`: never. The kernel counts in seconds.
    pub(super) fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        let options = self.options();
        let Some(Keepalive { idle, interval, count }) = keepalive else {
            return options.set_keepalive(false);
        };
        let seconds =
            |time: Duration| Duration::from_secs(time.as_millis().div_ceil(1000).clamp(1, 32_767) as u64);
        let times = socket2::TcpKeepalive::new().with_time(seconds(idle)).with_interval(seconds(interval));
        options.set_tcp_keepalive(&times.with_retries(u32::from(count.clamp(1, 127))))
    }

    /// Why the socket failed, if it did.
    pub(super) fn error(&self) -> Option<io::Error> {
        self.options().take_error().unwrap_or_else(Some)
    }

    pub(super) fn local(&self) -> Option<SocketAddr> {
        self.options().local_addr().ok()?.as_socket().map(canonical)
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.options().peer_addr().ok()?.as_socket().map(canonical)
    }

    /// Reads what has arrived.
    pub(super) fn receive(&self, into: &mut [u8]) -> io::Result<Read> {
        // `recv` and not `read`: should the program have closed our descriptor, a file that has its number now stays whole.
        // SAFETY: the buffer is writable and as long as we say.
        let n = unsafe { libc::recv(self.raw(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT) };
        match usize::try_from(n) {
            Ok(0) => Ok(Read::End),
            Ok(n) => Ok(Read::Octets(n)),
            Err(_) => match io::Error::last_os_error() {
                e if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(Read::Nothing),
                e => Err(e),
            },
        }
    }

    /// Sends as much of `pieces` as the kernel takes; zero: nothing now.
    ///
    /// # Safety
    /// The pieces are readable. They may change meanwhile.
    pub(super) unsafe fn send(&self, pieces: &[libc::iovec]) -> io::Result<usize> {
        // SAFETY: a message without addresses and control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = pieces.as_ptr().cast_mut();
        message.msg_iovlen = pieces.len() as _;
        // SAFETY: the list lives through the call, which does not write to it; the pieces are the caller's promise.
        let n =
            unsafe { libc::sendmsg(self.raw(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        match usize::try_from(n) {
            Ok(n) => Ok(n),
            Err(_) => match io::Error::last_os_error() {
                e if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS)) => Ok(0),
                e => Err(e),
            },
        }
    }

    /// Ends our half behind what was sent.
    pub(super) fn shut_down(&self) {
        let _ = self.options().shutdown(std::net::Shutdown::Write);
    }

    /// Closes at once; the peer sees a reset, though the program may have other descriptors of the socket.
    pub(super) fn reset(self) {
        let _ = self.options().set_linger(Some(Duration::ZERO));
        // SAFETY: zeros are values of all members, and the family that asks for the end of a connection is one.
        unsafe {
            let nowhere: libc::sockaddr = std::mem::zeroed();
            let len = size_of::<libc::sockaddr>() as libc::socklen_t;
            libc::connect(self.raw(), &raw const nowhere, len);
        }
    }

    /// What TCP says of the connection.
    pub(super) fn info(&self) -> Option<TcpInfo> {
        TcpInfo::of(self.as_fd())
    }

    /// Octets that the peer has not acknowledged.
    pub(super) fn outstanding(&self) -> usize {
        let mut octets: libc::c_int = 0;
        // SAFETY: SIOCOUTQ (TIOCOUTQ) writes one number.
        let status = unsafe { libc::ioctl(self.raw(), libc::TIOCOUTQ, &raw mut octets) };
        if status == 0 { usize::try_from(octets).unwrap_or(0) } else { 0 }
    }

    fn raw(&self) -> libc::c_int {
        self.fd.as_fd().as_raw_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A peer of a socket for both families, as the rest knows it.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some() => {
            SocketAddr::new(address.ip().to_canonical(), v6.port())
        }
        other => other,
    }
}
