//! HyStart++ (RFC 9406): the first slow start ends when round trips grow longer, before the path's queue overflows. What
//! an overflow costs without SACK is a round trip for each of the segments that are lost.

use super::Ack;

/// Round trips must grow by this much, in microseconds, or by an eighth in between (§4.3).
const MIN_THRESHOLD: u32 = 4_000;
const MAX_THRESHOLD: u32 = 16_000;
/// Round-trip times of a round that say something about it.
const SAMPLES: u8 = 8;
/// Conservative slow start grows by this fraction: twice what the path holds already is what a shallow queue lacks, so it is
/// less than the quarter of §4.3,
const CSS_DIVISOR: u32 = 16;
/// and that many rounds of it end slow start.
const CSS_ROUNDS: u8 = 5;

/// Times are microseconds; `u32::MAX`: none.
#[derive(Clone, Debug)]
pub(super) struct HyStart {
    /// Octets that were outstanding when the round began and are not ACKed.
    left: u32,
    /// The least round-trip time of the last round and of this one.
    last: u32,
    present: u32,
    /// In conservative slow start: the least one of the round that began it.
    pub(super) baseline: u32,
    samples: u8,
    /// Rounds of conservative slow start.
    pub(super) rounds: u8,
}

impl HyStart {
    pub fn new() -> Self {
        HyStart { left: 0, last: u32::MAX, present: u32::MAX, baseline: u32::MAX, samples: 0, rounds: 0 }
    }

    /// An ACK in the first slow start that lets the window grow by `growth`: by how much it may grow, and whether slow
    /// start is over (§4.2).
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
                // It was no queue.
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
