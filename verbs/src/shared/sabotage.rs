//! Rules that tests can break only from inside, one at a time, to prove that they notice: neither memory that is lent nor a
//! doorbell is seen from outside. Tests break the others from outside (`tests/workload/broken.rs`, `tests/sabotage`).
//!
//! Without the cargo feature `sabotage` nothing can be broken and every question is a constant `false`.

/// A rule of the engine that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "sabotage"), allow(dead_code))]
pub enum Rule {
    /// A request whose memory was lent completes when the peer has what it holds.
    LentUntilAcked,
    /// A doorbell brings the engine to look at the queue.
    Doorbell,
    /// An STag's slot is written anew only when no pass uses what it said.
    RewriteAfterGrace,
    /// An invalidation completes only when no pass uses the STag.
    CompleteAfterGrace,
    /// A doorbell at an engine that the queue pair has left is forwarded.
    ForwardDoorbells,
    /// An engine looks at the queues of a queue pair that comes to it.
    LookOnArrival,
    /// A wish for one event gets one event.
    OneEvent,
}

#[cfg(feature = "sabotage")]
mod switch {
    use super::Rule;
    use std::cell::Cell;

    thread_local! {
        static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// Breaks one rule, or none, for all engines that are driven by this thread.
    pub fn set(rule: Option<Rule>) {
        BROKEN.set(rule);
    }

    #[inline]
    pub(crate) fn broken(rule: Rule) -> bool {
        BROKEN.get() == Some(rule)
    }
}

#[cfg(feature = "sabotage")]
pub use switch::set;

#[cfg(feature = "sabotage")]
pub(crate) use switch::broken;

/// No rule is ever broken.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub(crate) const fn broken(_: Rule) -> bool {
    false
}
