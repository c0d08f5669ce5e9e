//! Rules that tests can break, one at a time, to prove that they notice.
//!
//! Without the cargo feature `sabotage` nothing can be broken and every question is a constant `false`.

/// A rule of the engine that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "sabotage"), allow(dead_code))]
pub enum Rule {
    /// An access stays within its region.
    Bounds,
    /// A region is accessed only through queue pairs of its protection domain.
    ProtectionDomain,
    /// A region is accessed only with the rights that it has.
    Rights,
    /// An invalidated region is not accessed any more.
    Invalidate,
    /// A message goes to the place that its header names.
    Place,
    /// A message fills the scatter list element by element.
    Scatter,
    /// A receive tells the length of the message.
    ReceivedLength,
    /// A request completes when all of it was handed to TCP.
    CopiedBeforeCompletion,
    /// A request whose memory was lent completes when the peer has what it holds.
    LentUntilAcked,
    /// A Read completes when its data is there.
    ReadAnswered,
    /// A fence waits for all earlier Reads.
    Fence,
    /// A doorbell brings the engine to look at the queue.
    Doorbell,
    /// A success is reported only for a signalled request.
    Signalled,
    /// All that was posted is flushed.
    FlushReceives,
    /// Nothing is reported twice.
    ReportOnce,
    /// The peer is told of an error by a Terminate.
    Terminate,
    /// Inbound Reads are answered with the octets asked for.
    ReadSource,
    /// A message is gathered from its list element by element.
    Gather,
    /// A Send with Solicited Event is reported as such.
    Solicited,
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
impl Rule {
    /// All of them.
    pub const ALL: [Rule; 19] = [
        Rule::Bounds,
        Rule::ProtectionDomain,
        Rule::Rights,
        Rule::Invalidate,
        Rule::Place,
        Rule::Scatter,
        Rule::ReceivedLength,
        Rule::CopiedBeforeCompletion,
        Rule::LentUntilAcked,
        Rule::ReadAnswered,
        Rule::Fence,
        Rule::Doorbell,
        Rule::Signalled,
        Rule::FlushReceives,
        Rule::ReportOnce,
        Rule::Terminate,
        Rule::ReadSource,
        Rule::Gather,
        Rule::Solicited,
    ];
}

#[cfg(feature = "sabotage")]
pub(crate) use switch::broken;

/// No rule is ever broken.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub(crate) const fn broken(_: Rule) -> bool {
    false
}
