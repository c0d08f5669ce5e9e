//! Out-of-order frames that all connections together hold: bounded, and shared so that no peer can have them all.

use std::collections::HashSet;

#[cfg(test)]
mod tests;

#[derive(Debug)]
pub(crate) struct HeldFrames {
    frames: u32,
    limit: u32,
    /// The connections that hold any, by index.
    holders: HashSet<u32>,
}

impl HeldFrames {
    pub fn new(limit: u32) -> Self {
        HeldFrames { frames: 0, limit, holders: HashSet::new() }
    }

    /// A connection that holds `own` frames may hold another: as many as are still free for all. So one that wants all it
    /// can get has half of them, and n of them leave one in n + 1 to others.
    pub fn admits(&self, own: usize) -> bool {
        u64::from(self.frames) + (own as u64) < u64::from(self.limit)
    }

    /// How many there are.
    pub fn frames(&self) -> usize {
        self.frames as usize
    }

    /// The connection with this index had `before` frames and has `after`.
    pub fn changed(&mut self, index: u32, before: usize, after: usize) {
        self.frames = self.frames - before as u32 + after as u32;
        if before == 0 && after > 0 {
            self.holders.insert(index);
        } else if before > 0 && after == 0 {
            self.holders.remove(&index);
        }
    }

    /// The connections that hold some.
    pub fn holders(&self) -> Vec<u32> {
        self.holders.iter().copied().collect()
    }
}
