//! The engine's own time-outs ([`Alarm`]). They are rare, so a heap is fast enough. TCP's timers are in the TCP
//! stack's timer wheel.

use super::names::EndpointId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use urnic_tcp::Time;

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
