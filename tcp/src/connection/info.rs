//! A connection's figures, and log events for changes of its state.

use super::{Connection, Flags, Recovery, State};
use crate::buffers::Buffers;
use crate::congestion::Rate;
use crate::ecn;
use crate::net::Net;
use core::time::Duration;

/// Figures of a connection, for people and tests. A name in parentheses is that of the same figure in Linux's
/// `tcp_info`. Amounts are octets, not segments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ConnInfo {
    /// State (`tcpi_state`).
    pub state: State,
    /// Loss recovery in progress (`tcpi_ca_state`).
    pub recovery: RecoveryState,
    /// Smoothed round-trip time; `None` before the first measurement (`tcpi_rtt`).
    pub srtt: Option<Duration>,
    /// Variation of the round-trip time (`tcpi_rttvar`).
    pub rttvar: Duration,
    /// Minimum round-trip time in the recent past; zero before the first measurement (`tcpi_min_rtt`).
    pub min_rtt: Duration,
    /// Retransmission timeout, with backoff (`tcpi_rto`).
    pub rto: Duration,
    /// Consecutive timeouts (`tcpi_retransmits`, `tcpi_backoff`).
    pub retries: u8,
    /// Keep-alive probes since the peer was last heard (`tcpi_probes`).
    pub probes: u8,
    /// Octets of data in a full segment (`tcpi_snd_mss`).
    pub snd_mss: u16,
    /// Congestion window (`tcpi_snd_cwnd`).
    pub cwnd: u32,
    /// Slow start threshold (`tcpi_snd_ssthresh`).
    pub ssthresh: u32,
    /// The peer's window (`tcpi_snd_wnd`).
    pub snd_wnd: u32,
    /// Our window (`tcpi_rcv_wnd`).
    pub rcv_wnd: u32,
    /// Octets received in order that our user has not taken.
    pub parked: u32,
    /// The peer's window scale and ours (`tcpi_snd_wscale`, `tcpi_rcv_wscale`).
    pub wscale: (u8, u8),
    /// Octets sent and not acknowledged (`tcpi_unacked`).
    pub in_flight: u32,
    /// Part of `in_flight` that the peer has SACKed (`tcpi_sacked`).
    pub sacked: u32,
    /// Part of `in_flight` that counts as lost and was not sent again yet (`tcpi_lost`).
    pub lost: u32,
    /// Octets queued and never sent (`tcpi_notsent_bytes`).
    pub not_sent: u32,
    /// Octets acknowledged by the peer since the connection began, our FIN included (`tcpi_bytes_acked`).
    pub delivered: u64,
    /// Octets received in order (`tcpi_bytes_received`).
    pub received: u64,
    /// Segments sent again (`tcpi_total_retrans`).
    pub retransmits: u64,
    /// Reordering was detected, and loss detection allows for it (`tcpi_reordering`, `tcpi_reord_seen`).
    pub reordering: bool,
    /// Octets per second at which segments leave; `None` without pacing, and before the first measurement of
    /// the round-trip time (`tcpi_pacing_rate`).
    pub pacing_rate: Option<u64>,
    /// Delivery rate of the last measured round trip; `None` before the first one (`tcpi_delivery_rate`).
    pub delivery_rate: Option<Rate>,
    /// SACK was negotiated (`TCPI_OPT_SACK`).
    pub sack: bool,
    /// Timestamps were negotiated (`TCPI_OPT_TIMESTAMPS`).
    pub timestamps: bool,
    /// ECN was negotiated (`TCPI_OPT_ECN`).
    pub ecn: bool,
}

/// Loss recovery states, as Linux distinguishes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryState {
    /// No segment is missing.
    #[default]
    Open,
    /// A segment is late.
    Disorder,
    /// Fast recovery.
    Recovery,
    /// Recovery after a timeout, or after a report that the path carries only smaller packets.
    Loss,
}

impl<B: Buffers> Connection<B> {
    pub fn info(&self, paced: bool) -> ConnInfo {
        let c = &self.cold;
        ConnInfo {
            state: self.state,
            recovery: match self.recovery {
                Recovery::None if c.scoreboard.is_disturbed() || self.dup_acks > 0 => RecoveryState::Disorder,
                Recovery::None => RecoveryState::Open,
                Recovery::Sack | Recovery::NewReno => RecoveryState::Recovery,
                Recovery::Timeout => RecoveryState::Loss,
            },
            srtt: c.rtt.srtt(),
            rttvar: c.rtt.rttvar(),
            min_rtt: c.rtt.min_rtt(),
            rto: c.rtt.rto(),
            retries: c.retries,
            probes: self.probes,
            snd_mss: self.mss,
            cwnd: c.congestion.cwnd(),
            ssthresh: c.congestion.ssthresh(),
            snd_wnd: self.snd_wnd,
            rcv_wnd: self.rcv_wnd,
            parked: c.parked.octets(),
            wscale: (self.snd_wscale, self.rcv_wscale),
            in_flight: self.outstanding(),
            sacked: c.scoreboard.sacked(),
            lost: c.scoreboard.lost(),
            not_sent: c.queue.end().since(self.snd_nxt),
            delivered: c.delivered,
            received: self.received,
            retransmits: c.retransmits,
            reordering: c.rack.reordering,
            delivery_rate: c.rate,
            pacing_rate: if paced { self.pacing_rate() } else { None },
            sack: self.flags.has(Flags::SACK),
            timestamps: self.flags.has(Flags::TIMESTAMPS),
            ecn: self.ect == ecn::ECT0,
        }
    }

    /// Logs that the connection is gone, or that only its addresses remain in TIME-WAIT.
    pub fn leave(&self, net: &Net) {
        tracing::debug!(
            target: "urnic_tcp::state",
            local_port = self.key.local_port(),
            remote = %net.remote(self.key),
            from = ?self.state,
            to = "gone",
        );
    }

    /// Changes the state and logs the change.
    pub(super) fn enter(&mut self, state: State, net: &Net) {
        tracing::debug!(
            target: "urnic_tcp::state",
            local_port = self.key.local_port(),
            remote = %net.remote(self.key),
            from = ?self.state,
            to = ?state,
        );
        self.state = state;
    }
}
