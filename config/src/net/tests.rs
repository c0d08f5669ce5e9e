use super::*;

#[test]
fn addresses() {
    let cidr: Cidr = "10.1.2.3/16".parse().unwrap();
    assert_eq!((cidr.address, cidr.prefix), (Ipv4Addr::new(10, 1, 2, 3), 16));
    assert_eq!(cidr.to_string(), "10.1.2.3/16");
    assert!(cidr.contains(Ipv4Addr::new(10, 1, 255, 1)));
    assert!(!cidr.contains(Ipv4Addr::new(10, 2, 2, 3)));
    for good in ["10.0.0.0/31", "10.0.0.1/31", "10.0.0.0/32", "10.0.1.0/16", "192.168.0.1/1"] {
        assert!(good.parse::<Cidr>().is_ok(), "{good}");
    }
    for (bad, why) in [
        ("10.0.0.1", "no prefix length"),
        ("10.0.0/24", "not an IPv4 address"),
        ("10.0.0.1/33", "1 to 32"),
        ("10.0.0.1/0", "1 to 32"),
        ("10.0.0.1/", "1 to 32"),
        ("10.0.0.0/24", "address of a host"),
        ("10.0.0.255/24", "address of a host"),
        ("127.0.0.1/8", "address of a host"),
        ("224.0.0.1/24", "address of a host"),
        ("0.0.0.0/32", "address of a host"),
        ("fd00::1/64", "only IPv4"),
    ] {
        let error = bad.parse::<Cidr>().unwrap_err();
        assert!(error.contains(why), "{bad}: {error}");
    }
}

#[test]
fn macs() {
    let mac: Mac = "02:00:0a:FF:00:01".parse().unwrap();
    assert_eq!(mac, Mac([2, 0, 10, 255, 0, 1]));
    assert_eq!(mac.to_string(), "02:00:0a:ff:00:01");
    for (bad, why) in [
        ("02:00:00:00:00", "not an Ethernet"),
        ("02:00:00:00:00:00:00", "not an Ethernet"),
        ("2:00:00:00:00:001", "not an Ethernet"),
        ("0g:00:00:00:00:00", "not an Ethernet"),
        ("+2:00:00:00:00:00", "not an Ethernet"),
        ("01:00:5e:00:00:01", "group"),
        ("00:00:00:00:00:00", "no station"),
        ("", "not an Ethernet"),
    ] {
        let error = bad.parse::<Mac>().unwrap_err();
        assert!(error.contains(why), "{bad}: {error}");
    }
    let ours = Mac::for_address(Ipv4Addr::new(10, 0, 0, 7));
    assert_eq!(ours.0[0] & 3, 2, "locally administered, not a group");
    assert_ne!(ours, Mac::for_address(Ipv4Addr::new(10, 0, 0, 8)));
}
