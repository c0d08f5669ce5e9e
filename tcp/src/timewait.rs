//! TIME-WAIT (RFC 9293 §3.6.1). The addresses of a closed connection are kept, so that its last segments cannot be
//! taken for those of a new connection. All entries wait equally long, so a queue keeps them in order. If a wait was
//! restarted, its entry goes to the end of the queue when the first wait is over.

use crate::seq::Seq;
use crate::table::Key;
use crate::time::Time;
use crate::wire::{Segment, flag};

#[derive(Debug)]
pub(crate) struct TimeWait {
    pub key: Key,
    pub snd_nxt: Seq,
    pub rcv_nxt: Seq,
    pub window: u16,
    /// TS.Recent; `None` if timestamps were not in use.
    pub ts_recent: Option<u32>,
    pub ts_offset: u32,
    /// The local port was chosen for this connection. It is released when the wait ends.
    pub owns_port: bool,
    /// The peer has answered our last ACK with a RST, so it no longer knows the connection.
    pub disowned: bool,
    pub until: Time,
}

/// Action on a segment for addresses in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Ignore,
    /// Our last ACK may have been lost: send it again.
    Acknowledge,
    /// The peer's FIN came again: restart the wait.
    Restart,
    /// The peer has forgotten the connection.
    Disowned,
    /// The segment begins a new connection of the peer, which cannot be confused with the old one.
    Reopen,
}

impl TimeWait {
    /// Judges a segment by RFC 9293 §3.10.7.4 for TIME-WAIT. `timestamps`: our configuration lets a new connection
    /// use timestamps.
    ///
    /// A RST does not end the wait (RFC 1337). A RST that answers our ACK shows that the peer's host has forgotten the
    /// connection. Every SYN that the host sends from then on begins a new connection, even if the sequence number does
    /// not show it.
    pub fn judge(&self, s: &Segment, timestamps: bool) -> Verdict {
        if s.has(flag::RST) {
            // Only this number shows that the peer has seen our ACK (RFC 5961 §3).
            return if s.seq == self.rcv_nxt { Verdict::Disowned } else { Verdict::Ignore };
        }
        if s.flags & (flag::SYN | flag::ACK) == flag::SYN {
            let follows = self.disowned || self.may_follow(s, timestamps);
            return if follows { Verdict::Reopen } else { Verdict::Acknowledge };
        }
        if s.has(flag::FIN) && s.seq + s.len() == self.rcv_nxt {
            return Verdict::Restart;
        }
        if s.len() == 0 && s.seq == self.rcv_nxt && s.ack == self.snd_nxt {
            return Verdict::Ignore;
        }
        Verdict::Acknowledge
    }

    /// Returns whether a SYN begins a connection whose segments cannot be confused with those of the old connection
    /// (RFC 9293 §3.6.1, MAY-2, RFC 6191 §2).
    fn may_follow(&self, s: &Segment, timestamps: bool) -> bool {
        let higher = s.seq.gt(self.rcv_nxt);
        match (self.ts_recent.map(Seq), s.timestamps.filter(|_| timestamps).map(|t| Seq(t.value))) {
            (Some(old), Some(new)) => new.gt(old) || (new == old && higher),
            // Old segments have no timestamps, so the new connection rejects them.
            (None, Some(_)) => true,
            (_, None) => higher,
        }
    }

    /// Returns a number above all of our sequence numbers that the peer may remember (RFC 9293 §3.6.1, MAY-2 (1)).
    pub fn next_sequence(&self) -> Seq {
        self.snd_nxt + (1 << 16)
    }
}
