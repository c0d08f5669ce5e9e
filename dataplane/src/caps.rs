//! Capabilities of each kind of port. Those of virtual devices come from tests with DPDK 22.11, not from DPDK's flags.
//! Those of NICs are upper bounds, which the driver's flags narrow when the port is opened.

use urnic_config::PortSpec;

/// Memory from which a port can send without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExternalMemory {
    /// Only memory of EAL: mbufs and [`Arena`](crate::Arena).
    Eal,
    /// Any memory.
    Any,
}

/// The party that computes the TCP checksum of a frame that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxChecksum {
    /// The stack computes it.
    Software,
    /// No party, because frames cross memory only. The link's metadata tells the peer that the field holds the sum of
    /// the pseudo-header, and the peer trusts the segment.
    Spared,
    /// The NIC, from the sum of the pseudo-header in the field and the mbuf's flags; the frame on the wire has the
    /// right checksum.
    Nic,
}

/// The party that verifies the TCP checksum of a frame that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxChecksum {
    /// The stack verifies it.
    Software,
    /// No party, if the link's metadata says that no check is needed.
    Link,
    /// The NIC, if it reports the checksum of a whole segment as right; otherwise the stack.
    Nic,
}

/// The party that chooses the queue of a port at which a frame arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// The peer, by the queue from which it sends.
    Sender,
    /// The kernel or the NIC, by a hash of the connection. We do not know the hash function.
    Hash,
    /// The NIC, by a hash of the connection. We have configured the hash function.
    Known(Rss),
}

/// The Toeplitz hash of both addresses and ports of a TCP connection, as a NIC computes it, and how the NIC chooses a
/// queue by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rss {
    /// The 16 bits that the key repeats.
    pub key: u16,
    /// Entries of the table, a power of two; entry `n` selects queue `n` modulo the number of queues.
    pub entries: u32,
}

/// Capabilities of a kind of port, or of an open port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether frames of several segments arrive whole.
    pub multi_segment_tx: bool,
    /// The memory that external buffers may be in.
    pub external_tx: ExternalMemory,
    /// The memory in which payload may stay until it is acknowledged, instead of being copied when it is queued.
    /// [`ExternalMemory::Eal`]: the peer reads frames in this memory, perhaps late. Once it has acknowledged the
    /// payload it ignores the frame, so the lender may then have its memory back. [`ExternalMemory::Any`]: the port
    /// copies frames when it sends them. `None`: the port gains nothing from lent memory.
    pub lends: Option<ExternalMemory>,
    /// The party that computes the TCP checksum of a sent frame. Unless it is the stack, a frame may be sent with the
    /// sum of the pseudo-header in place of the checksum.
    pub tx_checksum: TxChecksum,
    /// How far the port's verdict on a received frame's TCP checksum is trusted.
    pub rx_checksum: RxChecksum,
    /// Whether the link comes back by itself after the peer was killed and restarted.
    pub reconnects: bool,
    /// Whether this process survives when its peer is killed.
    pub survives_peer: bool,
    /// Queues each way: for a kind of port, the maximum; for an open port, the actual number.
    pub queues: u16,
    /// The party that spreads frames over the queues.
    pub spread: Spread,
}

/// Queues of a port without a limit of its own: as many as a device may have engines.
const MANY: u16 = urnic_config::MAX_ENGINES as u16;
/// The limit of DPDK's driver `virtio_user` (VIRTIO_MAX_VIRTQUEUE_PAIRS).
const VIRTIO_QUEUES: u16 = 8;
/// Each queue of a `memif` port is a device of its own, and DPDK has at most 32 in a process (RTE_MAX_ETHPORTS).
const MEMIFS: u16 = 8;
/// The limit of DPDK's drivers `ring`, `af_packet` and `tap` (RTE_PMD_RING_MAX_RX_RINGS, RTE_PMD_AF_PACKET_MAX_RINGS,
/// RTE_PMD_TAP_MAX_QUEUES). `af_xdp` has no limit, and gets this one too.
const RINGS: u16 = 16;

impl Capabilities {
    /// Returns the capabilities of a kind of port. For an open port, [`Port::caps`](crate::Port::caps) is more
    /// precise.
    pub fn of(spec: &PortSpec) -> Self {
        match spec {
            PortSpec::VirtioUser { server, .. } => Self {
                multi_segment_tx: true,
                // Other memory stalls the queue for ever, because the peer has not mapped it.
                external_tx: ExternalMemory::Eal,
                // The peer may read a frame late: EAL memory may have another owner by then, but it is still mapped.
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
            // When the peer dies, the driver's control thread unmaps the rings while this process polls them.
            PortSpec::Memif { .. } => Self {
                multi_segment_tx: true,
                external_tx: ExternalMemory::Any,
                lends: None,
                tx_checksum: TxChecksum::Software,
                rx_checksum: RxChecksum::Software,
                reconnects: true,
                survives_peer: false,
                queues: MEMIFS,
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
                // The kernel hashes connections; the kernel's tap driver also remembers from which queue it last got
                // a connection's frames.
                queues: RINGS,
                spread: Spread::Hash,
            },
            // The driver does not follow a chain: it sends the frame's whole length from the start of the first
            // segment, beyond that segment's end. Nothing is known of other virtual devices.
            PortSpec::AfXdp { .. } | PortSpec::Vdev { .. } => Self {
                multi_segment_tx: false,
                external_tx: ExternalMemory::Eal,
                lends: None,
                tx_checksum: TxChecksum::Software,
                rx_checksum: RxChecksum::Software,
                reconnects: true,
                survives_peer: true,
                // AF_XDP uses one socket for each queue; tested with the queues of a tap.
                queues: if matches!(spec, PortSpec::AfXdp { .. }) { RINGS } else { 1 },
                spread: Spread::Hash,
            },
            // These are upper bounds. When the port is opened, the driver states what it supports of chaining,
            // checksums and queues, and `spread` becomes `Known` if the driver takes our hash.
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
