//! What an algorithm of congestion control decides, and the ones there are.

use super::cubic::Cubic;
use super::dctcp::Dctcp;
use super::reno::Reno;
use super::{Ack, Congestion, Window};
use core::time::Duration;

/// Why the window has to shrink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Segments were lost.
    Loss,
    /// Routers marked packets instead of dropping them; told once per window.
    Marks,
    /// The retransmission timer expired.
    Timeout,
}

/// An algorithm: by how much the window grows when data is acknowledged, and what it comes down to when the path is
/// congested. Recovery itself, how losses are found and what is sent meanwhile, is the same for all
/// ([`Controller`](super::Controller)).
///
/// One that does not follow the shape of slow start and congestion avoidance (one that follows the delivery rate, say)
/// sets [`Window::cwnd`] as it likes, and [`pacing_rate`](Self::pacing_rate). It lives in a file of its own, and is known to
/// `AnyAlgorithm`.
pub trait Algorithm {
    /// New data was acknowledged outside of fast recovery.
    fn on_ack(&mut self, window: &mut Window, ack: &Ack);

    /// The path is congested; `flight` octets are outstanding, no more than the window: sets [`Window::ssthresh`].
    fn on_congestion(&mut self, window: &mut Window, cause: Cause, flight: u32);

    /// Nothing was sent for `idle`.
    fn on_idle(&mut self, _window: &mut Window, _idle: Duration) {}

    /// Octets per second at which segments are to leave; `None`: as the window and the round-trip time say.
    fn pacing_rate(&self, _window: &Window) -> Option<u64> {
        None
    }
}

/// The algorithm of a connection, in the place of a pointer to one.
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

/// Calls whichever it is.
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
