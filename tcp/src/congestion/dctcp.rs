//! DCTCP (RFC 8257): reduces the window in proportion to the marks of the network, not by half. Grows it as Reno
//! does.

use super::reno::Reno;
use super::{Ack, Algorithm, Cause, Window};

/// Fixed-point representation of one.
const ONE: u32 = 1 << 10;
/// g = 1/16 (§3.3 step 6).
const GAIN_SHIFT: u32 = 4;

/// State of DCTCP.
#[derive(Clone, Debug)]
pub(super) struct Dctcp {
    pub(super) reno: Reno,
    /// Moving average of the fraction of octets that were marked, in units of 1/[`ONE`] (DCTCP.Alpha).
    pub(super) alpha: u32,
    /// Octets of this observation window still to be ACKed.
    pub(super) left: u32,
    /// Octets ACKed in this observation window, and those of them whose ACK echoed congestion.
    acked: u32,
    marked: u32,
}

impl Default for Dctcp {
    fn default() -> Self {
        // §3.3: starts as if everything had been marked, so that the first mark counts as much as a loss.
        Dctcp { reno: Reno::default(), alpha: ONE, left: 0, acked: 0, marked: 0 }
    }
}

impl Dctcp {
    /// Counts `acked` octets (§3.3 steps 1 to 8). `flight`: octets outstanding after them.
    pub(super) fn count(&mut self, acked: u32, marked: bool, flight: u32) {
        self.acked = self.acked.saturating_add(acked);
        if marked {
            self.marked = self.marked.saturating_add(acked);
        }
        self.left = self.left.saturating_sub(acked);
        if self.left > 0 {
            return;
        }
        let fraction = (u64::from(self.marked) * u64::from(ONE) / u64::from(self.acked.max(1))) as u32;
        self.alpha = self.alpha - self.alpha.div_ceil(1 << GAIN_SHIFT) + (fraction >> GAIN_SHIFT);
        (self.left, self.acked, self.marked) = (flight.max(1), 0, 0);
    }

    /// Returns the reduced window, cwnd × (1 - alpha/2) (§3.3 step 9).
    pub(super) fn reduce_by_marks(&mut self, cwnd: u32) -> u32 {
        let cut = u64::from(cwnd) * u64::from(self.alpha.min(ONE)) / u64::from(2 * ONE);
        // Twice the result, because Reno halves it. Reno also starts its count of ACKed octets anew.
        self.reno.reduce(2 * (cwnd - cut as u32))
    }

    /// Returns the fraction of octets that are marked, in thousandths.
    #[cfg(test)]
    pub(super) fn alpha(&self) -> u32 {
        self.alpha * 1000 / ONE
    }
}

impl Algorithm for Dctcp {
    fn on_ack(&mut self, window: &mut Window, ack: &Ack) {
        self.count(ack.acked, ack.marked, ack.flight);
        self.reno.on_ack(window, ack);
    }

    fn on_congestion(&mut self, window: &mut Window, cause: Cause, flight: u32) {
        match cause {
            Cause::Marks => {
                let reduced = self.reduce_by_marks(window.cwnd);
                window.set_threshold(reduced);
            }
            // A loss reduces the window as in Reno (§3.5).
            Cause::Loss | Cause::Timeout => self.reno.on_congestion(window, cause, flight),
        }
    }
}
