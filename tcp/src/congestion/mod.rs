//! Congestion control: limits the octets in flight (RFC 5681, RFC 6582, RFC 6937, RFC 6928, RFC 3465, RFC 9438, RFC
//! 8257, RFC 9406).
//!
//! [`Controller`] implements reductions and recovery, which all algorithms share. [`Window`] implements slow start.
//! An [`Algorithm`] decides how the window grows and to which size congestion reduces it.
//!
//! # A path without other traffic
//! Between two processes of one machine, only our own octets wait on the path. Nothing is lost there, so the
//! window would grow until the link's ring is full, and each small message would wait behind a full ring.
//! There, [`Controller::on_round_trip`] bounds the octets in flight, so that they wait for
//! [`TcpConfig::queue_delay`]. The bound is the octets in flight times the ratio of the wanted round-trip time
//! to the last one (Swift approaches its target in a similar way). On networks there is no such bound, because
//! other senders would starve a sender that keeps queues short.
//!
//! [`TcpConfig::queue_delay`]: crate::TcpConfig::queue_delay
//!
//! # A window that is not used
//! The window grows only while nothing else limits sending, because an unused window says nothing about the path (RFC
//! 9438 §5.8). If nothing was sent for some time, the window is halved for each retransmission timeout that has
//! passed, down to the initial window. Slow start then quickly restores three quarters of the old window. This is RFC
//! 2861 §3.2 as Linux does it. RFC 5681 §4.1 would forget everything after the first timeout. RFC 7661 would forget
//! nothing for five minutes, and a burst of the old window could then meet a path that has changed.

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

/// Choice of the congestion control algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Congestion {
    /// Additive increase and halving (RFC 5681).
    Reno,
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// DCTCP: reduces the window in proportion to the marks of routers (RFC 8257). It suits networks whose routers
    /// mark early and whose hosts all use DCTCP. Our SYNs then offer ECN, unless it is off.
    Dctcp,
}

/// Segments of the default initial window (RFC 6928).
pub const INITIAL_WINDOW: u32 = 10;

/// Upper limit of every window, in octets: the largest that window scaling can advertise (RFC 7323 §2.3).
const MAX_WINDOW: u32 = 1 << 30;

/// Lower limit of the bound of the octets in flight; two segments if these are more. This is about one train of
/// segments. A connection that has less in flight may send a whole train ([`Controller::allowed`]). With a higher
/// limit, several connections together would fill a longer queue than wanted. A lone connection gets so low only if its
/// round trips last much longer than wanted, because its peer is slow.
const LEAST_BOUND: u32 = 16 << 10;

/// The facts about an ACK of new data, outside of loss recovery, that an algorithm needs.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// The present time.
    pub now: Time,
    /// Octets that the ACK newly acknowledges.
    pub acked: u32,
    /// The last transmission ended only because of the congestion window. If not, the window does not grow, because
    /// an unused window says nothing about the path (RFC 9438 §5.8).
    pub limited: bool,
    /// Smoothed round-trip time; `None` before the first measurement.
    pub srtt: Option<Duration>,
    /// The ACK echoes Congestion Experienced (RFC 3168 §6.1).
    pub marked: bool,
    /// Octets outstanding after the ACK.
    pub flight: u32,
    /// Round-trip time of the ACK; `None` if slow start does not need it, or if the newest segment that it
    /// acknowledges was sent again.
    pub rtt: Option<Duration>,
    /// Delivery rate of the round trip that the ACK ends; `None` if it ends none, or if this rate is not known.
    pub rate: Option<Rate>,
}

/// Delivery rate of the path, measured over a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Octets per second.
    pub octets: u64,
    /// For part of the round trip, the congestion window did not limit sending. The path may carry more.
    pub app_limited: bool,
}

/// The facts about an ACK in fast recovery with SACK.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Octets that the ACK newly reports as arrived (DeliveredData).
    pub delivered: u32,
    /// Octets in flight after the ACK.
    pub pipe: u32,
    /// SND.UNA moved, and no further losses were found.
    pub safe: bool,
}

/// Proportional rate reduction (RFC 6937 §3).
#[derive(Clone, Copy, Debug, Default)]
struct Proportional {
    /// Octets in flight when recovery began (RecoverFS).
    start: u32,
    /// Octets that have arrived since then (prr_delivered).
    delivered: u32,
    /// Octets sent since then (prr_out).
    out: u32,
}

/// The congestion state of one connection. Windows are in octets. Everything except the algorithm's state fills one
/// cache line.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Controller {
    window: Window,
    /// Most octets in flight, so that few wait in the path's queue. `MAX_WINDOW`: no bound.
    bound: u32,
    proportional: Proportional,
    /// Least round-trip time of the path, in nanoseconds. `u64::MAX`: none was measured.
    base: u64,
    algorithm: AnyAlgorithm,
}

impl Controller {
    /// Makes a controller with an initial window of `initial_segments` segments (normally [`INITIAL_WINDOW`]) of
    /// `mss` octets.
    pub fn new(congestion: Congestion, mss: u32, initial_segments: u32) -> Self {
        Controller {
            window: Window::new(mss, initial_segments),
            proportional: Proportional::default(),
            algorithm: AnyAlgorithm::new(congestion),
            bound: MAX_WINDOW,
            base: u64::MAX,
        }
    }

    /// Sets the segment size that the handshake negotiated, and returns to the initial window. Call this before any
    /// data is sent, and before [`on_syn_lost`](Self::on_syn_lost).
    pub fn set_mss(&mut self, mss: u32) {
        self.window.mss = mss.clamp(1, 1 << 16);
        self.window.cwnd = self.window.initial();
    }

    /// Starts with one segment, because a SYN or SYN-ACK had to be repeated (RFC 5681 §3.1).
    pub fn on_syn_lost(&mut self) {
        self.window.cwnd = self.window.mss;
    }

    /// Returns the congestion window, in octets.
    pub fn cwnd(&self) -> u32 {
        self.window.cwnd
    }

    /// Returns how many octets may be in flight. `pipe` octets are in flight now; the link takes at most
    /// `train` octets as one frame. The last train may exceed the bound, because a part of a train costs both
    /// ends as much as a whole train. It may not exceed the congestion window.
    #[inline]
    pub fn allowed(&self, pipe: u32, train: u32) -> u32 {
        if self.bound >= self.window.cwnd {
            return self.window.cwnd;
        }
        let more = self.bound.saturating_sub(pipe);
        let whole = if more == 0 || train == 0 { more } else { more.next_multiple_of(train) };
        pipe.saturating_add(whole).min(self.window.cwnd)
    }

    /// Updates the bound of the octets in flight after a round trip of `rtt`, with `flight` octets outstanding at its
    /// end, on a path that no other traffic uses. The bound aims at a wait of `delay` on the path. It is at least
    /// half and at most twice `flight`, because a peer that lost its core for a moment makes one round trip long. One
    /// segment is added to it each time, which evens out the shares of connections.
    #[inline]
    pub fn on_round_trip(&mut self, rtt: Duration, flight: u32, delay: Duration) {
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let rtt = nanos(rtt).max(1);
        self.base = self.base.min(rtt);
        let least = LEAST_BOUND.max(2 * self.window.mss);
        let aim = self.base.saturating_add(nanos(delay));
        if flight < least {
            // These few octets cause no queue. A long round trip then has another cause and does not lower the bound.
            if rtt < aim {
                self.bound = self.bound.max(2 * least);
            }
            return;
        }
        let wanted = u64::from(flight).saturating_mul(aim) / rtt;
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX).clamp(flight / 2, flight.saturating_mul(2));
        self.bound = wanted.saturating_add(self.window.mss).clamp(least, MAX_WINDOW);
    }

    /// Returns the slow start threshold, in octets.
    pub fn ssthresh(&self) -> u32 {
        self.window.ssthresh
    }

    /// Returns whether the window is below the slow start threshold.
    pub fn in_slow_start(&self) -> bool {
        self.window.in_slow_start()
    }

    /// Returns whether this is the first slow start: no loss and no mark has shown yet how much the path carries.
    pub fn in_first_slow_start(&self) -> bool {
        self.window.in_first_slow_start()
    }

    /// Returns the pacing rate that the algorithm asks for, in octets per second; `None` if it asks for none.
    pub fn pacing_rate(&self) -> Option<u64> {
        self.algorithm.pacing_rate(&self.window)
    }

    /// Returns whether an ACK has no effect unless the congestion window [limits](Ack::limited) sending. This is so in
    /// slow start, except that DCTCP counts all octets.
    #[inline]
    pub fn waits_for_limit(&self) -> bool {
        self.window.in_slow_start() && !matches!(self.algorithm, AnyAlgorithm::Dctcp(_))
    }

    /// Handles an ACK of new data outside of fast recovery.
    #[inline]
    pub fn on_ack(&mut self, ack: &Ack) {
        if ack.acked > 0 {
            // If the bound is smaller than the window, the bound limits sending and the window does not grow.
            let limited = ack.limited && self.window.cwnd <= self.bound;
            self.algorithm.on_ack(&mut self.window, &Ack { limited, ..*ack });
        }
    }

    /// Handles a loss that duplicate ACKs or SACK have shown, with `flight` octets outstanding. If more than the window
    /// is outstanding, only the window counts, because limited transmit may have sent octets beyond it. Sets the
    /// threshold, and the window to it (RFC 5681 §3.2 step 2, RFC 6675 §5 (4.2), RFC 9438 §4.6).
    ///
    /// Without SACK, call [`inflate`](Self::inflate) by three segments next; with SACK, call
    /// [`begin_proportional`](Self::begin_proportional).
    pub fn on_enter_recovery(&mut self, flight: u32) {
        self.reduce(Cause::Loss, flight);
        self.window.cwnd = self.window.ssthresh;
    }

    /// Handles marks that routers set instead of dropping packets. Sets the threshold, and lowers the window to it.
    /// Call once per window of data (RFC 3168 §6.1.2, RFC 8257 §3.3 step 9).
    pub fn on_marks(&mut self, flight: u32) {
        self.reduce(Cause::Marks, flight);
        self.window.cwnd = self.window.cwnd.min(self.window.ssthresh);
    }

    /// Starts recovery with SACK. `flight`: octets that had not been reported as arrived before the ACK that started
    /// recovery.
    pub fn begin_proportional(&mut self, flight: u32) {
        self.proportional = Proportional { start: flight.max(1), delivered: 0, out: 0 };
    }

    /// Handles an ACK in recovery with SACK. The window comes down to the threshold in proportion to the octets
    /// that arrive, and stays there without bursts (RFC 6937 §3: if [`Progress::safe`] is set, the slow start reduction
    /// bound applies, else the conservative one).
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

    /// Counts `octets` that were sent in recovery with SACK.
    pub fn on_recovery_sent(&mut self, octets: u32) {
        self.proportional.out = self.proportional.out.saturating_add(octets);
    }

    /// Returns whether nothing has been sent yet in this recovery with SACK. The first retransmission is always
    /// allowed (RFC 6675 §5 (4.3)).
    pub fn nothing_recovered(&self) -> bool {
        self.proportional.out == 0
    }

    /// Undoes a reduction that was a mistake. `before` is the state before the reduction (RFC 4015 §3.2). The window
    /// grows back in slow start, so that no burst follows. It starts from the largest of three: the octets in flight
    /// (`pipe`) plus those just acknowledged (`acked`, at most an initial window); the initial window; the present
    /// window. It never starts above the window in `before`.
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

    /// Inflates the window in NewReno by `octets` that left the network, as a further duplicate ACK shows (RFC
    /// 5681 §3.2 step 4).
    pub fn inflate(&mut self, octets: u32) {
        self.window.grow(octets);
    }

    /// Deflates the window in NewReno by the `acked` octets of a partial ACK. If they are at least a segment,
    /// adds back one segment, for the retransmission that the ACK causes (RFC 6582 §3.2 step 3).
    pub fn on_partial_ack(&mut self, acked: u32) {
        self.window.cwnd = self.window.cwnd.saturating_sub(acked).max(self.window.mss);
        if acked >= self.window.mss {
            self.window.grow(self.window.mss);
        }
    }

    /// Ends recovery; `flight` octets remain outstanding. `limit_burst` (NewReno) keeps the window near the octets in
    /// flight, so that its opening causes no burst (RFC 6582 §3.2 step 3, option 1). A SACK sender needs no such
    /// limit.
    pub fn on_recovery_exit(&mut self, flight: u32, limit_burst: bool) {
        self.window.cwnd = self.window.ssthresh;
        if limit_burst {
            self.window.cwnd =
                self.window.cwnd.min(flight.max(self.window.mss).saturating_add(self.window.mss));
        }
    }

    /// Handles the retransmission timeout with `flight` octets outstanding (RFC 5681 §3.1, RFC 9438 §4.8). The
    /// threshold stays if the timer had already retransmitted the segment before (`!first`).
    pub fn on_rto(&mut self, flight: u32, first: bool) {
        if first {
            self.reduce(Cause::Timeout, flight);
        }
        self.window.cwnd = self.window.mss;
        self.window.after_timeout = true;
    }

    /// Widens the window after F-RTO has found that the timeout was not spurious (RFC 5682 §2.1 (3a)), so that the
    /// two new segments that F-RTO sent do not delay the first retransmission.
    pub fn after_genuine_timeout(&mut self) {
        self.window.cwnd = self.window.cwnd.max(3 * self.window.mss);
    }

    /// Halves the window for each `rto` in `idle`, during which nothing was sent (RFC 2861 §3.2). Call before sending
    /// again, if `idle` exceeds `rto`.
    pub fn on_idle(&mut self, idle: Duration, rto: Duration) {
        let restart = self.window.cwnd.min(self.window.initial());
        self.window.ssthresh = self.window.ssthresh.max(self.window.cwnd / 4 * 3);
        let times = idle.as_nanos() / rto.as_nanos().max(1);
        self.window.cwnd = (self.window.cwnd >> times.min(31)).max(restart);
        self.algorithm.on_idle(&mut self.window, idle);
    }

    fn reduce(&mut self, cause: Cause, flight: u32) {
        // With a gap at SND.UNA, far more octets may be outstanding than were ever in the network at once.
        let flight = flight.min(self.window.cwnd);
        self.algorithm.on_congestion(&mut self.window, cause, flight);
    }
}
