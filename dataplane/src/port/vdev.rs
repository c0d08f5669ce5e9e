//! Names and arguments of the virtual devices.

use std::ffi::CString;

use urnic_config::{MemifRole, PortSpec};

use super::PortError;

/// Frames that the driver's queue may hold in either direction.
pub(super) fn queue_size(spec: &PortSpec) -> u16 {
    match spec {
        PortSpec::VirtioUser { queue_size, .. } | PortSpec::Memif { queue_size, .. } => *queue_size,
        PortSpec::Vhost { .. } | PortSpec::Ring { .. } => super::ring::SLOTS,
    }
}

/// Bytes of an mbuf where a frame may be several TCP segments: two of 9,000 bytes, or a dozen of 1,500. Longer ones
/// would save little more, and the pools have many mbufs.
const TRAIN: usize = 18 << 10;

/// Bytes that an mbuf to send must hold, for frames of up to `frame` bytes.
pub(super) fn send_room(spec: &PortSpec, frame: usize) -> usize {
    match spec {
        PortSpec::VirtioUser { .. } | PortSpec::Vhost { .. } => frame.max(TRAIN),
        _ => frame,
    }
}

/// Bytes that an mbuf for reception must hold, for frames of up to `frame` bytes.
pub(super) fn receive_room(spec: &PortSpec, frame: usize) -> usize {
    /// The longest frame of any urnic.
    const LONGEST: usize = urnic_config::MTU_MAX as usize + super::ETHERNET;
    match spec {
        // Where the mbufs hold the driver's own buffers it copies without looking, however long the peer's frame.
        PortSpec::Memif { .. } => frame.max(LONGEST),
        _ => send_room(spec, frame),
    }
}

/// Whether both ends are in this process.
pub(super) fn is_ring(spec: &PortSpec) -> bool {
    matches!(spec, PortSpec::Ring { .. })
}

/// The device's name in EAL, unique in the process.
pub(super) fn name(spec: &PortSpec, serial: u32) -> CString {
    let driver = match spec {
        PortSpec::VirtioUser { .. } => "net_virtio_user",
        PortSpec::Vhost { .. } => "net_vhost",
        PortSpec::Memif { .. } => "net_memif",
        PortSpec::Ring { .. } => "urnic_ring",
    };
    CString::new(format!("{driver}{serial}")).unwrap_or_default()
}

/// The device's arguments for frames of up to `frame` bytes.
pub(super) fn args(spec: &PortSpec, frame: usize) -> Result<CString, PortError> {
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
            format!("path={path},queue_size={queue_size},server={}", u8::from(*server))
        }
        PortSpec::Vhost { server, .. } => format!("iface={path},queues=1,tso=1,client={}", u8::from(!server)),
        PortSpec::Memif { role, id, queue_size, .. } => format!(
            "role={},id={id},socket={path},socket-abstract=no,rsize={},bsize={}",
            if *role == MemifRole::Server { "server" } else { "client" },
            queue_size.ilog2(),
            frame.next_multiple_of(64).max(2048),
        ),
        PortSpec::Ring { .. } => String::new(),
    };
    CString::new(text).map_err(|_| bad_path("it holds a NUL byte"))
}
