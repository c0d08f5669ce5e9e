//! Why a measurement failed.

use std::{io, net::SocketAddr, process::ExitStatus};

use urnic::{PostError, WcStatus};

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    /// The options contradict each other or exceed a limit.
    #[error("{0}")]
    Usage(String),
    /// The device, or something made from it.
    #[error("{doing}: {source}")]
    Device {
        /// What was tried.
        doing: &'static str,
        /// What the device said.
        source: urnic::Error,
    },
    /// A core to run on.
    #[error(transparent)]
    Pin(#[from] urnic_dataplane::PinError),
    /// DPDK, for a floor.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Eal(#[from] urnic_dataplane::EalError),
    /// The port of a floor.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Port(#[from] urnic_dataplane::PortError),
    /// A request was not accepted.
    #[error("posting a request: {0}")]
    Post(#[from] PostError),
    /// The server cannot be reached.
    #[error(
        "cannot connect to {server}: {reason}; is `urnic perf server` running there, on the other end of this link?"
    )]
    Connect {
        /// Where to.
        server: SocketAddr,
        /// Why not.
        reason: String,
    },
    /// The server does not want this measurement.
    #[error("the server refuses: {0}")]
    Refused(String),
    /// A request failed.
    #[error("a request on queue pair {qpn} failed: {status}{detail}")]
    Completion {
        /// The queue pair.
        qpn: u32,
        /// How it ended.
        status: WcStatus,
        /// More, where the connection says why.
        detail: String,
    },
    /// Nothing happened for too long.
    #[error("nothing arrived for {seconds} s while waiting for {what}")]
    Stalled {
        /// What was awaited.
        what: &'static str,
        /// For how long.
        seconds: u64,
    },
    /// The other end went away.
    #[error("the other end went away: {0}")]
    Gone(String),
    /// The other end gave up.
    #[error("the other end gave up: {0}")]
    Peer(String),
    /// A thread gives up because another one of the same end has failed.
    #[error("another thread of this end failed")]
    OtherThread,
    /// The other end speaks something else.
    #[error("the other end does not keep to the protocol of urnic perf: {0}")]
    Protocol(&'static str),
    /// A byte is not what was sent.
    #[error(
        "wrong data: queue pair {lane}, message {number}, byte {offset}: {found:#04x} instead of {expected:#04x}"
    )]
    Data {
        /// Index of the queue pair.
        lane: u32,
        /// Number of the message.
        number: u64,
        /// First wrong byte.
        offset: u64,
        /// What should be there.
        expected: u8,
        /// What is there.
        found: u8,
    },
    /// One of the two processes of a pair failed.
    #[error("the {end} failed: {message}")]
    End {
        /// `server` or `client`.
        end: &'static str,
        /// What it said.
        message: String,
    },
    /// One of the two processes of a pair ended without a word.
    #[error("the {end} ended with {status}")]
    Died {
        /// `server` or `client`.
        end: &'static str,
        /// How.
        status: ExitStatus,
    },
    /// The operating system refused.
    #[error("{doing}: {source}")]
    Os {
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl PerfError {
    /// Whether the caller asked for something that cannot be.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Usage(_))
    }
}

/// Names what was tried when the device refuses.
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
