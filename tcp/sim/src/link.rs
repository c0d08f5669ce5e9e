use crate::frame::mark_congestion;
use crate::{Frame, Impairment};
use fastrand::Rng;
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

#[cfg(test)]
mod tests;

/// Octets that a frame takes on the wire in addition: preamble 8, FCS 4, gap 12.
const WIRE_OVERHEAD: u64 = 24;
/// Reordering holds a frame back by up to this time in nanoseconds, or by up to the delay if that is longer.
const REORDER_SPAN: u64 = 100_000;
/// Offset from which `swap` exchanges words: after Ethernet (14), IPv4 (20) and TCP with all its options (60). This
/// offset is even, so the exchanged words are words of the checksum.
const BEHIND_HEADERS: usize = 94;

/// Counters of a link, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames pushed.
    pub pushed: u64,
    /// Frames popped, including copies.
    pub delivered: u64,
    /// Frames lost at random.
    pub lost: u64,
    /// Frames dropped because the queue of the rate limit was full.
    pub overflowed: u64,
    /// Frames dropped because the limit of frames or octets in transit was reached.
    pub over_limit: u64,
    /// Frames sent twice.
    pub duplicated: u64,
    /// Frames held back.
    pub reordered: u64,
    /// Frames of which one bit was flipped. A checksum detects this if it covers the bit.
    pub corrupted: u64,
    /// Frames changed in a way that the Internet checksum does not detect.
    pub swapped: u64,
    /// Frames marked Congestion Experienced.
    pub marked: u64,
}

/// One direction of an impaired link. Frames are pushed with the time, and popped when they arrive. All times are in
/// nanoseconds.
///
/// The same impairment, frames and times give the same arrivals. Random decisions about a frame depend only on the
/// seed and on the number of frames pushed before it. So they are the same even if the times differ.
pub struct Link<F> {
    impairment: Impairment,
    seed: u64,
    arrivals: BinaryHeap<Reverse<Arrival<F>>>,
    /// Times at which the frames that wait because of `rate` will have left, in nanoseconds.
    departures: VecDeque<u64>,
    /// Octets in transit.
    bytes: usize,
    /// Last arrival time of a frame that was not held back.
    last_arrival: u64,
    /// Number of frames and copies put in transit so far. It orders arrivals.
    pushes: u64,
    /// Further frames of the present burst that will be lost.
    burst: usize,
    statistics: Statistics,
}

struct Arrival<F> {
    at: u64,
    /// Number of the frame. Frames that arrive at the same time keep the order in which they were sent.
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
    /// Makes an empty link.
    pub fn new(impairment: &Impairment) -> Self {
        Link {
            impairment: *impairment,
            seed: impairment.seed,
            arrivals: BinaryHeap::new(),
            departures: VecDeque::new(),
            bytes: 0,
            last_arrival: 0,
            pushes: 0,
            burst: 0,
            statistics: Statistics::default(),
        }
    }

    /// Changes the impairment from now on. Frames in transit and the seed stay.
    pub fn set_impairment(&mut self, impairment: &Impairment) {
        self.impairment = *impairment;
    }

    /// Returns the impairment.
    pub fn impairment(&self) -> &Impairment {
        &self.impairment
    }

    /// Returns the counters.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Returns the number of frames in transit.
    pub fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// Returns whether no frames are in transit.
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// Returns the octets of the frames in transit.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sends a frame at time `now`.
    pub fn push(&mut self, now: u64, mut frame: F) {
        let mut rng = dice(self.seed, self.statistics.pushed);
        self.statistics.pushed += 1;
        // All random decisions of this function are made first, so that their number does not depend on what happens to
        // the frame. The frame and its copy then get random sequences of their own, for the decisions on the way.
        let Impairment { loss, dup, mark, .. } = self.impairment;
        let (lost, twice, marked) = (roll(&mut rng, loss), roll(&mut rng, dup), roll(&mut rng, mark));
        if roll(&mut rng, self.impairment.burst) {
            self.burst = self.burst.max(rng.usize(1..=self.impairment.burst_len.max(1)));
        }
        let (mut first, mut second) = (rng.fork(), rng);
        let in_burst = self.burst > 0;
        self.burst -= usize::from(in_burst);
        if lost || in_burst {
            self.statistics.lost += 1;
            return;
        }
        let Some((departure, congested)) = self.depart(now, &frame) else {
            self.statistics.overflowed += 1;
            return;
        };
        if (marked || congested) && mark_congestion(frame.bytes_mut()) {
            self.statistics.marked += 1;
        }
        let copy = if twice { frame.copy() } else { None };
        self.travel(departure, frame, &mut first);
        if let Some(copy) = copy {
            self.statistics.duplicated += 1;
            self.travel(departure, copy, &mut second);
        }
    }

    /// Returns the time at which the next frame arrives; `None` if none is in transit.
    pub fn next_arrival(&self) -> Option<u64> {
        self.arrivals.peek().map(|Reverse(a)| a.at)
    }

    /// Returns the next frame that has arrived by `now`, in order of arrival; `None` if there is none.
    pub fn pop(&mut self, now: u64) -> Option<F> {
        if self.next_arrival()? > now {
            return None;
        }
        let Reverse(arrival) = self.arrivals.pop()?;
        self.statistics.delivered += 1;
        self.bytes -= arrival.frame.len();
        Some(arrival.frame)
    }

    /// Queues a frame for the rate limit. Returns the time when its last bit has left, and whether the queue is so
    /// long that the frame must be marked; `None` if the queue is full.
    fn depart(&mut self, now: u64, frame: &F) -> Option<(u64, bool)> {
        let Some(rate) = self.impairment.rate else { return Some((now, false)) };
        while self.departures.front().is_some_and(|&d| d <= now) {
            self.departures.pop_front();
        }
        let waiting = self.departures.len();
        if waiting >= self.impairment.queue {
            return None;
        }
        let bits = u128::from((frame.len() as u64 + WIRE_OVERHEAD) * 8);
        let duration = bits * 1_000_000_000 / u128::from(rate.max(1));
        let start = self.departures.back().copied().unwrap_or(now).max(now);
        let departure = start.saturating_add(u64::try_from(duration).unwrap_or(u64::MAX));
        self.departures.push_back(departure);
        Some((departure, self.impairment.ecn.is_some_and(|n| waiting >= n)))
    }

    /// Puts a frame in transit from time `departure` on.
    fn travel(&mut self, departure: u64, mut frame: F, rng: &mut Rng) {
        let Impairment { corrupt, swap, reorder, delay, jitter, limit, limit_bytes, .. } = self.impairment;
        if self.len() >= limit || frame.len() > limit_bytes.saturating_sub(self.bytes) {
            self.statistics.over_limit += 1;
            return;
        }
        if roll(rng, corrupt) && !frame.is_empty() {
            let bit = rng.usize(..frame.len() * 8);
            if let Some(b) = frame.bytes_mut().get_mut(bit / 8) {
                *b ^= 1 << (bit % 8);
                self.statistics.corrupted += 1;
            }
        }
        if roll(rng, swap) && swap_words(&mut frame, rng) {
            self.statistics.swapped += 1;
        }
        let mut at = departure.saturating_add(delay);
        if jitter > 0 {
            at = at.saturating_add(rng.u64(..=jitter));
        }
        if roll(rng, reorder) {
            at = at.max(self.last_arrival).saturating_add(rng.u64(1..=delay.max(REORDER_SPAN)));
            self.statistics.reordered += 1;
        } else {
            at = at.max(self.last_arrival);
            self.last_arrival = at;
        }
        self.pushes += 1;
        self.bytes += frame.len();
        self.arrivals.push(Reverse(Arrival { at, order: self.pushes, frame }));
    }
}

/// Returns the random sequence for the frame that follows `pushed` others.
fn dice(seed: u64, pushed: u64) -> Rng {
    // The finaliser of MurmurHash3, so that the random sequences of successive frames and of similar seeds are
    // unrelated.
    let mut x = seed.wrapping_add(pushed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    Rng::with_seed(x ^ (x >> 33))
}

fn roll(rng: &mut Rng, probability: f64) -> bool {
    probability > 0.0 && rng.f64() < probability
}

/// Exchanges two random 16-bit words after the headers. Returns `false` if these are equal, or if there are fewer than
/// two.
fn swap_words<F: Frame>(frame: &mut F, rng: &mut Rng) -> bool {
    let Some(body) = frame.bytes_mut().get_mut(BEHIND_HEADERS..) else { return false };
    let words = body.len() / 2;
    if words < 2 {
        return false;
    }
    let (a, b) = (rng.usize(..words) * 2, rng.usize(..words) * 2);
    if body[a..a + 2] == body[b..b + 2] {
        return false;
    }
    body.swap(a, b);
    body.swap(a + 1, b + 1);
    true
}
