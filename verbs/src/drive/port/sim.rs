//! A simulated port, whose frames are vectors. At the port's other end, the [`SimWire`], a test takes the sent frames
//! and delivers frames, in virtual time.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrayvec::ArrayVec;
use fastrand::Rng;
use urnic_tcp::{Emit, Frame, Payload, Steering, Time};

use super::aside::{Aside, Put};
use super::{BURST, Freeze, Port, Received, Spread, Stray, cut_between_fpdus};
use crate::drive::draft::Draft;

/// Size of the receive buffers that a simulated port reports, in octets. Its frames do not use such buffers.
const SIMULATED_MEMORY: usize = 16 << 20;

/// A received frame.
pub struct SimFrame(Vec<u8>);

impl Frame for SimFrame {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn sum(&self, range: Range<usize>) -> u16 {
        self.0.get(range).map_or(0, urnic_crc::sum)
    }
}

impl Received for SimFrame {}

/// A sequence of octets, some of which may be lent, and a token that represents the send buffer that they occupy.
#[derive(Default)]
struct Pieces(Vec<Piece>, Option<Arc<()>>);

enum Piece {
    Own(Vec<u8>),
    Lent(*const u8, usize),
    Aside(Aside),
}

// SAFETY: the lender guarantees that any thread may read the lent memory.
unsafe impl Send for Pieces {}
// SAFETY: as above.
unsafe impl Sync for Pieces {}

impl Pieces {
    fn len(&self) -> usize {
        self.0
            .iter()
            .map(|piece| match piece {
                Piece::Own(bytes) => bytes.len(),
                Piece::Lent(_, len) => *len,
                Piece::Aside(bytes) => bytes.len(),
            })
            .sum()
    }

    /// Returns the present content.
    fn bytes(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len());
        for piece in &self.0 {
            match *piece {
                Piece::Own(ref bytes) => all.extend_from_slice(bytes),
                Piece::Aside(ref bytes) => all.extend_from_slice(bytes),
                Piece::Lent(at, len) => all.extend((0..len).map(|i| {
                    // SAFETY: lent memory is readable until it has been taken back. Its content may change during the
                    // read.
                    unsafe { at.add(i).read_volatile() }
                })),
            }
        }
        all
    }
}

/// Finished payload.
#[derive(Clone)]
pub struct SimPayload {
    pieces: Arc<Pieces>,
    sum: Option<u16>,
    unit: u16,
}

impl SimPayload {
    /// Returns whether it contains lent memory within `range` (addresses).
    fn shows(&self, range: &Range<usize>) -> bool {
        self.pieces.0.iter().any(|piece| {
            matches!(*piece, Piece::Lent(at, len)
            if (at as usize) < range.end && range.start < at as usize + len)
        })
    }
}

impl Payload for SimPayload {
    fn len(&self) -> usize {
        self.pieces.len()
    }

    fn unit(&self) -> u16 {
        self.unit
    }

    fn cut(&self, from: usize, max: usize) -> usize {
        let bytes = self.pieces.bytes();
        cut_between_fpdus(self.len(), from, max, |at| {
            bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default()
        })
    }

    fn sum(&self, range: Range<usize>) -> u16 {
        match self.sum {
            Some(sum) if range == (0..self.len()) => sum,
            _ => self.pieces.bytes().get(range).map_or(0, urnic_crc::sum),
        }
    }
}

/// Payload under construction.
pub struct SimDraft {
    pieces: Pieces,
    room: usize,
}

impl Draft for SimDraft {
    fn len(&self) -> usize {
        self.pieces.len()
    }

    fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        let room = self.room;
        self.room = room.checked_sub(n)?;
        if !matches!(self.pieces.0.last(), Some(Piece::Own(_))) {
            self.pieces.0.push(Piece::Own(Vec::with_capacity(room)));
        }
        let Some(Piece::Own(bytes)) = self.pieces.0.last_mut() else { return None };
        let at = bytes.len();
        bytes.resize(at + n, 0);
        bytes.get_mut(at..)
    }

    fn truncate(&mut self, len: usize) {
        while let Some(excess @ 1..) = self.len().checked_sub(len) {
            let Some(last) = self.pieces.0.last_mut() else { break };
            let cut = match last {
                Piece::Own(bytes) => {
                    let keep = bytes.len().saturating_sub(excess);
                    let cut = bytes.len() - keep;
                    bytes.truncate(keep);
                    cut
                }
                Piece::Lent(_, n) => {
                    let cut = excess.min(*n);
                    *n -= cut;
                    cut
                }
                Piece::Aside(_) => break, // a draft has no pieces that have been put aside
            };
            self.room += cut;
            if matches!(last, Piece::Lent(_, 0)) || matches!(last, Piece::Own(bytes) if bytes.is_empty()) {
                self.pieces.0.pop();
            }
        }
    }
}

impl Freeze for SimDraft {
    type Payload = SimPayload;

    fn freeze(self, sum: Option<u16>, unit: u16) -> SimPayload {
        SimPayload { pieces: self.pieces.into(), sum, unit }
    }
}

/// The other end of one or more [`SimPort`]s: the frames that they have sent, and the frames that they will receive.
#[derive(Clone)]
pub struct SimWire(Arc<Mutex<Queues>>);

struct Queues {
    /// The frames that each port on the wire will receive.
    to_port: Box<[VecDeque<Vec<u8>>]>,
    /// The sent frames, each with the number of the port that has sent it.
    from_port: VecDeque<(usize, Vec<u8>)>,
    steer: Steer,
    link_down: bool,
}

/// How a wire with several ports, which are the queues of one device, chooses a port for a frame.
#[derive(Clone, Debug)]
pub enum Steer {
    /// A random port.
    Random(Rng),
    /// The port whose engine has the frame's connection. A NIC would choose the same port if its hash were that of the
    /// [`Steering`]. Frames that are not TCP segments go to a random port.
    ByOwner(Steering, Rng),
}

impl Steer {
    fn choose(&mut self, queues: usize, frame: &[u8]) -> usize {
        if queues == 1 {
            return 0;
        }
        let (owner, rng) = match self {
            Steer::Random(rng) => (None, rng),
            Steer::ByOwner(steering, rng) => (steering.owner_of(frame), rng),
        };
        owner.unwrap_or_else(|| rng.usize(..queues))
    }
}

impl SimWire {
    fn with(queues: usize, steer: Steer) -> Self {
        let to_port = (0..queues).map(|_| VecDeque::new()).collect();
        SimWire(Arc::new(Mutex::new(Queues { to_port, from_port: VecDeque::new(), steer, link_down: false })))
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a frame into the receive queue of the port that the wire chooses for it.
    pub fn deliver(&self, frame: Vec<u8>) {
        let Queues { to_port, steer, .. } = &mut *self.queues();
        let queue = steer.choose(to_port.len(), &frame);
        if let Some(queue) = to_port.get_mut(queue) {
            queue.push_back(frame);
        }
    }

    /// Puts a frame into the receive queue of port `queue`, if there is one.
    #[cfg(test)]
    pub(crate) fn deliver_to(&self, queue: usize, frame: Vec<u8>) {
        if let Some(queue) = self.queues().to_port.get_mut(queue) {
            queue.push_back(frame);
        }
    }

    /// Returns the next frame that any of the ports has sent; `None` if there is none.
    pub fn take(&self) -> Option<Vec<u8>> {
        Some(self.queues().from_port.pop_front()?.1)
    }

    /// Returns the next frame that any of the ports has sent, with the number of the port; `None` if there is none.
    #[cfg(test)]
    pub(crate) fn take_from(&self) -> Option<(usize, Vec<u8>)> {
        self.queues().from_port.pop_front()
    }

    /// Takes the carrier down or up.
    pub fn set_link(&self, up: bool) {
        self.queues().link_down = !up;
    }
}

/// A port on a [`SimWire`].
pub struct SimPort {
    wire: SimWire,
    /// Number of the port among the ports on the wire.
    queue: usize,
    draft_size: usize,
    gso_max: usize,
    lends_from: usize,
    lends_any: bool,
    /// Whether the peer reads lent payload after it was sent.
    reads_late: bool,
    /// Whether lent payload can be copied.
    copies_lent: bool,
    send_buffers: usize,
    /// A token of which each send buffer in use has a clone; `None`: the number of send buffers is unlimited.
    used: Option<Arc<()>>,
    aside: Put,
    /// Number of queues of the peer, each of which is paired with the queue of the same number; `None`: there is no
    /// pairing.
    peer_queues: Option<usize>,
    spread: Spread,
    /// Frames that leave with the next flush.
    queued: Vec<Vec<u8>>,
    strays: VecDeque<Stray>,
}

impl SimPort {
    /// Makes the queues of a device on one wire, as ports for IP packets of up to `mtu` octets.
    pub fn several(mtu: u16, count: usize, steer: Steer) -> (Vec<SimPort>, SimWire) {
        let wire = SimWire::with(count, steer);
        ((0..count).map(|queue| Self::on(&wire, queue, mtu)).collect(), wire)
    }

    fn on(wire: &SimWire, queue: usize, mtu: u16) -> SimPort {
        SimPort {
            wire: wire.clone(),
            queue,
            draft_size: usize::from(mtu),
            gso_max: 0,
            lends_from: usize::MAX,
            lends_any: true,
            reads_late: false,
            copies_lent: true,
            send_buffers: usize::MAX,
            used: None,
            aside: Put::default(),
            peer_queues: None,
            spread: Spread::Unknown,
            queued: Vec::new(),
            strays: VecDeque::new(),
        }
    }

    /// Sets the peer's number of queues. Frames from a queue of the peer arrive at the queue with the
    /// same number.
    #[cfg(test)]
    pub(crate) fn pair_with(&mut self, peer_queues: usize) {
        self.peer_queues = Some(peer_queues);
    }

    /// Makes [`Port::spread`] return `spread`.
    #[cfg(test)]
    pub(crate) fn says(&mut self, spread: Spread) {
        self.spread = spread;
    }

    /// Limits the number of send buffers.
    pub fn set_send_buffers(&mut self, buffers: usize) {
        self.send_buffers = buffers;
        self.used = Some(Arc::default());
    }

    /// Makes the port ask for payload of at least `octets` to be lent instead of copied.
    pub fn set_lends_from(&mut self, octets: usize) {
        self.lends_from = octets;
    }

    /// Makes the port accept only lent memory of the device's own allocator.
    pub fn set_lends_own_only(&mut self) {
        self.lends_any = false;
    }

    /// Makes the port say that the peer reads lent payload after it was sent.
    pub fn set_reads_late(&mut self) {
        self.reads_late = true;
    }

    /// Makes the port fail to copy lent payload.
    pub fn set_copies_no_lent(&mut self) {
        self.copies_lent = false;
    }

    /// Lets frames carry up to `octets` of payload as several segments.
    pub fn set_gso_max(&mut self, octets: usize) {
        self.gso_max = octets;
        self.draft_size = self.draft_size.max(octets);
    }
}

impl Port for SimPort {
    type Frame = SimFrame;
    type Payload = SimPayload;
    type Draft = SimDraft;

    fn receive(&mut self, _now: Time, into: &mut ArrayVec<SimFrame, BURST>) {
        let mut queues = self.wire.queues();
        let Some(queue) = queues.to_port.get_mut(self.queue) else { return };
        while !into.is_full() {
            let Some(frame) = queue.pop_front() else { break };
            into.push(SimFrame(frame));
        }
    }

    fn adopt(&mut self, octets: &[u8], _trusted: bool) -> Option<SimFrame> {
        Some(SimFrame(octets.to_vec()))
    }

    fn prefetch(_frame: &SimFrame) {}

    fn draft(&mut self) -> Option<SimDraft> {
        let pieces = Pieces(Vec::new(), self.used.clone());
        (self.send_buffers() > 0).then_some(SimDraft { pieces, room: self.draft_size })
    }

    fn send_buffers(&self) -> usize {
        self.send_buffers.saturating_sub(self.used.as_ref().map_or(0, |used| Arc::strong_count(used) - 1))
    }

    fn all_send_buffers(&self) -> usize {
        self.send_buffers
    }

    fn room(&self) -> usize {
        BURST * 8
    }

    fn emit(&mut self, emit: Emit<'_, SimPayload>) {
        // A frame without payload also needs a buffer.
        if self.send_buffers() == 0 {
            return;
        }
        let mut frame = emit.headers.to_vec();
        for piece in emit.payload {
            frame
                .extend_from_slice(piece.payload.pieces.bytes().get(piece.range.clone()).unwrap_or_default());
        }
        if !emit.loopback {
            self.queued.push(frame);
        } else if let Some(queue) = self.wire.queues().to_port.get_mut(self.queue) {
            queue.push_back(frame);
        }
    }

    fn flush(&mut self) {
        let queued = self.queued.drain(..);
        if self.peer_queues.is_some_and(|peers| self.queue >= peers) {
            self.strays.extend(queued.map(|frame| Stray { octets: frame.into(), leaves_checksum: false }));
        } else {
            self.wire.queues().from_port.extend(queued.map(|frame| (self.queue, frame)));
        }
    }

    fn receive_memory(&self) -> usize {
        SIMULATED_MEMORY
    }

    fn receive_pool_low(&self) -> bool {
        false
    }

    fn receive_pool_short(&self) -> bool {
        false
    }

    fn gso_max(&self) -> usize {
        self.gso_max
    }

    fn spares_checksum(&self) -> bool {
        false
    }

    fn lends_from(&self) -> usize {
        self.lends_from
    }

    unsafe fn lend(&mut self, draft: &mut SimDraft, at: *const u8, len: usize, ours: bool) -> bool {
        let Some(room) = draft.room.checked_sub(len).filter(|_| ours || self.lends_any) else { return false };
        draft.room = room;
        draft.pieces.0.push(Piece::Lent(at, len));
        true
    }

    fn copy_lent(&mut self, payload: &mut SimPayload, range: &Range<usize>) -> bool {
        if payload.shows(range) {
            if !self.copies_lent {
                return false;
            }
            payload.pieces =
                Arc::new(Pieces(vec![Piece::Own(payload.pieces.bytes())], payload.pieces.1.clone()));
        }
        true
    }

    fn is_read_late(&self, payload: &SimPayload, range: &Range<usize>) -> bool {
        self.reads_late && payload.shows(range)
    }

    fn put_aside(&mut self, payload: &mut SimPayload) {
        if !Self::is_aside(payload) {
            let octets = Aside::new(payload.pieces.bytes(), &self.aside);
            payload.pieces = Arc::new(Pieces(vec![Piece::Aside(octets)], None));
        }
    }

    fn is_aside(payload: &SimPayload) -> bool {
        matches!(payload.pieces.0.first(), Some(Piece::Aside(_)))
    }

    fn aside(&self) -> usize {
        self.aside.octets()
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn check_link(&mut self) -> bool {
        !self.wire.queues().link_down
    }

    fn carrier_is_peer(&self) -> bool {
        true
    }

    fn spread(&self) -> Spread {
        if self.peer_queues.is_some() { Spread::Paired } else { self.spread }
    }

    fn stray(&mut self) -> Option<Stray> {
        self.strays.pop_front()
    }

    fn send_stray(&mut self, stray: &Stray) {
        self.queued.push(stray.octets.to_vec());
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
