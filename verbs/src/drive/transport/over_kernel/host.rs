//! Reads the host's addresses and routes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use nix::ifaddrs::InterfaceAddress;
use nix::net::if_::InterfaceFlags;
use urnic_config::KernelAddresses;
use urnic_tcp::Address;

use crate::shared::error::{Error, Result};

/// Returns the wanted addresses of interfaces that are up, in four groups: IPv4 addresses, IPv6 addresses, link-local
/// addresses, loopback addresses. Within each group, the addresses have the kernel's order. Of an interface that is
/// wanted by name, only the first address counts.
///
/// # Errors
/// [`Error::NoDescriptor`] if no descriptor is left for the socket with which the kernel is asked; [`Error::Os`] if
/// the kernel cannot be asked for another reason.
pub(crate) fn addresses(wanted: &KernelAddresses) -> Result<Vec<Address>> {
    let all = nix::ifaddrs::getifaddrs()
        .map_err(|errno| Error::os("reading the host's addresses", errno.into()))?;
    let up = all.filter(is_up);
    let mut found: Vec<Address> = up.filter(|i| is_wanted(i, wanted)).filter_map(|i| address(&i)).collect();
    // All addresses of 127.0.0.0/8 belong to the host, although the kernel lists only one.
    if let (KernelAddresses::One(ip @ IpAddr::V4(v4)), true) = (wanted, found.is_empty())
        && v4.is_loopback()
    {
        found.push(Address { ip: *ip, prefix_len: 8 });
    }
    found.sort_by_key(|address| rank(address.ip));
    if let KernelAddresses::Interface(_) = wanted {
        found.truncate(1);
    }
    Ok(each_once(found))
}

/// Returns the addresses without repetitions: two interfaces may have the same one.
fn each_once(addresses: Vec<Address>) -> Vec<Address> {
    let mut unique = Vec::with_capacity(addresses.len());
    for address in addresses {
        if !unique.contains(&address) {
            unique.push(address);
        }
    }
    unique
}

/// Returns the name of the interface that has an address; `None` if no interface that is up has it.
fn name(ip: IpAddr) -> Option<String> {
    interfaces().find(|i| address(i).is_some_and(|a| a.ip == ip)).map(|i| i.interface_name)
}

/// Returns the index of the interface that has an address; `None` if no interface that is up has it.
pub(crate) fn interface(ip: IpAddr) -> Option<u32> {
    nix::net::if_::if_nametoindex(name(ip)?.as_str()).ok()
}

/// Returns the MTU, in octets, of the interface that has an address; 0 if no interface that is up has it or the
/// MTU is unknown. An MTU above 65,535, such as that of the loopback interface, counts as 65,535.
pub(crate) fn mtu(ip: IpAddr) -> u16 {
    let Some(name) = name(ip) else { return 0 };
    let mtu = std::fs::read_to_string(format!("/sys/class/net/{name}/mtu")).ok();
    let mtu = mtu.and_then(|text| text.trim().parse::<u32>().ok()).unwrap_or(0);
    u16::try_from(mtu).unwrap_or(u16::MAX)
}

fn interfaces() -> impl Iterator<Item = InterfaceAddress> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    all.filter(is_up)
}

fn is_up(interface: &InterfaceAddress) -> bool {
    interface.flags.contains(InterfaceFlags::IFF_UP)
}

fn is_wanted(interface: &InterfaceAddress, wanted: &KernelAddresses) -> bool {
    match wanted {
        KernelAddresses::All => true,
        KernelAddresses::One(ip) => address(interface).is_some_and(|a| a.ip == *ip),
        KernelAddresses::Interface(name) => interface.interface_name == *name,
    }
}

fn address(interface: &InterfaceAddress) -> Option<Address> {
    let ip = socket_address(interface.address.as_ref()?)?.ip();
    let prefix_len = match socket_address(interface.netmask.as_ref()?)?.ip() {
        IpAddr::V4(mask) => mask.to_bits().count_ones(),
        IpAddr::V6(mask) => mask.to_bits().count_ones(),
    };
    Some(Address { ip, prefix_len: prefix_len as u8 })
}

fn socket_address(storage: &nix::sys::socket::SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|a| SocketAddr::from((a.ip(), a.port())));
    v4.or_else(|| storage.as_sockaddr_in6().map(|a| SocketAddr::from((a.ip(), a.port()))))
}

fn rank(ip: IpAddr) -> u8 {
    match ip {
        ip if ip.is_loopback() => 3,
        IpAddr::V4(ip) if ip.is_link_local() => 2,
        IpAddr::V6(ip) if ip.is_unicast_link_local() => 2,
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) => 1,
    }
}

/// Returns the local address of packets to `to`: `home`, or, if that is `None`, the address that the host's routes
/// choose. Returns `None` if no route leads from that address to `to`. Sends nothing.
///
/// # Errors
/// [`Error::Forbidden`] if the host forbids packets to `to`; [`Error::NoDescriptor`] if no descriptor is left.
pub(super) fn source_for(home: Option<IpAddr>, to: SocketAddr) -> Result<Option<IpAddr>> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let from = match home {
        Some(home) if home.is_ipv4() != to.is_ipv4() => return Ok(None),
        Some(home) => home,
        None => any,
    };
    let socket =
        match UdpSocket::bind((from, 0)).map_err(|source| Error::os("a socket for route queries", source)) {
            Ok(socket) => socket,
            Err(Error::NoDescriptor) => return Err(Error::NoDescriptor),
            Err(_) => return Ok(None),
        };
    // The route does not depend on the port, but the kernel requires a port other than 0.
    let to = if to.port() == 0 { with_port(to, 9) } else { to };
    match socket.connect(to) {
        Ok(()) => Ok(socket.local_addr().ok().map(|own| own.ip())),
        Err(error) if is_forbidden(&error) && !is_broadcast(&socket, to) => Err(Error::Forbidden(to.ip())),
        Err(_) => Ok(None),
    }
}

fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

/// Returns whether the kernel refused to connect `socket` to `to` because `to` is a broadcast address.
fn is_broadcast(socket: &UdpSocket, to: SocketAddr) -> bool {
    socket.set_broadcast(true).is_ok() && socket.connect(to).is_ok()
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Returns an Ethernet address for the host: the address of an interface. If no interface has one, the address is
/// derived from the id of the machine, or from that of the boot if the machine has no id.
pub(crate) fn mac() -> [u8; 6] {
    let link = |i: &InterfaceAddress| i.address.as_ref()?.as_link_addr()?.addr();
    let real = interfaces().filter_map(|i| link(&i)).find(|mac| *mac != [0; 6]);
    real.unwrap_or_else(|| {
        let id = ["/etc/machine-id", "/proc/sys/kernel/random/boot_id"];
        let id =
            id.iter().filter_map(|path| std::fs::read(path).ok()).find(|id| is_id(id)).unwrap_or_default();
        // The FNV-1a hash.
        let hash = id.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, octet| {
            (hash ^ u64::from(*octet)).wrapping_mul(0x100_0000_01b3)
        });
        let [_, _, _, a, b, c, d, e] = hash.to_be_bytes();
        [2, a, b, c, d, e]
    })
}

/// Returns whether the content of a file is an id. In images that are copied to many machines, the file is empty or has
/// this word (machine-id(5)).
fn is_id(content: &[u8]) -> bool {
    !matches!(content.trim_ascii(), b"" | b"uninitialized")
}

#[cfg(test)]
mod tests;
