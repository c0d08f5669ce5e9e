//! Decides whether a posted request leaves at once or waits for requests that are posted next.
//!
//! A single request must leave before the poster returns. If a poster posts many requests, they should share segments
//! and bursts. The engine cannot know whether more requests will follow, so it goes by the poster's recent behaviour:
//!
//! * **Batches.** A batch is several posts and then a poll, all within [`LONGEST`]. After [`BATCHES`] batches in a row,
//!   posts wait for the next poll. After a poll that comes late or finds only one request, posts leave at once again.
//! * **A busy poster** posts something before each of its polls, so it never waits for the peer. After [`RUN`] such
//!   polls in a row, posts wait even longer, until a burst is [full](FULL), until the first poll before which nothing
//!   was posted, or for [`PATIENCE`]. So they do not wait when the poster has nothing else to do. The required run
//!   doubles each time that waiting was of no use:
//!   * The poster becomes idle: if its window is small, perhaps only because its requests have waited.
//!   * The poster stops polling, to compute for example. Its last requests are left to the engine's own thread, which
//!     takes over after some milliseconds, or to the poster's next poll. If this happens [often](FAULTS), the poster
//!     does not count as busy [for long](DISTRUST).

use std::time::Duration;

use urnic_tcp::{ConnId, Time};

use super::endpoint::Phase;
use super::names::{EndpointIndex, Qpn};
use super::outbound::refill;
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
/// Number of queue pairs with waiting posts at which a busy poster's next poll lets them leave. Larger bursts hardly
/// save more time.
const FULL: u32 = 16;
/// Longest time that a busy poster's requests wait. Posting to [`FULL`] queue pairs, with a poll after each, takes
/// less, unless their state is in no cache.
const PATIENCE: Duration = Duration::from_micros(16);
/// Longest time from the end of a poll's pass to the next post of a run, and to the next poll if posts wait. A poster
/// that comes later does something else in between, and posts too rarely to fill bursts.
const SWIFT: Duration = Duration::from_micros(4);
/// Number of polls in a row, each after a post, after which a poster counts as busy.
const RUN: u32 = 64;
/// The largest number that is required of a poster that becomes idle now and then.
const LONGEST_RUN: u32 = 4096;
/// Most unacknowledged octets of a connection whose request leaves before an ACK that has come with data is handled, and
/// whose peer may be waiting for more. They take little of any window.
pub(super) const LITTLE: u64 = 4096;
/// If requests that a poll has held back wait longer than this, the poster has stopped polling.
const LATE: Duration = Duration::from_micros(100);
/// If the next poll comes later than this, but not that late, either the poster has stopped for a short time, or its
/// thread has lost its processor to the kernel for a moment, which happens time and again.
const BRIEFLY_LATE: Duration = Duration::from_micros(24);
/// Weight of requests that were left behind for longer than [`LATE`], among the faults of a poster. Each poll that lets
/// requests leave takes 1 away.
const LATE_FAULT: u32 = 2048;
/// Weight of requests that were left behind for a shorter time.
const BRIEF_FAULT: u32 = LATE_FAULT / 8;
/// If a poster's faults weigh more, they are not by chance: the program posts and polls for a while, and then does
/// something else.
const FAULTS: u32 = LATE_FAULT;
/// Number of polls for which the poster then does not count as busy.
const DISTRUST: u32 = 1 << 14;

/// The treatment of a request that has just been posted to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Send at once: this is the first post since the last pass.
    First,
    /// Send at once if the queue pair has no unacknowledged data: other posts have come since the last pass.
    Further,
    /// Wait for the next pass.
    Wait,
    /// Give the turns of a pass to the queue pairs that wait, and then send this request if none of them waits longer.
    All,
}

/// The posts since the last pass that let requests leave, and the poster's behaviour before.
pub(super) struct Posting {
    /// Number of posts since that pass, except posts to queue pairs that already wait for the next one.
    posts: u32,
    /// Time of the first of these posts.
    since: Time,
    /// Number of requests that were begun since then.
    begun: u32,
    /// Number of batches in a row.
    batches: u8,
    /// Whether posts wait for the next pass.
    waits: bool,
    /// Number of polls in a row that each found new posts, except polls that have held them back.
    run: u32,
    /// The length of a run that makes a poster busy.
    required: u32,
    /// Weight of the poster's [faults](FAULTS).
    faults: u32,
    /// Number of further polls that let requests leave for which the poster does not count as busy.
    distrust: u32,
    /// Whether anything was posted since the last poll's pass.
    news: bool,
    /// Number of posts that the last poll's pass has held back; 0 if it has let all leave.
    held: u32,
    /// Time at which the last poll's pass ended.
    passed: Time,
    /// Number of polls that have held requests back.
    pub(super) holds: u64,
}

impl Default for Posting {
    fn default() -> Self {
        let (since, passed) = (Time::ZERO, Time::ZERO);
        Self {
            posts: 0,
            since,
            begun: 0,
            batches: 0,
            waits: false,
            run: 0,
            required: RUN,
            faults: 0,
            distrust: 0,
            news: false,
            held: 0,
            passed,
            holds: 0,
        }
    }
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
            if self.since > self.passed + SWIFT {
                self.run = 0; // the poster has stopped polling since
            }
        }
        match (self.waits || self.is_busy(), self.posts) {
            (true, MOST) => {
                (self.posts, self.held) = (1, 0);
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

    #[inline]
    fn is_busy(&self) -> bool {
        self.run >= self.required && self.distrust == 0
    }

    /// Called by the pass of a poll, at `now`, before [`holds`](Self::holds) and [`judge`](Self::judge). `joined`
    /// returns whether requests were posted to queue pairs that already waited for a pass.
    #[inline]
    pub(super) fn note_poll(&mut self, now: Time, joined: impl FnOnce() -> bool) {
        // Called even if other posts are news, because the next poll must not find what has joined before this one.
        let joined = self.run > 0 && joined();
        self.news = self.posts > self.held || joined;
        // The posts of a poster that is not busy may have taken long, because they may have left at once.
        if self.is_busy() && now > self.passed + SWIFT {
            self.interrupted(now);
        }
    }

    /// Notes that the poll's pass ends. Calls `now` if it has taken some time.
    #[inline]
    pub(super) fn note_end(&mut self, began: Time, long: bool, now: impl FnOnce() -> Time) {
        self.passed = if long && self.run > 0 { now() } else { began };
    }

    /// Ends a run, because the poster has done something else before this poll.
    #[cold]
    fn interrupted(&mut self, now: Time) {
        if self.held > 0 && now > self.passed + BRIEFLY_LATE {
            self.left_behind(now);
        }
        self.run = 0;
    }

    /// Returns whether the posts go on waiting, in the pass of a poll at `now`.
    #[inline]
    pub(super) fn holds(&mut self, now: Time) -> bool {
        let holds = self.is_busy() && self.news && self.posts < FULL && now < self.since + PATIENCE;
        if holds {
            self.held = self.posts;
            self.holds += 1;
        }
        holds
    }

    /// Judges the poster's behaviour, after a pass at `now` has let the posts leave. `polled`: it was the pass of a
    /// poll.
    #[inline]
    pub(super) fn judge(&mut self, now: Time, polled: bool) {
        if self.posts == 0 && self.run == 0 {
            return;
        }
        if polled {
            self.judge_run();
        } else if self.held > 0 && now > self.since + LATE {
            self.left_behind(now);
        }
        if self.posts > 0 {
            self.judge_batch(now);
        }
        (self.posts, self.held) = (0, 0);
    }

    /// Notes that requests have waited too long, because the poster did not poll.
    #[cold]
    fn left_behind(&mut self, now: Time) {
        self.faults += if now > self.since + LATE { LATE_FAULT } else { BRIEF_FAULT };
        if self.faults > FAULTS {
            (self.faults, self.distrust) = (FAULTS, DISTRUST);
        }
        self.run = 0;
        self.require_more();
    }

    fn require_more(&mut self) {
        self.required = (2 * self.required).min(LONGEST_RUN);
    }

    fn judge_run(&mut self) {
        if self.distrust > 0 {
            self.distrust -= 1;
        } else {
            self.faults = self.faults.saturating_sub(1);
        }
        let was_busy = self.is_busy();
        if !self.news {
            self.run = 0;
            if was_busy {
                self.require_more();
            }
            return;
        }
        self.run = self.run.saturating_add(1);
        if was_busy && self.posts >= FULL {
            self.required = (self.required - self.required / 8).max(RUN);
        }
    }

    fn judge_batch(&mut self, now: Time) {
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
    }
}

impl<T: Transport, C: Clock> Engine<T, C> {
    /// Called by the pass of a poll. Returns whether the posts go on waiting because the poster
    /// [is busy](Posting::holds). If anything else waits for a turn, it must not wait for the posts.
    #[inline]
    pub(super) fn holds_posts(&mut self, now: Time) -> bool {
        self.posting.note_poll(now, || self.doorbells.take_joined());
        let others = !self.core.ready.is_empty() || self.core.unready.is_due();
        !others && self.doorbells.are_at_most(self.posting.posts) && self.posting.holds(now)
    }

    /// Handles a post to a queue pair that does not wait for a pass: sends its requests if they may leave at once,
    /// and returns whether they may.
    #[inline]
    pub(super) fn posted_to(&mut self, qpn: Qpn) -> bool {
        let verdict = self.posting.posted(|| self.clock.now());
        if verdict == Verdict::Wait {
            self.foresee_waiting(qpn);
            return false;
        }
        if verdict != Verdict::First {
            self.transport.settle_acks(&mut self.core);
        }
        if verdict == Verdict::All {
            let now = self.now();
            self.serve(now);
            self.transport.flush();
        }
        let Some((index, conn)) = self.idle_endpoint(qpn, verdict) else { return false };
        let now = match verdict {
            Verdict::First => self.set_now(self.posting.since),
            _ => self.now(),
        };
        if self.has_paused(now) || !self.has_plenty() || self.transport.unacked(conn) > LITTLE {
            self.transport.settle_acks(&mut self.core);
        }
        self.transport.hurry(true);
        let more = self.service(index, now);
        self.transport.hurry(false);
        // What follows can wait until the frames have reached the wire.
        self.transport.flush();
        if self.complete(index) | more {
            self.core.schedule(index);
        }
        refill(&mut self.drafts, &mut self.transport);
        if self.transport.settle_acks(&mut self.core) && self.transport.unsent(conn) > 0 {
            self.send_rest(index, now);
        }
        true
    }

    /// Sends what the ACK allows that has just been settled.
    #[cold]
    fn send_rest(&mut self, index: EndpointIndex, now: Time) {
        let more = self.service(index, now);
        self.transport.flush();
        if self.complete(index) | more {
            self.core.schedule(index);
        }
    }

    /// Returns the endpoint of a queue pair that may send at once: the queue pair is connected, has no unsent data,
    /// and no other endpoint waits for its turn. Unless this is the first post since the last pass, the queue pair
    /// must not have unacknowledged data either, because posts that come while data is under way should share
    /// segments.
    #[inline]
    fn idle_endpoint(&self, qpn: Qpn, verdict: Verdict) -> Option<(EndpointIndex, ConnId)> {
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
        (open && waits == 0).then_some((index, conn))
    }
}
