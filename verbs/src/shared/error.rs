//! Errors of control verbs and of posting.

use std::io;

use super::convert::NotConvertible;

/// The resource of an [`Error::Exhausted`] when the kernel has too little memory for sockets, or the user has too
/// few watches of epoll.
pub(crate) const KERNEL_MEMORY: &str =
    "kernel memory for sockets, or of epoll watches (sysctl fs.epoll.max_user_watches)";

/// The result of a control verb.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a control verb failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is outside what the device or the protocol allows.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// A limited resource of the device or the system is used up.
    #[error("out of {0}")]
    Exhausted(&'static str),
    /// The process, or the system, has as many file descriptors as it may have.
    #[error(
        "no file descriptor is left: close some, or raise the limit of the process (ulimit -n, \
         RLIMIT_NOFILE), or that of the system if it is reached (sysctl fs.file-max)"
    )]
    NoDescriptor,
    /// The memory to register is not mapped, or not with the rights asked for.
    #[error("the {len} bytes at {addr:#x} cannot be accessed with the rights asked for: {source}")]
    Fault {
        /// Address of the first byte.
        addr: u64,
        /// Length in bytes.
        len: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// The device's allocator has no block of this size.
    #[error("{0}")]
    NoMemory(String),
    /// An access outside a memory region.
    #[error("{len} bytes at offset {offset} are outside the region of {region} bytes")]
    OutOfBounds {
        /// First byte of the access, counted from the start of the region.
        offset: u64,
        /// Length of the access, in bytes.
        len: u64,
        /// Length of the region, in bytes.
        region: u64,
    },
    /// No region has the key.
    #[error("no memory region has the key {0:#010x}")]
    UnknownKey(u32),
    /// Memory windows are bound to the region.
    #[error("{0} memory windows are bound to the region: unbind or invalidate them first")]
    WindowsBound(u32),
    /// The state of the queue pair does not allow the call.
    #[error("queue pair {qpn} is in state {state:?}, which does not allow this call")]
    QpState {
        /// Number of the queue pair.
        qpn: u32,
        /// State of the queue pair.
        state: crate::shared::qp::QpState,
    },
    /// The engine has no such queue pair.
    #[error("there is no queue pair {0}")]
    UnknownQp(u32),
    /// The connection request no longer exists: it was answered or timed out, or its peer went away.
    #[error("the connection request no longer exists: it was answered or timed out, or its peer went away")]
    RequestGone,
    /// The queue pair has no connection.
    #[error("the queue pair is not connected")]
    NotConnected,
    /// The address to bind, or the local address of a socket to convert, is not an address of the device.
    #[error("{0} is not an address of this device")]
    NotOurAddress(std::net::IpAddr),
    /// Another reservation, a listener or a connection uses the port.
    #[error(
        "port {0} is in use; iWARP runs on TCP ports: a program that serves RDMA and TCP at one address needs a port \
         for each"
    )]
    PortInUse(u16),
    /// The kernel reserves the port for privileged processes.
    #[error(
        "port {0} is reserved for privileged processes: use a higher one, or give the program the capability \
         CAP_NET_BIND_SERVICE"
    )]
    PortForbidden(u16),
    /// No route leads to the address.
    #[error("no route to {to}: {remedy}")]
    NoRoute {
        /// The address.
        to: std::net::IpAddr,
        /// Advice on what to check, which depends on the device's transport.
        remedy: &'static str,
    },
    /// The host forbids the program to connect to the address.
    #[error(
        "the host forbids connections to {0}: look for a route of type prohibit (ip route get {0}), firewall rules, \
         and restrictions by the container or the security module that this process runs under"
    )]
    Forbidden(std::net::IpAddr),
    /// The socket cannot become a connection of the device.
    #[error("the socket cannot be converted: {0}")]
    NotConvertible(NotConvertible),
    /// The device does not take over the program's sockets.
    #[error(
        "this device has a TCP of its own and cannot take over a kernel socket: open a device on the kernel's sockets \
         (--port kernel, the default)"
    )]
    NoConversion,
    /// A parent process has opened the device, which a forked child cannot use.
    #[error(
        "this process was forked after its parent had opened a device, and can neither use that device nor open \
         another: open devices after fork only, or after exec"
    )]
    Forked,
    /// The device is at work further up this thread's stack, and cannot finish before the call returns: the
    /// caller is a signal handler. Or the process is ending, and the thread that holds the device has been
    /// stopped. Or the device's port is closed, because the program has cleaned up DPDK's EAL. Or another thread has
    /// not finished moving the queue pair to another engine within five seconds.
    #[error(
        "the device cannot finish this call, for one of these reasons: the caller is a signal handler that has \
         interrupted the device's work (set a flag in the handler, and call the device after it returns); the process \
         is ending; the program has cleaned up DPDK; another thread takes more than 5 s to move the queue pair to \
         another engine"
    )]
    Interrupted,
    /// The device could not be opened.
    #[error("cannot open the device: {0}")]
    Open(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    Os {
        /// What was attempted.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl Error {
    /// Makes an [`Error::Os`], or an [`Error::NoDescriptor`] if `source` means that no descriptor is left.
    pub(crate) fn os(what: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => Self::NoDescriptor,
            _ => Self::Os { what, source },
        }
    }

    /// Makes an error from `errno`, as [`os`](Self::os) does.
    pub(crate) fn last_os(what: &'static str) -> Self {
        Self::os(what, io::Error::last_os_error())
    }
}

/// Why a work request was refused. Nothing was queued for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue is full.
    #[error("the work queue is full: poll for completions before posting more")]
    QueueFull,
    /// More scatter-gather elements than the queue or the operation allows.
    #[error("more scatter-gather elements than the queue or the operation allows")]
    TooManySges,
    /// The message, or the memory of the receive, is longer than 2^32 - 1 bytes.
    #[error("the message or the receive is longer than 2^32 - 1 bytes")]
    TooLong,
    /// More inline bytes than the queue pair allows (`max_inline`).
    #[error("more inline bytes than the queue pair allows (max_inline)")]
    InlineTooLong,
    /// The request is a Read or an Atomic, which cannot be inline.
    #[error("a Read or Atomic cannot be inline")]
    InlineRead,
    /// The request is an Atomic, and does not have exactly one local element of 8 bytes.
    #[error("an Atomic needs one scatter-gather element of 8 bytes")]
    AtomicSink,
    /// iWARP has no Send with immediate data. (Immediate Data of RFC 7306 is a message of its own.)
    #[error(
        "iWARP has no Send with immediate data; use a Write with immediate data, or put the bits into the message"
    )]
    SendImm,
    /// The queue pair takes its receives from a shared queue.
    #[error("the queue pair takes its receives from a shared receive queue: post them there")]
    SharedReceives,
    /// Inline data lies outside the region of its key, or no region of the protection domain has the key.
    #[error("inline data is not in a registered region")]
    InlineAccess,
}

/// A list of work requests was posted only in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the work request at index {posted} of the list was refused: {error}")]
pub struct PostListError {
    /// Number of requests that were posted, from the start of the list.
    pub posted: usize,
    /// Why the next request was refused.
    pub error: PostError,
}
