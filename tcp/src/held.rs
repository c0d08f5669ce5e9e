//! Accounts for the received frames that connections hold: those beyond a gap, and those that the handler has not
//! taken. Their number is bounded. The connections share the frames so that no peer can take them all.

use std::collections::HashSet;

#[cfg(test)]
mod tests;

#[derive(Debug)]
pub(crate) struct HeldFrames {
    frames: u32,
    limit: u32,
    /// Connections that hold frames, by index.
    holders: HashSet<u32>,
}

impl HeldFrames {
    pub fn new(limit: u32) -> Self {
        HeldFrames { frames: 0, limit, holders: HashSet::new() }
    }

    /// Returns whether a connection that holds `own` frames may hold another one. It may as long as the number of free
    /// frames is greater than `own`. So one greedy connection gets half of the frames, and n greedy connections
    /// together leave the fraction 1/(n + 1) of the frames to others.
    pub fn admits(&self, own: usize) -> bool {
        u64::from(self.frames) + (own as u64) < u64::from(self.limit)
    }

    /// Returns the number of held frames.
    pub fn frames(&self) -> usize {
        self.frames as usize
    }

    /// Notes that the connection with this index had `before` frames and now has `after`.
    pub fn changed(&mut self, index: u32, before: usize, after: usize) {
        self.frames = self.frames - before as u32 + after as u32;
        if before == 0 && after > 0 {
            self.holders.insert(index);
        } else if before > 0 && after == 0 {
            self.holders.remove(&index);
        }
    }

    /// Returns the connections that hold frames.
    pub fn holders(&self) -> Vec<u32> {
        self.holders.iter().copied().collect()
    }
}
