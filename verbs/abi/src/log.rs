//! Log messages for events that C programs learn of only as a number: why a connection has ended or a queue
//! pair has failed, and why a call was refused for a reason that the user can remove, such as a port in use.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing_subscriber::EnvFilter;
use urnic::{DisconnectReason, Error, QpFault, TerminateInfo};

use crate::call::{Errno, last_errno};

/// Logs to standard error what `URNIC_LOG` asks for, with the time of each line, so that the logs of two ends can be
/// compared. Without the variable, logs warnings, except DPDK's, without the time.
pub fn to_stderr() {
    let asked = EnvFilter::try_from_env("URNIC_LOG");
    let timed = asked.is_ok();
    let log = tracing_subscriber::fmt()
        .with_env_filter(asked.unwrap_or_else(|_| EnvFilter::new("warn,urnic_dataplane::dpdk=error")))
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .log_internal_errors(false); // it would panic if standard error is closed
    let _ = if timed { log.try_init() } else { log.without_time().try_init() };
}

/// Number of lines that may be logged at once; after each [`ONE_MORE`], one more line may be logged.
const AT_ONCE: u32 = 10;
const ONE_MORE: Duration = Duration::from_secs(1);

/// Limits the number of lines, because a peer can make connections end as often as it likes.
struct Allowance {
    lines: u32,
    since: Option<Instant>,
    kept_back: u64,
}

impl Allowance {
    const fn new() -> Self {
        Self { lines: AT_ONCE, since: None, kept_back: 0 }
    }

    /// Asks to log a line. Returns the number of lines that were suppressed before it; `None` if this line must be
    /// suppressed as well.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let since = *self.since.get_or_insert(now);
        let earned = now.saturating_duration_since(since).as_secs() / ONE_MORE.as_secs();
        if earned > 0 {
            self.lines = self.lines.saturating_add(earned.min(AT_ONCE.into()) as u32).min(AT_ONCE);
            self.since = Some(now);
        }
        match self.lines {
            0 => {
                self.kept_back += 1;
                None
            }
            _ => {
                self.lines -= 1;
                Some(std::mem::take(&mut self.kept_back))
            }
        }
    }
}

fn write(line: impl FnOnce() -> String) {
    static ALLOWANCE: Mutex<Allowance> = Mutex::new(Allowance::new());
    let before = ALLOWANCE.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now());
    match before {
        None => {}
        Some(0) => tracing::warn!("{}", line()),
        Some(n) => tracing::warn!("{} ({n} more such lines were left out before)", line()),
    }
}

/// Queue pairs whose failure was logged, so that the end of their connection is not logged as well.
static FAILED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Logs the failure of a queue pair. If the queue pair has a connection, the connection ends next.
pub fn failed(fault: &QpFault) {
    if fault.peer.is_some() {
        FAILED.lock().unwrap_or_else(PoisonError::into_inner).insert(fault.qpn);
    }
    write(|| fault.to_string());
}

/// Logs the refusal of a call, if the user can do something about the reason.
pub fn refused(error: &Error) {
    if matches!(
        error,
        Error::PortInUse(_)
            | Error::PortForbidden(_)
            | Error::NotOurAddress(_)
            | Error::NoConversion
            | Error::NotConvertible(_)
            | Error::NoDescriptor
            | Error::NoRoute { .. }
            | Error::Forbidden(_)
    ) {
        write(|| error.to_string());
    }
}

/// Returns the errno of a system call of ours that has just failed. Logs the failure if no descriptor was left.
pub fn refused_call() -> Errno {
    let errno = last_errno();
    if matches!(errno, libc::EMFILE | libc::ENFILE) {
        // Opening the device starts the log, and the device may not be open yet.
        to_stderr();
        refused(&Error::NoDescriptor);
    }
    errno
}

/// Logs the end of a connection: at level debug if either end closed it, if this end aborted it, or if the
/// failure of its queue pair was logged before; otherwise as a warning.
pub fn disconnected(
    qpn: u32,
    peer: Option<SocketAddr>,
    reason: DisconnectReason,
    terminate: Option<TerminateInfo>,
) {
    let who = || peer.map_or(String::new(), |peer| format!(" with {peer}"));
    let line = || {
        let said = terminate.map_or(String::new(), |terminate| format!("; {terminate}"));
        format!("the connection of queue pair {qpn}{} has ended: {reason}{said}", who())
    };
    let told = FAILED.lock().unwrap_or_else(PoisonError::into_inner).remove(&qpn);
    match reason {
        _ if told => tracing::debug!("{}", line()),
        DisconnectReason::Local | DisconnectReason::Peer | DisconnectReason::Aborted => {
            tracing::debug!("{}", line());
        }
        _ => write(line),
    }
}

#[cfg(test)]
mod tests;
