//! Rules that tests can break only from inside, to prove that they notice: an attacker's segment is refused by its numbers
//! alone, so nothing outside of the stack can let it pass without changing it; and what several stacks of a device agree on
//! shows in none of them. Tests break the others from outside (`tests/it/broken.rs`).
//!
//! Without the feature `sabotage` [`broken`] is the constant `false`, and the compiler removes it.

/// A rule of the protocol that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A segment outside the receive window is refused.
    SequenceWindow,
    /// All stacks of a device see the same owner of a connection.
    OwnersAgree,
    /// Only the owner refuses what belongs to no connection.
    OwnerRefuses,
    /// One stack of a device answers for its addresses.
    OneSpeaks,
    /// An ICMP error reaches the owner of the connection that it is about.
    ErrorsReachOwners,
    /// What a neighbour or router says reaches all stacks of a device.
    NeighboursReachAll,
    /// A connection is opened from a port that makes the opening stack its owner.
    PortsLeadHome,
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
