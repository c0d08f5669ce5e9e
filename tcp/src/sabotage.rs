//! The one rule that tests can break only from inside, to prove that they notice: an attacker's segment is refused by its
//! numbers alone, so nothing outside of the stack can let it pass without changing it. Tests break the others from outside
//! (`tests/it/broken.rs`).
//!
//! Without the feature `sabotage` [`broken`] is the constant `false`, and the compiler removes it.

/// A rule of the protocol that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A segment outside the receive window is refused.
    SequenceWindow,
}

#[cfg(feature = "sabotage")]
mod switch {
    use super::Rule;
    use core::cell::Cell;

    std::thread_local! {
        static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// Breaks one rule, or none, for every stack that runs in this thread.
    pub fn set(rule: Option<Rule>) {
        BROKEN.set(rule);
    }

    /// The rule is broken now.
    #[inline]
    pub fn broken(rule: Rule) -> bool {
        BROKEN.get() == Some(rule)
    }
}

#[cfg(feature = "sabotage")]
pub use switch::{broken, set};

/// No rule is ever broken.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub const fn broken(_: Rule) -> bool {
    false
}
