//! Why a measurement failed.

use std::{io, net::SocketAddr, process::ExitStatus};

use urnic::{PostError, WcStatus};

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    /// The options contradict each other or exceed a limit.
    #[error("{0}")]
    Usage(String),
    /// The device, or an object made from it, failed.
    #[error("{doing}: {source}")]
    Device {
        /// The action that failed.
        doing: &'static str,
        /// The device's error.
        source: urnic::Error,
    },
    /// A measuring thread could not be pinned to its core.
    #[error(transparent)]
    Pin(#[from] urnic_dataplane::PinError),
    /// DPDK did not start. A floor, which is a measurement of the raw port, needs DPDK.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Eal(#[from] urnic_dataplane::EalError),
    /// The port of a floor could not be opened.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Port(#[from] urnic_dataplane::PortError),
    /// The queue pair did not accept a request.
    #[error("cannot post a request: {0}")]
    Post(#[from] PostError),
    /// The server cannot be reached.
    #[error(
        "cannot connect to {server}: {reason}; is `urnic perf server` running there, on the other end of this link?"
    )]
    Connect {
        /// The server's address.
        server: SocketAddr,
        /// The reason why the server cannot be reached.
        reason: String,
    },
    /// The server refuses this measurement.
    #[error("the server refuses: {0}")]
    Refused(String),
    /// A request failed.
    #[error("a request on queue pair {qpn} failed: {status}{detail}")]
    Completion {
        /// The queue pair.
        qpn: u32,
        /// The status of its completion.
        status: WcStatus,
        /// The reason why the connection ended; empty if the connection knows none.
        detail: String,
    },
    /// Nothing happened for too long.
    #[error("nothing happened for {seconds} s while waiting for {what}")]
    Stalled {
        /// The event that was awaited.
        what: &'static str,
        /// Length of the wait, in seconds.
        seconds: u64,
    },
    /// The other end went away.
    #[error("the other end went away: {0}")]
    Gone(String),
    /// The other end failed, and reported this reason.
    #[error("the other end gave up: {0}")]
    Peer(String),
    /// A thread gave up because another thread of the same end had failed.
    #[error("another thread of this end failed")]
    OtherThread,
    /// The other end does not use the protocol of `urnic perf`.
    #[error("the other end does not follow the protocol of urnic perf: {0}")]
    Protocol(&'static str),
    /// A byte differs from the byte that was sent.
    #[error(
        "wrong data: queue pair at index {lane} (from 0) of its thread, message {number}, byte {offset}: {found:#04x} \
         instead of {expected:#04x}"
    )]
    Data {
        /// Index of the queue pair.
        lane: u32,
        /// Number of the message.
        number: u64,
        /// Offset of the first wrong byte.
        offset: u64,
        /// The byte that was sent.
        expected: u8,
        /// The byte that arrived.
        found: u8,
    },
    /// One of the two processes of a pair failed.
    #[error("the {end} failed: {message}")]
    End {
        /// `server` or `client`.
        end: &'static str,
        /// The error message of this process.
        message: String,
    },
    /// One of the two processes of a pair ended without a result.
    #[error("the {end} ended with {status}")]
    Died {
        /// `server` or `client`.
        end: &'static str,
        /// The exit status of this process.
        status: ExitStatus,
    },
    /// The measurement failed in a way that no other variant describes. The text describes it.
    #[error("{0}")]
    Failed(String),
    /// The operating system refused.
    #[error("{doing}: {source}")]
    Os {
        /// The action that failed.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl PerfError {
    /// Returns whether the caller asked for something impossible.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Usage(_))
    }
}

/// Adds the attempted action to an error of the device or of the operating system.
pub(super) trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, PerfError>;
}

impl<T> Doing<T> for Result<T, urnic::Error> {
    fn doing(self, doing: &'static str) -> Result<T, PerfError> {
        self.map_err(|source| PerfError::Device { doing, source })
    }
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str) -> Result<T, PerfError> {
        self.map_err(|source| PerfError::Os { doing, source })
    }
}
