//! CUBIC (RFC 9438): the window is a cubic function of the time since the last loss, and never below the window that
//! Reno would have.

use super::{Ack, Algorithm, Cause, Window};
use crate::time::Time;
use core::time::Duration;

/// Multiplicative decrease.
const BETA: f64 = 0.7;
/// Segments per cubic second.
const C: f64 = 0.4;
/// Additive increase that gives the same average window as Reno, with [`BETA`] (§4.3): 3·(1-β)/(1+β).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// One stage of congestion avoidance, between two losses.
#[derive(Clone, Debug)]
struct Epoch {
    /// Start of the stage (t = 0). Moves along while the window is not used (§5.8).
    start: Time,
    /// Time to the plateau, in seconds.
    k: f64,
    /// Height of the plateau, in segments.
    origin: f64,
    /// The window that Reno would have, in segments (§4.3).
    w_est: f64,
    /// Time of the last update.
    seen: Time,
}

/// State of CUBIC; windows in segments.
#[derive(Clone, Debug, Default)]
pub(super) struct Cubic {
    /// Window before the last reduction, after fast convergence; 0 before any reduction.
    pub(super) w_max: f64,
    /// Window before the last reduction.
    cwnd_prior: f64,
    epoch: Option<Epoch>,
    /// Growth of less than an octet, carried over.
    fraction: f64,
    /// Whether the next stage is the first one after a timeout, in which K = 0 (§4.8).
    timed_out: bool,
}

impl Cubic {
    /// Returns the growth of the window, in octets, for an ACK in congestion avoidance (§4.2-4.5).
    pub(super) fn growth(&mut self, cwnd: u32, mss: u32, ack: &Ack) -> u32 {
        let mss = f64::from(mss);
        let window = f64::from(cwnd) / mss;
        let epoch = self.epoch.get_or_insert_with(|| {
            let below = self.w_max - window;
            let (k, origin) =
                if below > 0.0 && !self.timed_out { ((below / C).cbrt(), self.w_max) } else { (0.0, window) };
            self.timed_out = false;
            Epoch { start: ack.now, k, origin, w_est: window, seen: ack.now }
        });
        if !ack.limited {
            epoch.start += ack.now - epoch.seen;
            epoch.seen = ack.now;
            return 0;
        }
        epoch.seen = ack.now;
        let segments_acked = f64::from(ack.acked) / mss;
        let alpha = if epoch.w_est < self.cwnd_prior { ALPHA } else { 1.0 };
        epoch.w_est += alpha * segments_acked / window;

        let cubic = |t: Duration| epoch.origin + C * (t.as_secs_f64() - epoch.k).powi(3);
        let t = ack.now - epoch.start;
        let growth = if cubic(t) < epoch.w_est {
            epoch.w_est - window
        } else {
            let target = cubic(t + ack.srtt.unwrap_or_default()).clamp(window, 1.5 * window);
            (target - window) / window * segments_acked
        };
        let octets = growth.max(0.0) * mss + self.fraction;
        self.fraction = octets.fract();
        octets as u32
    }

    /// Returns the new threshold in octets (§4.6), and remembers the window that was too large (§4.7).
    pub(super) fn reduce(&mut self, cwnd: u32, mss: u32, flight: u32) -> u32 {
        let window = f64::from(cwnd) / f64::from(mss);
        self.w_max = if window < self.w_max { window * (1.0 + BETA) / 2.0 } else { window };
        self.cwnd_prior = window;
        self.epoch = None;
        self.fraction = 0.0;
        (f64::from(flight) * BETA) as u32
    }

    /// Excludes an idle period from the time of the cubic function (§4.2).
    fn skip(&mut self, idle: Duration) {
        if let Some(epoch) = &mut self.epoch {
            epoch.start += idle;
            epoch.seen += idle;
        }
    }
}

impl Algorithm for Cubic {
    fn on_ack(&mut self, window: &mut Window, ack: &Ack) {
        if let Some((acked, limited)) = window.slow_start(ack) {
            let growth = self.growth(window.cwnd, window.mss, &Ack { acked, limited, ..*ack });
            window.grow(growth);
        }
    }

    fn on_congestion(&mut self, window: &mut Window, cause: Cause, flight: u32) {
        let reduced = self.reduce(window.cwnd, window.mss, flight);
        window.set_threshold(reduced);
        self.timed_out = cause == Cause::Timeout;
    }

    fn on_idle(&mut self, _window: &mut Window, idle: Duration) {
        self.skip(idle);
    }
}
