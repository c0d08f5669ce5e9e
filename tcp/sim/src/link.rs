use crate::frame::mark_congestion;
use crate::{Frame, Impairment};
use fastrand::Rng;
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

#[cfg(test)]
mod tests;

/// Octets on the wire beside the frame: preamble 8, FCS 4, gap 12.
const WIRE_OVERHEAD: u64 = 24;
/// Least span of time by which reordering holds frames back.
const REORDER_SPAN: u64 = 100_000;
/// Where `swap` begins: behind Ethernet (14), IPv4 (20) and TCP with all its options (60). Even in the segment.
const BEHIND_HEADERS: usize = 94;

/// What a link has done so far, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames pushed.
    pub pushed: u64,
    /// Frames popped, copies included.
    pub delivered: u64,
    /// Lost at random.
    pub lost: u64,
    /// Dropped because the queue was full.
    pub overflowed: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Held back.
    pub reordered: u64,
    /// Changed in a way that checksums notice.
    pub corrupted: u64,
    /// Changed in a way that the Internet checksum does not notice.
    pub swapped: u64,
    /// Marked Congestion Experienced.
    pub marked: u64,
}

/// One direction of an impaired link: frames go in with the time, and come out when they arrive.
///
/// The same impairment, frames and times give the same arrivals.
pub struct Link<F> {
    impairment: Impairment,
    rng: Rng,
    arrivals: BinaryHeap<Reverse<Arrival<F>>>,
    /// When the frames that wait for the rate are through.
    departures: VecDeque<u64>,
    /// Last arrival of a frame that was not held back.
    last_arrival: u64,
    pushes: u64,
    statistics: Statistics,
}

struct Arrival<F> {
    at: u64,
    /// Frames that arrive at the same time do so in the order in which they were sent.
    order: u64,
    frame: F,
}

impl<F> Arrival<F> {
    fn key(&self) -> (u64, u64) {
        (self.at, self.order)
    }
}

impl<F> PartialEq for Arrival<F> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<F> Eq for Arrival<F> {}

impl<F> PartialOrd for Arrival<F> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<F> Ord for Arrival<F> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl<F: Frame> Link<F> {
    /// An empty link.
    pub fn new(impairment: &Impairment) -> Self {
        Link {
            impairment: *impairment,
            rng: Rng::with_seed(impairment.seed),
            arrivals: BinaryHeap::new(),
            departures: VecDeque::new(),
            last_arrival: 0,
            pushes: 0,
            statistics: Statistics::default(),
        }
    }

    /// Changes what the link does from now on; frames under way and the random sequence stay.
    pub fn set_impairment(&mut self, impairment: &Impairment) {
        self.impairment = *impairment;
    }

    /// What the link does.
    pub fn impairment(&self) -> &Impairment {
        &self.impairment
    }

    /// What it has done.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Frames under way.
    pub fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// Nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// Sends a frame at `now`.
    pub fn push(&mut self, now: u64, mut frame: F) {
        self.statistics.pushed += 1;
        if self.roll(self.impairment.loss) {
            self.statistics.lost += 1;
            return;
        }
        let Some(departure) = self.depart(now, &mut frame) else {
            self.statistics.overflowed += 1;
            return;
        };
        let copy = if self.roll(self.impairment.dup) { frame.copy() } else { None };
        self.travel(departure, frame);
        if let Some(copy) = copy {
            self.statistics.duplicated += 1;
            self.travel(departure, copy);
        }
    }

    /// The time at which the next frame arrives.
    pub fn next_arrival(&self) -> Option<u64> {
        self.arrivals.peek().map(|Reverse(a)| a.at)
    }

    /// The next frame that has arrived by `now`, in order of arrival.
    pub fn pop(&mut self, now: u64) -> Option<F> {
        if self.next_arrival()? > now {
            return None;
        }
        let Reverse(arrival) = self.arrivals.pop()?;
        self.statistics.delivered += 1;
        Some(arrival.frame)
    }

    /// Waits in the queue for the rate: when the frame's last bit has left, or `None` if the queue is full.
    fn depart(&mut self, now: u64, frame: &mut F) -> Option<u64> {
        let Some(rate) = self.impairment.rate else { return Some(now) };
        while self.departures.front().is_some_and(|&d| d <= now) {
            self.departures.pop_front();
        }
        let waiting = self.departures.len();
        if waiting >= self.impairment.queue {
            return None;
        }
        if self.impairment.ecn.is_some_and(|n| waiting >= n) && mark_congestion(frame.bytes_mut()) {
            self.statistics.marked += 1;
        }
        let bits = u128::from((frame.len() as u64 + WIRE_OVERHEAD) * 8);
        let duration = bits * 1_000_000_000 / u128::from(rate.max(1));
        let start = self.departures.back().copied().unwrap_or(now).max(now);
        let departure = start.saturating_add(u64::try_from(duration).unwrap_or(u64::MAX));
        self.departures.push_back(departure);
        Some(departure)
    }

    /// Crosses the link after `departure`.
    fn travel(&mut self, departure: u64, mut frame: F) {
        let Impairment { corrupt, swap, reorder, delay, jitter, .. } = self.impairment;
        if self.roll(corrupt) && !frame.is_empty() {
            let bit = self.rng.usize(..frame.len() * 8);
            if let Some(b) = frame.bytes_mut().get_mut(bit / 8) {
                *b ^= 1 << (bit % 8);
                self.statistics.corrupted += 1;
            }
        }
        if self.roll(swap) {
            self.swap_words(&mut frame);
        }
        let mut at = departure.saturating_add(delay);
        if jitter > 0 {
            at = at.saturating_add(self.rng.u64(..=jitter));
        }
        if self.roll(reorder) {
            at = at.max(self.last_arrival).saturating_add(self.rng.u64(1..=delay.max(REORDER_SPAN)));
            self.statistics.reordered += 1;
        } else {
            at = at.max(self.last_arrival);
            self.last_arrival = at;
        }
        self.pushes += 1;
        self.arrivals.push(Reverse(Arrival { at, order: self.pushes, frame }));
    }

    /// Exchanges two different 16-bit words behind the headers.
    fn swap_words(&mut self, frame: &mut F) {
        let Some(body) = frame.bytes_mut().get_mut(BEHIND_HEADERS..) else { return };
        let words = body.len() / 2;
        if words < 2 {
            return;
        }
        let (a, b) = (self.rng.usize(..words) * 2, self.rng.usize(..words) * 2);
        if body[a..a + 2] != body[b..b + 2] {
            body.swap(a, b);
            body.swap(a + 1, b + 1);
            self.statistics.swapped += 1;
        }
    }

    fn roll(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.f64() < probability
    }
}
