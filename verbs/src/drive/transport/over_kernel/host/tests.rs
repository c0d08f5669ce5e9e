use super::*;

fn address(last: u8) -> Address {
    Address { ip: IpAddr::from([10, 0, 0, last]), prefix_len: 24 }
}

#[test]
fn an_address_of_two_interfaces_counts_once() {
    let found = vec![address(1), address(2), address(1), address(2), address(3)];
    assert_eq!(each_once(found), [address(1), address(2), address(3)]);
}

#[test]
fn an_image_has_no_id_of_its_own() {
    assert!(is_id(b"0123456789abcdef0123456789abcdef\n"));
    for content in [&b""[..], b"\n", b"uninitialized\n"] {
        assert!(!is_id(content), "{content:?}");
    }
}

/// The loopback interface has an address of each family, except on hosts without IPv6.
#[test]
fn of_an_interface_one_address_counts() {
    let found = addresses(&KernelAddresses::Interface("lo".to_owned())).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
}
