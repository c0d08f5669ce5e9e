//! Counters of a stack since it was made.

/// Event counts, which wrap at 2⁶⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counters {
    // Frames in.
    pub frames_in: u64,
    pub not_for_us: u64,
    pub malformed: u64,
    pub bad_ip_checksum: u64,
    pub bad_tcp_checksum: u64,
    /// Part of `bad_tcp_checksum`: the sender left the checksum to an interface that did not fill it in.
    pub unfilled_tcp_checksum: u64,
    pub fragments: u64,
    pub unknown_protocol: u64,
    /// Frames without the tag of our VLAN, or with another tag.
    pub other_vlan: u64,
    pub no_connection: u64,
    /// Frames handed to another stack of the device, which owns their connection or speaks for the host.
    pub handed_over: u64,
    /// Frames of neighbours and routers that were passed to all other stacks of the device.
    pub shared: u64,
    /// Frames from another stack of the device that do not belong to this stack either.
    pub strays: u64,
    // Frames out.
    pub segments_out: u64,
    pub bytes_out: u64,
    pub retransmitted_segments: u64,
    pub retransmitted_bytes: u64,
    /// Parts of `retransmitted_segments`. In the order of the fields: those in fast recovery; those after a timeout or
    /// after a report of a smaller path MTU.
    pub fast_retransmissions: u64,
    pub timeout_retransmissions: u64,
    pub acks_out: u64,
    pub resets_out: u64,
    pub tx_full: u64,
    // Connections.
    pub active_opens: u64,
    pub passive_opens: u64,
    /// SYNs for which there was no room, including those answered with a cookie. Also ACKs of SYN-ACKs that could not
    /// open a connection, because the limit of connections was reached, or because there is no route to the peer or no
    /// place for its MAC address.
    pub syn_backlog_full: u64,
    /// SYN cookies that were sent; cookies that came back; ACKs without a valid cookie while cookies could come back.
    pub syn_cookies_out: u64,
    pub syn_cookies_in: u64,
    pub syn_cookies_failed: u64,
    pub resets_in: u64,
    pub timeouts: u64,
    // Segments in.
    pub segments_in: u64,
    pub bytes_in: u64,
    /// Segments that a router marked as Congestion Experienced.
    pub congestion_marks_in: u64,
    /// ACKs that echoed such a mark, and window reductions because of them.
    pub congestion_echoes_in: u64,
    pub congestion_reductions: u64,
    pub out_of_order: u64,
    pub out_of_order_dropped: u64,
    /// In-order segments for which neither the user nor the stack had room.
    pub in_order_dropped: u64,
    /// Receive windows that became zero because the user took no more data, and those that opened again.
    pub windows_shut: u64,
    pub windows_reopened: u64,
    pub duplicate: u64,
    pub unacceptable: u64,
    pub paws_dropped: u64,
    pub duplicate_acks: u64,
    pub challenge_acks: u64,
    /// Challenge ACKs, stateless replies and ICMP errors that were not sent because of a rate limit.
    pub limited: u64,
    // Loss.
    /// Fast recoveries, and those of them with SACK.
    pub fast_recoveries: u64,
    pub sack_recoveries: u64,
    /// Retransmissions that were found lost.
    pub lost_retransmissions: u64,
    pub rto_recoveries: u64,
    pub loss_probes: u64,
    /// Losses that a loss probe repaired.
    pub loss_probe_recoveries: u64,
    /// ACKs with SACK blocks, and those of them that report a duplicate.
    pub sacks_in: u64,
    pub dsacks_in: u64,
    /// Our ACKs that report a duplicate.
    pub dsacks_out: u64,
    pub sack_reneging: u64,
    /// Window reductions that were undone. In the order of the fields, the mistake was shown by F-RTO after a timeout;
    /// by DSACK; by timestamps after a timeout; by timestamps in fast recovery.
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
    /// Messages of IPv6's neighbour and router discovery; in `nd_out`, of listener discovery as well.
    pub nd_in: u64,
    pub nd_out: u64,
    /// Packets in which another host uses one of our IPv6 addresses.
    pub nd_conflicts: u64,
    /// ARP packets in which another host claims our address.
    pub arp_conflicts: u64,
    pub echo_replies: u64,
    pub unreachables_in: u64,
    pub icmp_errors_out: u64,
    /// Reductions of the path MTU of a destination, after a message or after repeated losses of large packets.
    pub path_mtu_reductions: u64,
    /// Paths that were found to drop large packets silently.
    pub path_mtu_black_holes: u64,
}

impl Counters {
    /// Returns the counters that Linux has as well, under the names that `nstat` uses. Counters that Linux does not
    /// have are left out.
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
