//! Decides whether a posted request leaves at once or waits for requests that are posted next.
//!
//! A single request must leave before the poster returns. A poster of many requests is served best if they share
//! segments and bursts. The engine cannot know which kind a request is, so it goes by the poster's recent
//! behaviour. Several posts in a row, each time followed by a poll within [`LONGEST`], make the next posts wait for
//! the poll. A single post, or a late poll, ends that.

use std::time::Duration;

use urnic_tcp::Time;

use super::endpoint::Phase;
use super::names::{EndpointIndex, Qpn};
use super::{Clock, Engine};
use crate::drive::transport::Transport;

#[cfg(test)]
mod tests;

/// How long a post may wait for the poll. A poster that takes longer does something else in between.
const LONGEST: Duration = Duration::from_micros(1);
/// Number of batches in a row after which posts wait.
const BATCHES: u8 = 4;
/// Maximum number of queue pairs with waiting posts: a burst of the link.
const MOST: u32 = 32;

/// What to do for a queue pair that was posted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is the first since the last pass: send.
    First,
    /// Other queue pairs were posted to since the last pass.
    Further,
    /// Wait.
    Wait,
    /// Send, and before it everything that waits.
    All,
}

/// Posts since the last pass, and the behaviour of the poster before.
#[derive(Default)]
pub(super) struct Posting {
    /// Number of queue pairs that were posted to since the last pass, except those that already waited for it.
    posts: u32,
    /// Time of the first of these posts.
    since: Time,
    /// Number of requests that were begun since.
    begun: u32,
    /// Number of batches in a row.
    batches: u8,
    /// Whether posts wait for the next pass.
    waits: bool,
}

impl Posting {
    /// A queue pair that does not wait for a pass was posted to. Calls `now` if it is the first.
    #[inline]
    pub(super) fn posted(&mut self, now: impl Fn() -> Time) -> Verdict {
        self.posts += 1;
        if self.posts == 1 {
            self.since = now();
            self.begun = 0;
        }
        match (self.waits, self.posts) {
            (true, MOST) => {
                self.posts = 1;
                self.since = now();
                Verdict::All
            }
            (true, _) => Verdict::Wait,
            (false, 1) => Verdict::First,
            (false, _) => Verdict::Further,
        }
    }

    /// This many requests were begun.
    #[inline]
    pub(super) fn began(&mut self, requests: u32) {
        self.begun = self.begun.wrapping_add(requests);
    }

    /// Returns whether [`judge`](Self::judge) is due in this pass.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.posts > 0
    }

    /// A pass at `now` has served what was posted.
    #[inline]
    pub(super) fn judge(&mut self, now: Time) {
        let prompt = now <= self.since + LONGEST;
        if self.waits {
            self.waits = prompt && self.begun > 1;
            self.batches = 0;
        } else if prompt && self.posts > 1 {
            self.batches += 1;
            self.waits = self.batches >= BATCHES;
        } else {
            self.batches = 0;
        }
        self.posts = 0;
    }
}

impl<T: Transport, C: Clock> Engine<T, C> {
    /// A queue pair that does not wait for a pass was posted to. Sends what may leave at once. Returns false if
    /// nothing may.
    #[inline]
    pub(super) fn posted_to(&mut self, qpn: Qpn) -> bool {
        let verdict = self.posting.posted(|| self.clock.now());
        if verdict == Verdict::Wait {
            return false;
        }
        if verdict == Verdict::All {
            let now = self.now();
            self.serve(now);
            self.transport.flush();
        }
        let Some(index) = self.idle_endpoint(qpn, verdict) else { return false };
        let now = self.now();
        let more = self.service(index, now);
        // Requests complete after the flush, so that what was just stored reaches the wire first.
        self.transport.flush();
        if self.complete(index) | more {
            self.core.schedule(index);
        }
        true
    }

    /// Returns the endpoint of a queue pair that may send at once: it is connected, nothing of it waits to be sent,
    /// and no other endpoint waits for its turn. After the first post since a pass, nothing of it may be
    /// unacknowledged either, because posts that come while data is under way should share segments.
    #[inline]
    fn idle_endpoint(&self, qpn: Qpn, verdict: Verdict) -> Option<EndpointIndex> {
        if !self.core.ready.is_empty() || !self.transport.has_room() {
            return None;
        }
        let qp = self.core.qps.get(self.core.index_of(qpn)?)?;
        let index = qp.endpoint.filter(|_| !qp.is_over())?;
        let endpoint = self.core.endpoints.get(index)?;
        let open = matches!(endpoint.phase, Phase::Open { .. }) && !endpoint.has_outbox;
        let conn = endpoint.conn?;
        let waits = if verdict == Verdict::First {
            self.transport.unsent(conn)
        } else {
            self.transport.unacked(conn)
        };
        (open && waits == 0).then_some(index)
    }
}
