//! Path MTU of a connection: reported by routers (RFC 1191, RFC 8201), or found by probing where no router reports it
//! (RFC 4821 §7.7).
//!
//! If large segments are lost repeatedly, the connection sends smaller ones. Ten minutes after the last reduction, it
//! tries segments of the full size again. If the first of these is lost, one timeout ends the trial.

use super::repair::Frto;
use super::{Connection, Cx, Recovery, State, TIMESTAMPS_LEN};
use crate::buffers::Buffers;
use crate::connection::Flags;
use crate::ipv6::MIN_MTU;
use crate::net::ip_tcp;
use crate::pmtu::LIFETIME;
use crate::seq::Seq;
use crate::time::Time;

/// Packet sizes to fall back to, in octets, if no report tells one: Ethernet's, the minimum of IPv6, the one that RFC
/// 4821 §7.2 proposes, and the one that every IPv4 host takes.
const STEPS: [u16; 4] = [1500, MIN_MTU, 1024, 576];
/// Consecutive timeouts after which a path is assumed to drop large packets silently.
const TIMEOUTS: u8 = 3;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PathMtu {
    /// Segment size that both ends and our link allow.
    most: u16,
    /// Time when that size is tried again; `Time::MAX`: it is in use.
    raise_at: Time,
    /// Trial of a larger size: the sequence number from which segments are larger, and the size to return to. `None`:
    /// no trial.
    trial: Option<(Seq, u16)>,
}

impl PathMtu {
    pub const UNKNOWN: PathMtu = PathMtu { most: 0, raise_at: Time::MAX, trial: None };

    /// Starts with the segment size `most` that was agreed on, and the size `mss` to begin with.
    pub fn begin(most: u16, mss: u16, now: Time) -> Self {
        let raise_at = if mss < most { now + LIFETIME } else { Time::MAX };
        PathMtu { most, raise_at, trial: None }
    }

    /// Notes that everything before `una` has arrived. If this includes octets of a trial, the trial has succeeded and
    /// is over.
    pub fn follow(&mut self, una: Seq) {
        self.trial = self.trial.filter(|(from, _)| una.le(*from));
    }

    /// Returns whether it is time to try larger segments.
    #[inline]
    pub fn is_due(&self, now: Time) -> bool {
        self.raise_at <= now
    }
}

/// Returns the MTU to assume after a report without an MTU about a packet of `length` octets, of which `header` are
/// IP's (RFC 1191 §5). `known`: the path MTU so far. Routers that derive from 4.2BSD count the header twice. If
/// `length` is not less than the path MTU, such a router may have reported it, so one header is subtracted. The packet
/// may also have left before the path MTU was lowered.
pub(crate) fn guess_mtu(length: u16, header: u16, known: u16) -> u16 {
    let length = if length < known { length } else { length.saturating_sub(header) };
    STEPS.into_iter().find(|step| *step < length).unwrap_or(576)
}

impl<B: Buffers> Connection<B> {
    /// Returns the smallest path MTU that a report may set, in octets.
    fn least_mtu(&self) -> u16 {
        if self.key.is_v6() { MIN_MTU } else { 576 }
    }

    /// Returns the segment size for packets of `mtu` octets.
    fn mss_of(&self, mtu: u16) -> u16 {
        let options = if self.flags.has(Flags::TIMESTAMPS) { TIMESTAMPS_LEN } else { 0 };
        mtu - ip_tcp(self.key) - options
    }

    /// Lowers the path MTU to `mtu` octets, but not below the minimum (576 octets for IPv4, 1280 for IPv6).
    pub fn lower_mtu(&mut self, mtu: u16, now: Time) {
        let mss = self.mss_of(mtu.max(self.least_mtu()));
        if mss < self.mss && !matches!(self.state, State::SynSent | State::SynReceived) {
            let before = core::mem::replace(&mut self.mss, mss);
            self.shrink(mss, now);
            self.resend_larger(u32::from(before), now);
        }
    }

    /// Resends all outstanding segments that are larger than the new size. The path dropped them for their size,
    /// which is no sign of congestion. So they are sent again at once, as far as the window allows, and the window is
    /// not reduced (RFC 8201 §5.4; RFC 1191 §6.4 would wait for the ACK of the first one). `before`: the size in
    /// which they were sent.
    fn resend_larger(&mut self, before: u32, now: Time) {
        let (mut seq, end) = (self.snd_una, self.data_sent());
        let mut from = None;
        while seq.lt(end) {
            let len = self.cold.queue.segment_len(seq, before, 0).min(end.since(seq));
            if len > u32::from(self.mss) {
                from = from.or(Some(seq));
            } else if let Some(from) = from.take() {
                self.cold.scoreboard.lose(from..seq);
            }
            if len == 0 {
                break;
            }
            seq += len;
        }
        if let Some(from) = from {
            // Up to SND.NXT, because our FIN may have gone with the last of these segments.
            self.cold.scoreboard.lose(from..self.snd_nxt);
        }
        if self.cold.scoreboard.lost() == 0 {
            return;
        }
        let c = &mut self.cold;
        c.frto = Frto::Off;
        if matches!(self.recovery, Recovery::None | Recovery::NewReno) {
            if self.recovery == Recovery::NewReno {
                c.congestion.on_recovery_exit(self.snd_nxt - self.snd_una, false);
            }
            c.undo = None;
            c.probe = None;
            c.resend_first = false;
            c.recover = self.snd_nxt;
            self.dup_acks = 0;
            self.recovery = Recovery::Timeout;
        }
        self.restart_timer(now);
        self.flags.set(Flags::OUTPUT);
    }

    fn shrink(&mut self, mss: u16, now: Time) {
        self.mss = mss;
        self.cold.path_mtu.raise_at = now + LIFETIME;
        self.cold.path_mtu.trial = None;
    }

    /// Tries larger segments again, up to the size that the path to the peer is known to carry. If this is less than
    /// the full size, because another connection has met the limit meanwhile, the full size is tried later.
    #[cold]
    pub(super) fn try_larger<T>(&mut self, cx: &Cx<'_, T>) {
        if self.recovery != Recovery::None {
            return;
        }
        let known = self.mss_of(cx.net.path_mtu(self.key, cx.now));
        let p = &mut self.cold.path_mtu;
        let mss = known.min(p.most).max(self.mss);
        p.raise_at = if mss < p.most { cx.now + LIFETIME } else { Time::MAX };
        if mss > self.mss {
            p.trial = Some((self.snd_nxt, self.mss));
            self.mss = mss;
        }
    }

    /// Handles an expired retransmission timer: the path may drop large packets without any report.
    pub(super) fn suspect_black_hole<T>(&mut self, cx: &mut Cx<'_, T>) {
        let (una, mss) = (self.snd_una, u32::from(self.mss));
        let first = self.cold.queue.segment_len(una, mss, 0);
        if let Some((from, mss)) = self.cold.path_mtu.trial.take()
            && self.snd_una.le(from)
        {
            self.shrink(mss, cx.now);
            cx.net.counters.path_mtu_black_holes += 1;
            return;
        }
        if self.cold.retries < TIMEOUTS {
            return;
        }
        let least = self.least_mtu();
        let smaller = STEPS.iter().filter(|step| **step >= least).find(|step| {
            let mss = self.mss_of(**step);
            mss < self.mss && u32::from(mss) < first
        });
        if let Some(&mtu) = smaller {
            self.shrink(self.mss_of(mtu), cx.now);
            cx.net.counters.path_mtu_black_holes += 1;
            cx.net.path_shrank(self.key, mtu, cx.now);
        }
    }
}
