//! Atomic operations of the peer on registered memory (RFC 7306 §5).
//!
//! The engine performs them with atomic instructions of the CPU on a `u64` in the byte order of this machine. They
//! are therefore atomic with respect to all queue pairs and engines of the device, and to atomic accesses by the
//! application.

use super::access_fault;
use crate::shared::memory::{Access, MrTable};
use crate::shared::qp::QpShared;
use std::sync::atomic::{AtomicU64, Ordering};
use urnic_iwarp::{AtomicFault, AtomicRequest};

/// Returns the word that an Atomic of `qp`'s peer names, if the peer may apply Atomics to it.
pub(super) fn word(table: &MrTable, qp: &QpShared, stag: u32, to: u64) -> Result<*mut u64, AtomicFault> {
    let span = table.resolve(stag, qp.scopes, Access::REMOTE_ATOMIC, to, size_of::<u64>() as u32);
    let word = span.map_err(access_fault)?.ptr.cast::<u64>();
    // Checks the address in memory, not the tagged offset (RDMAPX-8).
    if word.is_aligned() { Ok(word) } else { Err(AtomicFault::Misaligned) }
}

/// Performs `request` and returns the word's former value.
pub(super) fn perform(table: &MrTable, qp: &QpShared, request: &AtomicRequest) -> Result<u64, AtomicFault> {
    let word = word(table, qp, request.stag, request.to)?;
    // SAFETY: the word was just resolved, and is aligned; the memory stays registered until this pass has ended.
    let word = unsafe { AtomicU64::from_ptr(word) };
    let updated = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| request.op.apply(old));
    // `Err` also contains the former value: the comparison has failed, and the word is unchanged.
    Ok(updated.unwrap_or_else(|old| old))
}
