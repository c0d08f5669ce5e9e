//! The window, and what all algorithms share of how it grows.

use super::hystart::HyStart;
use super::{Ack, MAX_WINDOW};

/// A congestion window. Amounts are octets.
#[derive(Clone, Debug)]
pub struct Window {
    /// What may be in flight.
    pub cwnd: u32,
    /// Below this slow start doubles the window each round trip.
    pub ssthresh: u32,
    /// Octets that a segment carries.
    pub mss: u32,
    pub(super) initial_segments: u32,
    /// Slow start after a timeout counts at most one segment per ACK (RFC 3465 §2.3).
    pub(super) after_timeout: bool,
    hystart: HyStart,
}

impl Window {
    pub(super) fn new(mss: u32, initial_segments: u32) -> Self {
        let mut window = Window {
            cwnd: 0,
            ssthresh: MAX_WINDOW,
            mss: mss.clamp(1, 1 << 16),
            initial_segments: initial_segments.max(1),
            after_timeout: false,
            hystart: HyStart::new(),
        };
        window.cwnd = window.initial();
        window
    }

    /// min(N·MSS, max(2·MSS, N·1460)) (RFC 6928 §2, where N is 10).
    pub(super) fn initial(&self) -> u32 {
        let n = self.initial_segments;
        n.saturating_mul(self.mss).min((2 * self.mss).max(n.saturating_mul(1460))).min(MAX_WINDOW)
    }

    /// Below the slow start threshold.
    pub fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Nothing has said yet how much the path carries.
    pub fn in_first_slow_start(&self) -> bool {
        self.ssthresh == MAX_WINDOW && self.in_slow_start()
    }

    /// Grows, up to the largest window that there is.
    pub fn grow(&mut self, by: u32) {
        self.cwnd = self.cwnd.saturating_add(by).min(MAX_WINDOW);
    }

    /// Sets the threshold, to two segments or more (RFC 5681 equation 4).
    pub fn set_threshold(&mut self, octets: u32) {
        self.ssthresh = octets.clamp(2 * self.mss, MAX_WINDOW);
    }

    /// Slow start's part of an ACK (RFC 5681 §3.1, RFC 3465, RFC 9406). What is left of it is for congestion avoidance:
    /// octets that it acknowledges, and whether the window limits. `None`: nothing is.
    pub fn slow_start(&mut self, ack: &Ack) -> Option<(u32, bool)> {
        // Nothing grows because of an ACK that tells of congestion (RFC 3168 §6.1.2).
        let limited = ack.limited && !ack.marked;
        if !self.in_slow_start() {
            return Some((ack.acked, limited));
        }
        if !limited {
            return None;
        }
        // One ACK stands for a whole burst, so all that it acknowledges counts, as in a sender that paces (RFC
        // 9406 §4.2); only after a timeout the limit of RFC 3465 §2.3 holds.
        let limit = if self.after_timeout { self.mss } else { u32::MAX };
        let growth = ack.acked.min(limit).min(self.ssthresh - self.cwnd);
        if self.in_first_slow_start() {
            let (growth, over) = self.hystart.on_ack(ack, growth);
            self.grow(growth);
            if over {
                self.ssthresh = self.cwnd;
            }
            return None;
        }
        self.grow(growth);
        if self.in_slow_start() {
            return None;
        }
        self.after_timeout = false;
        Some((ack.acked.saturating_sub(growth), limited))
    }
}
