//! Reads the kernel's figures of a TCP connection.

use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use urnic_tcp::{ConnInfo, Rate, RecoveryState, State};

use crate::shared::convert::NotConvertible;

/// `struct tcp_info` of linux/tcp.h, as of Linux 6.2. An older kernel does not fill the last members, which then
/// remain 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TcpInfo {
    pub(super) state: u8,
    ca_state: u8,
    retransmits: u8,
    pub(super) probes: u8,
    backoff: u8,
    options: u8,
    /// Window scales: the low four bits contain that of the peer's window, the high four bits that of ours.
    wscale: u8,
    /// Bit 0: the delivery rate is low because the program sent little.
    limits: u8,
    rto: u32,
    ato: u32,
    pub(super) snd_mss: u32,
    rcv_mss: u32,
    pub(super) unacked: u32,
    sacked: u32,
    lost: u32,
    retrans: u32,
    fackets: u32,
    last_data_sent: u32,
    last_ack_sent: u32,
    last_data_recv: u32,
    /// Time since the last ACK arrived, in milliseconds.
    pub(super) last_ack_recv: u32,
    pmtu: u32,
    rcv_ssthresh: u32,
    rtt: u32,
    rttvar: u32,
    snd_ssthresh: u32,
    snd_cwnd: u32,
    advmss: u32,
    reordering: u32,
    rcv_rtt: u32,
    rcv_space: u32,
    total_retrans: u32,
    pacing_rate: u64,
    max_pacing_rate: u64,
    pub(super) bytes_acked: u64,
    bytes_received: u64,
    segs_out: u32,
    segs_in: u32,
    notsent_bytes: u32,
    min_rtt: u32,
    data_segs_in: u32,
    data_segs_out: u32,
    delivery_rate: u64,
    busy_time: u64,
    rwnd_limited: u64,
    sndbuf_limited: u64,
    delivered: u32,
    delivered_ce: u32,
    bytes_sent: u64,
    bytes_retrans: u64,
    dsack_dups: u32,
    reord_seen: u32,
    rcv_ooopack: u32,
    /// The peer's window, in octets after scaling. Always 0 before Linux 5.4.
    pub(super) snd_wnd: u32,
    /// Our window as the peer knows it, in octets after scaling. Before Linux 6.2, the receive space that the kernel
    /// aims for.
    rcv_wnd: u32,
    rehash: u32,
}

/// The kernel's states (net/tcp_states.h).
mod state {
    pub(super) const ESTABLISHED: u8 = 1;
    pub(super) const SYN_SENT: u8 = 2;
    pub(super) const SYN_RECV: u8 = 3;
    pub(super) const FIN_WAIT1: u8 = 4;
    pub(super) const FIN_WAIT2: u8 = 5;
    pub(super) const TIME_WAIT: u8 = 6;
    pub(super) const CLOSE: u8 = 7;
    pub(super) const CLOSE_WAIT: u8 = 8;
    pub(super) const LISTEN: u8 = 10;
    pub(super) const CLOSING: u8 = 11;
}

/// The bits of the negotiated options (linux/tcp.h).
mod option {
    pub(super) const TIMESTAMPS: u8 = 1;
    pub(super) const SACK: u8 = 2;
    pub(super) const ECN: u8 = 8;
}

/// Value of `min_rtt` before the first measurement.
const NO_MIN_RTT: u32 = u32::MAX;
/// Value of `pacing_rate` without a limit.
const NO_PACING: u64 = u64::MAX;

impl TcpInfo {
    /// Reads the figures of a TCP socket; `None` on failure.
    pub(super) fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        let mut info = Self::default();
        let mut len = size_of::<Self>() as libc::socklen_t;
        // SAFETY: the structure has the stated length; an older kernel fills less of it.
        let status = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut len,
            )
        };
        if status != 0 {
            return None;
        }
        // Linux 6.2 added `rcv_wnd` and `rehash`. Older kernels may write padding to the place of `rcv_wnd`.
        if (len as usize) < offset_of!(Self, rehash) + size_of::<u32>() {
            info.rcv_wnd = info.rcv_space;
        }
        Some(info)
    }

    /// Returns whether the connection is closed, or the peer has acknowledged our FIN and so all data.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, state::FIN_WAIT2 | state::TIME_WAIT | state::CLOSE)
    }

    /// Returns why a connection in this state cannot be taken over; `None` if it can be taken over. A connection
    /// whose peer has already ended its half can be taken over, because the MPA start-up then reports that end.
    pub(super) fn unfit(&self) -> Option<NotConvertible> {
        match self.state {
            state::ESTABLISHED | state::SYN_RECV | state::CLOSE_WAIT => None,
            state::SYN_SENT | state::CLOSE => Some(NotConvertible::NotConnected),
            state::LISTEN => Some(NotConvertible::Listening),
            _ => Some(NotConvertible::ShutDown),
        }
    }

    /// Converts the figures to the form of urnic's own TCP.
    pub(super) fn convert(&self) -> ConnInfo {
        let micros = |n: u32| Duration::from_micros(n.into());
        let octets = |segments: u32| segments.saturating_mul(self.snd_mss);
        let min_rtt = if self.min_rtt == NO_MIN_RTT { 0 } else { self.min_rtt };
        ConnInfo {
            state: match self.state {
                state::SYN_SENT => State::SynSent,
                state::SYN_RECV => State::SynReceived,
                state::ESTABLISHED => State::Established,
                state::FIN_WAIT1 => State::FinWait1,
                state::FIN_WAIT2 => State::FinWait2,
                state::CLOSE_WAIT => State::CloseWait,
                state::CLOSING => State::Closing,
                _ => State::LastAck,
            },
            recovery: match self.ca_state {
                0 => RecoveryState::Open,
                1 => RecoveryState::Disorder,
                4 => RecoveryState::Loss,
                _ => RecoveryState::Recovery,
            },
            srtt: (self.rtt > 0).then(|| micros(self.rtt)),
            rttvar: micros(self.rttvar),
            min_rtt: micros(min_rtt),
            rto: micros(self.rto),
            retries: self.retransmits,
            probes: self.probes,
            snd_mss: u16::try_from(self.snd_mss).unwrap_or(u16::MAX),
            cwnd: octets(self.snd_cwnd),
            ssthresh: octets(self.snd_ssthresh),
            snd_wnd: self.snd_wnd,
            rcv_wnd: self.rcv_wnd,
            parked: 0,
            wscale: (self.wscale & 0xf, self.wscale >> 4),
            in_flight: octets(self.unacked),
            sacked: octets(self.sacked),
            lost: octets(self.lost),
            not_sent: self.notsent_bytes,
            delivered: self.bytes_acked,
            received: self.bytes_received,
            retransmits: self.total_retrans.into(),
            reordering: self.reord_seen > 0,
            pacing_rate: (self.pacing_rate != NO_PACING).then_some(self.pacing_rate),
            delivery_rate: (self.delivery_rate > 0)
                .then_some(Rate { octets: self.delivery_rate, app_limited: self.limits & 1 != 0 }),
            sack: self.options & option::SACK != 0,
            timestamps: self.options & option::TIMESTAMPS != 0,
            ecn: self.options & option::ECN != 0,
        }
    }
}
