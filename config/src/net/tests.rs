use super::*;

#[test]
fn addresses() {
    let cidr: Cidr = "10.1.2.3/16".parse().unwrap();
    assert_eq!((cidr.address, cidr.prefix), (IpAddr::from([10, 1, 2, 3]), 16));
    assert_eq!(cidr.to_string(), "10.1.2.3/16");
    assert!(cidr.contains(IpAddr::from([10, 1, 255, 1])));
    assert!(!cidr.contains(IpAddr::from([10, 2, 2, 3])));
    let v6: Cidr = "fd00:0:0:1::2/64".parse().unwrap();
    assert!(v6.contains("fd00:0:0:1:ffff::1".parse().unwrap()));
    assert!(!v6.contains("fd00:0:0:2::1".parse().unwrap()) && !v6.contains(IpAddr::from([10, 1, 2, 3])));
    for good in [
        "fd00::1/128",
        "fd00::/127",
        "fe80::1/64",
        "2001:db8::1/1",
        "10.0.0.0/31",
        "10.0.0.1/31",
        "10.0.0.0/32",
        "10.0.1.0/16",
        "192.168.0.1/1",
    ] {
        assert!(good.parse::<Cidr>().is_ok(), "{good}");
    }
    for (bad, why) in [
        ("10.0.0.1", "no prefix length"),
        ("10.0.0/24", "not an IP address"),
        ("10.0.0.1/33", "1 to 32"),
        ("10.0.0.1/0", "1 to 32"),
        ("10.0.0.1/", "1 to 32"),
        ("10.0.0.0/24", "address of a host"),
        ("10.0.0.255/24", "address of a host"),
        ("127.0.0.1/8", "address of a host"),
        ("224.0.0.1/24", "address of a host"),
        ("0.0.0.0/32", "address of a host"),
        ("fd00::1/129", "1 to 128"),
        ("fd00::/64", "address of a host"),
        ("ff02::1/64", "address of a host"),
        ("::1/128", "address of a host"),
        ("::ffff:10.0.0.1/128", "address of a host"),
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
        ("00:00:00:00:00:00", "not the address of a station"),
        ("", "not an Ethernet"),
    ] {
        let error = bad.parse::<Mac>().unwrap_err();
        assert!(error.contains(why), "{bad}: {error}");
    }
    let ours = Mac::for_address(IpAddr::from([10, 0, 0, 7]));
    assert_eq!(ours.0[0] & 3, 2, "locally administered, not a group");
    let v6 = |a: &str| Mac::for_address(a.parse().unwrap());
    assert_eq!(v6("fd00::1").0[0] & 3, 2);
    assert_ne!(v6("fd00::1"), v6("fd00::2"));
    assert_ne!(ours, Mac::for_address(IpAddr::from([10, 0, 0, 8])));
}
