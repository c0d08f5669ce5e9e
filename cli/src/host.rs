//! Names of peers.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, ToSocketAddrs};

use crate::failure::Failure;

/// An IPv4 address, if need be by name and with a TCP port behind a colon.
pub fn resolve(host: &str, default_port: u16) -> Result<SocketAddrV4, Failure> {
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return Ok(SocketAddrV4::new(address, default_port));
    }
    let wrong =
        |why: String| Failure::Usage(format!("{why}; write the server's IPv4 address, such as 10.0.0.1"));
    let found = match host.contains(':') {
        true => host.to_socket_addrs(),
        false => (host, default_port).to_socket_addrs(),
    };
    let found = found.map_err(|error| wrong(format!("cannot find the server {host:?}: {error}")))?;
    let v4 = found.into_iter().find_map(|address| match address {
        SocketAddr::V4(v4) => Some(v4),
        SocketAddr::V6(_) => None,
    });
    v4.ok_or_else(|| wrong(format!("the server {host:?} has no IPv4 address")))
}
