//! Rules that tests can break on purpose, to prove that the simulations notice. Without the feature `sabotage`
//! every question here is the constant `false` and the compiler removes it.

/// A rule of the protocol that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A segment with a wrong checksum is dropped.
    Checksum,
    /// Octets that were delivered are not delivered again.
    OverlapOnce,
    /// A segment outside the receive window is refused.
    SequenceWindow,
    /// A retransmission carries the octets of the range that is missing.
    RetransmitRange,
    /// Octets are delivered in order.
    InOrder,
    /// Only octets that arrived are acknowledged.
    AckReceived,
}

/// All of them.
pub const RULES: [Rule; 6] = [
    Rule::Checksum,
    Rule::OverlapOnce,
    Rule::SequenceWindow,
    Rule::RetransmitRange,
    Rule::InOrder,
    Rule::AckReceived,
];

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
