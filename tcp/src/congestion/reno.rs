//! Reno: one more segment per window, half on loss (RFC 5681), counting octets (RFC 3465).

use super::{Ack, Algorithm, Cause, Window};

#[derive(Clone, Debug, Default)]
pub(super) struct Reno {
    /// ACKed octets that count towards the next growth of the window. A growth uses up one window of them.
    counted: u32,
}

impl Reno {
    /// Returns the growth in octets: one segment per window of ACKed octets (RFC 3465 §2.1).
    pub(super) fn growth(&mut self, cwnd: u32, mss: u32, acked: u32) -> u32 {
        self.counted = self.counted.saturating_add(acked.min(cwnd));
        if self.counted < cwnd {
            return 0;
        }
        self.counted -= cwnd;
        mss
    }

    /// Returns half of the octets in flight (RFC 5681 equation 4).
    pub(super) fn reduce(&mut self, flight: u32) -> u32 {
        self.counted = 0;
        flight / 2
    }
}

impl Algorithm for Reno {
    fn on_ack(&mut self, window: &mut Window, ack: &Ack) {
        if let Some((acked, limited)) = window.slow_start(ack) {
            let growth = self.growth(window.cwnd, window.mss, if limited { acked } else { 0 });
            window.grow(growth);
        }
    }

    fn on_congestion(&mut self, window: &mut Window, _cause: Cause, flight: u32) {
        window.set_threshold(self.reduce(flight));
    }
}
