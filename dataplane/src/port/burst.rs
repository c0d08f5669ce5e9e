//! The number of frames that the next burst receives.

use super::BURST;

/// Bytes of frames that a burst should not exceed: eight jumbo frames, or four trains. The engine does nothing else
/// while it processes a burst, so longer bursts would make small messages wait, and their first frames would leave the
/// processor's cache before the engine has processed them.
const BYTES: u32 = 80 << 10;
/// The minimum number of frames that a burst asks for on ports that receive trains of segments. DPDK's drivers of these
/// ports take any number of frames.
const LEAST_TRAINS: u16 = 4;
/// The minimum number of frames that a burst asks for on other ports. Drivers with vector instructions take frames in
/// groups of up to eight, and return none if they are asked for fewer.
const LEAST_FRAMES: u16 = 8;

/// The maximum number of frames of the next burst. If bursts are bounded, it depends on the size of the frames that came
/// before.
#[derive(Debug)]
pub(super) struct BurstSize {
    frames: u16,
    least: u16,
}

impl BurstSize {
    /// All bursts are full.
    pub(super) fn unbounded() -> Self {
        Self { frames: BURST as u16, least: BURST as u16 }
    }

    /// Bursts of long frames are shorter. `trains`: the port receives trains of segments.
    pub(super) fn bounded(trains: bool) -> Self {
        Self { frames: BURST as u16, least: if trains { LEAST_TRAINS } else { LEAST_FRAMES } }
    }

    #[inline]
    pub(super) fn frames(&self) -> u16 {
        self.frames
    }

    /// Halves the next burst if this one had too many bytes. Doubles it if this one was full, and twice as many bytes
    /// would not be too many.
    #[inline]
    pub(super) fn received(&mut self, frames: usize, bytes: u32) {
        if bytes > BYTES {
            self.frames = (self.frames / 2).max(self.least);
        } else if frames >= usize::from(self.frames) && bytes <= BYTES / 2 {
            self.frames = (self.frames * 2).min(BURST as u16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds bursts of frames of `bytes` bytes each, as many as may come, until the size no longer changes.
    fn settled(size: &mut BurstSize, bytes: u32) -> u16 {
        for _ in 0..8 {
            let frames = size.frames();
            size.received(frames.into(), u32::from(frames) * bytes);
        }
        size.frames()
    }

    #[test]
    fn bursts_of_long_frames_are_shorter() {
        for (trains, bytes, frames) in [
            (true, 64, 32),
            (true, 1514, 32),
            (true, 9014, 8),
            (true, 18_000, 4),
            (false, 1514, 32),
            (false, 9014, 8),
            (false, 65_000, 8),
        ] {
            let mut size = BurstSize::bounded(trains);
            assert_eq!(settled(&mut size, bytes), frames, "frames of {bytes} bytes, trains: {trains}");
            assert_eq!(settled(&mut BurstSize::unbounded(), bytes), 32);
            assert_eq!(settled(&mut size, 64), 32, "short frames after those");
        }
    }

    #[test]
    fn a_burst_that_was_not_full_changes_nothing() {
        let mut size = BurstSize::bounded(true);
        settled(&mut size, 18_000);
        size.received(3, 3 * 64);
        assert_eq!(size.frames(), LEAST_TRAINS);
    }
}
