//! The one rule that tests can break only from inside, to prove that they notice: how a stream orders the check of a CRC and
//! the placement of what it covers. Tests break the others from outside (`tests/sabotage.rs`, and those of `urnic`).
//!
//! Without the cargo feature `sabotage` nothing can be broken and every question is a constant `false`.

/// A rule of the protocol that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Place an FPDU's payload before its CRC is verified.
    PlaceBeforeCrc,
}

#[cfg(feature = "sabotage")]
mod switch {
    use super::Rule;
    use std::cell::Cell;

    thread_local! {
        static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// Breaks `rule` in this thread until the next call; `None` mends everything.
    pub fn set(rule: Option<Rule>) {
        BROKEN.set(rule);
    }

    pub(crate) fn broken(rule: Rule) -> bool {
        BROKEN.get() == Some(rule)
    }
}

#[cfg(not(feature = "sabotage"))]
mod switch {
    #[inline(always)]
    pub(crate) fn broken(_: super::Rule) -> bool {
        false
    }
}

pub(crate) use switch::broken;
#[cfg(feature = "sabotage")]
pub use switch::set;
