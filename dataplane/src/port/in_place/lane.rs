//! How one ring of the peer is served at this moment, from the point of view of the queue that serves it.

use std::sync::Arc;

use dpdk_sys as sys;

use super::link::{Link, RingState, Service};
use super::memory::Memory;
use super::ring::{Place, Positions, Ring};

/// One ring of the peer.
#[derive(Debug, Default)]
pub(super) enum Lane {
    /// The driver serves it.
    #[default]
    Driver,
    /// The ring is opened when it is this queue's turn, which may never be: other engines have the other rings.
    Unopened,
    /// Nobody serves it, while the peer's message is being handled. The ring, if there was one, may go on.
    Paused(Option<Ring>),
    InPlace(Ring),
}

impl Lane {
    /// Returns what becomes of the lane of ring `index`, whose state is now `state`, and earlier had the number
    /// `before`. `peer` is the library's number of the peer. The ring is opened only if `is_needed`. Nothing may be
    /// lent.
    pub(super) fn renewed(
        self,
        link: &Link,
        peer: Option<i32>,
        index: usize,
        state: RingState,
        before: u64,
        is_needed: bool,
    ) -> Self {
        let kept = match self {
            Lane::InPlace(kept) | Lane::Paused(Some(kept)) if before == state.number => Some(kept),
            _ => None,
        };
        match (state.service, kept, peer) {
            (Service::Paused, kept, _) => Lane::Paused(kept),
            (Service::InPlace(place, memory), Some(mut kept), _) => {
                // SAFETY: `place` was checked when it was published. Nothing is lent.
                unsafe { kept.move_to(place, memory) };
                Lane::InPlace(kept)
            }
            (Service::InPlace(place, memory), None, Some(vid)) if is_needed => {
                open(link, vid, index, place, memory)
            }
            (Service::InPlace(..), None, _) => Lane::Unopened,
            (Service::Driver, Some(_), Some(vid)) => {
                // The driver goes on where we stopped.
                link.hand_over(vid, index);
                Lane::Driver
            }
            _ => Lane::Driver,
        }
    }
}

/// Opens a ring where the driver has stopped.
fn open(link: &Link, vid: i32, index: usize, place: Place, memory: Arc<Memory>) -> Lane {
    let Some(progress) = link.progress.get(index) else { return Lane::Driver };
    let mut at = Positions::default();
    // SAFETY: the positions are ours to write. `place` was checked when it was published. Only this queue of ours
    // serves the ring, and the driver no longer does.
    unsafe {
        match sys::rte_vhost_get_vring_base(vid, index as u16, &raw mut at.taken, &raw mut at.given) {
            0 => {
                progress.open(at.given);
                Lane::InPlace(Ring::new(place, memory, at))
            }
            _ => Lane::Driver,
        }
    }
}

/// The peer to be notified that a ring has changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bell {
    /// The library's number of the peer.
    vid: i32,
    /// How many peers were gone before.
    gone: u32,
}

impl Bell {
    /// Returns the bell of the peer `vid`. Call this while the state is locked, so that the library does not forget the
    /// peer meanwhile.
    pub(super) fn of(link: &Link, vid: i32) -> Self {
        Bell { vid, gone: link.gone() }
    }

    /// Notifies the peer that ring `index` has changed.
    #[cold]
    pub(super) fn ring(self, link: &Link, index: usize) {
        let Some(progress) = link.progress.get(index) else { return };
        // SAFETY: no pointers are passed. The library does not forget the peer meanwhile.
        let call = || unsafe {
            sys::rte_vhost_vring_call(self.vid, index as u16);
        };
        progress.notify(|| link.gone() != self.gone, call);
    }
}
