//! The number of frames that the next burst receives.

use super::BURST;

/// Bytes of frames that a burst should not exceed while short frames come too: eight jumbo frames, or four trains. The
/// engine does nothing else while it processes a burst, so longer bursts would make small messages wait.
const BYTES: u32 = 80 << 10;
/// Bytes of frames that a burst should not exceed at other times, so that a short frame that comes rarely does not wait
/// for half a MiB.
const BYTES_IN_QUIET: u32 = 2 * BYTES;
/// Maximum size, in bytes, of a short frame.
const SHORT: u32 = 256;
/// Number of bursts without a short frame after which bursts may be longer.
const QUIET: u8 = 16;
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
    /// Number of bursts since the last one with a short frame.
    quiet: u8,
}

impl BurstSize {
    /// All bursts are full.
    pub(super) fn unbounded() -> Self {
        Self { frames: BURST as u16, least: BURST as u16, quiet: QUIET }
    }

    /// Bursts of long frames are shorter, above all while short frames come too. `trains`: the port receives trains of
    /// segments.
    pub(super) fn bounded(trains: bool) -> Self {
        Self { least: if trains { LEAST_TRAINS } else { LEAST_FRAMES }, ..Self::unbounded() }
    }

    #[inline]
    pub(super) fn frames(&self) -> u16 {
        self.frames
    }

    /// Notes a burst of `frames` frames with `bytes` bytes, of which the shortest frame has `shortest`. Halves the next
    /// burst if this one had too many bytes. Doubles it if this one was full, and twice as many bytes would not be too
    /// many.
    #[inline]
    pub(super) fn received(&mut self, frames: usize, bytes: u32, shortest: u32) {
        self.quiet = if shortest <= SHORT { 0 } else { (self.quiet + 1).min(QUIET) };
        let most = if self.quiet < QUIET { BYTES } else { BYTES_IN_QUIET };
        if bytes > most {
            self.frames = (self.frames / 2).max(self.least);
        } else if frames >= usize::from(self.frames) && bytes <= most / 2 {
            self.frames = (self.frames * 2).min(BURST as u16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds bursts of frames of `bytes` bytes each, as many as may come, until the size no longer changes. In each
    /// burst, one frame has `shortest` bytes.
    fn settled(size: &mut BurstSize, bytes: u32, shortest: u32) -> u16 {
        for _ in 0..2 * QUIET {
            let frames = size.frames();
            size.received(frames.into(), u32::from(frames) * bytes, shortest);
        }
        size.frames()
    }

    #[test]
    fn bursts_of_long_frames_are_shorter_while_short_ones_come() {
        for (trains, bytes, frames, in_quiet) in [
            (true, 64, 32, 32),
            (true, 1514, 32, 32),
            (true, 9014, 8, 16),
            (true, 18_000, 4, 8),
            (false, 1514, 32, 32),
            (false, 9014, 8, 16),
            (false, 65_000, 8, 8),
        ] {
            let mut size = BurstSize::bounded(trains);
            assert_eq!(settled(&mut size, bytes, SHORT), frames, "frames of {bytes} bytes, trains: {trains}");
            assert_eq!(settled(&mut size, bytes, SHORT + 1), in_quiet, "{bytes} bytes, no short frames");
            assert_eq!(settled(&mut BurstSize::unbounded(), bytes, SHORT), 32);
            assert_eq!(settled(&mut size, 64, 64), 32, "short frames after those");
        }
    }

    #[test]
    fn a_burst_that_was_not_full_changes_nothing() {
        let mut size = BurstSize::bounded(true);
        settled(&mut size, 18_000, SHORT);
        size.received(3, 3 * 64, 64);
        assert_eq!(size.frames(), LEAST_TRAINS);
    }

    #[test]
    fn bursts_become_shorter_when_short_frames_come_again() {
        let mut size = BurstSize::bounded(true);
        settled(&mut size, 18_000, SHORT + 1);
        for _ in 0..2 {
            size.received(size.frames().into(), u32::from(size.frames()) * 18_000, SHORT);
        }
        assert_eq!(size.frames(), LEAST_TRAINS);
    }
}
