//! For tests: the invariants of a stack, and the numbers by which a test compares the two ends of a connection.
//! Nothing else uses this.

use crate::seq::Seq;

/// Text of an invariant that does not hold.
pub type Fault = &'static str;

/// Checks a condition. If it does not hold, the enclosing function returns an error with the text of the condition.
macro_rules! must {
    ($condition:expr) => {
        if !$condition {
            return Err(concat!(file!(), ": ", stringify!($condition)));
        }
    };
}
pub(crate) use must;

/// The sequence numbers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// First octet that the peer has not acknowledged.
    pub snd_una: Seq,
    /// Sequence number that is sent next: one more than the highest one sent.
    pub snd_nxt: Seq,
    /// End of the queued data.
    pub queued: Seq,
    /// Largest window that the peer has offered, in octets.
    pub max_snd_wnd: u32,
    /// First octet that has not arrived.
    pub rcv_nxt: Seq,
    /// End of our window.
    pub rcv_end: Seq,
    /// The peer's timestamp that we echo; `None` without timestamps.
    pub ts_recent: Option<u32>,
    /// Out-of-order octets that are held.
    pub held: usize,
}
