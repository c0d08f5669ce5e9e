//! What a stack has seen and done since it was made.

/// Plain counts; they wrap at 2⁶⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counters {
    // Frames in.
    pub frames_in: u64,
    pub not_for_us: u64,
    pub malformed: u64,
    pub bad_ip_checksum: u64,
    pub bad_tcp_checksum: u64,
    /// Of these, those whose sender left the checksum to an interface that did not fill it.
    pub unfilled_tcp_checksum: u64,
    pub fragments: u64,
    pub unknown_protocol: u64,
    /// Frames without the tag of our VLAN, or with another.
    pub other_vlan: u64,
    pub no_connection: u64,
    /// Frames that went on to another stack of the device, which owns their connection or answers for the host.
    pub handed_over: u64,
    /// Frames of neighbours and routers that all other stacks of the device were told of.
    pub shared: u64,
    /// Frames from another stack of the device that do not belong here either.
    pub strays: u64,
    // Frames out.
    pub segments_out: u64,
    pub bytes_out: u64,
    pub retransmitted_segments: u64,
    pub retransmitted_bytes: u64,
    /// Of the segments that were sent again, those in fast recovery and those after a timeout.
    pub fast_retransmissions: u64,
    pub timeout_retransmissions: u64,
    pub acks_out: u64,
    pub resets_out: u64,
    pub tx_full: u64,
    // Connections.
    pub active_opens: u64,
    pub passive_opens: u64,
    /// SYNs for which there was no place.
    pub syn_backlog_full: u64,
    /// SYN cookies: sent, those that came back, and ACKs that were none while some were out.
    pub syn_cookies_out: u64,
    pub syn_cookies_in: u64,
    pub syn_cookies_failed: u64,
    pub resets_in: u64,
    pub timeouts: u64,
    // Segments in.
    pub segments_in: u64,
    pub bytes_in: u64,
    /// Segments that a router marked Congestion Experienced.
    pub congestion_marks_in: u64,
    /// ACKs that echoed such a mark, and reductions of a window because of them.
    pub congestion_echoes_in: u64,
    pub congestion_reductions: u64,
    pub out_of_order: u64,
    pub out_of_order_dropped: u64,
    /// Segments in order that neither the user nor the stack had room for.
    pub in_order_dropped: u64,
    /// Receive windows that became zero because the user took no more, and that were opened again.
    pub windows_shut: u64,
    pub windows_reopened: u64,
    pub duplicate: u64,
    pub unacceptable: u64,
    pub paws_dropped: u64,
    pub duplicate_acks: u64,
    pub challenge_acks: u64,
    pub limited: u64,
    // Loss.
    /// Fast recoveries, and of them those with SACK.
    pub fast_recoveries: u64,
    pub sack_recoveries: u64,
    /// Times that a retransmission was found lost.
    pub lost_retransmissions: u64,
    pub rto_recoveries: u64,
    pub loss_probes: u64,
    /// Losses that a loss probe repaired.
    pub loss_probe_recoveries: u64,
    /// ACKs with SACK blocks, and of them those that report a duplicate.
    pub sacks_in: u64,
    pub dsacks_in: u64,
    /// ACKs of ours that report a duplicate.
    pub dsacks_out: u64,
    pub sack_reneging: u64,
    /// Reductions of the window that were undone: after a timeout by F-RTO, because of DSACK, and by timestamps after a
    /// timeout and in fast recovery.
    pub spurious_timeouts: u64,
    pub dsack_undos: u64,
    pub loss_undos: u64,
    pub full_undos: u64,
    pub window_probes: u64,
    pub keepalive_probes: u64,
    pub sws_overrides: u64,
    // ARP and ICMP.
    pub arp_requests_out: u64,
    pub arp_replies_out: u64,
    pub arp_failures: u64,
    /// Messages of IPv6's neighbour, router and listener discovery.
    pub nd_in: u64,
    pub nd_out: u64,
    /// Packets in which another host uses an IPv6 address of ours.
    pub nd_conflicts: u64,
    /// ARP packets in which another host claims our address.
    pub arp_conflicts: u64,
    pub echo_replies: u64,
    pub unreachables_in: u64,
    pub icmp_errors_out: u64,
    /// Messages that made the packets to a destination smaller.
    pub path_mtu_reductions: u64,
    /// Paths that were found to swallow large packets.
    pub path_mtu_black_holes: u64,
}

impl Counters {
    /// The counters that Linux has, too, under the names that `nstat` gives them; what is no segment or packet there is
    /// none here.
    pub fn nstat(&self) -> [(&'static str, u64); 43] {
        [
            ("TcpActiveOpens", self.active_opens),
            ("TcpPassiveOpens", self.passive_opens),
            ("TcpEstabResets", self.resets_in),
            ("TcpInSegs", self.segments_in),
            ("TcpOutSegs", self.segments_out),
            ("TcpRetransSegs", self.retransmitted_segments),
            ("TcpOutRsts", self.resets_out),
            ("TcpInCsumErrors", self.bad_tcp_checksum),
            ("TcpExtSyncookiesSent", self.syn_cookies_out),
            ("TcpExtSyncookiesRecv", self.syn_cookies_in),
            ("TcpExtSyncookiesFailed", self.syn_cookies_failed),
            ("TcpExtPAWSEstab", self.paws_dropped),
            ("TcpExtListenDrops", self.syn_backlog_full),
            ("TcpExtTCPRenoRecovery", self.fast_recoveries - self.sack_recoveries),
            ("TcpExtTCPSackRecovery", self.sack_recoveries),
            ("TcpExtTCPSACKReneging", self.sack_reneging),
            ("TcpExtTCPFullUndo", self.full_undos),
            ("TcpExtTCPDSACKUndo", self.dsack_undos),
            ("TcpExtTCPLossUndo", self.loss_undos),
            ("TcpExtTCPLostRetransmit", self.lost_retransmissions),
            ("TcpExtTCPFastRetrans", self.fast_retransmissions),
            ("TcpExtTCPSlowStartRetrans", self.timeout_retransmissions),
            ("TcpExtTCPTimeouts", self.rto_recoveries),
            ("TcpExtTCPLossProbes", self.loss_probes),
            ("TcpExtTCPLossProbeRecovery", self.loss_probe_recoveries),
            ("TcpExtTCPSpuriousRTOs", self.spurious_timeouts),
            ("TcpExtTCPDSACKOldSent", self.dsacks_out),
            ("TcpExtTCPDSACKRecv", self.dsacks_in),
            ("TcpExtTCPAbortOnTimeout", self.timeouts),
            ("TcpExtTCPOFOQueue", self.out_of_order),
            ("TcpExtTCPOFODrop", self.out_of_order_dropped),
            ("TcpExtTCPRcvQDrop", self.in_order_dropped),
            ("TcpExtTCPToZeroWindowAdv", self.windows_shut),
            ("TcpExtTCPFromZeroWindowAdv", self.windows_reopened),
            ("TcpExtTCPChallengeACK", self.challenge_acks),
            ("TcpExtTCPWinProbe", self.window_probes),
            ("TcpExtTCPKeepAlive", self.keepalive_probes),
            ("IpExtInCEPkts", self.congestion_marks_in),
            ("IpInHdrErrors", self.malformed),
            ("IpInUnknownProtos", self.unknown_protocol),
            ("IpExtInCsumErrors", self.bad_ip_checksum),
            ("IcmpInDestUnreachs", self.unreachables_in),
            ("IcmpOutEchoReps", self.echo_replies),
        ]
    }
}
