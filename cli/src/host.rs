//! Names of peers.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use crate::failure::Failure;

/// An IP address, if need be by name and with a TCP port behind a colon; an IPv6 address with a port is written in
/// brackets. The interface of a link-local address (`fe80::1%eth0`) means nothing: a node has one link.
pub fn resolve(host: &str, default_port: u16) -> Result<SocketAddr, Failure> {
    let without_interface;
    let host = match host.split_once('%') {
        Some((address, rest)) if address.contains(':') => {
            without_interface = format!("{address}{}", rest.find(']').map_or("", |end| &rest[end..]));
            &without_interface
        }
        _ => host,
    };
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, default_port));
    }
    let wrong = |why: String| {
        Failure::Usage(format!(
            "{why}; write the server's address, such as 10.0.0.1, fd00::1 or [fd00::1]:7000"
        ))
    };
    let found = match host.contains(':') {
        true => host.to_socket_addrs(),
        false => (host, default_port).to_socket_addrs(),
    };
    let found = found.map_err(|error| wrong(format!("cannot find the server {host:?}: {error}")))?;
    found.into_iter().next().ok_or_else(|| wrong(format!("the server {host:?} has no address")))
}

#[cfg(test)]
mod tests;
