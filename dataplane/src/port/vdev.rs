//! Names and arguments of the virtual devices.

use std::ffi::{CStr, CString};

use urnic_config::{MemifRole, PortSpec};

use super::PortError;

/// Returns the kernel's network interface that the port is on, if other processes can use it too. `None` for
/// interfaces that a port creates and NICs that it drives by itself, because these belong to the port. The
/// interface that `vdev:net_tap` creates is returned nevertheless, because it is not recognised.
pub(super) fn shared_interface(spec: &PortSpec) -> Option<&str> {
    match spec {
        PortSpec::AfPacket { interface, .. } | PortSpec::AfXdp { interface, .. } => Some(interface),
        // The interface of `net_af_packet` and `net_pcap`; of `net_tap`, the interface that the driver creates.
        PortSpec::Vdev { args, .. } => args.split(',').find_map(|arg| arg.trim().strip_prefix("iface=")),
        _ => None,
    }
}

/// Returns the queues each way that the driver must have for a port with `queues` queues. A `vhost` port does not
/// know in advance how many queues its peer has; the peer may have more, and send from all of them. Each queue costs
/// a descriptor.
pub(super) fn driver_queues(spec: &PortSpec, queues: u16) -> u16 {
    /// The limit of `virtio_user`.
    const OF_PEERS: u16 = 8;
    if matches!(spec, PortSpec::Vhost { .. }) { queues.max(OF_PEERS) } else { queues }
}

/// Returns whether a port of this kind has a device of its own for each queue.
pub(super) fn has_device_for_each_queue(spec: &PortSpec) -> bool {
    matches!(spec, PortSpec::Memif { .. })
}

/// Returns the `memif` interfaces for the queues of a port after the first one, in order: those with the next ids on
/// the same socket. Empty for ports of other kinds.
pub(super) fn other_interfaces(spec: &PortSpec) -> impl Iterator<Item = PortSpec> {
    let mut next = spec.clone();
    std::iter::from_fn(move || {
        let PortSpec::Memif { id, .. } = &mut next else { return None };
        *id = id.checked_add(1)?;
        Some(next.clone())
    })
}

/// Returns the number of descriptors in one queue of the driver.
pub(super) fn queue_size(spec: &PortSpec) -> u16 {
    match spec {
        PortSpec::VirtioUser { queue_size, .. }
        | PortSpec::Memif { queue_size, .. }
        | PortSpec::AfPacket { queue_size, .. } => *queue_size,
        PortSpec::Vhost { .. } | PortSpec::Ring { .. } => super::ring::SLOTS,
        // The driver always uses the queue size of libxdp.
        PortSpec::AfXdp { .. } => XDP_QUEUE,
        PortSpec::Tap { .. } => 256,
        PortSpec::Pci { .. } | PortSpec::Vdev { .. } => 1024,
    }
}

/// Bytes of an mbuf if a frame may be several TCP segments: enough for two of 9,000 bytes, or a dozen of 1,500. A
/// larger mbuf would gain little, and would cost memory in every mbuf of the pools.
const TRAIN: usize = 18 << 10;

/// Returns how many bytes an mbuf to send must hold, for frames of up to `frame` bytes.
pub(super) fn send_room(spec: &PortSpec, frame: usize) -> usize {
    match spec {
        PortSpec::VirtioUser { .. } | PortSpec::Vhost { .. } => frame.max(TRAIN),
        _ => frame,
    }
}

/// Returns how many frames of each pool the driver may hold on to.
pub(super) fn held_frames(spec: &PortSpec) -> u32 {
    match spec {
        // The driver copies into and out of a ring of its own.
        PortSpec::AfPacket { .. } => 0,
        // The receive pool also holds frames that are being sent, because the driver copies them into it.
        PortSpec::AfXdp { .. } => 2 * u32::from(XDP_QUEUE),
        _ => queue_size(spec).into(),
    }
}

/// Returns the least number of mbufs that the driver gets at a time while it receives; 0: any number.
///
/// After each burst, `virtio_user`'s driver offers new buffers to the peer, and waits until the peer can see them before
/// it returns the frames. On two cores that takes a tenth of a round trip. If it gets no mbufs, it does so later.
pub(super) fn refill(spec: &PortSpec) -> u32 {
    match spec {
        PortSpec::VirtioUser { queue_size, .. } => u32::from(*queue_size / 4).min(32),
        _ => 0,
    }
}

/// Descriptors of each ring of an XDP socket.
const XDP_QUEUE: u16 = 2048;
/// Bytes that the kernel keeps free before a frame for XDP (XDP_PACKET_HEADROOM).
const XDP_HEADROOM: usize = 256;

/// Returns the largest IP packet that the driver carries, in bytes.
pub(super) fn mtu_limit(spec: &PortSpec) -> u16 {
    match spec {
        // A page of 4096 bytes holds a frame, its headroom, and the data of DPDK and the kernel beside it; a mempool
        // leaves a cache line of the page unused.
        PortSpec::AfXdp { .. } => 3436,
        // The driver refuses a larger MTU, and drops longer frames.
        PortSpec::Tap { .. } => 1500,
        _ => u16::MAX,
    }
}

/// Returns the bytes of a slot in the ring of a packet socket: the kernel's header and alignment, a VLAN tag, the
/// frame. Four slots are a whole number of pages.
fn packet_slot(frame: usize) -> usize {
    const BESIDE: usize = 80 + 16;
    (frame + BESIDE).next_multiple_of(1024)
}

/// Slots in a block of the ring.
const SLOTS_PER_BLOCK: usize = 4;
/// Bytes of a slot that the driver reserves for the kernel's header.
const PACKET_HEADER: usize = 32;

/// Returns how many bytes an mbuf for reception must hold, for frames of up to `frame` bytes.
pub(super) fn receive_room(spec: &PortSpec, frame: usize) -> usize {
    /// The longest frame that a urnic peer of any configuration sends.
    const LONGEST: usize = urnic_config::MTU_MAX as usize + super::ETHERNET;
    match spec {
        // If an mbuf is at least as large as the driver's own buffers (`bsize`), the driver copies each of the peer's
        // buffers into an mbuf without a bounds check, and trusts the length that the peer states. So an mbuf must hold
        // the longest frame of any urnic peer.
        PortSpec::Memif { .. } => frame.max(LONGEST),
        // The driver requires room for all that a slot can hold.
        PortSpec::AfPacket { .. } => packet_slot(frame) - PACKET_HEADER,
        // The kernel refuses buffers that take less than 2048 bytes together with DPDK's 320 bytes beside them.
        PortSpec::AfXdp { .. } => (frame + XDP_HEADROOM).max(1728),
        // Many NICs support only buffers of a power of two. If the driver rounds the size down, the NIC splits frames.
        PortSpec::Pci { .. } => (frame + FCS).next_power_of_two().max(2048),
        _ => send_room(spec, frame),
    }
}

/// Bytes of an Ethernet frame's checksum, which a NIC may count in.
const FCS: usize = 4;

/// Returns the bus of the port's device.
pub(super) fn bus(spec: &PortSpec) -> &'static CStr {
    if matches!(spec, PortSpec::Pci { .. }) { c"pci" } else { c"vdev" }
}

/// Returns whether both ends are in this process.
pub(super) fn is_ring(spec: &PortSpec) -> bool {
    matches!(spec, PortSpec::Ring { .. })
}

/// Returns the device's name in EAL, unique in the process.
pub(super) fn name(spec: &PortSpec, serial: u32) -> CString {
    let driver = match spec {
        PortSpec::VirtioUser { .. } => "net_virtio_user",
        PortSpec::Vhost { .. } => "net_vhost",
        PortSpec::Memif { .. } => "net_memif",
        PortSpec::Ring { .. } => "net_ring_urnic",
        PortSpec::AfPacket { .. } => "net_af_packet",
        PortSpec::AfXdp { .. } => "net_af_xdp",
        PortSpec::Tap { .. } => "net_tap",
        PortSpec::Pci { address: name, .. } | PortSpec::Vdev { name, .. } => {
            return CString::new(name.as_str()).unwrap_or_default();
        }
    };
    CString::new(format!("{driver}{serial}")).unwrap_or_default()
}

/// Returns the device's arguments for frames of up to `frame` bytes and `queues` queues each way.
pub(super) fn args(spec: &PortSpec, frame: usize, trains: bool, queues: u16) -> Result<CString, PortError> {
    let bad_path = |reason: &str| PortError::SocketPath {
        port: spec.to_string(),
        path: spec.path().map(ToOwned::to_owned).unwrap_or_default(),
        reason: reason.into(),
    };
    let path =
        spec.path().map(|p| p.to_str().ok_or_else(|| bad_path("it is not UTF-8"))).transpose()?.unwrap_or("");
    if path.contains([',', '[', ']', '"', '\0']) {
        return Err(bad_path("DPDK cannot take a path with a comma, bracket or quote"));
    }
    let text = match spec {
        PortSpec::VirtioUser { server, queue_size, .. } => {
            // The driver announces over its control queue how many queues are in use.
            let several = if queues > 1 { format!(",queues={queues},cq=1") } else { String::new() };
            format!("path={path},queue_size={queue_size},server={}{several}", u8::from(*server))
        }
        PortSpec::Vhost { server, .. } => {
            format!("iface={path},queues={queues},tso={},client={}", u8::from(trains), u8::from(!server))
        }
        PortSpec::Memif { role, id, queue_size, .. } => format!(
            "role={},id={id},socket={path},socket-abstract=no,rsize={},bsize={}",
            if *role == MemifRole::Server { "server" } else { "client" },
            queue_size.ilog2(),
            frame.next_multiple_of(64).max(2048),
        ),
        PortSpec::Ring { .. } | PortSpec::Pci { .. } => String::new(),
        PortSpec::AfPacket { interface, queue_size } => {
            let slot = packet_slot(frame);
            let block = slot * SLOTS_PER_BLOCK;
            format!(
                "iface={interface},framesz={slot},blocksz={block},framecnt={queue_size},qdisc_bypass=1,qpairs={queues}"
            )
        }
        // Busy polling in the kernel would take time from the engine's own polling.
        PortSpec::AfXdp { interface, queue } => {
            format!("iface={interface},start_queue={queue},queue_count={queues},busy_budget=0")
        }
        PortSpec::Tap { interface } => format!("iface={interface}"),
        PortSpec::Vdev { args, .. } => args.clone(),
    };
    CString::new(text).map_err(|_| bad_path("it holds a NUL byte"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_that_processes_share() {
        for (port, interface) in [
            ("af_packet:eth0", Some("eth0")),
            ("af_xdp:eth1,queue=3", Some("eth1")),
            ("vdev:net_af_packet9,iface=eth2,blocksz=4096", Some("eth2")),
            ("vdev:net_null9,size=64", None),
            ("tap:t0", None),
            ("pci:0000:00:04.0", None),
            ("virtio_user:/tmp/a.sock", None),
        ] {
            let spec: PortSpec = port.parse().expect("a port");
            assert_eq!(shared_interface(&spec), interface, "{port}");
        }
    }

    /// Drivers round a NIC's buffer size down to a power of two, at least 2048: the longest frame with a VLAN tag and
    /// its FCS must fit.
    #[test]
    fn a_nic_receives_into_buffers_of_its_sizes() {
        let nic: PortSpec = "pci:0000:00:04.0".parse().expect("a port");
        for (mtu, room) in [(576, 2048), (1500, 2048), (2026, 2048), (2027, 4096), (9000, 16384)] {
            assert_eq!(receive_room(&nic, mtu + super::super::ETHERNET), room, "MTU {mtu}");
        }
    }
}
