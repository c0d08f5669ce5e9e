//! Errors of the verbs.

use std::io;

use super::convert::NotConvertible;

/// What the system has too little of, for [`Error::Exhausted`].
pub(crate) const KERNEL_MEMORY: &str = "memory of the kernel's for sockets";

/// What a control verb can answer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a control verb failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is outside what the device or the protocol allows.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// A limit of the device is reached.
    #[error("no room left: {0}")]
    Exhausted(&'static str),
    /// The process, or the system, has as many file descriptors as it may.
    #[error(
        "no file descriptor is left: close what is not needed, or raise the limit of the process (ulimit -n, \
         RLIMIT_NOFILE), or that of the system if it is reached (sysctl fs.file-max)"
    )]
    NoDescriptor,
    /// The memory to register is not mapped, or not with the rights asked for.
    #[error("memory at {addr:#x} (+{len}) cannot be accessed as asked: {source}")]
    Fault {
        /// First byte.
        addr: u64,
        /// Length in bytes.
        len: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The device's allocator has no such block.
    #[error("{0}")]
    NoMemory(String),
    /// An access outside a memory region.
    #[error("{len} bytes at offset {offset} are outside the region of {region} bytes")]
    OutOfBounds {
        /// First byte of the access.
        offset: u64,
        /// Bytes of the access.
        len: u64,
        /// Size of the region.
        region: u64,
    },
    /// The key names no region.
    #[error("no memory region has the key {0:#010x}")]
    UnknownKey(u32),
    /// Memory windows are bound to the region.
    #[error("{0} memory windows are bound to the region")]
    WindowsBound(u32),
    /// The queue pair is not in a state that allows this.
    #[error("queue pair {qpn} is in state {state:?}")]
    QpState {
        /// Its number.
        qpn: u32,
        /// Its state.
        state: crate::shared::qp::QpState,
    },
    /// The queue pair is not known to the engine.
    #[error("there is no queue pair {0}")]
    UnknownQp(u32),
    /// The connection request is gone: answered, timed out, or its peer went away.
    #[error("the connection request is no longer there")]
    RequestGone,
    /// There is no connection.
    #[error("the queue pair is not connected")]
    NotConnected,
    /// The address to bind is none of the device's.
    #[error("{0} is not an address of this device")]
    NotOurAddress(std::net::IpAddr),
    /// Another reservation, a listener or connections have the port.
    #[error(
        "port {0} is in use; on iWARP, RDMA and TCP share ports: a program that serves both by one address needs two"
    )]
    PortInUse(u16),
    /// The kernel keeps the port for privileged processes.
    #[error(
        "port {0} is below those that any process may have: take a higher one, or give the program the capability \
         CAP_NET_BIND_SERVICE"
    )]
    PortForbidden(u16),
    /// No way to the address.
    #[error("no route to {to}: {remedy}")]
    NoRoute {
        /// The address.
        to: std::net::IpAddr,
        /// What to look at, which depends on what carries the device's streams.
        remedy: &'static str,
    },
    /// The host does not let the program connect to the address.
    #[error(
        "the host forbids connections to {0}: look for a route of type prohibit (ip route get {0}), rules of a firewall, \
         and those of the container or the security module that this process runs under"
    )]
    Forbidden(std::net::IpAddr),
    /// The socket cannot become a connection of the device.
    #[error("the socket cannot be converted: {0}")]
    NotConvertible(NotConvertible),
    /// The device does not take the program's sockets over.
    #[error(
        "this device has a TCP of its own and cannot take a socket of the kernel's over: open one on the kernel's sockets \
         (--port kernel, the default)"
    )]
    NoConversion,
    /// The device was opened by the parent process and cannot be used after fork.
    #[error("the device belongs to the parent process; open it anew after exec")]
    Forked,
    /// A signal handler calls in the middle of the device's own work in the same thread, or the process ends meanwhile.
    #[error(
        "a signal handler has interrupted the device's work in this thread, which cannot go on before the handler is \
         over: let the handler set a flag, and call the device outside of it"
    )]
    Interrupted,
    /// The device could not be opened.
    #[error("cannot open the device: {0}")]
    Open(String),
    /// The operating system refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Error {
    /// An [`Error::Os`], or [`Error::NoDescriptor`] if it says that.
    pub(crate) fn os(what: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => Self::NoDescriptor,
            _ => Self::Os { what, source },
        }
    }

    /// The same from `errno`.
    pub(crate) fn last_os(what: &'static str) -> Self {
        Self::os(what, io::Error::last_os_error())
    }
}

/// Why a work request was not accepted. Nothing was queued for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue is full.
    #[error("the work queue is full")]
    QueueFull,
    /// More scatter-gather elements than the queue or the operation takes.
    #[error("too many scatter-gather elements")]
    TooManySges,
    /// More than 2^32 - 1 bytes.
    #[error("the message is longer than 2^32 - 1 bytes")]
    TooLong,
    /// More inline bytes than the queue takes.
    #[error("too many inline bytes")]
    InlineTooLong,
    /// A Read or Atomic cannot be inline.
    #[error("a Read or Atomic cannot be inline")]
    InlineRead,
    /// An Atomic has one local element of 8 bytes.
    #[error("an Atomic needs one scatter-gather element of 8 bytes")]
    AtomicSink,
    /// iWARP has no Send with immediate data (RFC 7306 has Immediate Data as a message of its own).
    #[error(
        "iWARP has no Send with immediate data; use a Write with immediate data, or put the bits into the message"
    )]
    SendImm,
    /// The queue pair takes its receives from a shared queue.
    #[error("the queue pair takes its receives from a shared receive queue: post them there")]
    SharedReceives,
    /// Inline data lies outside the region of its key, or the key is unknown in the protection domain.
    #[error("inline data is not in a registered region")]
    InlineAccess,
}

/// A list of work requests was posted in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {posted} was refused: {error}")]
pub struct PostListError {
    /// How many, from the start of the list, were posted.
    pub posted: usize,
    /// Why the next one was not.
    pub error: PostError,
}
