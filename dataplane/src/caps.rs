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

/// Who computes the TCP checksum of a frame that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxChecksum {
    /// We do.
    Software,
    /// Nobody: frames cross memory only. The peer is told that the field holds the sum of the pseudo-header, and trusts it.
    Spared,
    /// The NIC does, of what the field's sum of the pseudo-header and the mbuf's flags describe; on the wire it is right.
    Nic,
}

/// Who verifies the TCP checksum of a frame that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxChecksum {
    /// We do.
    Software,
    /// Nobody, where the link's metadata says that none is needed.
    Link,
    /// The NIC, where it has found a whole segment's right; else we do.
    Nic,
}

/// Who chooses the queue of a port at which a frame arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// The peer, by the queue from which it sends.
    Sender,
    /// The kernel or the NIC, by a hash of the connection that is unknown to us.
    Hash,
    /// The NIC, by a hash of the connection that it was told.
    Known(Rss),
}

/// Toeplitz's hash of both addresses and ports of a TCP connection, as a NIC computes it, and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rss {
    /// The 16 bits that the key repeats.
    pub key: u16,
    /// Entries of the table, a power of two; number `n` leads to queue `n` modulo the number of queues.
    pub entries: u32,
}

/// What a port can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Frames of several segments arrive whole.
    pub multi_segment_tx: bool,
    /// What memory external buffers may be in.
    pub external_tx: ExternalMemory,
    /// What payload may stay in until it is acknowledged, instead of being copied when it is queued: nothing goes wrong if a
    /// frame is read when its memory has been given back already. Where the port has no use for that: `None`.
    pub lends: Option<ExternalMemory>,
    /// Whether a frame may be sent with the sum of the pseudo-header in place of its TCP checksum, and what comes of it.
    pub tx_checksum: TxChecksum,
    /// What is believed of what the port says of a received frame's TCP checksum.
    pub rx_checksum: RxChecksum,
    /// The link comes back by itself when the peer was killed and restarted.
    pub reconnects: bool,
    /// A peer that is killed cannot take this process with it.
    pub survives_peer: bool,
    /// Queues that a port can have each way; of an open port, those that it has.
    pub queues: u16,
    /// Who spreads frames over them.
    pub spread: Spread,
}

/// Queues of a port that may have as many as a device has engines.
const MANY: u16 = urnic_config::MAX_ENGINES as u16;
/// As many as DPDK's driver `virtio_user` takes (VIRTIO_MAX_VIRTQUEUE_PAIRS).
const VIRTIO_QUEUES: u16 = 8;
/// As many as DPDK's drivers `ring`, `af_packet` and `tap` take (RTE_PMD_RING_MAX_RX_RINGS, RTE_PMD_AF_PACKET_MAX_RINGS,
/// RTE_PMD_TAP_MAX_QUEUES); `af_xdp` knows no such bound.
const RINGS: u16 = 16;

impl Capabilities {
    /// The table, by kinds. Of an open port, [`Port::caps`](crate::Port::caps) tells more.
    pub fn of(spec: &PortSpec) -> Self {
        match spec {
            PortSpec::VirtioUser { server, .. } => Self {
                multi_segment_tx: true,
                // Other memory stalls the queue for ever: the peer has not mapped it.
                external_tx: ExternalMemory::Eal,
                // The peer may be slow to read a frame: by then memory of EAL may be someone else's, but it is there.
                lends: Some(ExternalMemory::Eal),
                tx_checksum: TxChecksum::Spared,
                rx_checksum: RxChecksum::Link,
                reconnects: *server,
                survives_peer: true,
                queues: VIRTIO_QUEUES,
                spread: Spread::Sender,
            },
            PortSpec::Vhost { .. } => Self {
                multi_segment_tx: true,
                external_tx: ExternalMemory::Any,
                // Frames are copied before the driver returns.
                lends: Some(ExternalMemory::Any),
                tx_checksum: TxChecksum::Spared,
                rx_checksum: RxChecksum::Link,
                reconnects: true,
                survives_peer: true,
                queues: MANY,
                spread: Spread::Sender,
            },
            // The driver's control thread unmaps the rings under a survivor that is polling them.
            PortSpec::Memif { .. } => Self {
                multi_segment_tx: true,
                external_tx: ExternalMemory::Any,
                lends: None,
                tx_checksum: TxChecksum::Software,
                rx_checksum: RxChecksum::Software,
                reconnects: true,
                survives_peer: false,
                // Restarting the client would stop the device under the others' bursts.
                queues: 1,
                spread: Spread::Sender,
            },
            // Both ends are in one process; frames are copied where they arrive.
            PortSpec::Ring { .. } => Self {
                multi_segment_tx: true,
                external_tx: ExternalMemory::Any,
                lends: None,
                tx_checksum: TxChecksum::Spared,
                rx_checksum: RxChecksum::Link,
                reconnects: true,
                survives_peer: true,
                queues: RINGS,
                spread: Spread::Sender,
            },
            // Segments are gathered into the driver's ring, or by writev: any memory is copied.
            PortSpec::AfPacket { .. } | PortSpec::Tap { .. } => Self {
                multi_segment_tx: true,
                external_tx: ExternalMemory::Any,
                lends: None,
                tx_checksum: TxChecksum::Software,
                rx_checksum: RxChecksum::Software,
                reconnects: true,
                survives_peer: true,
                // The kernel hashes connections; that of a tap remembers, too, from which queue it has heard of one.
                queues: RINGS,
                spread: Spread::Hash,
            },
            // The driver looks at a frame's first segment only, and sends as many bytes from there as the frame has.
            // Of other virtual devices nothing is known.
            PortSpec::AfXdp { .. } | PortSpec::Vdev { .. } => Self {
                multi_segment_tx: false,
                external_tx: ExternalMemory::Eal,
                lends: None,
                tx_checksum: TxChecksum::Software,
                rx_checksum: RxChecksum::Software,
                reconnects: true,
                survives_peer: true,
                // A socket for each; tried with those of a tap.
                queues: if matches!(spec, PortSpec::AfXdp { .. }) { RINGS } else { 1 },
                spread: Spread::Hash,
            },
            // What the driver says of chaining, of checksums and of queues is believed. An upper bound: the open port knows, and
            // whether its hash is known.
            PortSpec::Pci { offload, .. } => Self {
                multi_segment_tx: true,
                external_tx: ExternalMemory::Eal,
                lends: None,
                tx_checksum: if *offload { TxChecksum::Nic } else { TxChecksum::Software },
                rx_checksum: if *offload { RxChecksum::Nic } else { RxChecksum::Software },
                reconnects: true,
                survives_peer: true,
                queues: MANY,
                spread: Spread::Hash,
            },
        }
    }
}
