//! What the streams of a device keep of FPDUs that are not whole, and of messages that wait, all together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Memory for incomplete FPDUs and waiting messages, shared by the streams of one engine. A clone shares it.
///
/// Three things are counted, in octets. *Reserved* is the size of every FPDU whose beginning has been kept, so that each
/// FPDU that was begun can be finished. *Pinned* is what held chunks keep from being reused: whole receive buffers, of
/// which there are few; what may not be pinned is copied. *Aside* is what messages take that wait for receives; half as
/// many octets as may be reserved, beside them, so that who lets messages wait takes nothing from FPDUs.
///
/// The counts are atomic because streams move between threads with their engine, which one thread drives at a time:
/// nobody else writes them.
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
    /// At most `reservable` octets of incomplete FPDUs, of which chunks pin at most `pinnable` octets.
    pub fn new(reservable: usize, pinnable: usize) -> Self {
        Budget(Arc::new(Counts {
            reserved: AtomicUsize::new(0),
            reservable,
            pinned: AtomicUsize::new(0),
            pinnable: AtomicUsize::new(pinnable),
            aside: AtomicUsize::new(0),
        }))
    }

    /// Changes how many octets chunks may pin; zero while receive buffers are scarce. Chunks that are held stay until
    /// [`Stream::copy_out`](crate::Stream::copy_out).
    pub fn set_pinnable(&self, octets: usize) {
        self.0.pinnable.store(octets, Relaxed);
    }

    /// Octets reserved for incomplete FPDUs.
    pub fn reserved(&self) -> usize {
        self.0.reserved.load(Relaxed)
    }

    /// Octets that may be reserved in all.
    pub fn reservable(&self) -> usize {
        self.0.reservable
    }

    /// Octets that held chunks pin.
    pub fn pinned(&self) -> usize {
        self.0.pinned.load(Relaxed)
    }

    /// Octets of messages that wait for receives.
    pub fn aside(&self) -> usize {
        self.0.aside.load(Relaxed)
    }

    /// Reserves octets for messages that wait, if so many are left.
    pub(crate) fn reserve_aside(&self, octets: usize) -> bool {
        take(&self.0.aside, octets, self.0.reservable / 2)
    }

    pub(crate) fn give_back_aside(&self, octets: usize) {
        self.0.aside.store(self.aside() - octets, Relaxed);
    }

    /// Reserves octets, if so many are left.
    pub(crate) fn reserve(&self, octets: usize) -> bool {
        take(&self.0.reserved, octets, self.0.reservable)
    }

    pub(crate) fn give_back(&self, octets: usize) {
        self.0.reserved.store(self.reserved() - octets, Relaxed);
    }

    /// Pins octets, if so many more may be.
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
