//! What TCP over a port needs from a network port, and the ports that exist.
//!
//! TCP is generic over [`Port`], so that the same code drives a DPDK port in production (`dpdk`) and a simulated
//! wire in virtual time ([`sim`]).

mod aside;
#[cfg(feature = "dpdk")]
pub(crate) mod dpdk;
pub mod sim;

use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use urnic_tcp::{Emit, Frame, Payload, Time};

use super::draft::Draft;
use super::wakeup::Wakeup;

/// Maximum number of frames taken from a port in one burst.
pub const BURST: usize = 32;

/// How a port chooses one of its queues for a frame that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// In an unknown way.
    Unknown,
    /// The frame arrives at the queue that has the number of the queue from which the peer sends it.
    Paired,
    /// By the hash of a NIC, in the form that [`Steering::like_nic`](urnic_tcp::Steering::like_nic) expects.
    #[cfg_attr(not(feature = "dpdk"), allow(dead_code))] // no other port has a NIC
    Nic {
        /// The 16 bits that the NIC's key repeats.
        key: u16,
        /// Number of entries of the NIC's table.
        entries: u32,
    },
}

/// A port of one stack: it receives and sends frames, and provides buffers for payload.
pub trait Port: Send {
    /// A received frame.
    type Frame: Frame + Send + 'static;
    /// Finished payload, shared by reference count between TCP's retransmission queue and the frames under way.
    type Payload: Payload + Send;
    /// Payload under construction.
    type Draft: Freeze<Payload = Self::Payload> + Send;

    /// Takes frames that have arrived by `now`, at most [`BURST`]. Begins a pass.
    fn receive(&mut self, now: Time, into: &mut ArrayVec<Self::Frame, BURST>);

    /// Returns a frame with these octets, as if it had been received; `None` while there is no buffer for it. With
    /// `trusted`, its checksums need no check.
    fn adopt(&mut self, octets: &[u8], trusted: bool) -> Option<Self::Frame>;

    /// Prefetches all of a frame that will be read soon.
    fn prefetch(frame: &Self::Frame);

    /// Returns a fresh buffer for payload; `None` while the pool is empty.
    fn draft(&mut self) -> Option<Self::Draft>;

    /// Returns the number of send buffers that are free now.
    fn send_buffers(&self) -> usize;

    /// Returns the number of all send buffers.
    fn all_send_buffers(&self) -> usize;

    /// Returns the number of frames that [`Port::emit`] can take now.
    fn room(&self) -> usize;

    /// Builds a frame from headers and payload pieces, and queues it for sending.
    fn emit(&mut self, emit: Emit<'_, Self::Payload>);

    /// Hands queued frames to the wire. Ends a pass.
    fn flush(&mut self);

    /// Returns when the port itself wants another pass, whatever happens; `None`: never.
    fn next_deadline(&self) -> Option<Time>;

    /// Returns the size of all receive buffers, in octets.
    fn receive_memory(&self) -> usize;

    /// Returns whether the receive pool is low (a quarter left), so that no more frames may be held out of order.
    fn receive_pool_low(&self) -> bool;

    /// Returns whether the receive pool is almost empty (an eighth left), so that frames held out of order must be
    /// dropped.
    fn receive_pool_short(&self) -> bool;

    /// Returns the payload octets that one frame may carry to the other end of the link as several segments; 0 if
    /// it cannot carry several. May change while the link comes up, and with every peer.
    fn gso_max(&self) -> usize;

    /// Returns the size, in octets, from which a contiguous piece should be lent rather than copied; `usize::MAX`
    /// if the port cannot lend.
    fn lends_from(&self) -> usize {
        usize::MAX
    }

    /// Appends `len` octets at `at` to a draft without copying them. With `ours`, they are in memory of the
    /// device's own allocator. Returns false, and changes nothing, if the port cannot send them in place.
    ///
    /// # Safety
    /// The octets must stay readable until nothing refers to them: neither the payload that the draft becomes,
    /// unless [`Port::make_own`] has copied it, nor queued frames of it, which [`Port::forget`] drops.
    unsafe fn lend(&mut self, _draft: &mut Self::Draft, _at: *const u8, _len: usize, _ours: bool) -> bool {
        false
    }

    /// Copies the parts of `payload` that were lent from within `range` (addresses). Returns false if they cannot
    /// be copied.
    fn make_own(&mut self, _payload: &mut Self::Payload, _range: &Range<usize>) -> bool {
        true
    }

    /// Copies a payload to ordinary memory, so that its buffers are free again once no frame refers to them. Each
    /// transmission copies it once more.
    fn put_aside(&mut self, payload: &mut Self::Payload);

    /// Returns whether a payload has been put aside.
    fn is_aside(payload: &Self::Payload) -> bool;

    /// Returns the octets of all payloads that have been put aside and still exist.
    fn aside(&self) -> usize;

    /// Drops queued frames that refer to lent memory within `range` (addresses).
    fn forget(&mut self, _range: &Range<usize>) {}

    /// Returns whether the link's metadata replaces the Internet checksum of outgoing frames.
    fn spares_checksum(&self) -> bool;

    /// Returns whether the link has a carrier. May cost a system call: call it every few milliseconds, not every
    /// pass.
    fn check_link(&mut self) -> bool;

    /// Returns whether the loss of the carrier means that the peer, and with it every connection, is gone for good.
    fn carrier_is_peer(&self) -> bool;

    /// Returns how a queue is chosen for a frame that arrives, if the port has several.
    fn spread(&self) -> Spread {
        Spread::Unknown
    }

    /// Takes a frame that this queue cannot send, because the peer has fewer queues. It must leave by the first
    /// queue. `None`: there is none.
    fn stray(&mut self) -> Option<Stray> {
        None
    }

    /// Sends a frame that another queue of the port could not.
    fn send_stray(&mut self, _stray: &Stray) {}

    /// Completes what the port writes besides frames, because the process is about to end.
    fn finish(&mut self) {}

    /// Arms the port to signal the next frame; `None` if it cannot signal. See `urnic_dataplane::Port::arm`.
    fn arm(&mut self) -> Option<Arc<dyn Wakeup>> {
        None
    }

    /// Returns the counters, by name.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

/// A copy of a frame that another queue must send than the one it was built for.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))] // simulated ports do not read all of it
pub struct Stray {
    /// The whole frame.
    pub octets: Arc<[u8]>,
    /// Whether the port must compute its TCP checksum.
    pub leaves_checksum: bool,
}

/// A draft that becomes payload.
pub trait Freeze: Draft {
    /// The payload that it becomes.
    type Payload;

    /// Finishes the payload. `sum` is the one's-complement sum of the content, if known; `unit` is
    /// [`Payload::unit`].
    fn freeze(self, sum: Option<u16>, unit: u16) -> Self::Payload;
}
