//! Rules that a test may break, one at a time, to prove that the test suite notices.
//!
//! Without the cargo feature `sabotage` nothing can be broken and every question is a constant `false`.

/// A rule of the protocol that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Accept FPDUs without looking at their CRC.
    SkipCrc,
    /// Place an FPDU's payload before its CRC is verified.
    PlaceBeforeCrc,
    /// Check only the first octet of a tagged segment against the bounds.
    SkipBounds,
    /// Drop a tagged segment whose STag check fails, and go on.
    IgnoreTaggedFault,
    /// Accept any MSN on queue 0.
    IgnoreMsn,
    /// Accept a segment on queue 0 that leaves a gap before it.
    AcceptGaps,
    /// Do not match Read Responses with their request.
    AcceptAnyReadResponse,
    /// Do not match Atomic Responses with their request.
    AcceptAnyAtomicResponse,
    /// Deliver a Send at its first segment.
    DeliverEarly,
    /// Complete a Read at the first segment of its response.
    ReadDoneEarly,
    /// Let a Responder send before the Initiator's first FPDU.
    ResponderTalksFirst,
    /// Send more Read Requests than ORD.
    IgnoreOrd,
    /// Accept more Read Requests than IRD.
    IgnoreIrd,
    /// Go on receiving after a fault.
    ReceiveAfterFault,
    /// Send every segment of a message with L set.
    LastOnEverySegment,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 15] = [
        Rule::SkipCrc,
        Rule::PlaceBeforeCrc,
        Rule::SkipBounds,
        Rule::IgnoreTaggedFault,
        Rule::IgnoreMsn,
        Rule::AcceptGaps,
        Rule::AcceptAnyReadResponse,
        Rule::AcceptAnyAtomicResponse,
        Rule::DeliverEarly,
        Rule::ReadDoneEarly,
        Rule::ResponderTalksFirst,
        Rule::IgnoreOrd,
        Rule::IgnoreIrd,
        Rule::ReceiveAfterFault,
        Rule::LastOnEverySegment,
    ];
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
