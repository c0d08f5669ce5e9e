//! The interface of a network port to the TCP stack above it, and the kinds of ports.
//!
//! The transport that runs TCP over a port is generic over [`Port`], so that the same code drives a DPDK port in
//! production (`dpdk`) and a simulated wire in virtual time ([`sim`]).

mod aside;
#[cfg(feature = "dpdk")]
pub(crate) mod dpdk;
pub mod sim;

use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use urnic_crc::Octets;
use urnic_tcp::{Emit, Frame, Payload, Time};

use super::draft::Draft;
use super::wakeup::Wakeup;

/// Maximum number of frames taken from a port in one burst.
pub const BURST: usize = 32;

/// How a port chooses the queue at which a frame arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// How the port chooses is not known.
    Unknown,
    /// The frame arrives at the queue with the same number as the queue from which the peer has sent it.
    Paired,
    /// A NIC chooses the queue by a hash of the frame's addresses and ports. With `key` and `entries`,
    /// [`Steering::like_nic`](urnic_tcp::Steering::like_nic) computes the same choice.
    #[cfg_attr(not(feature = "dpdk"), allow(dead_code))] // no other port has a NIC
    Nic {
        /// The 16 bits whose repetition is the NIC's hash key.
        key: u16,
        /// Number of entries of the NIC's table of queues.
        entries: u32,
    },
}

/// A received frame whose payload may lie in several pieces, and in memory that its sender may change at any time. The
/// defaults suit frames in memory of our own.
pub trait Received: Frame {
    /// Returns the first octets of `range` that are contiguous. There is at least one, unless the range is empty or not
    /// inside the frame.
    #[inline]
    fn piece(&self, range: Range<usize>) -> Octets<'_> {
        self.bytes().get(range).unwrap_or_default().into()
    }

    /// Returns whether octets of the frame may still change. If not, [`Frame::bytes`] returns all of them.
    #[inline]
    fn is_shared(&self) -> bool {
        false
    }
}

/// A port of one stack: it receives and sends frames, and provides buffers for payload.
pub trait Port: Send {
    /// A received frame.
    type Frame: Received + Send + 'static;
    /// Finished payload. TCP's retransmission queue and queued frames share it by reference count.
    type Payload: Payload + Send;
    /// Payload under construction.
    type Draft: Freeze<Payload = Self::Payload> + Send;

    /// Takes frames that have arrived by `now`, at most [`BURST`].
    fn receive(&mut self, now: Time, into: &mut ArrayVec<Self::Frame, BURST>);

    /// Makes a frame with these octets, as if the port had received it; `None` while there is no buffer for it. With
    /// `trusted`, the TCP stack need not check the frame's checksums.
    fn adopt(&mut self, octets: &[u8], trusted: bool) -> Option<Self::Frame>;

    /// Prefetches a whole frame that will be read soon.
    fn prefetch(frame: &Self::Frame);

    /// Returns a fresh buffer for payload; `None` while the pool is empty.
    fn draft(&mut self) -> Option<Self::Draft>;

    /// Returns the number of send buffers that are free now.
    fn send_buffers(&self) -> usize;

    /// Returns the number of all send buffers.
    fn all_send_buffers(&self) -> usize;

    /// Returns how many frames [`Port::emit`] can queue now.
    fn room(&self) -> usize;

    /// Builds a frame from headers and payload pieces, and queues it for sending.
    fn emit(&mut self, emit: Emit<'_, Self::Payload>);

    /// Hands queued frames to the wire.
    fn flush(&mut self);

    /// Returns when the port wants another pass, even if no frame arrives; `None`: it wants none.
    fn next_deadline(&self) -> Option<Time>;

    /// Returns the size of all receive buffers, in octets.
    fn receive_memory(&self) -> usize;

    /// Returns whether the receive pool is low (a quarter left), so that no more frames may be held out of order.
    fn receive_pool_low(&self) -> bool;

    /// Returns whether the receive pool is almost empty (an eighth left), so that frames held out of order must be
    /// dropped.
    fn receive_pool_short(&self) -> bool;

    /// Returns the maximum payload, in octets, of a frame that carries several segments to the other end of the link;
    /// 0 if a frame can carry only one segment. The value may change when the link comes up or the peer changes.
    fn gso_max(&self) -> usize;

    /// Returns the size, in octets, from which a contiguous piece of payload should be lent rather than copied;
    /// `usize::MAX` if the port cannot send lent memory.
    fn lends_from(&self) -> usize {
        usize::MAX
    }

    /// Appends `len` octets at `at` to a draft without copying them. `ours` tells whether they are in memory of the
    /// device's own allocator. Returns false, and changes nothing, if the port cannot send them from where they are.
    ///
    /// # Safety
    /// The octets must stay readable as long as anything refers to them. The payload that the draft becomes refers to
    /// them until it is dropped or [`Port::copy_lent`] has copied them. Queued frames of the payload refer to them
    /// until they are sent or [`Port::forget`] has dropped them.
    unsafe fn lend(&mut self, _draft: &mut Self::Draft, _at: *const u8, _len: usize, _ours: bool) -> bool {
        false
    }

    /// Copies the parts of `payload` that are lent memory within `range` (addresses). Returns false if they cannot be
    /// copied.
    fn copy_lent(&mut self, _payload: &mut Self::Payload, _range: &Range<usize>) -> bool {
        true
    }

    /// Puts a payload aside: copies it to ordinary memory, so that its buffers are free once no queued frame refers
    /// to them. Each later transmission copies the payload into a buffer again.
    fn put_aside(&mut self, payload: &mut Self::Payload);

    /// Returns whether a payload has been put aside.
    fn is_aside(payload: &Self::Payload) -> bool;

    /// Returns the total size, in octets, of all payloads that are put aside at present.
    fn aside(&self) -> usize;

    /// Drops queued frames that refer to lent memory within `range` (addresses).
    fn forget(&mut self, _range: &Range<usize>) {}

    /// Returns whether `payload` contains lent memory within `range` (addresses), and the link's peer reads frames
    /// after they have been sent.
    fn is_read_late(&self, _payload: &Self::Payload, _range: &Range<usize>) -> bool {
        false
    }

    /// Returns whether outgoing frames need no complete TCP checksum, because the link's metadata or hardware takes
    /// care of it.
    fn spares_checksum(&self) -> bool;

    /// Returns whether the link has a carrier. Should be called every few milliseconds, not in every pass, because it
    /// may make a system call.
    fn check_link(&mut self) -> bool;

    /// Returns whether the loss of the carrier means that the peer has ended, and every connection with it.
    fn carrier_is_peer(&self) -> bool;

    /// Returns how the port chooses the queue at which a frame arrives, if it has several queues.
    fn spread(&self) -> Spread {
        Spread::Unknown
    }

    /// Takes a frame that this queue cannot send, because the peer has fewer queues; `None` if there is no such
    /// frame. The first queue must send the frame.
    fn stray(&mut self) -> Option<Stray> {
        None
    }

    /// Sends a frame that another queue of the port could not send.
    fn send_stray(&mut self, _stray: &Stray) {}

    /// Completes output that is not finished, such as packet captures, because the process is about to end.
    fn finish(&mut self) {}

    /// Arms the port to signal the next frame, and returns the event that signals it; `None`: the port cannot signal.
    /// See `urnic_dataplane::Port::arm`.
    fn arm(&mut self) -> Option<Arc<dyn Wakeup>> {
        None
    }

    /// Returns the counters, by name.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

/// A copy of a frame that was built for one queue, but that another queue must send.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))] // simulated ports do not read all fields
pub struct Stray {
    /// The whole frame.
    pub octets: Arc<[u8]>,
    /// Whether the port must compute the frame's TCP checksum.
    pub leaves_checksum: bool,
}

/// Returns [`Payload::cut`] of a record of `len` octets that holds whole FPDUs without markers. `read` returns the two
/// octets at an offset, which are the length of an FPDU (RFC 5044 §4.1).
fn cut_between_fpdus(len: usize, from: usize, max: usize, read: impl Fn(usize) -> [u8; 2]) -> usize {
    urnic_tcp::cut_between_parts(len, from, max, |at| urnic_iwarp::fpdu_size(u16::from_be_bytes(read(at))))
}

/// A draft that can become payload.
pub trait Freeze: Draft {
    /// The payload that the draft becomes.
    type Payload;

    /// Turns the draft into payload. `sum` is the one's-complement sum of the content, if known; `unit` is the value
    /// of [`Payload::unit`].
    fn freeze(self, sum: Option<u16>, unit: u16) -> Self::Payload;
}
