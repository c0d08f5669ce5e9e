//! Memory for FPDUs that are not whole yet: bounded for all connections together, and not to be had by one source alone.
//!
//! A stream that finds no room in the [`Budget`](urnic_iwarp::Budget) stops before its next incomplete FPDU. TCP keeps
//! what follows and shuts the window, and the connection waits here in turn. When memory has become free, or has been
//! taken from the source that has most of it, TCP offers the octets again.

use super::crowd::Source;
use super::qp::QpCore;
use super::teardown::Why;
use super::{Clock, Core, Engine, Phase, TURNS_PER_PASS};
use crate::port::{Port, Wire};
use std::collections::HashMap;
use std::time::Duration;
use urnic_iwarp::Terminate;
use urnic_tcp::Time;

/// Octets of incomplete FPDUs that an engine keeps by default: four thousand FPDUs of the largest size. Memory is taken
/// as they arrive.
pub(crate) const INCOMPLETE_MAX: usize = 256 << 20;
/// Held frames pin at most this part of the receive buffers.
const PINNED_PART: usize = 8;
/// The budget is short when it has no room for an FPDU of the largest size.
const SHORT: usize = 1 << 16;
/// When it is short, so much of it is freed: one part of so many.
const FREED_PART: usize = 16;
/// An FPDU that has been incomplete for less than this is not displaced: its segments may be on the way.
const YOUNG: Duration = Duration::from_millis(100);
/// How often stopped streams are tried again while nothing has become free.
const TRY_EVERY: Duration = Duration::from_millis(10);

/// The streams that have stopped, and when to try them again.
#[derive(Default)]
pub(super) struct Stopped {
    /// Endpoints in the order in which they stopped, with their generations.
    waiting: std::collections::VecDeque<(u32, u32)>,
    /// Queue pairs that may hold frames, each at most once.
    holders: Vec<u32>,
    try_at: Time,
    /// What was reserved after the last try.
    reserved: usize,
}

impl Stopped {
    /// No stream waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When streams that wait must be tried again; `None` if there are none.
    pub(super) fn next(&self) -> Option<Time> {
        (!self.is_empty()).then_some(self.try_at)
    }
}

impl<F: urnic_tcp::Frame> Core<F> {
    /// After a stream has received: notes an FPDU that has begun, and a stream that holds frames.
    #[inline]
    pub(super) fn note_incomplete(qp: &mut QpCore<F>, at: u32, stopped: &mut Stopped, now: Time) {
        let Some(stream) = &qp.stream else { return };
        if let Some((_, number)) = stream.incomplete() {
            if qp.incomplete.is_none_or(|(known, _)| known != number) {
                qp.incomplete = Some((number, now));
            }
            if stream.holds_chunks() && !std::mem::replace(&mut qp.is_holder, true) {
                stopped.holders.push(at);
            }
        }
    }

    /// A stream has stopped: it waits for its turn.
    #[cold]
    pub(super) fn wait_for_memory(&mut self, index: u32) {
        if let Some(endpoint) = self.endpoints.get_mut(index)
            && !std::mem::replace(&mut endpoint.stopped, true)
        {
            self.stopped.waiting.push_back((index, endpoint.generation));
        }
    }

    /// Receive buffers are scarce: frames that are held go back, what they hold is copied.
    #[cold]
    pub(super) fn copy_out(&mut self) {
        for at in self.stopped.holders.drain(..) {
            let Some(qp) = self.qps.get_mut(at) else { continue };
            qp.is_holder = false;
            if let Some(stream) = &mut qp.stream {
                stream.copy_out();
            }
        }
    }

    /// Frees memory for others: the source whose incomplete FPDUs have reserved most loses its oldest ones, and with them
    /// their connections.
    #[cold]
    fn displace(&mut self) {
        let (reserved, reservable) = (self.budget.reserved(), self.budget.reservable());
        if reservable - reserved >= SHORT.min(reservable) {
            return;
        }
        let mut sources = HashMap::<Source, (usize, Vec<(Time, u32, usize)>)>::new();
        for (_, endpoint) in self.endpoints.iter() {
            let Phase::Open { qp: at } = endpoint.phase else { continue };
            let Some(qp) = self.qps.get(at) else { continue };
            let incomplete = qp.stream.as_ref().and_then(|s| s.incomplete()).zip(qp.incomplete);
            if let Some(((octets, _), (_, since))) = incomplete {
                let source = sources.entry(Source::of(endpoint.peer.ip())).or_default();
                source.0 += octets;
                source.1.push((since, at, octets));
            }
        }
        let Some((_, mut most)) = sources.into_values().max_by_key(|(octets, _)| *octets) else { return };
        most.sort_unstable_by_key(|(since, ..)| *since);
        let mut freed = reservable - reserved;
        for (since, at, octets) in most {
            if freed >= (reservable / FREED_PART).max(SHORT) || since + YOUNG > self.now {
                break;
            }
            freed += octets;
            self.displaced += 1;
            self.fail(at, Some(Terminate::STREAM_CATASTROPHIC), Why::Displaced);
        }
    }
}

impl<P: Port, C: Clock> Engine<P, C> {
    /// Octets that held frames may pin.
    pub(super) fn pinnable(port: &P) -> usize {
        port.receive_memory() / PINNED_PART
    }

    /// Tries streams that have stopped again.
    #[cold]
    pub(super) fn try_stopped(&mut self, now: Time) {
        if now < self.core.stopped.try_at && self.core.budget.reserved() >= self.core.stopped.reserved {
            return;
        }
        self.core.displace();
        for _ in 0..self.core.stopped.waiting.len().min(TURNS_PER_PASS) {
            let Some((index, generation)) = self.core.stopped.waiting.pop_front() else { break };
            let endpoint = self.core.endpoints.get_mut(index).filter(|e| e.generation == generation);
            let Some(endpoint) = endpoint else { continue };
            endpoint.stopped = false;
            if let Some(conn) = endpoint.conn {
                self.stack.resume(now, conn, &mut self.core, &mut Wire(&mut self.port));
            }
        }
        self.core.stopped.try_at = now + TRY_EVERY;
        self.core.stopped.reserved = self.core.budget.reserved();
    }
}
