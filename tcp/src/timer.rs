//! A hierarchical timer wheel: one deadline per key, everything O(1).
//!
//! Time is divided into ticks of 2^14 ns (16.4 µs). Nine levels of 64 slots cover the whole range of [`Time`]; a slot
//! is 64 times as long as one of the level below. The 64 slots of a level cover a block, which is one slot of the level
//! above. A deadline is filed at the lowest level where one block contains both the deadline and the present. So all
//! entries of a level lie before all entries of the next level, and looking at one bitmap per level finds the nearest
//! entry.
//!
//! Most TCP deadlines only move later, because every ACK restarts the retransmission timer. So moving a deadline later,
//! or cancelling it, only writes `Node::deadline`. The wheel examines the key again when its old slot comes up.

use crate::time::Time;

#[cfg(test)]
mod tests;

/// log2 of a tick in nanoseconds.
const TICK_SHIFT: u32 = 14;
/// Length of a tick.
pub(crate) const TICK: core::time::Duration = core::time::Duration::from_nanos(1 << TICK_SHIFT);
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// (64 - TICK_SHIFT) bits in steps of SLOT_BITS, rounded up.
const LEVELS: usize = 9;

/// End of a list.
const NIL: u32 = u32::MAX;
/// `Node::place` of a key that is in no list.
const UNFILED: u16 = u16::MAX;
/// The list of keys whose slot has come up. Its index follows those of the slots.
const DUE: u16 = (LEVELS * SLOTS) as u16;
/// `Node::deadline` of a key without one.
const NONE: u64 = u64::MAX;

#[derive(Clone, Copy)]
struct Node {
    /// The wanted deadline in nanoseconds; [`NONE`] without one.
    deadline: u64,
    /// The tick under which the node is filed: that of its deadline, or the next tick if that one had passed. If the
    /// deadline has moved later since, this is still the earlier tick.
    filed: u64,
    prev: u32,
    next: u32,
    place: u16,
}

/// The wheel. Keys are small integers (connection indices). Memory is 32 octets per key, up to the highest key used.
///
/// [`poll`](Self::poll) reports a deadline in the first tick that begins at or after it: never early, and at most one
/// tick (16.4 µs) late.
pub struct TimerWheel {
    nodes: Vec<Node>,
    heads: [u32; LEVELS * SLOTS + 1],
    occupied: [u64; LEVELS],
    /// The tick that has been reached.
    current: u64,
}

/// Returns the time at which a wheel reports `deadline`: the start of the first tick that begins at or after it. Use
/// this to round deadlines that are kept outside of a wheel but are checked only when wheels are polled.
pub fn round_up(deadline: Time) -> Time {
    Time(tick_of(deadline.0).saturating_mul(1 << TICK_SHIFT))
}

/// Returns the tick of a deadline: the first that begins at or after it.
fn tick_of(deadline: u64) -> u64 {
    deadline.div_ceil(1 << TICK_SHIFT)
}

impl TimerWheel {
    /// Makes an empty wheel at time `now`.
    pub fn new(now: Time) -> Self {
        TimerWheel {
            nodes: Vec::new(),
            heads: [NIL; LEVELS * SLOTS + 1],
            occupied: [0; LEVELS],
            current: now.0 >> TICK_SHIFT,
        }
    }

    /// Sets the deadline of `key` and replaces its previous one. [`Time::MAX`] means none. A deadline in the past is
    /// reported by a poll in the next tick.
    ///
    /// Allocates only when `key` is higher than all keys before it.
    pub fn schedule(&mut self, key: u32, deadline: Time) {
        let i = key as usize;
        if i >= self.nodes.len() {
            let unused = Node { deadline: NONE, filed: 0, prev: NIL, next: NIL, place: UNFILED };
            self.nodes.resize(i + 1, unused);
        }
        self.nodes[i].deadline = deadline.0;
        if deadline.0 == NONE {
            return;
        }
        let node = self.nodes[i];
        let tick = tick_of(deadline.0);
        if node.place == UNFILED {
            self.file(key, tick);
        } else if node.place != DUE && tick < node.filed {
            self.unlink(key);
            self.file(key, tick);
        }
    }

    /// Removes the deadline of `key`, if it has one.
    pub fn cancel(&mut self, key: u32) {
        if let Some(node) = self.nodes.get_mut(key as usize) {
            node.deadline = NONE;
        }
    }

    /// Returns the deadline of `key`; `None` if it has none.
    pub fn deadline(&self, key: u32) -> Option<Time> {
        self.nodes.get(key as usize).filter(|n| n.deadline != NONE).map(|n| Time(n.deadline))
    }

    /// Returns the next key whose deadline is not after `now`, and removes its deadline. Earlier ticks come first;
    /// deadlines of one tick come in any order. Call until it returns `None`. Deadlines may be set and cancelled
    /// between the calls.
    pub fn poll(&mut self, now: Time) -> Option<u32> {
        let now = now.0 >> TICK_SHIFT;
        loop {
            while let Some(key) = self.pop_due() {
                let deadline = self.nodes[key as usize].deadline;
                if deadline == NONE {
                    continue;
                }
                let tick = tick_of(deadline);
                if tick <= self.current {
                    self.nodes[key as usize].deadline = NONE;
                    return Some(key);
                }
                self.file(key, tick);
            }
            match self.next_slot() {
                Some((place, start)) if start <= now => {
                    self.current = start;
                    self.make_due(place);
                }
                _ => {
                    self.current = self.current.max(now);
                    return None;
                }
            }
        }
    }

    /// Returns whether `poll` has been called in the tick of `now` and has nothing more to report before the next
    /// tick.
    pub fn is_settled(&self, now: Time) -> bool {
        self.current >= now.0 >> TICK_SHIFT && self.heads[DUE as usize] == NIL
    }

    /// Returns when to poll next; `None` if no deadline is set. Never later than the earliest deadline (rounded up to
    /// its tick), sometimes earlier.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.heads[DUE as usize] != NIL {
            return Some(Time(self.current << TICK_SHIFT));
        }
        self.next_slot().map(|(_, start)| Time(start.checked_shl(TICK_SHIFT).unwrap_or(u64::MAX)))
    }

    /// Returns the earliest occupied slot and its first tick.
    fn next_slot(&self) -> Option<(u16, u64)> {
        let level = self.occupied.iter().position(|&o| o != 0)?;
        let slot = self.occupied[level].trailing_zeros();
        let shift = level as u32 * SLOT_BITS;
        // The slot lies in the block of its level that contains the present (see `file`).
        let block = self.current >> shift >> SLOT_BITS << SLOT_BITS;
        Some((place(level, slot as u64), (block | u64::from(slot)) << shift))
    }

    /// Files a node under `tick`, or under the next tick if `tick` has passed. The node must be in no list.
    fn file(&mut self, key: u32, tick: u64) {
        let tick = tick.max(self.current + 1);
        let differing = (self.current ^ tick) | (SLOTS as u64 - 1);
        let level = (differing.ilog2() / SLOT_BITS) as usize;
        let slot = (tick >> (level as u32 * SLOT_BITS)) & (SLOTS as u64 - 1);
        self.occupied[level] |= 1 << slot;
        self.nodes[key as usize].filed = tick;
        self.link(key, place(level, slot));
    }

    fn link(&mut self, key: u32, place: u16) {
        let head = self.heads[place as usize];
        if let Some(first) = self.nodes.get_mut(head as usize) {
            first.prev = key;
        }
        let node = &mut self.nodes[key as usize];
        (node.prev, node.next, node.place) = (NIL, head, place);
        self.heads[place as usize] = key;
    }

    fn unlink(&mut self, key: u32) {
        let Node { prev, next, place, .. } = self.nodes[key as usize];
        match self.nodes.get_mut(prev as usize) {
            Some(before) => before.next = next,
            None => {
                self.heads[place as usize] = next;
                if next == NIL && place != DUE {
                    self.occupied[place as usize / SLOTS] &= !(1 << (place as usize % SLOTS));
                }
            }
        }
        if let Some(after) = self.nodes.get_mut(next as usize) {
            after.prev = prev;
        }
        self.nodes[key as usize].place = UNFILED;
    }

    /// Moves the keys of a slot to the due list.
    fn make_due(&mut self, place: u16) {
        while self.heads[place as usize] != NIL {
            let key = self.heads[place as usize];
            self.unlink(key);
            self.link(key, DUE);
        }
    }

    fn pop_due(&mut self) -> Option<u32> {
        let key = self.heads[DUE as usize];
        if key == NIL {
            return None;
        }
        self.unlink(key);
        Some(key)
    }
}

fn place(level: usize, slot: u64) -> u16 {
    (level * SLOTS) as u16 + slot as u16
}
