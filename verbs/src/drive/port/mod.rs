//! What TCP over a port needs of a network port, and the ports there are.
//!
//! It is generic over [`Port`], so that the same code drives a DPDK port in
//! production (`dpdk`) and a simulated wire in virtual time ([`sim`]).

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

/// Frames taken from a port in one burst at most.
pub const BURST: usize = 32;

/// How a queue of a port is chosen for a frame that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// In a way that we do not know.
    Unknown,
    /// It arrives at the queue with the number of that which the peer sends it from.
    Paired,
    /// By the hash of a NIC, as [`Steering::like_nic`](urnic_tcp::Steering::like_nic) takes it.
    #[cfg_attr(not(feature = "dpdk"), allow(dead_code))] // no other port has a NIC
    Nic {
        /// The 16 bits that its key repeats.
        key: u16,
        /// Entries of its table.
        entries: u32,
    },
}

/// A port of one stack: frames in, frames out, buffers to build payload in.
pub trait Port: Send {
    /// A received frame.
    type Frame: Frame + Send + 'static;
    /// Finished payload, shared by reference count between TCP's retransmission queue and frames under way.
    type Payload: Payload + Send;
    /// Payload under construction.
    type Draft: Freeze<Payload = Self::Payload> + Send;

    /// Takes what has arrived by `now`, at most [`BURST`] frames. Begins a pass.
    fn receive(&mut self, now: Time, into: &mut ArrayVec<Self::Frame, BURST>);

    /// Returns a frame with these octets, as if it had been received; `None` while there is no buffer for it. `trusted`: its
    /// checksums need no check.
    fn adopt(&mut self, octets: &[u8], trusted: bool) -> Option<Self::Frame>;

    /// Asks the processor to fetch a frame that will be looked at soon, all of it.
    fn prefetch(frame: &Self::Frame);

    /// A fresh buffer to write payload into; `None` while the pool is dry.
    fn draft(&mut self) -> Option<Self::Draft>;

    /// Buffers that can be taken now for what is sent.
    fn send_buffers(&self) -> usize;

    /// All buffers for what is sent.
    fn all_send_buffers(&self) -> usize;

    /// Frames that [`Port::emit`] can take now.
    fn room(&self) -> usize;

    /// Builds a frame from headers and payload pieces and queues it for sending.
    fn emit(&mut self, emit: Emit<'_, Self::Payload>);

    /// Hands queued frames to the wire. Ends a pass.
    fn flush(&mut self);

    /// When the port itself wants another pass, whatever happens.
    fn next_deadline(&self) -> Option<Time>;

    /// Octets of all receive buffers.
    fn receive_memory(&self) -> usize;

    /// True while the receive pool is low (a quarter left), so that no more frames may be held out of order.
    fn receive_pool_low(&self) -> bool;

    /// True if it is almost empty (an eighth left), so that frames held out of order must go.
    fn receive_pool_short(&self) -> bool;

    /// Octets of payload that one frame may carry as several segments to the link's other end; zero if it can't.
    /// May change while the link is being set up, and with every peer.
    fn gso_max(&self) -> usize;

    /// From how many octets in one piece on payload had better be lent than copied; `usize::MAX` where none can be.
    fn lends_from(&self) -> usize {
        usize::MAX
    }

    /// Appends `len` octets at `at` to a draft without copying them. `ours`: they are of the device's own allocator. False:
    /// it can't be done, and nothing has changed.
    ///
    /// # Safety
    /// The octets stay readable until nothing refers to them: not the payload that the draft becomes, unless
    /// [`Port::make_own`] has copied it, nor frames of it that wait, which [`Port::forget`] drops.
    unsafe fn lend(&mut self, _draft: &mut Self::Draft, _at: *const u8, _len: usize, _ours: bool) -> bool {
        false
    }

    /// Copies what was lent to `payload` from within `range` (addresses). False: it could not be.
    fn make_own(&mut self, _payload: &mut Self::Payload, _range: &Range<usize>) -> bool {
        true
    }

    /// Copies a payload to ordinary memory, so that its buffers are free again when no frame shows them any longer. It is
    /// copied once more whenever it is sent.
    fn put_aside(&mut self, payload: &mut Self::Payload);

    /// Whether that has been done.
    fn is_aside(payload: &Self::Payload) -> bool;

    /// Octets of all payloads that have been put aside and are not gone.
    fn aside(&self) -> usize;

    /// Drops frames that wait and show memory within `range` (addresses) that was lent.
    fn forget(&mut self, _range: &Range<usize>) {}

    /// True where the link's metadata spares the Internet checksum of outgoing frames.
    fn spares_checksum(&self) -> bool;

    /// Looks whether the link has a carrier. May cost a system call: for every few milliseconds, not every pass.
    fn check_link(&mut self) -> bool;

    /// True if a lost carrier means that the peer, and with it every connection, is gone for good.
    fn carrier_is_peer(&self) -> bool;

    /// Returns how a queue is chosen for what arrives, where this is one of several.
    fn spread(&self) -> Spread {
        Spread::Unknown
    }

    /// Takes a frame that this queue cannot send, because the peer has fewer queues: it must leave by the first one.
    fn stray(&mut self) -> Option<Stray> {
        None
    }

    /// Sends a frame that another queue of the port could not.
    fn send_stray(&mut self, _stray: &Stray) {}

    /// Completes what the port writes besides frames: the process is about to end.
    fn finish(&mut self) {}

    /// Lets the port tell of the next frame; see `urnic_dataplane::Port::arm`.
    fn arm(&mut self) -> Option<Arc<dyn Wakeup>> {
        None
    }

    /// Counters, by name.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

/// A copy of a frame that is to be sent from another queue than that which it was made for.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))] // simulated ports read not all of it
pub struct Stray {
    /// The whole frame.
    pub octets: Arc<[u8]>,
    /// Its TCP checksum is left to the port.
    pub leaves_checksum: bool,
}

/// A draft that becomes payload.
pub trait Freeze: Draft {
    /// What it becomes.
    type Payload;

    /// Ends the construction. `sum` is the one's-complement sum of the content, if it is known; `unit` is
    /// [`Payload::unit`].
    fn freeze(self, sum: Option<u16>, unit: u16) -> Self::Payload;
}
