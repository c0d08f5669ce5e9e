//! For tests: what must be true of a stack at any time, and the numbers by which the two ends of a connection can be
//! compared. Nothing else calls it.

use crate::seq::Seq;

/// What does not hold.
pub type Fault = &'static str;

/// Ends the function with the text of a condition that does not hold.
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
    /// The first octet that the peer has not acknowledged.
    pub snd_una: Seq,
    /// The first that was not sent.
    pub snd_nxt: Seq,
    /// The end of what is queued.
    pub queued: Seq,
    /// The largest window that the peer has had.
    pub max_snd_wnd: u32,
    /// The first octet that has not arrived.
    pub rcv_nxt: Seq,
    /// Where our window ends.
    pub rcv_end: Seq,
    /// The peer's timestamp that is echoed, if timestamps were agreed on.
    pub ts_recent: Option<u32>,
    /// Out-of-order octets that are held.
    pub held: usize,
}
