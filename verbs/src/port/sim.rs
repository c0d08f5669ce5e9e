//! A simulated wire: frames are plain vectors, and whoever holds the other end of the
//! [`SimWire`] moves them, in virtual time.

use super::{BURST, Draft, Port};
use arrayvec::ArrayVec;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use urnic_tcp::{Emit, Frame, Payload, Time};

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

/// Finished payload.
#[derive(Clone)]
pub struct SimPayload {
    bytes: Arc<[u8]>,
    sum: Option<u16>,
    unit: u16,
}

impl Payload for SimPayload {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn unit(&self) -> u16 {
        self.unit
    }

    fn sum(&self, range: Range<usize>) -> u16 {
        match self.sum {
            Some(sum) if range == (0..self.bytes.len()) => sum,
            _ => self.bytes.get(range).map_or(0, urnic_crc::sum),
        }
    }
}

/// Payload under construction.
pub struct SimDraft {
    bytes: Vec<u8>,
    len: usize,
}

impl Draft for SimDraft {
    type Payload = SimPayload;

    fn len(&self) -> usize {
        self.len
    }

    fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        let out = self.bytes.get_mut(self.len..self.len + n)?;
        self.len += n;
        Some(out)
    }

    fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    fn freeze(mut self, sum: Option<u16>, unit: u16) -> SimPayload {
        self.bytes.truncate(self.len);
        SimPayload { bytes: self.bytes.into(), sum, unit }
    }
}

/// The other end of a [`SimPort`]: what it sent, and what it is to receive.
#[derive(Clone, Default)]
pub struct SimWire(Arc<Mutex<Queues>>);

#[derive(Default)]
struct Queues {
    to_port: VecDeque<Vec<u8>>,
    from_port: VecDeque<Vec<u8>>,
    link_down: bool,
}

impl SimWire {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a frame into the port's receive queue.
    pub fn deliver(&self, frame: Vec<u8>) {
        self.queues().to_port.push_back(frame);
    }

    /// The next frame that the port has sent.
    pub fn take(&self) -> Option<Vec<u8>> {
        self.queues().from_port.pop_front()
    }

    /// Takes the carrier away or gives it back.
    pub fn set_link(&self, up: bool) {
        self.queues().link_down = !up;
    }
}

/// A port on a [`SimWire`].
pub struct SimPort {
    wire: SimWire,
    draft_size: usize,
    gso_max: usize,
}

impl SimPort {
    /// A port for frames of up to `mtu` octets of IP.
    pub fn new(mtu: u16) -> (SimPort, SimWire) {
        let wire = SimWire::default();
        (SimPort { wire: wire.clone(), draft_size: usize::from(mtu), gso_max: 0 }, wire)
    }

    /// Lets frames of up to `octets` of payload pass, as several segments.
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
        while !into.is_full() {
            let Some(frame) = queues.to_port.pop_front() else { break };
            into.push(SimFrame(frame));
        }
    }

    fn prefetch(_frame: &SimFrame) {}

    fn draft(&mut self) -> Option<SimDraft> {
        Some(SimDraft { bytes: vec![0; self.draft_size], len: 0 })
    }

    fn room(&self) -> usize {
        BURST * 8
    }

    fn emit(&mut self, emit: Emit<'_, SimPayload>) {
        let mut frame = emit.headers.to_vec();
        for piece in emit.payload {
            frame.extend_from_slice(piece.payload.bytes.get(piece.range.clone()).unwrap_or_default());
        }
        let mut queues = self.wire.queues();
        if emit.loopback {
            queues.to_port.push_back(frame);
        } else {
            queues.from_port.push_back(frame);
        }
    }

    fn flush(&mut self) {}

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

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn check_link(&mut self) -> bool {
        !self.wire.queues().link_down
    }

    fn carrier_is_peer(&self) -> bool {
        true
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

impl crate::engine::Clock for urnic_sim::SimClock {
    fn now(&self) -> Time {
        Time(urnic_sim::SimClock::now(self))
    }
}
