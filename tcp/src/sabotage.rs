//! Rules that can be broken only inside of the stack. The tests break each rule, to prove that a broken rule makes a
//! test fail. All other rules are broken from outside, by changing frames and data (`tests/it/broken.rs`).
//!
//! For example, the stack refuses a forged segment for its sequence numbers alone, and code outside of the stack cannot
//! make it accept that same segment. Nor do the frames of a single stack show whether all stacks of a device agree on a
//! rule.
//!
//! Without the feature `sabotage`, [`broken`] always returns `false`, and the compiler removes the checks.

/// A rule of the protocol that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A segment outside the receive window is refused.
    SequenceWindow,
    /// All stacks of a device compute the same owner of a connection.
    OwnersAgree,
    /// Only the owner refuses a segment that belongs to no connection.
    OwnerRefuses,
    /// Only one stack of a device claims and defends the device's addresses, and answers requests for them.
    OneSpeaks,
    /// An ICMP error reaches the owner of the connection whose segment it quotes.
    ErrorsReachOwners,
    /// A message of a neighbour or router reaches all stacks of a device.
    NeighboursReachAll,
    /// A connection is opened from a local port for which the opening stack is the owner.
    PortsLeadHome,
    /// A delayed ACK leaves after at most [`TcpConfig::ack_delay`](crate::TcpConfig::ack_delay).
    AcksComeDue,
    /// The octets in flight are bounded, so that they wait on the path for about
    /// [`TcpConfig::queue_delay`](crate::TcpConfig::queue_delay).
    QueueStaysShort,
}

#[cfg(feature = "sabotage")]
mod switch {
    use super::Rule;
    use core::cell::Cell;

    std::thread_local! {
        static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// Breaks one rule, or none, for every stack in this thread.
    pub fn set(rule: Option<Rule>) {
        BROKEN.set(rule);
    }

    /// Returns whether the rule is broken now.
    #[inline]
    pub fn broken(rule: Rule) -> bool {
        BROKEN.get() == Some(rule)
    }
}

#[cfg(feature = "sabotage")]
pub use switch::{broken, set};

/// Returns `false`, because no rule can be broken.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub const fn broken(_: Rule) -> bool {
    false
}
