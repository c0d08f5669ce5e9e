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
    pub no_connection: u64,
    // Frames out.
    pub segments_out: u64,
    pub bytes_out: u64,
    pub retransmitted_segments: u64,
    pub retransmitted_bytes: u64,
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
    pub duplicate: u64,
    pub unacceptable: u64,
    pub paws_dropped: u64,
    pub duplicate_acks: u64,
    pub challenge_acks: u64,
    pub limited: u64,
    // Loss.
    pub fast_recoveries: u64,
    pub rto_recoveries: u64,
    pub loss_probes: u64,
    /// Losses that a loss probe repaired.
    pub loss_probe_recoveries: u64,
    /// ACKs with SACK blocks, and of them those that report a duplicate.
    pub sacks_in: u64,
    pub dsacks_in: u64,
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
    /// ARP packets in which another host claims our address.
    pub arp_conflicts: u64,
    pub echo_replies: u64,
    pub unreachables_in: u64,
}
