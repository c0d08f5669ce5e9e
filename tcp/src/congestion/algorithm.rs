//! The interface of congestion control algorithms, and the known algorithms.

use super::cubic::Cubic;
use super::dctcp::Dctcp;
use super::reno::Reno;
use super::{Ack, Congestion, Window};
use core::time::Duration;

/// Why the window must shrink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Segments were lost.
    Loss,
    /// Routers marked packets instead of dropping them. Reported once per window.
    Marks,
    /// The retransmission timer expired.
    Timeout,
}

/// An algorithm decides by how much the window grows when data is acknowledged, and to which size congestion reduces
/// it. Recovery itself (loss detection, and what is sent meanwhile) is the same for all algorithms
/// ([`Controller`](super::Controller)).
///
/// An algorithm without slow start and congestion avoidance, such as one that follows the delivery rate, sets
/// [`Window::cwnd`] as it likes and implements [`pacing_rate`](Self::pacing_rate). Each algorithm has a file of its
/// own and a variant of `AnyAlgorithm`.
pub trait Algorithm {
    /// Handles an ACK of new data outside of fast recovery.
    fn on_ack(&mut self, window: &mut Window, ack: &Ack);

    /// Handles congestion of the path by setting [`Window::ssthresh`]. `flight`: outstanding octets, at most the
    /// window.
    fn on_congestion(&mut self, window: &mut Window, cause: Cause, flight: u32);

    /// Handles a time `idle` during which nothing was sent.
    fn on_idle(&mut self, _window: &mut Window, _idle: Duration) {}

    /// Returns the pacing rate in octets per second; `None`: derived from the window and the round-trip time.
    fn pacing_rate(&self, _window: &Window) -> Option<u64> {
        None
    }
}

/// The algorithm of a connection, stored in place instead of behind a pointer.
#[derive(Clone, Debug)]
pub(super) enum AnyAlgorithm {
    Reno(Reno),
    Cubic(Cubic),
    Dctcp(Dctcp),
}

impl AnyAlgorithm {
    pub(super) fn new(congestion: Congestion) -> Self {
        match congestion {
            Congestion::Reno => AnyAlgorithm::Reno(Reno::default()),
            Congestion::Cubic => AnyAlgorithm::Cubic(Cubic::default()),
            Congestion::Dctcp => AnyAlgorithm::Dctcp(Dctcp::default()),
        }
    }
}

/// Calls the method of the present algorithm.
macro_rules! each {
    ($any:expr, $a:ident => $call:expr) => {
        match $any {
            AnyAlgorithm::Reno($a) => $call,
            AnyAlgorithm::Cubic($a) => $call,
            AnyAlgorithm::Dctcp($a) => $call,
        }
    };
}

impl Algorithm for AnyAlgorithm {
    #[inline]
    fn on_ack(&mut self, window: &mut Window, ack: &Ack) {
        each!(self, a => a.on_ack(window, ack));
    }

    fn on_congestion(&mut self, window: &mut Window, cause: Cause, flight: u32) {
        each!(self, a => a.on_congestion(window, cause, flight));
    }

    fn on_idle(&mut self, window: &mut Window, idle: Duration) {
        each!(self, a => a.on_idle(window, idle));
    }

    fn pacing_rate(&self, window: &Window) -> Option<u64> {
        each!(self, a => a.pacing_rate(window))
    }
}
