//! Congestion control: how much may be in flight (RFC 5681, RFC 6582, RFC 6937, RFC 6928, RFC 3465, RFC 9438,
//! RFC 8257, RFC 9406).
//!
//! [`Controller`] holds what all algorithms share: the shape of every reduction and of recovery; [`Window`] slow start. An
//! [`Algorithm`] decides how the window grows, and what congestion makes of it.
//!
//! # A queue that is all ours
//! Between two processes of one machine no other traffic shares the path, so whatever waits on it is ours: without losses the
//! window would grow until the link's ring is full, and each small message would wait behind all of it. There
//! [`Controller::on_round_trip`] bounds what is in flight so that it waits for [`TcpConfig::queue_delay`] at most, in proportion
//! to what the last round trip took (as Swift does towards its target, Kumar et al., SIGCOMM 2020). On a path with other users
//! such a sender would starve, so networks have no such bound.
//!
//! [`TcpConfig::queue_delay`]: crate::TcpConfig::queue_delay
//!
//! # A window that is not used
//! Only while the window, and nothing else, limits what is sent does it grow: otherwise it says nothing about the path
//! (RFC 9438 §5.8). Of a window that was not used at all for a time, half is forgotten for each retransmission timeout
//! that passed, down to the initial window, and slow start has three quarters of it back soon (RFC 2861 §3.2, as Linux
//! does it): RFC 5681 §4.1 would forget everything after the first timeout, RFC 7661 nothing for five minutes, after
//! which a burst of an old window meets a path that nobody knows any more.

mod algorithm;
mod cubic;
mod dctcp;
mod hystart;
mod reno;
#[cfg(test)]
mod tests;
mod window;

use crate::time::Time;
use algorithm::AnyAlgorithm;
use core::time::Duration;

pub use algorithm::{Algorithm, Cause};
pub use window::Window;

/// Which algorithm a connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Congestion {
    /// Additive increase, halving (RFC 5681).
    Reno,
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// Reduces as much as routers mark (RFC 8257), for networks that mark early and whose hosts all do this. Asks for ECN.
    Dctcp,
}

/// Segments of the default initial window (RFC 6928).
pub const INITIAL_WINDOW: u32 = 10;

/// No window grows beyond this (the largest that window scaling can advertise, RFC 7323 §2.3).
const MAX_WINDOW: u32 = 1 << 30;

/// No bound on what waits is below so many octets, or two segments: about a train.
const LEAST_BOUND: u32 = 16 << 10;

/// What an ACK of new data outside of loss recovery tells the algorithm.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// The present.
    pub now: Time,
    /// Octets that this ACK newly acknowledges.
    pub acked: u32,
    /// The congestion window, and nothing else, ended the last transmission: a window that is not used says nothing
    /// about the path and does not grow (RFC 9438 §5.8).
    pub limited: bool,
    /// Smoothed round-trip time, if one was measured.
    pub srtt: Option<Duration>,
    /// The ACK echoes Congestion Experienced (RFC 3168 §6.1).
    pub marked: bool,
    /// Octets outstanding after it.
    pub flight: u32,
    /// Its round-trip time, if slow start is to know.
    pub rtt: Option<Duration>,
    /// The rate of the round trip that it ends, if it ends one.
    pub rate: Option<Rate>,
}

/// How fast the path has delivered, measured over a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Octets per second.
    pub octets: u64,
    /// For some of that time not the window but the program limited what was sent: the path may carry more.
    pub app_limited: bool,
}

/// What an ACK in fast recovery with SACK tells.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Octets that it newly says to have arrived (DeliveredData).
    pub delivered: u32,
    /// Octets in flight after it.
    pub pipe: u32,
    /// SND.UNA moved and no further losses were found.
    pub safe: bool,
}

/// Proportional rate reduction (RFC 6937 §2).
#[derive(Clone, Copy, Debug, Default)]
struct Proportional {
    /// Octets in flight when recovery began (RecoverFS).
    start: u32,
    /// Octets that arrived since (prr_delivered).
    delivered: u32,
    /// Octets sent since (prr_out).
    out: u32,
}

/// The congestion state of one connection. Windows are in octets.
#[derive(Clone, Debug)]
pub struct Controller {
    window: Window,
    proportional: Proportional,
    algorithm: AnyAlgorithm,
    /// What may be in flight so that little waits, in octets; above all windows where nothing bounds it.
    bound: u32,
    /// The least round-trip time of the path, in nanoseconds.
    base: u64,
}

impl Controller {
    /// A controller at the initial window of `initial_segments` segments (normally [`INITIAL_WINDOW`]) of `mss` octets.
    pub fn new(congestion: Congestion, mss: u32, initial_segments: u32) -> Self {
        Controller {
            window: Window::new(mss, initial_segments),
            proportional: Proportional::default(),
            algorithm: AnyAlgorithm::new(congestion),
            bound: MAX_WINDOW,
            base: u64::MAX,
        }
    }

    /// The handshake fixed the segment size: back to the initial window. To be called before any data is sent, and
    /// before [`on_syn_lost`](Self::on_syn_lost).
    pub fn set_mss(&mut self, mss: u32) {
        self.window.mss = mss.clamp(1, 1 << 16);
        self.window.cwnd = self.window.initial();
    }

    /// A SYN or SYN-ACK had to be repeated: begin with one segment (RFC 5681 §3.1).
    pub fn on_syn_lost(&mut self) {
        self.window.cwnd = self.window.mss;
    }

    /// The congestion window.
    pub fn cwnd(&self) -> u32 {
        self.window.cwnd
    }

    /// What may be in flight, where `pipe` octets are and the link takes up to `train` as one frame. Up to the congestion window
    /// whole trains go as long as anything may: pieces of them would cost both ends as much.
    #[inline]
    pub fn allowed(&self, pipe: u32, train: u32) -> u32 {
        if self.bound >= self.window.cwnd {
            return self.window.cwnd;
        }
        let more = self.bound.saturating_sub(pipe);
        let whole = if more == 0 || train == 0 { more } else { more.next_multiple_of(train) };
        pipe.saturating_add(whole).min(self.window.cwnd)
    }

    /// On a path whose queue is all ours: a round trip took `rtt`, with `flight` octets outstanding at its end. Bounds what is
    /// in flight to what would wait for `delay`: in proportion, and by a factor of two at most each time, because a peer that
    /// lost its core for a moment makes one round trip long. One segment more each time evens out what connections have.
    #[inline]
    pub fn on_round_trip(&mut self, rtt: Duration, flight: u32, delay: Duration) {
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let rtt = nanos(rtt).max(1);
        self.base = self.base.min(rtt);
        let least = LEAST_BOUND.max(2 * self.window.mss);
        let aim = self.base.saturating_add(nanos(delay));
        if flight < least {
            // So little makes no queue. It grows from the least bound.
            if rtt < aim {
                self.bound = self.bound.max(2 * least);
            }
            return;
        }
        let wanted = u128::from(flight) * u128::from(aim) / u128::from(rtt);
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX).clamp(flight / 2, flight.saturating_mul(2));
        self.bound = wanted.saturating_add(self.window.mss).clamp(least, MAX_WINDOW);
    }

    /// The slow start threshold.
    pub fn ssthresh(&self) -> u32 {
        self.window.ssthresh
    }

    /// Below the slow start threshold.
    pub fn in_slow_start(&self) -> bool {
        self.window.in_slow_start()
    }

    /// Nothing has said yet how much the path carries.
    pub fn in_first_slow_start(&self) -> bool {
        self.window.in_first_slow_start()
    }

    /// Octets per second at which segments are to leave, if the algorithm has a wish.
    pub fn pacing_rate(&self) -> Option<u64> {
        self.algorithm.pacing_rate(&self.window)
    }

    /// New data was ACKed, and the connection is not in fast recovery.
    #[inline]
    pub fn on_ack(&mut self, ack: &Ack) {
        if ack.acked > 0 {
            // It is not the window that limits.
            let limited = ack.limited && self.window.cwnd <= self.bound;
            self.algorithm.on_ack(&mut self.window, &Ack { limited, ..*ack });
        }
    }

    /// Loss was found by duplicate ACKs or SACK with `flight` octets outstanding (without what limited transmit
    /// sent): reduces both windows (RFC 5681 §3.2 step 2, RFC 6675 §5 (4.2), RFC 9438 §4.6).
    ///
    /// Without SACK, [`inflate`](Self::inflate) by three segments next; with it,
    /// [`begin_proportional`](Self::begin_proportional).
    pub fn on_enter_recovery(&mut self, flight: u32) {
        self.reduce(Cause::Loss, flight);
        self.window.cwnd = self.window.ssthresh;
    }

    /// Routers marked packets instead of dropping them: once per window both windows are reduced (RFC 3168 §6.1.2,
    /// RFC 8257 §3.3 step 9).
    pub fn on_marks(&mut self, flight: u32) {
        self.reduce(Cause::Marks, flight);
        self.window.cwnd = self.window.cwnd.min(self.window.ssthresh);
    }

    /// With SACK: recovery begins with `flight` octets that have not been told to have arrived before the ACK that began it.
    pub fn begin_proportional(&mut self, flight: u32) {
        self.proportional = Proportional { start: flight.max(1), delivered: 0, out: 0 };
    }

    /// With SACK: the window comes down to the threshold while what arrives lets as much in proportion go, and stays
    /// there without bursts (RFC 6937 §3, with the reduction bound of §3.1 chosen by `safe`).
    pub fn on_recovery_ack(&mut self, p: &Progress) {
        let prr = &mut self.proportional;
        prr.delivered = prr.delivered.saturating_add(p.delivered);
        let more = if p.pipe > self.window.ssthresh {
            let share = u64::from(prr.delivered) * u64::from(self.window.ssthresh);
            (share.div_ceil(u64::from(prr.start.max(1))) as u32).saturating_sub(prr.out)
        } else {
            let limit = prr.delivered.saturating_sub(prr.out);
            let limit = if p.safe { limit.max(p.delivered).saturating_add(self.window.mss) } else { limit };
            limit.min(self.window.ssthresh - p.pipe)
        };
        self.window.cwnd = p.pipe.saturating_add(more).clamp(self.window.mss, MAX_WINDOW);
    }

    /// With SACK: `octets` were sent in recovery.
    pub fn on_recovery_sent(&mut self, octets: u32) {
        self.proportional.out = self.proportional.out.saturating_add(octets);
    }

    /// With SACK: nothing was sent in this recovery yet. The first retransmission is always allowed (RFC 6937 §2).
    pub fn nothing_recovered(&self) -> bool {
        self.proportional.out == 0
    }

    /// The reduction was a mistake; `before` is what was before it (RFC 4015 §3.2). The window grows back in slow start from
    /// what is in flight, `pipe`, or the initial window if that is more, so that no burst follows.
    pub fn undo(&mut self, before: Controller, pipe: u32, acked: u32) {
        let (now, mss) = (self.window.cwnd, self.window.mss);
        *self = before;
        self.window.mss = mss;
        let before = self.window.cwnd;
        let initial = self.window.initial();
        let gentle = pipe.saturating_add(acked.min(initial)).max(initial);
        self.window.ssthresh = self.window.ssthresh.max(before);
        self.window.cwnd = before.min(gentle.max(now));
    }

    /// NewReno: a further duplicate ACK says that `octets` left the network (RFC 5681 §3.2 step 4).
    pub fn inflate(&mut self, octets: u32) {
        self.window.grow(octets);
    }

    /// NewReno: a partial ACK of `acked` octets deflates the window, less one segment for the retransmission that it
    /// causes (RFC 6582 §3.2 step 3).
    pub fn on_partial_ack(&mut self, acked: u32) {
        self.window.cwnd = self.window.cwnd.saturating_sub(acked).max(self.window.mss);
        if acked >= self.window.mss {
            self.window.grow(self.window.mss);
        }
    }

    /// Recovery is over and `flight` octets remain outstanding. `limit_burst` (NewReno) keeps the window near what is in
    /// flight, so that its opening sends no burst (RFC 6582 §3.2 step 3, option 1); a SACK sender's pipe does that already.
    pub fn on_recovery_exit(&mut self, flight: u32, limit_burst: bool) {
        self.window.cwnd = self.window.ssthresh;
        if limit_burst {
            self.window.cwnd =
                self.window.cwnd.min(flight.max(self.window.mss).saturating_add(self.window.mss));
        }
    }

    /// The retransmission timer expired with `flight` octets outstanding (RFC 5681 §3.1, RFC 9438 §4.8). The
    /// threshold stays as it is when the segment had been retransmitted by the timer before (`!first`).
    pub fn on_rto(&mut self, flight: u32, first: bool) {
        if first {
            self.reduce(Cause::Timeout, flight);
        }
        self.window.cwnd = self.window.mss;
        self.window.after_timeout = true;
    }

    /// F-RTO has found that the timeout was right (RFC 5682 §2.1 (3a)): the two new segments that it sent do not keep the
    /// first retransmission back.
    pub fn after_genuine_timeout(&mut self) {
        self.window.cwnd = self.window.cwnd.max(3 * self.window.mss);
    }

    /// Nothing was sent for `idle`, longer than `rto`: half of the window is forgotten for each (RFC 2861 §3.2). Call
    /// before sending again.
    pub fn on_idle(&mut self, idle: Duration, rto: Duration) {
        let restart = self.window.cwnd.min(self.window.initial());
        self.window.ssthresh = self.window.ssthresh.max(self.window.cwnd / 4 * 3);
        let times = idle.as_nanos() / rto.as_nanos().max(1);
        self.window.cwnd = (self.window.cwnd >> times.min(31)).max(restart);
        self.algorithm.on_idle(&mut self.window, idle);
    }

    fn reduce(&mut self, cause: Cause, flight: u32) {
        // Behind a hole at SND.UNA far more may be outstanding than was ever in the network at once.
        let flight = flight.min(self.window.cwnd);
        self.algorithm.on_congestion(&mut self.window, cause, flight);
    }
}
