//! A TCP socket of the kernel. No call waits.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Type};
use urnic_tcp::Keepalive;

use super::descriptors::Descriptor;
use super::info::TcpInfo;

/// Maximum number of octets that the kernel keeps unsent. Data that the program posts later waits behind these
/// octets.
const NOT_SENT_MAX: u32 = 256 << 10;

/// Minimum receive window, in octets, for a peer that has sent much data.
const WINDOW: libc::c_int = 1 << 20;

/// A socket. Dropping it closes it.
pub(super) struct Socket {
    fd: Descriptor,
}

/// The outcome of accepting a connection.
pub(super) enum Accepted {
    /// A connection, and its peer.
    Connection(Socket, SocketAddr),
    /// A connection that has already ended. Other connections may follow, which the kernel does not report again.
    Gone,
    /// There is no connection.
    Nothing,
}

/// The outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// Number of octets, at least one.
    Octets(usize),
    /// There is no data now.
    Nothing,
    /// There is no more data, because the peer has ended its half.
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

    /// Reserves a local address. This fails if another socket listens at the address. If the other socket has only
    /// reserved it, with `SO_REUSEADDR`, this succeeds, and `listen` fails for the socket that calls it second.
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

    /// Listens for connections. At most `backlog` connections may wait to be accepted.
    pub(super) fn listen(&self, backlog: usize) -> io::Result<()> {
        self.options().listen(i32::try_from(backlog).unwrap_or(i32::MAX))
    }

    /// Starts to connect. The socket becomes writable when the outcome is known.
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

    /// Accepts a connection that has come in.
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
                // `EINTR` says nothing about a connection. On Linux, the others are errors of the incoming connection,
                // according to accept(2).
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

    /// Makes a second descriptor of the program's socket.
    pub(super) fn duplicate(theirs: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self { fd: Descriptor::duplicate(theirs)? })
    }

    /// Undoes options that the program may have set, and that would delay or end our connection: a `close` that waits
    /// or resets, small messages that are held back, readiness only for many octets, and a time-out that ends
    /// connections to living peers with a shut window. Blocking mode needs no change, because our calls never wait in
    /// either mode.
    pub(super) fn make_ours(&self) {
        let options = self.options();
        let _ = options.set_linger(None);
        let _ = options.set_tcp_cork(false);
        let _ = options.set_tcp_user_timeout(None);
        self.set_low_mark(1);
        let _ = self.tune();
    }

    /// Makes the kernel send small messages at once, and keep only a short queue of unsent data.
    fn tune(&self) -> io::Result<()> {
        let options = self.options();
        options.set_tcp_nodelay(true)?;
        // If the kernel does not support this, it queues more.
        let _ = options.set_tcp_notsent_lowat(NOT_SENT_MAX);
        Ok(())
    }

    /// Makes the kernel take `octets` more, even if it already has much unsent data, up to the system's limit (sysctl
    /// net.core.wmem_max).
    pub(super) fn take_much(&self, octets: usize) {
        let options = self.options();
        let _ = options.set_tcp_notsent_lowat(u32::MAX);
        // The buffer size must be larger than its content, because the kernel includes its own overhead. A size that
        // already suffices is left alone, because the kernel no longer adapts a size that was set.
        let wanted = 2 * (self.outstanding() + octets);
        if options.send_buffer_size().is_ok_and(|size| size < wanted) {
            let _ = options.set_send_buffer_size(wanted);
        }
    }

    /// Opens the receive window to at least [`WINDOW`] at once. The kernel opens the window according to the number
    /// of octets that are read in a round trip. But the window hardly grows if one segment fills the first window, as
    /// segments of 64 KiB do on the loopback. Since Linux 4.18, raising the low-water mark for a moment makes the
    /// buffer large enough, and still lets it grow further, which a fixed buffer size would prevent.
    pub(super) fn open_window(&self) {
        self.set_low_mark(WINDOW);
        self.set_low_mark(1);
    }

    /// Sets the low-water mark: the number of octets from which the socket counts as readable.
    fn set_low_mark(&self, octets: libc::c_int) {
        // SAFETY: the kernel reads one number, which has the stated length.
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

    /// Sets when a silent peer counts as dead; `None`: never. Times are rounded up to seconds, and limited to 1 to
    /// 32,767 s. The number of probes is limited to 1 to 127.
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

    /// Returns why the socket failed; `None` if it has not failed.
    pub(super) fn error(&self) -> Option<io::Error> {
        self.options().take_error().unwrap_or_else(Some)
    }

    pub(super) fn local(&self) -> Option<SocketAddr> {
        self.options().local_addr().ok()?.as_socket().map(canonical)
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.options().peer_addr().ok()?.as_socket().map(canonical)
    }

    /// Reads octets that have arrived.
    pub(super) fn receive(&self, into: &mut [u8]) -> io::Result<Read> {
        // This uses `recv` instead of `read`, so that it never reads a file: if the program has closed our descriptor
        // by mistake, a file may have its number.
        // SAFETY: the buffer is writable and has the stated length.
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

    /// Sends as much of `pieces` as the kernel takes. Returns the number of octets that the kernel took, which may be
    /// 0.
    ///
    /// # Safety
    /// The pieces must be readable. Their content may change during the call.
    pub(super) unsafe fn send(&self, pieces: &[libc::iovec]) -> io::Result<usize> {
        // SAFETY: all members may be zero: this is a message without address and control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = pieces.as_ptr().cast_mut();
        message.msg_iovlen = pieces.len() as _;
        // SAFETY: the list exists until the call returns, and the call does not write to it. The pieces are readable
        // by this function's contract.
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

    /// Ends our half of the connection after the octets that were sent.
    pub(super) fn shut_down(&self) {
        let _ = self.options().shutdown(std::net::Shutdown::Write);
    }

    /// Closes the connection at once. The peer sees a reset, even if the program has other descriptors of the socket.
    pub(super) fn reset(self) {
        let _ = self.options().set_linger(Some(Duration::ZERO));
        // SAFETY: all members may be zero. This is the family AF_UNSPEC, with which `connect` ends a connection.
        unsafe {
            let nowhere: libc::sockaddr = std::mem::zeroed();
            let len = size_of::<libc::sockaddr>() as libc::socklen_t;
            libc::connect(self.raw(), &raw const nowhere, len);
        }
    }

    /// Returns TCP's figures for the connection; `None` on failure.
    pub(super) fn info(&self) -> Option<TcpInfo> {
        TcpInfo::of(self.as_fd())
    }

    /// Returns the number of octets that the kernel has taken and the peer has not acknowledged, whether they are sent
    /// or not. A FIN counts as one octet. 0 on failure.
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

/// Returns an address in its usual form: an IPv4-mapped address of a dual-stack socket becomes an IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some() => {
            SocketAddr::new(address.ip().to_canonical(), v6.port())
        }
        other => other,
    }
}
