//! What is known of a connection.

use std::net::SocketAddr;

use urnic_tcp::ConnInfo;

/// A TCP connection of a device, whoever uses it.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectionAttr {
    /// Its queue pair, once it is in RDMA mode.
    pub qpn: Option<u32>,
    /// Our end.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// Its figures.
    pub tcp: ConnInfo,
}
