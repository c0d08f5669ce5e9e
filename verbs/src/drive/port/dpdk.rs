//! A port that sends and receives through DPDK.
//!
//! DPDK's buffers are not `Send`, because only one thread at a time may use their pools. Under the shard's lock, one
//! thread at a time uses an engine, its port and all buffers from the port's pools, and another thread gets all of
//! them together. All `Send` implementations here rely on this.

use std::collections::VecDeque;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use arrayvec::ArrayVec;
use urnic_dataplane::{
    Capture, Direction, ExternalMemory, Mbuf, Part, Rss, TxBuf, TxChecksum, TxPayload, TxQueue,
};
use urnic_sim::{Impairment, Link};
use urnic_tcp::{Emit, Frame, MAX_PIECES, Payload, Time};

use super::aside::{Aside, Put};
use super::{BURST, Freeze, Port, Received, Spread, Stray, cut_between_fpdus};
use crate::drive::draft::Draft;
use crate::drive::wakeup::Wakeup;

/// Number of queued frames at which a burst is sent before the end of the pass.
const EAGER: usize = 32;
/// Octets of queued payload at which a burst is sent before the end of the pass, so that the receiver can process
/// this burst while the engine builds the next one.
const EAGER_OCTETS: usize = 32 << 10;
/// Size, in octets, from which payload is lent rather than copied. For smaller pieces, two more mbufs cost more than
/// a copy.
const LENDS_FROM: usize = 4096;
/// Maximum number of frames in each of two queues: the hairpin, for frames to this host itself, and the strays, for
/// frames that another queue of the port must send. Frames that do not fit are dropped, as on any link.
const HAIRPIN: usize = 1024;

/// A received frame.
pub(crate) struct RxFrame(Mbuf);

// SAFETY: see the remark on `Send` in the module's documentation.
unsafe impl Send for RxFrame {}

impl From<Mbuf> for RxFrame {
    #[inline]
    fn from(frame: Mbuf) -> Self {
        RxFrame(frame)
    }
}

impl Frame for RxFrame {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.0.data()
    }

    #[inline]
    fn len(&self) -> usize {
        self.0.frame_len()
    }

    #[inline]
    fn keep(&mut self) {
        self.0.keep();
    }

    #[inline]
    fn pins(&self) -> usize {
        self.0.buffer_len()
    }

    #[inline]
    fn checksum_trusted(&self) -> bool {
        self.0.checksum_trusted()
    }

    #[inline]
    fn sum(&self, range: Range<usize>) -> u16 {
        self.0.data().get(range).map_or(0, urnic_crc::sum)
    }
}

impl Received for RxFrame {
    #[inline]
    fn piece(&self, range: Range<usize>) -> urnic_iwarp::Octets<'_> {
        // SAFETY: an engine is done with the octets of a burst before it receives the next one, or has called `keep`.
        unsafe { self.0.piece(range) }
    }

    #[inline]
    fn is_shared(&self) -> bool {
        self.0.is_borrowed()
    }
}

/// Finished payload.
#[derive(Clone)]
pub(crate) struct MbufPayload {
    octets: Octets,
    sum: KnownSum,
    unit: u16,
}

/// The one's-complement sum of a payload, or [`KnownSum::NONE`]. It is one word, because a payload is copied right
/// after it was made. An `Option` has two fields, which are stored one by one. A copy that loads both at once would
/// wait until all earlier stores have left the core.
#[derive(Clone, Copy, PartialEq, Eq)]
struct KnownSum(u32);

impl KnownSum {
    const NONE: Self = Self(u32::MAX);

    #[inline]
    fn new(sum: Option<u16>) -> Self {
        sum.map_or(Self::NONE, |sum| Self(sum.into()))
    }

    #[inline]
    fn get(self) -> Option<u16> {
        (self != Self::NONE).then_some(self.0 as u16)
    }
}

/// The place of a payload's octets.
#[derive(Clone)]
enum Octets {
    Mbufs(TxPayload),
    Aside(Arc<Aside>),
}

// SAFETY: see the remark on `Send` in the module's documentation.
unsafe impl Send for MbufPayload {}

impl MbufPayload {
    /// Appends `range` to `out`; appends nothing if it is out of bounds.
    fn append_to(&self, range: Range<usize>, out: &mut Vec<u8>) {
        match &self.octets {
            Octets::Mbufs(payload) => {
                let _ = payload.append_to(range, out);
            }
            Octets::Aside(octets) => out.extend_from_slice(octets.get(range).unwrap_or_default()),
        }
    }
}

impl Payload for MbufPayload {
    #[inline]
    fn len(&self) -> usize {
        match &self.octets {
            Octets::Mbufs(payload) => payload.len(),
            Octets::Aside(octets) => octets.len(),
        }
    }

    #[inline]
    fn unit(&self) -> u16 {
        self.unit
    }

    #[inline]
    fn place(&self) -> Option<*const u8> {
        match &self.octets {
            Octets::Mbufs(payload) => Some(payload.place()),
            Octets::Aside(_) => None,
        }
    }

    #[cold]
    fn cut(&self, from: usize, max: usize) -> usize {
        cut_between_fpdus(self.len(), from, max, |at| {
            let (mut length, mut have) = ([0; 2], 0);
            match &self.octets {
                Octets::Mbufs(payload) => payload.pieces(at..at + 2, |from, n| {
                    // SAFETY: the pieces are readable, and two octets long together.
                    unsafe { from.copy_to_nonoverlapping(length.as_mut_ptr().add(have), n) };
                    have += n;
                }),
                Octets::Aside(octets) => {
                    length =
                        octets.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default();
                }
            }
            length
        })
    }

    #[inline]
    fn sum(&self, range: Range<usize>) -> u16 {
        match (self.sum.get(), &self.octets) {
            (Some(sum), _) if range == (0..self.len()) => sum,
            (_, Octets::Aside(octets)) => octets.get(range).map_or(0, urnic_crc::sum),
            (_, Octets::Mbufs(payload)) => {
                let (mut sum, mut at) = (0, 0);
                payload.pieces(range, |from, len| {
                    // SAFETY: the pieces of a payload are readable.
                    sum = urnic_crc::combine(sum, at, unsafe { urnic_crc::sum_at(from, len) });
                    at += len;
                });
                sum
            }
        }
    }
}

/// Payload under construction.
pub(crate) struct MbufDraft(TxBuf);

// SAFETY: see the remark on `Send` in the module's documentation.
unsafe impl Send for MbufDraft {}

impl Draft for MbufDraft {
    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        self.0.append(n)
    }

    #[inline]
    fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }
}

impl Freeze for MbufDraft {
    type Payload = MbufPayload;

    #[inline]
    fn freeze(self, sum: Option<u16>, unit: u16) -> MbufPayload {
        MbufPayload { octets: Octets::Mbufs(self.0.freeze()), sum: KnownSum::new(sum), unit }
    }
}

/// A simulated link that injects faults into the frames that the port sends.
struct Fault {
    link: Link<Vec<u8>>,
    now: Time,
}

/// A DPDK port with its queue of frames to send.
pub(crate) struct DpdkPort {
    port: urnic_dataplane::Port,
    queue: TxQueue,
    /// Octets of payload in frames that were queued since the last burst.
    queued: usize,
    hairpin: VecDeque<RxFrame>,
    strays: VecDeque<Stray>,
    wires_turn: bool,
    fault: Option<Box<Fault>>,
    capture: Option<Box<Capture>>,
    /// The receive pool is low if it has fewer free mbufs than this number.
    low: usize,
    /// Number of mbufs in the send pool.
    send_buffers: usize,
    /// Number of frames for the wire that were dropped: for want of a buffer or of a place in a queue, or because lent
    /// memory that they referred to was taken back.
    unsent: u64,
    spares_checksum: bool,
    lends: Option<ExternalMemory>,
    aside: Put,
}

// SAFETY: see the remark on `Send` in the module's documentation.
unsafe impl Send for DpdkPort {}

impl DpdkPort {
    /// Wraps an open port. `fault` describes the faults to inject into sent frames. Memory of the kind `lends` may be
    /// sent without a copy. `capture` records all frames.
    pub(crate) fn new(
        mut port: urnic_dataplane::Port,
        fault: Option<&Impairment>,
        lends: Option<ExternalMemory>,
        capture: Option<Capture>,
    ) -> Self {
        let fault = fault.map(|i| Box::new(Fault { link: Link::new(i), now: Time::ZERO }));
        port.bound_bursts();
        port.work_in_place();
        DpdkPort {
            low: port.rx_pool().capacity() / 4,
            send_buffers: port.tx_capacity(),
            // With injected faults, frames need complete checksums, so that the peer notices corruption as on a real
            // wire.
            spares_checksum: port.caps().tx_checksum != TxChecksum::Software && fault.is_none(),
            lends,
            port,
            queue: TxQueue::new(),
            queued: 0,
            hairpin: VecDeque::new(),
            strays: VecDeque::new(),
            wires_turn: false,
            fault,
            capture: capture.map(Box::new),
            unsent: 0,
            aside: Put::default(),
        }
    }

    #[inline]
    fn send_burst(&mut self) {
        self.queued = 0;
        if self.port.is_served() {
            self.port.tx_burst(&mut self.queue);
        } else {
            self.go_astray();
        }
    }

    /// Moves copies of the queued frames to the queue of strays, because the peer does not serve this queue. The
    /// engine of the port's first queue sends them.
    #[cold]
    fn go_astray(&mut self) {
        let (strays, unsent) = (&mut self.strays, &mut self.unsent);
        self.queue.take_copies(|octets, leaves_checksum| {
            if strays.len() < HAIRPIN {
                strays.push_back(Stray { octets: octets.into(), leaves_checksum });
            } else {
                *unsent += 1;
            }
        });
    }

    /// Sends a frame that has crossed the fault-injecting link.
    fn send_copy(&mut self, frame: &[u8]) {
        match self.port.frame(frame, &[], false) {
            Some(made) if self.queue.room() > 0 => {
                let _ = self.queue.push(made);
                if let Some(capture) = &mut self.capture {
                    capture.record(Direction::Outbound, false, &[frame]);
                }
            }
            _ => self.unsent += 1,
        }
    }

    /// Sends the frames that are due on the fault-injecting link.
    fn send_impaired(&mut self) {
        while let Some(frame) = self.fault.as_mut().and_then(|f| f.link.pop(f.now.0)) {
            if self.queue.room() == 0 {
                self.send_burst();
            }
            self.send_copy(&frame);
        }
    }

    /// Sends a frame of `headers` and `parts`, which come from `emit`.
    #[inline]
    fn emit_parts(&mut self, emit: &Emit<'_, MbufPayload>, headers: &[u8], parts: &[Part<'_>]) {
        if emit.loopback {
            if self.hairpin.len() < HAIRPIN
                && let Some(mut frame) = self.port.own_pool().copied(headers, parts)
            {
                frame.trust_checksum();
                if let Some(capture) = &mut self.capture {
                    capture.record(Direction::Outbound, true, &[&frame]);
                }
                self.hairpin.push_back(RxFrame(frame));
            }
            return;
        }
        if let Some(fault) = &mut self.fault {
            let mut frame = headers.to_vec();
            for part in parts {
                let _ = part.payload.append_to(part.range.clone(), &mut frame);
            }
            fault.link.push(fault.now.0, frame);
            self.send_impaired();
            return;
        }
        match self.port.frame(headers, parts, emit.tcp_checksum_offload) {
            Some(mut frame) => {
                self.queued += parts.iter().map(|part| part.range.len()).sum::<usize>();
                if emit.gso_size > 0 {
                    frame.segmented(emit.gso_size, emit.headers);
                }
                if self.queue.push(frame).is_err() {
                    self.unsent += 1;
                } else if let Some(capture) = &mut self.capture {
                    let mut payload = Vec::new();
                    for part in parts {
                        let _ = part.payload.append_to(part.range.clone(), &mut payload);
                    }
                    capture.record(Direction::Outbound, emit.tcp_checksum_offload, &[headers, &payload]);
                }
                if self.queue.len() >= EAGER || self.queued >= EAGER_OCTETS {
                    self.send_burst();
                }
            }
            // This is like a loss on the wire: TCP retransmits the segment.
            None => self.unsent += 1,
        }
    }

    /// Sends a frame with payload that has been put aside, by copying all payload of the frame into one buffer.
    #[cold]
    fn emit_copy(&mut self, emit: &Emit<'_, MbufPayload>) {
        let mut octets = Vec::new();
        for piece in emit.payload {
            piece.payload.append_to(piece.range.clone(), &mut octets);
        }
        let mut buffer = self.port.tx_pool().buffer();
        let Some(room) = buffer.as_mut().and_then(|buffer| buffer.append(octets.len())) else {
            self.unsent += 1;
            return;
        };
        room.copy_from_slice(&octets);
        // No other frame uses this buffer, so the headers are written in front of the payload, even if the frame is a
        // train.
        if let Some(payload) = buffer.map(|buffer| buffer.freeze()) {
            self.emit_parts(emit, emit.headers, &[Part { payload: &payload, range: 0..octets.len() }]);
        }
    }
}

impl Port for DpdkPort {
    type Frame = RxFrame;
    type Payload = MbufPayload;
    type Draft = MbufDraft;

    #[inline]
    fn adopt(&mut self, octets: &[u8], trusted: bool) -> Option<RxFrame> {
        let mut frame = self.port.own_pool().copied(octets, &[])?;
        if trusted {
            frame.trust_checksum();
        }
        Some(RxFrame(frame))
    }

    fn receive(&mut self, now: Time, into: &mut ArrayVec<RxFrame, BURST>) {
        if let Some(fault) = &mut self.fault {
            fault.now = now;
        }
        // While the hairpin has frames, every second call receives from the hairpin instead of the wire.
        self.wires_turn = self.hairpin.is_empty() || !self.wires_turn;
        if self.wires_turn {
            self.port.rx_burst(into);
            if let Some(capture) = &mut self.capture {
                for RxFrame(frame) in into.iter_mut() {
                    frame.keep();
                    capture.record(Direction::Inbound, frame.checksum_trusted(), &[frame]);
                }
            }
        } else {
            let n = self.hairpin.len().min(into.remaining_capacity());
            into.extend(self.hairpin.drain(..n));
        }
    }

    #[inline]
    fn prefetch(frame: &RxFrame) {
        frame.0.prefetch_all();
    }

    #[inline]
    fn draft(&mut self) -> Option<MbufDraft> {
        self.port.tx_pool().buffer().map(MbufDraft)
    }

    #[inline]
    fn send_buffers(&self) -> usize {
        self.port.tx_available()
    }

    #[inline]
    fn all_send_buffers(&self) -> usize {
        self.send_buffers
    }

    #[inline]
    fn room(&self) -> usize {
        self.queue.room()
    }

    #[inline]
    fn emit(&mut self, emit: Emit<'_, MbufPayload>) {
        let mut parts = ArrayVec::<Part<'_>, MAX_PIECES>::new();
        for piece in emit.payload.iter().take(MAX_PIECES) {
            let Octets::Mbufs(payload) = &piece.payload.octets else { return self.emit_copy(&emit) };
            parts.push(Part { payload, range: piece.range.clone() });
        }
        self.emit_parts(&emit, emit.headers, &parts);
    }

    #[inline]
    fn flush(&mut self) {
        if self.fault.is_some() {
            self.send_impaired();
        }
        if !self.queue.is_empty() {
            self.send_burst();
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        let arrival = self.fault.as_ref().and_then(|f| f.link.next_arrival()).map(Time);
        let now = (!self.queue.is_empty() || !self.hairpin.is_empty()).then_some(Time::ZERO);
        now.or(arrival)
    }

    fn receive_memory(&self) -> usize {
        self.port.rx_pool().capacity() * self.port.rx_pool().room()
    }

    #[inline]
    fn receive_pool_low(&self) -> bool {
        self.port.rx_pool().available() < self.low
    }

    fn receive_pool_short(&self) -> bool {
        self.port.rx_pool().available() < self.low / 2
    }

    fn gso_max(&self) -> usize {
        // With injected faults, frames carry single segments, so that a fault hits one segment as on a real wire.
        if self.fault.is_some() { 0 } else { self.port.gso_max() }
    }

    fn spares_checksum(&self) -> bool {
        self.spares_checksum
    }

    #[inline]
    fn lends_from(&self) -> usize {
        if self.lends.is_some() { LENDS_FROM } else { usize::MAX }
    }

    #[inline]
    unsafe fn lend(&mut self, draft: &mut MbufDraft, at: *const u8, len: usize, ours: bool) -> bool {
        if !ours && self.lends != Some(ExternalMemory::Any) {
            return false;
        }
        let Some(at) = NonNull::new(at.cast_mut()) else { return false };
        // SAFETY: the caller fulfils this function's contract, and the port can send this memory.
        unsafe { draft.0.lend(self.port.tx_pool(), at, len) }
    }

    fn copy_lent(&mut self, payload: &mut MbufPayload, range: &Range<usize>) -> bool {
        match &mut payload.octets {
            Octets::Mbufs(payload) => !payload.shows(range) || payload.copy_lent(self.port.tx_pool()),
            Octets::Aside(_) => true,
        }
    }

    fn put_aside(&mut self, payload: &mut MbufPayload) {
        if let Octets::Mbufs(mbufs) = &payload.octets {
            let mut octets = Vec::with_capacity(mbufs.len());
            let _ = mbufs.append_to(0..mbufs.len(), &mut octets);
            payload.octets = Octets::Aside(Arc::new(Aside::new(octets, &self.aside)));
        }
    }

    fn is_aside(payload: &MbufPayload) -> bool {
        matches!(payload.octets, Octets::Aside(_))
    }

    #[inline]
    fn aside(&self) -> usize {
        self.aside.octets()
    }

    fn forget(&mut self, range: &Range<usize>) {
        self.unsent += self.queue.drop_containing_lent(range) as u64;
    }

    fn is_read_late(&self, payload: &MbufPayload, range: &Range<usize>) -> bool {
        // Ports that can send any memory copy it before `flush` returns.
        let late = self.lends == Some(ExternalMemory::Eal);
        late && matches!(&payload.octets, Octets::Mbufs(payload) if payload.shows(range))
    }

    fn check_link(&mut self) -> bool {
        self.port.link_up()
    }

    fn carrier_is_peer(&self) -> bool {
        use urnic_config::PortSpec::{Memif, Vhost, VirtioUser};
        matches!(self.port.spec(), VirtioUser { .. } | Vhost { .. } | Memif { .. })
    }

    fn spread(&self) -> Spread {
        match self.port.caps().spread {
            urnic_dataplane::Spread::Sender => Spread::Paired,
            urnic_dataplane::Spread::Hash => Spread::Unknown,
            urnic_dataplane::Spread::Known(Rss { key, entries }) => Spread::Nic { key, entries },
        }
    }

    fn stray(&mut self) -> Option<Stray> {
        self.strays.pop_front()
    }

    fn send_stray(&mut self, stray: &Stray) {
        if self.queue.room() == 0 {
            self.send_burst();
        }
        match self.port.frame(&stray.octets, &[], stray.leaves_checksum) {
            Some(frame) if self.queue.room() > 0 => {
                let _ = self.queue.push(frame);
            }
            _ => self.unsent += 1,
        }
    }

    fn finish(&mut self) {
        self.capture = None;
    }

    fn arm(&mut self) -> Option<Arc<dyn Wakeup>> {
        self.port.arm().map(|event| event as Arc<dyn Wakeup>)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let stats = self.port.stats();
        let mut counters = vec![
            ("rx_frames", stats.rx_frames),
            ("rx_bytes", stats.rx_bytes),
            ("tx_frames", stats.tx_frames),
            ("tx_bytes", stats.tx_bytes),
            ("rx_dropped", stats.rx_dropped),
            ("tx_unsent", self.unsent + stats.tx_dropped + stats.checksums.map_or(0, |nic| nic.tx_unsent)),
        ];
        if let Some(nic) = stats.checksums {
            counters.extend([
                ("tx_nic_checksums", nic.tx_filled),
                ("tx_nic_refused", nic.tx_refused),
                ("rx_nic_good", nic.rx_good),
                ("rx_nic_bad", nic.rx_bad),
            ]);
        }
        if let Some(capture) = &self.capture {
            let stats = capture.stats();
            counters.extend([("captured", stats.recorded), ("capture_dropped", stats.dropped)]);
        }
        counters
    }
}
