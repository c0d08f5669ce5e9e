//! Rules that tests break, one at a time, to prove that the tests notice. These rules can be broken only inside the
//! engine, because their objects (such as doorbells) are not visible from outside. Other rules are broken from outside
//! (`tests/workload/broken.rs`, `tests/sabotage`).
//!
//! A pass is one turn of an engine, in which the engine receives frames and does the work that waits. While a pass
//! runs, it may use an STag that another thread revokes.
//!
//! Without the cargo feature `sabotage` no rule can be broken, and every check is a constant `false`.

/// A rule of the engine that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "sabotage"), allow(dead_code))]
pub enum Rule {
    /// A request whose payload TCP sends from the application's memory, without a copy, completes only when the peer
    /// has acknowledged the payload.
    LentUntilAcked,
    /// A doorbell makes the engine look at the queue.
    Doorbell,
    /// The table's slot of an STag is rewritten only when every pass that may use the slot's old content has ended.
    RewriteAfterGrace,
    /// An invalidation completes only when every pass that may use the STag has ended.
    CompleteAfterGrace,
    /// A doorbell at an engine that the queue pair has left is forwarded.
    ForwardDoorbells,
    /// An engine looks at the queues of a queue pair that moves to it.
    LookOnArrival,
    /// One request for an event gets one event.
    OneEvent,
}

#[cfg(feature = "sabotage")]
mod switch {
    use super::Rule;
    use std::cell::Cell;

    thread_local! {
        static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// Breaks one rule, or none, for all engines that this thread drives.
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

/// Returns false: without the feature, no rule is ever broken.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub(crate) const fn broken(_: Rule) -> bool {
    false
}
