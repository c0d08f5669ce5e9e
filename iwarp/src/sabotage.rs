//! Lets tests break one rule inside the crate, to prove that they notice the break. The rule is that the CRC is checked
//! before the octets that it covers are placed. All other rules are broken from outside, by `tests/sabotage.rs` and by
//! the tests of `urnic`.
//!
//! Without the cargo feature `sabotage` no rule can be broken, and `broken` is always `false`.

/// A rule of the protocol that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// When broken, the payload of an FPDU is placed before its CRC is verified.
    PlaceBeforeCrc,
}

#[cfg(feature = "sabotage")]
mod switch {
    use super::Rule;
    use std::cell::Cell;

    thread_local! {
        static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// Breaks `rule` in this thread until the next call; `None` breaks no rule.
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
