//! Limits of a device, and the numbers of its objects.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of queue pairs of a device.
pub(crate) const MAX_QPS: u32 = 1 << 17;
/// Maximum number of completion queues of a device.
pub(crate) const MAX_CQS: u32 = 1 << 16;
/// Maximum number of shared receive queues of a device.
pub(crate) const MAX_SRQS: u32 = 1 << 14;
/// Maximum number of work requests of a queue.
pub(crate) const MAX_WR: u32 = 1 << 15;
/// Maximum number of scatter-gather elements of a work request.
pub(crate) const MAX_SGE: u8 = 32;
/// Maximum inline data of a work request, in bytes.
pub(crate) const MAX_INLINE: u32 = 4096;
/// Maximum number of entries of a completion queue.
pub(crate) const MAX_CQE: u32 = 1 << 22;

/// Number of given-back numbers that stay unused before the oldest of them is used again. When all numbers have been
/// used, fewer stay unused.
const RESTING: usize = 1024;

/// Numbers from 1, each in use at most once at a time. A number that was given back stays unused for a while.
pub(crate) struct Numbers {
    /// The highest number that was ever in use, and the numbers that were given back, oldest first.
    state: Mutex<(u32, VecDeque<u32>)>,
    limit: u32,
}

impl Numbers {
    pub(crate) fn new(limit: u32) -> Self {
        Self { state: Mutex::new((0, VecDeque::new())), limit }
    }

    pub(crate) fn take(&self) -> Option<u32> {
        let (last, free) = &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *last < self.limit && free.len() < RESTING {
            *last += 1;
            Some(*last)
        } else {
            free.pop_front()
        }
    }

    pub(crate) fn give_back(&self, number: u32) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1.push_back(number);
    }
}

/// A number in use. Dropping it gives it back.
pub(crate) struct Number {
    value: u32,
    of: Arc<Numbers>,
}

impl Number {
    pub(crate) fn take(of: &Arc<Numbers>) -> Option<Self> {
        Some(Self { value: of.take()?, of: of.clone() })
    }

    pub(crate) fn get(&self) -> u32 {
        self.value
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        self.of.give_back(self.value);
    }
}
