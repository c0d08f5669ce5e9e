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
    /// What payload may stay in until it is acknowledged, instead of being copied when it is queued: nothing goes wrong if a
    /// frame is read when its memory has been given back already. Where the port has no use for that: `None`.
    pub lends: Option<ExternalMemory>,
    /// A frame may be marked as needing no TCP checksum; the peer is told so and the field is not filled.
    pub checksum_metadata: bool,
    /// What the port says of a received frame's TCP checksum is true.
    pub checks_checksum: bool,
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
                // The peer may be slow to read a frame: by then memory of EAL may be someone else's, but it is there.
                lends: Some(ExternalMemory::Eal),
                checksum_metadata: true,
                checks_checksum: true,
                reconnects: *server,
                survives_peer: true,
            },
            PortSpec::Vhost { .. } => Self {
                multi_segment_tx: true,
                external_tx: ExternalMemory::Any,
                // Frames are copied before the driver returns.
                lends: Some(ExternalMemory::Any),
                checksum_metadata: true,
                checks_checksum: true,
                reconnects: true,
                survives_peer: true,
            },
            // The driver's control thread unmaps the rings under a survivor that is polling them.
            PortSpec::Memif { .. } => Self {
                multi_segment_tx: true,
                external_tx: ExternalMemory::Any,
                lends: None,
                checksum_metadata: false,
                checks_checksum: false,
                reconnects: true,
                survives_peer: false,
            },
            // Both ends are in one process; frames are copied where they arrive.
            PortSpec::Ring { .. } => Self {
                multi_segment_tx: true,
                external_tx: ExternalMemory::Any,
                lends: None,
                checksum_metadata: true,
                checks_checksum: true,
                reconnects: true,
                survives_peer: true,
            },
            // Segments are gathered into the driver's ring, or by writev: any memory is copied.
            PortSpec::AfPacket { .. } | PortSpec::Tap { .. } => Self {
                multi_segment_tx: true,
                external_tx: ExternalMemory::Any,
                lends: None,
                checksum_metadata: false,
                checks_checksum: false,
                reconnects: true,
                survives_peer: true,
            },
            // The driver looks at a frame's first segment only, and sends as many bytes from there as the frame has.
            // Of other virtual devices nothing is known.
            PortSpec::AfXdp { .. } | PortSpec::Vdev { .. } => Self {
                multi_segment_tx: false,
                external_tx: ExternalMemory::Eal,
                lends: None,
                checksum_metadata: false,
                checks_checksum: false,
                reconnects: true,
                survives_peer: true,
            },
            // What the driver says of chaining is believed; checksums are computed, and checked unless the NIC has.
            PortSpec::Pci { .. } => Self {
                multi_segment_tx: true,
                external_tx: ExternalMemory::Eal,
                lends: None,
                checksum_metadata: false,
                checks_checksum: true,
                reconnects: true,
                survives_peer: true,
            },
        }
    }
}
