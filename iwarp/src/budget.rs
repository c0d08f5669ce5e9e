//! Memory limits shared by all streams of an engine, for incomplete FPDUs and waiting messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Memory for incomplete FPDUs and waiting messages, shared by the streams of one engine. A clone shares the same
/// counts.
///
/// There are three counts, in octets:
/// - *Reserved* is the total size of the incomplete FPDUs of which a part is kept. An FPDU reserves its whole size as
///   soon as the size is known, so that each FPDU that was begun can be finished.
/// - *Pinned* is the total size of the receive buffers that cannot be reused because streams hold chunks in them.
///   Receive buffers are few. Octets beyond the limit are copied instead of held.
/// - *Aside* is the memory of messages that wait for receives. Its limit is separate, and half the limit of *Reserved*,
///   so that waiting messages take no memory from FPDUs.
///
/// The counts are atomic because a stream moves between threads together with its engine. One thread at a time drives
/// an engine, and only that thread writes the counts.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    reserved: AtomicUsize,
    reservable: usize,
    pinned: AtomicUsize,
    pinnable: AtomicUsize,
    aside: AtomicUsize,
}

impl Budget {
    /// Creates a budget with these limits, in octets: `reservable` for *Reserved*, half of it for *Aside*, and
    /// `pinnable` for *Pinned*.
    pub fn new(reservable: usize, pinnable: usize) -> Self {
        Budget(Arc::new(Counts {
            reserved: AtomicUsize::new(0),
            reservable,
            pinned: AtomicUsize::new(0),
            pinnable: AtomicUsize::new(pinnable),
            aside: AtomicUsize::new(0),
        }))
    }

    /// Changes how many octets chunks may pin. Set 0 while receive buffers are scarce. This does not release chunks
    /// that are already held; [`Stream::copy_out`](crate::Stream::copy_out) does.
    pub fn set_pinnable(&self, octets: usize) {
        self.0.pinnable.store(octets, Relaxed);
    }

    /// Returns the octets reserved for incomplete FPDUs.
    pub fn reserved(&self) -> usize {
        self.0.reserved.load(Relaxed)
    }

    /// Returns the limit of reserved octets.
    pub fn reservable(&self) -> usize {
        self.0.reservable
    }

    /// Returns the octets that are pinned.
    pub fn pinned(&self) -> usize {
        self.0.pinned.load(Relaxed)
    }

    /// Returns the octets reserved for messages that wait for receives.
    pub fn aside(&self) -> usize {
        self.0.aside.load(Relaxed)
    }

    /// Reserves octets for waiting messages. Returns `false`, and reserves none, if the limit would be exceeded.
    pub(crate) fn reserve_aside(&self, octets: usize) -> bool {
        take(&self.0.aside, octets, self.0.reservable / 2)
    }

    pub(crate) fn give_back_aside(&self, octets: usize) {
        self.0.aside.store(self.aside() - octets, Relaxed);
    }

    /// Reserves octets. Returns `false`, and reserves none, if the limit would be exceeded.
    pub(crate) fn reserve(&self, octets: usize) -> bool {
        take(&self.0.reserved, octets, self.0.reservable)
    }

    pub(crate) fn give_back(&self, octets: usize) {
        self.0.reserved.store(self.reserved() - octets, Relaxed);
    }

    /// Pins octets. Returns `false`, and pins none, if the limit would be exceeded.
    pub(crate) fn pin(&self, octets: usize) -> bool {
        take(&self.0.pinned, octets, self.0.pinnable.load(Relaxed))
    }

    pub(crate) fn unpin(&self, octets: usize) {
        self.0.pinned.store(self.pinned() - octets, Relaxed);
    }
}

fn take(count: &AtomicUsize, octets: usize, limit: usize) -> bool {
    let after = count.load(Relaxed).saturating_add(octets);
    let may = after <= limit;
    if may {
        count.store(after, Relaxed);
    }
    may
}
