//! HyStart++ (RFC 9406): ends the first slow start when round trips grow longer, before the path's queue overflows.
//! Without SACK, an overflow costs a round trip for each lost segment.

use super::Ack;

/// Limits of the threshold by which a round trip must grow, in microseconds. Between them the threshold is an eighth
/// of the round trip (§4.3).
const MIN_THRESHOLD: u32 = 4_000;
const MAX_THRESHOLD: u32 = 16_000;
/// Round-trip times that a round needs for its minimum to be meaningful.
const SAMPLES: u8 = 8;
/// Divisor of the growth in conservative slow start. With the divisor 4 of RFC 9406 §4.3, [`CSS_ROUNDS`] rounds would
/// triple the window. The queue would then hold twice as much as the path itself, and a shallow queue cannot.
const CSS_DIVISOR: u32 = 16;
/// Rounds of conservative slow start after which slow start ends.
const CSS_ROUNDS: u8 = 5;

/// State of HyStart++. Times are microseconds; `u32::MAX`: none.
#[derive(Clone, Debug)]
pub(super) struct HyStart {
    /// Octets that were outstanding when the round began and are not ACKed yet.
    left: u32,
    /// Minimum round-trip times of the last round and of this one.
    last: u32,
    present: u32,
    /// Minimum round-trip time of the round that started conservative slow start; `u32::MAX` before that.
    pub(super) baseline: u32,
    samples: u8,
    /// Rounds of conservative slow start so far.
    pub(super) rounds: u8,
}

impl HyStart {
    pub fn new() -> Self {
        HyStart { left: 0, last: u32::MAX, present: u32::MAX, baseline: u32::MAX, samples: 0, rounds: 0 }
    }

    /// Handles an ACK in the first slow start. Without HyStart++ the window would grow by `growth`. Returns by how much
    /// the window may grow, and whether slow start is over (§4.2).
    pub fn on_ack(&mut self, ack: &Ack, growth: u32) -> (u32, bool) {
        let conservative = self.baseline != u32::MAX;
        let mut over = false;
        if self.left <= ack.acked {
            (self.left, self.last, self.present, self.samples) = (ack.flight, self.present, u32::MAX, 0);
            self.rounds += u8::from(conservative);
            over = self.rounds >= CSS_ROUNDS;
        } else {
            self.left -= ack.acked;
        }
        if let Some(rtt) = ack.rtt {
            self.present = self.present.min(u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX));
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= SAMPLES && self.present != u32::MAX {
            if conservative && self.present < self.baseline {
                // The round trip is short again, so no queue had made it longer.
                (self.baseline, self.rounds, over) = (u32::MAX, 0, false);
            } else if !conservative && self.last != u32::MAX {
                let threshold = (self.last / 8).clamp(MIN_THRESHOLD, MAX_THRESHOLD);
                if self.present >= self.last.saturating_add(threshold) {
                    self.baseline = self.present;
                }
            }
        }
        (if conservative { growth / CSS_DIVISOR } else { growth }, over)
    }
}
