//! The engine's own time-outs ([`Alarm`]). They are rare, so a heap is fast enough. TCP's timers are in the TCP
//! stack's timer wheel.

use super::names::{EndpointId, EndpointIndex};
use super::{Core, TEARDOWN_WITHIN};
use crate::drive::transport::Data;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use urnic_tcp::{ConnId, Time};

/// The subject of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alarm {
    /// The program has asked for a connection, and its start-up is not done in time (MPA-75, MPA-76). An incoming
    /// connection has a seat with a time limit instead (see [`rooms`](super::rooms)).
    Startup,
    /// The ready-to-receive indication of an accepted peer-to-peer connection has not come (MPA-76).
    Rtr,
    /// A Send of the peer, or the FIN behind it, may have waited too long for a receive.
    Receive,
    /// This side, as initiator, has sent its first FPDU, and no data has come from the peer since (see
    /// [`peers`](super::peers)).
    Nudge,
    /// The connection did not close in time after this side had begun to end it.
    Teardown,
}

/// Alarms, earliest first. The engine ignores an alarm that fires when its endpoint no longer exists or no longer
/// waits.
#[derive(Default)]
pub(super) struct Alarms(BinaryHeap<Reverse<(Time, EndpointId, Alarm)>>);

impl Alarms {
    /// Sets an alarm for an endpoint.
    pub(super) fn set(&mut self, at: Time, endpoint: EndpointId, alarm: Alarm) {
        self.0.push(Reverse((at, endpoint, alarm)));
    }

    /// Takes the next alarm that is due at `now`.
    pub(super) fn due(&mut self, now: Time) -> Option<(EndpointId, Alarm)> {
        self.next().filter(|at| *at <= now)?;
        self.0.pop().map(|Reverse((_, endpoint, alarm))| (endpoint, alarm))
    }

    /// Returns when the next alarm is due; `None` if there is none.
    pub(super) fn next(&self) -> Option<Time> {
        self.0.peek().map(|Reverse((at, ..))| *at)
    }
}

impl<D: Data> Core<D> {
    /// Returns the earliest time at which one of the engine's own time-outs may have passed.
    #[inline]
    pub(super) fn next_time_out(&self) -> Time {
        self.alarms.next().map_or(self.tend_at, |at| at.min(self.tend_at))
    }

    pub(super) fn set_alarm(&mut self, index: EndpointIndex, at: Time, alarm: Alarm) {
        if let Some(endpoint) = self.endpoints.id(index) {
            self.alarms.set(at, endpoint, alarm);
        }
    }

    /// Fires due alarms. `is_slow` returns whether the peer of a connection that does not close is slow rather than
    /// silent.
    pub(super) fn ring_alarms(&mut self, is_slow: impl Fn(ConnId) -> bool) {
        while let Some((endpoint, alarm)) = self.alarms.due(self.now) {
            let Some(index) = self.endpoints.find(endpoint) else { continue };
            match alarm {
                Alarm::Startup => self.startup_timed_out(index),
                Alarm::Rtr => self.rtr_timed_out(index),
                Alarm::Teardown if self.waits_for_peer(index, &is_slow) => {
                    self.set_alarm(index, self.now + TEARDOWN_WITHIN, Alarm::Teardown);
                }
                Alarm::Teardown => self.teardown_timed_out(index),
                Alarm::Nudge => self.nudge(index),
                Alarm::Receive => self.receive_timed_out(index),
            }
        }
    }
}
