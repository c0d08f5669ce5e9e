use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use super::{address, on_the_link_of, sockaddr};

fn link_local(host: u16, scope: u32) -> SocketAddr {
    SocketAddrV6::new(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, host), 4420, 0, scope).into()
}

#[test]
fn what_c_is_given_it_gives_back() {
    let addresses = [
        "10.0.0.1:7174".parse().unwrap(),
        "[fd00::1]:7174".parse().unwrap(),
        link_local(1, 3),
        link_local(2, 0),
    ];
    for wanted in addresses {
        let storage = sockaddr(wanted);
        // SAFETY: a socket address, in storage for any.
        assert_eq!(unsafe { address((&raw const storage).cast()) }, Ok(wanted));
    }
    let mapped: SocketAddr = "[::ffff:10.0.0.1]:7174".parse().unwrap();
    let storage = sockaddr(mapped);
    // SAFETY: as above.
    assert_eq!(unsafe { address((&raw const storage).cast()) }, Ok("10.0.0.1:7174".parse().unwrap()));
}

/// RFC 4007 §6: a link-local address does not contain its link.
#[test]
fn our_address_is_on_the_peers_link() {
    assert_eq!(on_the_link_of(link_local(2, 3), link_local(1, 0)), link_local(1, 3));
    for own in ["10.0.0.1:0", "[fd00::1]:0"] {
        let own = own.parse().unwrap();
        assert_eq!(on_the_link_of(link_local(2, 3), own), own);
    }
}
