//! Checks at intervals: listeners that rest, and peers that may be dead.

use std::time::Duration;

use urnic_tcp::{CloseReason, ConnId, Time};

use super::{OverKernel, Token};

/// How often the kernel is asked for acknowledgements while octets are outstanding.
pub(super) const WATCH: Duration = Duration::from_millis(250);
/// Number of unanswered probes of a shut window after which the peer is suspected to be dead.
const PROBES: u8 = 2;

impl OverKernel {
    /// Tries listeners that have rested, and checks the connections with outstanding octets, if their times have
    /// come.
    #[cold]
    pub(super) fn tend(&mut self, now: Time) {
        if now >= self.wake_at {
            self.wake_at = Time::MAX;
            self.ready.extend(self.resting.drain(..).map(Token::Place));
        }
        if now < self.watch_at {
            return;
        }
        let mut watched = std::mem::take(&mut self.watched);
        watched.retain(|conn| self.is_outstanding(now, *conn));
        self.watched.append(&mut watched);
        self.watch_at = if self.watched.is_empty() { Time::MAX } else { now + WATCH };
    }

    /// Checks a connection with outstanding octets, and ends it if the peer is dead. Returns false if all octets are
    /// acknowledged, or the connection has ended.
    fn is_outstanding(&mut self, now: Time, conn: ConnId) -> bool {
        let limit = self.patience.user_timeout;
        let Some(stream) = self.stream_mut(conn) else { return false };
        if stream.connecting {
            return true;
        }
        if stream.socket.outstanding() == 0 {
            stream.watched = false;
            return false;
        }
        let Some(info) = stream.socket.info() else { return true };
        stream.measure();
        if info.bytes_acked != stream.progress.0 {
            stream.progress = (info.bytes_acked, now);
            return true;
        }
        let limit = stream.patience.map_or(limit, |own| own.user_timeout);
        // A peer that is alive but keeps its window shut also acknowledges nothing, but it answers probes.
        let heard = Duration::from_millis(info.last_ack_recv.into());
        let asks = info.unacked > 0 || info.probes >= PROBES;
        if limit.is_some_and(|limit| asks && now.since(stream.progress.1) >= limit && heard >= limit) {
            self.give_up(conn, CloseReason::TimedOut);
            return false;
        }
        true
    }
}
