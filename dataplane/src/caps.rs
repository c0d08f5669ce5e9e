//! What each kind of port can do, as tested with DPDK 22.11, not as its flags claim.

use urnic_config::PortSpec;

/// Memory from which a port can send without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExternalMemory {
    /// Only memory of EAL: mbufs and [`Arena`](crate::Arena).
    Eal,
    /// Any.
    Any,
}

/// What a kind of port can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Frames of several segments arrive whole.
    pub multi_segment_tx: bool,
    /// What memory external buffers may be in.
    pub external_tx: ExternalMemory,
    /// A frame may be marked as needing no TCP checksum; the peer is told so and the field is not filled.
    pub checksum_metadata: bool,
    /// The link comes back by itself when the peer was killed and restarted.
    pub reconnects: bool,
    /// A peer that is killed cannot take this process with it.
    pub survives_peer: bool,
}

impl Capabilities {
    /// The table.
    pub fn of(spec: &PortSpec) -> Self {
        match spec {
            PortSpec::VirtioUser { server, .. } => Self {
                multi_segment_tx: true,
                // Other memory stalls the queue for ever: the peer has not mapped it.
                external_tx: ExternalMemory::Eal,
                checksum_metadata: true,
                reconnects: *server,
                survives_peer: true,
            },
            PortSpec::Vhost { .. } => Self {
                multi_segment_tx: true,
                external_tx: ExternalMemory::Any,
                checksum_metadata: true,
                reconnects: true,
                survives_peer: true,
            },
            // The driver's control thread unmaps the rings under a survivor that is polling them.
            PortSpec::Memif { .. } => Self {
                multi_segment_tx: true,
                external_tx: ExternalMemory::Any,
                checksum_metadata: false,
                reconnects: true,
                survives_peer: false,
            },
            // Both ends are in one process; frames are copied where they arrive.
            PortSpec::Ring { .. } => Self {
                multi_segment_tx: true,
                external_tx: ExternalMemory::Any,
                checksum_metadata: true,
                reconnects: true,
                survives_peer: true,
            },
        }
    }
}
