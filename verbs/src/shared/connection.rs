//! Attributes of a connection.

use std::net::SocketAddr;

use urnic_tcp::ConnInfo;

/// A TCP connection of a device, in RDMA mode or not: see [`Device::connections`](crate::Device::connections).
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectionAttr {
    /// Number of the queue pair; `None` unless the connection is in RDMA mode.
    pub qpn: Option<u32>,
    /// Local address.
    pub local: SocketAddr,
    /// Address of the peer.
    pub peer: SocketAddr,
    /// State and figures of TCP.
    pub tcp: ConnInfo,
}
