//! Congestion control: how much may be in flight (RFC 5681, RFC 6582, RFC 6937, RFC 6928, RFC 3465, RFC 9438,
//! RFC 8257, RFC 9406).
//!
//! [`Controller`] holds what all algorithms share: the window, slow start, and the shape of every reduction. An
//! algorithm decides two things: by how much a loss or a mark reduces, and how congestion avoidance grows.
//!
//! # A window that is not used
//! Only while the window, and nothing else, limits what is sent does it grow: otherwise it says nothing about the path
//! (RFC 9438 §5.8). Of a window that was not used at all for a time, half is forgotten for each retransmission timeout
//! that passed, down to the initial window, and slow start has three quarters of it back soon (RFC 2861 §3.2, as Linux
//! does it): RFC 5681 §4.1 would forget everything after the first timeout, RFC 7661 nothing for five minutes, after
//! which a burst of an old window meets a path that nobody knows any more.

mod cubic;
mod dctcp;
mod hystart;
mod reno;
#[cfg(test)]
mod tests;

use crate::time::Time;
use core::time::Duration;
use cubic::Cubic;
use dctcp::Dctcp;
use hystart::HyStart;
use reno::Reno;

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

#[derive(Clone, Debug)]
enum Algorithm {
    Reno(Reno),
    Cubic(Cubic),
    Dctcp(Dctcp),
}

/// The congestion state of one connection. Windows are in octets.
#[derive(Clone, Debug)]
pub struct Controller {
    cwnd: u32,
    ssthresh: u32,
    mss: u32,
    initial_segments: u32,
    /// Slow start after a timeout counts at most one segment per ACK (RFC 3465 §2.3).
    after_timeout: bool,
    hystart: HyStart,
    proportional: Proportional,
    algorithm: Algorithm,
}

impl Controller {
    /// A controller at the initial window of `initial_segments` segments (normally [`INITIAL_WINDOW`]) of `mss` octets.
    pub fn new(congestion: Congestion, mss: u32, initial_segments: u32) -> Self {
        let mut c = Controller {
            cwnd: 0,
            ssthresh: MAX_WINDOW,
            mss: mss.clamp(1, 1 << 16),
            initial_segments: initial_segments.max(1),
            after_timeout: false,
            hystart: HyStart::new(),
            proportional: Proportional::default(),
            algorithm: match congestion {
                Congestion::Reno => Algorithm::Reno(Reno::default()),
                Congestion::Cubic => Algorithm::Cubic(Cubic::default()),
                Congestion::Dctcp => Algorithm::Dctcp(Dctcp::default()),
            },
        };
        c.cwnd = c.initial_window();
        c
    }

    /// min(N·MSS, max(2·MSS, N·1460)) (RFC 6928 §2, where N is 10).
    fn initial_window(&self) -> u32 {
        let n = self.initial_segments;
        n.saturating_mul(self.mss).min((2 * self.mss).max(n.saturating_mul(1460))).min(MAX_WINDOW)
    }

    /// The handshake fixed the segment size: back to the initial window. To be called before any data is sent, and
    /// before [`on_syn_lost`](Self::on_syn_lost).
    pub fn set_mss(&mut self, mss: u32) {
        self.mss = mss.clamp(1, 1 << 16);
        self.cwnd = self.initial_window();
    }

    /// A SYN or SYN-ACK had to be repeated: begin with one segment (RFC 5681 §3.1).
    pub fn on_syn_lost(&mut self) {
        self.cwnd = self.mss;
    }

    /// The congestion window.
    pub fn cwnd(&self) -> u32 {
        self.cwnd
    }

    /// The slow start threshold.
    pub fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    /// Below the slow start threshold.
    pub fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Nothing has said yet how much the path carries.
    pub fn in_first_slow_start(&self) -> bool {
        self.ssthresh == MAX_WINDOW && self.in_slow_start()
    }

    /// New data was ACKed, and the connection is not in fast recovery.
    pub fn on_ack(&mut self, ack: &Ack) {
        if ack.acked == 0 {
            return;
        }
        if let Algorithm::Dctcp(a) = &mut self.algorithm {
            a.count(ack.acked, ack.marked, ack.flight);
        }
        // Nothing grows because of an ACK that tells of congestion (RFC 3168 §6.1.2).
        let limited = ack.limited && !ack.marked;
        let mut acked = ack.acked;
        if self.in_slow_start() {
            if !limited {
                return;
            }
            // One ACK stands for a whole burst, so all that it acknowledges counts, as in a sender that paces (RFC
            // 9406 §4.2); only after a timeout the limit of RFC 3465 §2.3 holds.
            let limit = if self.after_timeout { self.mss } else { u32::MAX };
            let growth = acked.min(limit).min(self.ssthresh - self.cwnd);
            if self.in_first_slow_start() {
                let (growth, over) = self.hystart.on_ack(ack, growth);
                self.grow(growth);
                if over {
                    self.ssthresh = self.cwnd;
                }
                return;
            }
            self.grow(growth);
            if self.in_slow_start() {
                return;
            }
            self.after_timeout = false;
            acked = acked.saturating_sub(growth);
        }
        let growth = match &mut self.algorithm {
            Algorithm::Reno(a) => a.growth(self.cwnd, self.mss, if limited { acked } else { 0 }),
            Algorithm::Cubic(a) => a.growth(self.cwnd, self.mss, &Ack { acked, limited, ..*ack }),
            Algorithm::Dctcp(a) => a.growth(self.cwnd, self.mss, if limited { acked } else { 0 }),
        };
        self.grow(growth);
    }

    fn grow(&mut self, by: u32) {
        self.cwnd = self.cwnd.saturating_add(by).min(MAX_WINDOW);
    }

    /// Loss was found by duplicate ACKs or SACK with `flight` octets outstanding (without what limited transmit
    /// sent): reduces both windows (RFC 5681 §3.2 step 2, RFC 6675 §5 (4.2), RFC 9438 §4.6).
    ///
    /// Without SACK, [`inflate`](Self::inflate) by three segments next; with it,
    /// [`begin_proportional`](Self::begin_proportional).
    pub fn on_enter_recovery(&mut self, flight: u32) {
        self.reduce(flight);
        self.cwnd = self.ssthresh;
    }

    /// Routers marked packets instead of dropping them: once per window both windows are reduced (RFC 3168 §6.1.2,
    /// RFC 8257 §3.3 step 9).
    pub fn on_marks(&mut self, flight: u32) {
        match &mut self.algorithm {
            Algorithm::Dctcp(a) => {
                let reduced = a.reduce_by_marks(self.cwnd);
                self.ssthresh = reduced.clamp(2 * self.mss, MAX_WINDOW);
            }
            _ => self.reduce(flight),
        }
        self.cwnd = self.cwnd.min(self.ssthresh);
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
        let more = if p.pipe > self.ssthresh {
            let share = u64::from(prr.delivered) * u64::from(self.ssthresh);
            (share.div_ceil(u64::from(prr.start.max(1))) as u32).saturating_sub(prr.out)
        } else {
            let limit = prr.delivered.saturating_sub(prr.out);
            let limit = if p.safe { limit.max(p.delivered).saturating_add(self.mss) } else { limit };
            limit.min(self.ssthresh - p.pipe)
        };
        self.cwnd = p.pipe.saturating_add(more).clamp(self.mss, MAX_WINDOW);
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
        let (now, mss) = (self.cwnd, self.mss);
        *self = before;
        self.mss = mss;
        let before = self.cwnd;
        let initial = self.initial_window();
        let gentle = pipe.saturating_add(acked.min(initial)).max(initial);
        self.ssthresh = self.ssthresh.max(before);
        self.cwnd = before.min(gentle.max(now));
    }

    /// NewReno: a further duplicate ACK says that `octets` left the network (RFC 5681 §3.2 step 4).
    pub fn inflate(&mut self, octets: u32) {
        self.grow(octets);
    }

    /// NewReno: a partial ACK of `acked` octets deflates the window, less one segment for the retransmission that it
    /// causes (RFC 6582 §3.2 step 3).
    pub fn on_partial_ack(&mut self, acked: u32) {
        self.cwnd = self.cwnd.saturating_sub(acked).max(self.mss);
        if acked >= self.mss {
            self.grow(self.mss);
        }
    }

    /// Recovery is over and `flight` octets remain outstanding. `limit_burst` (NewReno) keeps the window near what is in
    /// flight, so that its opening sends no burst (RFC 6582 §3.2 step 3, option 1); a SACK sender's pipe does that already.
    pub fn on_recovery_exit(&mut self, flight: u32, limit_burst: bool) {
        self.cwnd = self.ssthresh;
        if limit_burst {
            self.cwnd = self.cwnd.min(flight.max(self.mss).saturating_add(self.mss));
        }
    }

    /// The retransmission timer expired with `flight` octets outstanding (RFC 5681 §3.1, RFC 9438 §4.8). The
    /// threshold stays as it is when the segment had been retransmitted by the timer before (`!first`).
    pub fn on_rto(&mut self, flight: u32, first: bool) {
        if first {
            self.reduce(flight);
            if let Algorithm::Cubic(a) = &mut self.algorithm {
                a.on_timeout();
            }
        }
        self.cwnd = self.mss;
        self.after_timeout = true;
    }

    /// F-RTO has found that the timeout was right (RFC 5682 §2.1 (3a)): the two new segments that it sent do not keep the
    /// first retransmission back.
    pub fn after_genuine_timeout(&mut self) {
        self.cwnd = self.cwnd.max(3 * self.mss);
    }

    /// Nothing was sent for `idle`, longer than `rto`: half of the window is forgotten for each (RFC 2861 §3.2). Call
    /// before sending again.
    pub fn on_idle(&mut self, idle: Duration, rto: Duration) {
        let restart = self.cwnd.min(self.initial_window());
        self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
        let times = idle.as_nanos() / rto.as_nanos().max(1);
        self.cwnd = (self.cwnd >> times.min(31)).max(restart);
        if let Algorithm::Cubic(a) = &mut self.algorithm {
            a.skip(idle);
        }
    }

    fn reduce(&mut self, flight: u32) {
        // Behind a hole at SND.UNA far more may be outstanding than was ever in the network at once.
        let flight = flight.min(self.cwnd);
        let reduced = match &mut self.algorithm {
            Algorithm::Reno(a) => a.reduce(flight),
            Algorithm::Cubic(a) => a.reduce(self.cwnd, self.mss, flight),
            Algorithm::Dctcp(a) => a.reduce(flight),
        };
        self.ssthresh = reduced.clamp(2 * self.mss, MAX_WINDOW);
    }
}
