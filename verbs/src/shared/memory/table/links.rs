//! Rings of slots. Each slot knows its neighbours, so that it leaves in constant time.

/// The neighbours of a slot in its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Links {
    pub(super) next: u32,
    pub(super) previous: u32,
}

impl Links {
    /// Returns the links of slot `index` in a ring of its own.
    pub(super) fn alone(index: u32) -> Self {
        Links { next: index, previous: index }
    }
}

/// Function that returns an entry's links in one kind of ring. An entry may be in several rings, one of each kind.
pub(super) type Of<T> = fn(&mut T) -> &mut Links;

/// Puts `index`, which is alone, after `at`.
pub(super) fn join<T>(all: &mut [T], of: Of<T>, at: u32, index: u32) {
    let Some(next) = links(all, of, at).map(|at| std::mem::replace(&mut at.next, index)) else { return };
    if let Some(next) = links(all, of, next) {
        next.previous = index;
    }
    if let Some(own) = links(all, of, index) {
        *own = Links { next, previous: at };
    }
}

/// Takes `index` out of its ring. Returns the next one in the ring; `None` if it was alone.
pub(super) fn leave<T>(all: &mut [T], of: Of<T>, index: u32) -> Option<u32> {
    let own = links(all, of, index)?;
    let Links { next, previous } = std::mem::replace(own, Links::alone(index));
    if next == index {
        return None;
    }
    if let Some(before) = links(all, of, previous) {
        before.next = next;
    }
    if let Some(behind) = links(all, of, next) {
        behind.previous = previous;
    }
    Some(next)
}

fn links<T>(all: &mut [T], of: Of<T>, index: u32) -> Option<&mut Links> {
    all.get_mut(index as usize).map(of)
}
