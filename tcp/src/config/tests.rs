use super::*;

#[test]
fn own_addresses_count_the_one_that_the_mac_makes() {
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    let made = "fe80::ff:fe00:7";
    for (given, autoconf, own) in [
        (&["10.0.0.1"][..], false, &["10.0.0.1"][..]),
        (&["10.0.0.1", "fd00::1"], false, &["10.0.0.1", "fd00::1", made]),
        (&["fd00::1", "fe80::1"], false, &["fd00::1", "fe80::1"]),
        (&["fd00::1", "fe80::1"], true, &["fd00::1", "fe80::1", made]),
        (&[made], true, &[made]),
        (&[], true, &[made]),
    ] {
        let address = |text: &&str| Address { ip: ip(text), prefix_len: 64 };
        let cfg = StackConfig {
            addresses: given.iter().map(address).collect(),
            autoconf,
            ..StackConfig::new([2, 0, 0, 0, 0, 7], [0; 4], 0, 0)
        };
        assert_eq!(
            cfg.own_addresses(),
            own.iter().map(|t| ip(t)).collect::<Vec<_>>(),
            "{given:?} {autoconf}"
        );
    }
}

#[test]
fn a_route_and_its_router_are_of_one_family() {
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    let address = |text: &str| Address { ip: ip(text), prefix_len: 24 };
    let mut cfg = StackConfig {
        addresses: vec![address("10.0.0.1"), address("fd00::1")],
        ..StackConfig::new([2, 0, 0, 0, 0, 7], [0; 4], 0, 0)
    };
    for (network, via, fits) in [
        ("11.0.0.0", "10.0.0.2", true),
        ("fd01::", "fd00::2", true),
        ("fd01::", "fe80::2", true),
        ("11.0.0.0", "fd00::2", false),
        ("11.0.0.0", "fe80::2", false),
        ("fd01::", "10.0.0.2", false),
    ] {
        let (network, via) = (ip(network), ip(via));
        cfg.routes = vec![Route { network, prefix_len: 16, via }];
        let found = cfg.check();
        assert_eq!(found, if fits { Ok(()) } else { Err(ConfigError::Family { network, via }) });
    }
}

/// RFC 9293 §3.4: the queued octets must not reach the distance from which on sequence numbers have no order.
#[test]
fn buffers_are_smaller_than_sequence_space() {
    let mut cfg = StackConfig::new([2, 0, 0, 0, 0, 7], [10, 0, 0, 1], 24, 0);
    for (octets, fits) in [(1 << 30, true), ((1 << 30) + 1, false), (u32::MAX, false)] {
        cfg.tcp.send_buffer = octets;
        assert_eq!(cfg.check(), if fits { Ok(()) } else { Err(ConfigError::SendBuffer(octets)) });
    }
    cfg.tcp.send_buffer = 0;
    cfg.tcp.recv_window = (1 << 30) + 1;
    assert_eq!(cfg.check(), Err(ConfigError::RecvWindow((1 << 30) + 1)));
}
