//! Resolves the names of peers.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use crate::failure::Failure;

/// Resolves an IP address or a name, optionally with a TCP port after a colon; an IPv6 address with a port is written
/// in brackets. The interface of a link-local address (`fe80::1%eth0`) matters to the kernel's sockets only, because a
/// DPDK port has only one link. The host may not know the name of that link, so an unknown interface is no error.
pub fn resolve(host: &str, default_port: u16) -> Result<SocketAddr, Failure> {
    let without_interface;
    let mut link = 0;
    let host = match host.split_once('%') {
        Some((address, rest)) if address.contains(':') => {
            let (interface, behind) = rest.split_at(rest.find(']').unwrap_or(rest.len()));
            link = interface.parse().or_else(|_| nix::net::if_::if_nametoindex(interface)).unwrap_or(0);
            without_interface = format!("{address}{behind}");
            &without_interface
        }
        _ => host,
    };
    let on_its_link = |mut found: SocketAddr| {
        if let SocketAddr::V6(v6) = &mut found
            && v6.ip().is_unicast_link_local()
        {
            v6.set_scope_id(link);
        }
        found
    };
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(on_its_link(SocketAddr::new(address, default_port)));
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
    found
        .into_iter()
        .next()
        .map(on_its_link)
        .ok_or_else(|| wrong(format!("the server {host:?} has no address")))
}

#[cfg(test)]
mod tests;
