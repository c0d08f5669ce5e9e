//! Hands DPDK's log lines to `tracing` under the target `urnic_dataplane::dpdk`.
//!
//! DPDK is started with the most detailed level that any subscriber admits when EAL starts. So
//! `urnic_dataplane::dpdk=trace` in the filter shows everything. DPDK's errors become warnings, which the programs'
//! default filter (`urnic_dataplane::dpdk=error`) hides; the last of them are kept for our own error messages.

use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use dpdk_sys as sys;
use tracing::level_filters::LevelFilter;

const TARGET: &str = "urnic_dataplane::dpdk";
const KEPT: usize = 4;

/// Whether the code that runs now expects failures.
static QUIET: AtomicBool = AtomicBool::new(false);

static ERRORS: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Returns EAL's `--log-level` for the subscriber's maximum level.
pub(crate) fn eal_level() -> &'static str {
    match LevelFilter::current() {
        LevelFilter::TRACE => "debug",
        LevelFilter::DEBUG => "info",
        LevelFilter::INFO => "notice",
        _ => "error",
    }
}

/// Routes DPDK's log to `write`. Called once, before EAL starts.
pub(crate) fn capture() {
    // SAFETY: the callback and the stream stay valid for ever.
    unsafe {
        let stream = sys::dpdk_sys_log_stream(Some(write));
        if !stream.is_null() {
            sys::rte_openlog_stream(stream);
        }
    }
}

/// # Safety
/// `len` bytes at `text` are readable.
unsafe extern "C" fn write(_: *mut c_void, text: *const c_char, len: usize) -> isize {
    // A panic (say, of a subscriber) must not cross into C.
    let _ = std::panic::catch_unwind(|| {
        // SAFETY: stdio passes `len` readable bytes.
        let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
        // SAFETY: reads thread-local state of the logger.
        let level = unsafe { sys::rte_log_cur_msg_loglevel() } as u32;
        for line in String::from_utf8_lossy(bytes).lines().map(str::trim).filter(|l| !l.is_empty()) {
            emit(level, line);
        }
    });
    len as isize
}

/// Returns whether a line reports a harmless failure: EAL tries to create a runtime directory although it keeps nothing
/// in it, and continues without one. The attempt fails if `/tmp/dpdk` belongs to another user.
fn is_harmless(line: &str) -> bool {
    line.starts_with("EAL: Error creating '") && line.contains("/dpdk")
}

fn emit(level: u32, line: &str) {
    let level = if is_harmless(line) { sys::RTE_LOG_INFO } else { level };
    if level <= sys::RTE_LOG_ERR {
        let mut errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.len() == KEPT {
            errors.pop_front();
        }
        errors.push_back(line.to_owned());
    }
    match level {
        0..=sys::RTE_LOG_ERR if QUIET.load(Ordering::Relaxed) => tracing::debug!(target: TARGET, "{line}"),
        0..=sys::RTE_LOG_ERR => tracing::warn!(target: TARGET, "{line}"),
        sys::RTE_LOG_WARNING | sys::RTE_LOG_NOTICE => tracing::info!(target: TARGET, "{line}"),
        sys::RTE_LOG_INFO => tracing::debug!(target: TARGET, "{line}"),
        _ => tracing::trace!(target: TARGET, "{line}"),
    }
}

/// Runs `attempt`, and logs DPDK's errors at debug level meanwhile, because its failure is expected.
pub(crate) fn quietly<T>(attempt: impl FnOnce() -> T) -> T {
    QUIET.store(true, Ordering::Relaxed);
    let result = attempt();
    QUIET.store(false, Ordering::Relaxed);
    result
}

/// Takes the last errors that DPDK logged, oldest first, and forgets them.
pub(crate) fn recent_errors() -> Vec<String> {
    ERRORS.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
}

/// Formats the lines as the end of an error message.
pub(crate) fn appendix(log: &[String]) -> String {
    if log.is_empty() { String::new() } else { format!(" (DPDK says: {})", log.join("; ")) }
}
