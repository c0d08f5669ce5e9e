//! The congestion window and the growth that all algorithms share.

use super::hystart::HyStart;
use super::{Ack, MAX_WINDOW};

/// A congestion window. Amounts are octets.
#[derive(Clone, Debug)]
pub struct Window {
    /// Most octets that may be in flight.
    pub cwnd: u32,
    /// Slow start threshold. Below it, the window doubles each round trip.
    pub ssthresh: u32,
    /// Octets of data in a full segment.
    pub mss: u32,
    pub(super) initial_segments: u32,
    /// In slow start after a timeout, an ACK counts at most one segment (RFC 3465 §2.3).
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

    /// Returns the initial window, min(N·MSS, max(2·MSS, N·1460)) (RFC 6928 §2, where N is 10).
    pub(super) fn initial(&self) -> u32 {
        let n = self.initial_segments;
        n.saturating_mul(self.mss).min((2 * self.mss).max(n.saturating_mul(1460))).min(MAX_WINDOW)
    }

    /// Returns whether the window is below the slow start threshold.
    pub fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Returns whether this is the first slow start: no loss and no mark has shown yet how much the path carries.
    pub fn in_first_slow_start(&self) -> bool {
        self.ssthresh == MAX_WINDOW && self.in_slow_start()
    }

    /// Grows the window, up to its upper limit.
    pub fn grow(&mut self, by: u32) {
        self.cwnd = self.cwnd.saturating_add(by).min(MAX_WINDOW);
    }

    /// Sets the slow start threshold, to at least two segments (RFC 5681 equation 4).
    pub fn set_threshold(&mut self, octets: u32) {
        self.ssthresh = octets.clamp(2 * self.mss, MAX_WINDOW);
    }

    /// Applies slow start to an ACK (RFC 5681 §3.1, RFC 3465, RFC 9406). Returns the input for congestion
    /// avoidance: acknowledged octets that slow start has not used, and whether the window may grow. It may if
    /// it limits sending and the ACK reports no congestion. `None`: the ACK has no further effect, because the
    /// window is still in slow start, or because the first slow start has just ended.
    pub fn slow_start(&mut self, ack: &Ack) -> Option<(u32, bool)> {
        // An ACK that reports congestion lets nothing grow (RFC 3168 §6.1.2).
        let limited = ack.limited && !ack.marked;
        if !self.in_slow_start() {
            return Some((ack.acked, limited));
        }
        if !limited {
            return None;
        }
        // One ACK covers a whole burst, so everything that it acknowledges counts, as for a sender that paces (RFC
        // 9406 §4.2). Only after a timeout does the limit of RFC 3465 §2.3 apply.
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
