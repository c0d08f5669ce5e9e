//! Memory for queue pairs, in [rows](urnic_tcp::rows).

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use urnic_tcp::rows::Rows;

use super::QpShared;
use crate::shared::queue::{SendRing, capacity_for};

/// Allocates the shared parts of a device's queue pairs, and the rings of their send queues.
#[derive(Default)]
pub(crate) struct QpMemory(Mutex<AllRows>);

#[derive(Default)]
struct AllRows {
    shared: Rows<Arc<MaybeUninit<QpShared>>>,
    /// By their capacity.
    rings: HashMap<u32, Rows<SendRing>>,
}

/// Maximum number of entries of a ring that is made in a row. If rings are larger, the entries that are in use are far
/// from those of the next ring anyway.
const LARGEST: u32 = 64;

impl QpMemory {
    fn rows(&self) -> MutexGuard<'_, AllRows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a ring for at least `entries`.
    pub(crate) fn ring(&self, entries: u32) -> SendRing {
        let capacity = capacity_for(entries);
        if capacity > LARGEST {
            return SendRing::new(capacity);
        }
        self.rows().rings.entry(capacity).or_default().take(|| SendRing::new(capacity))
    }

    /// Places the shared part of a queue pair.
    pub(crate) fn share(&self, qp: QpShared) -> Arc<QpShared> {
        let mut place = self.rows().shared.take(Arc::new_uninit);
        match Arc::get_mut(&mut place) {
            Some(memory) => memory.write(qp),
            None => return Arc::new(qp),
        };
        // SAFETY: the value was just written.
        unsafe { place.assume_init() }
    }
}
