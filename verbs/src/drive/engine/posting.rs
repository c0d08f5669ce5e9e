//! Decides whether a posted request leaves at once or waits for requests that are posted next.
//!
//! A single request must leave before the poster returns. If a poster posts many requests, they should share segments
//! and bursts. The engine cannot know whether more requests will follow, so it goes by the poster's recent behaviour.
//! A batch is several posts and then a poll, all within [`LONGEST`]. After [`BATCHES`] batches in a row, posts wait for
//! the next poll. After a poll that comes late or finds only one request, posts leave at once again.

use std::time::Duration;

use urnic_tcp::Time;

use super::endpoint::Phase;
use super::names::{EndpointIndex, Qpn};
use super::{Clock, Engine};
use crate::drive::transport::Transport;

#[cfg(test)]
mod tests;

/// Longest time from the first post of a batch to the poll. A poster that polls later does something else in between.
const LONGEST: Duration = Duration::from_micros(1);
/// Number of batches in a row after which posts wait.
const BATCHES: u8 = 4;
/// Maximum number of queue pairs with waiting posts: a burst of the link.
const MOST: u32 = 32;

/// The treatment of a request that has just been posted to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Send at once: this is the first post since the last pass.
    First,
    /// Send at once if the queue pair has no unacknowledged data: other posts have come since the last pass.
    Further,
    /// Wait for the next pass.
    Wait,
    /// Send everything that waits, and then this request.
    All,
}

/// The posts since the last pass, and the poster's behaviour before.
#[derive(Default)]
pub(super) struct Posting {
    /// Number of posts since the last pass, except posts to queue pairs that already wait for the next pass.
    posts: u32,
    /// Time of the first of these posts.
    since: Time,
    /// Number of requests that were begun since then.
    begun: u32,
    /// Number of batches in a row.
    batches: u8,
    /// Whether posts wait for the next pass.
    waits: bool,
}

impl Posting {
    /// Notes a post to a queue pair that does not wait for a pass, and decides what to do. Calls `now` if this post
    /// is the first since the last pass, or makes the waiting posts leave.
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

    /// Notes that this many requests were begun.
    #[inline]
    pub(super) fn began(&mut self, requests: u32) {
        self.begun = self.begun.wrapping_add(requests);
    }

    /// Returns whether [`judge`](Self::judge) is due in this pass.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.posts > 0
    }

    /// Judges the poster's behaviour, after a pass at `now` has served the posts.
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
    /// Handles a post to a queue pair that does not wait for a pass: sends its requests if they may leave at once,
    /// and returns whether they may.
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
        // Requests complete after the flush, so that the frames reach the wire first.
        self.transport.flush();
        if self.complete(index) | more {
            self.core.schedule(index);
        }
        true
    }

    /// Returns the endpoint of a queue pair that may send at once: the queue pair is connected, has no unsent data,
    /// and no other endpoint waits for its turn. Unless this is the first post since the last pass, the queue pair
    /// must not have unacknowledged data either, because posts that come while data is under way should share
    /// segments.
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
